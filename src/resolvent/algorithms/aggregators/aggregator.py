"""Aggregators: their base class, the mean, and the largest share that one party has."""

from abc import abstractmethod
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar

import equinox as eqx
from jaxtyping import Array, Float
from typing_extensions import override

from resolvent.algorithms.algorithm import Algorithm, Info, Replies
from resolvent.arguments import CheckedArguments
from resolvent.math import tree
from resolvent.math.tree import Vector

if TYPE_CHECKING:
    from resolvent.math.centre_searches import CentreSearch

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

    def search(self) -> "CentreSearch[Any] | None":
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
    if not limits:
        return weights
    from resolvent.math.robust import limited_weights  # a mean has no limit

    return limited_weights(weights, min(limits))


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
