"""The probability from which on a class is predicted, for stated costs, a sensitivity or a specificity."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.errors import InputError

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Goal:
    """What a threshold is chosen for: the smallest cost, or a sensitivity, or a specificity.

    Attributes:
        cost_false_negative: cost of a row of the positive class that is predicted as the other class.
        cost_false_positive: cost of a row of the other class that is predicted as positive.
        sensitivity: the share of the positive rows that must be predicted as positive.
        specificity: the share of the other rows that must be predicted as the other class.

    Raises:
        InputError: not exactly one of costs, sensitivity and specificity is stated, or a number is outside its range.

    Example:
        >>> from resolvent.predict.threshold import Goal
        >>> print(Goal(cost_false_negative=5, cost_false_positive=1))
        smallest cost, 5 for a false negative and 1 for a false positive
    """

    cost_false_negative: float | None = None
    cost_false_positive: float | None = None
    sensitivity: float | None = None
    specificity: float | None = None

    def __post_init__(self) -> None:
        stated = [self.has_cost, self.sensitivity is not None, self.specificity is not None]
        if sum(stated) != 1:
            raise InputError("a threshold is for costs, or for a sensitivity, or for a specificity: state one of them")
        if self.has_cost:
            for name in ("cost_false_negative", "cost_false_positive"):
                cost = getattr(self, name)
                if cost is None or not (np.isfinite(cost) and cost > 0):
                    raise InputError(f"{name}={cost} must be a positive number: state both costs, such as 5 and 1")
        for name in ("sensitivity", "specificity"):
            share = getattr(self, name)
            if share is not None and not 0 < share <= 1:
                raise InputError(f"{name}={share} must lie above 0, and at most at 1, such as 0.9")

    @property
    def has_cost(self) -> bool:
        """Whether the goal is the smallest cost."""
        return self.cost_false_negative is not None or self.cost_false_positive is not None

    def __str__(self) -> str:
        if self.has_cost:
            return (f"smallest cost, {self.cost_false_negative:g} for a false negative and "
                    f"{self.cost_false_positive:g} for a false positive")
        name = "sensitivity" if self.sensitivity is not None else "specificity"
        return f"{name} of at least {getattr(self, name):.3g}"


@dataclass(frozen=True)
class Threshold:
    """A class is predicted from a probability on.

    Attributes:
        positive: the class.
        value: the smallest probability with which it is predicted; above 1 if it is never predicted.
        goal: what the threshold was chosen for.
    """

    positive: str
    value: float
    goal: Goal

    def __str__(self) -> str:
        return f"{self.positive} from a probability of {self.value:.3g} on ({self.goal})"

    def is_positive(self, probabilities: NDArray[Any]) -> NDArray[np.bool_]:
        """[n] whether the class is predicted.

        Args:
            probabilities: [n] the probability of the class.
        """
        return np.asarray(probabilities.astype(np.float64) >= self.value)


class _Cuts(NamedTuple):
    """The ways in which rows can be divided by a threshold: cut i predicts the rows from the i-th probability on.

    Attributes:
        low: [m] the largest probability that is below the cut.
        high: [m] the smallest probability that is above the cut.
        missed: [m] weight of the positive rows below the cut.
        false: [m] weight of the other rows above the cut.
    """

    low: Array
    high: Array
    missed: Array
    false: Array

    @classmethod
    def of(cls, probabilities: Array, is_positive: NDArray[np.bool_], weights: Array) -> "_Cuts":
        distinct, number = np.unique(probabilities, return_inverse=True)
        positive, other = (np.bincount(number, weights * part, minlength=len(distinct))
                           for part in (is_positive, ~is_positive))
        below = np.concatenate([[0.0], np.cumsum(positive)])
        above = np.concatenate([np.cumsum(other[::-1])[::-1], [0.0]])
        never = np.nextafter(1.0, 2.0)
        return cls(np.concatenate([[0.0], distinct]), np.concatenate([distinct, [never]]), below, above)

    def value(self, i: int, preferred: float | None = None) -> float:
        """A threshold of cut i: the preferred one if it makes this cut, otherwise the middle."""
        low, high = float(self.low[i]), float(self.high[i])
        if i == 0:  # every row is predicted as positive
            return min(preferred, high) if preferred is not None else 0.0
        if i == len(self.low) - 1 and low >= 1:
            return high
        if preferred is not None and low < preferred <= high:
            return preferred
        middle = (low + min(high, 1.0)) / 2
        return middle if low < middle <= high else high


def choose_threshold(probabilities: NDArray[Any], is_positive: NDArray[np.bool_], goal: Goal,
                     weights: Array | None = None) -> float:
    """The probability from which on the positive class is predicted.

    For costs it minimises the cost of the rows. Of several cuts with the smallest cost it is the one nearest to
    c = cost_fp / (cost_fp + cost_fn), which is optimal if the probabilities are exact; it is c itself if that is one of
    them. For a sensitivity it is the largest threshold that reaches it on the rows, for a specificity the smallest.

    Args:
        probabilities: [n] the probability of the positive class.
        is_positive: [n] whether a row is of this class.
        goal: what the threshold is for.
        weights: [n] weights of the rows; None: 1.

    Raises:
        InputError: a sensitivity is stated and no row is positive, or a specificity and no row is not.

    References:
        Elkan: The Foundations of Cost-Sensitive Learning, IJCAI 2001, (2).
    """
    weights = np.ones(len(is_positive)) if weights is None else weights
    cuts = _Cuts.of(probabilities.astype(np.float64), is_positive, weights)
    if goal.has_cost:
        assert goal.cost_false_negative is not None
        assert goal.cost_false_positive is not None
        exact = goal.cost_false_positive / (goal.cost_false_positive + goal.cost_false_negative)
        cost = goal.cost_false_negative * cuts.missed + goal.cost_false_positive * cuts.false
        best = np.flatnonzero(cost <= cost.min() + 1e-9 * max(float(cost.max()), 1e-300))
        distance = np.maximum(np.maximum(cuts.low[best] - exact, exact - cuts.high[best]), 0)
        return cuts.value(int(best[np.argmin(distance)]), exact)
    if goal.sensitivity is not None:
        return _by_share(cuts, 1 - cuts.missed / max(float(cuts.missed[-1]), 1e-300), goal.sensitivity,
                         float(cuts.missed[-1]), "sensitivity", is_largest=True)
    assert goal.specificity is not None
    return _by_share(cuts, 1 - cuts.false / max(float(cuts.false[0]), 1e-300), goal.specificity,
                     float(cuts.false[0]), "specificity", is_largest=False)


def _by_share(cuts: _Cuts, share: Array, wanted: float, total: float, name: str, *, is_largest: bool) -> float:
    """The largest or the smallest threshold whose share of rows is at least the wanted one."""
    if total <= 0:
        raise InputError(f"no row is of the class on which the {name} is measured")
    reached = np.flatnonzero(share >= wanted - 1e-12)
    return cuts.value(int(reached[-1 if is_largest else 0]))
