"""The encoding of a table: how its columns become the inputs of a model, fitted once and applied to any rows.

Imputed values, means and deviations are fitted to the training rows of all parties, pooled: no validation or test row
changes them. A simulation can pool; in a real federation no party sees another's rows, and the parties would have to
agree on these numbers. Categories and marks of missing values are those of all rows, so that the columns of the inputs
do not depend on the seed of the split.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from resolvent.data.columns import (
    Columns,
    LabelKind,
    RowNames,
    check_magnitudes,
    is_empty,
    is_text,
    read_feature,
    read_parties,
    read_text,
)
from resolvent.data.samples import Task
from resolvent.errors import InputError, nearest, shorten

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CategoryColumn", "LabelEncoding", "Missing", "NumberColumn", "Scale", "TableEncoding", "check_missing",
           "missing_values"]

Missing = Literal["refuse", "impute", "indicate"]
Scale = Literal["standard", "none"]


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers or true/false; it becomes one input, (x - mean) / deviation.

    Attributes:
        name: of the column.
        imputed: the number that replaces a missing one: the median of the training rows.
        mean: of the training rows; 0 if numbers are not scaled.
        deviation: standard deviation of the training rows; 1 if numbers are not scaled, or are all equal.
    """

    name: str
    imputed: float
    mean: float = 0.0
    deviation: float = 1.0

    @property
    def features(self) -> tuple[str, ...]:
        """The names of its inputs."""
        return (self.name,)

    def read(self, column: "pd.Series[Any]") -> NDArray[np.float64]:
        """[n] its numbers in a table; NaN if missing.

        Raises:
            InputError: the table's column does not hold numbers.
        """
        values = read_feature(self.name, column)
        if is_text(values):
            raise InputError(f"column {shorten(repr(self.name))} holds text ({shorten(column.dtype)}), and the "
                             "encoding was fitted to numbers: convert it to numbers")
        return values

    def encode(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """[n, 1] imputed and scaled numbers."""
        scaled: NDArray[np.float64] = (np.where(np.isnan(values), self.imputed, values) - self.mean) / self.deviation
        return scaled[:, None]


@dataclass(frozen=True)
class CategoryColumn:
    """A column of text; it becomes one 0/1 input per level (one-hot encoding).

    Attributes:
        name: of the column.
        imputed: the level that replaces a missing one: the most frequent level of the training rows.
        levels: the values that may occur, sorted.
    """

    name: str
    imputed: str
    levels: tuple[str, ...]

    @property
    def features(self) -> tuple[str, ...]:
        """The names of its inputs, ``column=level``."""
        return tuple(f"{self.name}={level}" for level in self.levels)

    def read(self, column: "pd.Series[Any]") -> NDArray[Any]:
        """[n] its levels in a table, as text; NaN if missing."""
        return read_text(column, is_empty(column))

    def encode(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """[n, levels] imputed and one-hot encoded levels; a row of zeros for an unknown level."""
        number_of = {level: i for i, level in enumerate(self.levels)}
        imputed = number_of[self.imputed]
        numbers = [number_of.get(v, -1) if isinstance(v, str) else imputed for v in values]
        one_hot: NDArray[np.bool_] = np.array(numbers, int)[:, None] == np.arange(len(self.levels))
        return one_hot.astype(float)

    def is_unknown(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        """[n] whether a value is none of the levels; a missing value is not unknown."""
        levels = set(self.levels)
        return np.array([isinstance(v, str) and v not in levels for v in values], bool)


@dataclass(frozen=True)
class LabelEncoding:
    """The label column.

    Attributes:
        name: of the column.
        kind: the type of its values.
        task: ``classification`` or ``regression``.
        classes: the classes' names in the order of their numbers; empty for regression.
    """

    name: str
    kind: LabelKind
    task: Task
    classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TableEncoding:
    """How the columns of a table become inputs.

    All fields are plain values, so that the object can be written to JSON with ``dataclasses.asdict``.

    Attributes:
        party: the column that names the party.
        label: the label column.
        numbers: the columns of numbers and true/false, in the order of the inputs.
        categories: the columns of text; their inputs follow those of the numbers.
        marked: the columns whose missing values are marked by a 0/1 input ``column missing``; these inputs are last.
        missing: ``refuse``: a missing value is an error; ``impute`` and ``indicate``: it is imputed.
    """

    party: str
    label: LabelEncoding
    numbers: tuple[NumberColumn, ...]
    categories: tuple[CategoryColumn, ...]
    marked: tuple[str, ...]
    missing: Missing

    @classmethod
    def fit(cls, columns: Columns, train: NDArray[np.integer], *, party: str, label: LabelEncoding, missing: Missing,
            scale: Scale) -> "TableEncoding":
        """Fit an encoding to the columns of a table.

        Args:
            columns: [n] values of each feature, in order: floats, or objects that are text; NaN if missing.
            train: the training rows, from which imputed values, means and deviations are computed.
            party: the column that names the party.
            label: the label column.
            missing: what to do with missing values.
            scale: ``standard``: numbers get mean 0 and deviation 1 over the training rows; ``none``: they do not.

        Raises:
            InputError: a column has missing values and no value in a training row.
        """
        gaps = missing_values(columns)
        for name in gaps:
            if gaps[name][train].all():
                raise InputError(f"column {shorten(repr(name))} has no value in any training row, so there is nothing "
                                 "to impute: exclude it, or use smaller shares for validation and test")
        texts = {name: values for name, values in columns.items() if is_text(values)}
        numbers = {name: values for name, values in columns.items() if name not in texts}
        return cls(party, label, _fit_numbers(numbers, train, scale), _fit_categories(texts, train),
                   tuple(gaps) if missing == "indicate" else (), missing)

    @property
    def columns(self) -> tuple[NumberColumn | CategoryColumn, ...]:
        """The columns in the order of their inputs."""
        return (*self.numbers, *self.categories)

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the inputs."""
        return (*(name for column in self.columns for name in column.features),
                *(f"{name} missing" for name in self.marked))

    def transform(self, frame: "pd.DataFrame") -> NDArray[np.float32]:
        """The inputs of a table's rows.

        Args:
            frame: a table that has at least the columns of the encoding; it is not changed. The columns of the party
                and the label may be absent.

        Returns:
            [n, features] inputs.

        Raises:
            InputError: a column is absent or holds values of another kind; a value is missing (if the encoding refuses
                that), infinite, or a level that the fitted table did not have. The message names row and column.
        """
        import pandas as pd

        names = [str(c) for c in frame.columns]
        frame = frame.set_axis(pd.Index(names, dtype=object), axis=1)
        for column in self.columns:
            if names.count(column.name) != 1:
                count = "no" if column.name not in names else "more than one"
                raise InputError(f"the table has {count} column {shorten(repr(column.name))}, which the encoding needs "
                                 f"once: its columns are {shorten(', '.join(map(repr, names)))}"
                                 f"{nearest(column.name, set(names) - {column.name})}")
        parties = read_parties(frame[self.party]) if names.count(self.party) == 1 else None
        rows = RowNames(frame.index, parties)
        columns: Columns = {column.name: column.read(frame[column.name]) for column in self.columns}
        check_magnitudes(columns.items(), rows)
        if self.missing == "refuse":
            check_missing(columns, rows)
        for category in self.categories:
            rows.refuse(category.is_unknown(columns[category.name])[:, None], [category.name],
                        f"the value is none of {shorten(', '.join(map(repr, category.levels)))}, the values of the "
                        "table that the encoding was fitted to: correct it, or leave the row out")
        return self.encode(columns, rows)

    def encode(self, columns: Columns, rows: RowNames) -> NDArray[np.float32]:
        """[n, features] inputs of columns that were read and checked.

        Raises:
            InputError: a scaled number exceeds a 32-bit float.
        """
        blocks = [column.encode(columns[column.name]) for column in self.columns]
        gaps = missing_values(columns)
        blocks += [gaps.get(name, np.zeros(len(rows.index), bool))[:, None].astype(float) for name in self.marked]
        with np.errstate(over="ignore"):
            x = np.hstack(blocks).astype(np.float32)
        rows.refuse(~np.isfinite(x), self.features, "once scaled, the value is too large for a 32-bit float, because "
                    "the training rows hardly differ in this column: correct it, or set scale: none")
        return x


def missing_values(columns: Columns) -> dict[str, NDArray[np.bool_]]:
    """[n] whether a value is missing, of each column that has missing values."""
    gaps = {name: _is_missing(values) for name, values in columns.items()}
    return {name: gap for name, gap in gaps.items() if gap.any()}


def check_missing(columns: Columns, rows: RowNames) -> None:
    """Raise an error if a value is missing; it names the first one and counts all of them."""
    gaps = missing_values(columns)
    if gaps:
        count = sum(int(gap.sum()) for gap in gaps.values())
        rows.refuse(np.column_stack(list(gaps.values())), list(gaps),
                    f"the value is missing (missing values: {count}, columns with any: {len(gaps)}): set missing: "
                    "impute, or indicate to mark them as well, or exclude the column")


def _fit_numbers(columns: Columns, train: NDArray[np.integer], scale: Scale) -> tuple[NumberColumn, ...]:
    from sklearn.impute import SimpleImputer  # here, because importing scikit-learn takes more than 1 s
    from sklearn.preprocessing import StandardScaler

    if not columns:
        return ()
    imputer = SimpleImputer(strategy="median")
    filled = imputer.fit_transform(np.column_stack(list(columns.values()))[train])
    medians = imputer.statistics_.tolist()
    if scale == "none":
        return tuple(map(NumberColumn, columns, medians))
    scaler = StandardScaler().fit(filled)
    return tuple(map(NumberColumn, columns, medians, scaler.mean_.tolist(), scaler.scale_.tolist()))


def _fit_categories(columns: Columns, train: NDArray[np.integer]) -> tuple[CategoryColumn, ...]:
    return tuple(CategoryColumn(name, _most_frequent(values[train]), tuple(sorted({*values[~_is_missing(values)]})))
                 for name, values in columns.items())


def _is_missing(values: NDArray[Any]) -> NDArray[np.bool_]:
    import pandas as pd

    return np.asarray(pd.isna(values))


def _most_frequent(values: NDArray[Any]) -> str:
    """The most frequent text; of equally frequent ones the first in alphabetical order."""
    levels, counts = np.unique(values[~_is_missing(values)], return_counts=True)
    return str(levels[np.argmax(counts)])
