"""Files of regressions: the settings under ``regression``, and under ``data`` the table and the column of the site.

With ``privacy: {secure_sums: true}`` the server of a federation learns sums over the sites only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from resolvent.comparisons.experiment.binding import bind
from resolvent.comparisons.experiment.changes import Locations, apply_changes
from resolvent.comparisons.experiment.yaml_files import read_text, read_yaml, write_yaml
from resolvent.comparisons.regression.rows import RegressionRows, read_rows
from resolvent.comparisons.regression.settings import RegressionSettings
from resolvent.differential_privacy import PrivacyBudget
from resolvent.errors import InputError
from resolvent.tables.cells import CellRules, Codes
from resolvent.tables.table_options import cell_rules
from resolvent.tables.text_formats import TextFormat

_KEY, _PRIVACY = "regression", "privacy"


@dataclass(frozen=True, kw_only=True)
class RegressionTable:
    """The table of a regression.

    Attributes:
        table: a .csv, .csv.gz, .tsv or .parquet file; in a federation every site has its own.
        party: the column that names the site.
        separator: the character between two values in a text file.
        decimal: the decimal mark of numbers in a text file.
        encoding: character encoding of a text file.
        missing: cells that stand for a missing value, such as ['?', -999], beside empty ones and words such as NA; or
            column -> such a list. Rows with a missing value are left out.
        text: columns that are categories whatever their values look like, such as codes.
    """

    table: str = ""
    party: str = "site"
    separator: str = "auto"
    decimal: str = "auto"
    encoding: str = "auto"
    missing: Codes | dict[str, Codes] | None = None
    text: tuple[str, ...] = ()

    @property
    def cells(self) -> CellRules:
        """What the cells of the table mean; the names of sites are texts."""
        return cell_rules(self.missing, (self.party, *self.text))

    @property
    def format(self) -> TextFormat:
        """How a text file is written."""
        return TextFormat(self.separator, self.decimal, self.encoding)  # type: ignore[arg-type]


@dataclass(frozen=True)
class RegressionFile:
    """A regression as checked settings.

    Attributes:
        name: the name of the regression and of its folder.
        settings: what is fitted.
        data: the table.
        privacy: the settings of secure sums in a federation; None: the server sees the sums of each site.
    """

    name: str
    settings: RegressionSettings
    data: RegressionTable
    privacy: PrivacyBudget | None = None

    @classmethod
    def load(cls, path: str, changes: Sequence[str] = ()) -> "RegressionFile":
        """Read a file and apply changes, each ``key.path=value``.

        Raises:
            InputError: the file is wrong. The message has the file, the line, the key and the allowed values.
        """
        return cls.parse(read_text(Path(path)), path, Path(path).stem, changes)

    @classmethod
    def parse(cls, text: str, source: str, name: str, changes: Sequence[str] = ()) -> "RegressionFile":
        """Check the text of a file; see ``load``."""
        settings = read_yaml(text, source)
        if not isinstance(settings, Mapping) or _KEY not in settings:
            raise InputError(f"{source}:1: regression: missing; write regression: {{formula: ill ~ age}}")
        location = Locations(source, settings, apply_changes(settings, changes))
        try:
            if unknown := [key for key in settings if key not in (_KEY, "data", _PRIVACY)]:
                raise InputError(f"{unknown[0]}: unknown key; the file of a regression has data, regression and "
                                 f"{_PRIVACY}")
            part = bind(RegressionSettings, settings[_KEY], path=_KEY).build()
            data = bind(RegressionTable, settings.get("data") or {}, path="data").build()
            if _PRIVACY not in settings:
                return cls(name, part, data)
            privacy = bind(PrivacyBudget, settings[_PRIVACY], path=_PRIVACY).build()
            if not privacy.secure_sums or privacy.delta is not None:
                raise InputError(f"{_PRIVACY}: the sums of a regression have no noise, so that no epsilon is measured: "
                                 "write privacy: {secure_sums: true}, without delta")
            if settings[_KEY].get("heterogeneity"):
                raise InputError(f"{_KEY}.heterogeneity: it compares the fits of single sites, which secure sums hide: "
                                 f"remove the setting, or {_PRIVACY}. A term such as age:region, with a column of the "
                                 "table, still tests whether a coefficient differs")
            return cls(name, replace(part, heterogeneity=False), data, privacy)
        except InputError as error:
            raise type(error)(f"{location(str(error))}: {error}") from error

    @property
    def table(self) -> str:
        """The path of the table."""
        if not self.data.table:
            raise InputError("data.table: missing; write data: {table: visits.csv, party: hospital}")
        return self.data.table

    def read_rows(self) -> RegressionRows:
        """The rows of the table."""
        return read_rows(self.table, self.settings, party=self.data.party, format=self.data.format,
                         cells=self.data.cells)

    @property
    def text(self) -> str:
        """The file with every default, without the path of the table."""
        cells = {"missing": self.data.missing, "text": [*self.data.text] or None}
        settings = {"data": {"party": self.data.party, **_without_none(cells)},
                    _KEY: bind(RegressionSettings, _without_none(vars(self.settings)), path=_KEY).settings()}
        if self.privacy is not None:
            settings[_PRIVACY] = bind(PrivacyBudget, _without_none(vars(self.privacy)), path=_PRIVACY).settings()
        return write_yaml(settings)


def is_regression(text: str, source: str) -> bool:
    """Whether the text of a file is that of a regression."""
    settings = read_yaml(text, source)
    return isinstance(settings, Mapping) and _KEY in settings


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
