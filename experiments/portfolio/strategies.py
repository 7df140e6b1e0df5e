"""Strategies: rules that choose the weights of a portfolio day by day.

A strategy receives one day of relative prices after another, so that it cannot use later prices. To write a strategy of
your own, derive from ``Strategy``.
"""

from abc import abstractmethod
from typing import NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PyTree
from typing_extensions import override

from experiments.portfolio import simplex
from resolvent.arguments import CheckedArguments
from resolvent.errors import InputError, check_range

_TOLERANCE = 1e-4  # tolerance of the sum of weights, which may be rounded to float32
StrategyState: TypeAlias = PyTree[Array]


class Strategy(CheckedArguments, eqx.Module):
    """A rule that chooses weights from the prices so far.

    The back-test calls ``decide`` before each day and ``observe`` after it. The state is a tree of arrays, the same at
    every call.
    """

    @abstractmethod
    def init(self, assets: int) -> StrategyState:
        """The state before any price is known.

        Args:
            assets: m, the number of assets without cash.

        Raises:
            InputError: the strategy is for another number of assets.
        """

    def observe(self, state: StrategyState, relatives: Float[Array, " m+1"]) -> StrategyState:
        """The state after a day with these relative prices; by default it does not change."""
        return state

    @abstractmethod
    def decide(self, state: StrategyState, drifted: Float[Array, " m+1"]) -> tuple[Float[Array, " m+1"], StrategyState]:
        """The weights for the next day, non-negative with sum 1, and the new state.

        Args:
            state: state of the strategy.
            drifted: the weights before the trade; at first all is cash.
        """


class BuyAndHold(Strategy):
    """Buy once, then never trade: w_1 = the first weights, w_t = w'_t.

    Attributes:
        weights: the first weights [m+1], cash first.

    Raises:
        InputError: the weights are negative, or their sum is not 1.

    Example:
        >>> strategy = portfolio.BuyAndHold([0.5, 0.5, 0.0])
        >>> strategy.decide(jnp.array(True), jnp.array([0.25, 0.75, 0.0]))[0].tolist()
        [0.25, 0.75, 0.0]
    """

    weights: Float[Array, " m+1"] = eqx.field(converter=jnp.asarray)

    def __check_init__(self) -> None:
        _check_weights(self, self.weights)

    @override
    def init(self, assets: int) -> Bool[Array, ""]:
        _check_assets(self, self.weights, assets)
        return jnp.array(False)

    @override
    def decide(self, state: Bool[Array, ""], drifted: Float[Array, " m+1"]) -> tuple[Float[Array, " m+1"], Array]:
        return jnp.where(state, drifted, self.weights), jnp.array(True)


class ConstantRebalanced(Strategy):
    """Trade every day to the same weights.

    Attributes:
        weights: the weights [m+1], cash first.

    Raises:
        InputError: the weights are negative, or their sum is not 1.

    Example:
        >>> strategy = portfolio.ConstantRebalanced([0.5, 0.5, 0.0])
        >>> strategy.decide((), jnp.array([0.25, 0.75, 0.0]))[0].tolist()
        [0.5, 0.5, 0.0]
    """

    weights: Float[Array, " m+1"] = eqx.field(converter=jnp.asarray)

    def __check_init__(self) -> None:
        _check_weights(self, self.weights)

    @override
    def init(self, assets: int) -> tuple[()]:
        _check_assets(self, self.weights, assets)
        return ()

    @override
    def decide(self, state: tuple[()], drifted: Float[Array, " m+1"]) -> tuple[Float[Array, " m+1"], tuple[()]]:
        return self.weights.astype(drifted.dtype), ()


class MeanReversionState(NamedTuple):
    """State of OLMAR.

    Attributes:
        ratios: [window, m] v_{t-k} / v_t, the latest day last; only the last ``days`` rows are known.
        days: how many closing prices are known, at most the window.
        weights: the last weights, without cash.
    """

    ratios: Float[Array, "window m"]
    days: Int[Array, ""]
    weights: Float[Array, " m"]


class OLMAR(Strategy):
    """On-line moving average reversion: prices are expected to return to their moving average.

    The predicted relative prices are x = mean_{k<window} v_{t-k} / v_t; with fewer known days, the mean over these. The
    weights are the projection to the simplex of b + lambda (x - mean(x)), where b are the last weights, uniform at
    first, and lambda = max(0, (epsilon - b.x) / |x - mean(x)|^2). No cash is held.

    Attributes:
        window: days of the moving average.
        epsilon: the predicted growth to reach, at least 1; larger values concentrate on fewer assets.

    Raises:
        InputError: the window is not a positive integer, or epsilon is less than 1.

    Example:
        >>> strategy = portfolio.OLMAR(window=5, epsilon=10.0)

    References:
        Li, Hoi: On-Line Portfolio Selection with Moving Average Reversion, ICML 2012, Algorithms 1 and 2.
    """

    window: int = eqx.field(static=True, default=5)
    epsilon: ArrayLike = 10.0

    def __check_init__(self) -> None:
        check_range(self, "[1, inf)", window=self.window, epsilon=self.epsilon)

    @override
    def init(self, assets: int) -> MeanReversionState:
        return MeanReversionState(jnp.ones((self.window, assets)), jnp.array(1), jnp.full(assets, 1 / assets))

    @override
    def observe(self, state: MeanReversionState, relatives: Float[Array, " m+1"]) -> MeanReversionState:
        ratios = jnp.concatenate([state.ratios[1:] / relatives[1:], jnp.ones_like(state.ratios[:1])])
        return MeanReversionState(ratios, jnp.minimum(state.days + 1, self.window), state.weights)

    @override
    def decide(self, state: MeanReversionState,
               drifted: Float[Array, " m+1"]) -> tuple[Float[Array, " m+1"], MeanReversionState]:
        is_known = jnp.arange(self.window) >= self.window - state.days
        predicted = jnp.sum(jnp.where(is_known[:, None], state.ratios, 0), axis=0) / state.days
        deviation = predicted - jnp.mean(predicted)
        square = deviation @ deviation
        shortfall = jnp.maximum(0, self.epsilon - state.weights @ predicted)
        step = jnp.where(square > 0, shortfall / jnp.where(square > 0, square, 1), 0)
        weights = simplex.project(state.weights + step * deviation)
        return _without_cash(weights), state._replace(weights=weights)


class NewtonState(NamedTuple):
    """State of the online Newton step.

    Attributes:
        matrix: A = I + sum_t g_t g_t', where g_t = y_t / (y_t . w_t) without cash.
        gradients: sum_t g_t.
        weights: w, the last weights, without cash.
    """

    matrix: Float[Array, "m m"]
    gradients: Float[Array, " m"]
    weights: Float[Array, " m"]


class ONS(Strategy):
    """Online Newton step: follow the leader of quadratic models of the logarithmic growth.

    After the relative prices y_t, with g_t = y_t / (y_t . w_t), A_t = I + sum g g' and b_t = (1 + 1/beta) sum g, the
    weights are the projection of delta A_t^-1 b_t to the simplex in the norm of A_t, mixed with eta times the uniform
    weights; uniform at first. No cash is held.

    Attributes:
        eta: share of the uniform weights, in [0, 1].
        beta: positive; smaller values give gradients more influence than curvature.
        delta: positive; 1 minimises the sum of the quadratic models. The paper's experiments use 1/8, which favours
            assets with low past growth.

    Raises:
        InputError: a number is out of range.

    Example:
        >>> strategy = portfolio.ONS(eta=0.0, beta=1.0, delta=0.125)

    References:
        Agarwal, Hazan, Kale, Schapire: Algorithms for Portfolio Management Based on the Newton Method, ICML 2006.
    """

    eta: ArrayLike = 0.0
    beta: ArrayLike = 1.0
    delta: ArrayLike = 0.125

    def __check_init__(self) -> None:
        check_range(self, "[0, 1]", eta=self.eta)
        check_range(self, "(0, inf)", beta=self.beta, delta=self.delta)

    @override
    def init(self, assets: int) -> NewtonState:
        return NewtonState(jnp.eye(assets), jnp.zeros(assets), jnp.full(assets, 1 / assets))

    @override
    def observe(self, state: NewtonState, relatives: Float[Array, " m+1"]) -> NewtonState:
        gradient = relatives[1:] / (relatives[1:] @ state.weights)
        return state._replace(matrix=state.matrix + jnp.outer(gradient, gradient),
                              gradients=state.gradients + gradient)

    @override
    def decide(self, state: NewtonState,
               drifted: Float[Array, " m+1"]) -> tuple[Float[Array, " m+1"], NewtonState]:
        # The squared distance (w - q)'A(w - q) to q = delta A^-1 b is w'Aw - 2 delta b'w and a constant.
        b = (1 + 1 / jnp.asarray(self.beta)) * state.gradients
        nearest = simplex.minimise_quadratic(state.matrix, -jnp.asarray(self.delta) * b)
        weights = (1 - jnp.asarray(self.eta)) * nearest + self.eta / len(nearest)
        return _without_cash(weights), state._replace(weights=weights)


def _without_cash(weights: Float[Array, " m"]) -> Float[Array, " m+1"]:
    return jnp.concatenate([jnp.zeros_like(weights[:1]), weights])


def _check_weights(owner: Strategy, weights: Array) -> None:
    if isinstance(weights, jax.core.Tracer):
        return
    title, values = type(owner).__name__, np.asarray(weights)
    if values.ndim != 1 or len(values) < 2:
        raise InputError(f"{title}(weights) has shape {values.shape}: give the weights of cash and of each asset [m+1]")
    if not ((values >= 0).all() and abs(values.sum() - 1) <= _TOLERANCE):
        raise InputError(f"{title}(weights) has the minimum {values.min():.6g} and the sum {values.sum():.6g}: weights "
                         "are shares of the wealth, at least 0 with sum 1")


def _check_assets(owner: Strategy, weights: Array, assets: int) -> None:
    if len(weights) != assets + 1:
        raise InputError(f"{type(owner).__name__}(weights) has {len(weights)} weights, and the prices have {assets} "
                         f"assets: give {assets + 1} weights, that of cash first")
