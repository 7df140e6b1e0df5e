"""The regression of a federation: the file of ``resolvent regress``, whose rows are at the sites.

A site acts on two methods: Newton's method, and one round for the sums from which the fit is reported.
"""

import contextlib
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.combinators.fixed_point_sums import FixedPointSums
from resolvent.comparisons.regression.formula import Formula, parse_formula
from resolvent.comparisons.regression.model import RegressionModel
from resolvent.comparisons.regression.regress import newton_of
from resolvent.comparisons.regression.regression_file import RegressionFile
from resolvent.comparisons.regression.settings import RegressionSettings
from resolvent.differential_privacy import PrivacyBudget
from resolvent.errors import InputError
from resolvent.regression.regression_fits import SumsOfFit
from resolvent.tables.table_options import TableOptions

METHOD = "regression"  # its name in the limits of a site
# Columns have any units: with 5 integers for a number, sums over 1024 sites have the range 2^120 and steps of 2^-145.
_LARGEST, _LIMBS, _TERMS = 2.0**120, 5, 1024


@dataclass(frozen=True)
class FederatedRegression:
    """A regression whose rows are at the sites.

    Attributes:
        file: the checked settings.
        is_rehearsal: whether all participants are on one machine.
    """

    file: RegressionFile
    is_rehearsal: bool
    refit: None = None
    keeps_validation: bool = False
    labels: tuple[str, ...] = ("estimates", "sums")
    seeds: tuple[int, ...] = (0,)

    def with_refit(self, refit: Any, keeps_validation: Any) -> "FederatedRegression":
        """The same regression."""
        if refit is not None:
            raise InputError("refit: a regression has no methods that could be trained again: remove the setting")
        return self

    @property
    def text(self) -> str:
        """The text that is sent: every setting, without the path of the lead's table."""
        return self.file.text

    @property
    def settings(self) -> RegressionSettings:
        """The section ``regression`` of the file."""
        return self.file.settings

    @property
    def formula(self) -> Formula:
        """The parsed formula of the settings."""
        return parse_formula(self.settings.formula)

    @property
    def table(self) -> TableOptions:
        """The columns that a site's table must have."""
        formula = self.formula
        columns = dict.fromkeys([*formula.response.columns[1:], *formula.variables, *self.settings.added.values()])
        data = self.file.data
        return TableOptions(data.party, formula.response.label, features=[*columns], missing=data.missing or [],
                            text=[*data.text])

    @property
    def presets(self) -> list[str]:
        """The name of what runs, as the limits of a site have it."""
        return [METHOD]

    @property
    def rounds(self) -> int:
        """Largest number of rounds of a method."""
        return self.settings.rounds

    def rounds_of(self, label: str) -> int:
        """Largest number of rounds of a method."""
        return self.settings.rounds if label == self.labels[0] else 1

    @property
    def total_rounds(self) -> int:
        """Largest number of rounds."""
        return self.settings.rounds + 1

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
    def privacy(self) -> PrivacyBudget | None:
        """The settings of secure sums; None if the server sees the replies."""
        return self.file.privacy

    def precision(self) -> contextlib.AbstractContextManager[None]:
        """A context in which numbers have 64 bits."""
        context: contextlib.AbstractContextManager[None] = jax.enable_x64(True)
        return context


def sends_own_fits(settings: RegressionSettings) -> bool:
    """Whether every site sends the fit of its own rows."""
    return settings.heterogeneity and not settings.has_penalty
