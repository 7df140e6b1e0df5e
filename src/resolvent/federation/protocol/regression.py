"""The regression of a federation: the file of ``resolvent regress``, whose rows are at the sites.

A site acts on two methods: Newton's method, and one round for the sums from which the fit is reported.
"""

import contextlib
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import jax
from typing_extensions import override

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.combinators.fixed_point_sums import FixedPointSums
from resolvent.comparisons.regression.formula import Formula, parse_formula
from resolvent.comparisons.regression.model import RegressionModel
from resolvent.comparisons.regression.regress import newton_of
from resolvent.comparisons.regression.regression_file import RegressionFile
from resolvent.comparisons.regression.settings import RegressionSettings
from resolvent.differential_privacy import PrivacyBudget
from resolvent.federation.protocol.plan import Plan
from resolvent.regression.regression_fits import SumsOfFit
from resolvent.tables.table_options import TableOptions

# Columns have any units: with 5 integers for a number, sums over 1024 sites have the range 2^120 and steps of 2^-145.
_LARGEST, _LIMBS, _TERMS = 2.0**120, 5, 1024


@dataclass(frozen=True)
class FederatedRegression(Plan):
    """A regression whose rows are at the sites; ``file`` has the checked settings."""

    kind: ClassVar[str] = "regression"
    needs_all_sites: ClassVar[str] = "sums over other sites are of another likelihood"
    may_end_early: ClassVar[bool] = True
    file: RegressionFile
    is_rehearsal: bool

    @property
    @override
    def name(self) -> str:
        return self.file.name

    @property
    @override
    def text(self) -> str:
        return self.file.text

    @property
    @override
    def labels(self) -> tuple[str, ...]:
        return "estimates", "sums"

    @property
    def settings(self) -> RegressionSettings:
        """The section ``regression`` of the file."""
        return self.file.settings

    @property
    def formula(self) -> Formula:
        """The parsed formula of the settings."""
        return parse_formula(self.settings.formula)

    @property
    @override
    def table(self) -> TableOptions:
        return self.file.options

    @property
    @override
    def rounds(self) -> int:
        return self.settings.rounds

    @override
    def rounds_of(self, label: str) -> int:
        return self.settings.rounds if label == self.labels[0] else 1

    def algorithms(self, model: RegressionModel) -> tuple[Algorithm, Algorithm]:
        """The fit, and the round of sums from which it is reported; with secure sums their replies are integers."""
        newton, sums = newton_of(model, self.settings), SumsOfFit(sends_own_fits(self.settings))
        if self.privacy is None:
            return newton, sums
        terms = max(_TERMS, len(model.sites))
        newton = replace(newton, largest=_LARGEST)
        integers = partial(FixedPointSums, largest=_LARGEST, limbs=_LIMBS, terms=terms)
        return integers(newton), integers(sums)

    @property
    @override
    def privacy(self) -> PrivacyBudget | None:
        return self.file.privacy

    @property
    @override
    def note(self) -> str:
        return "" if self.privacy is None else ("secure sums hide the fits of single sites: the page does not compare "
                                                "sites")

    @override
    def precision(self) -> contextlib.AbstractContextManager[None]:
        context: contextlib.AbstractContextManager[None] = jax.enable_x64(True)
        return context


def sends_own_fits(settings: RegressionSettings) -> bool:
    """Whether every site sends the fit of its own rows."""
    return settings.heterogeneity and not settings.has_penalty
