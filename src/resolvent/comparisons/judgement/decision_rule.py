"""How a site weighs gains and losses: what an experiment file says of the decision whether to join."""

from dataclasses import dataclass

from resolvent.errors import check_range

__all__ = ["DecisionRule"]

MARGIN = 0.01


@dataclass(frozen=True)
class DecisionRule:
    """How a site weighs gains and losses when it decides whether to join a federation.

    Attributes:
        cost: how many times as bad a loss is as a gain of the same size, positive.
        margin: gains and losses up to this size make no difference; in skill, or in units of the metric with
            ``decide_by``.

    Raises:
        InputError: ``cost`` or ``margin`` is not positive.

    Example:
        >>> rule = rv.DecisionRule(cost=1.0)  # a loss of one point is as bad as a missed gain of one
    """

    cost: float = 2.0
    margin: float = MARGIN

    def __post_init__(self) -> None:
        check_range(self, "(0, inf)", cost=self.cost, margin=self.margin)
