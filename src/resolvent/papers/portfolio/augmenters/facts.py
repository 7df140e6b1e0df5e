"""Stylised facts of daily returns, by which synthetic series are compared with real ones."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from resolvent.papers.portfolio.augmenters.augmenter import DAYS_PER_YEAR

__all__ = ["StylisedFacts", "stylised_facts"]

_LAGS = 10


class StylisedFacts(NamedTuple):
    """Properties of the logarithmic returns of some assets, each the mean over the assets.

    Attributes:
        mean: annual mean.
        volatility: annual standard deviation.
        kurtosis: fourth standardised moment; 3 for the normal distribution.
        memory: autocorrelation of the returns, mean over lags of 1 to 10 days; near 0 for real prices.
        volatility_memory: the same autocorrelation of the absolute returns; positive for real prices, whose volatility
            clusters.
        correlation: correlation of different assets on the same day, mean over pairs; 0 for a single asset.
    """

    mean: Float[Array, ""]
    volatility: Float[Array, ""]
    kurtosis: Float[Array, ""]
    memory: Float[Array, ""]
    volatility_memory: Float[Array, ""]
    correlation: Float[Array, ""]


def stylised_facts(returns: Float[Array, "series days m"]) -> StylisedFacts:
    """The stylised facts of several series of the same assets. Moments are over all series and days.

    Args:
        returns: logarithmic returns; every series must have more than 10 days.

    Example:
        >>> returns = 0.01 * jax.random.normal(jax.random.key(0), (4, 252, 3))
        >>> abs(rv.portfolio.stylised_facts(returns).kurtosis - 3) < 0.3
        Array(True, dtype=bool)

    References:
        Cont: Empirical Properties of Asset Returns: Stylized Facts and Statistical Issues, Quantitative Finance, 2001.
    """
    deviation = jnp.std(returns, axis=(0, 1))
    standard = (returns - jnp.mean(returns, axis=(0, 1))) / jnp.where(deviation > 0, deviation, 1)
    assets = returns.shape[2]
    correlations = jnp.tensordot(standard, standard, ((0, 1), (0, 1))) / (returns.shape[0] * returns.shape[1])
    pairs = assets * (assets - 1)
    correlation = (jnp.sum(correlations) - jnp.trace(correlations)) / max(pairs, 1)
    return StylisedFacts(
        DAYS_PER_YEAR * jnp.mean(returns), jnp.sqrt(DAYS_PER_YEAR) * jnp.mean(deviation), jnp.mean(standard**4),
        _autocorrelation(returns), _autocorrelation(jnp.abs(returns)), correlation)


def _autocorrelation(values: Float[Array, "series days m"]) -> Float[Array, ""]:
    """Mean over assets and lags of 1 to 10 days; products of successive days are within a series."""
    centred = values - jnp.mean(values, axis=(0, 1))
    variance = jnp.mean(centred**2, axis=(0, 1))
    safe = jnp.where(variance > 0, variance, 1)

    def at_lag(lag: int) -> Array:
        return jnp.mean(jnp.mean(centred[:, lag:] * centred[:, :-lag], axis=(0, 1)) / safe)

    lags: Array = jax.numpy.stack([at_lag(lag) for lag in range(1, _LAGS + 1)])
    return jnp.mean(lags)
