"""Columns of dates as columns of numbers: days since 1970-01-01, or year, month and weekday."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from resolvent.data.encoded_rows import RowNames
from resolvent.errors import InputError, quote
from resolvent.tables.columns import has_dates, is_date, is_empty
from resolvent.tables.table_options import Dates

if TYPE_CHECKING:
    import pandas as pd

_DAY_FIRST = re.compile(r"^(\d\d?)\.(\d\d?)\.(\d{4})")
_PARTS = {"days": ("days",), "parts": ("year", "month", "weekday")}


@dataclass(frozen=True)
class DateColumn:
    """A column of dates, which becomes columns of numbers before the encoding.

    Attributes:
        parts: ``days``: days since 1970-01-01, with the time as a fraction; ``year``; ``month``: 1 to 12; ``weekday``:
            0 for Monday to 6.
    """

    name: str
    parts: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns of numbers, such as ``admitted days``."""
        return tuple(f"{self.name} {part}" for part in self.parts)

    def numbers(self, column: "pd.Series[Any]", rows: RowNames) -> dict[str, NDArray[np.float64]]:
        """[n] the columns of numbers by name; NaN where the date is missing.

        Raises:
            InputError: a value is not a date; the message names the row.
        """
        import pandas as pd

        empty = is_empty(column)
        texts, has_types = column.where(~empty, None), has_dates(column)
        if not has_types:  # a date with dots has the day first
            texts = texts.astype("string").str.replace(_DAY_FIRST, _year_first, regex=True)
        dates = pd.to_datetime(texts, errors="coerce", utc=True, format=None if has_types else "ISO8601")
        rows.refuse((dates.isna().to_numpy() & ~empty)[:, None], [self.name],
                    "the value is not a date: write it as 2024-12-31 or 31.12.2024")
        days = (dates - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)
        values: dict[str, Any] = {"days": days, "year": dates.dt.year, "month": dates.dt.month,
                                  "weekday": dates.dt.day_of_week}
        return {name: values[part].to_numpy(dtype=float, na_value=np.nan)
                for name, part in zip(self.columns, self.parts, strict=True)}


def _year_first(date: re.Match[str]) -> str:
    day, month, year = date.groups()
    return f"{year}-{month:0>2}-{day:0>2}"


def date_column(name: str, dates: Dates) -> DateColumn:
    """A column of dates with the parts that the setting asks for."""
    return DateColumn(name, _PARTS[dates])


def find_dates(frame: "pd.DataFrame", names: Iterable[str], dates: Dates) -> tuple[DateColumn, ...]:
    """The columns of dates among these; none if dates are refused."""
    if dates == "refuse":
        return ()
    columns = tuple(date_column(name, dates) for name in names if is_date(frame[name]))
    for column in columns:
        for name in column.columns:
            if name in frame.columns:
                raise InputError(f"the dates {quote(column.name)} become the column {quote(name)}, "
                                 "which the table has already: rename it")
    return columns


def expand_dates(frame: "pd.DataFrame", dates: Iterable[DateColumn], rows: RowNames) -> "pd.DataFrame":
    """The table with columns of numbers, at the end, in addition to those of dates.

    Raises:
        InputError: a value is not a date; the message names the row.
    """
    import pandas as pd

    numbers = {name: values for column in dates for name, values in column.numbers(frame[column.name], rows).items()}
    if not numbers:
        return frame
    return pd.concat([frame, pd.DataFrame(numbers, index=frame.index)], axis=1)


def replace_dates(names: Iterable[str], dates: Iterable[DateColumn]) -> list[str]:
    """The names of columns, in which those of dates are replaced by their columns of numbers."""
    columns = {date.name: date.columns for date in dates}
    return [new for name in names for new in columns.get(name, (name,))]
