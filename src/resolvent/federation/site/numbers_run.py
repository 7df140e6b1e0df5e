"""Plans of one round at a site: what it names, what it tells, and what it does not tell again in another way."""

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from resolvent.algorithms.algorithm import Algorithm
from resolvent.comparisons.description.disclosure import KnownNumbers
from resolvent.comparisons.description.sums import (
    MISSING,
    SiteValues,
    ValuesAgreement,
    read_values,
    vector_of_sums,
)
from resolvent.comparisons.regression.rows import complete_rows
from resolvent.comparisons.regression.settings import RegressionSettings
from resolvent.comparisons.survival.sums import SiteTimes, TimesAgreement, times_of_rows
from resolvent.errors import quote
from resolvent.federation.protocol.limits import refusal_of_limits
from resolvent.federation.protocol.numbers_plan import FederatedDescription, FederatedSurvival, NumbersPlan
from resolvent.federation.protocol.plan import Part
from resolvent.federation.protocol.refusals import Refusal, RefusalCode, refusing
from resolvent.federation.site.chosen_columns import check_listed_columns
from resolvent.federation.site.plan_run import SiteMethod
from resolvent.federation.site.read_rows import site_cells
from resolvent.federation.site.row_sets import check_label, check_row_set, check_told_rows, other_questions
from resolvent.federation.site.table_run import TableRun, refusing_values
from resolvent.tables.cells import CellRules

if TYPE_CHECKING:
    import pandas as pd

_UNLISTED = "(not listed)"
_Plan = TypeVar("_Plan", bound=NumbersPlan)


def _question(version: int | None, column: str) -> str:
    """The question how many values of a column there are up to an edge."""
    return f"{version}, quantiles of {column}"


class NumbersRun(TableRun[_Plan]):
    """One round of numbers at a site; ``_read_table`` sets ``_values``."""

    _values: Any  # of the rows that are used: their number ``rows``, and ``report()``

    @abstractmethod
    def _numbers(self, agreement: Any) -> NDArray[np.float64]:
        """What the site sends.

        Raises:
            Refusal: the agreement leaves something out that the site has named.
        """

    @property
    def _smallest(self) -> int:
        """The smallest number of rows that is told."""
        smallest: int = max(self.plan.settings.min_cell, self._site.limits.min_cell)
        return smallest

    def _rows_of_plan(self) -> "tuple[pd.DataFrame, CellRules]":
        """The table of the site, and what its cells mean."""
        options = self.plan.table
        return self._read_frame([*options.labels, *(options.features or [])]), site_cells(self._site, options)

    @property
    @override
    def row_counts(self) -> dict[str, int]:
        return {"all": self.training_rows}

    @property
    @override
    def training_rows(self) -> int:
        return int(self._values.rows)

    @override
    def _algorithm(self, label: str) -> Algorithm:
        return self.plan.algorithm(1)

    @override
    def _own_reasons(self) -> dict[str, str]:
        rows = self.training_rows
        return {} if rows >= self._smallest else {"min_cell": f"the site has {rows} rows"}

    @override
    def report(self) -> Any:
        return self._values.report()

    @override
    def _agreed(self, agreement: Any) -> tuple[dict[str, Any], list[SiteMethod]]:
        numbers = self._numbers(agreement)
        problem = KnownNumbers(numbers[None], np.array([self.training_rows]))
        algorithm = self.plan.algorithm(len(numbers))
        return {}, [SiteMethod(label, Part(0), algorithm, problem) for label in self.plan.labels]

    @override
    def _columns_to_count(self) -> None:
        return None  # all are those of the report

    @override
    def lines_before(self) -> Iterator[str]:
        yield f"{self.training_rows} rows"
        yield "The site would send before the rounds:"
        yield "  the number of rows"

    @override
    def lines_after(self) -> Iterator[str]:
        yield f"Counts below {self._smallest} stay at the site, and what would give them away"


class DescriptionRun(NumbersRun[FederatedDescription]):
    """One description at a site."""

    _values: SiteValues

    @override
    def _read_table(self) -> None:
        frame, cells = self._rows_of_plan()
        with refusing(RefusalCode.VALUES):
            self._all = read_values(frame, self.plan.settings, cells)
        listed = self._limits.levels or {}
        shown = {name: np.where(np.isin(values, [*listed[name], MISSING]), values, _UNLISTED) if name in listed
                 else values for name, values in self._all.items()}
        self._values = SiteValues(shown, self.plan.settings, self._smallest, len(frame))

    @override
    def _check_table(self) -> None:
        """Refuse free text and identifiers, and sums over nearly the rows of an earlier plan."""
        levels = {name: len({*values}) for name, values in self._all.items() if name in self._values.joined}
        check_listed_columns({name: count for name, count in levels.items() if name not in (self._limits.levels or {})},
                             {name: self._all[name] for name in self._values.told}, self.training_rows, self._limits)
        if self._versions is not None:
            for name, sets in self._values.told_sets().items():
                check_told_rows(self._journal, f"{self.version}, described {name}", sets, self._limits)

    @override
    def _numbers(self, agreement: ValuesAgreement) -> NDArray[np.float64]:
        agreement.check(self.plan.settings)
        # Without a level, a total would differ from that of an earlier plan by the cells of this level.
        if any({*levels} - {*agreement.levels.get(name, ())} for name, levels in self.report().levels.items()):
            raise Refusal(RefusalCode.CONFLICT, "the agreement leaves out a level that the site has named")
        return vector_of_sums(self._values.sums(agreement, self._quantiles(agreement)))

    def _quantiles(self, agreement: ValuesAgreement) -> list[str]:
        """The columns whose histograms are told: each in the groups and bins in which it was first asked.

        Of two groupings, the difference of the counts up to an edge could be a count of few rows.
        """
        if self._versions is None:
            return [*self._values.told]
        by = self.plan.settings.by
        questions = {name: _question(self.version, name) for name in self._values.told}
        others = other_questions(self._journal, {
            questions[name]: f"by {by}, counts from {self._smallest}, edges {agreement.grids[name][:2]}"
            for name in questions})
        return [name for name, question in questions.items() if question not in others]

    @override
    def _reported_columns(self) -> dict[str, NDArray[np.float64]]:
        return self._values.answered()

    @override
    def lines_before(self) -> Iterator[str]:
        yield from super().lines_before()
        report = self._values.report()
        for column, levels in report.levels.items():
            yield f"  {column}: the names of the {len(levels)} levels with at least {self._smallest} rows"
        for column in report.numbers:
            yield f"  {column}: count, mean and sum of squared deviations of the values that are told"


class SurvivalRun(NumbersRun[FederatedSurvival]):
    """One survival analysis at a site."""

    _values: SiteTimes

    @override
    def _read_table(self) -> None:
        settings = self.plan.settings
        frame, cells = self._rows_of_plan()
        frame = frame.reset_index(drop=True)
        with refusing_values():
            complete = complete_rows(frame, settings.formula, RegressionSettings(formula=settings.formula.text),
                                     cells=cells)
            self._times = times_of_rows(complete, settings)
        self._used = frame.index.isin(complete.index)
        self._values = SiteTimes(self._times, settings.edges, self._smallest, len(frame) - len(complete))

    @override
    def _check_table(self) -> None:
        """Refuse free text and levels that are not listed, another grid, and nearly the rows or times of earlier plans.

        Of two grids, or of a grid and a histogram, the difference of the counts up to an edge could be a count of few
        rows.
        """
        settings, limits, journal, times = self.plan.settings, self._limits, self._journal, self._times
        if settings.by is not None:
            check_listed_columns({settings.by: len({*times.group})}, {}, self.training_rows, limits)
            self._check_levels(settings.by, times.group)
        if self._versions is None:
            return
        check_row_set(journal, self.version or 0, self._used, limits)
        groups = np.full(len(self._used), "", object)
        groups[self._used] = times.group
        check_told_rows(journal, f"{self.version}, groups of {settings.time}",
                        [groups == group for group in self._values.groups], limits)
        for name, values in (("time", times.time), ("event", times.event), ("entry", times.entry)):
            of_version = np.full(len(self._used), np.nan)
            of_version[self._used] = values
            check_label(journal, f"version {self.version}, {name} of survival",
                        of_version.astype(str) if name == "event" else of_version, limits)
        text = (f"survival by {settings.time}, {settings.event}, {settings.entry}, counts from {self._smallest}, every "
                f"{settings.every} until {settings.until}")
        names = {_question(self.version, name): name for name in filter(None, (settings.time, settings.entry))}
        if others := other_questions(journal, dict.fromkeys(names, text)):
            raise refusal_of_limits({"min_cell": f"counts of {quote(names[others[0]])} were told with another grid, "
                                     "event, entry or min_cell, or as quantiles of a description: ask with the same "
                                     "ones; other groups are allowed"}, limits)

    @override
    def _numbers(self, agreement: TimesAgreement) -> NDArray[np.float64]:
        if {*self._values.groups} - {*agreement.groups}:
            raise Refusal(RefusalCode.CONFLICT, "the agreement leaves out a group that the site has named")
        return self._values.sums(agreement.groups, self.plan.settings.edges).vector

    @override
    def _reported_columns(self) -> dict[str, NDArray[np.float64]]:
        """The groups that are told, and the events of each; the counts in cells are protected by their sizes."""
        settings, times = self.plan.settings, self._times
        groups = np.stack([times.group == group for group in self._values.groups or [""]], axis=1)
        of_rows = {settings.by or settings.time: groups, settings.event: groups & times.event[:, None]}
        columns = {}
        for name, values in of_rows.items():
            columns[name] = np.zeros((len(self._used), values.shape[1]))
            columns[name][self._used] = values
        return columns

    @override
    def lines_before(self) -> Iterator[str]:
        yield from super().lines_before()
        yield f"  the names of the {len(self._values.groups)} groups with at least {self._smallest} rows"
