"""How certain the difference of two strategies is, and how large a Sharpe ratio is after many trials."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.stats import norm
from jaxtyping import Array, ArrayLike, Float

from experiments.portfolio.performance import DAYS_PER_YEAR, annual_return, sharpe_ratio
from experiments.portfolio.resampling import stationary_bootstrap
from resolvent.errors import InputError, check_range

_EULER_MASCHERONI = 0.5772156649015329


class Difference(NamedTuple):
    """The difference of a statistic between two strategies, with a bootstrap interval.

    Attributes:
        estimate: the mean over universes of the first strategy's statistic minus the second's.
        low: the lower end of the interval; the first strategy is better if it is above 0.
        high: the upper end.
    """

    estimate: Float[Array, ""]
    low: Float[Array, ""]
    high: Float[Array, ""]


def paired_difference(first: Float[Array, "universes days"], second: Float[Array, "universes days"], key: Array, *,
                      statistic: Callable[[Float[Array, " days"]], Float[Array, ""]] = annual_return,
                      mean_block: float = 10.0, draws: int = 2000, level: float = 0.95) -> Difference:
    """How much better one strategy is than another on the same universes and days, with a bootstrap interval.

    Every draw resamples the days by the stationary bootstrap, the same days for both strategies and all universes, so
    that dependence between days, strategies and universes remains. The interval has the quantiles (1 - level)/2 and
    (1 + level)/2 of the differences of the draws.

    Args:
        first: the growth of each day [universes, days]: that of ``backtest``.
        second: the growth of the other strategy on the same universes and days.
        key: a random key.
        statistic: function of a strategy's growth, such as ``annual_return`` or ``sharpe_ratio``.
        mean_block: mean number of successive days that are drawn together, at least 1.
        draws: number of bootstrap draws.
        level: level of the interval, in (0, 1).

    Raises:
        InputError: the shapes differ, or a number is out of range.

    Example:
        >>> growth = 1 + 0.01 * jax.random.normal(jax.random.key(0), (3, 100))
        >>> difference = portfolio.paired_difference(1.001 * growth, growth, jax.random.key(1), draws=100)
        >>> bool(difference.low > 0)
        True

    References:
        Politis, Romano: The Stationary Bootstrap, Journal of the American Statistical Association, 1994.
    """
    first, second = jnp.asarray(first), jnp.asarray(second)
    if first.ndim != 2 or first.shape != second.shape:
        raise InputError(f"paired_difference(first, second) have the shapes {first.shape} and {second.shape}: give "
                         "[universes, days], the same universes and days for both")
    check_range("paired_difference", "[1, inf)", mean_block=mean_block, draws=draws)
    check_range("paired_difference", "(0, 1)", level=level)

    def difference(days: Array) -> Array:
        return jnp.mean(jax.vmap(statistic)(first[:, days]) - jax.vmap(statistic)(second[:, days]))

    def draw(key: Array) -> Array:
        return difference(stationary_bootstrap(key, first.shape[1], mean_block))

    drawn = jax.lax.map(draw, jax.random.split(key, draws))
    low, high = jnp.quantile(drawn, jnp.array([(1 - level) / 2, (1 + level) / 2]))
    return Difference(difference(jnp.arange(first.shape[1])), low, high)


def expected_best_ratio(deviation: ArrayLike, trials: ArrayLike) -> Float[Array, ""]:
    """The approximate expectation of the largest of N Sharpe ratios that are independent and normal with mean 0.

    It is deviation * ((1 - gamma) Phi^-1(1 - 1/N) + gamma Phi^-1(1 - 1/(N e))), with gamma = 0.5772.

    Args:
        deviation: standard deviation of the ratios of the trials.
        trials: N, at least 2.

    Example:
        >>> print(f"{portfolio.expected_best_ratio(0.5, 10):.3f}")
        0.787

    References:
        Bailey, Lopez de Prado: The Deflated Sharpe Ratio, Journal of Portfolio Management, 2014.
    """
    n = jnp.asarray(trials, jnp.result_type(float))
    quantiles = ((1 - _EULER_MASCHERONI) * norm.isf(1 / n) + _EULER_MASCHERONI * norm.isf(1 / (n * jnp.e)))
    return jnp.asarray(deviation) * quantiles


def probabilistic_ratio(ratio: ArrayLike, benchmark: ArrayLike, days: ArrayLike, skewness: ArrayLike = 0.0,
                        kurtosis: ArrayLike = 3.0) -> Float[Array, ""]:
    """The probability that the true Sharpe ratio of a day exceeds a benchmark.

    It is Phi((S - S_0) sqrt(days - 1) / sqrt(1 - skewness S + (kurtosis - 1)/4 S^2)).

    Args:
        ratio: S, the Sharpe ratio of a day, not annualised.
        benchmark: S_0, also of a day.
        days: number of observed days.
        skewness: skewness of the daily returns; 0 for the normal distribution.
        kurtosis: kurtosis of the daily returns; 3 for the normal distribution.

    Example:
        >>> print(f"{portfolio.probabilistic_ratio(0.05, 0.0, 252):.3f}")
        0.786

    References:
        Bailey, Lopez de Prado: The Sharpe Ratio Efficient Frontier, Journal of Risk, 2012.
    """
    s, skewness, kurtosis = jnp.asarray(ratio), jnp.asarray(skewness), jnp.asarray(kurtosis)
    deviation = jnp.sqrt(1 - skewness * s + (kurtosis - 1) / 4 * s**2)
    probability: Array = norm.cdf((s - benchmark) * jnp.sqrt(jnp.asarray(days) - 1) / deviation)
    return probability


def deflated_sharpe_ratio(growth: Float[Array, " days"], trial_ratios: Float[Array, " trials"],
                          days_per_year: int = DAYS_PER_YEAR) -> Float[Array, ""]:
    """The probability that a strategy's Sharpe ratio exceeds the largest one expected from as many useless trials.

    It is ``probabilistic_ratio`` with ``expected_best_ratio`` as the benchmark. The strategy is usually the best of the
    trials. Below 0.95 its Sharpe ratio is commonly regarded as a result of the search.

    Args:
        growth: the growth of each day of the chosen strategy.
        trial_ratios: the annualised Sharpe ratios of all trials, at least 2, the chosen one included.
        days_per_year: trading days in a year.

    Raises:
        InputError: there are fewer than 2 trials.

    Example:
        >>> growth = 1.001 + 0.01 * jax.random.normal(jax.random.key(0), (1000,))
        >>> probability = portfolio.deflated_sharpe_ratio(growth, jnp.array([0.1, 0.5, 1.5]))
        >>> 0 < probability < 1
        Array(True, dtype=bool)

    References:
        Bailey, Lopez de Prado: The Deflated Sharpe Ratio, Journal of Portfolio Management, 2014.
    """
    trial_ratios = jnp.asarray(trial_ratios)
    if trial_ratios.ndim != 1 or len(trial_ratios) < 2:
        raise InputError(f"deflated_sharpe_ratio(trial_ratios) has shape {trial_ratios.shape}: give the annualised "
                         "Sharpe ratios of at least 2 trials")
    annual = jnp.sqrt(jnp.asarray(days_per_year, growth.dtype))
    standard = (growth - jnp.mean(growth)) / jnp.std(growth)
    benchmark = expected_best_ratio(jnp.std(trial_ratios, ddof=1) / annual, len(trial_ratios))
    return probabilistic_ratio(sharpe_ratio(growth, days_per_year) / annual, benchmark, len(growth),
                               jnp.mean(standard**3), jnp.mean(standard**4))
