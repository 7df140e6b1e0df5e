"""Centres of weighted points: mean, Moreau centre, geometric median and coordinate-wise median.

Points are pytrees with leaves [C, ...]. Weights [C] are non-negative and need not sum to one. A point of weight zero
has no influence, whatever finite value it has. Centres of points in half precision are computed in float32 and rounded
to the dtypes of the points at the end.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from resolvent.math import tree
from resolvent.math.penalties import L2Norm, Penalty
from resolvent.math.tree import Vector

__all__ = ["CentreInfo", "coordinate_median", "geometric_median", "mean", "moreau_centre"]

_PATIENCE = 100  # iterations without progress before the iteration stops
_MAX_COPIED_BYTES = 2**26  # of points that are copied into one array


class CentreInfo(NamedTuple):
    """How far the computation of a centre converged.

    Attributes:
        iterations: number of points at which the objective was evaluated; the mean is the first.
        residual: |weighted sum of the pulls of the points on the centre| / (weighted sum of their norms): 0 at the
            optimum, at most 1, and independent of scale. It is computed before the centre is rounded to half
            precision.
    """

    iterations: Int[Array, ""]
    residual: Float[Array, ""]


def _weighted_sum(weights: Float[Array, " C"], points: Vector) -> Vector:
    # "highest", because the default precision of products on accelerators is about 10 bits.
    return jax.tree.map(
        lambda p: jnp.tensordot(weights, p, axes=1, precision="highest").astype(p.dtype), points)


def _normalised(weights: Float[Array, " C"]) -> Float[Array, " C"]:
    """The weights over their sum, in at least float32."""
    wide: Array = tree.widen(weights)
    return wide / jnp.sum(wide)


def mean(points: Vector, weights: Float[Array, " C"]) -> Vector:
    """Weighted arithmetic mean of the points: leaves [C, ...] to leaves [...]."""
    return _weighted_sum(_normalised(weights), points)


def moreau_centre(
    points: Vector,
    weights: Float[Array, " C"],
    penalty: Penalty,
    t: ArrayLike,
    *,
    tolerance: ArrayLike = 0.0,
    max_iterations: ArrayLike = 1000,
) -> tuple[Vector, CentreInfo]:
    """The centre that belongs to a penalty: argmin over w of the weighted sum of env_{t*penalty}(p_k - w).

    Eq. (25) of Fed+, w <- w + mean(r_k - prox(r_k)) with r_k = p_k - w, is a gradient step of length one over the
    envelope's smoothness. Here each entry makes the longest step that is certain to descend (``Penalty.curvature``:
    Weiszfeld's step for the L2 norm), with Nesterov's momentum, which restarts whenever the objective would grow. The
    first point is the mean, as in the paper.

    Args:
        points: leaves [C, ...].
        weights: [C], non-negative, not all zero.
        penalty: the penalty phi of Psi = sigma*delta*phi.
        t: the smoothing, Fed+'s delta; > 0. Values below 1e-31 in float32 and 1e-292 in float64 count as these bounds,
            because pulls, which have length t at most for a norm, would underflow.
        tolerance: stop when the residual (see ``CentreInfo``) is at most this, or at most its rounding error: 8 units
            of rounding of the points' type, and the effect of rounding the centre on the pulls. By default the
            rounding error alone decides. The effect of rounding the centre is larger for points that are far from the
            origin and close to each other; if rounding keeps the centre from moving, the residual stays larger.
        max_iterations: the largest number of iterations; the residual says whether it was sufficient.

    Returns:
        The centre, and how far it converged.

    References:
        Fed+ (7), (16), (22), (25); errata 15.
    """
    t, original = jnp.asarray(t, tree.dtype(points)), points
    points = tree.widen(original)
    # As one array, an operation occurs once in the program and not once for each layer.
    is_small = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(points)) <= _MAX_COPIED_BYTES
    points, restore = tree.ravel_rows(points) if penalty.ignores_layers and is_small else (points, lambda w: w)
    normalised = _normalised(weights).astype(tree.dtype(points))
    start = _weighted_sum(normalised, points)
    info = jnp.finfo(normalised.dtype)  # type: ignore[no-untyped-call]
    eps, smallest = float(info.eps), float(info.tiny) / float(info.eps)
    t = jnp.maximum(t, smallest)
    target = jnp.maximum(tolerance, 8 * eps)

    def evaluate(w: Vector) -> tuple[Array, Array, Array, Vector]:
        """The objective, the residual, the residual's rounding error, and the point after a step of certain descent."""
        def of_point(p: Vector) -> tuple[Vector, Vector, Array, Array]:
            r = tree.sub(p, w)
            pull = penalty.pull(r, t)
            return pull, penalty.curvature(r, t), tree.norm(pull), penalty.envelope(r, t)

        pulls, curvatures, sizes, values = jax.vmap(of_point)(points)
        pull, curvature = _weighted_sum(normalised, pulls), _weighted_sum(normalised, curvatures)
        total = jnp.sum(normalised * sizes)
        residual = jnp.where(total > 0, tree.norm(pull) / jnp.where(total > 0, total, 1), 0)
        rounding = tree.norm(jax.tree.map(lambda a, c: eps * a * c, w, curvature)) / jnp.where(total > 0, total, 1)
        stepped = jax.tree.map(
            lambda a, b, c: a + jnp.where(c > 0, b / jnp.where(c > 0, c, 1), 0), w, pull, curvature)
        # Points of weight zero are left out, because their values may overflow.
        value = jnp.sum(jnp.where(normalised > 0, normalised * values, 0))
        return value, residual, rounding, stepped

    def has_work(state: _Iterate) -> Array:
        missed = state.residual > jnp.maximum(target, state.rounding)
        return ((missed & (state.iterations < max_iterations) & (state.stale < _PATIENCE))
                | (state.iterations == 0))

    def iterate(state: _Iterate) -> _Iterate:
        candidate = tree.lerp(state.previous, state.stepped, 1 + state.age / (state.age + 3))
        value, residual, rounding, stepped = evaluate(candidate)
        # At age 0 there is no momentum: the step descends, except for rounding.
        accept = (value <= state.value) | (state.age == 0)
        # Without progress in the objective or the residual for a long time, only rounding errors are left.
        improved = (value < state.value) | (residual < state.best_residual)
        unmoved = (state.iterations > 0) & (tree.norm(tree.sub(candidate, state.w)) == 0)
        stale = jnp.where(unmoved, _PATIENCE, jnp.where(improved, 0, state.stale + 1))
        best_residual = jnp.minimum(residual, state.best_residual)
        accepted = _Iterate(candidate, stepped, state.stepped, state.age + 1, value, residual, rounding,
                            state.iterations + 1, best_residual, stale)
        restarted = _Iterate(state.w, state.stepped, state.stepped, jnp.zeros_like(state.age), state.value,
                             state.residual, state.rounding, state.iterations + 1, best_residual, stale)
        chosen: _Iterate = tree.where(accept, accepted, restarted)
        return chosen

    # The objective occurs only once in the program, in the loop: compilation dominates the cost of small centres.
    zero, infinite = jnp.zeros((), normalised.dtype), jnp.array(jnp.inf, normalised.dtype)
    first = _Iterate(start, start, start, zero, infinite, infinite, zero, jnp.array(0), infinite, jnp.array(0))
    last = jax.lax.while_loop(has_work, iterate, first)
    return tree.cast(restore(last.w), original), CentreInfo(last.iterations, last.residual)


class _Iterate(NamedTuple):
    """The state of ``moreau_centre``."""

    w: Vector  # the current point
    stepped: Vector  # the point after a step of certain descent from w
    previous: Vector  # the point after a step of certain descent from the point before w
    age: Array  # steps since the last restart of the momentum
    value: Array  # the objective at w
    residual: Array  # the residual at w
    rounding: Array  # the rounding error of the residual
    iterations: Array  # evaluations so far
    best_residual: Array  # the smallest residual so far
    stale: Array  # iterations without progress


def geometric_median(
    points: Vector,
    weights: Float[Array, " C"],
    *,
    smoothing: ArrayLike = 1e-6,
    tolerance: ArrayLike = 0.0,
    max_iterations: ArrayLike = 1000,
) -> tuple[Vector, CentreInfo]:
    """Weighted geometric median, argmin of the weighted sum of |p_k - w|, by smoothed Weiszfeld steps.

    Weiszfeld's weights 1/max(smoothing, |p_k - w|) are those of the Moreau centre of the L2 norm with t = smoothing, so
    this is that centre, with the same ``tolerance``. The smoothed objective differs from the sum of distances by at
    most smoothing/2. Source: RFA (Pillutla et al.); Fed+ (4).
    """
    return moreau_centre(
        points, weights, L2Norm(), smoothing, tolerance=tolerance, max_iterations=max_iterations)


def coordinate_median(points: Vector, weights: Float[Array, " C"]) -> Vector:
    """Weighted median of each coordinate: the midpoint, if half of the weight lies on either side.

    With the midpoint it is odd, A(w - p) = w - A(p) (eq. 28 of the first Fed+ paper), and equal to NumPy's median for
    equal weights. Source: Yin et al.; Fed+ (5).
    """
    normalised = _normalised(weights)
    slack = 8 * jnp.finfo(normalised.dtype).eps  # type: ignore[no-untyped-call]

    def of_leaf(p: Array) -> Array:
        of_points = jnp.broadcast_to(tree.column(normalised, p), p.shape)
        values, mass = jax.lax.sort((p, of_points), dimension=0, num_keys=1)
        below = jnp.cumsum(mass, axis=0)
        lower = jnp.argmax(below >= 0.5 - slack, axis=0)[None]
        upper = jnp.argmax(below > 0.5 + slack, axis=0)[None]
        low, high = (tree.widen(jnp.take_along_axis(values, row, axis=0)[0]) for row in (lower, upper))
        median: Array = (low / 2 + high / 2).astype(p.dtype)
        return median

    return jax.tree.map(of_leaf, points)
