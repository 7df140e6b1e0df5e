"""Numbers that describe a back-test. The growth g_t is the factor by which the wealth grows on day t."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from experiments.portfolio.trading import Backtest

DAYS_PER_YEAR = 252


def annual_return(growth: Float[Array, " days"], days_per_year: int = DAYS_PER_YEAR) -> Float[Array, ""]:
    """The annualised geometric mean return, (prod_t g_t)^(days_per_year / days) - 1, as a fraction.

    Example:
        >>> print(f"{portfolio.annual_return(jnp.array([1.1, 1.1]), days_per_year=2):.2%}")
        21.00%
    """
    return jnp.expm1(days_per_year * jnp.mean(jnp.log(growth)))


def sharpe_ratio(growth: Float[Array, " days"], days_per_year: int = DAYS_PER_YEAR) -> Float[Array, ""]:
    """The annualised Sharpe ratio, sqrt(days_per_year) mean(g - 1) / std(g - 1), with the population deviation.

    The return of cash is 0, so that nothing is subtracted. A portfolio whose wealth never changes has the ratio 0.

    Example:
        >>> portfolio.sharpe_ratio(jnp.array([1.5, 1.0]), days_per_year=4).item()
        2.0
    """
    returns = growth - 1
    mean, deviation = jnp.mean(returns), jnp.std(returns)
    ratio = mean / jnp.where((mean == 0) & (deviation == 0), 1, deviation)
    return jnp.sqrt(jnp.asarray(days_per_year, ratio.dtype)) * ratio


def max_drawdown(growth: Float[Array, " days"]) -> Float[Array, ""]:
    """The largest loss from an earlier maximum of the wealth, the first wealth included, as a fraction of it.

    Example:
        >>> portfolio.max_drawdown(jnp.array([2.0, 0.5, 0.5, 3.0])).item()
        0.75
    """
    wealth = jnp.concatenate([jnp.ones_like(growth[:1]), jnp.cumprod(growth)])
    return jnp.max(1 - wealth / jax.lax.cummax(wealth))


class Metrics(NamedTuple):
    """The metrics of a back-test.

    Attributes:
        wealth: the last wealth, in units of the first.
        annual_return: annualised geometric mean return, a fraction.
        sharpe_ratio: annualised Sharpe ratio.
        max_drawdown: largest loss from an earlier maximum of the wealth, a fraction of it.
        turnover: mean share of the wealth that a day's trade sells and buys.
        cash_share: mean weight of cash.
        largest_weight: mean of each day's largest weight.
    """

    wealth: Float[Array, ""]
    annual_return: Float[Array, ""]
    sharpe_ratio: Float[Array, ""]
    max_drawdown: Float[Array, ""]
    turnover: Float[Array, ""]
    cash_share: Float[Array, ""]
    largest_weight: Float[Array, ""]


def metrics(result: Backtest, days_per_year: int = DAYS_PER_YEAR) -> Metrics:
    """All metrics of a back-test.

    Args:
        result: result of ``backtest``.
        days_per_year: trading days in a year.

    Example:
        >>> relatives = portfolio.price_relatives(np.array([[1.0, 1.0], [2.0, 1.0], [2.0, 3.0]]))
        >>> result = portfolio.backtest(portfolio.ucrp(2), relatives, costs=portfolio.FirstOrderCosts(0.0))
        >>> portfolio.metrics(result).wealth.item()
        3.0
    """
    return Metrics(
        result.wealth[-1], annual_return(result.growth, days_per_year), sharpe_ratio(result.growth, days_per_year),
        max_drawdown(result.growth), jnp.mean(result.traded), jnp.mean(result.weights[:, 0]),
        jnp.mean(jnp.max(result.weights, axis=1)))
