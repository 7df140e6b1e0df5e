"""How a site weighs gains and losses when it decides whether to join a federation."""

from dataclasses import dataclass

from resolvent.errors import check_range

__all__ = ["DecisionRule"]


@dataclass(frozen=True)
class DecisionRule:
    """How a site weighs gains and losses.

    Attributes:
        cost: how many times as bad a loss is as a gain of the same size, positive.
        margin: gains smaller than this make no difference; in units of the score. Default: half a point of a share, 1 %
            of the mean score of training alone otherwise.

    Raises:
        InputError: ``cost`` or ``margin`` is not positive.

    Example:
        >>> rule = rv.DecisionRule(cost=2.0)  # a loss of one point is as bad as a missed gain of two
    """

    cost: float = 1.0
    margin: float | None = None

    def __post_init__(self) -> None:
        check_range(self, "(0, inf)", cost=self.cost, margin=self.margin)
