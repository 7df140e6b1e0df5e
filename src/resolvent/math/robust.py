r"""Centres of weighted points that bad points cannot carry away: trimming, selection by distance, clipping.

Points are pytrees with leaves [C, ...]; weights [C] are non-negative and need not sum to one. A point of weight zero is
absent: it has no influence, whatever finite value it has, and is not counted. Beside C x d numbers for the points and
their like, C x C are held; distances are sums of squared differences, never differences of squared norms.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from resolvent.math import centres, tree
from resolvent.math.penalties import L2Norm
from resolvent.math.tree import Vector

__all__ = ["bulyan", "clipped_mean", "krum", "median_distance", "squared_distances", "trimmed_mean"]


def trimmed_mean(points: Vector, weights: Float[Array, " C"], share: ArrayLike) -> Vector:
    """The mean of each coordinate without the lowest and the highest ``share`` of the weight there.

    A point on the boundary counts with the part of its weight that lies inside. With C equal weights and a whole number
    share * C it is the classical trimmed mean; 0 is the mean, towards 1/2 it becomes the median. Source: Yin et al.

    Args:
        points: leaves [C, ...].
        weights: [C].
        share: in [0, 1/2).
    """
    mass = (weights / jnp.sum(weights)).astype(tree.dtype(points))
    # Sums of C parts of a whole are exact up to C units: not a trace of a trimmed point may stay, however far it is.
    slack = max(8, len(weights)) * jnp.finfo(mass.dtype).eps  # type: ignore[no-untyped-call]
    low = jnp.minimum(jnp.asarray(share, mass.dtype) + slack, 0.5 - slack)

    def of_leaf(p: Array) -> Array:
        values, part = jax.lax.sort((p, _beside(mass, p)), dimension=0, num_keys=1)
        up_to = jnp.cumsum(part, axis=0)
        inside = jnp.maximum(jnp.minimum(up_to, 1 - low) - jnp.maximum(up_to - part, low), 0)
        return (jnp.sum(inside * values, axis=0) / jnp.sum(inside, axis=0)).astype(p.dtype)

    return jax.tree.map(of_leaf, points)


def squared_distances(points: Vector) -> Float[Array, "C C"]:
    """|p_i - p_j|^2 over all leaves, row by row; infinite where it overflows."""
    count = jax.tree.leaves(points)[0].shape[0]

    def from_point(i: Array) -> Array:
        apart = [jnp.square(leaf - leaf[i]).reshape(count, -1).sum(axis=1) for leaf in jax.tree.leaves(points)]
        return jnp.sum(jnp.stack(apart), axis=0)

    rows: Array = jax.lax.map(from_point, jnp.arange(count))
    return rows


def krum(points: Vector, weights: Float[Array, " C"], bad: ArrayLike, keep: ArrayLike = 1) -> Vector:
    """The weighted mean of the ``keep`` points with the best scores: one is Krum, more multi-Krum.

    A point's score is the sum of the squared distances to its n - bad - 2 nearest neighbours, n the number of points
    that are present; at least two, because nearest neighbours of each other would have the same score with one. Of
    equal scores the first row's is the better. Robust where n >= 2*bad + 3 and keep <= n - bad. Source: Blanchard, El
    Mhamdi, Guerraoui, Stainer.

    Args:
        points: leaves [C, ...].
        weights: [C]; only in the mean of what was chosen: scores count every point alike.
        bad: how many points may be bad.
        keep: how many are averaged.
    """
    present = weights > 0
    scores = _krum_scores(*_neighbours(points), present, bad)
    # Present points first, also those whose scores overflowed.
    rank = jnp.argsort(jnp.lexsort((scores, ~present)))
    return centres.mean(points, jnp.where(present & (rank < keep), weights, 0))


def bulyan(points: Vector, weights: Float[Array, " C"], bad: ArrayLike) -> Vector:
    """Choose theta = n - 2*bad points by Krum; then average each coordinate's theta - 2*bad values nearest its median.

    Krum chooses one point at a time, with the scores among those that are left. Robust where n >= 4*bad + 3. Source:
    El Mhamdi, Guerraoui, Rouault, *The Hidden Vulnerability of Distributed Learning in Byzantium*.

    Args:
        points: leaves [C, ...].
        weights: [C]; only in the last mean: all else counts every point alike.
        bad: how many points may be bad.
    """
    present = weights > 0
    n = jnp.sum(present)
    theta = jnp.maximum(n - 2 * jnp.asarray(bad), 1)
    order, near = _neighbours(points)

    def choose(_: Array, left: Array) -> Array:
        best = jnp.lexsort((_krum_scores(order, near, left, bad), ~left))[0]
        return left.at[best].set(False)

    chosen = present & ~jax.lax.fori_loop(0, theta, choose, present)
    median = centres.coordinate_median(points, chosen.astype(tree.dtype(points)))

    def of_leaf(p: Array, centre: Array) -> Array:
        apart = jnp.where(_beside(chosen, p), jnp.abs(p - centre), jnp.inf)
        _, values, mass = jax.lax.sort((apart, p, _beside(weights.astype(p.dtype), p)), dimension=0, num_keys=1)
        kept = _beside(jnp.arange(len(weights)) < jnp.maximum(theta - 2 * jnp.asarray(bad), 1), p)
        mass = jnp.where(kept, mass, 0)
        return jnp.sum(mass * values, axis=0) / jnp.sum(mass, axis=0)

    return jax.tree.map(of_leaf, points, median)


def clipped_mean(points: Vector, weights: Float[Array, " C"], centre: Vector, radius: ArrayLike) -> Vector:
    """The centre moved by the mean of the differences from it, each shortened to at most ``radius``.

    A step of length one on the weighted sum of the points' Moreau envelopes of radius*|.|, so that its fixed point is
    ``moreau_centre`` of the L2 norm. Source: Karimireddy, He, Jaggi (centred clipping); Fed+ (25).

    Args:
        points: leaves [C, ...].
        weights: [C].
        centre: leaves [...].
        radius: at least 0.
    """
    radius = jnp.maximum(radius, jnp.finfo(tree.dtype(points)).tiny)  # type: ignore[no-untyped-call]
    pulls = jax.vmap(lambda p: L2Norm().pull(tree.sub(p, centre), radius))(points)
    return tree.axpy(1, centres.mean(pulls, weights), centre)


def median_distance(points: Vector, weights: Float[Array, " C"], centre: Vector) -> Float[Array, ""]:
    """The weighted median of |p_k - centre|."""
    distances = jax.vmap(lambda p: tree.norm(tree.sub(p, centre)))(points)
    median: Array = centres.coordinate_median(distances, weights)
    return median


def _beside(row: Array, p: Array) -> Array:
    """One number per point, broadcast to the points' shape."""
    return jnp.broadcast_to(row.reshape((-1,) + (1,) * (p.ndim - 1)), p.shape)


def _neighbours(points: Vector) -> tuple[Int[Array, "C C"], Float[Array, "C C"]]:
    """Each point's others from the nearest to the furthest, itself last, and their squared distances."""
    squares = squared_distances(points)
    apart = jnp.where(jnp.eye(len(squares), dtype=bool), jnp.inf, squares)
    order = jnp.argsort(apart, axis=1)
    return order, jnp.take_along_axis(apart, order, axis=1)


def _krum_scores(order: Int[Array, "C C"], near: Float[Array, "C C"], left: Bool[Array, " C"],
                 bad: ArrayLike) -> Float[Array, " C"]:
    """The sum of the squared distances to the nearest of those that are left; infinite for those that are not."""
    count = jnp.maximum(jnp.sum(left) - jnp.asarray(bad) - 2, 2)
    there = left[order] & (order != jnp.arange(len(left))[:, None])
    counted = there & (jnp.cumsum(there, axis=1) <= count)
    return jnp.where(left, jnp.sum(jnp.where(counted, near, 0), axis=1), jnp.inf)
