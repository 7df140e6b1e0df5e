"""A market without price impact: relative prices, drift of weights, and the costs of a trade.

Index 0 of all vectors is cash, whose price is constant; the assets are 1..m. Weights are shares of the wealth.
Source: Jiang, Xu, Liang, *A Deep Reinforcement Learning Framework for the Financial Portfolio Management Problem*,
2017, section 2; Fed+, section 8.2.
"""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float
from numpy.typing import NDArray
from typing_extensions import override

from resolvent.arguments import CheckedArguments
from resolvent.errors import InputError, check_range


def price_relatives(closes: Float[ArrayLike, "days m"]) -> Float[Array, "days-1 m+1"]:
    """The relative prices y_t = v_{t+1} / v_t of successive days, with a first column of ones for cash.

    Args:
        closes: closing prices [days, m], in any currency; all must be positive numbers.

    Raises:
        InputError: there are fewer than two days, or a price is missing or not positive.

    Example:
        >>> print(portfolio.price_relatives(np.array([[10.0], [11.0]])))
        [[1.  1.1]]
    """
    values = closes if isinstance(closes, jax.Array) else np.asarray(closes)
    if values.ndim != 2 or len(values) < 2:
        raise InputError(f"price_relatives(closes) has shape {values.shape}: give [days, assets] with at least 2 days")
    check_positive("price_relatives(closes): the price", values, "choose days on which all assets have prices, or fill "
                   "the prices with Prices.filled()")
    ratios = jnp.asarray(values[1:] / values[:-1])
    return jnp.concatenate([jnp.ones((len(ratios), 1), ratios.dtype), ratios], axis=1)


def check_positive(title: str, values: Array | NDArray[Any], advice: str) -> None:
    """Refuse numbers [days, columns] that are not positive; traced values pass."""
    if isinstance(values, jax.core.Tracer):
        return
    numbers = np.asarray(values)
    wrong = np.argwhere(~(np.isfinite(numbers) & (numbers > 0)))
    if len(wrong):
        day, column = wrong[0]
        raise InputError(f"{title} {numbers[day, column]} on day {day} in column {column} must be a positive number: "
                         f"{advice}")


def drift(weights: Float[Array, " m+1"], relatives: Float[Array, " m+1"]) -> Float[Array, " m+1"]:
    """The weights after a day without trades: w' = (y * w) / (y . w), elementwise.

    Args:
        weights: w, at the start of the day.
        relatives: y, the relative prices of the day.

    Example:
        >>> portfolio.drift(jnp.array([0.0, 0.5, 0.5]), jnp.array([1.0, 3.0, 1.0])).tolist()
        [0.0, 0.75, 0.25]

    References:
        Jiang, Xu, Liang, 2017, (7).
    """
    products = weights * relatives
    return products / jnp.sum(products)


def traded_share(drifted: Float[Array, " m+1"], target: Float[Array, " m+1"]) -> Float[Array, ""]:
    """The share of the wealth that is traded: sum_{i>=1} |w'_i - w_i|, without cash.

    Example:
        >>> portfolio.traded_share(jnp.array([1.0, 0.0, 0.0]), jnp.array([0.5, 0.25, 0.25])).item()
        0.5
    """
    return jnp.sum(jnp.abs(drifted[1:] - target[1:]))


class Costs(CheckedArguments, eqx.Module):
    """The costs of a trade, as the share of the wealth that is left after it."""

    @abstractmethod
    def factor(self, drifted: Float[Array, " m+1"], target: Float[Array, " m+1"]) -> Float[Array, ""]:
        """mu, the share of the wealth that is left after the trade; 1 if nothing is traded.

        Args:
            drifted: w', the weights before the trade.
            target: w, the weights after it.
        """


class FirstOrderCosts(Costs):
    """Costs in proportion to the traded share of the wealth: mu = 1 - c sum_{i>=1} |w'_i - w_i|.

    It is the exact factor up to terms of order c^2, and cheap to differentiate.

    Attributes:
        rate: c, in [0, 1/2), so that mu is positive: at most the shares 1 and 1 are sold and bought.

    Raises:
        InputError: the rate is out of range.

    Example:
        >>> portfolio.FirstOrderCosts(0.25).factor(jnp.array([1.0, 0.0, 0.0]), jnp.array([0.5, 0.25, 0.25])).item()
        0.875

    References:
        Fed+, section 8.2; Jiang, Xu, Liang, 2017, (16).
    """

    rate: ArrayLike = 0.002

    def __check_init__(self) -> None:
        check_range(self, "[0, 1/2)", rate=self.rate)

    @override
    def factor(self, drifted: Float[Array, " m+1"], target: Float[Array, " m+1"]) -> Float[Array, ""]:
        return 1 - jnp.asarray(self.rate) * traded_share(drifted, target)


class ExactCosts(Costs):
    """The exact factor, at which the cash of the sales pays for the purchases and all commissions.

    With the rates c_p and c_s, mu is the solution of
    mu = [1 - c_p w'_0 - (c_s + c_p - c_s c_p) sum_{i>=1} (w'_i - mu w_i)^+] / (1 - c_p w_0).
    The difference of both sides is increasing, convex and piecewise linear in mu, so Newton's method from mu = 1 ends
    at the solution after finitely many steps, usually 2 or 3. The factor can be differentiated.

    Attributes:
        purchase: c_p, the commission rate of purchases, in [0, 1).
        sale: c_s, the commission rate of sales, in [0, 1).

    Raises:
        InputError: a rate is out of range.

    Example:
        >>> portfolio.ExactCosts(0.5, 0.5).factor(jnp.array([0.0, 1.0, 0.0]), jnp.array([0.0, 0.0, 1.0])).item()
        0.25

    References:
        Jiang, Xu, Liang, 2017, (14) and Theorem 1.
    """

    purchase: ArrayLike = 0.002
    sale: ArrayLike = 0.002

    def __check_init__(self) -> None:
        check_range(self, "[0, 1)", purchase=self.purchase, sale=self.sale)

    @override
    def factor(self, drifted: Float[Array, " m+1"], target: Float[Array, " m+1"]) -> Float[Array, ""]:
        def is_decreasing(iterates: tuple[Array, Array]) -> Bool[Array, ""]:
            return iterates[1] < iterates[0]

        def iterate(iterates: tuple[Array, Array]) -> tuple[Array, Array]:
            return iterates[1], constants[0]._newton_step(iterates[1], *constants[1:])

        # A gradient cannot pass through the loop. That of the last step is right, because the derivative of a Newton
        # step with respect to its start is zero at the solution.
        constants = jax.lax.stop_gradient((self, drifted, target))
        dtype = jnp.result_type(drifted, target)
        mu = jax.lax.while_loop(is_decreasing, iterate, (jnp.full((), jnp.inf, dtype), jnp.ones((), dtype)))[1]
        return self._newton_step(mu, drifted, target)

    def _newton_step(self, mu: Array, drifted: Array, target: Array) -> Array:
        """The solution of the equation if the assets that are sold are those that are sold at mu."""
        loss = self.sale + jnp.asarray(self.purchase) - jnp.asarray(self.sale) * self.purchase
        is_sold = drifted[1:] > mu * target[1:]
        sold, retained = (jnp.sum(jnp.where(is_sold, w[1:], 0)) for w in (drifted, target))
        solution = ((1 - jnp.asarray(self.purchase) * drifted[0] - loss * sold)
                    / (1 - jnp.asarray(self.purchase) * target[0] - loss * retained))
        return solution.astype(mu.dtype)
