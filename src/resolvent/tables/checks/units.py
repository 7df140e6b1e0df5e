r"""Units and shifts: a site whose numbers are those of the other sites times a factor, or plus an offset.

Each site has three quartiles. A site is compared with the reference, of which each quartile is the (lower) median of
those of all sites, so that it is not moved by fewer than half of the sites. A column is shifted at a site if

- the middle halves, from the first to the third quartile, do not overlap, and
- the difference of the medians is significant: its standard error is that of two medians of normal samples,
  sqrt(pi / 2) s / sqrt(n) with s = (q3 - q1) / 1.349, and the level 0.01 is divided by the number of comparisons, and
- a known change of units explains the quartiles, or the middle halves do not overlap at twice their width either.

Positive numbers are compared on the log scale, on which another unit is a shift that leaves the spread as it is. The
first and the third condition are about size: patients of a site who are 10 years older than others are no finding. Two
normal distributions whose middle halves do not overlap are at least 1.35 standard deviations apart, at twice the width
2.7.

Sites of a federation know the mean and the deviation of each other's columns and no quartiles. They are compared by the
quartiles of the normal distribution with this mean and deviation.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from statistics import median_low
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.errors import InputError, quote
from resolvent.tables.checks.finding import Finding

_LEVEL = 0.01
_MIN_ROWS = 8
_QUARTILE = 0.6744897501960817  # of the standard normal distribution
_ROUNDING = 1e-12
_MAX_MISFIT = 2.5  # standard errors by which quartiles may differ from those that a unit predicts


class Spread(NamedTuple):
    """The quartiles of a column at a site.

    Attributes:
        rows: number of rows with a value.
        low: first quartile.
        middle: median.
        high: third quartile.
    """

    rows: int
    low: float
    middle: float
    high: float


class Unit(NamedTuple):
    """A change of units, x -> factor x + offset, and its name."""

    factor: float
    offset: float
    name: str


class Shift(NamedTuple):
    """A column that is shifted at a site.

    Attributes:
        factor: ratio of the site's median to that of the others; NaN if they have different signs.
        is_offset: whether it is an offset and not a factor: by the likely change of units, or by the spread.
        unit: the likely change of units; None if none fits.
    """

    column: str
    site: str
    factor: float
    offset: float
    is_offset: bool
    unit: Unit | None
    medians: tuple[float, float]


def _both_ways(factor: float, name: str, inverse: str) -> tuple[Unit, Unit]:
    return Unit(factor, 0.0, name), Unit(1 / factor, 0.0, inverse)


_FACTORS: tuple[Unit, ...] = (
    *_both_ways(2.20462, "pounds for kilograms", "kilograms for pounds"),
    *_both_ways(2.54, "centimetres for inches", "inches for centimetres"),
    *_both_ways(3.28084, "feet for metres", "metres for feet"),
    *_both_ways(12, "months for years, or inches for feet", "years for months, or feet for inches"),
    *_both_ways(365.25, "days for years", "years for days"),
    *_both_ways(52.18, "weeks for years", "years for weeks"),
    *_both_ways(30.44, "days for months", "months for days"),
    *_both_ways(7, "days for weeks", "weeks for days"),
    *_both_ways(24, "hours for days", "days for hours"),
    *_both_ways(60, "minutes for hours, or seconds for minutes", "hours for minutes, or minutes for seconds"),
    *_both_ways(3600, "seconds for hours", "hours for seconds"),
    *_both_ways(10, "a unit of a tenth, such as millimetres for centimetres", "a unit of ten, such as centimetres for "
                "millimetres"),
    *_both_ways(100, "a unit of a hundredth, such as centimetres for metres", "a unit of a hundred, such as metres for "
                "centimetres"),
    *_both_ways(1000, "a unit of a thousandth, such as grams for kilograms", "a unit of a thousand, such as kilograms "
                "for grams"),
    *_both_ways(1e6, "a unit of a millionth", "a unit of a million"),
    *_both_ways(18.016, "mg/dl for mmol/l of glucose", "mmol/l for mg/dl of glucose"),
    *_both_ways(38.67, "mg/dl for mmol/l of cholesterol", "mmol/l for mg/dl of cholesterol"),
    *_both_ways(88.42, "micromol/l for mg/dl of creatinine", "mg/dl for micromol/l of creatinine"),
    *_both_ways(7.50062, "mmHg for kPa", "kPa for mmHg"),
    *_both_ways(4.184, "kilojoules for kilocalories", "kilocalories for kilojoules"),
    *_both_ways(1.609344, "kilometres for miles", "miles for kilometres"),
    *_both_ways(28.3495, "grams for ounces", "ounces for grams"),
)
# They are named if no factor fits, because with a factor and an offset more can be explained.
_OFFSETS: tuple[Unit, ...] = (
    Unit(1.8, 32.0, "degrees Fahrenheit for Celsius"), Unit(1 / 1.8, -32 / 1.8, "degrees Celsius for Fahrenheit"),
    Unit(1.0, 273.15, "kelvin for degrees Celsius"), Unit(1.0, -273.15, "degrees Celsius for kelvin"),
)


def normal_spread(rows: int, mean: float, deviation: float) -> Spread:
    """The quartiles of the normal distribution with this mean and deviation."""
    half = _QUARTILE * deviation
    return Spread(rows, mean - half, mean, mean + half)


def spread_of(numbers: NDArray[np.float64]) -> Spread:
    """The quartiles of the numbers of a site."""
    if not len(numbers):
        return Spread(0, 0.0, 0.0, 0.0)
    return Spread(len(numbers), *np.quantile(numbers, (0.25, 0.5, 0.75)).tolist())


def find_shifts(columns: Mapping[str, Mapping[str, Spread]]) -> list[Shift]:
    """The columns that are shifted at a site.

    Args:
        columns: column -> site -> its quartiles. Sites with fewer than 8 rows are not compared.
    """
    compared = {name: {site: spread for site, spread in sites.items() if spread.rows >= _MIN_ROWS}
                for name, sites in columns.items()}
    comparisons = sum(len(sites) for sites in compared.values() if len(sites) > 1)
    if not comparisons:
        return []
    from scipy.special import ndtri  # here, because its import takes 0.1 s

    bound = float(-ndtri(_LEVEL / 2 / comparisons))
    return [shift for name, sites in compared.items() if len(sites) > 1 for shift in _shifts_of(name, sites, bound)]


def _shifts_of(column: str, sites: Mapping[str, Spread], bound: float) -> list[Shift]:
    spreads = list(sites.values())
    reference = Spread(sum(s.rows for s in spreads), *(
        median_low([getattr(s, part) for s in spreads]) for part in ("low", "middle", "high")))
    shifts = []
    for site, spread in sites.items():
        others = reference._replace(rows=max(reference.rows - spread.rows, _MIN_ROWS))
        if _is_shifted(spread, others, bound):
            shift = _describe(column, site, spread, others)
            if shift.unit or not _overlap(_widened(spread), _widened(others)):
                shifts.append(shift)
    return shifts


def _is_shifted(spread: Spread, reference: Spread, bound: float) -> bool:
    if _overlap(spread, reference):
        return False
    if spread.low > 0 and reference.low > 0:
        spread, reference = _logarithm(spread), _logarithm(reference)
    error = math.hypot(_error(spread), _error(reference))
    if error <= _ROUNDING * abs(reference.middle):  # most values are equal, and nothing says how much they vary
        return False
    return abs(spread.middle - reference.middle) > bound * error


def _overlap(spread: Spread, reference: Spread) -> bool:
    """Whether the middle halves overlap."""
    return spread.low <= reference.high and reference.low <= spread.high


def _widened(spread: Spread) -> Spread:
    """The quartiles at twice their distances from the median."""
    return Spread(spread.rows, 2 * spread.low - spread.middle, spread.middle, 2 * spread.high - spread.middle)


def _logarithm(spread: Spread) -> Spread:
    return Spread(spread.rows, math.log(spread.low), math.log(spread.middle), math.log(spread.high))


def _error(spread: Spread) -> float:
    return math.sqrt(math.pi / 2 / spread.rows) * (spread.high - spread.low) / (2 * _QUARTILE)


def _describe(column: str, site: str, spread: Spread, reference: Spread) -> Shift:
    factor = spread.middle / reference.middle if spread.middle * reference.middle > 0 else math.nan
    offset = spread.middle - reference.middle
    widths = _width_ratio(spread, reference)
    unit = _likely_unit(_FACTORS, spread, reference) or _likely_unit(_OFFSETS, spread, reference)
    is_offset = unit.factor == 1 if unit else (
        math.isnan(factor) or abs(math.log(widths)) < abs(math.log(widths / factor)))
    return Shift(column, site, factor, offset, is_offset or math.isnan(factor), unit, (spread.middle, reference.middle))


def _likely_unit(units: Sequence[Unit], spread: Spread, reference: Spread) -> Unit | None:
    """The unit that fits best, if it fits."""
    misfits = [_misfit(unit, spread, reference) for unit in units]
    return units[misfits.index(min(misfits))] if min(misfits) < _MAX_MISFIT else None


def _width_ratio(spread: Spread, reference: Spread) -> float:
    """Ratio of the widths of the middle halves; 1 if a width is zero."""
    widths = spread.high - spread.low, reference.high - reference.low
    return widths[0] / widths[1] if min(widths) > 0 else 1.0


def _misfit(unit: Unit, spread: Spread, reference: Spread) -> float:
    """The larger of two deviations, of the median and of the width, in standard errors.

    The logarithm of the ratio of two widths of normal samples has the standard error 1.17 sqrt(1 / n + 1 / m).
    """
    predicted = Spread(reference.rows, *sorted(unit.factor * q + unit.offset for q in reference[1:]))
    # With many rows, what remains is the difference between the sites: a tenth of the spread.
    error = math.hypot(_error(spread), _error(predicted), 0.1 * (predicted.high - predicted.low) / (2 * _QUARTILE))
    width_error = math.hypot(1.17 * math.sqrt(1 / spread.rows + 1 / reference.rows), 0.1)
    return max(abs(spread.middle - predicted.middle) / error if error else math.inf,
               abs(math.log(_width_ratio(spread, reference) / unit.factor)) / width_error)


def unit_findings(columns: Mapping[str, Mapping[str, Spread]], labels: Collection[str] = ()) -> list[Finding]:
    """A warning for each shift that ``find_shifts`` returns, which names the likely factor.

    Args:
        labels: the columns that are labels; one that is shifted by a factor is an error, because no model fits all
            sites.
    """
    return [_finding(shift, is_label=shift.column in labels) for shift in find_shifts(columns)]


def refuse_other_units(label: str, spreads: Mapping[str, Spread]) -> None:
    """Raise an error if the label at a site is that of the others times a factor.

    Args:
        spreads: site -> the quartiles of the label.
    """
    for finding in unit_findings({label: spreads}, [label]):
        if finding.severity == "error":
            raise InputError(f"{finding.message}: {finding.advice}")


def _finding(shift: Shift, *, is_label: bool) -> Finding:
    value, direction = shift.offset, "above" if shift.offset > 0 else "below"
    size = f"{abs(value):.4g} {direction} that"
    if not shift.is_offset:
        value, size = shift.factor, f"{shift.factor:.3g} times that"
    is_error = is_label and not shift.is_offset
    title = f"the label {quote(shift.column)}" if is_label else quote(shift.column)
    message = (f"{title} at {quote(shift.site)} is {size} of the others (typical values "
               f"{shift.medians[0]:.4g} and {shift.medians[1]:.4g}){f', {shift.unit.name}?' if shift.unit else ''}")
    advice = ("convert the column at this site" if shift.unit else
              "check the unit and the meaning of the column at this site")
    if is_error:
        advice += "; if its values are right, predict their logarithm, which no factor stretches"
    return Finding("units", "error" if is_error else "warning", message, advice, shift.column, shift.site, value)
