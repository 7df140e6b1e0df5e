"""The counts of a survival analysis: events and rows at risk by time and group, and which of them a site tells.

Times are coarsened, and then all counts are those of the coarsened rows. There are three kinds of counts, of events,
of censored rows and of late entries, and for each kind a site joins the cells of the agreed grid until every group has
none or enough in each. So the numbers at risk differ by as many rows, or none, and so do their totals over groups.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.comparisons.description.disclosure import joined_levels
from resolvent.comparisons.description.sums import ALL, OTHER
from resolvent.comparisons.regression.agreement import level_names
from resolvent.comparisons.regression.label_numbers import times_of
from resolvent.comparisons.survival.settings import SurvivalSettings
from resolvent.errors import InputError, quote
from resolvent.tables.cells import NO_WORDS, YES_WORDS
from resolvent.tables.owners import natural_order

if TYPE_CHECKING:
    import pandas as pd


class Times(NamedTuple):
    """The times of rows.

    Attributes:
        time: [rows] of the event, or of the end of observation.
        event: [rows] whether the event occurred.
        entry: [rows] at risk are times after it; -inf without a late entry.
        group: [rows] the name of the group.
    """

    time: NDArray[np.float64]
    event: NDArray[np.bool_]
    entry: NDArray[np.float64]
    group: NDArray[np.object_]

    def of(self, rows: NDArray[np.bool_]) -> "Times":
        """Some of the rows."""
        return Times(self.time[rows], self.event[rows], self.entry[rows], self.group[rows])


def times_of_rows(frame: "pd.DataFrame", settings: SurvivalSettings) -> Times:
    """The times of complete rows.

    Raises:
        InputError: a time is negative, an entry is not before its time, or an event is neither 0 nor 1.
    """
    time, entry = times_of(frame, settings.formula.response)
    names = level_names(frame[settings.event]).str.casefold()
    if wrong := {*names.unique()} - {*NO_WORDS, *YES_WORDS}:
        raise InputError(f"{quote(settings.event)} says whether the event occurred, and must have 0 and 1, no and yes, "
                         f"or false and true, not {quote(min(wrong))}: make a column with 0 and 1")
    event = np.asarray(names.isin(YES_WORDS), bool)
    group = np.full(len(frame), ALL, object)
    if settings.by is not None:
        group = np.asarray(level_names(frame[settings.by]), object)
        if {ALL, OTHER} & {*group}:
            raise InputError(f"{quote(settings.by)} has the level {quote(min({ALL, OTHER} & {*group}))}, which stands "
                             "for other rows: give the level another name")
    return Times(time, event, np.full(len(time), -np.inf) if entry is None else entry, group)


@dataclass(frozen=True)
class TimesReport:
    """What a site says about its rows before the counts.

    Attributes:
        rows: the number of its rows without a missing value.
        left_out: the number of its other rows.
        groups: the names of the groups of enough rows.
    """

    rows: int
    left_out: int
    groups: Sequence[str]

    def __post_init__(self) -> None:
        if min(self.rows, self.left_out) < 0:
            raise InputError("a number of rows is negative")


@dataclass(frozen=True)
class TimesAgreement:
    """What all sites use.

    Attributes:
        sites: site -> its number of rows without a missing value.
        left_out: site -> the number of its other rows.
    """

    groups: Sequence[str]
    sites: Mapping[str, int]
    left_out: Mapping[str, int]

    def __post_init__(self) -> None:
        if len({*self.groups}) < len(self.groups):
            raise InputError("a group is named twice")


def agree_on_times(reports: Mapping[str, TimesReport]) -> TimesAgreement:
    """The groups of all sites."""
    groups = {group for report in reports.values() for group in report.groups}
    if not groups:
        raise InputError("no site has a group of enough rows that could be told: leave by out, or join its levels")
    return TimesAgreement(sorted(groups, key=natural_order), {site: r.rows for site, r in reports.items()},
                          {site: r.left_out for site, r in reports.items()})


class SurvivalSums(NamedTuple):
    """Counts of one or more sites, for G groups and M times.

    Attributes:
        rows: [G] the rows that the counts are about.
        events: [G, M] at each time.
        at_risk: [G, M] before each time.
        excess: [G] events minus those expected if all groups have the same hazard, within each site.
        variance: [G, G] of ``excess``.
    """

    rows: NDArray[np.float64]
    events: NDArray[np.float64]
    at_risk: NDArray[np.float64]
    excess: NDArray[np.float64]
    variance: NDArray[np.float64]

    @property
    def vector(self) -> NDArray[np.float64]:
        """All numbers as one vector."""
        return np.concatenate([array.ravel() for array in self])

    @staticmethod
    def size(groups: int, times: int) -> int:
        """Length of ``vector``."""
        return 2 * groups * (1 + times) + groups**2

    @classmethod
    def of_vector(cls, vector: NDArray[np.float64], groups: int) -> "SurvivalSums":
        """The inverse of ``vector``; counts are whole numbers again, if they went through a mean."""
        times = (len(vector) - groups**2) // (2 * groups) - 1
        shapes = ((groups,), (groups, times), (groups, times), (groups,), (groups, groups))
        ends = np.cumsum([np.prod(shape) for shape in shapes]).astype(int)
        parts = [part.reshape(shape) for part, shape in zip(np.split(vector, ends[:-1]), shapes, strict=True)]
        return cls(*map(np.rint, parts[:3]), *parts[3:])

    @classmethod
    def total(cls, of_sites: Sequence["SurvivalSums"]) -> "SurvivalSums":
        """The sums over sites."""
        return cls(*(np.sum(arrays, axis=0) for arrays in zip(*of_sites, strict=True)))


class SiteTimes:
    """The times of one site, and what it tells about them.

    Args:
        times: of the rows without a missing value.
        edges: the grid; None: exact times.
        smallest: with a grid, see ``min_cell`` of ``SurvivalSettings``.
        left_out: the number of other rows.

    Attributes:
        told: the rows that the counts are about, coarsened.
        groups: the names of groups of enough rows.
    """

    def __init__(self, times: Times, edges: NDArray[np.float64] | None, smallest: int, left_out: int) -> None:
        self.rows, self._left_out = len(times.time), left_out
        if edges is None:
            self.told, self.groups = times, sorted({*times.group}, key=natural_order)
            return
        counts = Counter(times.group.tolist())
        joined = joined_levels(np.array([*counts.values()], np.int64), smallest)
        hidden = {name for name, is_joined in zip(counts, joined, strict=True) if is_joined}
        self.groups = sorted({*counts} - hidden, key=natural_order)
        groups = np.array([OTHER if name in hidden else name for name in times.group.tolist()], object)
        # The cells of any grouping are joined from those of all rows: so no two groupings differ by few rows.
        cells = Cells(edges, edges, edges).joined(times._replace(group=np.full(self.rows, ALL, object)), smallest)
        grouped = times._replace(group=groups)
        self.told = cells.joined(grouped, smallest).coarsen(grouped, smallest, edges)
        self.told = self.told.of(np.isin(self.told.group, self.groups))

    def report(self) -> TimesReport:
        """What is said before the counts."""
        return TimesReport(self.rows, self._left_out, self.groups)

    def sums(self, groups: Sequence[str], points: NDArray[np.float64]) -> SurvivalSums:
        """The numbers of the site, whose sums over sites are those of all.

        Args:
            groups: of all sites.
            points: [M] times; every event is at one of them.
        """
        rows, events, at_risk = [], [], []
        for name in groups:
            of_group = self.told.of(self.told.group == name)
            rows.append(len(of_group.time))
            events.append(np.bincount(np.searchsorted(points, of_group.time[of_group.event]), minlength=len(points)))
            # entry < point <= time
            at_risk.append(np.searchsorted(np.sort(of_group.entry), points)
                           - np.searchsorted(np.sort(of_group.time), points))
        counts = np.array(events, np.float64), np.array(at_risk, np.float64)
        return SurvivalSums(np.array(rows, np.float64), *counts, *log_rank_sums(*counts))


def log_rank_sums(events: NDArray[np.float64],
                  at_risk: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    r"""[G] the events minus those that are expected, and [G, G] the variance.

    With d events among n rows at risk at a time, of which n_g are of group g,

    .. math:: E_g = \sum d \frac{n_g}{n}, \qquad
              V_{gh} = \sum \frac{d (n - d)}{n - 1} \frac{n_g}{n} \Big(\delta_{gh} - \frac{n_h}{n}\Big)

    Source: Mantel, *Evaluation of survival data and two new rank order statistics*, 1966.
    """
    d, n = events.sum(axis=0), at_risk.sum(axis=0)
    share = at_risk / np.maximum(n, 1)
    weight = d * (n - d) / np.maximum(n - 1, 1)
    return (events - d * share).sum(axis=1), np.diag(share @ weight) - (share * weight) @ share.T


class Cells(NamedTuple):
    """The cells in which a site tells its rows; each ends with its edge, which belongs to it.

    Attributes:
        events: the edges of the cells of events, ascending.
        censored: those of the cells of censored rows.
        entries: those of the cells of late entries.
    """

    events: NDArray[np.float64]
    censored: NDArray[np.float64]
    entries: NDArray[np.float64]

    def joined(self, times: Times, smallest: int) -> "Cells":
        """Larger cells, in each of which every group has no row of the kind, or ``smallest`` ones.

        Example:
            >>> times = np.repeat([1.0, 2.0, 3.0], [4, 2, 9])
            >>> rows = Times(times, times < 4, times * -np.inf, np.full(15, "all", object))
            >>> Cells(*[np.arange(5.0)] * 3).joined(rows, 5).events
            array([2., 3., 4.])
        """
        _, group = np.unique(times.group.astype(str), return_inverse=True)
        joined = []
        for kind, (edges, rows, cell) in enumerate((
                (self.events, times.event, np.searchsorted(self.events, times.time)),
                (self.censored, ~times.event, np.searchsorted(self.censored, times.time)),
                (self.entries, np.isfinite(times.entry), np.searchsorted(self.entries, times.entry, side="right")))):
            counts = np.zeros((len(edges) + 1, int(group.max(initial=0)) + 1), np.int64)
            np.add.at(counts, (cell[rows], group[rows]), 1)

            def is_small(of_groups: NDArray[np.int64]) -> bool:
                return bool(((of_groups > 0) & (of_groups < smallest)).any())

            told, since = list[int](), np.zeros_like(counts[0])
            for j, of_cell in enumerate(counts[:-1]):
                since = since + of_cell
                # An end in front of the first row of a cell would tell in which cell of the grid it is.
                if not is_small(since) and (since.any() or smallest <= 1 or j == len(edges) - 1):
                    told.append(j)
                    since = np.zeros_like(since)
            if kind == 2:  # the last cell of entries has no end; without an edge, none is told
                while told and is_small(counts[told[-1] + 1:].sum(axis=0)):
                    told.pop()
            joined.append(edges[told])
        return Cells(*joined)

    def coarsen(self, times: Times, smallest: int, grid: NDArray[np.float64]) -> Times:
        """The rows as they are told.

        From the last time on until which all is told, and every group has no row at risk or ``smallest`` ones, the rows
        are censored, or left out if they enter later. The rows of a kind, a group and a cell are spread evenly over the
        times of the grid in the cell, and the first entry belongs to the first time, the second to the second, and so
        on, which is before it: so the curves have no late steps, and all follows from the counts that are told.
        """
        places = [(edges, np.searchsorted(edges, times.time)) for edges in (self.events, self.censored)]
        bounds = [(cell, np.append(0.0, edges)[cell], np.append(edges, np.inf)[cell]) for edges, cell in places]
        cell, low, high = (np.where(times.event, *pair) for pair in zip(*bounds, strict=True))
        of_entry = np.searchsorted(self.entries, times.entry, side="right")
        is_late = np.isfinite(times.entry) & (len(self.entries) > 0)
        begin = np.where(is_late, np.append(0.0, self.entries)[of_entry], -np.inf)
        groups = [times.group == name for name in np.unique(times.group.astype(str))]
        end, is_safe = -np.inf, True
        for point in np.unique(np.concatenate(self)):
            left = [(begin[rows] <= point).sum() - (high[rows] <= point).sum() for rows in groups]
            is_safe &= not any(0 < rows < smallest for rows in left)
            if is_safe and point in self.events:
                end = point
        until = np.minimum(np.append(self.entries, np.inf)[of_entry], end)
        parts = list[Times]()
        for rows in (of_group & (begin < end) for of_group in groups):
            time, entry = np.full(rows.sum(), end), begin[rows]
            event, is_told = times.event[rows] & (high[rows] <= end), high[rows] <= end
            for kind in (event, is_told & ~event):
                time[kind] = grid[np.searchsorted(grid, _spread(cell[rows][kind], low[rows][kind], high[rows][kind]))]
            late = is_late[rows]
            entry[late] = grid[np.searchsorted(
                grid, _spread(of_entry[rows][late], entry[late], until[rows][late]), side="right") - 1]
            order = np.argsort(time, kind="stable")
            before = np.append(-np.inf, grid)[np.searchsorted(grid, time[order])]
            parts.append(Times(time[order], event[order], np.minimum(np.sort(entry), before), times.group[rows]))
        return Times(*map(np.concatenate, zip(*parts, strict=True)))


def _spread(cell: NDArray[np.int64], low: NDArray[np.float64], high: NDArray[np.float64]) -> NDArray[np.float64]:
    """[rows] places within the cell of each row, from low to high: those of n rows divide it evenly."""
    order = np.argsort(cell, kind="stable")
    _, first, count = np.unique(cell[order], return_index=True, return_counts=True)
    share = np.empty(len(cell))
    share[order] = (np.arange(len(cell)) - np.repeat(first, count) + 0.5) / np.repeat(count, count)
    return np.asarray(low + share * (high - low), np.float64)
