"""The regression of a federation: the file of ``resolvent regress``, whose rows are at the sites.

A fit is two methods: Newton's method, and one round for the sums from which it is reported. With random intercepts
there is a second fit, which begins at the estimates of the first; with imputations each completed table has a fit.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from resolvent.algorithms.algorithm import Algorithm
from resolvent.comparisons.plan_file import PlanFile
from resolvent.comparisons.regression.agreement import RowsAgreement, RowsReport, agree_on_rows
from resolvent.comparisons.regression.formula import Formula, parse_formula
from resolvent.comparisons.regression.imputation import check_completable
from resolvent.comparisons.regression.random_intercepts import has_ended, random_newton, random_problem
from resolvent.comparisons.regression.regress import fit_tables, newton_of, sums_of
from resolvent.comparisons.regression.regression import Regression
from resolvent.comparisons.regression.regression_file import RegressionFile
from resolvent.comparisons.regression.rows import RegressionRows, read_tables
from resolvent.comparisons.regression.settings import LEVERAGE_POWERS, RegressionSettings
from resolvent.errors import InputError
from resolvent.federation.protocol.plan import Part
from resolvent.federation.protocol.table_plan import LARGEST, TERMS, TablePlan, wide_integer_sums
from resolvent.math.newton import NewtonState
from resolvent.regression.newton import FederatedNewton
from resolvent.regression.objective import RegressionProblem
from resolvent.regression.regression_fits import SumsOfFit
from resolvent.tables.table_options import TableOptions

if TYPE_CHECKING:
    import pandas as pd

_LABELS = ("estimates", "sums")
_RANDOM_LABELS = ("random intercepts", "sums with random intercepts")


@dataclass(frozen=True)
class FederatedRegression(TablePlan):
    """A regression whose rows are at the sites; ``file`` has the checked settings."""

    kind: ClassVar[str] = RegressionFile.kind
    title: ClassVar[str] = RegressionFile.title
    file_type: ClassVar[type[PlanFile[Any]]] = RegressionFile
    report_type: ClassVar[type[Any]] = RowsReport
    agreement_type: ClassVar[type[Any]] = RowsAgreement
    needs_all_sites: ClassVar[str] = "sums over other sites are of another likelihood"
    tolerance: ClassVar[float] = 1e-9  # Newton's method ends within it

    def __post_init__(self) -> None:
        if self.settings.imputations is not None:
            check_completable(self.formula)
        further = {"likelihood_tests": self.settings.likelihood_tests, "profile": self.settings.profile,
                   "firth": self.settings.firth}
        if asked := [name for name, value in further.items() if value]:
            raise InputError(f"regression.{asked[0]}: it needs further rounds, which a federation does not make: leave "
                             "it out; tests are Wald's there (tests), and with l2 all estimates are finite")

    @override
    def in_process(self, frame: "pd.DataFrame") -> Regression:
        tables = read_tables(frame, self.settings, party=self.table.party, cells=self.table.cells)
        return fit_tables(tables, replace(self.settings, heterogeneity=False))

    @override
    def compared(self, found: Regression) -> NDArray[np.float64]:
        return found.estimates

    @property
    @override
    def labels(self) -> tuple[str, ...]:
        return _LABELS if self.settings.site != "random" else (*_LABELS, *_RANDOM_LABELS)

    @property
    @override
    def seeds(self) -> tuple[int, ...]:
        """The numbers of the completed tables, of which each has a fit; 0 without imputations."""
        return tuple(range(self.settings.imputations or 1))

    @override
    def title_of(self, part: Part) -> str:
        return f", completed table {part.seed + 1}" if len(self.seeds) > 1 else ""

    @property
    def formula(self) -> Formula:
        """The parsed formula of the settings."""
        return parse_formula(self.settings.formula)

    @property
    @override
    def variables(self) -> Sequence[str]:
        return self.formula.variables

    @override
    def agree(self, reports: Mapping[str, RowsReport]) -> RowsAgreement:
        return agree_on_rows(reports, self.formula, self.settings, self.table.cells)

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
        if label in (_LABELS[0], _RANDOM_LABELS[0]):
            return self.rounds
        return 1 + (label == _LABELS[1] and self.settings.errors in LEVERAGE_POWERS)

    def algorithms(self, fit: "PlannedFit") -> tuple[Algorithm, Algorithm]:
        """The methods of a fit; with secure sums their replies are integers."""
        if self.privacy is None:
            return fit.newton, fit.sums
        terms = max(TERMS, fit.sites)
        return (wide_integer_sums(replace(fit.newton, largest=LARGEST), terms=terms),
                wide_integer_sums(fit.sums, terms=terms))

    @property
    @override
    def note(self) -> str:
        return "" if self.privacy is None else ("secure sums hide the fits of single sites: the page does not compare "
                                                "sites")


@dataclass(frozen=True, eq=False)
class PlannedFit:
    """A fit of a table.

    Attributes:
        labels: of its two methods.
        sites: the number of sites.
        has_ended: whether a state of Newton's method is the last one.
    """

    labels: tuple[str, str]
    sites: int
    problem: RegressionProblem
    newton: FederatedNewton
    sums: SumsOfFit
    has_ended: Callable[[NewtonState], bool]


def fits_of(rows: RegressionRows, settings: RegressionSettings) -> tuple[PlannedFit, ...]:
    """The fits of a table: the regression, and with ``site=random`` the same with random intercepts."""
    model, sites = rows.model, len(rows.model.sites)
    common = PlannedFit(_LABELS, sites, rows.problem(l2=settings.l2), newton_of(model, settings),
                        sums_of(model, settings, with_local_fits=sends_own_fits(settings)),
                        lambda search: bool(search.has_converged))
    if settings.site != "random":
        return (common,)
    return common, PlannedFit(_RANDOM_LABELS, sites, random_problem(rows), random_newton(), SumsOfFit(scores=False),
                              has_ended)


def sends_own_fits(settings: RegressionSettings) -> bool:
    """Whether every site sends the fit of its own rows."""
    return settings.heterogeneity and not settings.has_penalty and settings.imputations is None
