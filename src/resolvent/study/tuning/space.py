"""The values of hyperparameters that a search tries."""

import itertools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from resolvent.errors import InputError, alternatives, quote

__all__ = ["Choices", "Point", "Range", "Space", "combinations", "draw", "read_space", "space_of"]

Point: TypeAlias = dict[str, Any]  # parameter -> value
_RANGE_KEYS = ("low", "high", "scale", "whole")
_MAX_COMBINATIONS = 10_000


class Choices(NamedTuple):
    """A finite set of values.

    Attributes:
        values: the values, at least one.
    """

    values: tuple[Any, ...]


class Range(NamedTuple):
    """The numbers of a closed interval [low, high].

    Attributes:
        low: the smallest number.
        high: the largest number.
        is_log: whether the logarithm of a drawn number is uniform; otherwise the number is.
        is_whole: whether only integers are drawn.
    """

    low: float
    high: float
    is_log: bool
    is_whole: bool


Space: TypeAlias = dict[str, Choices | Range]


def space_of(over: Mapping[str, Mapping[str, Any]], label: str) -> Space:
    """The space of a method: the parameters of ``*``, and its own, which replace those."""
    return {name: read_space(values, f"over.{label}.{name}")
            for name, values in {**over.get("*", {}), **over.get(label, {})}.items()}


def read_space(values: Any, path: str) -> Choices | Range:
    """Read the values of a parameter from the settings of a file or a call.

    >>> read_space({"low": 0.01, "high": 1, "scale": "log"}, "mu")
    Range(low=0.01, high=1.0, is_log=True, is_whole=False)

    Args:
        values: a list, or a mapping with the keys low, high and perhaps scale and whole.
        path: path of the parameter, for error messages.

    Raises:
        InputError: the values are neither.
    """
    if isinstance(values, list | tuple | np.ndarray):
        if not len(values):
            raise InputError(f"{path}: the list is empty: give at least one value")
        return Choices(tuple(v.item() if isinstance(v, np.generic) else v for v in values))
    if not isinstance(values, Mapping):
        raise InputError(f"{path}: {quote(values)} is neither a list nor a range: give [0.01, 0.1] or {{low: 0.01, "
                         "high: 0.1, scale: log}")
    for key in values:
        if key not in _RANGE_KEYS:
            raise InputError(f"{path}: a range has no key {quote(key)}"
                             f"{alternatives(str(key), _RANGE_KEYS, 'allowed:')}")
    low, high = values.get("low"), values.get("high")
    scale, whole = values.get("scale", "linear"), values.get("whole", False)
    are_numbers = all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in (low, high))
    if not are_numbers or not low < high:  # type: ignore[operator]
        raise InputError(f"{path}: low={quote(low)} and high={quote(high)} must be numbers, low less than high")
    if scale not in ("linear", "log"):
        raise InputError(f"{path}: scale={quote(scale)} must be linear or log")
    if scale == "log" and not low > 0:  # type: ignore[operator]
        raise InputError(f"{path}: low={low} must be positive with scale: log")
    return Range(float(low), float(high), scale == "log", bool(whole))  # type: ignore[arg-type]


def combinations(space: Space, path: str) -> list[Point]:
    """Every combination of the values, in the order of the parameters; the last one varies fastest.

    Raises:
        InputError: a parameter has a range, or there are more than 10,000 combinations.
    """
    for name, values in space.items():
        if isinstance(values, Range):
            raise InputError(f"{path}.{name}: a grid needs a list of values, and this is a range: list them, or use "
                             "the strategy random")
    lists = [values.values for values in space.values() if isinstance(values, Choices)]
    if (count := math.prod(map(len, lists))) > _MAX_COMBINATIONS:
        raise InputError(f"{path}: the grid has {count} combinations (at most {_MAX_COMBINATIONS}): list fewer values, "
                         "or use the strategy random")
    return [dict(zip(space, point, strict=True)) for point in itertools.product(*lists)]


def draw(space: Space, seed: int, number: int) -> Point:
    """The point of trial ``number``; it depends only on the seed, the number and the space.

    Numbers are rounded to 4 significant digits, so that a file can state exactly the values that were tried.
    """
    generator = np.random.default_rng([seed, number])
    point: Point = {}
    for name, values in space.items():
        share = float(generator.random())
        if isinstance(values, Choices):
            point[name] = values.values[int(share * len(values.values))]
            continue
        low, high = (math.log(v) if values.is_log else v for v in (values.low, values.high))
        if values.is_whole and not values.is_log:
            point[name] = min(int(values.low + share * (values.high - values.low + 1)), int(values.high))
            continue
        value = low + share * (high - low)
        value = math.exp(value) if values.is_log else value
        point[name] = (round(value) if values.is_whole
                       else min(max(float(f"{value:.4g}"), values.low), values.high))
    return point
