r"""Local solvers: what a party does with its subproblem.

``solver(subproblem, start, key, effort)`` returns the new parameters and how many gradient steps were made.
``effort`` in (0, 1] is the share of its full work that the party can do now (FedProx's partial work); 0 is none.
Loops have the party's own number of steps, so they are right under ``vmap`` and without.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg
from jaxtyping import Array, ArrayLike, Float, Int

from resolvent.math.shuffle import Shuffle
from resolvent.math.tree import Vector
from resolvent.problem.oracle import QuadraticOracle
from resolvent.problem.subproblem import Subproblem

__all__ = ["GD", "SGD", "ClosedForm", "LocalSolver"]

ProximalStep = Literal["implicit", "explicit"]


class LocalSolver(eqx.Module):
    """Answers a subproblem, exactly or not."""

    @abstractmethod
    def __call__(self, subproblem: Subproblem, start: Vector, key: Array,
                 effort: Float[Array, ""]) -> tuple[Vector, Int[Array, ""]]:
        """The parameters after the work, and the number of steps made."""


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
    """

    learning_rate: ArrayLike
    batch_size: int = eqx.field(static=True, default=20)
    epochs: ArrayLike | None = None
    steps: ArrayLike | None = None
    proximal: ProximalStep = eqx.field(static=True, default="implicit")

    def __check_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"SGD(batch_size={self.batch_size}) must be at least 1")
        if self.epochs is not None and self.steps is not None:
            raise ValueError("SGD takes epochs= or steps=, not both")
        _check_step(self)

    def __call__(self, subproblem: Subproblem, start: Vector, key: Array,
                 effort: Float[Array, ""]) -> tuple[Vector, Int[Array, ""]]:
        """Run the epochs."""
        samples = subproblem.oracle.samples
        per_epoch = (samples + self.batch_size - 1) // self.batch_size
        if self.steps is not None:
            total = _share_of(self.steps, effort)
        else:
            total = _share_of(1 if self.epochs is None else self.epochs, effort) * per_epoch

        def epoch(e: Array, w: Vector) -> Vector:
            order = Shuffle.draw(jax.random.fold_in(key, e), samples)

            def step(i: Array, w: Vector) -> Vector:
                at = i * self.batch_size + jnp.arange(self.batch_size)
                mask = at < samples
                g = subproblem.batch_smooth(w, order(jnp.where(mask, at, 0)), mask)
                return _proximal_step(subproblem, w, g, self.learning_rate, self.proximal)

            return jax.lax.fori_loop(0, jnp.minimum(per_epoch, total - e * per_epoch), step, w)

        return jax.lax.fori_loop(0, (total + per_epoch - 1) // per_epoch, epoch, start), total


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
        _check_step(self)

    def __call__(self, subproblem: Subproblem, start: Vector, key: Array,
                 effort: Float[Array, ""]) -> tuple[Vector, Int[Array, ""]]:
        """Run the steps."""
        total = _share_of(self.steps, effort)

        def step(_: Array, w: Vector) -> Vector:
            return _proximal_step(subproblem, w, subproblem.smooth(w), self.learning_rate, self.proximal)

        return jax.lax.fori_loop(0, total, step, start), total


class ClosedForm(LocalSolver):
    """The exact answer for a quadratic oracle: (H + s I) w = g - linear + s c. Effort 0 leaves the start."""

    def __call__(self, subproblem: Subproblem, start: Vector, key: Array,
                 effort: Float[Array, ""]) -> tuple[Vector, Int[Array, ""]]:
        """Solve the linear system."""
        oracle = subproblem.oracle
        if not isinstance(oracle, QuadraticOracle):
            raise TypeError(f"ClosedForm() needs a quadratic problem, got {type(oracle).__name__}: use SGD or GD")
        right = oracle.linear + subproblem.weight * subproblem.center
        if subproblem.linear is not None:
            right = right - subproblem.linear
        system = oracle.hessian + subproblem.weight * jnp.eye(right.size, dtype=right.dtype)
        exact = jax.scipy.linalg.solve(system, right, assume_a="pos").astype(start.dtype)
        return jnp.where(effort > 0, exact, start), (effort > 0).astype(jnp.int32)


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


def _share_of(budget: ArrayLike, effort: Float[Array, ""]) -> Int[Array, ""]:
    """ceil(effort * budget), forgiving the rounding of effort = x/budget."""
    return jnp.ceil(jnp.asarray(effort * budget) - 1e-4).astype(jnp.int32)


def _check_step(solver: SGD | GD) -> None:
    name = type(solver).__name__
    if solver.proximal not in ("implicit", "explicit"):
        raise ValueError(f"{name}(proximal={solver.proximal!r}) is not known: use 'implicit' or 'explicit'")
    for field in ("learning_rate", "epochs", "steps"):
        value = getattr(solver, field, None)
        if isinstance(value, int | float) and not value > 0:
            raise ValueError(f"{name}({field}={value}) must be positive")
