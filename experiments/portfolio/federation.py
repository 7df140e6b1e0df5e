"""The federation of portfolio agents as a problem: one policy, a universe of assets for each party."""

from dataclasses import replace
from functools import partial
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, PyTree
from typing_extensions import override

from experiments.portfolio.agents import AgentOracle
from experiments.portfolio.market import ExactCosts, FirstOrderCosts
from experiments.portfolio.market_data import SPLITS, MarketData, Period
from experiments.portfolio.performance import Metrics, metrics
from experiments.portfolio.policies import Policy, eiie_cnn
from experiments.portfolio.trading import Backtest, backtest
from experiments.portfolio.trained import VoteStrategy
from resolvent.arguments import checked
from resolvent.errors import InputError, check_range
from resolvent.problems import Oracle, Problem

MemoryKind = Literal["stored", "recomputed"]
Panel = Literal["appended", "recent"]


class Augmented(eqx.Module):
    """Synthetic years, one after the other in the course of training.

    Attributes:
        relatives: [N, markets, years, days, m] daily price relatives v_{t+1}/v_t, the first from the last real close.
        panel: a party trains on its real prices with the year ``appended``, or on the ``recent`` l real days and the
            year only.
    """

    relatives: Float[Array, "N markets years days m"]
    rounds: ArrayLike
    panel: Panel = eqx.field(static=True)

    def year(self, t: Int[Array, ""]) -> Int[Array, ""]:
        """The number of the year of round t; after the last year the first follows."""
        return (t // jnp.asarray(self.rounds)).astype(jnp.int32) % self.relatives.shape[2]


class PortfolioProblem(Problem):
    """Each party trains the same policy on its own assets.

    The objective f_k is the negative mean logarithmic growth on party k's training prices (``AgentOracle``), or, in a
    round with a synthetic year, on its panel of real and synthetic prices. Scores are those of a back-test on real
    prices, which begins with cash and has exact costs.

    Attributes:
        policy: the policy.
        closes: [N, markets, days, m] real closing prices, in units of the first; pooled data have several markets.
        periods: the periods for training, validation and testing.
        costs: costs of trades in the reward; back-tests use the exact factor with the same rate.
        discount: gamma; the reward of position b in a minibatch has the weight gamma^b.
        lag: number of the latest closes that a decision does not use yet.
        is_stored: whether parties have a portfolio-vector memory.
        augmented: synthetic prices; None if there are none.
        year: number of the synthetic year of a round; None outside of rounds.

    Example:
        >>> days = np.arange("2018-01-01", "2020-01-01", dtype="datetime64[D]")
        >>> prices = portfolio.Prices(days, ("A", "B", "C"), np.ones((len(days), 3)))
        >>> data = portfolio.draw_markets(prices, parties=2, assets=2)
        >>> problem = portfolio.problem(data, portfolio.eiie_cnn(lookback=10))
        >>> problem.parties, problem.score_name
        (2, 'annual_return')
    """

    policy: Policy
    closes: Float[Array, "N markets days m"]
    periods: tuple[Period, Period, Period] = eqx.field(static=True)
    costs: FirstOrderCosts
    discount: ArrayLike
    lag: int = eqx.field(static=True)
    is_stored: bool = eqx.field(static=True)
    augmented: Augmented | None
    year: Int[Array, ""] | None

    @override
    def init(self, key: Array) -> PyTree:
        return jax.tree.map(lambda x: x.astype(self.closes.dtype), self.policy.init(key))

    @override
    def at(self, t: Int[Array, ""]) -> "PortfolioProblem":
        """The problem with the synthetic year of round t."""
        return self if self.augmented is None else replace(self, year=self.augmented.year(t))

    @override
    def oracle(self, k: Int[Array, ""]) -> Oracle:
        closes = self._training_closes(k)
        oracle = AgentOracle(jnp.array(1), self.policy, closes, self.costs, self.discount, self.lag, self.is_stored)
        return replace(oracle, samples=jnp.array(len(closes) * oracle.decisions))

    def _training_closes(self, k: Int[Array, ""]) -> Float[Array, "markets days m"]:
        real = self.closes[k][:, :self.periods[0].first + self.periods[0].days + 1]
        if self.augmented is None or self.year is None:
            return real
        synthetic = real[:, -1:] * jnp.cumprod(self.augmented.relatives[k][:, self.year], axis=1)
        if self.augmented.panel == "recent":
            real = real[:, -self.policy.lookback - self.lag:]
        return jnp.concatenate([real, synthetic], axis=1)

    @override
    def pooled(self) -> "PortfolioProblem":
        """One party that trains on the windows of all parties. It is for training only."""
        def merge(x: Array) -> Array:
            return x.reshape(1, -1, *x.shape[2:])

        augmented = self.augmented
        if augmented is not None:
            augmented = replace(augmented, relatives=merge(augmented.relatives))
        return replace(self, sizes=jnp.sum(self.sizes)[None], closes=merge(self.closes), augmented=augmented)

    @override
    def split_sizes(self, split: int) -> Int[Array, " N"]:
        return jnp.full(self.parties, len(self._decisions(split)))

    @override
    def report(self, w: PyTree, k: Int[Array, ""], split: Int[Array, ""]) -> dict[str, Array]:
        """The loss, which is the negative mean logarithmic growth, and the metrics of a back-test from cash."""
        def of_split(number: int) -> dict[str, Array]:
            if not len(self._decisions(number)):
                return dict.fromkeys(("loss", *Metrics._fields), jnp.full((), jnp.nan, self.closes.dtype))
            result = self.backtest(w, k, SPLITS[number])
            return {"loss": -jnp.mean(jnp.log(result.growth)), **metrics(result)._asdict()}

        scores: dict[str, Array] = jax.lax.switch(split, [partial(of_split, i) for i in range(len(SPLITS))])
        return scores

    @override
    def evaluate_party(self, w: PyTree, k: Int[Array, ""], split: Int[Array, ""]) -> tuple[Array, Array]:
        scores = self.report(w, k, split)
        return scores["loss"], scores[self.score_name]

    def backtest(self, w: PyTree, k: Int[Array, ""] | int, split: str = "test") -> Backtest:
        """The back-test of a policy with parameters ``w`` on party k's assets, from cash. It can be mapped and traced.

        Args:
            w: the parameters.
            k: the party.
            split: ``train``, ``validation`` or ``test``.
        """
        days = self._decisions(SPLITS.index(split))
        closes, lookback = self.closes[k][0], self.policy.lookback
        windows = closes[days - self.lag - lookback + 1 + np.arange(lookback)[:, None]]
        votes = self.policy.votes(w, (windows / windows[-1]).reshape(lookback, -1)).reshape(windows.shape[1:])
        relatives = jnp.concatenate([jnp.ones((len(days), 1), closes.dtype), closes[days + 1] / closes[days]], axis=1)
        costs = ExactCosts(self.costs.rate, self.costs.rate)
        return backtest(VoteStrategy(self.policy, w, votes), relatives, costs=costs)

    def _decisions(self, split: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The numbers of the days on which the decisions of a split are made."""
        first, days = self.periods[split]
        start = max(first, self.policy.lookback - 1 + self.lag)
        return np.arange(start, first + days)


@checked
def problem(data: MarketData, policy: Policy | None = None, *, rate: float = 0.002, lag: int = 0, discount: float = 1.0,
            memory: MemoryKind = "stored", augmented: Float[ArrayLike, "N years days m"] | None = None,
            rounds_per_year: int = 20, panel: Panel = "appended") -> PortfolioProblem:
    """The federation of portfolio agents: every party trains the same policy on its own universe of assets.

    Args:
        data: the markets, of ``draw_markets``.
        policy: the policy; default: ``eiie_cnn()``.
        rate: c, the share of a purchase or a sale that is paid as a fee.
        lag: number of the latest closes that a decision does not use yet; 0: it uses the close at which it trades.
        discount: gamma, in (0, 1]; the b-th reward of a minibatch has the weight gamma^b.
        memory: ``stored``: each party keeps the last output of each day (portfolio-vector memory); ``recomputed``: a
            minibatch computes the weights before it from 5 days.
        augmented: synthetic years of daily price relatives v_{t+1}/v_t, the first from the last close for training.
        rounds_per_year: number of rounds with the same synthetic year.
        panel: a party trains on its real prices with the year ``appended``, or on the ``recent`` real days that the
            first window needs and the year only.

    Raises:
        InputError: a number is out of range, a price for training or validation is missing, or there are too few days.

    Example:
        >>> days = np.arange("2018-01-01", "2020-01-01", dtype="datetime64[D]")
        >>> closes = np.exp(0.01 * np.random.default_rng(0).normal(size=(len(days), 4)).cumsum(axis=0))
        >>> data = portfolio.draw_markets(portfolio.Prices(days, tuple("ABCD"), closes), parties=3, assets=2)
        >>> problem = portfolio.problem(data, portfolio.eiie_cnn(lookback=10))
        >>> solver = rv.solvers.adam(5e-5, batch_size=50, steps=5, keep=True, batches=rv.solvers.Consecutive(5e-5))
        >>> result = rv.simulate(rv.fedavg(solver), problem, rounds=2, progress=False)
        >>> result.scores("test", "sharpe_ratio").shape
        (3, 3)
    """
    check_range("problem", "(0, 1]", discount=discount)
    check_range("problem", "[1, inf)", rounds_per_year=rounds_per_year)
    policy = eiie_cnn() if policy is None else policy
    closes = np.stack([data.closes(k) for k in range(len(data.universes))])
    _check_days(data, closes, policy, lag)
    dtype = jnp.result_type(float)
    # In units of the last close for training, so that single precision has all of its digits and later prices have no
    # influence.
    unit = closes[:, data.periods[0].first + data.periods[0].days]
    synthetic = None if augmented is None else Augmented(_synthetic(augmented, closes, dtype), rounds_per_year, panel)
    result = PortfolioProblem(
        sizes=jnp.ones(len(closes), jnp.int32), splits=SPLITS, score_name="annual_return", higher_is_better=True,
        policy=policy, closes=jnp.ones((len(closes), 1, *closes.shape[1:]), dtype), periods=data.periods,
        costs=FirstOrderCosts(rate), discount=discount, lag=lag, is_stored=memory == "stored",
        augmented=synthetic, year=None)
    first = jnp.array(0)
    panel_days = jax.eval_shape(lambda: result.at(first)._training_closes(first)).shape[1]
    sizes = jnp.full(len(closes), panel_days - policy.lookback - lag)
    # The constructor would refuse prices for testing that are not known yet.
    known: PortfolioProblem = eqx.tree_at(lambda p: (p.sizes, p.closes), result, (
        sizes, jnp.asarray((closes / unit[:, None])[:, None], dtype)))
    return known


def _check_days(data: MarketData, closes: np.ndarray[Any, np.dtype[np.float64]], policy: Policy, lag: int) -> None:
    if lag not in (0, 1):
        raise InputError(f"problem(lag={lag}) must be 0 or 1")
    train, _, test = data.periods
    needed = policy.lookback + lag + 1
    if train.days < needed:
        raise InputError(f"problem: there are {train.days + 1} closes for training, and a policy with a lookback of "
                         f"{policy.lookback} needs at least {needed + 1}: choose a later train_until or a shorter "
                         "lookback")
    before_test = closes[:, :test.first + 1]
    if not (np.isfinite(before_test) & (before_test > 0)).all():
        raise InputError(f"problem: {data.prices.name} has a price before the test period that is missing or not "
                         "positive")


def _synthetic(augmented: Any, closes: np.ndarray[Any, Any], dtype: Any) -> Float[Array, "N 1 years days m"]:
    values = np.asarray(augmented)
    parties, _, assets = closes.shape
    if values.ndim != 4 or values.shape[0] != parties or values.shape[3] != assets or 0 in values.shape:
        raise InputError(f"problem(augmented) has shape {values.shape}: give [{parties}, years, days, {assets}], price "
                         "relatives of each party")
    if not (np.isfinite(values) & (values > 0)).all():
        raise InputError("problem(augmented) has a price relative that is not a positive number")
    return jnp.asarray(values[:, None], dtype)
