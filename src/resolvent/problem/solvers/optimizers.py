"""Local solvers made of optimizers: any of optax's on minibatches, and L-BFGS on the whole subproblem.

They see the proximal term through its gradient, s (w - c). An optimizer's memory starts empty in every round, for a
party keeps nothing between rounds but what its algorithm says.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import optax
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.lbfgs import lbfgs
from resolvent.problem.solvers.solver import LocalSolver, check_budget, minibatch_work, over_minibatches, share_of
from resolvent.problem.subproblem import Subproblem

__all__ = ["LBFGS", "OptaxSolver", "adam", "momentum"]


class OptaxSolver(LocalSolver):
    """Any optax optimizer on minibatch gradients of the whole subproblem.

    Attributes:
        make: an optax optimizer, such as ``optax.adam``; what is no number goes in with ``functools.partial``.
        settings: its arguments; they are data, so another value does not compile again.
        batch_size: samples per step; the last batch of an epoch holds what is left.
        epochs: passes over the party's samples; a straggler makes ceil(effort * epochs). Give this or ``steps``.
        steps: gradient steps, for work that does not grow with the party; a straggler makes ceil(effort * steps).
    """

    make: Callable[..., Any] = eqx.field(static=True)
    settings: dict[str, float]
    batch_size: int = eqx.field(static=True, default=20)
    epochs: ArrayLike | None = None
    steps: ArrayLike | None = None

    def __check_init__(self) -> None:
        check_budget(self)

    def work(self, samples: Int[Array, " C"]) -> Float[Array, " C"]:
        """Every sample in every epoch, or a batch a step."""
        return minibatch_work(samples, self.batch_size, self.epochs, self.steps)

    def __call__(self, subproblem: Subproblem, start: Vector, key: Array,
                 effort: Float[Array, ""]) -> tuple[Vector, Int[Array, ""]]:
        """Run the epochs."""
        optimizer = self.make(**self.settings)

        def step(state: tuple[Vector, Any], positions: Int[Array, " B"],
                 mask: Bool[Array, " B"]) -> tuple[Vector, Any]:
            w, memory = state
            g = subproblem.pull(subproblem.batch_smooth(w, positions, mask), w)
            update, after = optimizer.update(g, memory, w)
            return tree.axpy(1, update, w), tree.map2(lambda _, new: new, memory, after)

        (w, _), total = over_minibatches(step, (start, optimizer.init(start)), subproblem.oracle.samples, key, effort,
                                         batch_size=self.batch_size, epochs=self.epochs, steps=self.steps)
        return w, total


def momentum(learning_rate: float, *, decay: float = 0.9, batch_size: int = 20, epochs: float | None = None,
             steps: float | None = None) -> LocalSolver:
    """SGD with momentum: m <- decay m + g, w <- w - eta m, with g the gradient of the whole subproblem.

    Args:
        learning_rate: eta, the length of a step.
        decay: the share of the last step that is kept; 0 is plain SGD with the explicit proximal step.
        batch_size: samples per step; the last batch of an epoch holds what is left.
        epochs: passes over the party's samples; a straggler makes ceil(effort * epochs). Give this or steps.
        steps: gradient steps, for work that does not grow with the party.

    Raises:
        ValueError: a rate or a budget that is not positive, or a decay outside [0, 1).
    """
    _check("momentum", learning_rate, decay=decay)
    return OptaxSolver(optax.sgd, {"learning_rate": learning_rate, "momentum": decay}, batch_size, epochs, steps)


def adam(learning_rate: float = 0.001, *, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, batch_size: int = 20,
         epochs: float | None = None, steps: float | None = None) -> LocalSolver:
    """Adam (Kingma and Ba) on minibatches of the whole subproblem, its moments empty at the start of every round.

    Args:
        learning_rate: the length of a step.
        b1: decay of the first moment.
        b2: decay of the second moment.
        eps: added to the root of the second moment.
        batch_size: samples per step; the last batch of an epoch holds what is left.
        epochs: passes over the party's samples; a straggler makes ceil(effort * epochs). Give this or steps.
        steps: gradient steps, for work that does not grow with the party.

    Raises:
        ValueError: a rate or a budget that is not positive, or a decay outside [0, 1).
    """
    _check("adam", learning_rate, b1=b1, b2=b2)
    settings = {"learning_rate": learning_rate, "b1": b1, "b2": b2, "eps": eps}
    return OptaxSolver(optax.adam, settings, batch_size, epochs, steps)


class LBFGS(LocalSolver):
    """L-BFGS with a zoom line search on the whole subproblem, over all of a party's samples.

    Attributes:
        steps: at most so many steps, each a line search; a straggler makes at most ceil(effort * steps).
        memory: how many pairs of steps and changes of the gradient are remembered.
        tolerance: it stops where the gradient's norm is at most this.
    """

    steps: ArrayLike = 20
    memory: int = eqx.field(static=True, default=10)
    tolerance: ArrayLike = 1e-6

    def __check_init__(self) -> None:
        check_budget(self)
        if self.memory < 1:
            raise ValueError(f"LBFGS(memory={self.memory}) must be at least 1")

    def work(self, samples: Int[Array, " C"]) -> Float[Array, " C"]:
        """Every sample in every step."""
        return jnp.asarray(self.steps * samples, jnp.result_type(float))

    def __call__(self, subproblem: Subproblem, start: Vector, key: Array,
                 effort: Float[Array, ""]) -> tuple[Vector, Int[Array, ""]]:
        """Minimise."""
        w, _, done = lbfgs(subproblem.value, subproblem.grad, start, steps=share_of(self.steps, effort),
                           tolerance=self.tolerance, memory=self.memory, cost=subproblem.oracle.samples)
        return w, done.astype(jnp.int32)


def _check(name: str, learning_rate: ArrayLike, **decays: ArrayLike) -> None:
    """Refuse a rate that is not positive and decays outside [0, 1); what is traced is not looked at."""
    if isinstance(learning_rate, int | float) and not learning_rate > 0:
        raise ValueError(f"{name}(learning_rate={learning_rate}) must be positive")
    for field, value in decays.items():
        if isinstance(value, int | float) and not 0 <= value < 1:
            raise ValueError(f"{name}({field}={value}) must lie in [0, 1)")
