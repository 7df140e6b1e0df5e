"""Local solvers: how a party minimises its subproblem.

``solver(subproblem, start, key, effort, memory)`` returns the new parameters, the number of gradient steps made and the
memory after them. ``effort`` in [0, 1] is the fraction of its full work that the party can do now (FedProx's partial
work). Any positive effort is at least one step; at 0 the party does nothing.
Loops have the party's own number of steps, so they are right with and without ``vmap``.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PyTree
from typing_extensions import override

from resolvent.arguments import CheckedArguments
from resolvent.errors import InputError
from resolvent.math.tree import Vector
from resolvent.problem.oracle import NO_MEMORY, PartyMemory
from resolvent.problem.schedules import Schedule
from resolvent.problem.solvers.minibatches import (
    Batches,
    MinibatchBudget,
    Shuffled,
    Stop,
    over_minibatches,
    scale_budget,
)
from resolvent.problem.subproblem import Subproblem
from resolvent.xla import loops

ProximalStep = Literal["implicit", "explicit"]


class LocalSolver(CheckedArguments, eqx.Module):
    """Minimises a subproblem, exactly or approximately.

    Attributes:
        adds_noise: whether the solver adds noise that protects samples. Two solves with one key would have the same
            noise, so each of them needs a key of its own; solvers without noise may share a key, and with it their
            minibatches.
    """

    adds_noise: ClassVar[bool] = False

    def __check_init__(self) -> None:
        check_whole(self, "steps", getattr(self, "steps", None))

    @abstractmethod
    def __call__(self, subproblem: Subproblem, start: Vector, key: Array, effort: Float[Array, ""],
                 memory: PartyMemory = NO_MEMORY) -> tuple[Vector, Int[Array, ""], PartyMemory]:
        """Work on the subproblem.

        Args:
            subproblem: the objective.
            start: the first parameters.
            key: a random key.
            effort: the fraction of the full work that is done, in [0, 1]. A positive effort is at least one step; 0
                returns ``start``.
            memory: memory of the oracle and of the solver; a part that is () begins anew.

        Returns:
            The last parameters, the number of gradient steps made, and the memory after them; a solver that hands
            nothing on returns the memory that it gets.
        """

    def init_memory(self, w: Vector) -> PyTree[Any]:
        """The solver's memory before the first round; () if it begins anew in every round."""
        return ()

    def work(self, samples: Int[Array, " C"]) -> Float[Array, " C"]:
        """Estimated number of samples processed at full effort by parties of these sizes; used for load balancing.

        The default is proportional to the size. A solver whose work does not grow with the size overrides it.
        """
        return samples.astype(jnp.result_type(float))

    @property
    def step_size(self) -> ArrayLike | None:
        """The length of a step relative to the gradient of the subproblem; None if there is no such number."""
        return None

    @property
    def heavy_ball(self) -> ArrayLike | None:
        """rho of steps eta*v with v <- rho*v + gradient, of which v begins at 0 in each round; None for other steps."""
        return None

    def restarts_schedule(self, w: Vector) -> bool:
        """Whether a schedule inside the solver begins anew in every round, for models such as w."""
        return False

    def scaled(self, factor: ArrayLike) -> "LocalSolver":
        """The solver with a multiple of its learning rate; a solver without one returns itself."""
        return self

    def at(self, t: Int[Array, ""]) -> "LocalSolver":
        """The solver of round t, with the learning rate that its schedule has there; by default the solver itself."""
        return self

    def limit_batches(self, samples: int) -> "LocalSolver":
        """The same solver with minibatches of at most this number of samples, for parties that have no more.

        Minibatches have one shape in a compiled program, so larger ones would be padded. A solver without minibatches
        returns itself.
        """
        return self


class GradientSolver(LocalSolver):
    """Base class of solvers whose steps are a learning rate times a gradient of the subproblem.

    Attributes:
        learning_rate: eta, the step size.
    """

    learning_rate: Annotated[ArrayLike, "(0, inf)"]

    @property
    @override
    def step_size(self) -> ArrayLike:
        return self.learning_rate

    @override
    def scaled(self, factor: ArrayLike) -> Self:
        return replace(self, learning_rate=self.learning_rate * factor)


class MinibatchSolver(LocalSolver):
    """Base class of solvers whose steps are on minibatches, with a field ``batch_size``."""

    def __check_init__(self) -> None:
        if self.budget.epochs is not None and self.budget.steps is not None:
            raise InputError(f"{type(self).__name__} takes epochs= or steps=, not both")
        if self.budget.stop == "epoch":
            check_whole(self, "epochs", self.budget.epochs, "; for a part of an epoch give steps=, or SGD(stop='step')")

    @property
    @abstractmethod
    def budget(self) -> MinibatchBudget:
        """The work at full effort."""

    @override
    def work(self, samples: Int[Array, " C"]) -> Float[Array, " C"]:
        return self.budget.work(samples)

    def count_steps(self, samples: Int[Array, ""], effort: Float[Array, ""]) -> Int[Array, ""]:
        """Number of steps that a party with this number of samples makes."""
        return self.budget.count_steps(samples, effort)

    @override
    def limit_batches(self, samples: int) -> "MinibatchSolver":
        return self if self.budget.batch_size <= samples else replace(self, **{"batch_size": samples})


def check_whole(solver: LocalSolver, name: str, value: ArrayLike | None, advice: str = "") -> None:
    """Refuse a part of an epoch or of a step, which would be rounded up; traced values pass."""
    if value is not None and not isinstance(value, jax.core.Tracer) and np.any(np.asarray(value) % 1):
        raise InputError(f"{type(solver).__name__}({name}={value}) is not a whole number: give one{advice}")


class _Iterate(NamedTuple):
    params: Vector
    memory: PyTree[Any]  # of the oracle


class SGD(GradientSolver, MinibatchSolver):
    """Minibatch stochastic gradient descent, by default without replacement within an epoch.

    With eta the learning rate, g a minibatch gradient of f_k + <linear, .>, c the center and s the weight, a step is

    * implicit: w <- (w - eta g + eta s c) / (1 + eta s), which is kappa (w - eta g) + (1 - kappa) c with
      kappa = 1/(1 + eta s): the form of Fed+ (14), stable for every s. It is an explicit step of length
      kappa*eta (Fed+, Proposition 1).
    * explicit: w <- w - eta (g + s (w - c)), as in the code of FedProx's authors.

    With ``clip``, the minibatch gradient of f_k is first shortened to this Euclidean norm over all parameters; the
    linear and the proximal term are added to it as they are.

    Attributes:
        learning_rate: eta, the step size.
        batch_size: samples per step; the last batch of an epoch may be smaller.
        epochs: passes over the party's samples; a straggler makes ceil(effort * epochs). Exclusive with ``steps``. With
            ``stop="step"`` it can be a fraction: 0.5 is half of the steps of an epoch, rounded up.
        steps: gradient steps, for work that does not grow with the party; a straggler makes ceil(effort * steps).
        proximal: the ``implicit`` or the ``explicit`` step.
        stop: a straggler stops after an ``epoch``, or after any ``step``, which it must if there is only one epoch
            (FedProx, Figure 9).
        batches: chooses the minibatches: ``Shuffled()``, or ``Consecutive(bias)`` for time series.
        schedule: factor of the learning rate in each round, such as ``rv.schedules.Cosine(rounds=100)``; default: 1.
            Work outside of rounds, such as fine-tuning for an evaluation, uses that of round 0.
        clip: largest norm of a minibatch gradient, positive; default: any.

    Raises:
        InputError: a number is not positive, both ``epochs`` and ``steps`` are set, or an option does not exist.

    Example:
        >>> solver = rv.SGD(0.1, batch_size=20, epochs=1)
    """

    batch_size: Annotated[int, "[1, inf)"] = eqx.field(static=True, default=20)
    epochs: Annotated[ArrayLike | None, "(0, inf)"] = None
    steps: Annotated[ArrayLike | None, "(0, inf)"] = None
    proximal: ProximalStep = eqx.field(static=True, default="implicit")
    stop: Stop = eqx.field(static=True, default="epoch")
    batches: Batches = Shuffled()
    schedule: Schedule | None = eqx.field(default=None, kw_only=True)
    clip: Annotated[ArrayLike | None, "(0, inf)"] = eqx.field(default=None, kw_only=True)

    @override
    def at(self, t: Int[Array, ""]) -> "SGD":
        return self if self.schedule is None else replace(self.scaled(self.schedule(t)), schedule=None)

    @property
    @override
    def budget(self) -> MinibatchBudget:
        return MinibatchBudget(self.batch_size, self.epochs, self.steps, self.stop)

    @override
    def __call__(self, subproblem: Subproblem, start: Vector, key: Array, effort: Float[Array, ""],
                 memory: PartyMemory = NO_MEMORY) -> tuple[Vector, Int[Array, ""], PartyMemory]:
        learning_rate = self.at(jnp.array(0)).learning_rate

        def step(iterate: _Iterate, subproblem: Subproblem, positions: Int[Array, " B"],
                 mask: Bool[Array, " B"]) -> _Iterate:
            w, memory = iterate
            g, memory = subproblem.batch_smooth(w, positions, mask, memory, clip=self.clip)
            return _Iterate(proximal_step(subproblem, w, g, learning_rate, self.proximal), memory)

        last, total = over_minibatches(step, _Iterate(start, memory.oracle), subproblem, key, effort, self.budget,
                                       self.batches)
        return last.params, total, memory._replace(oracle=last.memory)


class GD(GradientSolver):
    """Gradient descent over all of a party's samples; the step is that of ``SGD``.

    Attributes:
        learning_rate: eta, the step size.
        steps: gradient steps; a straggler makes ceil(effort * steps).
        proximal: ``implicit`` or ``explicit``, see ``SGD``.
        schedule: factor of the learning rate in each round, see ``SGD``.

    Raises:
        InputError: a number is not positive, or ``proximal`` is neither.

    Example:
        >>> algorithm = rv.fedavg(rv.solvers.GD(0.01, steps=5))
    """

    steps: Annotated[ArrayLike, "(0, inf)"] = 1
    proximal: ProximalStep = eqx.field(static=True, default="implicit")
    schedule: Schedule | None = eqx.field(default=None, kw_only=True)

    @override
    def at(self, t: Int[Array, ""]) -> "GD":
        return self if self.schedule is None else replace(self.scaled(self.schedule(t)), schedule=None)

    @override
    def work(self, samples: Int[Array, " C"]) -> Float[Array, " C"]:
        return jnp.asarray(self.steps * samples, jnp.result_type(float))

    @override
    def __call__(self, subproblem: Subproblem, start: Vector, key: Array, effort: Float[Array, ""],
                 memory: PartyMemory = NO_MEMORY) -> tuple[Vector, Int[Array, ""], PartyMemory]:
        total = self.count_steps(subproblem.oracle.samples, effort)

        def step(_: Array, w: Vector) -> Vector:
            return proximal_step(subproblem, w, subproblem.smooth(w), self.learning_rate, self.proximal)

        return loops.fori_loop(step, start, total=total, cost=subproblem.oracle.samples), total, memory

    def count_steps(self, samples: Int[Array, ""], effort: Float[Array, ""]) -> Int[Array, ""]:
        """Number of steps that a party makes; it does not depend on the number of samples."""
        return scale_budget(self.steps, effort)


class ClosedForm(LocalSolver):
    """The exact minimiser, for oracles that have it in closed form (``Oracle.proximal_point``): quadratic problems.

    It counts as one step.

    Example:
        >>> algorithm = rv.fedprox(rv.solvers.ClosedForm(), mu=1.0)
    """

    @override
    def __call__(self, subproblem: Subproblem, start: Vector, key: Array, effort: Float[Array, ""],
                 memory: PartyMemory = NO_MEMORY) -> tuple[Vector, Int[Array, ""], PartyMemory]:
        exact = subproblem.oracle.proximal_point(subproblem.center, subproblem.weight, subproblem.linear)
        w = jax.tree.map(lambda solution, leaf: jnp.where(effort > 0, solution.astype(leaf.dtype), leaf), exact, start)
        return w, (effort > 0).astype(jnp.int32), memory


def proximal_step(subproblem: Subproblem, w: Vector, g: Vector, rate: ArrayLike, proximal: ProximalStep) -> Vector:
    """One step of ``SGD``, leaf by leaf, in the dtypes of ``w``."""
    s = subproblem.weight
    move: Callable[[Array, Array, Array], Array]
    if isinstance(s, int | float) and s == 0:
        # The same numbers as below, without reading the center.
        def move(w: Array, g: Array, c: Array) -> Array:
            return w - rate * g
    elif proximal == "explicit":
        def move(w: Array, g: Array, c: Array) -> Array:
            return w - rate * (g + s * (w - c))
    else:
        kappa = 1 / (1 + rate * s)

        def move(w: Array, g: Array, c: Array) -> Array:
            return jnp.asarray(kappa * (w - rate * g) + (1 - kappa) * c)
    return jax.tree.map(lambda w, g, c: move(w, g, c).astype(w.dtype), w, g, subproblem.center)


def require_gradient_steps(preset: str, solver: LocalSolver) -> SGD | GD:
    """Return the solver if its work is a number of plain gradient steps."""
    if not isinstance(solver, SGD | GD):
        raise InputError(f"{preset} needs plain gradient steps, got {type(solver).__name__}: use SGD or GD; for "
                         "clipped gradients, SGD(clip=1.0)")
    return solver
