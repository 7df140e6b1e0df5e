"""What every fitted encoding does: from the rows of a table, images, texts or arrays to the inputs of a model.

An encoding needs no training data, so that a party can apply it where its own data are.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from resolvent.data.samples import Task
from resolvent.errors import InputError, nearest, shorten

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class RowNames:
    """The names of a table's rows in errors.

    Attributes:
        index: the rows' index labels: for a text file the lines on which they begin.
        parties: [n] the parties' names; None if the table has no such column.
    """

    index: "pd.Index[Any]"
    parties: NDArray[Any] | None = None

    def refuse(self, wrong: NDArray[np.bool_], columns: Sequence[str], reason: str) -> None:
        """Raise an error with the first row and column for which ``wrong`` [n, columns] is true, if there is one."""
        if wrong.any():
            i, j = np.argwhere(wrong)[0]
            party = "" if self.parties is None else f"party {shorten(repr(self.parties[i]))}, "
            label = str(self.index[i])
            row = shorten(label if label.isprintable() else repr(label))
            raise InputError(f"{party}row {row}, column {shorten(repr(columns[j]))}: {reason}")


def check_once(name: str, counts: Mapping[str, int], purpose: str) -> None:
    """Raise an error unless a table has one column of this name; it lists the columns, whose numbers are ``counts``."""
    if counts.get(name, 0) != 1:
        number = "more than one" if name in counts else "no"
        raise InputError(f"the table has {number} column {shorten(repr(name))}, {purpose}: its columns are "
                         f"{shorten(', '.join(map(repr, counts)))}{nearest(name, set(counts) - {name})}")


class UnusualRowsWarning(UserWarning):
    """Rows can be encoded, but differ from the training rows in a way that a reader of predictions should know."""


class Far(NamedTuple):
    """Values far outside the range of the training rows: by more than the width of the range.

    Attributes:
        rows: number of rows with such values.
        low: smallest value of the training rows.
        high: largest value of the training rows.
        example: one of the values.
    """

    rows: int
    low: float
    high: float
    example: float


class Drift(NamedTuple):
    """A column of new rows that is distributed otherwise than in the training rows.

    Attributes:
        distance: the population stability index.
        bound: the index that rows of the same distribution exceed rarely, for these numbers of rows.
        values: the values whose share has grown most.
        before: their share of the training rows.
        after: their share of the new rows.
    """

    column: str
    distance: float
    bound: float
    values: str
    before: float
    after: float


@dataclass(frozen=True)
class Remarks:
    """How rows differ from the training rows.

    Attributes:
        rows: number of rows.
        unused: names of the columns that the model does not use.
        imputed: name of a column -> number of missing values that were imputed.
        far: name of a column, or ``input`` -> the values far outside the range of the training rows.
        unknown: number of words or characters that are not in the vocabulary.
        unseen: name of a column -> number of rows of each level that the training table did not have.
        drift: the columns that are distributed otherwise than in the training rows.
    """

    rows: int
    unused: tuple[str, ...] = ()
    imputed: tuple[tuple[str, int], ...] = ()
    far: tuple[tuple[str, Far], ...] = ()
    unknown: int = 0
    unseen: tuple[tuple[str, Mapping[str, int]], ...] = ()
    drift: tuple[Drift, ...] = ()

    def messages(self) -> tuple[str, ...]:
        """One sentence for each remark."""
        lines = [f"{shorten(repr(name))}: {far.rows} of {self.rows} rows lie far outside the training rows' range, "
                 f"{far.low:g} to {far.high:g}, such as {far.example:g}: check the unit" for name, far in self.far]
        lines += [f"{shorten(repr(name))}: {count} of {self.rows} values are missing and were imputed"
                  for name, count in self.imputed]
        lines += [f"{shorten(repr(d.column))} has drifted (stability index {d.distance:.2f}, bound {d.bound:.2f}): "
                  f"{shorten(d.values)} are {d.after:.0%} of these rows, and {d.before:.0%} of the training rows"
                  for d in self.drift]
        if self.unseen:
            lines.append(f"Levels did not occur in the training table: {shorten(list_levels(self.unseen))}")
        if self.unknown:
            lines.append(f"Words or characters are not in the vocabulary ({self.unknown})")
        if self.unused:
            lines.append(f"The model does not use the columns {shorten(', '.join(map(repr, self.unused)))}")
        return tuple(lines)


def list_levels(levels: Iterable[tuple[str, Mapping[str, int]]]) -> str:
    """The levels of columns and their numbers of rows, as text."""
    return "; ".join(f"{name!r}: {', '.join(f'{level!r} ({n})' for level, n in counts.items())}"
                     for name, counts in levels)


class EncodedRows(NamedTuple):
    """Rows as inputs of a model.

    Attributes:
        x: [n, ...] inputs.
        names: the rows' names in errors and predictions; of a text file, the lines on which rows begin.
        remarks: how the rows differ from the training rows.
    """

    x: NDArray[Any]
    names: "pd.Index[Any]"
    remarks: Remarks


class Encoding(ABC):
    """How rows become inputs, fitted once to the training rows and applied to any rows.

    Subclasses are frozen dataclasses with plain values only, so that they can be written to JSON.
    """

    @property
    @abstractmethod
    def task(self) -> Task:
        """Classification or regression."""

    @property
    @abstractmethod
    def classes(self) -> tuple[str, ...]:
        """The classes' names, in the order of their numbers; empty for regression."""

    @property
    @abstractmethod
    def features(self) -> tuple[str, ...]:
        """The names of the inputs; empty if they have none."""

    @property
    @abstractmethod
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input, without the axis of the rows."""

    @property
    @abstractmethod
    def vocabulary(self) -> tuple[str, ...]:
        """The texts of the tokens 0, 1, ..., if inputs are sequences of tokens."""

    @property
    def outputs(self) -> int:
        """The number of outputs that a model needs: one per class; 1 for regression."""
        return len(self.classes) if self.task == "classification" else 1

    @abstractmethod
    def encode(self, rows: Any) -> EncodedRows:
        """Encode rows.

        Args:
            rows: a table for a ``TableEncoding``; arrays, images or texts for an ``ArrayEncoding``.

        Raises:
            InputError: rows do not fit the encoding. The message names the row and the column.
        """

    @abstractmethod
    def encode_labels(self, rows: Any, labels: Any = None) -> NDArray[Any]:
        """[n] class numbers or targets of rows.

        Args:
            rows: the rows.
            labels: [n] labels; None: those in the label column of the table.

        Raises:
            InputError: a label is missing, or is none of the classes.
        """

    @abstractmethod
    def decode_labels(self, y: NDArray[Any]) -> NDArray[Any]:
        """[n] labels, as the data have them, of class numbers or targets."""

    def transform(self, rows: Any) -> NDArray[Any]:
        """[n, ...] the inputs of rows, see ``encode``."""
        return self.encode(rows).x


def is_far(values: NDArray[Any], low: float | None, high: float | None) -> NDArray[np.bool_]:
    """Whether numbers lie outside the range [low, high] by more than its width; False if the range is not known."""
    if low is None or high is None:
        return np.zeros(values.shape, bool)
    width = high - low
    result: NDArray[np.bool_] = (values < low - width) | (values > high + width)
    return result


def count_far(is_far: NDArray[np.bool_], values: NDArray[Any], low: float | None, high: float | None) -> Far | None:
    """The values for which ``is_far`` is true, and the range of the training rows; None if there are none."""
    if low is None or high is None or not is_far.any():
        return None
    by_row = is_far.reshape(len(is_far), -1).any(axis=1)
    return Far(int(by_row.sum()), low, high, float(values[is_far][0]))


class UnencodedRows(Protocol):
    """The columns of a table in the packed order of its rows, from which the inputs of another split are made."""

    def reordered(self, positions: NDArray[np.integer]) -> "UnencodedRows":
        """The same rows in another packed order, by their present positions."""
        ...

    def encode(self, train: NDArray[np.integer]) -> tuple[NDArray[np.float32], Encoding]:
        """The inputs in the packed order, by an encoding that is fitted to the training rows.

        Args:
            train: the positions of the training rows in the packed order.
        """
        ...
