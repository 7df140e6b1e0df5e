"""Back-tests of the models after the last round, and of the baselines on the same universes and days."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree
from numpy.typing import NDArray

from experiments.curves import Curve
from experiments.portfolio import (
    Backtest,
    ExactCosts,
    MarketData,
    Metrics,
    PortfolioProblem,
    backtest,
    baselines,
    metrics,
    price_relatives,
)
from experiments.portfolio.market_data import SPLITS
from experiments.schema import View
from resolvent import Result, keys
from resolvent.errors import InputError, alternatives, quote

WEALTH_BY_DAY = "wealth_by_day"  # the measure of the wealth on each day of a split
_UNTRAINED = "untrained"
_HISTORY = 20  # earlier days that baselines know; OLMAR uses 10 at most
BASELINES = ("cash", "UBAH", "UCRP", "uniform with cash", "OLMAR", "ONS", "best stock (hindsight)", "BCRP (hindsight)",
             _UNTRAINED)


class Backtests:
    """Back-tests of an experiment on prices.

    Attributes:
        problem: the problem, whose parties have the universes.
    """

    def __init__(self, problem: PortfolioProblem, data: MarketData, results: Mapping[str, Result]) -> None:
        self.problem, self.data, self.results = problem, data, results
        self._of_split = jax.jit(self._backtest_parties, static_argnames="split")

    def wealth_curves(self, view: View, points: Mapping[str, Mapping[str, Any]]) -> dict[str, Curve]:
        """The mean wealth over the parties on each day, in units of the first, of the methods and of baselines.

        Args:
            points: the point of the sweep that each label stands for.
        """
        curves = {label: _wealth_curve(self._of_split(self.results[label].personal_models, split=view.split), point)
                  for label, point in points.items()}
        return curves | {name: _wealth_curve(self._baseline(name, view.split), {}) for name in view.baselines}

    def baseline_curves(self, view: View, rounds: NDArray[np.int64]) -> dict[str, Curve]:
        """A metric of baselines, which is the same in the first and in the last round."""
        if view.baselines and view.measure not in Metrics._fields:
            raise InputError(f"baselines have no measure {quote(view.measure)}; they have "
                             f"{', '.join((WEALTH_BY_DAY, *Metrics._fields))}")
        curves = {}
        for name in view.baselines:
            values = np.asarray(getattr(jax.vmap(metrics)(self._baseline(name, view.split)), view.measure))
            curves[name] = Curve(rounds[[0, -1]], np.full(2, values.mean()), parties=values)
        return curves

    def _backtest_parties(self, models: PyTree, split: str) -> Backtest:
        def of_party(party: tuple[PyTree, Array]) -> Backtest:
            model, k = party
            return self.problem.backtest(model, k, split)

        result: Backtest = jax.lax.map(of_party, (models, jnp.arange(self.problem.parties)))
        return result

    def _baseline(self, name: str, split: str) -> Backtest:
        """A baseline on the universe of each party, with a leading axis of the parties."""
        if name not in BASELINES:
            raise InputError(f"there is no baseline {quote(name)}{alternatives(name, BASELINES)}")
        parties = self.problem.parties
        if name == _UNTRAINED:
            seed = next(iter(self.results.values())).seed
            model = self.problem.init(keys.initial_key(seed))
            models = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (parties, *leaf.shape)), model)
            untrained: Backtest = self._of_split(models, split=split)
            return untrained
        first = self.data.periods[SPLITS.index(split)].first
        closes = np.stack([self.data.closes(k) for k in range(parties)])[:, max(first - _HISTORY, 0):]
        days = len(self.data.closes(0, split))
        relatives = jnp.stack([price_relatives(of_party) for of_party in closes])
        result: Backtest = _backtest_baseline(name, relatives, self.problem.costs.rate, earlier=min(first, _HISTORY),
                                              days=days - 1)
        return result


@partial(jax.jit, static_argnames=("name", "earlier", "days"))
def _backtest_baseline(name: str, relatives: Float[Array, "N length m+1"], rate: ArrayLike, earlier: int,
                       days: int) -> Backtest:
    def of_party(relatives: Float[Array, "length m+1"]) -> Backtest:
        history, evaluated = relatives[:earlier], relatives[earlier:earlier + days]
        return backtest(baselines(evaluated)[name], evaluated, history=history, costs=ExactCosts(rate, rate))

    result: Backtest = jax.lax.map(of_party, relatives)
    return result


def _wealth_curve(result: Backtest, point: Mapping[str, Any]) -> Curve:
    """The mean wealth of back-tests with a leading axis of the parties."""
    growth = np.asarray(result.growth, np.float64)
    days = np.arange(growth.shape[1] + 1)
    wealth = np.concatenate([np.ones((len(growth), 1)), np.cumprod(growth, axis=1)], axis=1)
    return Curve(days, wealth.mean(axis=0), point, {"days": days.astype(float)}, wealth[:, -1], growth)
