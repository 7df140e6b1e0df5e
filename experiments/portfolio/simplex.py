"""The unit simplex, {x : x_i >= 0, sum_i x_i = 1}: the projection to it, and the minimiser of a convex quadratic."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.linalg
from jaxtyping import Array, Bool, Float, Int

__all__ = ["minimise_quadratic", "project"]

_MAX_ITERATIONS = 60  # about 10 are usual in float64
_FRACTION_TO_BOUNDARY = 0.99


def project(point: Float[Array, " m"]) -> Float[Array, " m"]:
    """The point of the simplex that is nearest in the Euclidean norm: x_i = max(point_i - tau, 0) with sum x_i = 1.

    Example:
        >>> print(project(jnp.array([1.0, 0.5, -1.0])))
        [0.75 0.25 0.  ]

    References:
        Duchi, Shalev-Shwartz, Singer, Chandra: Efficient Projections onto the l1-Ball, ICML 2008, Figure 1.
    """
    # Shifting all entries by the same number does not change the projection; it prevents cancellation.
    shifted = point - jnp.max(point)
    descending = -jnp.sort(-shifted)
    thresholds = (jnp.cumsum(descending) - 1) / jnp.arange(1, len(point) + 1)
    positive = jnp.sum(descending > thresholds)
    return jnp.maximum(shifted - thresholds[positive - 1], 0)


class _Iterate(NamedTuple):
    """An iterate of the interior-point method: x, the multipliers of x >= 0 and of sum x = 1, and the iterations."""

    x: Float[Array, " m"]
    slack: Float[Array, " m"]
    multiplier: Float[Array, ""]
    iterations: Int[Array, ""]


def minimise_quadratic(matrix: Float[Array, "m m"], linear: Float[Array, " m"]) -> Float[Array, " m"]:
    """The minimiser over the simplex of x'Px/2 + q'x, for a positive semidefinite P.

    It is computed by a primal-dual interior-point method to about the precision of the numbers. With P = A and
    q = -A y it is the projection of y in the norm |x|_A = sqrt(x'Ax). If several points minimise, it is a point in the
    middle of them.

    Args:
        matrix: P, [m, m].
        linear: q, [m].

    Example:
        >>> minimiser = minimise_quadratic(jnp.diag(jnp.array([1.0, 3.0])), jnp.zeros(2))
        >>> [f"{x:.3f}" for x in minimiser]
        ['0.750', '0.250']

    References:
        Nocedal, Wright: Numerical Optimization, 2nd edition, Algorithm 16.4 (Mehrotra's predictor and corrector).
    """
    # With x = u + d, u uniform and sum(d) = 0, only the parts of P and q that are orthogonal to u matter. Without the
    # other part, which is often far larger, fewer digits are lost.
    m = len(linear)
    gradient = linear + jnp.mean(matrix, axis=1)
    gradient = gradient - jnp.mean(gradient)
    centred = matrix - jnp.mean(matrix, axis=0) - jnp.mean(matrix, axis=1)[:, None] + jnp.mean(matrix)
    scale = jnp.maximum(jnp.max(jnp.abs(centred)), jnp.max(jnp.abs(gradient)))
    scale = jnp.where(scale > 0, scale, 1)
    # The added 1/m changes x'Px by a constant, because sum(x) = 1. It makes P invertible along the ones.
    p, q = centred / scale + 1 / m, gradient / scale
    tolerance = 4 * jnp.finfo(p.dtype).eps  # type: ignore[no-untyped-call]

    def residual(state: _Iterate) -> Float[Array, " m"]:
        return p @ state.x + q + state.multiplier - state.slack

    def is_unfinished(state: _Iterate) -> Bool[Array, ""]:
        gap = jnp.maximum(state.x @ state.slack, jnp.max(jnp.abs(residual(state))))
        return (gap > tolerance) & (state.iterations < _MAX_ITERATIONS)

    start = _Iterate(jnp.full(m, 1 / m, p.dtype), jnp.ones(m, p.dtype), jnp.zeros((), p.dtype), jnp.array(0))
    x = jax.lax.while_loop(is_unfinished, lambda state: _interior_step(p, state, residual(state)), start).x
    return x / jnp.sum(x)


def _interior_step(p: Float[Array, "m m"], state: _Iterate, residual: Float[Array, " m"]) -> _Iterate:
    """One step of Mehrotra's method, with the dual residual of the iterate."""
    x, slack, multiplier, iterations = state
    factor = jax.scipy.linalg.cho_factor(p + jnp.diag(slack / x))
    of_ones = jax.scipy.linalg.cho_solve(factor, jnp.ones_like(x))

    def direction(products: Float[Array, " m"]) -> tuple[Array, Array, Array]:
        """The Newton direction towards x_i slack_i = products_i."""
        solved = jax.scipy.linalg.cho_solve(factor, products / x - slack - residual)
        d_multiplier = jnp.sum(solved) / jnp.sum(of_ones)
        dx = solved - d_multiplier * of_ones
        return dx, (products - slack * dx) / x - slack, d_multiplier

    def longest(dx: Array, d_slack: Array) -> Array:
        """The longest step in [0, 1] that leaves all entries non-negative."""
        values, changes = jnp.concatenate([x, slack]), jnp.concatenate([dx, d_slack])
        return jnp.minimum(1, jnp.min(jnp.where(changes < 0, -values / changes, jnp.inf)))

    dx, d_slack, _ = direction(jnp.zeros_like(x))
    step = longest(dx, d_slack)
    gap = x @ slack
    reached = (x + step * dx) @ (slack + step * d_slack)
    centring = (reached / gap) ** 3 * gap / len(x)
    dx, d_slack, d_multiplier = direction(centring - dx * d_slack)
    step = jnp.minimum(1, _FRACTION_TO_BOUNDARY * longest(dx, d_slack))
    return _Iterate(x + step * dx, slack + step * d_slack, multiplier + step * d_multiplier, iterations + 1)
