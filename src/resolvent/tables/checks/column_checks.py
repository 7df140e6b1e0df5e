"""Checks of single columns: missing values, identifiers, spellings, constant columns, units."""

import re
from collections.abc import Iterator

import numpy as np

from resolvent.errors import count_of, quote
from resolvent.tables.cells import LEADING_ZERO, NUMBER, yaml_name
from resolvent.tables.checks.finding import Finding, examples
from resolvent.tables.checks.table_view import TableColumn, TableView
from resolvent.tables.checks.units import spread_of, unit_findings
from resolvent.tables.columns import MAX_CATEGORIES, MIN_IDENTIFIER_ROWS, excluding

_MANY_MISSING = 0.5  # a share of the rows
_MIN_CONSTANT_PROBABILITY = 1e-4
_MIN_NUMBERS = 11  # different numbers of a column whose unit is compared
_MIN_SITE_ROWS = 10
_CODE = re.compile(r"-[1-9]|-?(7+|8+|9+)")
_FEW_MONTHS = 5  # more different numbers such as 202412 are months
_FEW_ZEROS = 0.05  # a share of the rows
_CERTAIN = 100  # numbers such as 999 are codes even in one row
_MIN_SPREAD = 0.05  # standard deviations between the quartiles


def check_column(view: TableView, column: TableColumn, missing: str, min_level_rows: int) -> Iterator[Finding]:
    """Findings about a feature.

    Args:
        missing: what the run does with missing values.
        min_level_rows: levels with fewer rows are joined; 0: none.
    """
    yield from _missing_values(view, column, missing)
    if _are_days(column):
        yield Finding("dates", "warning", f"column {quote(column.name)} looks like dates, such as "
                      f"{column.values[0]:.0f}", "write them as 2024-12-31, and set dates: days; or "
                      f"{excluding(column.name)}", column.name)
    elif is_identifier(column):
        kind = "texts" if column.is_text else "whole numbers"
        adverb = "" if len(column.values) == (column.codes >= 0).sum() else "nearly "
        reason = (f"its {len(column.values)} {kind} {adverb}all differ" if column.is_exact else
                  "its whole numbers have more digits than a floating number holds")
        yield Finding("identifier", "warning", f"column {quote(column.name)} looks like an identifier: {reason}",
                      excluding(column.name), column.name, value=len(column.values))
    else:
        codes = [*missing_codes(column)]
        yield from codes or _far_values(view, column)
    if len(column.values) <= 1:
        example = f", {column.text(0)}" if len(column.values) else ""
        yield Finding("constant", "warning", f"column {quote(column.name)} has one value{example}, from which "
                      "nothing can be learned", excluding(column.name), column.name)
    else:
        yield from _constant_at_sites(view, column)
    if column.is_text and min_level_rows:
        yield from _joined_levels(column, min_level_rows)


def is_identifier(column: TableColumn) -> bool:
    """Whether a column has (nearly) another text, or another whole number, in every row, as identifiers have.

    Whole numbers that do not all differ must be dense, such as running numbers with repetitions.
    """
    if not column.is_exact:
        return True
    rows, values = int((column.codes >= 0).sum()), column.values
    used = values if column.is_text else values[~np.isnan(values)]
    if rows < MIN_IDENTIFIER_ROWS or len(used) < 0.95 * rows:
        return False
    if column.is_text:
        return True
    return bool((used == np.floor(used)).all() and (len(used) == rows or np.ptp(used) < 2 * rows))


def _are_days(column: TableColumn) -> bool:
    """Whether all numbers are dates such as 20241231, or 202412, whose differences are no numbers of days or months."""
    import pandas as pd

    def are_all(smallest: float, form: str) -> bool:
        return bool(((column.values > smallest) & (column.values < 2.2e7 / 1.9e7 * smallest)).all() and pd.to_datetime(
            pd.Series([f"{value:.15g}" for value in column.values]), format=form, errors="coerce").notna().all())

    return not column.is_text and ((len(column.values) > 1 and are_all(1.9e7, "%Y%m%d"))
                                   or (len(column.values) > _FEW_MONTHS and are_all(1.9e5, "%Y%m")))


def leading_zeros(view: TableView, column: TableColumn) -> Iterator[Finding]:
    """A column of numbers that is text because few of them have a leading zero, as codes and slips of the pen have."""
    if not column.is_text or not all(map(NUMBER.fullmatch, column.values)):
        return
    rows = np.flatnonzero(np.append([LEADING_ZERO.fullmatch(value) is not None for value in column.values],
                                    False)[column.codes])
    if 0 < len(rows) <= _FEW_ZEROS * len(column.codes):
        yield Finding("leading zeros", "warning", f"column {quote(column.name)} is text with {len(column.values)} "
                      f"levels because of the leading zero of {column.text(column.codes[rows[0]])} in row "
                      f"{view.index[rows[0]]}", f"text: [{yaml_name(column.name)}] if its values are codes, or write "
                      "the numbers without it", column.name, value=len(rows))


def missing_codes(column: TableColumn) -> Iterator[Finding]:
    """Numbers such as -1, 99 or 999 far outside the others, as codes of missing values are; also classes of a label.

    A code of less than three digits occurs at least twice. The distance of a code from the others is more than twice
    the largest gap among them.
    """
    if column.is_text and not all(map(NUMBER.fullmatch, column.values)):
        return
    values, counts = column.values.astype(float), column.counts
    is_code = np.array([_CODE.fullmatch(f"{value:g}") is not None for value in values], bool)
    is_code &= (counts > 1) | (np.abs(values) >= _CERTAIN)
    others = np.sort(values[~is_code & np.isfinite(values)])
    if len(others) < 2 or not is_code.any():
        return
    gap = 2 * np.diff(others).max()
    codes = np.sort(values[is_code])
    for code in codes[np.argsort(np.maximum(others[0] - codes, codes - others[-1]))]:
        if others[0] - gap <= code <= others[-1] + gap:
            others = np.sort(np.append(others, code))  # an ordinary value, to which the next one can be near
            continue
        rows = int(counts[values == code].sum())
        yield Finding("missing code", "warning", f"column {quote(column.name)} has {code:g} in "
                      f"{count_of(rows, 'row')}, and its other values are from {others[0]:g} to "
                      f"{others[-1]:g}: it may be a code for a missing value",
                      f"missing: {{{yaml_name(column.name)}: [{code:g}]}}, unless it is a value", column.name,
                      value=float(code))


def _far_values(view: TableView, column: TableColumn) -> Iterator[Finding]:
    """Values so far from the others that these hardly differ when the column is scaled by its standard deviation."""
    if column.is_text or len(column.values) < _MIN_NUMBERS:
        return
    numbers = np.where(np.isfinite(column.numbers), column.numbers, np.nan)
    low, middle, high = np.nanquantile(numbers, (0.25, 0.5, 0.75))
    deviation = float(np.nanstd(numbers))
    if not 0 < high - low < _MIN_SPREAD * deviation:
        return
    distance = np.nan_to_num(np.abs(numbers - middle))
    farthest, count = int(np.argmax(distance)), int((distance > deviation).sum())
    yield Finding("far values", "warning", f"column {quote(column.name)} has {count_of(count, 'value')} so far from "
                  f"the others that these hardly differ after scaling: {numbers[farthest]:g} in row "
                  f"{view.index[farthest]}{'' if count == 1 else ', ...'}", "correct them, or leave the rows out; if "
                  "they are right, use the logarithm of the column", column.name, value=float(numbers[farthest]))


def _missing_values(view: TableView, column: TableColumn, missing: str) -> Iterator[Finding]:
    gaps = column.missing
    if not gaps.any():
        return
    share, title = float(gaps.mean()), f"column {quote(column.name)}"
    by_site = np.bincount(view.site_of[gaps], minlength=len(view.sites))
    rows = np.bincount(view.site_of, minlength=len(view.sites))
    with_gaps = int((by_site > 0).sum())
    message = (f"{title} has {count_of(int(gaps.sum()), 'missing value')} ({share:.1%} of the rows, at {with_gaps} of "
               f"{len(view.sites)} sites; first in row {view.index[int(np.argmax(gaps))]})")
    if gaps[view.split_of == 0].all():
        yield Finding("missing", "error", f"{title} has no value in any training row", excluding(column.name),
                      column.name, value=share)
        return
    if missing == "refuse":
        yield Finding("missing", "error", message, "missing: impute, or missing: indicate, or "
                      f"{excluding(column.name)}", column.name, value=share)
    else:
        is_many = share > _MANY_MISSING
        yield Finding("missing", "warning" if is_many else "note", message,
                      excluding(column.name) if is_many else f"missing: {missing} fills them in", column.name,
                      value=share)
    for k in np.flatnonzero(by_site):
        others = (by_site.sum() - by_site[k]) / max(rows.sum() - rows[k], 1)
        if len(view.sites) > 1 and by_site[k] > _MANY_MISSING * rows[k] and others < _MANY_MISSING / 2:
            all_rows = "all" if by_site[k] == rows[k] else f"{by_site[k] / rows[k]:.0%} of the"
            yield Finding("missing at a site", "warning", f"{title} is missing in {all_rows} {rows[k]} rows of "
                          f"{quote(view.sites[k])}, and in {others:.0%} of those of the others",
                          f"name the site's column like the others', or {excluding(column.name)}", column.name,
                          view.sites[k], float(by_site[k] / rows[k]))


def _constant_at_sites(view: TableView, column: TableColumn) -> Iterator[Finding]:
    """The sites at which a column has one value, though this is improbable with the values of all rows."""
    if len(view.sites) < 2:
        return
    for k, (rows, low, high) in enumerate(_ranges(view, column)):
        if rows < _MIN_SITE_ROWS or low != high:
            continue
        if (column.counts[low] / column.counts.sum()) ** rows < _MIN_CONSTANT_PROBABILITY:
            value = column.text(low)
            yield Finding("constant at a site", "warning", f"column {quote(column.name)} has one value, "
                          f"{value}, in all rows of {quote(view.sites[k])}",
                          f"check the column at this site, or {excluding(column.name)}", column.name, view.sites[k],
                          value)


def _ranges(view: TableView, column: TableColumn) -> Iterator[tuple[int, int, int]]:
    """Of each site: the number of rows with a value, and the smallest and the largest code."""
    present = column.codes >= 0
    sites, codes = view.site_of[present], column.codes[present]
    low = np.full(len(view.sites), len(column.values))
    high = np.full(len(view.sites), -1)
    np.minimum.at(low, sites, codes)
    np.maximum.at(high, sites, codes)
    yield from zip(np.bincount(sites, minlength=len(view.sites)).tolist(), low.tolist(), high.tolist(), strict=True)


def _joined_levels(column: TableColumn, min_rows: int) -> Iterator[Finding]:
    counts = column.counts
    common = int((counts >= min_rows).sum())
    if common == 0 or common >= MAX_CATEGORIES:
        change = "a smaller" if common == 0 else "a larger"
        yield Finding("levels", "error", f"column {quote(column.name)} has {common} levels in at least {min_rows} "
                      f"rows, 1 to {MAX_CATEGORIES - 1} are possible", f"{change} rare_count, or "
                      f"{excluding(column.name)}", column.name, value=common)
    elif common < len(column.values):
        joined = column.values[counts < min_rows]
        yield Finding("levels", "note", f"column {quote(column.name)}: {len(joined)} of {len(column.values)} levels "
                      f"have fewer than {min_rows} rows and become 'other' ({examples(joined.tolist())})",
                      "rare_count sets the number", column.name, value=len(joined))


def check_units(view: TableView) -> Iterator[Finding]:
    """Sites whose numbers are those of the other sites times a factor, or plus an offset."""
    order = np.argsort(view.site_of, kind="stable")
    starts = np.cumsum(np.bincount(view.site_of, minlength=len(view.sites)))[:-1]
    columns = [column for column in view.features.values()
               if not column.is_text and len(column.values) >= _MIN_NUMBERS and not is_identifier(column)]
    labels = [] if view.label is None or view.is_classification else [view.label]
    parts = {column.name: np.split(column.numbers[order], starts) for column in [*columns, *labels]}
    yield from unit_findings({name: {site: spread_of(part[~np.isnan(part)]) for site, part in zip(
        view.sites, of_sites, strict=True)} for name, of_sites in parts.items()}, [label.name for label in labels])
