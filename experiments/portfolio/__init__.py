"""Portfolios: prices from a file, a market with costs, strategies, back-tests, their metrics and their uncertainty.

Index 0 of weights and relative prices is cash; the assets are 1..m. Rates and returns are fractions: 0.002 is 0.2 %.
"""

from experiments.portfolio.augmenters import (
    GAN,
    GBM,
    VMM,
    Augmenter,
    FittedAugmenter,
    generate,
)
from experiments.portfolio.baseline_strategies import (
    baselines,
    bcrp,
    best_stock,
    cash,
    log_optimal_weights,
    ubah,
    ucrp,
    uniform_with_cash,
)
from experiments.portfolio.corporate_actions import Action, Actions, read_actions
from experiments.portfolio.evaluation import (
    Difference,
    deflated_sharpe_ratio,
    expected_best_ratio,
    paired_difference,
    probabilistic_ratio,
)
from experiments.portfolio.federation import PortfolioProblem, problem
from experiments.portfolio.market import (
    Costs,
    ExactCosts,
    FirstOrderCosts,
    drift,
    price_relatives,
    traded_share,
)
from experiments.portfolio.market_data import MarketData, Period, draw_markets
from experiments.portfolio.performance import Metrics, annual_return, max_drawdown, metrics, sharpe_ratio
from experiments.portfolio.policies import EIIE, Policy, eiie_cnn, eiie_lstm, eiie_rnn
from experiments.portfolio.price_tables import Prices, read_prices
from experiments.portfolio.strategies import OLMAR, ONS, BuyAndHold, ConstantRebalanced, Strategy
from experiments.portfolio.traded_markets import prices
from experiments.portfolio.trading import Backtest, backtest
from experiments.portfolio.trained import PolicyStrategy

__all__ = [
    "EIIE", "GAN", "GBM", "OLMAR", "ONS", "VMM", "Action", "Actions", "Augmenter", "Backtest", "BuyAndHold",
    "ConstantRebalanced", "Costs", "Difference", "ExactCosts", "FirstOrderCosts", "FittedAugmenter", "MarketData",
    "Metrics", "Period", "Policy", "PolicyStrategy", "PortfolioProblem", "Prices", "Strategy", "annual_return",
    "backtest", "baselines", "bcrp", "best_stock", "cash", "deflated_sharpe_ratio", "draw_markets", "drift",
    "eiie_cnn", "eiie_lstm", "eiie_rnn", "expected_best_ratio", "generate", "log_optimal_weights", "max_drawdown",
    "metrics", "paired_difference", "price_relatives", "prices", "probabilistic_ratio", "problem", "read_actions",
    "read_prices", "sharpe_ratio", "traded_share", "ubah", "ucrp", "uniform_with_cash",
]
