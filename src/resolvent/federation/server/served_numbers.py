"""The server's part of plans of one round: the agreement of all sites, and the sums of what they tell."""

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from resolvent.comparisons.description.description import Description
from resolvent.comparisons.description.disclosure import KnownNumbers
from resolvent.comparisons.description.sums import size_of_sums, sums_of_vector
from resolvent.comparisons.plan_result import PlanResult
from resolvent.comparisons.survival.sums import SurvivalSums
from resolvent.comparisons.survival.survival import Survival
from resolvent.federation.protocol.numbers_plan import FederatedDescription, FederatedSurvival, NumbersPlan
from resolvent.federation.protocol.plan import Part
from resolvent.federation.server.served_plan import ServedTablePlan

_Plan = TypeVar("_Plan", bound=NumbersPlan)


class ServedNumbers(ServedTablePlan[_Plan]):
    """One round of numbers at the server."""

    @abstractmethod
    def _count(self) -> int:
        """How many numbers a site sends."""

    @abstractmethod
    def _result(self, total: NDArray[np.float64], each: Mapping[str, NDArray[np.float64]]) -> PlanResult:
        """The result from the sums over all sites, and from the numbers of each, if they are kept."""

    @override
    def _run_methods(self) -> None:
        sites, count = len(self.job.sites), self._count()
        problem = KnownNumbers(np.zeros((sites, count)), [*self._agreement.sites.values()])
        result, state = self._run_rounds(self.plan.labels[0], Part(0), self.plan.algorithm(count), problem,
                                         lambda state: False)
        each = {} if state.each is None else dict(zip(result.record.parties, np.asarray(state.each), strict=True))
        self._found = self._result(np.asarray(state.mean) * sites, each)

    @override
    def _write(self, results: Path, answers: Mapping[str, Mapping[str, Any]], warnings: list[str]) -> None:
        self._found.write(results)


class ServedDescription(ServedNumbers[FederatedDescription]):
    """One description at the server: the levels and bins of all sites, and the sums of what they tell."""

    @override
    def _count(self) -> int:
        return size_of_sums(self._agreement.shapes(self.plan.settings))

    @override
    def _result(self, total: NDArray[np.float64], each: Mapping[str, NDArray[np.float64]]) -> Description:
        settings, shapes = self.plan.settings, self._agreement.shapes(self.plan.settings)
        if not each:
            return Description(settings, self._agreement, {}, sums_of_vector(total, shapes))
        return Description.of_sums(settings, self._agreement, {
            site: sums_of_vector(numbers, shapes) for site, numbers in each.items()})


class ServedSurvival(ServedNumbers[FederatedSurvival]):
    """One survival analysis at the server: the groups of all sites, and the sums of their counts."""

    @override
    def _count(self) -> int:
        return SurvivalSums.size(len(self._agreement.groups), len(self.plan.settings.edges))

    @override
    def _result(self, total: NDArray[np.float64], each: Mapping[str, NDArray[np.float64]]) -> Survival:
        settings = self.plan.settings
        return Survival(settings, self._agreement, settings.edges,
                        SurvivalSums.of_vector(total, len(self._agreement.groups)))
