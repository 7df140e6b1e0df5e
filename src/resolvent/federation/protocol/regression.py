"""The regression of a federation: the file of ``resolvent regress``, whose rows are at the sites.

A site acts on two methods: Newton's method, and one round for the sums from which the fit is reported.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from typing_extensions import override

from resolvent.algorithms.algorithm import Algorithm
from resolvent.comparisons.plan_file import PlanFile
from resolvent.comparisons.regression.formula import Formula, parse_formula
from resolvent.comparisons.regression.model import RegressionModel
from resolvent.comparisons.regression.regress import newton_of, sums_of
from resolvent.comparisons.regression.regression_file import RegressionFile
from resolvent.comparisons.regression.settings import LEVERAGE_POWERS, RegressionSettings
from resolvent.errors import InputError
from resolvent.federation.protocol.table_plan import LARGEST, TERMS, TablePlan, wide_integer_sums
from resolvent.tables.table_options import TableOptions


@dataclass(frozen=True)
class FederatedRegression(TablePlan):
    """A regression whose rows are at the sites; ``file`` has the checked settings."""

    kind: ClassVar[str] = RegressionFile.kind
    title: ClassVar[str] = RegressionFile.title
    file_type: ClassVar[type[PlanFile[Any]]] = RegressionFile
    needs_all_sites: ClassVar[str] = "sums over other sites are of another likelihood"

    def __post_init__(self) -> None:
        if self.settings.imputations is not None:
            raise InputError(f"regression.imputations: {self.settings.imputations} completed tables are "
                             "as many regressions with other columns: each column with missing values, and each round, "
                             f"would count {self.settings.imputations} times among the columns that a site's "
                             "max_leverage limits. Leave imputations out, and complete cases are fitted; or fill the "
                             "missing values once in each site's table")
        further = {"likelihood_tests": self.settings.likelihood_tests, "profile": self.settings.profile,
                   "firth": self.settings.firth}
        if asked := [name for name, value in further.items() if value]:
            raise InputError(f"regression.{asked[0]}: it needs further rounds, which a federation does not make: leave "
                             "it out; tests are Wald's there (tests), and with l2 all estimates are finite")
        if self.settings.site == "random":
            raise InputError("regression.site=random: its rounds have the third and fourth derivatives of the rows' "
                             "losses beside the second, three times the columns of a round that a site's max_leverage "
                             "limits: set site=fixed, an intercept for each site that stays there, or fit site=random "
                             "where all rows are in one table")

    @property
    @override
    def labels(self) -> tuple[str, ...]:
        return "estimates", "sums"

    @property
    def formula(self) -> Formula:
        """The parsed formula of the settings."""
        return parse_formula(self.settings.formula)

    @property
    @override
    def table(self) -> TableOptions:
        options: TableOptions = self.file.options
        return options

    @property
    @override
    def rounds(self) -> int:
        return int(self.settings.rounds)

    @override
    def rounds_of(self, label: str) -> int:
        return self.rounds if label == self.labels[0] else 1 + (self.settings.errors in LEVERAGE_POWERS)

    def algorithms(self, model: RegressionModel) -> tuple[Algorithm, Algorithm]:
        """The fit, and the round of sums from which it is reported; with secure sums their replies are integers."""
        newton = newton_of(model, self.settings)
        sums = sums_of(model, self.settings, with_local_fits=sends_own_fits(self.settings))
        if self.privacy is None:
            return newton, sums
        terms = max(TERMS, len(model.sites))
        newton = replace(newton, largest=LARGEST)
        return wide_integer_sums(newton, terms=terms), wide_integer_sums(sums, terms=terms)

    @property
    @override
    def note(self) -> str:
        return "" if self.privacy is None else ("secure sums hide the fits of single sites: the page does not compare "
                                                "sites")


def sends_own_fits(settings: RegressionSettings) -> bool:
    """Whether every site sends the fit of its own rows."""
    return settings.heterogeneity and not settings.has_penalty
