"""Curves, and what a rule is: a function from one seed's curves to numbers that are as claimed, or not."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


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
        number: what is read from the curve instead of its last value, see ``curve_reading``.
    """

    rounds: NDArray[np.int64]
    values: NDArray[np.float64]
    point: Mapping[str, Any] = field(default_factory=dict)
    axes: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    parties: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    growth: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    number: Callable[["Curve"], float] | None = None

    @property
    def final(self) -> float:
        """The value at the last evaluation, or what is read instead; methods are compared by it."""
        return float(self.values[-1]) if self.number is None else self.number(self)

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


Panels = Mapping[str, Mapping[str, Curve]]  # title -> label -> curve
Rule = Callable[..., list["Item"]]
RULES: dict[str, Rule] = {}


def rule(function: Rule) -> Rule:
    """Register a function as a rule that the claims of every figure may name."""
    RULES[function.__name__] = function
    return function


@dataclass(frozen=True)
class Item:
    """One number that a claim is about.

    Attributes:
        holds: whether it is as claimed.
        parts: the numbers whose mean it is, by panel or by method; empty if it is no mean.
    """

    name: str
    value: float
    holds: bool
    parts: Mapping[str, float] = field(default_factory=dict)


def quotient(a: float, b: float) -> float:
    """a / b for nonnegative numbers, with x/0 = inf, 0/0 = 1, and inf if a is not finite."""
    if not np.isfinite(a):
        return float("inf")
    return a / b if b > 0 else float("inf") if a > 0 else 1.0


def name_of(panels: Panels, title: str, method: str) -> str:
    """The method, with its panel if there are several."""
    return method if len(panels) == 1 else f"{title}: {method}"


def between(values: Mapping[str, float | Mapping[str, float]], at_least: float = -np.inf,
            at_most: float = np.inf) -> list[Item]:
    """An item for each value, or for the mean of values by name, which holds if it is between the bounds."""
    items = []
    for name, of_item in values.items():
        parts = of_item if isinstance(of_item, Mapping) else {}
        value = float(np.mean([*parts.values()])) if isinstance(of_item, Mapping) else of_item
        items.append(Item(name, value, bool(at_least <= value <= at_most), parts))
    return items
