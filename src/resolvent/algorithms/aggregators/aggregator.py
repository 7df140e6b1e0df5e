"""Aggregators: the mean, medians, and the centre that belongs to a penalty."""

from abc import abstractmethod
from itertools import count
from typing import Annotated, Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float
from typing_extensions import override

from resolvent.algorithms.algorithm import Algorithm, Info, Replies
from resolvent.arguments import CheckedArguments
from resolvent.math import centres, tree
from resolvent.math.centre_searches import CentreSearch, MoreauSearch, SignSearch
from resolvent.math.penalties import L2Norm, Penalty
from resolvent.math.robust import limited_weights
from resolvent.math.tree import Vector

MAX_SHARE = 0.3


class Aggregator(CheckedArguments, eqx.Module):
    """A map from the replies of a round to one vector, the aggregate.

    Attributes:
        linear: whether the aggregate is linear in the replies. Methods whose server stores only a mean of what the
            parties store, such as DIANA's, need this.
    """

    linear: eqx.AbstractClassVar[bool]

    @property
    @abstractmethod
    def breakdown_point(self) -> float:
        """The breakdown point, at most 1/2.

        Malicious replies with less than this share of the weight cannot move the aggregate arbitrarily far from the
        honest replies. Aggregators that count replies mean the share of their number instead.
        """

    @property
    def max_share(self) -> float | None:
        """The largest share of a round's weight that one party has; None: any.

        A breakdown point is a share of the weight, and a weight is what a party says about its number of rows. So
        aggregators that are not linear limit it. ``combinators.ShareLimit`` sets another share.
        """
        return None if self.linear else MAX_SHARE

    @abstractmethod
    def __call__(self, replies: Replies, centre: Vector | None = None, key: Array | None = None) -> tuple[Vector, Info]:
        """The aggregate, and numbers about its computation.

        Args:
            replies: leaves [C, ...].
            centre: the server's model, for aggregators that use the distance of each reply from it. Without it these
                use the coordinate-wise median of the replies.
            key: for aggregators that make random choices; without it these use the order of the replies.
        """

    def cohort_note(self, cohort: int) -> str | None:
        """A sentence if a cohort of this size is too small to withstand any malicious reply; None otherwise."""
        return None

    def search(self) -> CentreSearch[Any] | None:
        """The iteration that computes the aggregate from sums of bounded replies; None: there is none."""
        return None


def aggregators_of(algorithm: Algorithm) -> list[Aggregator]:
    """The aggregators of an algorithm and of the algorithms inside it."""
    return tree.parts(algorithm, Aggregator)


def assumed_malicious(share: float, replies: int) -> int:
    """floor(share*n), the number of n replies that are assumed malicious."""
    return int(share * replies + 1e-6)  # 0.29 * 100 is just below 29


def note_on_share(aggregator: Aggregator, share: float, cohort: int, replies_per_malicious: int = 0) -> str | None:
    """``Aggregator.cohort_note`` of an aggregator that assumes that f = floor(share*n) of n replies are malicious.

    Args:
        replies_per_malicious: r, if it needs n >= r*f + 3.
    """
    if not share or assumed_malicious(share, cohort):
        return None
    enough = next(n for n in count(max(cohort, replies_per_malicious + 3)) if (f := assumed_malicious(share, n))
                  and n >= replies_per_malicious * f + 3)
    return (f"{type(aggregator).__name__}(share={share}) assumes that none of {cohort} replies is malicious, so that "
            f"a single one can decide the aggregate: use a cohort of at least {enough} parties, or a median, such as "
            "rv.aggregators.GeometricMedian()")


def with_limited_shares(algorithm: Algorithm, weights: Float[Array, " C"]) -> Float[Array, " C"]:
    """The weights of replies, in which no party has more than the algorithm's, or its aggregators', ``max_share``."""
    shares = [algorithm.max_share] if algorithm.max_share else [part.max_share for part in aggregators_of(algorithm)]
    limits = [share for share in shares if share is not None]
    return limited_weights(weights, min(limits)) if limits else weights


class Mean(Aggregator):
    """The weighted mean, sum_k weight_k x_k / sum_k weight_k.

    Example:
        >>> models = jnp.array([[0.0], [1.0], [8.0]])
        >>> replies = rv.Replies(models, jnp.ones(3), jnp.arange(3), jnp.ones(3, bool), jnp.full(3, 1 / 3))
        >>> rv.aggregators.Mean()(replies)[0].tolist()
        [3.0]
    """

    linear: ClassVar[bool] = True
    breakdown_point: ClassVar[float] = 0.0

    @override
    def __call__(self, replies: Replies, centre: Vector | None = None, key: Array | None = None) -> tuple[Vector, Info]:
        return replies.mean(), {}


class MoreauCentre(Aggregator):
    """The aggregate that belongs to a penalty: argmin of the weighted sum of its Moreau envelopes.

    It minimises over w the sum over the replies x_k of weight_k * min over theta of
    phi(theta) + |x_k - w - theta|^2 / (2 delta). Source: Fed+ (Kundu, Yu, Wynter, Lim), (7) and (25).

    Attributes:
        penalty: phi of Psi = sigma*delta*phi.
        delta: the smoothing; positive.
        tolerance: the relative residual at which the iteration stops; by default the rounding error of the numbers'
            type. See ``resolvent.math.centres.moreau_centre``.
        max_iterations: the largest number of iterations; ``centre_residual`` in the metrics shows whether they
            sufficed.
        is_relative: whether delta counts in median distances of the replies from the server's last model, of a penalty
            that is a norm. Then the centre does not depend on the scale of the parameters.

    Example:
        >>> models = jnp.array([[0.0], [1.0], [8.0]])
        >>> replies = rv.Replies(models, jnp.ones(3), jnp.arange(3), jnp.ones(3, bool), jnp.full(3, 1 / 3))
        >>> centre = rv.aggregators.MoreauCentre(rv.penalties.L2Norm(), 0.1)(replies)[0]
    """

    penalty: Penalty
    delta: Annotated[ArrayLike, "(0, inf)"]
    tolerance: float = eqx.field(static=True, default=0.0)
    max_iterations: int = eqx.field(static=True, default=1000)
    is_relative: bool = eqx.field(static=True, default=False)
    linear: ClassVar[bool] = False

    @property
    @override
    def breakdown_point(self) -> float:
        # A penalty with an unbounded pull (SquaredL2) makes the centre move as the mean does.
        return 0.5 if self.penalty.has_bounded_pull else 0.0

    @property
    @override
    def max_share(self) -> float | None:
        return MAX_SHARE if self.penalty.has_bounded_pull else None

    @override
    def __call__(self, replies: Replies, centre: Vector | None = None, key: Array | None = None) -> tuple[Vector, Info]:
        delta = self.delta
        if self.is_relative:
            last = centres.coordinate_median(replies.payload, replies.weight) if centre is None else centre
            delta = median_threshold(self.penalty, replies, last, delta)
        aggregate, info = centres.moreau_centre(replies.payload, replies.weight, self.penalty, delta,
                                                tolerance=self.tolerance, max_iterations=self.max_iterations)
        return aggregate, {"centre_iterations": info.iterations, "centre_residual": info.residual}

    @override
    def search(self) -> MoreauSearch | None:
        return None if self.is_relative else MoreauSearch(self.penalty, self.delta)


def median_threshold(penalty: Penalty, replies: Replies, centre: Vector, multiple: ArrayLike = 1.0) -> Float[Array, ""]:
    """A multiple of the weighted median of the replies' distances from a centre.

    A distance is the smallest t for which the prox removes the difference; for the Euclidean norm it is its length.

    Raises:
        TypeError: the penalty is not a norm.
    """
    wide = tree.widen(centre)
    distances = jax.vmap(lambda row: penalty.threshold(tree.sub(tree.widen(row), wide)))(replies.payload)
    median: Array = centres.coordinate_median(distances, replies.weight)
    return jnp.asarray(multiple * median)


class GeometricMedian(Aggregator):
    """The geometric median by smoothed Weiszfeld iterations: argmin over w of sum_k weight_k |x_k - w|.

    Source: Pillutla, Kakade, Harchaoui, *Robust Aggregation for Federated Learning* (RFA).

    Attributes:
        smoothing: distances below this value are replaced by it; positive.
        tolerance: the relative residual at which the iteration stops; by default the rounding error of the numbers'
            type.
        max_iterations: the largest number of iterations.

    Example:
        >>> models = jnp.array([[0.0], [1.0], [8.0]])
        >>> replies = rv.Replies(models, jnp.ones(3), jnp.arange(3), jnp.ones(3, bool), jnp.full(3, 1 / 3))
        >>> round(rv.aggregators.GeometricMedian()(replies)[0].item(), 3)
        1.0
    """

    smoothing: Annotated[ArrayLike, "(0, inf)"] = 1e-6
    tolerance: float = eqx.field(static=True, default=0.0)
    max_iterations: int = eqx.field(static=True, default=1000)
    linear: ClassVar[bool] = False
    breakdown_point: ClassVar[float] = 0.5

    @override
    def __call__(self, replies: Replies, centre: Vector | None = None, key: Array | None = None) -> tuple[Vector, Info]:
        aggregate, info = centres.geometric_median(replies.payload, replies.weight, smoothing=self.smoothing,
                                                   tolerance=self.tolerance, max_iterations=self.max_iterations)
        return aggregate, {"centre_iterations": info.iterations, "centre_residual": info.residual}

    @override
    def search(self) -> MoreauSearch:
        return MoreauSearch(L2Norm(), self.smoothing)


class CoordinateMedian(Aggregator):
    """The weighted median of each coordinate.

    Source: Yin, Chen, Ramchandran, Bartlett, *Byzantine-Robust Distributed Learning*.

    Example:
        >>> models = jnp.array([[0.0], [1.0], [8.0]])
        >>> replies = rv.Replies(models, jnp.ones(3), jnp.arange(3), jnp.ones(3, bool), jnp.full(3, 1 / 3))
        >>> rv.aggregators.CoordinateMedian()(replies)[0].tolist()
        [1.0]
    """

    linear: ClassVar[bool] = False
    breakdown_point: ClassVar[float] = 0.5

    @override
    def __call__(self, replies: Replies, centre: Vector | None = None, key: Array | None = None) -> tuple[Vector, Info]:
        return centres.coordinate_median(replies.payload, replies.weight), {
            "centre_iterations": jnp.array(0), "centre_residual": jnp.zeros(())}

    @override
    def search(self) -> SignSearch:
        return SignSearch()
