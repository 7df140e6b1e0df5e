"""Aggregators: from the replies to one vector."""

from abc import abstractmethod
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import ArrayLike

from resolvent.algorithms.algorithm import Info, Replies
from resolvent.errors import check_range
from resolvent.math import centres
from resolvent.math.penalties import Penalty
from resolvent.math.tree import Vector

__all__ = ["Aggregator", "CoordinateMedian", "GeometricMedian", "Mean", "MoreauCentre"]


class Aggregator(eqx.Module):
    """A map from replies to a vector and how it was found.

    Attributes:
        linear: whether the result is linear in the payload; memories that live on the server need that.
    """

    linear: eqx.AbstractClassVar[bool]

    @property
    @abstractmethod
    def breakdown(self) -> float:
        """The share of the weight (where it says so, of the replies) up to which bad ones cannot carry the aggregate
        arbitrarily far from the good ones: at most 1/2, because a majority decides what is good.
        """

    @abstractmethod
    def __call__(self, replies: Replies, centre: Vector | None = None) -> tuple[Vector, Info]:
        """The aggregate and how it was found.

        Args:
            replies: leaves [C, ...].
            centre: where the server stands, for aggregators that look at how far replies are from there; without it
                they take the replies' coordinate median.
        """


class Mean(Aggregator):
    """The weighted mean."""

    linear: ClassVar[bool] = True
    breakdown: ClassVar[float] = 0.0

    def __call__(self, replies: Replies, centre: Vector | None = None) -> tuple[Vector, Info]:
        """Sum weight_k x_k / sum weight_k."""
        return replies.mean(), {}


class MoreauCentre(Aggregator):
    """The aggregate that belongs to a penalty: argmin of the weighted sum of its Moreau envelopes.

    Source: Fed+ (7), (25).

    Attributes:
        penalty: phi of Psi = sigma*delta*phi.
        delta: the smoothing.
        tolerance: of the residual, see ``resolvent.math.centres.CentreInfo``.
        max_iterations: the cap; ``centre_residual`` in the metrics says whether it was reached.
    """

    penalty: Penalty
    delta: ArrayLike
    tolerance: float = eqx.field(static=True, default=1e-6)
    max_iterations: int = eqx.field(static=True, default=1000)
    linear: ClassVar[bool] = False

    @property
    def breakdown(self) -> float:
        """1/2 where the penalty's pull is bounded (L1, L2Norm), else 0: the centre then moves as the mean does."""
        return 0.5 if self.penalty.bounded_pull else 0.0

    def __check_init__(self) -> None:
        check_range(self, "(0, inf)", delta=self.delta)

    def __call__(self, replies: Replies, centre: Vector | None = None) -> tuple[Vector, Info]:
        """The Moreau centre of the replies."""
        found, info = centres.moreau_centre(replies.payload, replies.weight, self.penalty, self.delta,
                                            tolerance=self.tolerance, max_iterations=self.max_iterations)
        return found, {"centre_iterations": info.iterations, "centre_residual": info.residual}


class GeometricMedian(Aggregator):
    """The geometric median by smoothed Weiszfeld steps. Source: RFA (Pillutla et al.).

    Attributes:
        smoothing: distances below it count as it.
        tolerance: of the residual.
        max_iterations: the cap.
    """

    smoothing: ArrayLike = 1e-6
    tolerance: float = eqx.field(static=True, default=1e-6)
    max_iterations: int = eqx.field(static=True, default=1000)
    linear: ClassVar[bool] = False
    breakdown: ClassVar[float] = 0.5

    def __check_init__(self) -> None:
        check_range(self, "(0, inf)", smoothing=self.smoothing)

    def __call__(self, replies: Replies, centre: Vector | None = None) -> tuple[Vector, Info]:
        """The weighted geometric median."""
        found, info = centres.geometric_median(replies.payload, replies.weight, smoothing=self.smoothing,
                                               tolerance=self.tolerance, max_iterations=self.max_iterations)
        return found, {"centre_iterations": info.iterations, "centre_residual": info.residual}


class CoordinateMedian(Aggregator):
    """The weighted median of each coordinate. Source: Yin et al."""

    linear: ClassVar[bool] = False
    breakdown: ClassVar[float] = 0.5

    def __call__(self, replies: Replies, centre: Vector | None = None) -> tuple[Vector, Info]:
        """The coordinate-wise median."""
        return centres.coordinate_median(replies.payload, replies.weight), {
            "centre_iterations": jnp.array(0), "centre_residual": jnp.zeros(())}
