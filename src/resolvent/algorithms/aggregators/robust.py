"""Aggregators that withstand malicious replies: trimming, selection and clipping."""

from abc import abstractmethod
from typing import Annotated, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Int
from typing_extensions import override

from resolvent.algorithms.aggregators.aggregator import Aggregator, assumed_malicious, note_on_share
from resolvent.algorithms.aggregators.medians import median_threshold
from resolvent.algorithms.algorithm import Info, Replies
from resolvent.errors import InputError, Interval, check_range
from resolvent.math import centres, robust, tree
from resolvent.math.penalties import L2Norm
from resolvent.math.tree import Vector


class TrimmedMean(Aggregator):
    """The mean of each coordinate without its lowest and its highest values.

    Source: Yin, Chen, Ramchandran, Bartlett, *Byzantine-Robust Distributed Learning*.

    Attributes:
        share: the share of the weight that is removed at each end, in [0, 1/2). It is the breakdown point.

    Example:
        >>> models = jnp.array([[0.0], [1.0], [2.0], [3.0], [10.0]])
        >>> replies = rv.Replies(models, jnp.ones(5), jnp.arange(5), jnp.ones(5, bool), jnp.full(5, 1 / 5))
        >>> rv.aggregators.TrimmedMean(0.2)(replies)[0].tolist()
        [2.0]
    """

    share: Annotated[ArrayLike, "[0, 1/2)"] = 0.2
    linear: ClassVar[bool] = False

    @property
    @override
    def breakdown_point(self) -> float:
        return float(self.share)  # type: ignore[arg-type]

    @override
    def __call__(self, replies: Replies, centre: Vector | None = None, key: Array | None = None) -> tuple[Vector, Info]:
        return robust.trimmed_mean(replies.payload, replies.weight, self.share), {}


class Selection(Aggregator):
    """Base class of aggregators that select replies by their distances from each other.

    They assume that f = floor(share*n) of n replies are malicious, and need n >= replies_per_malicious*f + 3. A smaller
    cohort is refused before the first round, and a run warns of a cohort with f = 0. If parties are absent and the
    remaining replies are too few for f, the largest number of malicious replies that they allow is assumed
    (``assumed_malicious`` in the metrics). Weights matter only in the mean of the selected replies.

    Attributes:
        replies_per_malicious: 2 or 4.
        share: the share of the replies that may be malicious, in [0, 1/replies_per_malicious). It is the breakdown
            point, whatever the replies' weights.
    """

    replies_per_malicious: eqx.AbstractClassVar[int]
    share: eqx.AbstractVar[float]

    def __check_init__(self) -> None:
        interval: Interval = "[0, 1/2)" if self.replies_per_malicious == 2 else "[0, 1/4)"
        advice = "" if self.replies_per_malicious == 2 else "use MultiKrum, TrimmedMean or a median for more"
        check_range(self, interval, advice=advice, share=self.share)

    @property
    @override
    def breakdown_point(self) -> float:
        return self.share

    @override
    def __call__(self, replies: Replies, centre: Vector | None = None, key: Array | None = None) -> tuple[Vector, Info]:
        """The aggregate, and how many replies were assumed malicious.

        Raises:
            InputError: the cohort is too small for the share.
        """
        self._check_cohort(len(replies.weight))
        count = jnp.sum(replies.weight > 0)
        # 1e-6 corrects rounding: 0.29 * 100 is just below 29.
        by_share = jnp.floor(self.share * count + 1e-6).astype(count.dtype)
        malicious = jnp.minimum(by_share, jnp.maximum(count - 3, 0) // self.replies_per_malicious)
        return self._select(replies, count, malicious), {"assumed_malicious": malicious}

    @override
    def cohort_note(self, cohort: int) -> str | None:
        return note_on_share(self, self.share, cohort, self.replies_per_malicious)

    def _check_cohort(self, size: int) -> None:
        ratio, name = self.replies_per_malicious, type(self).__name__
        malicious = assumed_malicious(self.share, size)
        if malicious and size < ratio * malicious + 3:
            allowed = (size - 3) // ratio
            advice = f"a share below {(allowed + 1) / size:.3g}" if allowed > 0 else "TrimmedMean or a median"
            raise InputError(f"{name}(share={self.share}) assumes that {malicious} of {size} replies are malicious and "
                             f"needs at least {ratio}*{malicious} + 3 = {ratio * malicious + 3} replies: use a larger "
                             f"cohort, or {advice}")

    @abstractmethod
    def _select(self, replies: Replies, count: Int[Array, ""], malicious: Int[Array, ""]) -> Vector:
        """The aggregate of the ``count`` replies that arrived, of which ``malicious`` are assumed malicious."""


class Krum(Selection):
    """The reply that is nearest to its neighbours.

    Source: Blanchard, El Mhamdi, Guerraoui, Stainer, *Machine Learning with Adversaries*.

    Attributes:
        share: the share of the replies that may be malicious, in [0, 1/2); n replies must be at least
            2*floor(share*n) + 3.

    Example:
        >>> models = jnp.array([[0.0], [1.0], [2.0], [3.0], [10.0]])
        >>> replies = rv.Replies(models, jnp.ones(5), jnp.arange(5), jnp.ones(5, bool), jnp.full(5, 1 / 5))
        >>> rv.aggregators.Krum(0.2)(replies)[0].tolist()
        [1.0]
    """

    share: float = eqx.field(static=True, default=0.2)
    replies_per_malicious: ClassVar[int] = 2
    linear: ClassVar[bool] = False

    @override
    def _select(self, replies: Replies, count: Int[Array, ""], malicious: Int[Array, ""]) -> Vector:
        return robust.krum(replies.payload, replies.weight, malicious)


class MultiKrum(Selection):
    """The mean of the replies that are nearest to their neighbours.

    Source: Blanchard, El Mhamdi, Guerraoui, Stainer, *Machine Learning with Adversaries*.

    Attributes:
        share: the share of the replies that may be malicious, in [0, 1/2); n replies must be at least
            2*floor(share*n) + 3.
        keep: how many replies are averaged, but never more than the number that is not assumed malicious; default:
            that number.

    Raises:
        InputError: ``share`` lies outside [0, 1/2), or ``keep`` is less than 1.

    Example:
        >>> models = jnp.array([[0.0], [1.0], [2.0], [3.0], [10.0]])
        >>> replies = rv.Replies(models, jnp.ones(5), jnp.arange(5), jnp.ones(5, bool), jnp.full(5, 1 / 5))
        >>> rv.aggregators.MultiKrum(0.2, keep=2)(replies)[0].tolist()
        [1.5]
    """

    share: float = eqx.field(static=True, default=0.2)
    keep: int | None = eqx.field(static=True, default=None)
    replies_per_malicious: ClassVar[int] = 2
    linear: ClassVar[bool] = False

    def __check_init__(self) -> None:
        check_range(self, "[1, inf)", advice="Krum averages 1", keep=self.keep)

    @override
    def _select(self, replies: Replies, count: Int[Array, ""], malicious: Int[Array, ""]) -> Vector:
        honest = count - malicious
        return robust.krum(replies.payload, replies.weight, malicious, honest if self.keep is None else
                           jnp.minimum(self.keep, honest))


class Bulyan(Selection):
    """Repeated Krum, then a trimmed mean around the median of the selected replies.

    Source: El Mhamdi, Guerraoui, Rouault, *The Hidden Vulnerability of Distributed Learning in Byzantium*.

    Attributes:
        share: the share of the replies that may be malicious, in [0, 1/4); n replies must be at least
            4*floor(share*n) + 3.

    Example:
        >>> algorithm = rv.robust(rv.SGD(0.1), aggregator=rv.aggregators.Bulyan(0.1))
    """

    share: float = eqx.field(static=True, default=0.2)
    replies_per_malicious: ClassVar[int] = 4
    linear: ClassVar[bool] = False

    @override
    def _select(self, replies: Replies, count: Int[Array, ""], malicious: Int[Array, ""]) -> Vector:
        return robust.bulyan(replies.payload, replies.weight, malicious)


class CentredClipping(Aggregator):
    """Repeated steps along the mean of the updates, each update clipped to a radius.

    From v, the server's last model, repeat v <- v + mean of clip(x_k - v). Whatever the replies are, the aggregate
    is at most iterations * radius from the server's model. As the number of steps grows it converges to the Moreau
    centre of the L2 norm. Source: Karimireddy, He, Jaggi, *Learning from History for Byzantine Robust Optimization*;
    the momentum of their workers belongs to the local solver.

    Attributes:
        radius: tau, about the length of a good update; positive.
        iterations: L, the number of steps; at least 1.

    Example:
        >>> algorithm = rv.robust(rv.SGD(0.1), aggregator=rv.aggregators.CentredClipping(10.0))
    """

    radius: Annotated[ArrayLike, "(0, inf)"]
    iterations: Annotated[int, "[1, inf)"] = eqx.field(static=True, default=3)
    linear: ClassVar[bool] = False
    breakdown_point: ClassVar[float] = 0.5

    @override
    def __call__(self, replies: Replies, centre: Vector | None = None, key: Array | None = None) -> tuple[Vector, Info]:
        start = _or_median(centre, replies)
        point = tree.widen(start)
        for _ in range(self.iterations):
            point = robust.clipped_mean(replies.payload, replies.weight, point, self.radius)
        return tree.cast(point, start), {}


class NormBound(Aggregator):
    """The mean of the updates, each clipped to the median length of the updates or to a radius.

    An update is the difference between a reply and the server's last model. Source: Sun, Kairouz, Suresh, McMahan,
    *Can You Really Backdoor Federated Learning?*, whose bound is a constant; the median needs no tuning.

    Attributes:
        radius: the largest length of an update, positive; default: the weighted median of the updates' lengths.

    Example:
        >>> algorithm = rv.robust(rv.SGD(0.1), aggregator=rv.aggregators.NormBound())
    """

    radius: Annotated[ArrayLike | None, "(0, inf)"] = None
    linear: ClassVar[bool] = False
    breakdown_point: ClassVar[float] = 0.5

    @property
    @override
    def max_share(self) -> float:
        """Less than that of medians: a mean moves by the whole weight of a false update, however short it is."""
        return 0.25

    @override
    def __call__(self, replies: Replies, centre: Vector | None = None, key: Array | None = None) -> tuple[Vector, Info]:
        point = _or_median(centre, replies)
        radius = self.radius
        if radius is None:
            radius = median_threshold(L2Norm(), replies, point)
        return robust.clipped_mean(replies.payload, replies.weight, point, radius), {"norm_bound": jnp.asarray(radius)}


def _or_median(centre: Vector | None, replies: Replies) -> Vector:
    """The server's model; without it, the coordinate-wise median of the replies."""
    return centres.coordinate_median(replies.payload, replies.weight) if centre is None else centre
