"""Robust centres of weighted points, on which malicious points have bounded influence: trimming, selection, clipping.

Points are pytrees with leaves [C, ...]. Weights [C] are non-negative and need not sum to one. A point of weight zero is
absent: it has no influence, whatever finite value it has, and is not counted. Memory is C x d numbers for the points
and C x C numbers for their distances. Distances are norms of differences, not differences of squared norms, which would
cancel; no square over- or underflows, whatever the scale of the points is. Distances and means of points in half
precision are computed in float32.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from resolvent.math import centres, tree
from resolvent.math.penalties import L2Norm
from resolvent.math.tree import Vector


def trimmed_mean(points: Vector, weights: Float[Array, " C"], fraction: ArrayLike) -> Vector:
    """The mean of each coordinate without the lowest and the highest ``fraction`` of the weight.

    A point on the boundary counts with the part of its weight that lies inside. For C equal weights and a whole number
    fraction * C it is the classical trimmed mean. 0 is the mean; towards 1/2 it becomes the median. Source: Yin et al.

    Args:
        points: leaves [C, ...].
        weights: [C].
        fraction: the share of the weight that is removed at each end, in [0, 1/2).
    """
    weights = tree.widen(weights)
    mass = (weights / jnp.sum(weights)).astype(tree.dtype(points))
    # A sum of C numbers has an error of up to C units of rounding. A trimmed point must have exactly zero weight,
    # because it may be arbitrarily far away.
    slack = max(8, len(weights)) * jnp.finfo(mass.dtype).eps  # type: ignore[no-untyped-call]
    low = jnp.minimum(jnp.asarray(fraction, mass.dtype) + slack, 0.5 - slack)

    def of_leaf(p: Array) -> Array:
        values, of_value = jax.lax.sort((p, _broadcast(mass, p)), dimension=0, num_keys=1)
        below = jnp.cumsum(of_value, axis=0)
        inside = jnp.maximum(jnp.minimum(below, 1 - low) - jnp.maximum(below - of_value, low), 0)
        return (jnp.sum(inside * values, axis=0) / jnp.sum(inside, axis=0)).astype(p.dtype)

    return jax.tree.map(of_leaf, points)


def limited_weights(weights: Float[Array, " C"], largest: float) -> Float[Array, " C"]:
    """The weights w_k, in which no point has more than the share ``largest`` of their sum.

    They are min(w_k, c) with the largest c for which c <= largest * sum_k min(w_k, c), scaled to the former sum.
    Weights that keep to the share do not change by a bit. If the points with a weight are too few for the share, such
    as three for 0.3, they get equal weights; an array with too few rows for it does not change.

    Args:
        weights: [C].
        largest: a share in (0, 1].

    Example:
        >>> limited_weights(jnp.array([20.0, 1.0, 1.0, 1.0, 1.0]), 0.5).tolist()
        [12.0, 3.0, 3.0, 3.0, 3.0]
    """
    rows = len(weights)
    if rows * largest < 1:
        return weights
    total, descending = jnp.sum(weights), -jnp.sort(-weights)
    capped = jnp.arange(rows)  # how many of the largest weights the cap changes
    rest = total - jnp.cumsum(descending) + descending
    room = 1 - largest * capped
    cap = jnp.where(room > 0, largest * rest / jnp.where(room > 0, room, 1), 0)
    fits = (room > 0) & (descending <= cap)
    smallest = jnp.min(jnp.where(weights > 0, weights, jnp.inf))
    limited = jnp.minimum(weights, jnp.where(jnp.any(fits & (descending > 0)), cap[jnp.argmax(fits)], smallest))
    scaled = limited * (total / jnp.where(total > 0, jnp.sum(limited), 1))
    return jnp.where(fits[0], weights, scaled)


def distances(points: Vector) -> Float[Array, "C C"]:
    """|p_i - p_j| over all leaves; infinite where it overflows. Rows are computed one by one to save memory."""
    wide = tree.widen(points)
    count = jax.tree.leaves(wide)[0].shape[0]

    def from_point(i: Array) -> Array:
        point = tree.rows(wide, i)
        row: Array = jax.vmap(lambda p: tree.norm(tree.sub(p, point)))(wide)
        return row

    rows: Array = jax.lax.map(from_point, jnp.arange(count))
    return rows


def krum(points: Vector, weights: Float[Array, " C"], malicious: ArrayLike, keep: ArrayLike = 1) -> Vector:
    """The weighted mean of the ``keep`` points with the lowest scores: Krum for one, multi-Krum for more.

    A point's score is the sum of the squared distances to its n - malicious - 2 nearest neighbours, where n is the
    number of points of positive weight. At least two neighbours count, because with one, two points that are nearest
    neighbours of each other would have equal scores. Of equal scores the first is chosen. Robust for
    n >= 2*malicious + 3 and keep <= n - malicious. Source: Blanchard, El Mhamdi, Guerraoui, Stainer.

    Args:
        points: leaves [C, ...].
        weights: [C]; they are used in the mean of the chosen points only, not in the scores.
        malicious: largest number of malicious points.
        keep: number of points that are averaged.
    """
    present = weights > 0
    scores = _krum_scores(*_neighbours(points), present, malicious)
    # Present points come first, even if their scores have overflowed.
    rank = jnp.argsort(jnp.lexsort((scores, ~present)))
    return centres.mean(points, jnp.where(present & (rank < keep), weights, 0))


def bulyan(points: Vector, weights: Float[Array, " C"], malicious: ArrayLike) -> Vector:
    """Choose theta = n - 2*f points by Krum; then average each coordinate's theta - 2*f values nearest its median.

    f is the largest number of malicious points. Krum chooses one point at a time, with the scores among the remaining
    points. Robust for n >= 4*f + 3. Source: El Mhamdi, Guerraoui, Rouault, *The Hidden Vulnerability of Distributed
    Learning in Byzantium*.

    Args:
        points: leaves [C, ...].
        weights: [C]; they are used in the last mean only.
        malicious: f.
    """
    present = weights > 0
    n = jnp.sum(present)
    theta = jnp.maximum(n - 2 * jnp.asarray(malicious), 1)
    wide = tree.widen(points)
    order, near = _neighbours(wide)

    def choose(_: Array, remaining: Array) -> Array:
        best = jnp.lexsort((_krum_scores(order, near, remaining, malicious), ~remaining))[0]
        return remaining.at[best].set(False)

    chosen = present & ~jax.lax.fori_loop(0, theta, choose, present)
    median = centres.coordinate_median(wide, chosen.astype(tree.dtype(points)))

    def of_leaf(p: Array, centre: Array) -> Array:
        distance = jnp.where(_broadcast(chosen, p), jnp.abs(p - centre), jnp.inf)
        _, values, mass = jax.lax.sort((distance, p, _broadcast(weights.astype(p.dtype), p)), dimension=0, num_keys=1)
        is_near = _broadcast(jnp.arange(len(weights)) < jnp.maximum(theta - 2 * jnp.asarray(malicious), 1), p)
        mass = jnp.where(is_near, mass, 0)
        return jnp.sum(mass * values, axis=0) / jnp.sum(mass, axis=0)

    return tree.cast(jax.tree.map(of_leaf, wide, median), points)


def nearest_neighbour_means(points: Vector, weights: Float[Array, " C"], malicious: ArrayLike) -> Vector:
    """Each point replaced by the weighted mean of its n - malicious nearest points, itself included.

    n is the number of points of positive weight. Source: Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan,
    *Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity*, Algorithm 2 (NNM).

    Returns:
        Leaves [C, ...]; rows of weight zero are unchanged.
    """
    present = weights > 0
    from_present = jnp.where(present[None, :], distances(points), jnp.inf)
    rank = jnp.argsort(jnp.argsort(from_present, axis=1), axis=1)
    count = jnp.maximum(jnp.sum(present) - jnp.asarray(malicious), 1)
    chosen = jnp.where((rank < count) & present[None, :], weights[None, :], 0)
    mixed = jax.vmap(lambda row: centres.mean(points, row))(chosen)
    return tree.where(present, mixed, points)


def bucket_means(points: Vector, weights: Float[Array, " C"], size: int,
                 order: Int[Array, " C"]) -> tuple[Vector, Float[Array, " C"]]:
    """The weighted means of buckets of ``size`` points, filled in the order [C]; the last may be smaller.

    Source: Karimireddy, He, Jaggi, *Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing*, Algorithm 1.

    Returns:
        Leaves [C, ...] and weights [C]. A bucket's weight is the sum of those of its points, and is zero for rows that
        are not a bucket.
    """
    present = (weights > 0)[order]
    bucket = jnp.zeros_like(order).at[order].set(jnp.where(present, (jnp.cumsum(present) - 1) // size, len(order)))
    member = jnp.where(bucket[None, :] == jnp.arange(len(order))[:, None], weights[None, :], 0)
    totals = jnp.sum(member, axis=1)
    share = member / jnp.where(totals > 0, totals, 1)[:, None]

    def of_leaf(p: Array) -> Array:
        return jnp.tensordot(share.astype(p.dtype), p, axes=1, precision="highest").astype(p.dtype)

    return jax.tree.map(of_leaf, points), totals.astype(weights.dtype)


def clipped_mean(points: Vector, weights: Float[Array, " C"], centre: Vector, radius: ArrayLike) -> Vector:
    """The centre plus the mean of the differences of the points from it, each shortened to length ``radius`` at most.

    It is a gradient step of length one on the weighted sum of the points' Moreau envelopes of radius*|.|, so that its
    fixed point is ``moreau_centre`` of the L2 norm. Source: Karimireddy, He, Jaggi (centred clipping); Fed+ (25).

    Args:
        points: leaves [C, ...].
        weights: [C].
        centre: leaves [...].
        radius: largest length of a difference, at least 0.
    """
    radius = jnp.maximum(radius, jnp.finfo(tree.dtype(points)).tiny)  # type: ignore[no-untyped-call]
    pulls = jax.vmap(lambda p: L2Norm().pull(tree.sub(tree.widen(p), tree.widen(centre)), radius))(points)
    return tree.axpy(1, centres.mean(pulls, weights), centre)


def _broadcast(of_points: Array, p: Array) -> Array:
    """One number per point, broadcast to the shape of the points."""
    return jnp.broadcast_to(tree.column(of_points, p), p.shape)


def _neighbours(points: Vector) -> tuple[Int[Array, "C C"], Float[Array, "C C"]]:
    """The other points of each point, the nearest first, and their distances; the point itself comes last."""
    lengths = distances(points)
    lengths = jnp.where(jnp.eye(len(lengths), dtype=bool), jnp.inf, lengths)
    order = jnp.argsort(lengths, axis=1)
    return order, jnp.take_along_axis(lengths, order, axis=1)


def _krum_scores(order: Int[Array, "C C"], near: Float[Array, "C C"], remaining: Bool[Array, " C"],
                 malicious: ArrayLike) -> Float[Array, " C"]:
    """The square roots of Krum's scores among the remaining points; infinite for the others."""
    count = jnp.maximum(jnp.sum(remaining) - jnp.asarray(malicious) - 2, 2)
    is_neighbour = remaining[order] & (order != jnp.arange(len(remaining))[:, None])
    is_nearest = is_neighbour & (jnp.cumsum(is_neighbour, axis=1) <= count)
    return jnp.where(remaining, jax.vmap(tree.norm)(jnp.where(is_nearest, near, 0)), jnp.inf)
