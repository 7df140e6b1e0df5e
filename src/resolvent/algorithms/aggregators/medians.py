"""Aggregators that outliers hardly move: medians, and the centre that belongs to a penalty."""

from typing import Annotated, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float
from typing_extensions import override

from resolvent.algorithms.aggregators.aggregator import MAX_SHARE, Aggregator
from resolvent.algorithms.algorithm import Info, Replies
from resolvent.math import centres, tree
from resolvent.math.centre_searches import MoreauSearch, SignSearch
from resolvent.math.penalties import L2Norm, Penalty
from resolvent.math.tree import Vector


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
