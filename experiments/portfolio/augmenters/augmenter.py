"""What an augmenter is: a model of daily returns, fitted to real ones, from which synthetic ones are drawn."""

from abc import abstractmethod

import equinox as eqx
from jaxtyping import Array, ArrayLike, Float, Int

from resolvent.arguments import CheckedArguments

DAYS_PER_YEAR = 252


class FittedAugmenter(eqx.Module):
    """A model of daily returns with the parameters of some assets."""

    @abstractmethod
    def sample(self, days: int, key: Array) -> Float[Array, "days m"]:
        """Draw the price relatives v_{t+1} / v_t of the days after the last fitted one.

        Args:
            days: number of days.
            key: a random key.
        """


class Augmenter(CheckedArguments, eqx.Module):
    """A kind of model of daily returns.

    The functions of an augmenter and of a fitted one can be mapped over universes of the same number of assets with
    ``jax.vmap``.
    """

    @abstractmethod
    def fit(self, returns: Float[Array, "days m"], key: Array, first: Int[ArrayLike, ""] = 0) -> FittedAugmenter:
        """Estimate the parameters.

        Args:
            returns: logarithmic returns ln(v_{t+1} / v_t) of the assets. Those of the days before ``first`` must be
                finite numbers, but are not used.
            key: a random key.
            first: the first day on which all assets were traded; it may be traced.
        """
