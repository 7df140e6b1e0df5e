"""Curves, and what a rule is: a function from one seed's curves to numbers that are as claimed, or not."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["RULES", "Curve", "Item", "Panels", "Rule", "between", "name_of", "quotient", "rule"]


@dataclass(frozen=True)
class Curve:
    """The measurements of one method in one run.

    Attributes:
        rounds: [T] the rounds.
        values: [T] the values; infinite after the method diverged.
        point: the parameters of the sweep that the method stands for; with ``method``, if the sweep has several.
        axes: [T] each, cumulated simulated seconds and bytes, if a clock measured them.
        parties: [N] the last value of each party, if the values are means over parties.
        growth: [N, days] of a back-test, the factor by which each party's wealth grows on each day.
    """

    rounds: NDArray[np.int64]
    values: NDArray[np.float64]
    point: Mapping[str, Any] = field(default_factory=dict)
    axes: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    parties: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    growth: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))

    @property
    def final(self) -> float:
        """The value at the last evaluation, by which methods are compared."""
        return float(self.values[-1])

    @property
    def relative(self) -> float:
        """The last value divided by the first."""
        return float(self.values[-1] / self.values[0])

    def at(self, round_: int) -> float:
        """The value at a round, or at the last evaluated round before it."""
        return float(self.values[np.searchsorted(self.rounds, round_, side="right") - 1])

    def rounds_to(self, target: float, by: str = "rounds") -> float:
        """The first round, or point of another axis, with a value of at most ``target``; infinite if there is none."""
        axis = self.rounds if by == "rounds" else self.axes[by]
        reached = axis[self.values <= target]
        return float(reached[0]) if len(reached) else float("inf")

    def late_mean(self, since: float) -> float:
        """The mean of the values after the share ``since`` of the rounds."""
        return float(np.mean(self._late_values(since)))

    def fluctuation(self, since: float = 0.0) -> float:
        """The standard deviation of the changes between evaluations after the share ``since`` of the rounds."""
        return float(np.std(np.diff(self._late_values(since))))

    def _late_values(self, since: float) -> NDArray[np.float64]:
        return np.asarray(self.values[self.rounds >= since * self.rounds[-1]])


Panels = Mapping[str, Mapping[str, Curve]]  # title -> label -> curve
Rule = Callable[..., list["Item"]]
RULES: dict[str, Rule] = {}


def rule(function: Rule) -> Rule:
    """Register a function as a rule that claims may name."""
    RULES[function.__name__] = function
    return function


@dataclass(frozen=True)
class Item:
    """One number that a claim is about.

    Attributes:
        name: what the number is.
        value: the number.
        holds: whether it is as claimed.
    """

    name: str
    value: float
    holds: bool


def quotient(a: float, b: float) -> float:
    """a / b for nonnegative numbers, with x/0 = inf, 0/0 = 1, and inf if a is not finite."""
    if not np.isfinite(a):
        return float("inf")
    return a / b if b > 0 else float("inf") if a > 0 else 1.0


def name_of(panels: Panels, title: str, method: str) -> str:
    """The method, with its panel if there are several."""
    return method if len(panels) == 1 else f"{title}: {method}"


def between(values: Mapping[str, float], at_least: float = -np.inf, at_most: float = np.inf) -> list[Item]:
    """An item for each value, which holds if the value is between the bounds."""
    return [Item(name, value, bool(at_least <= value <= at_most)) for name, value in values.items()]
