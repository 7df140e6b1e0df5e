"""The description of a federation: the file of ``resolvent describe``, whose rows are at the sites.

It has one round: every site sends its numbers, see ``SiteValues.sums``.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import override

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.participation import Full, Participation
from resolvent.comparisons.description.disclosure import SumOfNumbers
from resolvent.comparisons.description.settings import DescriptionFile
from resolvent.comparisons.plan_file import PlanFile
from resolvent.errors import InputError
from resolvent.federation.protocol.table_plan import TERMS, TablePlan, wide_integer_sums
from resolvent.tables.table_options import TableOptions


@dataclass(frozen=True)
class FederatedDescription(TablePlan):
    """A description whose rows are at the sites; ``file`` has the checked settings."""

    kind: ClassVar[str] = DescriptionFile.kind
    title: ClassVar[str] = DescriptionFile.title
    file_type: ClassVar[type[PlanFile[Any]]] = DescriptionFile
    needs_all_sites: ClassVar[str] = "the rows of others are another table"

    def __post_init__(self) -> None:
        if not self.settings.columns:
            raise InputError("describe.columns: missing; name the columns, such as [age, ward], because the sites' "
                             "tables can have others")

    @property
    @override
    def labels(self) -> tuple[str, ...]:
        return ("numbers",)

    @property
    @override
    def table(self) -> TableOptions:
        columns: list[str] = [*self.settings.columns, *([] if self.settings.by is None else [self.settings.by])]
        data = self.file.data
        return TableOptions(data.party, columns[-1], features=columns[:-1], missing=data.missing or [],
                            text=[*data.text])

    @property
    @override
    def rounds(self) -> int:
        return 1

    @override
    def participation(self) -> Participation:
        return Full(weighting="uniform")

    def algorithm(self, count: int) -> Algorithm:
        """The round.

        Args:
            count: how many numbers a site has.
        """
        if self.privacy is None:
            return SumOfNumbers(count)
        return wide_integer_sums(SumOfNumbers(count, keeps_each=False), weighting="uniform", terms=TERMS)

    @property
    @override
    def note(self) -> str:
        return "" if self.privacy is None else "secure sums hide the numbers of single sites"
