"""The encoding of a table: how its columns become the inputs of a model, fitted once and applied to any rows.

Imputed values, means and deviations are fitted to the training rows of all parties, pooled: no validation or test row
changes them. A simulation can pool; in a real federation no party sees another's rows, and the parties would have to
agree on these numbers. Categories and marks of missing values are those of all rows, so that the columns of the inputs
do not depend on the seed of the split.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from resolvent.data.encoded_rows import (
    EncodedRows,
    Encoding,
    Far,
    Remarks,
    RowNames,
    check_once,
    count_far,
    list_levels,
)
from resolvent.data.samples import Task
from resolvent.errors import InputError, quote, shorten
from resolvent.tables.cells import CellRules, Code, read_cells
from resolvent.tables.column_encodings import (
    CategoryColumn,
    LabelEncoding,
    NumberColumn,
    fit_categories,
    fit_numbers,
    is_missing,
    task_of_labels,
)
from resolvent.tables.columns import Columns, check_magnitudes, is_text, plain_numbers, read_parties
from resolvent.tables.dates import DateColumn, expand_dates
from resolvent.tables.table_options import Missing, TableOptions, Unseen

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class TableEncoding(Encoding):
    """How the columns of a table become inputs.

    All fields are plain values, so that the object can be written to JSON with ``dataclasses.asdict``.

    Attributes:
        party: the column that names the party.
        labels: the label columns. Several are all for regression, or each has two classes.
        numbers: the columns of numbers and true/false, in the order of the inputs.
        categories: the columns of text; their inputs follow those of the numbers.
        marked: the columns whose missing values are marked by a 0/1 input ``column missing``; these inputs are last.
        missing: ``refuse``: a missing value is an error; ``impute`` and ``indicate``: it is imputed.
        dates: the columns of dates, which become columns of numbers first.
        codes: column, or ``*`` for all -> the cells that stand for a missing value, see ``CellRules``.
        unseen: what happens to a level that the fitted table did not have: ``refuse`` it; ``other``: it is the level
            ``other`` if the column has it, and otherwise no level; ``missing``: it is a missing value.
        site_names: (name, name in the tables of the model's site) of columns that have another one there.
    """

    party: str
    labels: tuple[LabelEncoding, ...]
    numbers: tuple[NumberColumn, ...]
    categories: tuple[CategoryColumn, ...]
    marked: tuple[str, ...]
    missing: Missing
    dates: tuple[DateColumn, ...] = ()
    unseen: Unseen = "refuse"
    codes: tuple[tuple[str, tuple[Code, ...]], ...] = ()
    site_names: tuple[tuple[str, str], ...] = ()

    @classmethod
    def fit(cls, columns: Columns, train: NDArray[np.integer], *, options: TableOptions,
            labels: tuple[LabelEncoding, ...], booleans: frozenset[str] = frozenset(),
            dates: tuple[DateColumn, ...] = ()) -> "TableEncoding":
        """Fit an encoding to the columns of a table.

        Args:
            columns: [n] values of each feature, in order: floats, or objects that are text; NaN if missing.
            train: the training rows, from which imputed values, means and deviations are computed.
            labels: the encoding of each label.
            booleans: the names of the columns that hold true/false.
            dates: the columns that are dates.

        Raises:
            InputError: a column has missing values and no value in a training row, or only rare or too many levels.
        """
        gaps = missing_values(columns)
        for name in gaps:
            if gaps[name][train].all():
                raise InputError(f"column {quote(name)} has no value in any training row, so there is nothing "
                                 "to impute: exclude it, or use smaller shares for validation and test")
        texts = {name: values for name, values in columns.items() if is_text(values)}
        numbers = {name: values for name, values in columns.items() if name not in texts}
        listed = {name: levels for name, levels in (options.levels or {}).items() if name not in options.labels}
        marked = tuple(gaps) if options.treatment == "indicate" else ()
        return cls(options.party, labels, fit_numbers(numbers, train, options.scale, booleans),
                   fit_categories(texts, train, options.min_level_rows, listed), marked, options.treatment,
                   dates, options.unseen, tuple((name, tuple(codes)) for name, codes in options.cells.codes.items()))

    @property
    def cells(self) -> CellRules:
        """What the cells of a table mean; the levels of categories and the classes that are texts are texts."""
        labels = (label.name for label in self.labels if label.kind == "text")
        return CellRules(dict(self.codes), frozenset((self.party, *(c.name for c in self.categories), *labels)))

    @property
    def columns(self) -> tuple[NumberColumn | CategoryColumn, ...]:
        """The columns in the order of their inputs."""
        return (*self.numbers, *self.categories)

    @property
    @override
    def task(self) -> Task:
        return task_of_labels(self.labels)

    @property
    @override
    def classes(self) -> tuple[str, ...]:
        return self.labels[0].classes if len(self.labels) == 1 else ()

    @property
    @override
    def outputs(self) -> int:
        return super().outputs if len(self.labels) == 1 else len(self.labels)

    @property
    @override
    def features(self) -> tuple[str, ...]:
        return (*(name for column in self.columns for name in column.features),
                *(f"{name} missing" for name in self.marked))

    @property
    @override
    def input_shape(self) -> tuple[int, ...]:
        return (len(self.features),)

    @property
    @override
    def vocabulary(self) -> tuple[str, ...]:
        return ()

    @override
    def encode(self, rows: Any) -> EncodedRows:
        """Encode the rows of a table.

        Args:
            rows: a data frame that has at least the columns of the encoding, in any order; it is not changed. The
                columns of the party and the label may be absent.

        Raises:
            InputError: a column is absent or holds values of another kind; a value is missing (if the encoding refuses
                that), infinite, or a level that the fitted table did not have. The message names row and column.
        """
        frame = self._named(rows)
        names = self._row_names(frame)
        columns = self._read(frame)
        check_magnitudes(columns.items(), names)
        if self.missing == "refuse":
            check_missing(columns, names, "fill it in, or leave the row out; a model that was fitted with missing: "
                          "impute accepts it")
        imputed = tuple((c, int(gap.sum())) for c, gap in missing_values(columns).items())
        unseen = self._count_unseen(columns, names)
        if self.unseen == "missing":
            columns |= {c.name: np.where(c.is_unknown(columns[c.name]), np.nan, columns[c.name])
                        for c in self.categories if c.name in dict(unseen)}
        used = {self.party, *(label.name for label in self.labels), *columns, *(date.name for date in self.dates)}
        remarks = Remarks(len(frame), unused=tuple(c for c in frame.columns if c not in used), imputed=imputed,
                          far=self._far_values(columns), unseen=unseen)
        return EncodedRows(self.encode_columns(columns, names), frame.index, remarks)

    def _count_unseen(self, columns: Columns, rows: RowNames) -> tuple[tuple[str, Mapping[str, int]], ...]:
        """The number of rows of each level that the fitted table did not have, by column.

        Raises:
            InputError: there are any, and they are refused; the message has those of all columns.
        """
        masks = {c: mask for c in self.categories if (mask := c.is_unknown(columns[c.name])).any()}
        unseen = tuple((c.name, Counter(columns[c.name][mask].tolist())) for c, mask in masks.items())
        if masks and self.unseen == "refuse":
            first = min(masks, key=lambda c: int(np.argmax(masks[c])))  # the column of the first row, which is named
            rows.refuse(masks[first][:, None], [first.name],
                        f"the value is none of {shorten(', '.join(map(repr, first.levels)))}, the values of the table "
                        f"that the encoding was fitted to (unseen levels: {shorten(list_levels(unseen))}): correct "
                        "them, leave the rows out, or train with the setting unseen")
        return unseen

    def _read(self, frame: "pd.DataFrame") -> Columns:
        """[n] the values of every column of the encoding; those of numbers that need no check are read together."""
        numeric = {c.name for c in self.numbers if not c.is_boolean}
        plain = plain_numbers(frame, (name for name, dtype in zip(frame.columns, frame.dtypes, strict=True)
                                      if name in numeric and getattr(dtype, "kind", "O") in "iuf"))
        return {c.name: plain[c.name] if c.name in plain else c.read(frame[c.name]) for c in self.columns}

    def _named(self, rows: Any) -> "pd.DataFrame":
        """The table with names of columns that are texts, after a check that it has every column of the encoding."""
        import pandas as pd

        if not isinstance(rows, pd.DataFrame):
            raise InputError(f"the rows are a {type(rows).__name__}, and the model was fitted to a table: give a "
                             "pandas.DataFrame with its columns")
        rows = self.with_common_names(rows)
        names = [str(c) for c in rows.columns]
        if not len(rows):
            raise InputError("the table has no rows: give at least one")
        counts = Counter(names)
        made = {name for date in self.dates for name in date.columns}
        for name in [*(c.name for c in self.columns if c.name not in made), *(date.name for date in self.dates)]:
            check_once(name, counts, "which the encoding needs once")
        frame = rows.set_axis(pd.Index(names, dtype=object), axis=1)
        read = {self.party, *(label.name for label in self.labels), *(c.name for c in self.columns),
                *(date.name for date in self.dates)} - made
        frame = read_cells(frame, [name for name in names if name in read and counts[name] == 1], self.cells)
        return expand_dates(frame.drop(columns=[*made.intersection(names)]), self.dates, self._row_names(frame))

    def with_common_names(self, rows: "pd.DataFrame") -> "pd.DataFrame":
        """The table with the names of the encoding for columns that have another one at the site of the model."""
        return rows.rename(columns={of_site: name for name, of_site in self.site_names if name not in rows.columns})

    def _row_names(self, frame: "pd.DataFrame") -> RowNames:
        has_parties = list(frame.columns).count(self.party) == 1
        return RowNames(frame.index, read_parties(frame[self.party]) if has_parties else None)

    def _far_values(self, columns: Columns) -> tuple[tuple[str, Far], ...]:
        counts = ((c.name, count_far(c.is_far(columns[c.name]), columns[c.name], c.low, c.high)) for c in self.numbers)
        return tuple((name, far) for name, far in counts if far is not None)

    @override
    def encode_labels(self, rows: Any, labels: Any = None) -> NDArray[Any]:
        import pandas as pd

        frame = self._named(rows)
        names = self._row_names(frame)
        if labels is not None:
            if len(labels) != len(frame):
                raise InputError(f"there are {len(labels)} labels for {len(frame)} rows: give one label per row")
            columns = [labels] if len(self.labels) == 1 else [*np.transpose(np.asarray(labels))]
            if len(columns) != len(self.labels):
                raise InputError(f"labels of shape {list(np.shape(labels))}: give a column for each of "
                                 f"{shorten(', '.join(repr(label.name) for label in self.labels))}")
            frame = pd.DataFrame({label.name: pd.Series(values).set_axis(frame.index)
                                  for label, values in zip(self.labels, columns, strict=True)})
        for label in self.labels:
            check_once(label.name, Counter(frame.columns), "the label, which is needed unless the labels are passed")
        return label_values(self.labels, frame, names)

    @override
    def decode_labels(self, y: NDArray[Any]) -> NDArray[Any]:
        if len(self.labels) == 1:
            return self.labels[0].decode(y)
        columns = [label.decode(y[:, i]) for i, label in enumerate(self.labels)]
        is_alike = len({label.kind for label in self.labels}) == 1 or self.task == "regression"
        return np.stack(columns if is_alike else [column.astype(object) for column in columns], axis=1)

    def encode_columns(self, columns: Columns, rows: RowNames) -> NDArray[np.float32]:
        """[n, features] inputs of columns that were read and checked.

        Raises:
            InputError: a scaled number exceeds a 32-bit float.
        """
        blocks = [self._encode_numbers(columns)] if self.numbers else []
        blocks += [column.encode(columns[column.name]) for column in self.categories]
        gaps = missing_values(columns)
        blocks += [gaps.get(name, np.zeros(len(rows.index), bool))[:, None].astype(float) for name in self.marked]
        with np.errstate(over="ignore"):
            x = np.hstack(blocks).astype(np.float32)
        rows.refuse(~np.isfinite(x), self.features, "once scaled, the value is too large for a 32-bit float, because "
                    "the training rows hardly differ in this column: correct it, or set scale: none")
        return x

    def _encode_numbers(self, columns: Columns) -> NDArray[np.float64]:
        """[n, numbers] imputed and scaled numbers."""
        imputed, mean, deviation = (np.array([getattr(column, name) for column in self.numbers])
                                    for name in ("imputed", "mean", "deviation"))
        values = np.stack([columns[column.name] for column in self.numbers], axis=1)
        scaled: NDArray[np.float64] = (np.where(np.isnan(values), imputed, values) - mean) / deviation
        return scaled


@dataclass(frozen=True, eq=False)
class UnencodedColumns:
    """The columns of a table and the packed order of its rows, from which the inputs of another split are made.

    Attributes:
        columns: [n] values of each feature, see ``TableEncoding.fit``.
        order: [total] the row of the table that each packed sample is.
        fit: function from the columns and the training rows of the table to an encoding.
    """

    columns: Columns
    names: RowNames
    order: NDArray[np.integer]
    fit: Callable[[Columns, NDArray[np.integer]], TableEncoding]

    def reordered(self, positions: NDArray[np.integer]) -> "UnencodedColumns":
        """The same rows in another packed order, by their present positions."""
        return replace(self, order=self.order[positions])

    def encode(self, train: NDArray[np.integer]) -> tuple[NDArray[np.float32], TableEncoding]:
        """The inputs in the packed order, by an encoding that is fitted to the training rows.

        Args:
            train: the positions of the training rows in the packed order.
        """
        encoding = self.fit(self.columns, self.order[train])
        return encoding.encode_columns(self.columns, self.names)[self.order], encoding


def label_values(labels: Sequence[LabelEncoding], frame: "pd.DataFrame", rows: RowNames) -> NDArray[Any]:
    """[n] or [n, labels] the class numbers (int32) or targets of the label columns of a table."""
    encoded = [label.encode(frame[label.name], rows) for label in labels]
    return encoded[0] if len(encoded) == 1 else np.stack(encoded, axis=1)


def missing_values(columns: Columns) -> dict[str, NDArray[np.bool_]]:
    """[n] whether a value is missing, of each column that has missing values."""
    gaps = {name: is_missing(values) for name, values in columns.items()}
    return {name: gap for name, gap in gaps.items() if gap.any()}


def check_missing(columns: Columns, rows: RowNames, advice: str) -> None:
    """Raise an error if a value is missing; it names the first one, counts all of them, and ends with the advice."""
    gaps = missing_values(columns)
    if gaps:
        count = sum(int(gap.sum()) for gap in gaps.values())
        rows.refuse(np.column_stack(list(gaps.values())), list(gaps),
                    f"the value is missing (missing values: {count}, columns with any: {len(gaps)}): {advice}")
