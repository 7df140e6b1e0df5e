"""A description at a site: what it names, what it tells, and what it does not tell a second time in another way."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from resolvent.algorithms.algorithm import Algorithm
from resolvent.comparisons.description.disclosure import KnownNumbers
from resolvent.comparisons.description.sums import (
    MISSING,
    SiteValues,
    ValuesAgreement,
    ValuesReport,
    agree_on_values,
    read_values,
    vector_of_sums,
)
from resolvent.data.files.plain_values import read_plain
from resolvent.federation.protocol.description import FederatedDescription
from resolvent.federation.protocol.refusals import Refusal, RefusalCode, refusing
from resolvent.federation.site.listed_columns import check_listed_columns
from resolvent.federation.site.plan_run import PlanRun, SiteMethod, part_of
from resolvent.federation.site.read_rows import check_present, read_site_rows, site_cells
from resolvent.federation.site.row_sets import check_told_rows, is_first_question

_UNLISTED = "(not listed)"


class DescriptionRun(PlanRun[FederatedDescription]):
    """One description at a site."""

    @override
    def _read_table(self) -> None:
        plan = self.plan
        self._limits = replace(self._site.limits, scores=False)  # a description has no evaluations
        frame, rows = read_site_rows(self._site, plan.table, folder=self._versions)
        if rows is not None:
            frame = frame.iloc[np.concatenate([*rows.splits.values()])]
            self.version, self._journal.rows = rows.version, rows.account
        check_present([*plan.table.labels, *(plan.table.features or [])], [*map(str, frame.columns)])
        with refusing(RefusalCode.VALUES):
            self._all = read_values(frame, plan.settings, site_cells(self._site, plan.table))
        listed = self._limits.levels or {}
        shown = {name: np.where(np.isin(values, [*listed[name], MISSING]), values, _UNLISTED) if name in listed
                 else values for name, values in self._all.items()}
        self._smallest = max(plan.settings.min_cell, self._limits.min_cell)
        self._values = SiteValues(shown, plan.settings, self._smallest, len(frame))

    @property
    @override
    def row_counts(self) -> dict[str, int]:
        return {"all": self.training_rows}

    @property
    @override
    def training_rows(self) -> int:
        return self._values.rows

    @override
    def _algorithm(self, label: str) -> Algorithm:
        return self.plan.algorithm(1)

    @override
    def _own_reasons(self) -> dict[str, str]:
        rows = self.training_rows
        return {} if rows >= self._smallest else {"min_cell": f"the site has {rows} rows"}

    @override
    def _check_table(self) -> None:
        """Refuse free text and identifiers, and sums over nearly the rows of an earlier plan."""
        levels = {name: len({*values}) for name, values in self._all.items() if name in self._values.joined}
        check_listed_columns({name: count for name, count in levels.items() if name not in (self._limits.levels or {})},
                             {name: self._all[name] for name in self._values.told}, self.training_rows, self._limits)
        if self._versions is not None:
            for name, sets in self._values.told_sets().items():
                check_told_rows(self._versions, f"{self.version}, described {name}", sets, self._limits)

    @override
    def report(self) -> ValuesReport:
        return self._values.report()

    @override
    def describe(self) -> dict[str, Any]:
        return {"table": asdict(self.report())}

    @override
    def agree_alone(self) -> dict[str, Any]:
        return {"agreement": asdict(agree_on_values({self._membership.name: self.report()}, self.plan.settings))}

    @override
    def _methods_for(self, content: Mapping[str, Any]) -> tuple[dict[str, Any], list[SiteMethod]]:
        with refusing(RefusalCode.CONFLICT):
            agreement = read_plain(ValuesAgreement, part_of(content, "agreement"), "the server sent no agreement")
        if agreement.sites.get(self._membership.name) != self.training_rows:
            raise Refusal(RefusalCode.CONFLICT, "the agreement has another number of rows of this site")
        with refusing(RefusalCode.ENCODING):
            agreement.check(self.plan.settings)
            # Without a level, a total would differ from that of an earlier plan by the cells of this level.
            if any({*levels} - {*agreement.levels.get(name, ())} for name, levels in self.report().levels.items()):
                raise Refusal(RefusalCode.CONFLICT, "the agreement leaves out a level that the site has named")
            numbers = vector_of_sums(self._values.sums(agreement, self._quantiles(agreement)))
        problem = KnownNumbers(numbers[None], np.array([self.training_rows]))
        algorithm = self.plan.algorithm(len(numbers))
        return {}, [SiteMethod(label, 0, algorithm, problem) for label in self.plan.labels]

    def _quantiles(self, agreement: ValuesAgreement) -> list[str]:
        """The columns whose histograms are told: each in the groups and bins in which it was first asked.

        Of two groupings, the difference of the counts up to an edge could be a count of few rows.
        """
        if self._versions is None:
            return [*self._values.told]
        by = self.plan.settings.by
        return [name for name in self._values.told if is_first_question(
            self._versions, f"{self.version}, quantiles of {name}",
            f"by {by}, counts from {self._smallest}, edges {agreement.grids[name][:2]}")]

    @override
    def _columns_to_count(self) -> dict[str, NDArray[np.float64]]:
        return self._values.answered()

    @override
    def finish(self) -> dict[str, Any]:
        """The site has nothing to add."""
        return {"methods": list(self.plan.labels)}

    @override
    def lines_before(self) -> Iterator[str]:
        report = self.report()
        yield f"{report.rows} rows"
        yield "The site would send before the rounds:"
        yield "  the number of rows"
        for column, levels in report.levels.items():
            yield f"  {column}: the names of the {len(levels)} levels with at least {self._smallest} rows"
        for column in report.numbers:
            yield f"  {column}: count, mean and sum of squared deviations of the values that are told"

    @override
    def lines_after(self) -> Iterator[str]:
        yield f"Counts below {self._smallest} stay at the site, and what would give them away"
