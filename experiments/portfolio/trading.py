"""Back-tests: the growth of a portfolio that a strategy trades once a day, with costs."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from experiments.portfolio.market import Costs, ExactCosts, check_positive, drift, traded_share
from experiments.portfolio.strategies import Strategy, StrategyState
from resolvent.errors import InputError, shorten


class Backtest(NamedTuple):
    """The days of a back-test.

    Attributes:
        growth: g_t = mu_t (y_t . w_t), the factor by which the wealth grows on each day, costs included.
        weights: w_t, the weights after each day's trade, cash first.
        cost_factors: mu_t, the share of the wealth that is left after each day's trade.
        traded: the share of the wealth that each day's trade sells and buys, without cash.
    """

    growth: Float[Array, " days"]
    weights: Float[Array, "days m+1"]
    cost_factors: Float[Array, " days"]
    traded: Float[Array, " days"]

    @property
    def wealth(self) -> Float[Array, " days"]:
        """The wealth at the end of each day, in units of the first wealth."""
        return jnp.cumprod(self.growth, axis=-1)


def backtest(strategy: Strategy, relatives: Float[Array, "days m+1"], *, costs: Costs | None = None,
             history: Float[Array, "earlier m+1"] | None = None, lag: int = 0) -> Backtest:
    """Trade a strategy day by day, beginning with cash.

    On day t the strategy chooses w_t from the prices before the day; the trade from the drifted weights w'_t to w_t
    leaves the share mu_t of the wealth; then the wealth grows by y_t . w_t and the weights drift to
    w'_{t+1} = (y_t * w_t) / (y_t . w_t). The last portfolio is not sold. The function can be mapped with ``jax.vmap``.

    Args:
        strategy: chooses the weights.
        relatives: y_t, the relative prices of each day [days, m+1], cash first: those of ``price_relatives``.
        costs: costs of trades; default: ``ExactCosts()``, 0.2 % of what is bought or sold.
        history: relative prices of earlier days [earlier, m+1], which the strategy observes before it first decides.
        lag: number of the latest relative prices that a decision may not use yet; 0: a decision uses the close at which
            it trades. There must be at least this number of earlier days.

    Raises:
        InputError: an argument has a wrong shape, a relative price is not positive, or there is too little history.

    Example:
        >>> relatives = portfolio.price_relatives(np.array([[1.0, 1.0], [2.0, 1.0], [2.0, 3.0]]))
        >>> result = portfolio.backtest(portfolio.ucrp(2), relatives, costs=portfolio.FirstOrderCosts(0.0))
        >>> result.wealth.tolist()
        [1.5, 3.0]

    References:
        Jiang, Xu, Liang, 2017, section 2; Fed+, section 8.2.
    """
    relatives = jnp.asarray(relatives)
    earlier = jnp.ones((0, *relatives.shape[1:]), relatives.dtype) if history is None else jnp.asarray(history)
    _check(relatives, earlier, lag)
    # As arrays, numbers are not compiled into the program.
    strategy, costs = jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, float) else x,
                                   (strategy, costs or ExactCosts()))
    return _backtest(strategy, costs, relatives, earlier, lag)


@eqx.filter_jit
def _backtest(strategy: Strategy, costs: Costs, relatives: Array, history: Array, lag: int) -> Backtest:
    days, width = relatives.shape
    split = len(history) - lag
    observed = jnp.concatenate([history[split:], relatives])[:days]  # the row that is known after each day
    state = jax.tree.map(lambda x: x.astype(relatives.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x,
                         strategy.init(width - 1))

    def warm_up(state: StrategyState, row: Array) -> tuple[StrategyState, None]:
        return strategy.observe(state, row), None

    def trade(carry: tuple[StrategyState, Array],
              rows: tuple[Array, Array]) -> tuple[tuple[StrategyState, Array], Backtest]:
        (state, drifted), (relative, known) = carry, rows
        weights, state = strategy.decide(state, drifted)
        weights = weights.astype(drifted.dtype)
        factor = costs.factor(drifted, weights)
        day = Backtest(factor * (relative @ weights), weights, factor, traded_share(drifted, weights))
        return (strategy.observe(state, known), drift(weights, relative)), day

    state, _ = jax.lax.scan(warm_up, state, history[:split])
    all_cash = jax.nn.one_hot(0, width, dtype=relatives.dtype)
    result: Backtest = jax.lax.scan(trade, (state, all_cash), (relatives, observed))[1]
    return result


def _check(relatives: Array, history: Array, lag: int) -> None:
    for name, rows in (("relatives", relatives), ("history", history)):
        if rows.ndim != 2 or rows.shape[1] < 2:
            raise InputError(f"backtest({name}) has shape {rows.shape}: give [days, 1 + assets], as price_relatives "
                             "returns them")
        check_positive(f"backtest({name}): the relative price", rows, "check the prices")
    if not len(relatives):
        raise InputError("backtest(relatives) has no day: give at least 1")
    if history.shape[1] != relatives.shape[1]:
        raise InputError(f"backtest(history) has {history.shape[1]} columns and relatives {relatives.shape[1]}: give "
                         "the same assets in the same order")
    if not isinstance(lag, int) or not 0 <= lag <= len(history):
        raise InputError(f"backtest(lag={shorten(lag)}) must be an integer from 0 to {len(history)}, the number of "
                         "days in history: give more history")
