"""What one site tells for a description: names and moments first, then counts and sums, without small cells."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from resolvent.comparisons.description.disclosure import bounds_of_counts, hidden_cells, joined_levels, told_rows
from resolvent.comparisons.description.settings import DescriptionSettings
from resolvent.comparisons.regression.agreement import is_category, kind_at_all_sites, level_names
from resolvent.data.encoded_rows import RowNames
from resolvent.errors import InputError, count_of, quote
from resolvent.tables.cells import CellRules, read_cells
from resolvent.tables.columns import check_magnitudes, is_boolean, is_empty, read_feature
from resolvent.tables.owners import natural_order

if TYPE_CHECKING:
    import pandas as pd

MISSING, OTHER, ALL, ALL_SITES = "(missing)", "(not told)", "all", "all sites"
EDGES = 200  # of a histogram
Columns = Mapping[str, NDArray[Any]]
Sums = dict[str, NDArray[np.float64]]
_STEPS = 16  # a bin is at most this part of the standard deviation, and at least half of it


def read_values(frame: "pd.DataFrame", settings: DescriptionSettings, cells: CellRules) -> Columns:
    """Column -> [rows] numbers, NaN where they are missing; or levels as text, of which missing is one."""
    columns = [*([] if settings.by is None else [settings.by]), *settings.columns]
    frame, values = read_cells(frame, columns, cells), dict[str, NDArray[Any]]()
    for name in columns:
        column = frame[name]
        if name == settings.by or is_category(column) or is_boolean(column):
            read_feature(name, column, max_levels=None)  # refuses dates
            empty = is_empty(column)
            values[name] = np.full(len(column), MISSING, object)
            values[name][~empty] = level_names(column[~empty].infer_objects())
            if taken := {*values[name][~empty]} & {MISSING, OTHER, *([ALL] if name == settings.by else [])}:
                raise InputError(f"{quote(name)} has the level {quote(min(taken))}, which a description uses for other "
                                 "rows: give the level another name")
        else:
            values[name] = read_feature(name, column, max_levels=None)
    check_magnitudes(values.items(), RowNames(frame.index))
    return values


@dataclass(frozen=True)
class ValuesReport:
    """What a site says about its rows before the sums.

    Attributes:
        levels: column of categories -> the levels of enough rows.
        numbers: column of numbers -> the count, the mean and the sum of squared deviations of the values that are told.
    """

    rows: int
    levels: Mapping[str, Sequence[str]]
    numbers: Mapping[str, Sequence[float]]

    def __post_init__(self) -> None:
        for name, moments in self.numbers.items():
            if len(moments) != 3 or not np.isfinite(moments).all():
                raise InputError(f"{quote(name)} has a value that is not finite, or too large: correct it, or leave "
                                 "the column out")


@dataclass(frozen=True)
class ValuesAgreement:
    """What all sites use.

    Attributes:
        levels: column of categories -> its levels at all sites.
        grids: column of numbers -> the number of the first edge, the width of a bin, and the mean.
        sites: site -> its number of rows.
    """

    levels: Mapping[str, Sequence[str]]
    grids: Mapping[str, Sequence[float]]
    sites: Mapping[str, int]

    def __post_init__(self) -> None:
        if not all(len(grid) == 3 and np.isfinite(grid).all() and grid[1] > 0 for grid in self.grids.values()):
            raise InputError("a grid has no width")

    def check(self, settings: DescriptionSettings) -> None:
        """Refuse an agreement that is not about the columns of the settings."""
        columns = {*settings.columns, *([] if settings.by is None else [settings.by])}
        if {*self.levels} | {*self.grids} != columns or {*self.levels} & {*self.grids} or any(
                len({*levels}) < len(levels) or OTHER in levels for levels in self.levels.values()):
            raise InputError("the agreement has other columns, or a level twice")

    def groups(self, by: str | None) -> list[str]:
        """The groups of a table: those of the column ``by``, the joined ones, and all rows."""
        return [ALL] if by is None else [*self.levels[by], OTHER, ALL]

    def edges(self, name: str) -> NDArray[np.float64]:
        """[edges] of the histogram of a column."""
        first, step, _ = self.grids[name]
        return np.asarray((first + np.arange(EDGES)) * step, np.float64)

    def shapes(self, settings: DescriptionSettings) -> dict[str, tuple[int, ...]]:
        """The shapes of ``SiteValues.sums``, whose first array has the rows of the groups."""
        groups = len(self.groups(settings.by))
        return {"": (2, groups), **{name: (2, groups, len(self.levels[name]) + 1) if name in self.levels
                                    else (5 + 2 * EDGES, groups) for name in settings.columns}}


def agree_on_values(reports: Mapping[str, ValuesReport], settings: DescriptionSettings) -> ValuesAgreement:
    """The levels of all sites, and the bins of each column of numbers."""
    if ALL_SITES in reports:
        raise InputError(f"a site is named {quote(ALL_SITES)}, which a description uses for all: give it another name")
    levels, grids = dict[str, list[str]](), dict[str, list[float]]()
    for name in [*([] if settings.by is None else [settings.by]), *settings.columns]:
        if kind_at_all_sites(name, {site: "categories" if name in report.levels else "numbers"
                                    for site, report in reports.items()}) == "categories":
            levels[name] = sorted({level for report in reports.values() for level in report.levels[name]},
                                  key=lambda level: (level == MISSING, natural_order(level)))
        else:
            moments = [report.numbers.get(name, (0.0, 0.0, 0.0)) for report in reports.values()]
            rows = math.fsum(count for count, _, _ in moments) or 1.0
            mean = math.fsum(count * mean for count, mean, _ in moments) / rows
            squares = math.fsum(s + count * (m - mean)**2 for count, m, s in moments)
            # The edges are multiples of a power of 2: those of another plan are mostly the same.
            step = 2.0**math.floor(math.log2(math.sqrt(squares / rows) / _STEPS)) if squares > 0 else 1.0
            grids[name] = [round(mean / step) - EDGES // 2, step, mean]
    return ValuesAgreement(levels, grids, {site: report.rows for site, report in reports.items()})


class SiteValues:
    """The values of one site, and what it tells about them.

    Args:
        smallest: see ``min_cell`` of ``DescriptionSettings``.

    Attributes:
        joined: column of categories -> the levels that are joined.
        told: column of numbers -> [rows] which values the sums are about.
    """

    def __init__(self, values: Columns, settings: DescriptionSettings, smallest: int, rows: int) -> None:
        self.values, self.rows, self._settings, self._smallest = values, rows, settings, smallest
        self.joined = {name: self._joined(of_rows) for name, of_rows in values.items() if of_rows.dtype == object}
        by = settings.by
        self.groups = np.full(rows, ALL, object) if by is None else _renamed(values[by], self.joined[by])
        self.told = {name: self._told(of_rows) for name, of_rows in values.items() if of_rows.dtype != object}

    def _joined(self, of_rows: NDArray[Any]) -> set[str]:
        counts = Counter(of_rows.tolist())
        marks = joined_levels(np.array([*counts.values()], np.int64), self._smallest)
        return {level for level, is_joined in zip(counts, marks, strict=True) if is_joined}

    def _told(self, of_rows: NDArray[Any]) -> NDArray[np.bool_]:
        told = np.zeros(self.rows, bool)
        for group in np.unique(self.groups.astype(str)):
            places = np.flatnonzero(self.groups == group)
            told[places] = told_rows(of_rows[places], self._smallest)
        return told

    def report(self) -> ValuesReport:
        """What is said before the sums; it follows from what they tell."""
        numbers = {}
        for name, told in self.told.items():
            x = self.values[name][told]
            with np.errstate(invalid="ignore", over="ignore"):  # the report names such a column
                mean = float(x.mean()) if len(x) else 0.0
                numbers[name] = [len(x), mean, float(((x - mean)**2).sum())]
        counts = {name: Counter(self.values[name].tolist()) for name in self.joined}
        return ValuesReport(self.rows, {
            name: sorted(level for level, count in counts[name].items() if count >= self._smallest)
            for name in self.joined}, numbers)

    def told_sets(self) -> dict[str, list[NDArray[np.bool_]]]:
        """Column of numbers -> [rows] of each sum about it: those of all rows and of each group."""
        groups = [self.groups == group for group in np.unique(self.groups.astype(str))]
        return {name: [told, *(told & group for group in groups if len(groups) > 1)]
                for name, told in self.told.items()}

    def answered(self) -> dict[str, NDArray[np.float64]]:
        """Column -> [rows, ...] what products in the sums are about; 0 for rows that are left out.

        The counts of levels are of no such product: ``disclosure`` protects them.
        """
        groups = np.stack([self.groups == group for group in np.unique(self.groups.astype(str))], axis=1)
        columns = {} if self._settings.by is None else {self._settings.by: groups.astype(np.float64)}
        for name, told in self.told.items():
            x = np.where(told, np.nan_to_num(self.values[name]), 0.0)[:, None] * groups
            columns[name] = np.concatenate([told[:, None] * groups, x], axis=1)
        return columns

    def sums(self, agreement: ValuesAgreement, quantiles: Collection[str] | None = None) -> Sums:
        """The numbers of the site, whose sums over sites are those of all.

        Args:
            quantiles: the columns whose histograms are told; None: all.

        Returns:
            ``""`` -> [2, groups] the rows of a group, and 1 if the group is joined with others; column of categories ->
            [2, groups, levels and those joined] the counts, and 1 if the site does not tell one; column of numbers ->
            [5 + 2 edges, groups] the rows that are told, those left out, 1 if these are more than the missing ones,
            sums of deviations from the mean and of their squares, in bins, and bounds of the counts up to each edge.
        """
        by, names = self._settings.by, agreement.groups(self._settings.by)
        members = [self.groups == name for name in names[:max(1, len(names) - 1)]]
        of_groups = np.array([member.sum() for member in members], np.float64)
        is_joined = np.array([by is not None and name in self.joined[by] for name in names[:len(members)]], bool)
        sums = {"": self._with_total(np.stack([of_groups, is_joined]), has_marks=True)}
        for name in self._settings.columns:
            if name in agreement.levels:
                sums[name] = self._of_levels(name, agreement.levels[name], members, is_joined)
            else:
                numbers = [self._of_numbers(name, agreement, member) for member in members]
                if quantiles is not None and name not in quantiles:  # as bounds that hold for any histogram
                    for of_group in numbers:
                        of_group[5:5 + EDGES], of_group[5 + EDGES:] = 0, of_group[0]
                sums[name] = self._with_total(np.stack(numbers, axis=1))
        return sums

    def _with_total(self, of_groups: NDArray[np.float64], *, has_marks: bool = False) -> NDArray[np.float64]:
        """[..., groups] with the sum over the groups; the second of two rows has marks, which do not add up."""
        if self._settings.by is None:
            return of_groups
        total = of_groups.sum(axis=-1, keepdims=True)
        if has_marks:
            total[1] = 0
        return np.concatenate([of_groups, total], axis=-1)

    def _of_levels(self, name: str, levels: Sequence[str], members: Sequence[NDArray[np.bool_]],
                   is_joined: NDArray[np.bool_]) -> NDArray[np.float64]:
        values, joined = _renamed(self.values[name], self.joined[name]), self.joined[name]
        counts = np.array([[np.sum(values[member] == level) for level in [*levels, OTHER]] for member in members])
        has_rows = counts.any(axis=1, keepdims=True)
        hidden = hidden_cells(counts, self._smallest) & has_rows & counts.any(axis=0)
        untold = np.array([*(level in joined for level in levels), False])
        hidden |= (has_rows & untold) | is_joined[:, None]
        told = np.where(hidden, 0, counts)
        if self._settings.by is not None:
            told, hidden = np.vstack([told, counts.sum(axis=0)]), np.vstack([hidden, untold])
        return np.stack([told, hidden]).astype(np.float64)

    def _of_numbers(self, name: str, agreement: ValuesAgreement, member: NDArray[np.bool_]) -> NDArray[np.float64]:
        _, step, mean = agreement.grids[name]
        x = np.sort(self.values[name][member & self.told[name]])
        left_out, missing = int(member.sum()) - len(x), int(np.isnan(self.values[name][member]).sum())
        deviations = (x - mean) / step
        up_to = np.searchsorted(x, agreement.edges(name), side="right")
        bounds = bounds_of_counts(up_to, len(x), self._smallest)
        moments = deviations.sum(), (deviations**2).sum()
        return np.concatenate([[len(x), left_out, left_out > missing, *moments], *bounds])


def vector_of_sums(sums: Sums) -> NDArray[np.float64]:
    """The sums as one vector."""
    return np.concatenate([array.ravel() for array in sums.values()])


def size_of_sums(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Length of ``vector_of_sums``."""
    return sum(map(math.prod, shapes.values()))


def sums_of_vector(vector: NDArray[np.float64], shapes: Mapping[str, tuple[int, ...]]) -> Sums:
    """The inverse of ``vector_of_sums``; counts are whole numbers again, if they went through a mean."""
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
    sums = {name: part.reshape(shape) for (name, shape), part in zip(
        shapes.items(), np.split(np.asarray(vector, np.float64), ends[:-1]), strict=True)}
    for name, array in sums.items():
        whole = np.rint(array)
        if len(array) == 5 + 2 * EDGES and name:
            whole[3:5] = array[3:5]
        sums[name] = whole
    return sums


def add_sums(of_sites: Sequence[Sums]) -> Sums:
    """The sums of all sites."""
    return {name: np.sum([sums[name] for sums in of_sites], axis=0) for name in of_sites[0]}


def check_size(site: str, rows: int, smallest: int) -> None:
    """Refuse a site whose number of rows is itself a small one."""
    if rows < smallest:
        raise InputError(f"site {quote(site)} has {count_of(rows, 'row')}, and no count below min_cell={smallest} is "
                         "told: leave the site out, or set min_cell to 1 if the rows are public")


def _renamed(of_rows: NDArray[Any], joined: set[str]) -> NDArray[Any]:
    return np.array([OTHER if level in joined else level for level in of_rows.tolist()], object)


