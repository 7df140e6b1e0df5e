"""Files of plans on a table: ``data`` names it, a section of the plan's kind has its settings.

With ``privacy: {secure_sums: true}`` the server of a federation learns sums over the sites only.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeAlias, TypeVar

from resolvent.comparisons.experiment.binding import bind
from resolvent.comparisons.experiment.changes import Locations, apply_changes
from resolvent.comparisons.experiment.yaml_files import read_text, read_yaml, write_yaml
from resolvent.differential_privacy.budget import PrivacyBudget
from resolvent.errors import InputError
from resolvent.tables.cells import CellRules, Codes
from resolvent.tables.table_options import cell_rules
from resolvent.tables.text_formats import TextFormat

Texts: TypeAlias = tuple[str, ...] | list[str]  # a list in a file and in a call, a tuple as a default
Numbers: TypeAlias = tuple[float, ...] | list[float]
_PRIVACY = "privacy"
_Settings = TypeVar("_Settings")


@dataclass(frozen=True, kw_only=True)
class CellOptions:
    """How the cells of a table are read that a program names.

    Attributes:
        missing: cells that stand for a missing value, such as ``['?', -999]``, beside empty ones and words such as NA;
            or column -> such a list. Predictions leave the same cells out.
        text: columns that are categories whatever their values look like, such as codes.
        text_format: how a text file is written; default: recognised from the file.
    """

    missing: Codes | Mapping[str, Codes] | None = None
    text: Collection[str] = ()
    text_format: TextFormat = TextFormat()  # noqa: RUF009 - it is frozen


def settings_of(kind: type[_Settings], options: Any) -> _Settings:
    """The settings of a plan from the options of a call, which has further ones; others are at their defaults."""
    names = [setting.name for setting in fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: getattr(options, name) for name in names if hasattr(options, name)})


@dataclass(frozen=True, kw_only=True)
class PlanTable:
    """The table of a plan.

    Attributes:
        table: a .csv, .csv.gz, .tsv or .parquet file; in a federation every site has its own.
        party: the column that names the site.
        separator: the character between two values in a text file.
        decimal: the decimal mark of numbers in a text file.
        encoding: character encoding of a text file.
        missing: cells that stand for a missing value, such as ['?', -999], beside empty ones and words such as NA; or
            column -> such a list. A regression leaves rows with a missing value out.
        text: columns that are categories whatever their values look like, such as codes.
        exclude: columns that a description without ``columns`` leaves out.
    """

    table: str = ""
    party: str = "site"
    separator: str = "auto"
    decimal: str = "auto"
    encoding: str = "auto"
    missing: Codes | dict[str, Codes] | None = None
    text: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    @property
    def cells(self) -> CellRules:
        """What the cells of the table mean; the names of sites are texts."""
        return cell_rules(self.missing, (self.party, *self.text))

    @property
    def format(self) -> TextFormat:
        """How a text file is written."""
        return TextFormat(self.separator, self.decimal, self.encoding)  # type: ignore[arg-type]


@dataclass(frozen=True)
class PlanFile(Generic[_Settings]):
    """A plan on a table as checked settings.

    Attributes:
        kind: the section of the file that only such a plan has.
        title: what the plan is called in messages to a person.
        example: a valid section.
        needs_party: whether a table in one process must say which site a row is from.
        name: the name of the plan and of its folder.
        settings: the section.
        data: the table.
        privacy: the settings of secure sums in a federation; None: the server sees the sums of each site.
    """

    kind: ClassVar[str]
    title: ClassVar[str]
    example: ClassVar[str]
    settings_type: ClassVar[type[Any]]
    needs_party: ClassVar[bool] = True
    name: str
    settings: _Settings
    data: PlanTable
    privacy: PrivacyBudget | None = None

    @classmethod
    def is_in(cls, path: str) -> bool:
        """Whether a path is that of a file of this kind, and not that of a table or an experiment."""
        if Path(path).suffix.lower() not in (".yaml", ".yml"):
            return False
        settings = read_yaml(read_text(Path(path)), path)
        return isinstance(settings, Mapping) and cls.kind in settings

    @classmethod
    def load(cls, path: str, changes: Sequence[str] = ()) -> Self:
        """Read a file and apply changes, each ``key.path=value``.

        Raises:
            InputError: the file is wrong. The message has the file, the line, the key and the allowed values.
        """
        return cls.parse(read_text(Path(path)), path, Path(path).stem, changes)

    @classmethod
    def parse(cls, text: str, source: str, name: str, changes: Sequence[str] = ()) -> Self:
        """Check the text of a file; see ``load``."""
        return cls.of_settings(read_yaml(text, source), source, name, changes)

    @classmethod
    def of_settings(cls, settings: Any, source: str, name: str, changes: Sequence[str] = ()) -> Self:
        """Check the content of a file, in which the changes are made in place; see ``load``."""
        kind = cls.kind
        if not isinstance(settings, Mapping) or kind not in settings:
            raise InputError(f"{source}:1: {kind}: missing; write {kind}: {cls.example}")
        location = Locations(source, settings, apply_changes(settings, changes))
        with location.of_errors():
            if unknown := [key for key in settings if key not in (kind, "data", _PRIVACY)]:
                raise InputError(f"{unknown[0]}: unknown key; the file of a {cls.title} has data, {kind} and "
                                 f"{_PRIVACY}")
            part = bind(cls.settings_type, settings[kind] or {}, path=kind).build()
            data = bind(PlanTable, settings.get("data") or {}, path="data").build()
            if _PRIVACY not in settings:
                return cls(name, part, data)
            privacy = bind(PrivacyBudget, settings[_PRIVACY], path=_PRIVACY).build()
            if not privacy.secure_sums or privacy.delta is not None:
                raise InputError(f"{_PRIVACY}: the sums of a {cls.title} have no noise, so that no epsilon is "
                                 "measured: write privacy: {secure_sums: true}, without delta")
            return cls(name, cls._for_secure_sums(part, settings[kind]), data, privacy)

    @classmethod
    def _for_secure_sums(cls, settings: Any, stated: Mapping[str, Any]) -> Any:
        """The settings for secure sums.

        Args:
            stated: the section as it was written.
        """
        return settings

    @property
    def table(self) -> str:
        """The path of the table."""
        if not self.data.table:
            raise InputError("data.table: missing; write data: {table: visits.csv, party: hospital}")
        return self.data.table

    @property
    def text(self) -> str:
        """The file with every default, without the path of the table."""
        cells = {"missing": self.data.missing, "text": [*self.data.text] or None}
        settings = {"data": {"party": self.data.party, **_without_none(cells)},
                    self.kind: bind(self.settings_type, _without_none(vars(self.settings)), path=self.kind).settings()}
        if self.privacy is not None:
            settings[_PRIVACY] = bind(PrivacyBudget, _without_none(vars(self.privacy)), path=_PRIVACY).settings()
        return write_yaml(settings)


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
