"""Geometric Brownian motion with correlated assets."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int
from typing_extensions import override

from experiments.portfolio.augmenters.augmenter import DAYS_PER_YEAR, Augmenter, FittedAugmenter


class FittedGBM(FittedAugmenter):
    """Prices S with dS_i = S_i (mu_i dt + dB_i), where B is a Brownian motion with covariance S t; t is in years.

    The expected price after T years is S_0 exp(mu T).

    Attributes:
        drift: mu, the annual drift.
        covariance: covariance of the logarithmic returns of a year.
    """

    drift: Float[Array, " m"]
    covariance: Float[Array, "m m"]

    @override
    def sample(self, days: int, key: Array) -> Float[Array, "days m"]:
        # A square root by eigenvalues also exists for assets whose returns are linearly dependent or constant.
        values, vectors = jnp.linalg.eigh(self.covariance / DAYS_PER_YEAR)
        root = vectors * jnp.sqrt(jnp.maximum(values, 0))
        mean = (self.drift - jnp.diagonal(self.covariance) / 2) / DAYS_PER_YEAR
        return jnp.exp(mean + jax.random.normal(key, (days, len(mean)), mean.dtype) @ root.T)


class GBM(Augmenter):
    """Geometric Brownian motion: logarithmic returns are normal, correlated between assets, independent between days.

    From the logarithmic returns x of a day, the annual covariance is S = 252 cov(x) and the drift is
    mu = 252 mean(x) + diag(S)/2.

    Example:
        >>> returns = 0.01 * jax.random.normal(jax.random.key(0), (500, 2))
        >>> fitted = portfolio.GBM().fit(returns, jax.random.key(1))
        >>> fitted.sample(252, jax.random.key(2)).shape
        (252, 2)

    References:
        Black, Scholes: The Pricing of Options and Corporate Liabilities, 1973.
    """

    @override
    def fit(self, returns: Float[Array, "days m"], key: Array, first: Int[ArrayLike, ""] = 0) -> FittedGBM:
        is_used = (jnp.arange(len(returns)) >= first)[:, None]
        days = jnp.sum(is_used)
        mean = jnp.sum(jnp.where(is_used, returns, 0), axis=0) / days
        centred = jnp.where(is_used, returns - mean, 0)
        covariance = DAYS_PER_YEAR * centred.T @ centred / jnp.maximum(days - 1, 1)
        return FittedGBM(DAYS_PER_YEAR * mean + jnp.diagonal(covariance) / 2, covariance)
