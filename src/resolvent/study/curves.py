"""The curves that claims speak of, and what a rule is: from one seed's curves, numbers that are as claimed or not."""


from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["RULES", "Curve", "Item", "Rule", "World", "over", "rule", "titled"]


@dataclass(frozen=True)
class Curve:
    """What one method measured in one run.

    Attributes:
        rounds: [T] when.
        values: [T] what; infinite from where the method diverged.
        point: the parameters of a sweep that the method stands for; ``method``, where a sweep has several.
        axes: [T] each, simulated seconds and bytes until then, where a clock measured them.
    """

    rounds: NDArray[np.int64]
    values: NDArray[np.float64]
    point: Mapping[str, Any] = field(default_factory=dict)
    axes: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    @property
    def final(self) -> float:
        """The last value."""
        return float(self.values[-1])

    @property
    def relative(self) -> float:
        """The last value as a share of the first."""
        return float(self.values[-1] / self.values[0])

    def at(self, round_: int) -> float:
        """The value at a round, or at the last one before it."""
        return float(self.values[np.searchsorted(self.rounds, round_, side="right") - 1])

    def rounds_to(self, target: float) -> float:
        """The first round with a value of at most ``target``; infinite where there is none."""
        near = self.rounds[self.values <= target]
        return float(near[0]) if len(near) else float("inf")


World = Mapping[str, Mapping[str, Curve]]
Rule = Callable[..., list["Item"]]
RULES: dict[str, Rule] = {}


def rule(function: Rule) -> Rule:
    """Make a function a rule that claims may name."""
    RULES[function.__name__] = function
    return function


@dataclass(frozen=True)
class Item:
    """One number that a claim speaks of.

    Attributes:
        name: of what.
        value: the number.
        holds: whether it is as claimed.
    """

    name: str
    value: float
    holds: bool


def over(a: float, b: float) -> float:
    """The quotient, infinite where b is nothing or a is not finite; 1 where both are nothing."""
    if not np.isfinite(a):
        return float("inf")
    return a / b if b > 0 else float("inf") if a > 0 else 1.0


def titled(world: World, panel: str, method: str) -> str:
    """The method, with its panel where there are several."""
    return method if len(world) == 1 else f"{panel}: {method}"
