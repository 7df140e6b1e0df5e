"""L-BFGS: as a function, for any objective with a gradient, for the average loss, and as a local solver."""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, ArrayLike, Bool, Float, Int
from typing_extensions import override

from resolvent.math import centres, tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import NO_MEMORY, PartyMemory
from resolvent.problem.problem import Problem, shares_by_size
from resolvent.problem.solvers.minibatches import scale_budget
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.problem.subproblem import Subproblem
from resolvent.xla import loops


class _State(NamedTuple):
    params: Vector
    gradient: Vector
    optimizer: Any
    steps: Int[Array, ""]


def lbfgs(value: Callable[[Vector], Array], grad: Callable[[Vector], Vector], start: Vector, *, steps: ArrayLike,
          tolerance: ArrayLike, history_size: int = 10,
          cost: ArrayLike = 1) -> tuple[Vector, Float[Array, ""], Int[Array, ""]]:
    """Minimise by optax's L-BFGS: at most ``steps`` steps, until the gradient's norm is at most ``tolerance``.

    Args:
        value: the objective. It need not be differentiable in reverse mode.
        history_size: number of pairs (step, change of the gradient) that are stored.
        cost: cost of one step, for the queue of ``resolvent.xla.loops``.

    Returns:
        The last point, the norm of the gradient at it, and the number of steps made. The caller judges convergence.
    """
    optimizer = optax.lbfgs(memory_size=history_size)

    def differentiable_value(v: Vector) -> Array:
        """``value`` with ``grad`` as its gradient: reverse mode cannot differentiate loops of dynamic length."""
        point = jax.lax.stop_gradient(v)
        return value(point) + tree.full_dot(jax.lax.stop_gradient(grad(point)), tree.sub(v, point))

    def has_work(state: _State) -> Bool[Array, ""]:
        return (tree.norm(state.gradient) > tolerance) & (state.steps < steps)

    def step(state: _State) -> _State:
        params, gradient = state.params, state.gradient
        update, optimizer_state = optimizer.update(gradient, state.optimizer, params, value=value(params),
                                                   grad=gradient, value_fn=differentiable_value)
        params = optax.apply_updates(params, update)
        return _State(params, grad(params), optimizer_state, state.steps + 1)

    first = _State(start, grad(start), optimizer.init(start), jnp.array(0))
    last = loops.while_loop(has_work, step, first, work=cost * jnp.asarray(steps))
    return last.params, tree.norm(last.gradient), last.steps


@jax.jit
def pooled_optimum(problem: Problem, w: Vector, tolerance: ArrayLike = 1e-6,
                   steps: ArrayLike = 500) -> tuple[Vector, Float[Array, ""], Int[Array, ""]]:
    """A minimiser of the average loss sum_k (n_k/n) f_k, from ``w``; returns what ``lbfgs`` does."""
    shares, parties = shares_by_size(problem.sizes).astype(tree.dtype(w)), jnp.arange(problem.parties)

    def value(v: Vector) -> Array:
        losses: Array = jax.lax.map(lambda k: problem.oracle(k).value(v), parties)
        return shares @ losses

    def grad(v: Vector) -> Vector:
        return centres.mean(jax.lax.map(lambda k: problem.oracle(k).grad(v), parties), shares)

    return lbfgs(value, grad, w, steps=steps, tolerance=tolerance)


class LBFGS(LocalSolver):
    """L-BFGS with a zoom line search on the whole subproblem, over all of a party's samples.

    Attributes:
        steps: the largest number of steps, each with a line search; a straggler makes at most ceil(effort * steps).
        history_size: number of pairs (step, change of the gradient) that are stored.
        tolerance: the norm of the gradient at which it stops.

    Raises:
        InputError: ``steps`` or ``history_size`` is not positive.

    Example:
        >>> algorithm = rv.fedprox(rv.solvers.LBFGS(steps=10), mu=1.0)
    """

    steps: Annotated[ArrayLike, "(0, inf)"] = 20
    history_size: Annotated[int, "[1, inf)"] = eqx.field(static=True, default=10)
    tolerance: ArrayLike = 1e-6

    @override
    def work(self, samples: Int[Array, " C"]) -> Float[Array, " C"]:
        return jnp.asarray(self.steps * samples, jnp.result_type(float))

    @override
    def __call__(self, subproblem: Subproblem, start: Vector, key: Array, effort: Float[Array, ""],
                 memory: PartyMemory = NO_MEMORY) -> tuple[Vector, Int[Array, ""], PartyMemory]:
        w, _, steps = lbfgs(subproblem.value, subproblem.grad, start, steps=scale_budget(self.steps, effort),
                            tolerance=self.tolerance, history_size=self.history_size, cost=subproblem.oracle.samples)
        return w, steps.astype(jnp.int32), memory
