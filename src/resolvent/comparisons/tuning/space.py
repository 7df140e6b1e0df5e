"""The values of hyperparameters that a search tries."""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from resolvent.errors import InputError, alternatives, quote

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


def beyond(values: Choices | Range, chosen: Any, tried: Sequence[Any]) -> str:
    """Where a chosen number lies if it is the first or the last of those that were tried, and what to do; else "".

    Nothing is below 0, nor below the whole number 1, for rates, weights and counts.

    >>> beyond(Choices((0.1, 0.5, 1.0)), 1.0, [0.1, 0.5, 1.0])
    'the largest that was tried: search larger values too, such as up to 10'
    >>> beyond(Choices((0.0, 0.5, 1.0)), 0.0, [0.0, 0.5, 1.0])
    ''
    """
    numbers = {v for v in tried if isinstance(v, int | float) and not isinstance(v, bool)}
    if chosen not in numbers or len(numbers) == 1:
        return ""
    low, high = (values.low, values.high) if isinstance(values, Range) else (min(numbers), max(numbers))
    is_log = values.is_log if isinstance(values, Range) else 0 < low <= high / 10
    if chosen == max(numbers):
        higher = 10 * high if is_log else 2 * high - low
        return f"the largest that was tried: search larger values too, such as up to {higher:g}"
    if chosen == min(numbers) and (low < 0 or low > all(isinstance(v, int) for v in numbers)):
        lower = low / 10 if is_log else low / 2 if low > 0 else 2 * low - high
        return f"the smallest that was tried: search smaller values too, such as down to {lower:g}"
    return ""


def combinations(space: Space, path: str) -> list[Point]:
    """Every combination of the values, in the order of the parameters; the last one varies fastest."""
    for name, values in space.items():
        if isinstance(values, Range):
            raise InputError(f"{path}.{name}: a grid needs a list of values, and this is a range: list them, or use "
                             "the strategy random")
    lists = [values.values for values in space.values() if isinstance(values, Choices)]
    if (count := math.prod(map(len, lists))) > _MAX_COMBINATIONS:
        raise InputError(f"{path}: the grid has {count} combinations (at most {_MAX_COMBINATIONS}): list fewer values, "
                         "or use the strategy random")
    return [dict(zip(space, point, strict=True)) for point in itertools.product(*lists)]


def draw_combinations(space: Space, seed: int, count: int, path: str) -> list[Point]:
    """Draw ``count`` different combinations that are spread evenly over a grid, in the order of ``combinations``.

    Every value of a parameter is drawn floor or ceil(count / number of values) times, and pairs of values are spread as
    by ``draw_points``. Where that draws a combination twice, values are exchanged with other points. Of more than half
    of the grid, the combinations that are left out are drawn in this way.

    Args:
        count: number of combinations; all of them, if there are fewer.
    """
    points = combinations(space, path)
    if count >= len(points):
        return points
    sizes = [len(values.values) for values in space.values() if isinstance(values, Choices)]
    drawn = min(count, len(points) - count)
    numbers: Space = {name: Choices(tuple(range(size))) for name, size in zip(space, sizes, strict=True)}
    rng = np.random.default_rng(seed)
    rows = _exchanged([list(point.values()) for point in draw_points(numbers, seed, drawn)] if drawn else [], rng)
    chosen = {int(np.ravel_multi_index(tuple(row), sizes)) for row in rows}
    others = [i for i in rng.permutation(len(points)).tolist() if i not in chosen]
    chosen |= set(others[:drawn - len(chosen)])  # where no exchange was possible
    return [point for i, point in enumerate(points) if (i in chosen) == (drawn == count)]


def _exchanged(rows: list[list[int]], rng: np.random.Generator) -> list[list[int]]:
    """Rows that differ: equal rows exchange single values with other rows, so that each value stays as frequent."""
    count = Counter(map(tuple, rows))
    for i, row in enumerate(rows):
        exchanges = itertools.product(rng.permutation(len(rows)).tolist(), rng.permutation(len(row)).tolist())
        while count[tuple(row)] > 1 and (exchange := next(exchanges, None)) is not None:
            other, axis = rows[exchange[0]], exchange[1]
            new, new_other = row.copy(), other.copy()
            new[axis], new_other[axis] = other[axis], row[axis]
            if count[tuple(new)] or count[tuple(new_other)] or new == new_other:
                continue
            count.subtract([tuple(row), tuple(other)])
            rows[i], rows[exchange[0]], row = new, new_other, new
            count.update([tuple(new), tuple(new_other)])
    return rows


def draw_points(space: Space, seed: int, count: int) -> list[Point]:
    """Draw ``count`` points that are spread evenly: the points depend only on the space, the seed and the number.

    The range of each parameter is cut into ``count`` strata of equal size, and each stratum has one point. Every value
    of a list, and every whole number of a linear range, is drawn floor or ceil(count / number of values) times. The
    order of the strata of different parameters is that of a scrambled Sobol sequence, so that pairs of values are
    spread as well. The position inside the strata follows from the seed and the name of the parameter: methods that
    share a parameter try the same values of it.

    No sequence fills n strata for every n, so the points of a longer search are not those of a shorter one.

    Numbers are rounded to 4 significant digits, so that a file can state exactly the values that were tried.

    Args:
        count: number of points, at least 1.

    Source: Steinhaus, *One Hundred Problems in Elementary Mathematics*, 1964, problem 6 (no sequence of more than 17
    numbers fills the strata of each of its beginnings); Owen, *Randomly Permuted (t,m,s)-Nets and (t,s)-Sequences*,
    1995.
    """
    if not space:
        return [{} for _ in range(count)]
    from scipy.stats import qmc  # takes a second to import

    sequence = qmc.Sobol(len(space), scramble=True, seed=np.random.default_rng(seed))
    ranks = sequence.random_base2((count - 1).bit_length())[:count].argsort(axis=0).argsort(axis=0)
    columns = {}
    for (name, values), rank in zip(space.items(), ranks.T, strict=True):
        shift = np.random.default_rng([seed, *name.encode()]).random()
        columns[name] = [_value(values, share) for share in (rank + shift) / count]
    return [dict(zip(space, point, strict=True)) for point in zip(*columns.values(), strict=True)]


def _value(values: Choices | Range, share: float) -> Any:
    """The value at a share of the choices or of the range, in [0, 1)."""
    if isinstance(values, Choices):
        return values.values[int(share * len(values.values))]
    low, high = (math.log(v) if values.is_log else v for v in (values.low, values.high))
    if values.is_whole and not values.is_log:
        return min(int(values.low + share * (values.high - values.low + 1)), int(values.high))
    value = low + share * (high - low)
    value = math.exp(value) if values.is_log else value
    return round(value) if values.is_whole else min(max(float(f"{value:.4g}"), values.low), values.high)
