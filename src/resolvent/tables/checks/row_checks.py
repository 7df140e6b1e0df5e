"""Checks of rows: equal rows within a site, at two sites, or in training and test rows; several rows of a person."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from resolvent.errors import quote
from resolvent.tables.cells import numpy_column
from resolvent.tables.checks.finding import Finding, examples
from resolvent.tables.checks.table_view import TableColumn, TableView
from resolvent.tables.columns import is_date, is_empty

if TYPE_CHECKING:
    import pandas as pd

_MIN_EXCESS = 10.0  # pairs of equal rows, as a multiple of those that independent columns would have
_MIN_PERSONS, _MAX_ROWS_OF_PERSON = 20, 20  # with several rows; rows of each on average
_SPLITS = ("training", "validation", "test")


def check_duplicates(view: TableView) -> Iterator[Finding]:
    """Findings about rows that agree in all features and in the label.

    In a table with few columns of few values, rows are equal by chance. Rows are not reported if the pairs of equal
    rows are not more than ten times those of a table with independent columns and the same values in each.
    """
    columns = {**view.features} | ({} if view.label is None else {view.label.name: view.label})
    if not view.features:
        return
    group, equal_pairs = _equal_rows(columns)
    if not equal_pairs or equal_pairs < _MIN_EXCESS * _pairs_by_chance(columns, len(view.index)):
        return
    repeated = group >= 0
    groups = int(group.max()) + 1
    sites, splits = (_count_different(group, values) for values in (view.site_of, view.split_of))
    train_and_test = _has(group, view.split_of == 0, groups) & _has(group, view.split_of == 2, groups)
    advice = "leave repetitions out; if a person has several rows, no row of theirs may be a test row"
    if train_and_test.any():
        rows = np.flatnonzero(repeated & train_and_test[group] & (view.split_of == 2))
        yield Finding("leakage", "warning", f"test rows that are also training rows: {len(rows)}, such as "
                      f"{_example(view, group, int(rows[0]))}, so that scores are too good", advice, value=len(rows))
    if (sites > 1).any():
        rows = np.flatnonzero(repeated & (sites[group] > 1))
        yield Finding("duplicates across sites", "warning", f"rows that occur at several sites: {len(rows)}, such as "
                      f"{_example(view, group, int(rows[0]))}", "leave them out at all sites but one",
                      value=len(rows))
    within = (sites == 1) & (splits == 1)
    if within.any():
        rows = np.flatnonzero(repeated & within[group])
        yield Finding("duplicates", "note", f"rows that occur several times at a site: {len(rows)}, such as rows "
                      f"{examples(view.index[group == group[rows[0]]].tolist())}", "leave repetitions out, or use the "
                      "setting weight", value=len(rows))


def check_persons(frame: "pd.DataFrame", columns: Iterable[str], site_of: NDArray[np.integer]) -> Iterator[Finding]:
    """Findings about columns whose values have several rows each, all at one site, as the numbers of persons have.

    Of the values with several rows 99 % are at one site, and by chance at most half of them would be. In the order of
    its values, a column of whole numbers must also change between the sites more than three times for each: otherwise
    the sites have different ranges of a quantity.
    """
    shares = np.bincount(site_of[site_of >= 0]) / max((site_of >= 0).sum(), 1)
    for name in columns:
        column = numpy_column(frame[name])
        is_used = ~is_empty(column) & (site_of >= 0)
        is_number = column.dtype.kind in "iuf"
        if column.dtype.kind in "bMmc" or (is_number and not (column[is_used] % 1 == 0).all()):
            continue
        try:
            codes, values = column[is_used].factorize(sort=is_number)
        except TypeError:  # values that cannot be compared, which are an error of their own
            continue
        sites, counts = site_of[is_used], np.bincount(codes)
        is_repeated = counts > 1
        persons, rows = int(is_repeated.sum()), int(counts[is_repeated].sum())
        if persons < _MIN_PERSONS or len(codes) > _MAX_ROWS_OF_PERSON * len(counts):
            continue
        of_value = np.bincount(np.unique(codes.astype(np.int64) * len(shares) + sites) // len(shares))
        by_chance = (shares[:, None] ** np.minimum(counts[is_repeated], 50)).sum(axis=0).mean()
        if (of_value[is_repeated] == 1).mean() < 0.99 or by_chance > 0.5:
            continue
        changes = np.count_nonzero(np.diff(sites[np.argsort(codes, kind="stable")]))
        is_quantity = changes <= 3 * len(shares) if is_number else is_date(column)  # or a day
        if is_quantity:
            continue
        yield Finding("persons", "warning", f"column {quote(name)} looks like the numbers of persons: {persons} of "
                      f"its {len(values)} values have {rows} rows, those of each at one site. Intervals take rows as "
                      "independent, so that they are too narrow, and a person can be in training and test rows",
                      "keep one row of each, if these rows belong together", name, value=persons)


def _equal_rows(columns: Mapping[str, TableColumn]) -> tuple[NDArray[np.integer], float]:
    """[n] the number of the group of equal rows of each row, -1 if there is no equal row; and the pairs of equal rows.

    Rows are compared by a 64-bit hash: among a million rows, two different ones agree with a probability of 3e-8.
    """
    import pandas as pd

    key = np.zeros(len(next(iter(columns.values())).codes), np.uint64)
    for column in columns.values():
        key = _mix(key ^ _mix(column.codes.astype(np.int64).view(np.uint64)))
    codes, _ = pd.factorize(key)
    counts = np.bincount(codes)
    number = np.where(counts > 1, np.cumsum(counts > 1) - 1, -1)
    return number[codes], float((counts * (counts - 1.0) / 2).sum())


def _mix(key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A hash of 64-bit integers.

    References:
        Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014 (SplitMix64).
    """
    key = key + np.uint64(0x9E3779B97F4A7C15)
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = key ^ (key >> np.uint64(31))
    return mixed


def _pairs_by_chance(columns: Mapping[str, TableColumn], rows: int) -> float:
    """Expected number of pairs of equal rows if the columns were independent."""
    logarithm = 0.0
    for column in columns.values():
        counts = np.append(column.counts, column.missing.sum()).astype(float)
        logarithm += np.log(max((counts * (counts - 1)).sum() / max(rows * (rows - 1.0), 1.0), 1 / (rows + 1.0)**2))
    return float(rows * (rows - 1.0) / 2 * np.exp(logarithm))


def _has(group: NDArray[np.integer], rows: NDArray[np.bool_], groups: int) -> NDArray[np.bool_]:
    """[groups] whether a group has one of these rows."""
    return np.bincount(group[rows & (group >= 0)], minlength=groups) > 0


def _count_different(group: NDArray[np.integer], values: NDArray[np.integer]) -> NDArray[np.integer]:
    """[groups] the number of different values in the rows of each group."""
    pairs = np.unique(np.stack([group[group >= 0], values[group >= 0]]), axis=1)
    return np.bincount(pairs[0])


def _example(view: TableView, group: NDArray[np.integer], row: int) -> str:
    rows = np.flatnonzero(group == group[row])
    is_other = (view.split_of[rows] != view.split_of[row]) | (view.site_of[rows] != view.site_of[row])
    other = int(rows[is_other][0])
    first, second = (f"row {view.index[r]} ({view.sites[view.site_of[r]]}, {_SPLITS[view.split_of[r]]})"
                     for r in sorted((row, other)))
    return f"{first} and {second}"
