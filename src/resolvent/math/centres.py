r"""Centres of weighted points: mean, Moreau centre, geometric and coordinate-wise median.

Points are pytrees with leaves [C, ...]; weights [C] are non-negative and need not sum to one. A point of
weight zero has no influence, whatever finite value it has.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from resolvent.math import tree
from resolvent.math.penalties import L2Norm, Penalty
from resolvent.math.tree import Vector

__all__ = ["CentreInfo", "coordinate_median", "geometric_median", "mean", "moreau_centre"]


_PATIENCE = 100  # looks without progress before the iteration gives up


class CentreInfo(NamedTuple):
    """How a centre was found.

    Attributes:
        iterations: at how many points the objective was looked at, the mean being the first.
        residual: norm of the weighted sum of the pulls of the points on the centre over the sum of their
            norms: 0 at the optimum, at most 1, free of scale.
    """

    iterations: Int[Array, ""]
    residual: Float[Array, ""]


def _weighted_sum(share: Float[Array, " C"], points: Vector) -> Vector:
    # "highest": an accelerator's fast products have 10 bits, which no centre could make good.
    return jax.tree.map(
        lambda p: jnp.tensordot(share, p, axes=1, precision="highest").astype(p.dtype), points)


def mean(points: Vector, weights: Float[Array, " C"]) -> Vector:
    """Weighted arithmetic mean of the points: leaves [C, ...] to leaves [...]."""
    return _weighted_sum(weights / jnp.sum(weights), points)


def moreau_centre(
    points: Vector,
    weights: Float[Array, " C"],
    penalty: Penalty,
    t: ArrayLike,
    *,
    tolerance: ArrayLike = 1e-6,
    max_iterations: ArrayLike = 1000,
) -> tuple[Vector, CentreInfo]:
    r"""The centre that belongs to a penalty: argmin over w of the weighted sum of env_{t*penalty}(p_k - w).

    Eq. (25) of Fed+, w <- w + mean(r_k - prox(r_k)) with r_k = p_k - w, is a gradient step of length one
    over the envelope's smoothness. Here each entry takes the longest step that is still sure to descend
    (``Penalty.curvature``: Weiszfeld's step for the L2 norm), with Nesterov's momentum, which is thrown away
    whenever it would make the objective grow. Started at the mean, as in the paper.

    Args:
        points: leaves [C, ...].
        weights: [C], non-negative, not all zero.
        penalty: the penalty phi of Psi = sigma*delta*phi.
        t: the smoothing, Fed+'s delta; > 0.
        tolerance: stop when the residual (see ``CentreInfo``) is at most this, or what rounding leaves of it: 8 units
            of it, and what rounding the centre itself makes of the pulls (far from the origin, with points near each
            other, that is more; where rounding keeps the centre from moving, the residual stays above).
        max_iterations: the cap; the residual says whether it was enough.

    Returns:
        The centre and how it was found.

    Source: Fed+ (7), (16), (22), (25); errata 15.
    """
    share = (weights / jnp.sum(weights)).astype(tree.dtype(points))
    start = _weighted_sum(share, points)
    eps = float(jnp.finfo(share.dtype).eps)  # type: ignore[no-untyped-call]
    enough = jnp.maximum(tolerance, 8 * eps)

    def look(w: Vector) -> tuple[Array, Array, Array, Vector]:
        """The objective, the residual and what rounding leaves of it at ``w``, and where the sure step leads."""
        def of_one(p: Vector) -> tuple[Vector, Vector, Array, Array]:
            r = tree.sub(p, w)
            pull = penalty.pull(r, t)
            return pull, penalty.curvature(r, t), tree.norm(pull), penalty.envelope(r, t)

        pulls, curvatures, sizes, values = jax.vmap(of_one)(points)
        pull, curvature = _weighted_sum(share, pulls), _weighted_sum(share, curvatures)
        total = jnp.sum(share * sizes)
        residual = jnp.where(total > 0, tree.norm(pull) / jnp.where(total > 0, total, 1), 0)
        rounded = tree.norm(jax.tree.map(lambda a, c: eps * a * c, w, curvature)) / jnp.where(total > 0, total, 1)
        moved = jax.tree.map(
            lambda a, b, c: a + jnp.where(c > 0, b / jnp.where(c > 0, c, 1), 0), w, pull, curvature)
        value = jnp.sum(jnp.where(share > 0, share * values, 0))  # a weightless point's may have overflowed
        return value, residual, rounded, moved

    def go_on(at: _Iterate) -> Array:
        missed = at.residual > jnp.maximum(enough, at.rounded)
        return (missed & (at.iterations < max_iterations) & (at.stale < _PATIENCE)) | (at.iterations == 0)

    def iterate(at: _Iterate) -> _Iterate:
        ahead = tree.lerp(at.previous, at.moved, 1 + at.age / (at.age + 3))
        value, residual, rounded, moved = look(ahead)
        keep = (value <= at.value) | (at.age == 0)  # without momentum it descends, but for rounding
        # Where neither the objective nor the residual has become smaller for long, rounding has the last word.
        better = (value < at.value) | (residual < at.least)
        still = (at.iterations > 0) & (tree.norm(tree.sub(ahead, at.w)) == 0)
        stale = jnp.where(still, _PATIENCE, jnp.where(better, 0, at.stale + 1))
        least = jnp.minimum(residual, at.least)
        fresh = _Iterate(ahead, moved, at.moved, at.age + 1, value, residual, rounded, at.iterations + 1, least, stale)
        again = _Iterate(at.w, at.moved, at.moved, jnp.zeros_like(at.age), at.value, at.residual, at.rounded,
                         at.iterations + 1, least, stale)
        chosen: _Iterate = jax.tree.map(lambda a, b: jnp.where(keep, a, b), fresh, again)
        return chosen

    # Everything is looked at in one place of the program: compiling it is most of what a small centre costs.
    zero, infinite = jnp.zeros((), share.dtype), jnp.array(jnp.inf, share.dtype)
    found = jax.lax.while_loop(
        go_on, iterate, _Iterate(start, start, start, zero, infinite, infinite, zero, jnp.array(0), infinite,
                                   jnp.array(0)))
    return found.w, CentreInfo(found.iterations, found.residual)


class _Iterate(NamedTuple):
    """A point, where the sure step leads from it and from the one before, the momentum's age, and what was seen."""

    w: Vector
    moved: Vector
    previous: Vector
    age: Array
    value: Array
    residual: Array
    rounded: Array
    iterations: Array
    least: Array
    stale: Array


def geometric_median(
    points: Vector,
    weights: Float[Array, " C"],
    *,
    smoothing: ArrayLike = 1e-6,
    tolerance: ArrayLike = 1e-6,
    max_iterations: ArrayLike = 1000,
) -> tuple[Vector, CentreInfo]:
    """Weighted geometric median, argmin of the weighted sum of |p_k - w|, by smoothed Weiszfeld steps.

    Weiszfeld's weights 1/max(smoothing, |p_k - w|) are those of the Moreau centre of the L2 norm with
    t = smoothing, so this *is* that centre: the smoothed objective differs from the sum of distances by at
    most smoothing/2. Source: RFA (Pillutla et al.); Fed+ (4).
    """
    return moreau_centre(
        points, weights, L2Norm(), smoothing, tolerance=tolerance, max_iterations=max_iterations)


def coordinate_median(points: Vector, weights: Float[Array, " C"]) -> Vector:
    """Weighted median of each coordinate; where half the weight lies on either side, the midpoint.

    The midpoint makes it odd, A(w - p) = w - A(p) (eq. 28 of the first Fed+ paper), and equal to NumPy's
    median for equal weights. Source: Yin et al.; Fed+ (5).
    """
    share = weights / jnp.sum(weights)
    slack = 8 * jnp.finfo(share.dtype).eps  # type: ignore[no-untyped-call]

    def of_leaf(p: Array) -> Array:
        by_point = jnp.broadcast_to(share.reshape((-1,) + (1,) * (p.ndim - 1)), p.shape)
        values, mass = jax.lax.sort((p, by_point), dimension=0, num_keys=1)
        below = jnp.cumsum(mass, axis=0)
        lower = jnp.argmax(below >= 0.5 - slack, axis=0)[None]
        upper = jnp.argmax(below > 0.5 + slack, axis=0)[None]
        low = jnp.take_along_axis(values, lower, axis=0)[0]
        high = jnp.take_along_axis(values, upper, axis=0)[0]
        return low / 2 + high / 2

    return jax.tree.map(of_leaf, points)
