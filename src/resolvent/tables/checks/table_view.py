"""A table as the checks read it: every column as numbers or as levels, with the site and the split of every row."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from resolvent.errors import InputError, count_of, quote
from resolvent.tables.cells import LIKE_DATE, ColumnError
from resolvent.tables.checks.finding import Finding, examples
from resolvent.tables.columns import (
    MAX_CATEGORIES,
    MAX_FLOAT32,
    excluding,
    is_date,
    is_empty,
    is_text,
    read_feature,
)

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TableColumn", "TableView", "read_column"]

_MAX_EXACT = 2.0**53  # larger whole numbers lose digits as floats


@dataclass(frozen=True, eq=False)
class TableColumn:
    """A column.

    Attributes:
        codes: [n] the number of the value of each row among the different values; -1 if it is missing.
        values: the different values: floats, not sorted, with NaN for infinite ones; or texts.
        is_exact: false for whole numbers most of which have more digits than a float holds.
    """

    name: str
    codes: NDArray[np.integer]
    values: NDArray[Any]
    is_exact: bool = True

    @property
    def is_text(self) -> bool:
        """Whether the column is a category."""
        return is_text(self.values)

    @property
    def missing(self) -> NDArray[np.bool_]:
        """[n] whether the value is missing."""
        return self.codes < 0

    @property
    def counts(self) -> NDArray[np.integer]:
        """[values] the number of rows with each value."""
        return np.bincount(self.codes[self.codes >= 0], minlength=len(self.values))

    def text(self, code: int) -> str:
        """A value in messages."""
        value = self.values[code]
        return quote(value) if self.is_text else f"{value:g}"

    @property
    def numbers(self) -> NDArray[np.float64]:
        """[n] the numbers; NaN if missing."""
        numbers: NDArray[np.float64] = np.append(self.values.astype(float), np.nan)[self.codes]
        return numbers


@dataclass(frozen=True, eq=False)
class TableView:
    """A table.

    Attributes:
        index: [n] the names of the rows in messages.
        site_of: [n] number of the site of each row.
        split_of: [n] 0 for training, 1 for validation, 2 for test rows.
        features: the columns to predict from that can be read.
        label: the label; None if it cannot be read.
        is_classification: whether the label is a class.
        dates: the features that are days since 1970-01-01.
    """

    index: "pd.Index[Any]"
    sites: tuple[str, ...]
    site_of: NDArray[np.integer]
    split_of: NDArray[np.integer]
    features: Mapping[str, TableColumn]
    label: TableColumn | None
    is_classification: bool
    dates: tuple[str, ...] = ()

    def count(self, codes: NDArray[np.integer], size: int, rows: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """[sites, size] the number of rows of each site with each code; negative codes are left out."""
        counted = codes >= 0 if rows is None else rows & (codes >= 0)
        flat = self.site_of[counted].astype(np.int64) * size + codes[counted]
        return np.bincount(flat, minlength=len(self.sites) * size).reshape(len(self.sites), size)


def read_column(name: str, column: "pd.Series[Any]", *, joins_rare: bool = False
                ) -> tuple[TableColumn | None, list[Finding]]:
    """A feature, and the errors for which a run would refuse it; a warning of the reader is a finding too.

    Args:
        joins_rare: whether rare levels are joined, so that any number of levels can be read.
    """
    import pandas as pd

    try:
        codes, values = column.factorize()
    except TypeError:  # values such as lists
        return None, [_kind_error(name, f"column {quote(name)} holds values of type {column.dtype} that are neither "
                                        "numbers nor text")]
    different = pd.Series(values)
    codes = np.append(np.where(is_empty(different), -1, np.arange(len(different))), -1)[codes]
    try:
        if column.dtype == object and pd.api.types.infer_dtype(column, skipna=True).startswith("mixed"):
            read_feature(name, column)  # equal values of different types, such as True and 1, are one above
        read = read_feature(name, different, max_levels=None if joins_rare else MAX_CATEGORIES)
    except ColumnError as error:
        return None, [_column_error(name, column, different, codes, error)]
    except InputError as error:
        return None, [_kind_error(name, str(error).partition(":")[0])]
    findings = []
    if not is_text(read):
        is_wrong = np.abs(read) > MAX_FLOAT32
        if is_wrong.any():
            rows = np.flatnonzero(np.append(is_wrong, False)[codes])
            first = examples(column.index[rows[:4]].tolist())
            findings.append(Finding("magnitude", "error", f"column {quote(name)} has {count_of(len(rows), 'value')} "
                                    f"infinite, or too large for a 32-bit float (rows {first})",
                                    "correct them, or leave the rows out", name, value=len(rows)))
        codes = np.where(np.append(np.isnan(read), True)[codes], -1, codes)
        is_whole = pd.api.types.infer_dtype(different, skipna=True) == "integer"
        is_exact = not (is_whole and (np.abs(read) > _MAX_EXACT).mean() > 0.5)
        return TableColumn(name, codes, np.where(is_wrong, np.nan, read), is_exact), findings
    return TableColumn(name, codes, read), findings


def _date_advice(name: str) -> str:
    return f"write them as 2024-12-31 or 31.12.2024, and set dates: days; or {excluding(name)}"


def _kind_error(name: str, message: str) -> Finding:
    return Finding("kind", "error", message, f"convert it, or {excluding(name)}", name)


def _column_error(name: str, column: "pd.Series[Any]", different: "pd.Series[Any]", codes: NDArray[np.integer],
                  error: ColumnError) -> Finding:
    if error.kind == "kind":
        return _kind_error(name, str(error).partition(",")[0])
    title = f"column {quote(name)}"
    if error.kind == "dates":
        if not is_date(different):
            return Finding("dates", "error", f"{title} holds times", f"replace it by a number, or {excluding(name)}",
                           name)
        return Finding("dates", "error", f"{title} holds dates", "dates: days (days since 1970-01-01), or dates: parts "
                       f"(year, month, weekday), or {excluding(name)}", name)
    return _level_error(title, name, column, different, int((codes >= 0).sum()))


def _level_error(title: str, name: str, column: "pd.Series[Any]", different: "pd.Series[Any]", rows: int) -> Finding:
    """The error of a column of text with too many levels: of free text, an identifier, dates, numbers, or levels."""
    texts = different[~is_empty(different)].astype(str)
    sample = texts.iloc[:1000]
    count, example = len(texts), quote(str(texts.iloc[0]))
    if sample.str.fullmatch(LIKE_DATE).mean() > 0.9:
        return Finding("dates", "error", f"{title} looks like dates, such as {example}", _date_advice(name), name,
                       value=count)
    if sample.str.count(r"\s+").mean() >= 2:
        return Finding("free text", "error", f"{title} is free text, such as {example}", excluding(name), name,
                       value=count)
    if count > 0.9 * rows:
        return Finding("identifier", "error", f"{title} looks like an identifier: {count} different texts in {rows} "
                       f"rows, such as {example}", excluding(name), name, value=count)
    return Finding("levels", "error", f"{title} has {count} levels, at most {MAX_CATEGORIES} are possible",
                   f"rare: other, which joins the rare ones, or {excluding(name)}", name, value=count)
