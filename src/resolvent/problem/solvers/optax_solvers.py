"""Local solvers from optax's optimizers, on minibatches of the whole subproblem.

They see the proximal term through its gradient, weight * (w - center), or make an implicit step towards the center
after the optimizer's step. The optimizer's state is new in every round, or each party keeps its own.
"""

import contextlib
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PyTree
from typing_extensions import override

from resolvent.arguments import checked
from resolvent.errors import InputError, check_range
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import NO_MEMORY, PartyMemory
from resolvent.problem.schedules import Schedule
from resolvent.problem.solvers.minibatches import Batches, MinibatchBudget, Shuffled, over_minibatches
from resolvent.problem.solvers.optimizers import (
    Optimizer,
    TracedOptimizer,
    as_optimizer,
    named_optimizer,
    scaled_optimizer,
    traced_optimizer,
)
from resolvent.problem.solvers.solver import LocalSolver, MinibatchSolver
from resolvent.problem.subproblem import Subproblem

ProximalTerm = Literal["gradient", "implicit"]
_SHUFFLED = Shuffled()


class _State(NamedTuple):
    params: Vector
    optimizer: Any
    memory: PyTree[Any]  # of the oracle


class OptaxSolver(MinibatchSolver):
    """Any optax optimizer on minibatch gradients of the subproblem.

    With s the weight of the proximal term, c its center and g a minibatch gradient of f_k + <linear, .>, a step is

    * gradient: w <- w + update(g + s (w - c));
    * implicit: w <- kappa (w + update(g)) + (1 - kappa) c with kappa = 1/(1 + eta s), where eta is the optimizer's
      learning rate: line 12 of Fed+ with an optimizer's step instead of a gradient step. With plain SGD it is the
      implicit step of ``rv.SGD``.

    Attributes:
        optimizer: an ``optax.GradientTransformation``, or a ``traced_optimizer``, with which another learning rate does
            not compile again. Optimizers that need more than gradients, such as a line search, are not supported.
        batch_size: samples per step; the last batch of an epoch may be smaller.
        epochs: passes over the party's samples; a straggler makes ceil(effort * epochs). Exclusive with ``steps``.
        steps: gradient steps, for work that does not grow with the party; a straggler makes ceil(effort * steps).
        keep: whether each party keeps the optimizer's state, such as Adam's moments, between rounds. Otherwise it is
            new in every round. The state is private to the party: it is never sent.
        proximal: the ``gradient`` of the proximal term is added to g, or an ``implicit`` step follows the optimizer's.
        batches: chooses the minibatches: ``Shuffled()``, or ``Consecutive(bias)`` for time series.
        schedule: factor of the learning rate in each round, see ``rv.SGD``; of an optimizer without a traced learning
            rate, factor of its updates.

    Raises:
        InputError: ``optimizer`` is not an optimizer; or ``proximal="implicit"``, and it is not a ``traced_optimizer``
            with a number as its learning rate.
        InputError: ``batch_size``, ``epochs`` or ``steps`` is not positive, or both ``epochs`` and ``steps`` are set.

    Example:
        >>> import optax, resolvent as rv
        >>> solver = rv.OptaxSolver(optax.adamw(1e-3), batch_size=20, epochs=1)
    """

    optimizer: Optimizer = eqx.field(converter=as_optimizer)
    batch_size: Annotated[int, "[1, inf)"] = eqx.field(static=True, default=20, kw_only=True)
    epochs: Annotated[ArrayLike | None, "(0, inf)"] = eqx.field(default=None, kw_only=True)
    steps: Annotated[ArrayLike | None, "(0, inf)"] = eqx.field(default=None, kw_only=True)
    keep: bool = eqx.field(static=True, default=False, kw_only=True)
    proximal: ProximalTerm = eqx.field(static=True, default="gradient", kw_only=True)
    batches: Batches = eqx.field(default=Shuffled(), kw_only=True)
    schedule: Schedule | None = eqx.field(default=None, kw_only=True)

    def __check_init__(self) -> None:
        if self.proximal == "implicit":
            _learning_rate(self.optimizer)

    @property
    @override
    def step_size(self) -> ArrayLike | None:
        """The learning rate, where steps are proportional to the gradient or the proximal step is separate."""
        optimizer = self.optimizer
        if not isinstance(optimizer, TracedOptimizer) or (
                self.proximal == "gradient" and optimizer.factory is not optax.sgd):
            return None
        return optimizer.hyperparams.get("learning_rate")

    @property
    @override
    def heavy_ball(self) -> ArrayLike | None:
        optimizer = self.optimizer
        if self.keep or not isinstance(optimizer, TracedOptimizer) or optimizer.factory is not optax.sgd:
            return None
        has_momentum_alone = set(optimizer.hyperparams) == {"learning_rate", "momentum"} and not optimizer.options
        return optimizer.hyperparams["momentum"] if has_momentum_alone else None

    @override
    def restarts_schedule(self, w: Vector) -> bool:
        if self.keep:
            return False
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):  # for a part of the model
            state = jax.eval_shape(self.optimizer.build().init, w)
            return bool(tree.parts(state, optax.ScaleByScheduleState)) or any(
                part.hyperparams_states for part in tree.parts(state, optax.InjectStatefulHyperparamsState))
        return False

    @override
    def scaled(self, factor: ArrayLike) -> Self:
        return replace(self, optimizer=scaled_optimizer(self.optimizer, factor))

    @override
    def at(self, t: Int[Array, ""]) -> "OptaxSolver":
        return self if self.schedule is None else replace(self.scaled(self.schedule(t)), schedule=None)

    @property
    @override
    def budget(self) -> MinibatchBudget:
        return MinibatchBudget(self.batch_size, self.epochs, self.steps)

    @override
    def init_memory(self, w: Vector) -> PyTree[Any]:
        # Moments in float32: in float16 the squares of small gradients and Adam's eps are zero.
        return self.optimizer.build().init(tree.widen(w)) if self.keep else ()

    @override
    def __call__(self, subproblem: Subproblem, start: Vector, key: Array, effort: Float[Array, ""],
                 memory: PartyMemory = NO_MEMORY) -> tuple[Vector, Int[Array, ""], PartyMemory]:
        solver = self.at(jnp.array(0))
        optimizer = solver.optimizer.build()

        def step(state: _State, subproblem: Subproblem, positions: Int[Array, " B"], mask: Bool[Array, " B"]) -> _State:
            g, oracle_memory = subproblem.batch_smooth(state.params, positions, mask, state.memory)
            gradient = subproblem.pull(g, state.params) if self.proximal == "gradient" else g
            update, after = optimizer.update(tree.widen(gradient), state.optimizer, tree.widen(state.params))
            w = tree.axpy(1, update, state.params)
            # The state keeps its dtypes, as the loop requires, even where a setting has a wider one.
            return _State(w if self.proximal == "gradient" else solver._implicit_step(subproblem, w),
                          tree.map2(lambda _, new: new, state.optimizer, after), oracle_memory)

        moments = memory.solver if self.keep and memory.solver != () else optimizer.init(tree.widen(start))
        last, total = over_minibatches(step, _State(start, moments, memory.oracle), subproblem, key, effort,
                                       self.budget, self.batches)
        return last.params, total, PartyMemory(last.memory, last.optimizer if self.keep else ())

    def _implicit_step(self, subproblem: Subproblem, w: Vector) -> Vector:
        """kappa w + (1 - kappa) c."""
        kappa = 1 / (1 + jnp.asarray(_learning_rate(self.optimizer)) * subproblem.weight)
        return tree.lerp(subproblem.center, w, kappa)


def _learning_rate(optimizer: Optimizer) -> ArrayLike:
    if isinstance(optimizer, TracedOptimizer) and "learning_rate" in optimizer.hyperparams:
        return optimizer.hyperparams["learning_rate"]
    raise InputError("OptaxSolver(proximal='implicit') needs the learning rate of the optimizer as a number: use "
                     "traced_optimizer, such as traced_optimizer(optax.adam, learning_rate=0.001), or "
                     "proximal='gradient'")


@checked
def momentum(learning_rate: float, *, decay: float = 0.9, batch_size: int = 20, epochs: float | None = None,
             steps: float | None = None,
             keep: bool = False, proximal: ProximalTerm = "gradient", batches: Batches = _SHUFFLED,
             schedule: Schedule | None = None) -> LocalSolver:
    """SGD with momentum: m <- decay m + g, w <- w - eta m, with g the gradient of the whole subproblem.

    Args:
        learning_rate: eta, the step size.
        decay: factor by which the momentum decays in a step; 0 is plain SGD with the explicit proximal step.
        batch_size: samples per step; the last batch of an epoch may be smaller.
        epochs: passes over the party's samples; a straggler makes ceil(effort * epochs). Exclusive with steps.
        steps: gradient steps, for work that does not grow with the party.
        keep: whether each party keeps the optimizer's state between rounds; otherwise it is new in every round.
        proximal: how the proximal term enters: by its ``gradient``, or by an ``implicit`` step, see OptaxSolver.
        batches: chooses the minibatches: Shuffled, or Consecutive for time series.
        schedule: factor of the learning rate in each round.

    Raises:
        InputError: a rate or a budget is not positive, or a decay lies outside [0, 1).

    Example:
        >>> solver = rv.solvers.momentum(0.01, decay=0.9, batch_size=20, epochs=1)
    """
    check_range("momentum", "(0, inf)", learning_rate=learning_rate)
    check_range("momentum", "[0, 1)", decay=decay)
    return OptaxSolver(traced_optimizer(optax.sgd, learning_rate=learning_rate, momentum=decay), batch_size=batch_size,
                       epochs=epochs, steps=steps, keep=keep, proximal=proximal, batches=batches,
                       schedule=schedule)


@checked
def adam(learning_rate: float = 0.001, *, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, batch_size: int = 20,
         epochs: float | None = None, steps: float | None = None,
         keep: bool = False, proximal: ProximalTerm = "gradient", batches: Batches = _SHUFFLED,
         schedule: Schedule | None = None) -> LocalSolver:
    """Adam on minibatches of the whole subproblem; its moments start at zero in every round, or each party keeps its.

    Args:
        learning_rate: the step size.
        b1: decay of the first moment.
        b2: decay of the second moment.
        eps: added to the root of the second moment.
        batch_size: samples per step; the last batch of an epoch may be smaller.
        epochs: passes over the party's samples; a straggler makes ceil(effort * epochs). Exclusive with steps.
        steps: gradient steps, for work that does not grow with the party.
        keep: whether each party keeps the optimizer's state between rounds; otherwise it is new in every round.
        proximal: how the proximal term enters: by its ``gradient``, or by an ``implicit`` step, see OptaxSolver.
        batches: chooses the minibatches: Shuffled, or Consecutive for time series.
        schedule: factor of the learning rate in each round.

    Raises:
        InputError: a rate or a budget is not positive, or a decay lies outside [0, 1).

    Example:
        >>> solver = rv.solvers.adam(0.001, batch_size=20, epochs=1)

    References:
        Kingma, Ba: Adam: A Method for Stochastic Optimization, ICLR 2015.
    """
    check_range("adam", "(0, inf)", learning_rate=learning_rate)
    check_range("adam", "[0, 1)", b1=b1, b2=b2)
    optimizer = traced_optimizer(optax.adam, learning_rate=learning_rate, b1=b1, b2=b2, eps=eps)
    return OptaxSolver(optimizer, batch_size=batch_size, epochs=epochs, steps=steps, keep=keep, proximal=proximal,
                       batches=batches, schedule=schedule)


@checked
def optax_solver(optimizer: str, learning_rate: float, *, settings: dict[str, float | bool] | None = None,
                 batch_size: int = 20, epochs: float | None = None, steps: float | None = None,
                 keep: bool = False, proximal: ProximalTerm = "gradient", batches: Batches = _SHUFFLED,
                 schedule: Schedule | None = None) -> LocalSolver:
    """Any optax optimizer by its name, on minibatches of the whole subproblem.

    It is ``OptaxSolver`` for experiment files and sweeps: the learning rate and the other numbers are traced values.

    Args:
        optimizer: name of an optimizer in optax that has a learning rate, such as adamw or lion.
        learning_rate: its learning rate.
        settings: its other arguments by name, such as weight_decay.
        batch_size: samples per step; the last batch of an epoch may be smaller.
        epochs: passes over the party's samples; a straggler makes ceil(effort * epochs). Exclusive with steps.
        steps: gradient steps, for work that does not grow with the party.
        keep: whether each party keeps the optimizer's state between rounds; otherwise it is new in every round.
        proximal: how the proximal term enters: by its ``gradient``, or by an ``implicit`` step, see OptaxSolver.
        batches: chooses the minibatches: Shuffled, or Consecutive for time series.
        schedule: factor of the learning rate in each round.

    Raises:
        InputError: optax has no such optimizer, or it does not take these settings.
        InputError: the rate or a budget is not positive.

    Example:
        >>> solver = rv.solvers.optax_solver("adamw", 0.001, settings={"weight_decay": 0.01}, batch_size=20, epochs=1)
    """
    check_range("optax_solver", "(0, inf)", learning_rate=learning_rate)
    return OptaxSolver(named_optimizer(optimizer, learning_rate, settings), batch_size=batch_size, epochs=epochs,
                       steps=steps, keep=keep, proximal=proximal, batches=batches,
                       schedule=schedule)
