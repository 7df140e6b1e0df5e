"""Aggregators for replies of which some are bad: trimming, selection, clipping."""

from abc import abstractmethod
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Int

from resolvent.algorithms.aggregators.aggregator import Aggregator
from resolvent.algorithms.algorithm import Info, Replies
from resolvent.errors import check_range
from resolvent.math import centres, robust
from resolvent.math.tree import Vector

__all__ = ["Bulyan", "CentredClipping", "Krum", "MultiKrum", "NormBound", "TrimmedMean"]


class TrimmedMean(Aggregator):
    """The mean of each coordinate without its lowest and highest weight. Source: Yin et al.

    Attributes:
        share: of the weight that is left out at each end, in [0, 1/2); bad parties of that weight are survived.
    """

    share: ArrayLike = 0.2
    linear: ClassVar[bool] = False

    def __check_init__(self) -> None:
        _check_share(self, 2)

    @property
    def breakdown(self) -> float:
        """The share that is trimmed."""
        return float(self.share)  # type: ignore[arg-type]

    def __call__(self, replies: Replies, centre: Vector | None = None) -> tuple[Vector, Info]:
        """The trimmed mean of the replies."""
        return robust.trimmed_mean(replies.payload, replies.weight, self.share), {}


class Selection(Aggregator):
    """Aggregators that count replies: with f = floor(share*n) of n assumed bad, they need n >= least*f + 3.

    A smaller cohort is refused when it is first known; where so many of it are absent in a round that those who reply
    are too few, as many bad ones are assumed as they allow (``assumed_bad`` in the metrics). Weights enter in the mean
    of what was selected only.

    Attributes:
        least: 2 or 4.
        share: of the replies that may be bad, in [0, 1/least).
    """

    least: eqx.AbstractClassVar[int]
    share: eqx.AbstractVar[float]

    def __check_init__(self) -> None:
        _check_share(self, self.least)

    @property
    def breakdown(self) -> float:
        """The share of the replies, whatever their weight."""
        return self.share

    def __call__(self, replies: Replies, centre: Vector | None = None) -> tuple[Vector, Info]:
        """The aggregate.

        Raises:
            ValueError: the cohort is too small for the share.
        """
        size, name = len(replies.weight), type(self).__name__
        bad = int(self.share * size + 1e-6)
        if bad and size < self.least * bad + 3:
            most = (size - 3) // self.least
            smaller = f"a share below {(most + 1) / size:.3g}" if most > 0 else "TrimmedMean or a median"
            raise ValueError(f"{name}(share={self.share}) assumes {bad} bad of {size} replies and needs "
                             f"{self.least}*{bad} + 3 = {self.least * bad + 3}: use a larger cohort, or {smaller}")
        n = jnp.sum(replies.weight > 0)
        assumed = jnp.minimum(jnp.floor(self.share * n + 1e-6).astype(n.dtype), jnp.maximum(n - 3, 0) // self.least)
        return self._select(replies, n, assumed), {"assumed_bad": assumed}

    @abstractmethod
    def _select(self, replies: Replies, n: Int[Array, ""], bad: Int[Array, ""]) -> Vector:
        """The aggregate of n replies, of which some are assumed bad."""


class Krum(Selection):
    """The one reply that is nearest to its neighbours. Source: Blanchard et al.

    Attributes:
        share: of the replies that may be bad, in [0, 1/2); n replies must be at least 2*floor(share*n) + 3.
    """

    share: float = eqx.field(static=True, default=0.2)
    least: ClassVar[int] = 2
    linear: ClassVar[bool] = False

    def _select(self, replies: Replies, n: Int[Array, ""], bad: Int[Array, ""]) -> Vector:
        return robust.krum(replies.payload, replies.weight, bad)


class MultiKrum(Selection):
    """The mean of the replies that are nearest to their neighbours. Source: Blanchard et al.

    Attributes:
        share: of the replies that may be bad, in [0, 1/2); n replies must be at least 2*floor(share*n) + 3.
        keep: how many replies are averaged, and never more than are not assumed bad; left out, just those.
    """

    share: float = eqx.field(static=True, default=0.2)
    keep: int | None = eqx.field(static=True, default=None)
    least: ClassVar[int] = 2
    linear: ClassVar[bool] = False

    def __check_init__(self) -> None:
        if self.keep is not None and self.keep < 1:
            raise ValueError(f"MultiKrum(keep={self.keep}) must average at least 1 reply: Krum does with 1")

    def _select(self, replies: Replies, n: Int[Array, ""], bad: Int[Array, ""]) -> Vector:
        good = n - bad
        return robust.krum(replies.payload, replies.weight, bad, good if self.keep is None else
                           jnp.minimum(self.keep, good))


class Bulyan(Selection):
    """Krum again and again, then a trimmed mean around the median of what it chose. Source: El Mhamdi et al.

    Attributes:
        share: of the replies that may be bad, in [0, 1/4); n replies must be at least 4*floor(share*n) + 3.
    """

    share: float = eqx.field(static=True, default=0.2)
    least: ClassVar[int] = 4
    linear: ClassVar[bool] = False

    def _select(self, replies: Replies, n: Int[Array, ""], bad: Int[Array, ""]) -> Vector:
        return robust.bulyan(replies.payload, replies.weight, bad)


class CentredClipping(Aggregator):
    """Steps from the server's model by the mean of the updates, each shortened to a radius.

    v <- v + mean of clip(x_k - v), from the server's last model. Whoever is bad, an aggregate is at most
    iterations * radius from there; with many steps it is the Moreau centre of the L2 norm. Source: Karimireddy, He,
    Jaggi, *Learning from History for Byzantine Robust Optimization*; their worker momentum is the solver's business.

    Attributes:
        radius: tau, about the length of a good update.
        iterations: L, how many steps.
    """

    radius: ArrayLike
    iterations: int = eqx.field(static=True, default=3)
    linear: ClassVar[bool] = False
    breakdown: ClassVar[float] = 0.5

    def __check_init__(self) -> None:
        check_range(self, "(0, inf)", radius=self.radius)
        check_range(self, "(0, inf)", iterations=self.iterations)

    def __call__(self, replies: Replies, centre: Vector | None = None) -> tuple[Vector, Info]:
        """The point after the steps."""
        at = _from(centre, replies)
        for _ in range(self.iterations):
            at = robust.clipped_mean(replies.payload, replies.weight, at, self.radius)
        return at, {}


class NormBound(Aggregator):
    """The mean of the updates, each shortened to the median length of all, or to a given one.

    An update is the difference of a reply from the server's last model. Source: Sun, Kairouz, Suresh, McMahan, *Can You
    Really Backdoor Federated Learning?*, whose bound is a number; the median needs no tuning.

    Attributes:
        radius: the longest update; left out, the weighted median of the updates' lengths.
    """

    radius: ArrayLike | None = None
    linear: ClassVar[bool] = False
    breakdown: ClassVar[float] = 0.5

    def __check_init__(self) -> None:
        check_range(self, "(0, inf)", radius=self.radius)

    def __call__(self, replies: Replies, centre: Vector | None = None) -> tuple[Vector, Info]:
        """The server's model and the mean of the shortened updates."""
        at = _from(centre, replies)
        radius = self.radius
        if radius is None:
            radius = robust.median_distance(replies.payload, replies.weight, at)
        return robust.clipped_mean(replies.payload, replies.weight, at, radius), {"norm_bound": jnp.asarray(radius)}


def _from(centre: Vector | None, replies: Replies) -> Vector:
    return centres.coordinate_median(replies.payload, replies.weight) if centre is None else centre


def _check_share(owner: TrimmedMean | Selection, least: int) -> None:
    share = owner.share
    if isinstance(share, int | float) and not 0 <= share < 1 / least:
        more = "" if least == 2 else ": use MultiKrum, TrimmedMean or a median for more"
        raise ValueError(f"{type(owner).__name__}(share={share}) must lie in [0, 1/{least}){more}")
