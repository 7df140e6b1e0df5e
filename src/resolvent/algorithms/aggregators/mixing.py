"""Aggregators that mix the replies first, so that honest replies differ less; and one that trusts a party's reply."""

from dataclasses import replace
from typing import Annotated, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array
from typing_extensions import override

from resolvent.algorithms.aggregators.aggregator import Aggregator, note_on_share
from resolvent.algorithms.algorithm import Info, Replies
from resolvent.errors import InputError
from resolvent.math import robust, tree
from resolvent.math.tree import Vector


class NearestNeighbourMixing(Aggregator):
    """Another aggregator after each reply is replaced by the mean of its nearest replies.

    With f = floor(share*n) of n replies assumed malicious, a reply is replaced by the weighted mean of the n - f
    replies that are nearest to it, itself included. Honest replies that differ come closer to each other, so that a
    robust aggregator does not take the unusual ones for malicious. Source: Allouah, Farhadkhani, Guerraoui, Gupta,
    Pinot, Stephan, *Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity*, Algorithm 2 (NNM).

    Attributes:
        inner: aggregates the mixed replies.
        share: the share of the replies that may be malicious, in [0, 1/2).

    Example:
        >>> aggregator = rv.aggregators.NearestNeighbourMixing(rv.aggregators.GeometricMedian(), 0.2)
        >>> algorithm = rv.robust(rv.SGD(0.1), aggregator=aggregator)
    """

    inner: Aggregator
    share: Annotated[float, "[0, 1/2)"] = eqx.field(static=True, default=0.2)
    linear: ClassVar[bool] = False

    @property
    @override
    def breakdown_point(self) -> float:
        return min(self.share, self.inner.breakdown_point)

    @override
    def cohort_note(self, cohort: int) -> str | None:
        return note_on_share(self, self.share, cohort) or self.inner.cohort_note(cohort)

    @override
    def __call__(self, replies: Replies, centre: Vector | None = None, key: Array | None = None) -> tuple[Vector, Info]:
        malicious = jnp.floor(self.share * jnp.sum(replies.weight > 0) + 1e-6)  # 0.29 * 100 is just below 29
        mixed = robust.nearest_neighbour_means(replies.payload, replies.weight, malicious)
        return self.inner(replace(replies, payload=mixed), centre, key)


class Bucketing(Aggregator):
    """Another aggregator on the means of random groups of replies.

    The means differ less than the replies, but each malicious reply can spoil a whole bucket: the breakdown point is
    the inner aggregator's divided by the size. Source: Karimireddy, He, Jaggi, *Byzantine-Robust Learning on
    Heterogeneous Datasets via Bucketing*, Algorithm 1.

    Attributes:
        inner: aggregates the means of the buckets.
        size: number of replies in a bucket, at least 1; the authors use 2.

    Example:
        >>> aggregator = rv.aggregators.Bucketing(rv.aggregators.GeometricMedian(), size=2)
        >>> algorithm = rv.robust(rv.SGD(0.1), aggregator=aggregator)
    """

    inner: Aggregator
    size: Annotated[int, "[1, inf)"] = eqx.field(static=True, default=2)
    linear: ClassVar[bool] = False

    @property
    @override
    def breakdown_point(self) -> float:
        return self.inner.breakdown_point / self.size

    @override
    def cohort_note(self, cohort: int) -> str | None:
        return self.inner.cohort_note(-(-cohort // self.size))

    @override
    def __call__(self, replies: Replies, centre: Vector | None = None, key: Array | None = None) -> tuple[Vector, Info]:
        rows = jnp.arange(len(replies.weight))
        order = rows if key is None else jax.random.permutation(key, rows)
        means, weights = robust.bucket_means(replies.payload, replies.weight, self.size, order)
        buckets = Replies(means, weights, rows, weights > 0, weights)
        return self.inner(buckets, centre, key)


class TrustScores(Aggregator):
    """FLTrust: updates are weighted by the cosine of their angle with a trusted party's update.

    With g_0 the update of the trusted party and c_k the cosine of the angle between g_k and g_0, the aggregate is the
    server's model plus sum_k max(c_k, 0) |g_0|/|g_k| g_k / sum_k max(c_k, 0). The trusted party's data are those that
    the server has, added as a party. In a round without its reply the server's model does not change. Source: Cao,
    Fang, Liu, Gong, *FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping*, Algorithm 2.

    Attributes:
        trusted: id of the trusted party. Its own update takes part, with the score 1.

    Raises:
        InputError: when it is used: the method does not use the server's model.

    Example:
        >>> algorithm = rv.robust(rv.SGD(0.1), aggregator=rv.aggregators.TrustScores(trusted=0))
    """

    trusted: Annotated[int, "[0, inf)"] = eqx.field(static=True, default=0)
    linear: ClassVar[bool] = False
    breakdown_point: ClassVar[float] = 0.5

    @override
    def __call__(self, replies: Replies, centre: Vector | None = None, key: Array | None = None) -> tuple[Vector, Info]:
        if centre is None:
            raise InputError("TrustScores needs the server's model, which this method does not use: use it in "
                             "robust(...) or ditto(...)")
        updates = tree.widen(jax.tree.map(lambda row, model: row - model, replies.payload, centre))
        is_trusted = replies.alive & (replies.index == self.trusted)
        reference = jax.tree.map(lambda u: jnp.tensordot(is_trusted.astype(u.dtype), u, axes=1), updates)
        lengths, length = jax.vmap(tree.norm)(updates), tree.norm(reference)
        cosines = jax.vmap(lambda u, size: tree.full_dot(_unit(u, size), _unit(reference, length)))(updates, lengths)
        scores = jnp.where(replies.alive, jnp.maximum(cosines, 0), 0)
        total = jnp.sum(scores)
        scaled = scores / jnp.where(total > 0, total, 1) * (length / jnp.where(lengths > 0, lengths, 1))
        step = jax.tree.map(lambda u: jnp.tensordot(scaled.astype(u.dtype), u, axes=1), updates)
        return tree.axpy(1, step, centre), {"trust": total}


def _unit(u: Vector, length: Array) -> Vector:
    """u / |u|; zero stays zero. Products of unit vectors neither over- nor underflow."""
    return jax.tree.map(lambda leaf: leaf / jnp.where(length > 0, length, 1), u)
