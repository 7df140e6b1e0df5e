"""The server's part of a description: the levels and bins of all sites, and the sums of what they tell."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from resolvent.algorithms.combinators.combinator import Wrapped
from resolvent.comparisons.description.description import Description
from resolvent.comparisons.description.disclosure import KnownNumbers
from resolvent.comparisons.description.sums import ValuesReport, agree_on_values, size_of_sums, sums_of_vector
from resolvent.federation.protocol.description import FederatedDescription
from resolvent.federation.server.served_plan import Agreed, Known, ServedPlan


class ServedDescription(ServedPlan[FederatedDescription]):
    """One description at the server."""

    @override
    def _agree(self, answers: Mapping[str, Mapping[str, Any]], known: Known | None) -> Agreed:
        reports = self._read_reports(answers, ValuesReport)
        self._agreement = agree_on_values(reports, self.plan.settings)
        return self._agreed(answers, {"agreement": asdict(self._agreement)}, features=len(self.plan.settings.columns),
                            task=self.plan.title, rows=self._agreement.sites)

    @override
    def _run_methods(self) -> None:
        sites, shapes = len(self.job.sites), self._agreement.shapes(self.plan.settings)
        problem = KnownNumbers(np.zeros((sites, size_of_sums(shapes))), [*self._agreement.sites.values()])
        outcome = self._run_method(self.plan.labels[0], 0, self.plan.algorithm(size_of_sums(shapes)), problem,
                                   score="objective", samples=sum(self._agreement.sites.values()),
                                   has_ended=lambda state: False)
        state: Any = outcome.result.state
        state = state.inner if isinstance(state, Wrapped) else state
        total = sums_of_vector(np.asarray(state.mean) * sites, shapes)
        if state.each is None:
            self._description = Description(self.plan.settings, self._agreement, {}, total)
        else:
            each = zip(outcome.result.record.parties, np.asarray(state.each), strict=True)
            self._description = Description.of_sums(self.plan.settings, self._agreement, {
                site: sums_of_vector(numbers, shapes) for site, numbers in each})

    @override
    def _write(self, results: Path, answers: Mapping[str, Mapping[str, Any]], warnings: list[str]) -> None:
        self._description.write(results)
