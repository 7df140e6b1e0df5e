"""The markets of a federation: daily prices, each party's universe of assets, and the periods of a study."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.portfolio.price_tables import Prices
from resolvent.errors import InputError, check_range

SPLITS = ("train", "validation", "test")


class Period(NamedTuple):
    """The days on which portfolios are held: the growth of each is from the close of the day before.

    Attributes:
        first: number of the first day on which a decision is made, at its close.
        days: number of decisions.
    """

    first: int
    days: int


@dataclass(frozen=True, eq=False)
class MarketData:
    """Prices, universes and periods.

    Attributes:
        prices: closing prices of all days.
        filled: [days, assets] the same; before an asset's first price they are that price, and after the last price of
            one that was delisted they are that one.
        universes: [N, m] the columns of each party's assets.
        periods: the periods for training, validation and testing, one after the other.

    Example:
        >>> days = np.arange("2019-01-01", "2020-01-01", dtype="datetime64[D]")
        >>> prices = portfolio.Prices(days, ("A", "B", "C"), np.ones((len(days), 3)))
        >>> data = portfolio.draw_markets(prices, parties=2, assets=2, train_until="2019-10-31")
        >>> data.closes(0, "test").shape
        (62, 2)
    """

    prices: Prices
    filled: NDArray[np.float64]
    universes: NDArray[np.int64]
    periods: tuple[Period, Period, Period]

    @property
    def name(self) -> str:
        """The name of the file of prices, for reports and errors."""
        return self.prices.name

    def __len__(self) -> int:
        return len(self.universes)

    @property
    def notes(self) -> list[str]:
        """What a reader of the scores should know: the periods, and the assets that were delisted."""
        dates = self.prices.dates
        delisted = [f"{ticker} was delisted after {day}: its last price is kept" for ticker in self.prices.tickers
                    if (day := self.prices.delisted_after(ticker))]
        return [f"{split}: {period.days} days from {dates[period.first + 1]} to {dates[period.first + period.days]}"
                for split, period in zip(SPLITS, self.periods, strict=True) if period.days] + delisted

    @property
    def training_prices(self) -> Prices:
        """The closing prices up to the last day of training, NaN before an asset's first and after its last price."""
        period = self.periods[0]
        return self.prices.between(last=str(self.prices.dates[period.first + period.days]))

    @property
    def parties(self) -> tuple[str, ...]:
        """The parties' names, ``party 0``, ``party 1``, ..."""
        return tuple(f"party {k}" for k in range(len(self.universes)))

    def tickers(self, k: int) -> tuple[str, ...]:
        """The names of party k's assets."""
        return tuple(self.prices.tickers[column] for column in self.universes[k])

    def closes(self, k: int, split: str | None = None) -> NDArray[np.float64]:
        """The closing prices of party k's assets [days, m]: of all days, or those before and on the days of a split.

        Those of a split begin with the close at which its first decision trades.
        """
        closes = self.filled[:, self.universes[k]]
        if split is None:
            return closes
        period = self.periods[SPLITS.index(split)]
        return closes[period.first:period.first + period.days + 1]


def draw_markets(prices: Prices, *, parties: int = 50, assets: int = 9, seed: int = 0, train_until: str | None = None,
                 validate_until: str | None = None, test_until: str | None = None) -> MarketData:
    """The markets of a federation whose parties trade random universes of the same prices.

    Party k's universe is the k-th draw of ``assets`` different columns from NumPy's ``default_rng(seed)``, so that the
    universes of fewer parties are the first ones. Training uses the closes up to ``train_until``. The first decision
    for validation or testing is made at the last close of the period before, which the policy has seen.

    Args:
        prices: daily closing prices. Assets that are listed later have their first price on the days before it.
        parties: N.
        assets: m, number of assets of each party.
        seed: seed of the universes.
        train_until: date of the last close for training, such as 2018-12-31; default: the day before the last 252.
        validate_until: date of the last close for validation; default: there is no validation period.
        test_until: date of the last close for testing; default: the last day.

    Raises:
        InputError: a number is out of range, an asset has no price for training, or a period is empty.

    Example:
        >>> days = np.arange("2019-01-01", "2020-01-01", dtype="datetime64[D]")
        >>> prices = portfolio.Prices(days, ("A", "B", "C"), np.ones((len(days), 3)))
        >>> data = portfolio.draw_markets(prices, parties=2, assets=2)
        >>> data.tickers(0), data.tickers(1)
        (('B', 'C'), ('C', 'A'))
    """
    check_range("draw_markets", "[1, inf)", parties=parties, assets=assets)
    check_range("draw_markets", "[0, inf)", seed=seed)
    columns = len(prices.tickers)
    if assets > columns:
        raise InputError(f"draw_markets(assets={assets}) must be at most {columns}, the number of tickers in "
                         f"{prices.name}")
    ends = [_last_day(prices, date, name) for name, date in
            (("train_until", train_until or _default_end(prices)), ("validate_until", validate_until),
             ("test_until", test_until or str(prices.dates[-1])))]
    train, validate, test = ends[0], ends[1] if validate_until else ends[0], ends[2]
    if not 0 < train <= validate < test:
        raise InputError(f"draw_markets: train_until ({train_until}), validate_until ({validate_until}) and test_until "
                         f"({test_until}) must be successive dates between {prices.dates[0]} and {prices.dates[-1]}")
    prices = prices.between(last=str(prices.dates[test]))
    # Later prices must not have an influence on those of the training days.
    until_train = prices.between(last=str(prices.dates[train])).filled()
    filled = replace(prices, closes=np.concatenate([until_train.closes, prices.closes[train + 1:]])).filled().closes
    rng = np.random.default_rng(seed)
    universes = np.stack([rng.choice(columns, assets, replace=False) for _ in range(parties)])
    periods = Period(0, train), Period(train, validate - train), Period(validate, test - validate)
    return MarketData(prices, filled, universes, periods)


def _default_end(prices: Prices) -> str:
    if len(prices.dates) <= 253:
        raise InputError(f"draw_markets: {prices.name} has {len(prices.dates)} days; set train_until, because the last "
                         "252 are for testing by default")
    return str(prices.dates[-253])


def _last_day(prices: Prices, date: str | None, name: str) -> int:
    """The number of the last trading day up to a date."""
    if date is None:
        return -1
    try:
        return len(prices.between(last=date).dates) - 1
    except InputError as error:
        raise InputError(f"draw_markets({name}): {error}") from error
