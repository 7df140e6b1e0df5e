"""Prices as the data of an experiment file: ``name: "experiments.portfolio:prices"``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from typing_extensions import override

from experiments.portfolio.augmenters import GAN, GBM, VMM, Augmenter, generate
from experiments.portfolio.corporate_actions import Actions, read_actions
from experiments.portfolio.federation import MemoryKind, Panel, PortfolioProblem, problem
from experiments.portfolio.market_data import MarketData, draw_markets
from experiments.portfolio.policies import Policy
from experiments.portfolio.price_checks import check_prices
from experiments.portfolio.price_tables import read_prices
from experiments.progress import show_progress
from resolvent.arguments import checked
from resolvent.errors import check_range
from resolvent.problems import ProblemData

__all__ = ["TradedMarkets", "prices"]

AugmenterName = Literal["GBM", "VMM", "GAN"]


@dataclass(frozen=True, eq=False)
class TradedMarkets(MarketData, ProblemData):
    """Markets, and how parties trade and train on them.

    Attributes:
        rate: see ``portfolio.problem``, also for the next three.
        lag: number of the latest closes that a decision does not use yet.
        discount: discount of the rewards.
        memory: whether each party keeps the last output of each day.
        augmenters: the models of synthetic prices; party k has number k mod their number. Empty: there are none.
        years: number of synthetic years for each party; after the last one the first follows.
        rounds_per_year: number of rounds with the same year.
        panel: see ``portfolio.problem``.
    """

    rate: float
    lag: int
    discount: float
    memory: MemoryKind
    augmenters: Sequence[Augmenter]
    years: int
    rounds_per_year: int
    panel: Panel

    kind: ClassVar[str] = "prices"
    models: ClassVar[type] = Policy

    @override
    def problem(self, model: Policy) -> PortfolioProblem:
        synthetic: dict[str, Any] = {}
        if self.augmenters:
            relatives = generate(self.augmenters, self.training_prices.closes, self.universes, years=self.years,
                                 progress=partial(show_progress, "synthetic prices, parties"))
            synthetic = {"augmented": relatives, "rounds_per_year": self.rounds_per_year, "panel": self.panel}
        return problem(self, model, rate=self.rate, lag=self.lag, discount=self.discount, memory=self.memory,
                       **synthetic)


@checked
def prices(*, prices: str, parties: int = 50, assets: int = 9, seed: int = 0, train_until: str | None = None,
           validate_until: str | None = None, test_until: str | None = None, tickers: list[str] | None = None,
           date: str = "Date", separator: str = "auto", encoding: str = "auto", check: bool = True,
           rate: float = 0.002, lag: int = 0, discount: float = 1.0, memory: MemoryKind = "stored",
           augmenters: tuple[AugmenterName, ...] = (), years: int = 40, rounds_per_year: int = 20,
           panel: Panel = "appended", gan_iterations: int = 1000, actions: str = "",
           universe_on: str = "") -> TradedMarkets:
    """Daily closing prices from a CSV file, on which each party trades a random universe of assets.

    Args:
        prices: path of a ``.csv`` or ``.csv.gz`` file, a column for each ticker; see ``read_prices``.
        parties: number of parties.
        assets: number of assets of each party.
        seed: seed of the universes.
        train_until: date of the last close for training; default: the day before the last 252.
        validate_until: date of the last close for validation; default: there is no validation period.
        test_until: date of the last close for testing; default: the last day.
        tickers: the columns to use; default: all but that of the dates.
        date: the name of the column of dates.
        separator: the character between two values; ``auto``: recognised from the header.
        encoding: encoding of the file; ``auto``: UTF-8, or what the file's byte-order mark says.
        check: refuse jumps, gaps and prices that stay the same, see ``read_prices``.
        rate: the share of a purchase or a sale that is paid as a fee.
        lag: number of the latest closes that a decision does not use yet: 0, or 1.
        discount: discount of the rewards, in (0, 1]; the b-th reward of a minibatch has the weight discount^b.
        memory: ``stored``: each party keeps the last output of each day; ``recomputed``: a minibatch computes the
            weights before it from 5 days.
        augmenters: models of prices, which are fitted to each party's own assets and draw synthetic years on which the
            parties also train; party k has number k mod their number. Empty: the parties train on real prices only.
        years: number of synthetic years for each party; after the last one the first follows.
        rounds_per_year: number of rounds with the same synthetic year.
        panel: a party trains on its real prices with the year ``appended``, or on the ``recent`` real days that the
            first window needs and the year only.
        gan_iterations: iterations of the training of a GAN.
        actions: path of a table of splits, dividends, delistings, members and closed days, see ``read_actions``; the
            prices are then those at which assets were traded, and are adjusted and checked for missing days.
        universe_on: universes are drawn from the members on this day, such as 2006-12-29, instead of all assets.

    Raises:
        InputError: the file is wrong, or a number or a date is out of range.

    Example:
        >>> data = portfolio.prices(prices="closes.csv", parties=10, train_until="2018-12-31")  # doctest: +SKIP
    """
    check_range("prices", "[1, inf)", years=years, rounds_per_year=rounds_per_year)
    makes: dict[str, Callable[[], Augmenter]] = {"GBM": GBM, "VMM": VMM, "GAN": partial(GAN, iterations=gan_iterations)}
    table = read_prices(prices, tickers=tickers, date=date, separator=separator, encoding=encoding,
                        check=check and not actions)
    events = read_actions(actions) if actions else Actions(())
    if actions:
        table = events.adjusted(table)
        if check:
            events.check_days(table)
            check_prices(table.dates, table.closes, table.tickers, range(2, len(table.dates) + 2), table.name)
    if universe_on:
        table = table.select(events.members(table, universe_on))
    data = draw_markets(table, parties=parties, assets=assets, seed=seed, train_until=train_until,
                        validate_until=validate_until, test_until=test_until)
    return TradedMarkets(data.prices, data.filled, data.universes, data.periods, rate, lag, discount, memory,
                         [makes[name]() for name in augmenters], years, rounds_per_year, panel)
