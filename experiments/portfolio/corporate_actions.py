"""What changes prices, assets and trading days besides trading, from a table of events.

.. code-block:: text

    Date,Ticker,Action,Value
    2014-06-09,AAPL,split,7             seven shares for one, from this day's close on
    2014-08-07,AAPL,dividend,0.47       cash a share, in the shares of this day; who holds it the day before gets it
    2008-09-17,XYZ,delisting,0.21       what a share brought, on a trading day after its last price
    2012-05-18,FB,joins,                belongs to the universe from this day on
    2013-10-30,DELL,leaves,             belongs to it no more
    2014-07-04,,closed,                 no trading, on a Monday to Friday
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from experiments.portfolio.price_tables import Prices, parse_date, parse_price
from resolvent.arguments import checked
from resolvent.errors import InputError, alternatives, quote, shorten
from resolvent.files import text_records

_COLUMNS = ("Date", "Ticker", "Action", "Value")
_WITH_VALUE = ("split", "dividend", "delisting")
_KINDS = (*_WITH_VALUE, "joins", "leaves", "closed")


class Action(NamedTuple):
    """One event: see the module.

    Attributes:
        day: its day.
        ticker: the asset; empty for a closed day.
        kind: ``split``, ``dividend``, ``delisting``, ``joins``, ``leaves`` or ``closed``.
        value: shares for one, cash a share, or the last price; NaN for the other kinds.
    """

    day: np.datetime64
    ticker: str
    kind: str
    value: float


@dataclass(frozen=True)
class Actions:
    """The events of a market.

    Attributes:
        events: in the order of their days.
        name: name of the file, for errors.
    """

    events: tuple[Action, ...]
    name: str = "actions"

    def of_kinds(self, *kinds: str) -> list[Action]:
        """The events of these kinds."""
        return [event for event in self.events if event.kind in kinds]

    def adjusted(self, prices: Prices) -> Prices:
        """Prices as traded, adjusted for splits and dividends, and with the last price of each delisted asset.

        Prices before a split are divided by it. Prices before a dividend are multiplied by 1 - dividend / (the close of
        the day before, in the shares of the day of the dividend), as if it were invested again at that close.

        Raises:
            InputError: there is no such ticker, a dividend is not less than the close before it, an asset was delisted
                on a day without a row or on which it had a price, or a split or a dividend has no price before it.
        """
        closes = prices.closes.copy()
        for day, ticker, kind, value in self.of_kinds(*_WITH_VALUE):
            title = f"{self.name}: {kind} of {shorten(repr(ticker))} on {day}"
            traded = prices.select([ticker]).closes[:, 0]
            column, row = prices.tickers.index(ticker), int(np.searchsorted(prices.dates, day))
            known = np.flatnonzero(np.isfinite(traded[:row]))
            if not len(known):
                raise InputError(f"{title}: it has no price before this day: correct the day, or leave the row out")
            if kind == "delisting":
                if row == len(traded) or prices.dates[row] != day or np.isfinite(traded[row:]).any():
                    raise InputError(f"{title}: its day must be a row of {prices.name} after its last price, "
                                     f"{prices.dates[np.flatnonzero(np.isfinite(traded))[-1]]}")
                closes[row, column] = value
                continue
            split = np.prod([e.value for e in self.of_kinds("split") if e.day == day and e.ticker == ticker])
            factor = 1 / value if kind == "split" else 1 - value * split / traded[known[-1]]
            if factor <= 0:
                raise InputError(f"{title}: {value:g} a share is not less than the close before it, "
                                 f"{traded[known[-1]] / split:g}: correct it")
            closes[:row, column] *= factor
        return replace(prices, closes=closes)

    def check_days(self, prices: Prices) -> None:
        """Refuse prices without a row on a trading day, or with a row on another day.

        Raises:
            InputError: there is such a day; the message names the first.
        """
        calendar = np.busdaycalendar(holidays=[event.day for event in self.of_kinds("closed")])
        days = np.arange(prices.dates[0], prices.dates[-1] + 1)
        trading = days[np.is_busday(days, busdaycal=calendar)]
        without, extra = np.setdiff1d(trading, prices.dates), np.setdiff1d(prices.dates, trading)
        if len(without):
            raise InputError(f"{prices.name} has no row on {without[0]}, a trading day: add it, or add a row 'closed' "
                             f"to {self.name}")
        if len(extra):
            raise InputError(f"{prices.name} has a row on {extra[0]}, which is no trading day: leave it out, or "
                             f"correct {self.name}")

    def members(self, prices: Prices, day: str) -> tuple[str, ...]:
        """The universe as it was known on a day: the assets that had joined and not left, and that had a price.

        Without any event ``joins``, every asset with a price is a member.

        Raises:
            InputError: the day is wrong, or there is no member.
        """
        until, closes = parse_date(day, "day"), prices.between(last=day).closes[-1]
        last = {event.ticker: event.kind for event in self.of_kinds("joins", "leaves") if event.day <= until}
        default = "leaves" if self.of_kinds("joins") else "joins"
        members = tuple(ticker for ticker, close in zip(prices.tickers, closes, strict=True)
                        if np.isfinite(close) and last.get(ticker, default) == "joins")
        if not members:
            raise InputError(f"{self.name}: no asset of {prices.name} is in the universe on {day}: choose a later day")
        return members


@checked
def read_actions(actions: str) -> Actions:
    """Read a table of splits, dividends, delistings, members of a universe, and closed days.

    Args:
        actions: path of a ``.csv`` or ``.csv.gz`` file with the columns Date, Ticker, Action and Value; a relative path
            is also searched for in the data folder.

    Raises:
        InputError: the file does not exist or cannot be read, or a row is wrong; the message has its line.

    Example:
        >>> actions = portfolio.read_actions("actions.csv")  # doctest: +SKIP
        >>> prices = actions.adjusted(portfolio.read_prices("traded.csv", check=False))  # doctest: +SKIP
    """
    name, records = text_records(actions, _COLUMNS[:1])
    header = tuple(title.strip() for title in next(records, (1, []))[1])
    if header != _COLUMNS:
        raise InputError(f"{name}: its columns are {shorten(', '.join(header))}: they must be {', '.join(_COLUMNS)}")
    return Actions(tuple(sorted((_event(fields, f"{name}, line {line}") for line, fields in records),
                                key=lambda event: event.day)), name)


def _event(fields: list[str], title: str) -> Action:
    if len(fields) != len(_COLUMNS):
        raise InputError(f"{title} has {len(fields)} values for {len(_COLUMNS)} columns: complete it, or leave it out")
    day, ticker, kind, value = (field.strip() for field in fields)
    if kind not in _KINDS:
        raise InputError(f"{title}: there is no action {quote(kind)}{alternatives(kind, _KINDS)}")
    if bool(ticker) == (kind == "closed"):
        raise InputError(f"{title}: {kind} {'has no ticker: leave it empty' if ticker else 'needs a ticker'}")
    number = parse_price(value, f"{title}, column 'Value'")
    if np.isnan(number) == (kind in _WITH_VALUE):
        raise InputError(f"{title}: {kind} {'needs a value' if kind in _WITH_VALUE else 'has no value'}")
    return Action(parse_date(day, f"{title}, column 'Date'"), ticker, kind, number)
