r"""Local solvers: what a party does with its subproblem.

``solver(subproblem, start, key, effort)`` returns the new parameters and how many gradient steps were made.
``effort`` in (0, 1] is the share of its full work that the party can do now (FedProx's partial work); 0 is none.
Loops have the party's own number of steps, so they are right under ``vmap`` and without.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Literal, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int
from typing_extensions import override

from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.subproblem import Subproblem
from resolvent.xla import loops
from resolvent.xla.shuffle import Shuffle

__all__ = ["GD", "SGD", "ClosedForm", "LocalSolver", "check_budget", "minibatch_work", "over_minibatches",
           "share_of"]

State = TypeVar("State")
ProximalStep = Literal["implicit", "explicit"]
Stop = Literal["epoch", "step"]
_STEPS, _SAMPLES = 64, 1024  # of how many at most the order is found at a time


class LocalSolver(eqx.Module):
    """Answers a subproblem, exactly or not."""

    @abstractmethod
    def __call__(self, subproblem: Subproblem, start: Vector, key: Array,
                 effort: Float[Array, ""]) -> tuple[Vector, Int[Array, ""]]:
        """The parameters after the work, and the number of steps made."""

    def work(self, samples: Int[Array, " C"]) -> Float[Array, " C"]:
        """About how many samples a party with so many reads in its full work, by which devices share a cohort out.

        As many as it has; a solver whose work does not grow with the party says otherwise.
        """
        return samples.astype(jnp.result_type(float))


def over_minibatches(step: Callable[[State, Array, Array], State], state: State, samples: Int[Array, ""], key: Array,
                     effort: Float[Array, ""], *, batch_size: int, epochs: ArrayLike | None,
                     steps: ArrayLike | None, stop: Stop = "epoch") -> tuple[State, Int[Array, ""]]:
    """Run ``step(state, positions, mask)`` over shuffled minibatches, without replacement within an epoch.

    Args:
        step: one step, on the samples at ``positions`` where ``mask`` holds.
        state: what it starts from.
        samples: how many samples there are.
        key: of the shuffles.
        effort: the share of the work that is done.
        batch_size: samples per step; the last batch of an epoch holds what is left.
        epochs: passes over the samples, of which ceil(effort * epochs) are made; default: one.
        steps: steps instead, of which ceil(effort * steps) are made.
        stop: partial work of ``epochs`` ends with an epoch, or with any ``step``: ceil(effort * steps of all epochs).

    Returns:
        The last state, and the number of steps made.
    """
    per_epoch = (samples + batch_size - 1) // batch_size
    if steps is not None:
        total = share_of(steps, effort)
    else:
        passes: ArrayLike = 1 if epochs is None else epochs
        total = share_of(passes, effort) * per_epoch if stop == "epoch" else share_of(passes * per_epoch, effort)

    def positions_of(t: Int[Array, " S"]) -> tuple[Array, Array]:
        e, i = jnp.divmod(jnp.minimum(t, total - 1), jnp.maximum(per_epoch, 1))
        at = i[:, None] * batch_size + jnp.arange(batch_size)
        mask = at < samples
        shuffles = Shuffle.draw_many(key, e[0], e[-1], samples, capacity=len(t))
        of_step: Shuffle = tree.rows(shuffles, e - e[0])
        return of_step(jnp.where(mask, at, 0)), mask

    # For many steps at once, and outside of their loop: so the random bits cost little, and XLA cannot merge the
    # shuffle into the gathering of samples, where it would evaluate it for every number of every sample.
    at_once = min(_STEPS, max(1, _SAMPLES // batch_size))
    return loops.prepared(positions_of, lambda where, state: step(state, *where), state, total=total,
                          at_once=at_once), total


def minibatch_work(samples: Int[Array, " C"], batch_size: int, epochs: ArrayLike | None,
                   steps: ArrayLike | None) -> Float[Array, " C"]:
    """How many samples ``over_minibatches`` reads at full effort, whole batches counted."""
    per_epoch = (samples + batch_size - 1) // batch_size
    passes: ArrayLike = 1 if epochs is None else epochs
    total = passes * per_epoch if steps is None else jnp.full(samples.shape, steps)
    return jnp.asarray(batch_size * total, jnp.result_type(float))


class SGD(LocalSolver):
    r"""Minibatch stochastic gradient descent, without replacement within an epoch.

    With eta the learning rate, g a minibatch gradient of f_k + <linear, .>, c the center and s the weight, a step is

    * implicit: w <- (w - eta g + eta s c) / (1 + eta s), which is kappa (w - eta g) + (1 - kappa) c with
      kappa = 1/(1 + eta s): the form of Fed+ (14), stable for every s. It is an explicit step of length
      kappa*eta (Fed+, Proposition 1).
    * explicit: w <- w - eta (g + s (w - c)), as in the FedProx authors' code.

    Attributes:
        learning_rate: eta, the length of a step.
        batch_size: samples per step; the last batch of an epoch holds what is left.
        epochs: passes over the party's samples; a straggler makes ceil(effort * epochs). Give this or ``steps``.
        steps: gradient steps, for work that does not grow with the party; a straggler makes ceil(effort * steps).
        proximal: the ``implicit`` or the ``explicit`` step.
        stop: a straggler stops after an ``epoch``, or after any ``step``, as it must where there is one epoch only
            (FedProx, Figure 9).
    """

    learning_rate: ArrayLike
    batch_size: int = eqx.field(static=True, default=20)
    epochs: ArrayLike | None = None
    steps: ArrayLike | None = None
    proximal: ProximalStep = eqx.field(static=True, default="implicit")
    stop: Stop = eqx.field(static=True, default="epoch")

    def __check_init__(self) -> None:
        check_budget(self)
        _check_proximal(self)
        if self.stop not in ("epoch", "step"):
            raise ValueError(f"SGD(stop={self.stop!r}) is not known: use 'epoch' or 'step'")

    def work(self, samples: Int[Array, " C"]) -> Float[Array, " C"]:
        """Every sample in every epoch, or a batch a step."""
        return minibatch_work(samples, self.batch_size, self.epochs, self.steps)

    def __call__(self, subproblem: Subproblem, start: Vector, key: Array,
                 effort: Float[Array, ""]) -> tuple[Vector, Int[Array, ""]]:
        """Run the epochs."""
        def step(w: Vector, positions: Int[Array, " B"], mask: Bool[Array, " B"]) -> Vector:
            g = subproblem.batch_smooth(w, positions, mask)
            return _proximal_step(subproblem, w, g, self.learning_rate, self.proximal)

        return over_minibatches(step, start, subproblem.oracle.samples, key, effort, batch_size=self.batch_size,
                                epochs=self.epochs, steps=self.steps, stop=self.stop)


class GD(LocalSolver):
    """Gradient descent over all of a party's samples; the step is that of ``SGD``.

    Attributes:
        learning_rate: eta, the length of a step.
        steps: gradient steps; a straggler makes ceil(effort * steps).
        proximal: ``implicit`` or ``explicit``, see ``SGD``.
    """

    learning_rate: ArrayLike
    steps: ArrayLike = 1
    proximal: ProximalStep = eqx.field(static=True, default="implicit")

    def __check_init__(self) -> None:
        check_budget(self)
        _check_proximal(self)

    def work(self, samples: Int[Array, " C"]) -> Float[Array, " C"]:
        """Every sample in every step."""
        return jnp.asarray(self.steps * samples, jnp.result_type(float))

    def __call__(self, subproblem: Subproblem, start: Vector, key: Array,
                 effort: Float[Array, ""]) -> tuple[Vector, Int[Array, ""]]:
        """Run the steps."""
        total = share_of(self.steps, effort)

        def step(_: Array, w: Vector) -> Vector:
            return _proximal_step(subproblem, w, subproblem.smooth(w), self.learning_rate, self.proximal)

        return loops.counted(step, start, total=total, cost=subproblem.oracle.samples), total


class ClosedForm(LocalSolver):
    """The exact minimiser, for oracles that have it in closed form (``Oracle.proximal_point``): quadratic problems.

    At effort 0 the parameters stay at the start.
    """

    @override
    def __call__(self, subproblem: Subproblem, start: Vector, key: Array,
                 effort: Float[Array, ""]) -> tuple[Vector, Int[Array, ""]]:
        exact = subproblem.oracle.proximal_point(subproblem.center, subproblem.weight, subproblem.linear)
        w = jax.tree.map(lambda solution, leaf: jnp.where(effort > 0, solution.astype(leaf.dtype), leaf), exact, start)
        return w, (effort > 0).astype(jnp.int32)


def _proximal_step(subproblem: Subproblem, w: Vector, g: Vector, rate: ArrayLike, proximal: ProximalStep) -> Vector:
    s = subproblem.weight
    move: Callable[[Array, Array, Array], Array]
    if proximal == "explicit":
        def move(a: Array, b: Array, c: Array) -> Array:
            return a - rate * (b + s * (a - c))
    else:
        kappa = 1 / (1 + rate * s)

        def move(a: Array, b: Array, c: Array) -> Array:
            return jnp.asarray(kappa * (a - rate * b) + (1 - kappa) * c)
    return jax.tree.map(lambda a, b, c: move(a, b, c).astype(a.dtype), w, g, subproblem.center)


def share_of(budget: ArrayLike, effort: Float[Array, ""]) -> Int[Array, ""]:
    """ceil(effort * budget), forgiving the rounding of effort = x/budget."""
    return jnp.ceil(jnp.asarray(effort * budget) - 1e-4).astype(jnp.int32)


def check_budget(solver: LocalSolver) -> None:
    """Refuse a batch without samples, both ``epochs`` and ``steps``, and budgets or rates that are not positive."""
    name, known = type(solver).__name__, vars(solver)
    if known.get("batch_size", 1) < 1:
        raise ValueError(f"{name}(batch_size={known['batch_size']}) must be at least 1")
    if known.get("epochs") is not None and known.get("steps") is not None:
        raise ValueError(f"{name} takes epochs= or steps=, not both")
    for field in ("learning_rate", "epochs", "steps"):
        value = known.get(field)
        if isinstance(value, int | float) and not value > 0:
            raise ValueError(f"{name}({field}={value}) must be positive")


def _check_proximal(solver: SGD | GD) -> None:
    if solver.proximal not in ("implicit", "explicit"):
        raise ValueError(f"{type(solver).__name__}(proximal={solver.proximal!r}) is not known: use 'implicit' or "
                         "'explicit'")
