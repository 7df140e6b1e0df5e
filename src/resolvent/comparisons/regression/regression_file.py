"""Files of regressions: the settings under ``regression``, and under ``data`` the table and the column of the site."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resolvent.comparisons.experiment.binding import bind
from resolvent.comparisons.experiment.changes import Locations, apply_changes
from resolvent.comparisons.experiment.yaml_files import read_text, read_yaml, write_yaml
from resolvent.comparisons.regression.settings import RegressionSettings
from resolvent.data.tables.text_formats import TextFormat
from resolvent.errors import InputError

__all__ = ["RegressionFile", "RegressionTable", "is_regression"]

_KEY = "regression"


@dataclass(frozen=True, kw_only=True)
class RegressionTable:
    """The table of a regression.

    Attributes:
        table: a .csv, .csv.gz, .tsv or .parquet file; in a federation every site has its own.
        party: the column that names the site.
        separator: the character between two values in a text file.
        decimal: the decimal mark of numbers in a text file.
        encoding: character encoding of a text file.
    """

    table: str = ""
    party: str = "site"
    separator: str = "auto"
    decimal: str = "auto"
    encoding: str = "auto"

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
    """

    name: str
    settings: RegressionSettings
    data: RegressionTable

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
            if unknown := [key for key in settings if key not in (_KEY, "data")]:
                raise InputError(f"{unknown[0]}: unknown key; the file of a regression has data and regression")
            part = bind(RegressionSettings, settings[_KEY], path=_KEY)
            data = bind(RegressionTable, settings.get("data") or {}, path="data")
            return cls(name, part.build(), data.build())
        except InputError as error:
            raise type(error)(f"{location(str(error))}: {error}") from error

    @property
    def text(self) -> str:
        """The file with every default, without the path of the table."""
        return write_yaml({"data": {"party": self.data.party},
                           _KEY: bind(RegressionSettings, _without_none(vars(self.settings)), path=_KEY).settings()})


def is_regression(text: str, source: str) -> bool:
    """Whether the text of a file is that of a regression."""
    settings = read_yaml(text, source)
    return isinstance(settings, Mapping) and _KEY in settings


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
