"""Portfolios: prices from a file, a market with costs, strategies, baselines, back-tests and their metrics.

Index 0 of weights and relative prices is cash; the assets are 1..m. Rates and returns are fractions: 0.002 is 0.2 %.
"""

from resolvent.data.prices import Prices, read_prices
from resolvent.problem.portfolio.baseline_strategies import (
    baselines,
    bcrp,
    best_stock,
    cash,
    log_optimal_weights,
    ubah,
    ucrp,
    uniform_with_cash,
)
from resolvent.problem.portfolio.market import (
    Costs,
    ExactCosts,
    FirstOrderCosts,
    drift,
    price_relatives,
    traded_share,
)
from resolvent.problem.portfolio.performance import Metrics, annual_return, max_drawdown, metrics, sharpe_ratio
from resolvent.problem.portfolio.strategies import OLMAR, ONS, BuyAndHold, ConstantRebalanced, Strategy
from resolvent.problem.portfolio.trading import Backtest, backtest

__all__ = [
    "OLMAR",
    "ONS",
    "Backtest",
    "BuyAndHold",
    "ConstantRebalanced",
    "Costs",
    "ExactCosts",
    "FirstOrderCosts",
    "Metrics",
    "Prices",
    "Strategy",
    "annual_return",
    "backtest",
    "baselines",
    "bcrp",
    "best_stock",
    "cash",
    "drift",
    "log_optimal_weights",
    "max_drawdown",
    "metrics",
    "price_relatives",
    "read_prices",
    "sharpe_ratio",
    "traded_share",
    "ubah",
    "ucrp",
    "uniform_with_cash",
]
