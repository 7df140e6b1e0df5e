"""Columns of a table as arrays: features as numbers or text, labels as numbers or classes.

A column or value that cannot be used is an `InputError` that names the column, and the row if it is a single value.
"""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.data.encoded_rows import RowNames
from resolvent.data.samples import Task, check_name
from resolvent.errors import InputError, quote, shorten
from resolvent.tables.cells import DATE, LEADING_ZERO, ColumnError, text_of_value, yaml_name

if TYPE_CHECKING:
    import pandas as pd

Columns = dict[str, NDArray[Any]]
LabelKind = Literal["boolean", "integer", "decimal", "text"]
MAX_CATEGORIES = 100
MIN_IDENTIFIER_ROWS = 50  # in fewer rows, measured whole numbers often all differ
MAX_FLOAT32 = float(np.finfo(np.float32).max)
_UNWRITABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_DATE_KINDS = ("datetime", "datetime64", "date")
# pandas' names of kinds of values
_DECIMAL_KINDS = ("floating", "mixed-integer-float", "decimal")
_NUMBER_KINDS = ("boolean", "integer", "empty", *_DECIMAL_KINDS)
_TIME_KINDS = (*_DATE_KINDS, "time", "timedelta", "timedelta64", "period")
_LABEL_KINDS: dict[str, LabelKind] = {"boolean": "boolean", "integer": "integer", "string": "text",
                                      **dict.fromkeys(_DECIMAL_KINDS, "decimal")}


def excluding(name: str) -> str:
    """The setting that leaves a column out, as YAML: a name is quoted unless it consists of letters and digits.

    >>> excluding("blood pressure"), excluding("smoker "), excluding("a, b")
    ('exclude: [blood pressure]', "exclude: ['smoker ']", "exclude: ['a, b']")
    """
    return f"exclude: [{yaml_name(name)}]"


def is_empty(column: "pd.Series[Any]") -> NDArray[np.bool_]:
    """[n] whether a row has no value: NaN, None, or text of blanks only."""
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "biuf":
        return column.isna().to_numpy(bool)
    try:
        codes, values = column.factorize()  # as a rule, far fewer values than rows
    except TypeError:  # values such as lists, which cannot be compared
        blank = np.array([isinstance(v, str) and not v.strip() for v in column], bool)
        return blank | column.isna().to_numpy(bool)
    empty: NDArray[np.bool_] = np.array([*(isinstance(v, str) and not v.strip() for v in values), True], bool)[codes]
    return empty


def is_text(values: NDArray[Any]) -> bool:
    """Whether a feature that was read is a category."""
    return values.dtype == object


def is_boolean(column: "pd.Series[Any]") -> bool:
    """Whether a column holds true/false only, besides missing values."""
    from pandas.api import types

    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "biuf":
        return column.dtype.kind == "b"
    return types.infer_dtype(column[~is_empty(column)], skipna=True) == "boolean"


def has_dates(column: "pd.Series[Any]") -> bool:
    """Whether a column is of a type of dates, besides missing values."""
    from pandas.api import types

    return types.infer_dtype(column, skipna=True) in _DATE_KINDS


def is_date(column: "pd.Series[Any]") -> bool:
    """Whether all values of a column that are not missing are dates: of a type of dates, or texts like 2024-12-31."""
    import pandas as pd
    from pandas.api import types

    if isinstance(column.dtype, pd.CategoricalDtype) or getattr(column.dtype, "kind", "O") in "biuf":
        return False
    if column.dtype == object and types.infer_dtype(column, skipna=True) not in ("string", *_DATE_KINDS):
        return False
    values = pd.Series(column.unique())
    values = values[~is_empty(values)]
    return len(values) > 0 and (has_dates(values) or all(isinstance(v, str) and DATE.fullmatch(v) for v in values))


def read_feature(name: str, column: "pd.Series[Any]", *, max_levels: int | None = MAX_CATEGORIES) -> NDArray[Any]:
    """A feature as floats, or as objects that are text; NaN if it is missing.

    Args:
        max_levels: largest number of categories; None: any.
    """
    import pandas as pd
    from pandas.api import types

    empty = is_empty(column)
    is_category = isinstance(column.dtype, pd.CategoricalDtype)
    kind = types.infer_dtype(column.cat.categories if is_category else column[~empty], skipna=True)
    if not is_category and kind in _NUMBER_KINDS:
        numbers = np.full(len(column), np.nan)
        numbers[~empty] = _to_floats(f"column {quote(name)}", column[~empty])
        return numbers
    values = read_text(column, empty)
    categories = sorted(set(values[~empty]))
    title = f"column {quote(name)}"
    if kind in _TIME_KINDS or (categories and not is_category and all(map(DATE.fullmatch, categories))):
        raise ColumnError("dates", f"{title} holds dates or times, which are neither numbers nor categories: "
                          f"exclude it ({excluding(name)}), or set dates: days, or dates: parts for year, "
                          "month and weekday")
    if kind != "string" and not is_category:
        raise ColumnError("kind", f"{title} holds {kind} values ({shorten(column.dtype)}), and a feature must be all "
                          "numbers, all true/false or all text: convert it, or exclude it")
    if unwritable := next(filter(_UNWRITABLE.search, categories), None):
        raise ColumnError("kind", f"{title} has a level with a control character or with half of a pair of "
                          f"characters, {quote(unwritable)}: correct it")
    if max_levels is not None and len(categories) > max_levels:
        zeros = next((f", text because of leading zeros such as in {v!r}" for v in categories
                      if LEADING_ZERO.fullmatch(v)), "")
        raise ColumnError("levels", f"{title} has {len(categories)} different values{zeros}, each to become a column "
                          f"(at most {max_levels}): exclude it, group or correct its values, or set rare: other to "
                          "join the rare ones")
    return values


def read_features(frame: "pd.DataFrame", names: Sequence[str], *, max_levels: int | None = MAX_CATEGORIES) -> Columns:
    """The features of these names, see ``read_feature``; columns of NumPy's numbers are read together.

    Raises:
        InputError: a column cannot be read as a feature.
    """
    numbers = plain_numbers(frame, names)
    return {name: numbers[name] if name in numbers else read_feature(name, frame[name], max_levels=max_levels)
            for name in names}


def plain_numbers(frame: "pd.DataFrame", names: Iterable[str]) -> Columns:
    """[n] the columns among these that hold NumPy's numbers or true/false, as floats; names occur once in the frame.

    A table of genes has 100,000 of them, and pandas takes about 100 microseconds to read a single column.
    """
    chosen = set(names)
    plain = [name for name, dtype in zip(frame.columns, frame.dtypes, strict=True)
             if name in chosen and isinstance(dtype, np.dtype) and dtype.kind in "biuf"]
    if not plain:
        return {}
    return dict(zip(plain, np.ascontiguousarray(frame[plain].to_numpy(dtype=float).T), strict=True))


def read_text(column: "pd.Series[Any]", empty: NDArray[np.bool_]) -> NDArray[Any]:
    """A column as objects that are text; NaN if ``empty``."""
    values = column.to_numpy(dtype=object, copy=True)
    values[empty] = np.nan
    values[~empty] = [text_of_value(v) for v in values[~empty]]
    return values


def _to_floats(title: str, column: "pd.Series[Any]") -> NDArray[np.float64]:
    """A column of numbers as floats; ``title`` names it in errors."""
    try:
        return column.to_numpy(dtype=float)
    except OverflowError as error:
        raise InputError(f"{title} holds a whole number that is too large for a 64-bit float: correct it") from error


def read_parties(column: "pd.Series[Any]") -> NDArray[np.object_]:
    """[n] the name of each row's party, from the column that names the parties.

    Whole numbers have no decimal point, also if pandas read them as floating numbers because some are missing.
    """
    if column.dtype.kind == "f" and (column.dropna() % 1 == 0).all():
        column = column.astype("Int64")
    try:
        return column.astype(str).to_numpy(dtype=object)
    except UnicodeEncodeError as error:
        raise InputError(f"column {quote(column.name)} has a party whose name cannot be written in UTF-8, such "
                         f"as {quote(error.object)}: correct it") from error


def check_magnitudes(columns: Iterable[tuple[str, NDArray[Any]]], rows: RowNames) -> None:
    """Raise an error if a number is infinite or exceeds a 32-bit float; NaN passes."""
    for name, values in columns:
        if values.dtype.kind == "f":
            rows.refuse((np.abs(values) > MAX_FLOAT32)[:, None], [name],
                        "the value is infinite, or too large for a 32-bit float: correct it, or leave the row out")


class Label(NamedTuple):
    """The label column: its values [n], their kind, and the task that follows."""

    values: NDArray[Any]
    kind: LabelKind
    task: Task


def label_kind(name: str, column: "pd.Series[Any]") -> LabelKind:
    """The kind of the values of a label column, in which no value is missing."""
    import pandas as pd
    from pandas.api import types

    is_category = isinstance(column.dtype, pd.CategoricalDtype)
    kind = types.infer_dtype(column.cat.categories if is_category else column, skipna=True)
    if kind not in _LABEL_KINDS:
        raise InputError(f"the label {quote(name)} holds {kind} values ({shorten(column.dtype)}): it must be "
                         "all numbers, all true/false or all text; convert it, or name another label")
    if kind == "string" and is_date(column):
        raise InputError(f"the label {quote(name)} holds dates, which are no classes: replace it by a number, "
                         "such as the days since a first day, or name another label")
    for text in column.unique().tolist() if kind == "string" else ():
        check_name(text, f"the label {quote(name)}: the name of a class")
    return _LABEL_KINDS[kind]


def read_label(name: str, column: "pd.Series[Any]", task: Task | Literal["auto"]) -> Label:
    """The label column, in which no value is missing.

    With task ``auto``, decimal numbers mean regression, and all other values classification.
    """
    import pandas as pd

    is_category = isinstance(column.dtype, pd.CategoricalDtype)
    title = f"the label {quote(name)}"
    kind = label_kind(name, column)
    if task == "regression" or (task == "auto" and kind == "decimal" and not is_category):
        if kind in ("boolean", "text"):
            raise InputError(f"{title} holds {kind} values: set task: classification, or name "
                             "another label for regression, which needs numbers")
        return Label(_to_floats(title, column), kind, "regression")
    values = np.array(column.tolist(), str if kind == "text" else None)
    classes = np.unique(values)
    if len(classes) == 1:
        raise InputError(f"{title} has only one class, {quote(str(classes[0]))}, so there is nothing "
                         "to learn: name another label, or add rows of another class")
    if task == "auto" and len(classes) > max(MAX_CATEGORIES, len(values) / 5):
        other = "" if kind == "text" else "task: regression if it is a quantity, or "
        raise InputError(f"{title} has {len(classes)} different values in {len(values)} rows, too "
                         f"many to be taken for classes: set {other}task: classification if each is a class")
    return Label(values, kind, "classification")
