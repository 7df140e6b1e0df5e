"""Files of regressions: ``regression`` has the settings."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from typing_extensions import override

from resolvent.comparisons.plan_file import PlanFile
from resolvent.comparisons.regression.rows import RegressionRows, read_rows
from resolvent.comparisons.regression.settings import RegressionSettings
from resolvent.errors import InputError


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

    def read_rows(self) -> RegressionRows:
        """The rows of the table."""
        return read_rows(self.table, self.settings, party=self.data.party, format=self.data.format,
                         cells=self.data.cells)
