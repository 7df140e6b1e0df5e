"""Files of regressions: ``regression`` has the settings."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from typing_extensions import override

from resolvent.comparisons.plan_file import PlanFile
from resolvent.comparisons.regression.formula import parse_formula
from resolvent.comparisons.regression.rows import RegressionRows, read_tables
from resolvent.comparisons.regression.settings import RegressionSettings
from resolvent.errors import InputError
from resolvent.tables.table_options import FileOptions


class RegressionFile(PlanFile[RegressionSettings]):
    """A regression as checked settings."""

    kind: ClassVar[str] = "regression"
    title: ClassVar[str] = "regression"
    example: ClassVar[str] = "{formula: ill ~ age}"
    settings_type: ClassVar[type[Any]] = RegressionSettings

    @classmethod
    @override
    def _for_secure_sums(cls, settings: RegressionSettings, stated: Mapping[str, Any]) -> RegressionSettings:
        if stated.get("heterogeneity"):
            raise InputError("regression.heterogeneity: it compares the fits of single sites, which secure sums hide: "
                             "remove the setting, or privacy. A term such as age:region, with a column of the table, "
                             "still tests whether a coefficient differs")
        return replace(settings, heterogeneity=False)

    @property
    def options(self) -> FileOptions:
        """The table as one of an experiment whose features are all columns that are used; it has no test rows."""
        data, formula = self.data, parse_formula(self.settings.formula)
        used = dict.fromkeys([*formula.response.columns[1:], *formula.variables, *self.settings.columns])
        return FileOptions(data.party, formula.response.label, features=[*used], missing=data.missing or [],
                           text=[*data.text], validation=0.0, test=0.0, **vars(data.format))

    def read_tables(self) -> Iterator[RegressionRows]:
        """The rows of the table, for each imputation or once."""
        return read_tables(self.table, self.settings, party=self.data.party, format=self.data.format,
                           cells=self.data.cells)
