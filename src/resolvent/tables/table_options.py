"""The options of a table: what an experiment file, a site or a call says about reading and encoding it."""

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, Literal, Self, get_args

from resolvent.errors import InputError
from resolvent.tables.cells import ALL_COLUMNS, CellRules, Codes
from resolvent.tables.text_formats import Decimal, TextFormat

SITE_TABLE = "the table of each site"  # instead of a path, in the experiment of a federation

AnyTask = Literal["auto", "classification", "regression"]
Missing = Literal["refuse", "impute", "indicate"]
Scale = Literal["standard", "none"]
Dates = Literal["refuse", "days", "parts"]
Rare = Literal["keep", "other"]
Unseen = Literal["refuse", "other", "missing"]


def cell_rules(missing: str | Codes | Mapping[str, Codes] | None, text: Iterable[str]) -> CellRules:
    """The rules of the settings ``missing`` and ``text``; words of ``missing`` such as ``impute`` are no cells."""
    lists = missing if isinstance(missing, Mapping) else {} if missing is None or isinstance(missing, str) else {
        ALL_COLUMNS: missing}
    return CellRules({name: tuple(code for code in codes if name != ALL_COLUMNS or code not in get_args(Missing))
                      for name, codes in lists.items()}, frozenset(text))


@dataclass(frozen=True)
class TableOptions:
    """How a table with a row per sample becomes inputs and labels of parties.

    Attributes:
        party: the column that names the party. In a text file it is read as text, so that ``007`` is not ``7``.
        label: the column to predict; or several, which are all numbers, for regression, or have two values each.
        features: the columns to predict from, in this order; default: all but ``party`` and ``label``.
        exclude: columns to leave out.
        task: ``classification``, ``regression``, or ``auto``: regression if the label is a decimal number,
            classification if it is an integer, true/false, text or a category.
        missing: what to do if a feature is empty, NaN, None, blank text or a word such as NA: ``refuse`` it;
            ``impute`` the median of the numbers or the most frequent category; or impute it and ``indicate`` it in a
            0/1 column. A missing party or label is always refused. A list has further cells that stand for a missing
            value, such as ``['?', -999]`` or ``[impute, '?', -999]``. A mapping has such lists of single columns, which
            replace the words such as NA, and under ``*`` the list of all others: ``{age: [-999], '*': [impute]}``.
        text: columns that are categories whatever their values look like, such as codes. A column with leading zeros,
            such as ``0117``, is one in any case.
        scale: ``standard`` gives numbers mean 0 and deviation 1 over the training rows; ``none`` does not.
        validation: share of each party's rows for validation.
        test: share of each party's rows for testing.
        seed: seed of the split.
        weight: a column of numbers, the weight of each row in the loss, as if the row occurred this many times.
            Predictions do not use it, and scores count every row once.
        dates: what to do with a column of dates: ``refuse`` it; replace it by a number, the ``days`` since 1970-01-01;
            or by its ``parts``: year, month and weekday.
        rare: what to do with the rare levels of a column of text: ``keep`` them, or join them in the level ``other``.
            At most 100 levels may be left.
        rare_count: a level is rare if it has fewer rows.
        unseen: what a model does with levels of new rows that the table does not have: ``refuse`` the rows; take them
            for the level ``other``, or for no level if nothing was joined; or take them for ``missing`` values.
        levels: column of text -> its levels, or the label -> its classes, so that none is read from the rows. Rows with
            another level have none, that is, zeros in the inputs of the column; another class is refused.

    Raises:
        InputError: the list of labels is empty, or two options exclude each other.
    """

    party: str
    label: str | list[str]
    _: KW_ONLY
    features: list[str] | None = None
    exclude: list[str] | None = None
    task: AnyTask = "auto"
    missing: Missing | Codes | dict[str, Codes] = "refuse"
    text: list[str] | None = None
    scale: Scale = "standard"
    validation: float = 0.2
    test: float = 0.2
    seed: int = 0
    weight: str | None = None
    dates: Dates = "refuse"
    rare: Rare = "keep"
    rare_count: int = 10
    unseen: Unseen = "refuse"
    levels: dict[str, list[str]] | None = None

    def __post_init__(self) -> None:
        if not self.label:
            raise InputError("label: the list is empty: name the column to predict, or several")
        if len(words := self._missing_words) > 1:
            raise InputError(f"missing: {' and '.join(words)} exclude each other: name one")
        if self.unseen == "missing" and self.treatment == "refuse":
            raise InputError("unseen: missing needs missing: impute or indicate, because missing values are refused")
        if self.levels and self.rare == "other":
            raise InputError("levels: list the levels, or join the rare ones with rare: other, not both")
        if self.rare_count < 1:
            raise InputError(f"rare_count={self.rare_count} must be at least 1")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """The options among these values, such as those of an experiment's data."""
        known = {item.name for item in fields(cls) if item.init}
        return cls(**{name: value for name, value in values.items() if name in known})

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns to predict."""
        return (self.label,) if isinstance(self.label, str) else tuple(self.label)

    @property
    def _missing_words(self) -> list[Missing]:
        """What ``missing`` says about the treatment of missing values, beside the cells that stand for one."""
        codes = self.missing.get(ALL_COLUMNS, []) if isinstance(self.missing, dict) else self.missing
        words: list[Any] = [codes] if isinstance(codes, str) else codes
        return [word for word in words if word in get_args(Missing)]

    @property
    def treatment(self) -> Missing:
        """What is done with missing values."""
        return next(iter(self._missing_words), "refuse")

    @property
    def cells(self) -> CellRules:
        """What the cells of the table mean; the names of parties are texts."""
        return cell_rules(self.missing, [self.party, *(self.text or [])])

    @property
    def missing_columns(self) -> list[str]:
        """The columns whose own cells stand for a missing value."""
        return [name for name in self.missing if name != ALL_COLUMNS] if isinstance(self.missing, dict) else []

    def uses(self, column: str) -> bool:
        """Whether a column is a label, the weight or a feature, if the table has it."""
        is_feature = column in self.features if self.features else column not in (self.party, *(self.exclude or []))
        return is_feature or column in (*self.labels, self.weight)

    @property
    def min_level_rows(self) -> int:
        """Levels with fewer rows are joined; 0: none."""
        return self.rare_count if self.rare == "other" else 0


@dataclass(frozen=True, kw_only=True)
class FileOptions(TableOptions):
    """The options of a table in a file.

    Attributes:
        separator: the character between two values in a text file. ``auto``: a comma (in ``.tsv`` a tab), or the one of
            comma, semicolon, tab and ``|`` that gives a header with the columns ``party`` and ``label``.
        decimal: the decimal mark of numbers in a text file. ``auto``: a point; or a comma if values are not separated
            by commas, numbers have commas that cannot separate thousands, and none has a point.
        encoding: encoding of a text file. ``auto``: UTF-8, or what the file's byte-order mark says.
    """

    separator: str = "auto"
    decimal: Decimal = "auto"
    encoding: str = "auto"

    @property
    def format(self) -> TextFormat:
        """How a text file is written."""
        return TextFormat(self.separator, self.decimal, self.encoding)
