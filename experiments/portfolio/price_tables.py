"""Daily closing prices from a CSV file: a column of dates, and one column for each ticker."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date

import numpy as np
from numpy.typing import NDArray

from experiments.portfolio.price_checks import check_prices
from resolvent.arguments import checked
from resolvent.errors import InputError, nearest, shorten
from resolvent.files import text_records

__all__ = ["Prices", "parse_date", "parse_price", "read_prices"]

Dates = NDArray[np.datetime64]
_ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_MISSING = ("", "nan", "na", "n/a", "null", "none")


@dataclass(frozen=True)
class Prices:
    """Closing prices of some assets on successive trading days.

    Attributes:
        dates: [days] in ascending order, as ``datetime64[D]``.
        tickers: the names of the assets.
        closes: [days, assets] positive numbers; NaN before an asset's first price, and after the last price of one
            that was delisted.
        name: name of the file, for errors.

    Raises:
        InputError: ``closes`` does not have a row for each date and a column for each ticker.

    Example:
        >>> days = np.array(["2019-01-02", "2019-01-03"], "datetime64[D]")
        >>> prices = portfolio.Prices(days, ("A", "B"), np.array([[1.0, np.nan], [2.0, 5.0]]))
        >>> prices.between("2019-01-03").closes.tolist(), prices.listed_since("B")
        ([[2.0, 5.0]], '2019-01-03')
    """

    dates: Dates
    tickers: tuple[str, ...]
    closes: NDArray[np.float64]
    name: str = "prices"

    def __post_init__(self) -> None:
        if self.closes.shape != (len(self.dates), len(self.tickers)):
            raise InputError(f"Prices(closes) has shape {self.closes.shape}: give a row for each of the "
                             f"{len(self.dates)} dates and a column for each of the {len(self.tickers)} tickers")

    def select(self, tickers: Sequence[str]) -> "Prices":
        """The prices of these assets, in this order.

        Raises:
            InputError: there is no such ticker, or a ticker is named twice.
        """
        for ticker, count in Counter(tickers).items():
            if ticker not in self.tickers:
                raise InputError(f"{self.name} has no ticker {shorten(repr(ticker))}: its tickers are "
                                 f"{shorten(', '.join(self.tickers))}{nearest(str(ticker), self.tickers)}")
            if count > 1:
                raise InputError(f"the ticker {shorten(repr(ticker))} is named {count} times: name it once")
        columns = [self.tickers.index(ticker) for ticker in tickers]
        return replace(self, tickers=tuple(tickers), closes=self.closes[:, columns])

    def between(self, first: str | None = None, last: str | None = None, *, preceding: int = 0) -> "Prices":
        """The prices from one day to another, both included, and on some trading days before them.

        Relative prices of a year need the last day of the year before: ``between("2019-01-01", "2019-12-31",
        preceding=1)``.

        Args:
            first: a date such as ``2019-01-01``, which need not be a trading day; None: the first day.
            last: a date; None: the last day.
            preceding: number of earlier trading days to include.

        Raises:
            InputError: a date is wrong, there are no prices between the dates, or fewer than ``preceding`` before them.
        """
        start = 0 if first is None else int(np.searchsorted(self.dates, parse_date(first, "first")))
        stop = len(self.dates) if last is None else int(np.searchsorted(self.dates, parse_date(last, "last"), "right"))
        if start >= stop:
            raise InputError(f"{self.name} has no prices from {first} to {last}: its days are {self._span()}")
        if not 0 <= preceding <= start:
            raise InputError(f"{self.name} has {start} days before {self.dates[start]}: preceding={preceding} must lie "
                             f"in 0 to {start}; choose a later first day")
        rows = slice(start - preceding, stop)
        return replace(self, dates=self.dates[rows], closes=self.closes[rows])

    def listed_since(self, ticker: str) -> str | None:
        """The date of the first price of an asset; None if it has none on these days."""
        known = np.flatnonzero(np.isfinite(self.select([ticker]).closes[:, 0]))
        return str(self.dates[known[0]]) if len(known) else None

    def delisted_after(self, ticker: str) -> str | None:
        """The date of the last price of an asset that has none on later days; None if it was not delisted."""
        known = np.flatnonzero(np.isfinite(self.select([ticker]).closes[:, 0]))
        return str(self.dates[known[-1]]) if len(known) and known[-1] < len(self.dates) - 1 else None

    def filled(self) -> "Prices":
        """The prices with each asset's first price on all days before it, and its last price on all days after it.

        Its relative prices are 1 on these days: what was invested in an asset that was delisted is worth its last
        price. If investors got less, that should be its last price.

        Raises:
            InputError: an asset has no price on these days.
        """
        is_known = np.isfinite(self.closes)
        for ticker, known in zip(self.tickers, is_known.T, strict=True):
            if not known.any():
                raise InputError(f"{self.name}, column {shorten(repr(ticker))}: there is no price on {self._span()}: "
                                 "leave it out, or choose later days")
        days = np.arange(len(self.dates))[:, None]
        # The row of the last price so far; before the first price, that of the first one.
        rows = np.maximum(np.maximum.accumulate(np.where(is_known, days, 0), axis=0), np.argmax(is_known, axis=0))
        return replace(self, closes=np.take_along_axis(self.closes, rows, axis=0))

    def _span(self) -> str:
        return f"{self.dates[0]} to {self.dates[-1]}" if len(self.dates) else "none"


@checked
def read_prices(prices: str, *, tickers: list[str] | None = None, date: str = "Date",
                separator: str = "auto", encoding: str = "auto", check: bool = True) -> Prices:
    """Read daily closing prices: a row per trading day, a column of dates and a column per ticker.

    Dates are written like 2019-12-31 and ascend strictly. Prices are positive numbers with a decimal point. A ticker
    has empty values before its first price, and after its last one if it was delisted; ``Prices.filled`` fills them.
    Prices should be adjusted for splits and dividends, which otherwise appear as losses.

    Args:
        prices: path of a ``.csv`` or ``.csv.gz`` file; a relative path is also searched for in the data folder.
        tickers: the columns to read, in this order; default: all but that of the dates.
        date: the name of the column of dates.
        separator: the character between two values; ``auto``: recognised from the header.
        encoding: encoding of the file; ``auto``: UTF-8, or what the file's byte-order mark says.
        check: refuse what is unusual: a change by more than a factor of 1.75 from one day to the next, such as a split,
            more than 14 days without a row, and a price that stays the same for 20 days.

    Raises:
        InputError: the file does not exist or cannot be read, or a date or a price is wrong or unusual. The message has
            the file, the line, the column and the value.

    Example:
        >>> prices = portfolio.read_prices("closes.csv", tickers=["AAPL", "MSFT"])  # doctest: +SKIP
    """
    name, records = text_records(prices, (date,), separator=separator, encoding=encoding)
    header = [title.strip() for title in next(records, (1, []))[1]]
    chosen = _choose_tickers(header, date, tickers, name)
    columns = [header.index(ticker) for ticker in chosen]
    date_column = header.index(date)
    dates: list[str] = []
    rows: list[list[float]] = []
    lines: list[int] = []
    missing: dict[int, str] = {}  # by column, the first place after its first price where the price is missing
    for line, fields in records:
        title = f"{name}, line {line}"
        if len(fields) != len(header):
            raise InputError(f"{title} has {len(fields)} values for {len(header)} columns: complete it, or leave "
                             "it out")
        day = fields[date_column].strip()
        _check_date(day, f"{title}, column {shorten(repr(date))}", dates)
        previous = rows[-1] if rows else [math.nan] * len(columns)
        rows.append([parse_price(fields[j], f"{title}, column {shorten(repr(header[j]))}") for j in columns])
        for j, before, price in zip(columns, previous, rows[-1], strict=True):
            if math.isnan(price) and not math.isnan(before):
                missing[j] = f"{title}, column {shorten(repr(header[j]))}"
            elif j in missing and not math.isnan(price):
                raise InputError(f"{missing[j]}: the price is missing, and there are prices on earlier and on later "
                                 f"days: fill it in, leave the row out, or leave the ticker out with tickers")
        dates.append(day)
        lines.append(line)
    if not dates:
        raise InputError(f"{name} has no rows of prices: give one row per trading day")
    table = Prices(np.array(dates, "datetime64[D]"), tuple(chosen), np.array(rows, np.float64), name)
    if check:
        check_prices(table.dates, table.closes, table.tickers, lines, name)
    return table


def _choose_tickers(header: list[str], date: str, tickers: list[str] | None, name: str) -> list[str]:
    """The columns of prices to read."""
    for column, count in Counter(header).items():
        if count > 1:
            raise InputError(f"{name}: {count} columns are named {shorten(repr(column))}: give each a different name")
    for column in [date, *(tickers or [])]:
        if column not in header:
            setting = "" if tickers and column in tickers else "; set date to the name of the column of dates"
            raise InputError(f"{name} has no column {shorten(repr(column))}: its columns are "
                             f"{shorten(', '.join(map(repr, header)))}{nearest(column, header)}{setting}")
    chosen = [column for column in header if column != date] if tickers is None else tickers
    if "" in chosen:
        raise InputError(f"{name}: column {header.index('') + 1} has no name: give it the name of its ticker")
    for column, count in Counter([date, *chosen]).items():
        if count > 1:
            raise InputError(f"{name}: the column {shorten(repr(column))} is chosen {count} times: name it once")
    if not chosen:
        raise InputError(f"{name} has no column of prices: give a column per ticker")
    return chosen


def parse_date(text: str, title: str) -> np.datetime64:
    """A day, written like 2019-12-31."""
    try:
        if not _ISO_DATE.fullmatch(text):
            raise ValueError
        return np.datetime64(date.fromisoformat(text), "D")
    except (TypeError, ValueError):
        raise InputError(f"{title}: {shorten(repr(text))} is not a date: write it like 2019-12-31") from None


def _check_date(day: str, title: str, earlier: list[str]) -> None:
    """Raise an error unless a date is right and later than the one of the row before."""
    parse_date(day, title)
    if earlier and day <= earlier[-1]:  # dates of this form ascend as text
        advice = "leave one of the rows out" if day == earlier[-1] else "sort the rows by date"
        raise InputError(f"{title}: {day} must be later than {earlier[-1]}, the date of the row before: {advice}")


def parse_price(text: str, title: str) -> float:
    """A price, or NaN if it is missing."""
    value = text.strip()
    if value.lower() in _MISSING:
        return math.nan
    try:
        price = float(value)
    except ValueError:
        raise InputError(f"{title}: {shorten(repr(text))} is not a number: write a positive price with a decimal point "
                         "and without separators of thousands") from None
    if not (math.isfinite(price) and price > 0):
        raise InputError(f"{title}: the price {shorten(repr(text))} must be a positive number: correct it, or leave "
                         "the row out")
    return price
