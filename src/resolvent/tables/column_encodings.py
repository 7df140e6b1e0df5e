"""How single columns of a table are encoded: numbers, categories and the label, each fitted once."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from resolvent.data.encoded_rows import RowNames, is_far
from resolvent.data.samples import Task
from resolvent.errors import InputError, nearest, quote, shorten
from resolvent.tables.columns import (
    MAX_CATEGORIES,
    MIN_IDENTIFIER_ROWS,
    Columns,
    Label,
    LabelKind,
    is_boolean,
    is_empty,
    is_text,
    label_kind,
    read_feature,
    read_text,
)
from resolvent.tables.table_options import Scale

if TYPE_CHECKING:
    import pandas as pd

OTHER = "other"  # the level of rare values


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers or true/false; it becomes one input, (x - mean) / deviation.

    Attributes:
        name: name of the column.
        imputed: the number that replaces a missing one: the median of the training rows.
        mean: mean of the training rows; 0 if numbers are not scaled.
        deviation: standard deviation of the training rows; 1 if numbers are not scaled, or are all equal.
        low: smallest number of the training rows; None if it is not known.
        high: largest number of the training rows; None if it is not known.
        is_boolean: whether the column holds true/false.
    """

    name: str
    imputed: float
    mean: float = 0.0
    deviation: float = 1.0
    low: float | None = None
    high: float | None = None
    is_boolean: bool = False

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the model inputs that the column becomes: one, with the column's name."""
        return (self.name,)

    def read(self, column: "pd.Series[Any]") -> NDArray[np.float64]:
        """[n] its numbers in a table; NaN if missing.

        Raises:
            InputError: the table's column holds values of another kind.
        """
        values = read_feature(self.name, column)
        self.check(values, column)
        return values

    def check(self, values: NDArray[Any], column: "pd.Series[Any]") -> None:
        """Refuse values that were read from a column of another kind than the encoding was fitted to.

        Raises:
            InputError: naming the column.
        """
        title = f"column {quote(self.name)}"
        if is_text(values):
            raise InputError(f"{title} holds text ({shorten(column.dtype)}), and the encoding was fitted to numbers: "
                             "convert it to numbers")
        if self.is_boolean and not np.isin(values[~np.isnan(values)], (0, 1)).all():
            raise InputError(f"{title} holds numbers other than 0 and 1, and the encoding was fitted to true/false: "
                             "convert it to true/false")
        if not self.is_boolean and is_boolean(column):
            raise InputError(f"{title} holds true/false, and the encoding was fitted to numbers: convert it to numbers")

    def is_far(self, values: NDArray[np.float64]) -> NDArray[np.bool_]:
        """[n] whether a number is far outside the range of the training rows, see ``is_far``; NaN is not."""
        return is_far(values, self.low, self.high)


@dataclass(frozen=True)
class CategoryColumn:
    """A column of text; it becomes one 0/1 input per level (one-hot encoding).

    Attributes:
        name: name of the column.
        imputed: the level that replaces a missing one: the most frequent level of the training rows.
        levels: the values that may occur, sorted; with rare levels, ``other`` is one of them.
        rare: the rare values, which become the level ``other``.
    """

    name: str
    imputed: str
    levels: tuple[str, ...]
    rare: tuple[str, ...] = ()

    @property
    def features(self) -> tuple[str, ...]:
        """The names of its inputs, ``column=level``."""
        return tuple(f"{self.name}={level}" for level in self.levels)

    def read(self, column: "pd.Series[Any]") -> NDArray[Any]:
        """[n] its levels in a table, as text; NaN if missing."""
        return read_text(column, is_empty(column))

    def encode(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """[n, levels] imputed and one-hot encoded levels.

        An unknown level is ``other`` if there are rare levels, and otherwise a row of zeros.
        """
        number_of = {level: i for i, level in enumerate(self.levels)}
        imputed, unknown = number_of[self.imputed], number_of[OTHER] if self.rare else -1
        numbers = [number_of.get(v, unknown) if isinstance(v, str) else imputed for v in values]
        one_hot: NDArray[np.bool_] = np.array(numbers, int)[:, None] == np.arange(len(self.levels))
        return one_hot.astype(float)

    def is_unknown(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        """[n] whether a value is none of the levels; a missing value is not unknown."""
        levels = {*self.levels, *self.rare}
        return np.array([isinstance(v, str) and v not in levels for v in values], bool)


@dataclass(frozen=True)
class LabelEncoding:
    """The label column.

    Attributes:
        name: name of the column.
        kind: the type of its values.
        task: ``classification`` or ``regression``.
        classes: the classes' names in the order of their numbers; empty for regression.
    """

    name: str
    kind: LabelKind
    task: Task
    classes: tuple[str, ...] = ()

    def encode(self, column: "pd.Series[Any]", rows: RowNames) -> NDArray[Any]:
        """[n] the class numbers (int32) or targets of a table's label column.

        Raises:
            InputError: a label is missing, of another kind, or none of the classes. The message names row and column.
        """
        name = str(column.name)
        rows.refuse(is_empty(column)[:, None], [name],
                    "the label is missing: a sample cannot be used without it; fill it in, or leave the row out")
        kind = label_kind(name, column)
        if kind != self.kind and (kind, self.kind) != ("integer", "decimal"):
            raise InputError(f"the label {quote(name)} holds {kind} values, and the encoding was fitted to "
                             f"{self.kind} values: convert it")
        if self.task == "regression":
            targets: NDArray[Any] = column.to_numpy(dtype=float)
            rows.refuse(~np.isfinite(targets)[:, None], [name], "the label is not finite: correct it, or leave the row "
                        "out")
            return targets
        values = np.array(column.tolist(), {"text": str, "decimal": float}.get(self.kind))
        number_of = {text: i for i, text in enumerate(self.classes)}
        numbers = np.array([number_of.get(str(value), -1) for value in values], np.int32)
        unknown = numbers < 0
        if unknown.any():
            first = str(values[unknown][0])
            rows.refuse(unknown[:, None], [name], f"the label is {quote(first)}, which is not among the "
                        f"classes {shorten(', '.join(map(repr, self.classes)))}{nearest(first, self.classes)}")
        return numbers

    def decode(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """[n] the labels of class numbers, as values of the label column; targets are unchanged."""
        if self.task == "regression":
            return numbers
        value_of: dict[LabelKind, Callable[[str], object]] = {
            "boolean": lambda text: text == "True", "integer": int, "decimal": float, "text": str}
        labels: NDArray[Any] = np.array([value_of[self.kind](name) for name in self.classes])[numbers]
        return labels


def label_encoding(name: str, target: Label, listed: Sequence[str] | None) -> LabelEncoding:
    """The encoding of a label column, with the classes that are listed or that occur."""
    if target.task == "regression":
        return LabelEncoding(name, target.kind, "regression")
    classes = np.unique(target.values).tolist() if listed is None else list_values(listed, target.kind)
    return LabelEncoding(name, target.kind, "classification", tuple(map(str, classes)))


def task_of_labels(labels: Sequence[LabelEncoding]) -> Task:
    """The task of one label, or of several that are predicted together."""
    if len(labels) == 1:
        return labels[0].task
    numbers = [label.name for label in labels if label.task == "regression"]
    if 0 < len(numbers) < len(labels):
        raise InputError(f"label: of several labels all are numbers, or each has two values, and {len(numbers)} of "
                         f"{len(labels)} are decimal numbers, {shorten(', '.join(map(repr, numbers)))}: set task: "
                         "regression, or name fewer labels")
    for label in labels:
        if not numbers and len(label.classes) != 2:
            raise InputError(f"label: of several labels each has two values, and {quote(label.name)} has "
                             f"{len(label.classes)}: name it alone, or set task: regression if all are quantities")
    return "regression" if numbers else "structured"


def fit_numbers(columns: Columns, train: NDArray[np.integer], scale: Scale,
                booleans: frozenset[str]) -> tuple[NumberColumn, ...]:
    """Fit the columns of numbers to the training rows; the arguments are those of ``TableEncoding.fit``."""
    if not columns:
        return ()
    values = np.stack([column[train] for column in columns.values()], axis=1)
    medians = np.nanmedian(values, axis=0).tolist()
    means, deviations = [0.0] * len(columns), [1.0] * len(columns)
    if scale == "standard":
        means, deviations = (part.tolist() for part in _moments(np.where(np.isnan(values), medians, values)))
    lows, highs = np.nanmin(values, axis=0).tolist(), np.nanmax(values, axis=0).tolist()
    return tuple(map(NumberColumn, columns, medians, means, deviations, lows, highs,
                     [name in booleans for name in columns]))


def _moments(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of the columns [n, d]; a deviation that is only rounding is 1.

    They are those of scikit-learn's StandardScaler to the bit, which takes more than 1 s to import: the variance is
    corrected by the sum of the deviations from the rounded mean.

    References:
        Chan, Golub, LeVeque: Algorithms for Computing the Sample Variance, The American Statistician 37, 1983.
    """
    n, unit = len(values), np.finfo(np.float64).eps
    mean = np.sum(values, axis=0) / n
    difference = values - mean
    correction = np.sum(difference, axis=0)
    difference **= 2
    variance = (np.sum(difference, axis=0) - correction**2 / n) / n
    is_constant = variance <= n * unit * variance + (n * mean * unit) ** 2
    return mean, np.where(is_constant, 1.0, np.sqrt(variance))


def fit_categories(columns: Columns, train: NDArray[np.integer], min_rows: int = 0,
                   levels: Mapping[str, Sequence[str]] | None = None) -> tuple[CategoryColumn, ...]:
    """Fit the columns of text: the imputed level to the training rows, the levels to all rows.

    Levels with fewer than ``min_rows`` rows become the level ``other``. ``levels`` has the levels of columns that are
    not fitted: rows with another level have none.
    """
    listed = levels or {}
    if other := next((name for name in listed if name not in columns), None):
        raise InputError(f"levels: the column {quote(other)} is no column of text from which is predicted: "
                         "list levels of columns of text, and of the label, only")
    return tuple(_fit_category(name, values, train, min_rows, listed.get(name)) for name, values in columns.items())


def list_values(levels: Sequence[str], kind: LabelKind = "text") -> tuple[str, ...]:
    """The listed levels of a column, or classes of a label, in the order in which they are encoded."""
    order: Any = {"integer": int, "decimal": float}.get(kind, str)
    try:
        values = tuple(sorted(map(str, levels), key=order))
    except ValueError as error:
        raise InputError(f"levels: {shorten(', '.join(map(repr, levels)))} are no {kind} values: list those that the "
                         "label has") from error
    if not values or len({*values}) < len(values) or "" in values:
        raise InputError(f"levels: {shorten(', '.join(map(repr, levels)))}: list each level once, and at least one")
    return values


def _fit_category(name: str, values: NDArray[Any], train: NDArray[np.integer], min_rows: int,
                  listed: Sequence[str] | None) -> CategoryColumn:
    counts = Counter(values[~is_missing(values)].tolist())
    if listed is not None:
        known = list_values(listed)
        of_training = Counter(values[train][~is_missing(values[train])].tolist())
        return CategoryColumn(name, max(known, key=lambda level: of_training[level]), known)
    column = join_rare(name, _most_frequent(values[train]), counts, min_rows)
    title = f"column {quote(name)}"
    if len(column.rare) == len(counts):
        raise InputError(f"{title} has no level in at least {min_rows} rows (rare_count), so that all would be joined: "
                         "exclude it, or set a smaller rare_count")
    if len(column.levels) > MAX_CATEGORIES:
        raise InputError(f"{title} has {len(column.levels)} levels in at least {min_rows} rows (rare_count), each to "
                         f"become a column (at most {MAX_CATEGORIES}): set a larger rare_count, or exclude it")
    return column


def join_rare(name: str, imputed: str, counts: Mapping[str, int], min_rows: int) -> CategoryColumn:
    """The encoding of a column of text in which levels with fewer than ``min_rows`` rows become the level ``other``.

    Args:
        counts: level -> number of rows.
        min_rows: 0: no level is rare.
    """
    rare = tuple(sorted(level for level, count in counts.items() if count < min_rows and level != OTHER))
    levels = tuple(sorted({*counts, OTHER}.difference(rare) if rare else counts))
    return CategoryColumn(name, OTHER if imputed in rare else imputed, levels, rare)


def looks_like_identifier(values: NDArray[Any]) -> bool:
    """Whether a feature has whole numbers or texts that all differ, as identifiers do."""
    present = values[~is_missing(values)]
    is_whole = is_text(present) or bool((present == np.floor(present)).all())
    return len(present) >= MIN_IDENTIFIER_ROWS and is_whole and len(np.unique(present)) == len(present)


def is_missing(values: NDArray[Any]) -> NDArray[np.bool_]:
    """[n] whether a value that was read is missing."""
    if values.dtype.kind == "f":
        missing: NDArray[np.bool_] = np.isnan(values)
        return missing
    import pandas as pd

    return np.asarray(pd.isna(values))


def _most_frequent(values: NDArray[Any]) -> str:
    """The most frequent text; of equally frequent ones the first in alphabetical order."""
    levels, counts = np.unique(values[~is_missing(values)], return_counts=True)
    return str(levels[np.argmax(counts)])
