"""Plans of one round, in which every site sends its numbers: descriptions, and survival analyses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.participation.rules import Full, Participation
from resolvent.comparisons.description.describe import describe_rows
from resolvent.comparisons.description.disclosure import SumOfNumbers
from resolvent.comparisons.description.settings import DescriptionFile
from resolvent.comparisons.description.sums import ValuesAgreement, ValuesReport, agree_on_values
from resolvent.comparisons.plan_file import PlanFile
from resolvent.comparisons.plan_result import PlanResult
from resolvent.comparisons.survival.settings import SurvivalFile
from resolvent.comparisons.survival.sums import TimesAgreement, TimesReport, agree_on_times
from resolvent.comparisons.survival.survive import survival_of_rows
from resolvent.errors import InputError
from resolvent.federation.protocol.table_plan import TERMS, TablePlan, wide_integer_sums
from resolvent.tables.table_options import TableOptions

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class NumbersPlan(TablePlan):
    """One round for the numbers of all sites.

    Attributes:
        keeps_each: whether the lead gets the numbers of each site, without secure sums.
    """

    needs_all_sites: ClassVar[str] = "the rows of others are another table"
    keeps_each: ClassVar[bool] = False

    @property
    @override
    def labels(self) -> tuple[str, ...]:
        return ("numbers",)

    @property
    @override
    def rounds(self) -> int:
        return 1

    @property
    @override
    def variables(self) -> Sequence[str]:
        columns: Sequence[str] = self.settings.columns
        return columns

    @override
    def participation(self) -> Participation:
        return Full(weighting="uniform")

    def algorithm(self, count: int) -> Algorithm:
        """The round.

        Args:
            count: how many numbers a site has.
        """
        if self.privacy is None:
            return SumOfNumbers(count, keeps_each=self.keeps_each)
        return wide_integer_sums(SumOfNumbers(count, keeps_each=False), weighting="uniform", terms=TERMS)

    @property
    @override
    def note(self) -> str:
        return "" if self.privacy is None else "secure sums hide the numbers of single sites"


@dataclass(frozen=True)
class FederatedDescription(NumbersPlan):
    """A description whose rows are at the sites; ``file`` has the checked settings."""

    kind: ClassVar[str] = DescriptionFile.kind
    title: ClassVar[str] = DescriptionFile.title
    file_type: ClassVar[type[PlanFile[Any]]] = DescriptionFile
    report_type: ClassVar[type[Any]] = ValuesReport
    agreement_type: ClassVar[type[Any]] = ValuesAgreement
    keeps_each: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.settings.columns:
            raise InputError("describe.columns: missing; name the columns, such as [age, ward], because the sites' "
                             "tables can have others")

    @property
    @override
    def table(self) -> TableOptions:
        columns: list[str] = [*self.settings.columns, *([] if self.settings.by is None else [self.settings.by])]
        data = self.file.data
        return TableOptions(data.party, columns[-1], features=columns[:-1], missing=data.missing or [],
                            text=[*data.text])

    @override
    def agree(self, reports: Mapping[str, ValuesReport]) -> ValuesAgreement:
        return agree_on_values(reports, self.settings)

    @override
    def in_process(self, frame: "pd.DataFrame") -> PlanResult:
        return describe_rows(frame, self.settings, party=self.table.party, cells=self.table.cells)


@dataclass(frozen=True)
class FederatedSurvival(NumbersPlan):
    """A survival analysis whose rows are at the sites; ``file`` has the checked settings."""

    kind: ClassVar[str] = SurvivalFile.kind
    title: ClassVar[str] = SurvivalFile.title
    file_type: ClassVar[type[PlanFile[Any]]] = SurvivalFile
    report_type: ClassVar[type[Any]] = TimesReport
    agreement_type: ClassVar[type[Any]] = TimesAgreement

    def __post_init__(self) -> None:
        if self.settings.every is None:
            raise InputError("survival.every: missing; sites tell times on a grid: write such as every: 30, until: 720")

    @property
    @override
    def table(self) -> TableOptions:
        columns, data = self.settings.columns, self.file.data
        return TableOptions(data.party, columns[0], features=columns[1:], missing=data.missing or [],
                            text=[*data.text])

    @override
    def agree(self, reports: Mapping[str, TimesReport]) -> TimesAgreement:
        return agree_on_times(reports)

    @override
    def in_process(self, frame: "pd.DataFrame") -> PlanResult:
        return survival_of_rows(frame, self.settings, party=self.table.party, cells=self.table.cells)
