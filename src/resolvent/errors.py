"""Errors that a person can act on."""

import difflib
from collections.abc import Callable, Iterable
from typing import Any, Literal, get_args

import jax
import numpy as np

__all__ = ["InputError", "check_range", "nearest"]


Interval = Literal["[0, inf)", "(0, inf)", "[1, inf)", "[0, 1]", "(0, 1]", "[0, 1)", "(0, 1)", "[0, 1/2)", "[0, 1/4)"]
_INSIDE: tuple[Callable[[Any], Any], ...] = (
    lambda x: x >= 0, lambda x: x > 0, lambda x: x >= 1, lambda x: (x >= 0) & (x <= 1), lambda x: (x > 0) & (x <= 1),
    lambda x: (x >= 0) & (x < 1), lambda x: (x > 0) & (x < 1), lambda x: (x >= 0) & (x < 1 / 2),
    lambda x: (x >= 0) & (x < 1 / 4))
_INTERVALS = dict(zip(get_args(Interval), _INSIDE, strict=True))


class InputError(ValueError):
    """What a person gave is wrong: the message says what, why, and what to give instead."""


def nearest(word: str, allowed: Iterable[str]) -> str:
    """The nearest of the allowed words as the end of a sentence (``; did you mean 'x'?``), or nothing."""
    found = difflib.get_close_matches(word, list(allowed), n=1, cutoff=0.5)
    return f"; did you mean {found[0]!r}?" if found else ""


def check_range(owner: object, interval: Interval, *, advice: str = "", **values: Any) -> None:
    """Refuse numbers outside an interval. Values that are no known numbers (schedules, traced values, None) pass.

    Args:
        owner: the object that has the values, or the name of the function that got them; the error names it.
        interval: the numbers that are allowed.
        advice: what to do instead, for the end of the error.
        values: numbers, or sequences and arrays of numbers, by name.

    Raises:
        ValueError: with the owner, the name, the first number outside the interval, and the interval.
    """
    title = owner if isinstance(owner, str) else type(owner).__name__
    for name, value in values.items():
        if isinstance(value, int | float | list | tuple | np.generic | np.ndarray | jax.Array) and not isinstance(
                value, jax.core.Tracer):
            numbers = np.asarray(value)
            wrong = numbers[~_INTERVALS[interval](numbers)]
            if wrong.size:
                raise ValueError(f"{title}({name}={wrong.flat[0]}) must lie in {interval}{advice and f': {advice}'}")
