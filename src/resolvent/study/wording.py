"""Phrases that several findings share."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from resolvent.study.metrics import format_value

if TYPE_CHECKING:
    from resolvent.problem.metrics.intervals import Interval

__all__ = ["count_of", "enumerate_names", "format_gain", "format_interval", "format_signed"]


def enumerate_names(names: Sequence[str]) -> str:
    """``A``, ``A and B``, ``A, B and C``."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def count_of(count: int, noun: str) -> str:
    """``1 round``, ``2 rounds``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def format_signed(value: float, score: str, *, unit: bool = True) -> str:
    """A difference of scores: in percentage points with one decimal, or with three digits.

    >>> format_signed(0.0123, "accuracy"), format_signed(-1.5, "loss")
    ('+1.2 points', '−1.5')
    """
    if math.isnan(value):
        return "–"
    if format_value(1.0, score).endswith("%"):
        text = f"{100 * value:+.1f}{' points' if unit else ''}"
    else:
        text = f"{value:+.3g}"
    return text.replace("-", "−").replace("inf", "∞")


def format_gain(gain: "Interval", score: str) -> str:
    """A gain with its interval, such as ``+1.2 points [−0.3, +2.7]``."""
    ends = ", ".join(format_signed(end, score, unit=False) for end in gain[1:])
    return format_signed(gain.value, score) + ("" if math.isnan(gain.low) else f" [{ends}]")


def format_interval(interval: "Interval", score: str) -> str:
    """A score with its interval, such as ``92.0% [88.1%, 95.0%]``."""
    value = "–" if math.isnan(interval.value) else format_value(interval.value, score)
    return value if math.isnan(interval.low) else (
        f"{value} [{format_value(interval.low, score)}, {format_value(interval.high, score)}]")
