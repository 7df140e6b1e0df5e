"""A variable-order Markov model of the market's state, which resamples real days."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int
from typing_extensions import override

from experiments.portfolio.augmenters.augmenter import Augmenter, FittedAugmenter
from experiments.portfolio.markov import PPMC, fit_ppmc
from resolvent.errors import check_range


class FittedVMM(FittedAugmenter):
    """A fitted variable-order Markov model.

    Attributes:
        model: predicts the next day's symbol.
        context: the symbols of the last days, a number as in ``PPMC``.
        returns: the real logarithmic returns, with the days sorted by symbol.
        bounds: day bounds[x] of ``returns`` is the first with the symbol x; day bounds[x + 1] - 1 is the last.
    """

    model: PPMC
    context: Int[Array, ""]
    returns: Float[Array, "days m"]
    bounds: Int[Array, " symbols+1"]

    @override
    def sample(self, days: int, key: Array) -> Float[Array, "days m"]:
        of_symbols, of_days = jax.random.split(key)
        symbols = self.model.sample(of_symbols, days, self.context)
        chosen = jax.random.randint(of_days, (days,), self.bounds[symbols], self.bounds[symbols + 1])
        return jnp.exp(self.returns[chosen])


class VMM(Augmenter):
    """A variable-order Markov model: the symbol of a day is the quantile of the assets' mean return.

    The next symbol is drawn by ``PPMC`` from the last ``order`` symbols. A drawn symbol emits the returns of a random
    real day with that symbol, so that the assets' joint distribution on one day is the real one.

    Attributes:
        symbols: number of quantiles, at least 1.
        order: length of the longest context, in days.

    Raises:
        InputError: a number is out of range.

    Example:
        >>> returns = 0.01 * jax.random.normal(jax.random.key(0), (500, 2))
        >>> fitted = portfolio.VMM(symbols=3, order=2).fit(returns, jax.random.key(1))
        >>> fitted.sample(252, jax.random.key(2)).shape
        (252, 2)

    References:
        Begleiter, El-Yaniv, Yona: On Prediction Using Variable Order Markov Models, JAIR, 2004.
    """

    symbols: int = eqx.field(static=True, default=5)
    order: int = eqx.field(static=True, default=4)

    def __check_init__(self) -> None:
        check_range(self, "[1, inf)", symbols=self.symbols)
        check_range(self, "[0, inf)", order=self.order)

    @override
    def fit(self, returns: Float[Array, "days m"], key: Array, first: Int[ArrayLike, ""] = 0) -> FittedVMM:
        length = len(returns)
        # Days before the first one are ranked before all others, and get the symbol 0.
        values = jnp.where(jnp.arange(length) >= first, jnp.mean(returns, axis=1), -jnp.inf)
        by_value = jnp.argsort(values)
        days = length - jnp.asarray(first)
        rank = jnp.argsort(by_value) - first
        symbols = jnp.where(rank >= 0, rank * self.symbols // days, 0)
        # The first rank r with r * symbols // days = x is the quotient of x * days and symbols, rounded up.
        bounds = jnp.asarray(first) - (-jnp.arange(self.symbols + 1) * days) // self.symbols
        context = jnp.zeros((), symbols.dtype)
        for d in range(self.order):
            context += symbols[length - 1 - d] * self.symbols**d
        model = fit_ppmc(symbols, alphabet=self.symbols, order=self.order, first=first)
        return FittedVMM(model, context, returns[by_value], bounds)
