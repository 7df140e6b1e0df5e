"""Portfolios: prices from a file, a market with costs, strategies, back-tests, their metrics and their uncertainty.

Index 0 of weights and relative prices is cash; the assets are 1..m. Rates and returns are fractions: 0.002 is 0.2 %.
"""

from resolvent.papers.portfolio.augmenters import (
    GAN,
    GBM,
    VMM,
    Augmenter,
    FittedAugmenter,
    generate,
)
from resolvent.papers.portfolio.baseline_strategies import (
    baselines,
    bcrp,
    best_stock,
    cash,
    log_optimal_weights,
    ubah,
    ucrp,
    uniform_with_cash,
)
from resolvent.papers.portfolio.corporate_actions import Action, Actions, read_actions
from resolvent.papers.portfolio.evaluation import (
    Difference,
    deflated_sharpe_ratio,
    expected_best_ratio,
    paired_difference,
    probabilistic_ratio,
)
from resolvent.papers.portfolio.federation import PortfolioProblem, problem
from resolvent.papers.portfolio.market import (
    Costs,
    ExactCosts,
    FirstOrderCosts,
    drift,
    price_relatives,
    traded_share,
)
from resolvent.papers.portfolio.market_data import MarketData, Period, draw_markets
from resolvent.papers.portfolio.performance import Metrics, annual_return, max_drawdown, metrics, sharpe_ratio
from resolvent.papers.portfolio.policies import EIIE, Policy, eiie_cnn, eiie_lstm, eiie_rnn
from resolvent.papers.portfolio.price_tables import Prices, read_prices
from resolvent.papers.portfolio.strategies import OLMAR, ONS, BuyAndHold, ConstantRebalanced, Strategy
from resolvent.papers.portfolio.traded_markets import prices
from resolvent.papers.portfolio.trading import Backtest, backtest
from resolvent.papers.portfolio.trained import PolicyStrategy

__all__ = [
    "EIIE", "GAN", "GBM", "OLMAR", "ONS", "VMM", "Action", "Actions", "Augmenter", "Backtest", "BuyAndHold",
    "ConstantRebalanced", "Costs", "Difference", "ExactCosts", "FirstOrderCosts", "FittedAugmenter", "MarketData",
    "Metrics", "Period", "Policy", "PolicyStrategy", "PortfolioProblem", "Prices", "Strategy", "annual_return",
    "backtest", "baselines", "bcrp", "best_stock", "cash", "deflated_sharpe_ratio", "draw_markets", "drift",
    "eiie_cnn", "eiie_lstm", "eiie_rnn", "expected_best_ratio", "generate", "log_optimal_weights", "max_drawdown",
    "metrics", "paired_difference", "price_relatives", "prices", "probabilistic_ratio", "problem", "read_actions",
    "read_prices", "sharpe_ratio", "traded_share", "ubah", "ucrp", "uniform_with_cash",
]
