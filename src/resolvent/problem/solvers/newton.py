"""Newton's method as a local solver."""

from typing import Annotated

import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Float, Int
from typing_extensions import override

from resolvent.math import newton
from resolvent.math.newton import NewtonState, SecondOrder
from resolvent.math.tree import Vector
from resolvent.problem.oracle import NO_MEMORY, PartyMemory
from resolvent.problem.solvers.minibatches import scale_budget
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.problem.subproblem import Subproblem
from resolvent.xla import loops


class Newton(LocalSolver):
    """Newton's method with a line search on the whole subproblem, for models of few parameters.

    It needs ``Oracle.second_order``: models on samples, quadratic problems and regressions have it. One step costs a
    Hessian of P x P numbers, for P parameters.

    Attributes:
        steps: the largest number of evaluations; a straggler makes at most ceil(effort * steps).
        tolerance: the predicted decrease of the objective at which it stops.

    Raises:
        InputError: ``steps`` is not positive.

    Example:
        >>> algorithm = rv.fedprox(rv.solvers.Newton(), mu=1.0)
    """

    steps: Annotated[ArrayLike, "(0, inf)"] = 50
    tolerance: ArrayLike = 1e-18

    @override
    def __call__(self, subproblem: Subproblem, start: Vector, key: Array, effort: Float[Array, ""],
                 memory: PartyMemory = NO_MEMORY) -> tuple[Vector, Int[Array, ""], PartyMemory]:
        first, restore = ravel_pytree(start)
        center = ravel_pytree(subproblem.center)[0]
        linear = 0.0 if subproblem.linear is None else ravel_pytree(subproblem.linear)[0]

        def seen(w: Float[Array, " P"]) -> SecondOrder:
            value, gradient, hessian = subproblem.oracle.second_order(restore(w))
            away = w - center
            return SecondOrder(
                value + jnp.sum(linear * w) + subproblem.weight / 2 * away @ away,
                gradient + linear + subproblem.weight * away,
                hessian + subproblem.weight * jnp.eye(w.size, dtype=w.dtype))

        def step(state: NewtonState) -> NewtonState:
            return newton.advance(state, seen(state.candidate), self.tolerance)

        budget = scale_budget(self.steps, effort)
        last = loops.while_loop(lambda s: ~s.has_converged & (s.evaluations < budget), step, newton.start(first),
                                work=subproblem.oracle.samples * jnp.asarray(self.steps))
        return restore(last.point), last.evaluations.astype(jnp.int32), memory
