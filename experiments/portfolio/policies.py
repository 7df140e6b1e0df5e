"""Policies: parametric functions from recent prices and the last weights to the weights of a portfolio.

The ensemble of identical independent evaluators (EIIE) has one evaluator for all assets. From an asset's window of
closing prices it computes h_i in R^units; the asset's vote is s_i = a.h_i + d + b w_i, where w_i is its last weight.
The weights are the softmax of the vote of cash, a parameter, and the votes of the assets.

Windows are in the layout [days, columns], a column for each asset of each decision: on a CPU a product of matrices is
then several times as fast as with a row for each window.

Source: Jiang, Xu, Liang, *A Deep Reinforcement Learning Framework for the Financial Portfolio Management Problem*,
2017, section 4; Fed+, section 8.2.
"""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree
from typing_extensions import override

from resolvent.arguments import CheckedArguments, checked
from resolvent.errors import InputError
from resolvent.problems import ProblemModel
from xla_cpu_rewrites import kernels

__all__ = ["EIIE", "Evaluator", "Policy", "eiie_cnn", "eiie_lstm", "eiie_rnn"]

_KERNEL = 3  # days of the first convolution
_MAPS = 2  # maps of the first convolution
_glorot = jax.nn.initializers.glorot_uniform


class Policy(CheckedArguments, ProblemModel, eqx.Module):
    """A policy without state. To write one of your own, derive from this class.

    Attributes:
        lookback: l, the number of closing prices of an asset that a decision uses.
    """

    lookback: int = eqx.field(static=True, default=30, kw_only=True)

    @abstractmethod
    def init(self, key: Array) -> PyTree:
        """The parameters before training, drawn from a key."""

    @abstractmethod
    def votes(self, params: PyTree[Any], windows: Float[Array, "l columns"]) -> Float[Array, " columns"]:
        """The vote of each column, without the term of the last weight.

        Args:
            params: the parameters.
            windows: closing prices in units of the last one, v_{t-l+1}/v_t, ..., 1.
        """

    @abstractmethod
    def weights(self, params: PyTree[Any], votes: Float[Array, "*batch m"],
                previous: Float[Array, "*batch m+1"]) -> Float[Array, "*batch m+1"]:
        """The weights of cash and of the assets, non-negative with sum 1.

        Args:
            params: the parameters.
            votes: votes of the assets.
            previous: the last weights, cash first.
        """


class Evaluator(CheckedArguments, eqx.Module):
    """The part of EIIE that all assets share: from a window of prices to h in R^units."""

    @abstractmethod
    def init(self, key: Array, lookback: int, units: int) -> PyTree:
        """The parameters before training, drawn from a key."""

    @abstractmethod
    def __call__(self, params: PyTree[Any], windows: Float[Array, "l columns"]) -> Float[Array, "units columns"]:
        """h of each column."""


class Convolution(Evaluator):
    """A convolution of 3 days to 2 maps, then one of all other days to the units, each with ReLU."""

    @override
    def init(self, key: Array, lookback: int, units: int) -> PyTree:
        first, second = jax.random.split(key)
        days = lookback - _KERNEL + 1
        return {"kernel": _glorot(in_axis=1, out_axis=0)(first, (_MAPS, _KERNEL)), "kernel bias": jnp.zeros(_MAPS),
                "weight": _glorot(in_axis=1, out_axis=0)(second, (units, _MAPS * days)), "bias": jnp.zeros(units)}

    @override
    def __call__(self, params: PyTree[Any], windows: Float[Array, "l columns"]) -> Float[Array, "units columns"]:
        days = len(windows) - _KERNEL + 1
        maps = [jax.nn.relu(sum(kernel[j] * windows[j:j + days] for j in range(_KERNEL)) + bias)
                for kernel, bias in zip(params["kernel"], params["kernel bias"], strict=True)]
        hidden: Array = jax.nn.relu(params["weight"] @ jnp.concatenate(maps) + params["bias"][:, None])
        return hidden


class Recurrence(Evaluator):
    """A recurrent layer h <- tanh(x w + U h + b), day by day; its last h."""

    @override
    def init(self, key: Array, lookback: int, units: int) -> PyTree:
        first, second = jax.random.split(key)
        return {"input": _glorot(in_axis=1, out_axis=0)(first, (units, 1))[:, 0],
                "state": _glorot(in_axis=1, out_axis=0)(second, (units, units)), "bias": jnp.zeros(units)}

    @override
    def __call__(self, params: PyTree[Any], windows: Float[Array, "l columns"]) -> Float[Array, "units columns"]:
        return recur(windows, params["input"], params["state"], params["bias"])


class LSTM(Evaluator):
    """An LSTM layer over the days; its last h."""

    @override
    def init(self, key: Array, lookback: int, units: int) -> PyTree:
        first, second = jax.random.split(key)
        return {"input": _glorot(in_axis=0, out_axis=1)(first, (1, 4 * units)),
                "state": _glorot(in_axis=0, out_axis=1)(second, (units, 4 * units)), "bias": jnp.zeros(4 * units)}

    @override
    def __call__(self, params: PyTree[Any], windows: Float[Array, "l columns"]) -> Float[Array, "units columns"]:
        return kernels.lstm(windows[..., None], params["input"], params["state"], params["bias"])[-1].T


class EIIE(Policy):
    """The ensemble of identical independent evaluators.

    Attributes:
        evaluator: computes h from a window.
        units: number of entries of h.

    Raises:
        InputError: a number is too small.

    Example:
        >>> policy = portfolio.eiie_cnn(lookback=10, units=4)
        >>> policy.units, policy.lookback
        (4, 10)
    """

    evaluator: Evaluator
    units: int = eqx.field(static=True, default=20)

    def __check_init__(self) -> None:
        for name, smallest in (("lookback", _KERNEL), ("units", 1)):
            if (value := getattr(self, name)) < smallest:
                raise InputError(f"{type(self).__name__}({name}={value}) must be at least {smallest}")

    @override
    def init(self, key: Array) -> PyTree:
        """Glorot's uniform initialisation; biases and the votes' parameters b, d and of cash are zero."""
        of_evaluator, of_vote = jax.random.split(key)
        vote = _glorot(in_axis=1, out_axis=0)(of_vote, (1, self.units))[0]
        return {"evaluator": self.evaluator.init(of_evaluator, self.lookback, self.units), "vote": vote,
                "vote bias": jnp.zeros(()), "last weight": jnp.zeros(()), "cash": jnp.zeros(())}

    @override
    def votes(self, params: PyTree[Any], windows: Float[Array, "l columns"]) -> Float[Array, " columns"]:
        votes: Array = params["vote"] @ self.evaluator(params["evaluator"], windows) + params["vote bias"]
        return votes

    @override
    def weights(self, params: PyTree[Any], votes: Float[Array, "*batch m"],
                previous: Float[Array, "*batch m+1"]) -> Float[Array, "*batch m+1"]:
        of_assets = votes + params["last weight"] * previous[..., 1:]
        of_cash = jnp.broadcast_to(params["cash"], (*of_assets.shape[:-1], 1))
        return jax.nn.softmax(jnp.concatenate([of_cash.astype(of_assets.dtype), of_assets], axis=-1))


def recur(x: Float[Array, "l columns"], weight: Float[Array, " units"], state: Float[Array, "units units"],
          bias: Float[Array, " units"]) -> Float[Array, "units columns"]:
    """The last h of h_t = tanh(weight x_t + state h_{t-1} + bias), with h_0 = 0."""
    def step(h: Array, row: Array) -> tuple[Array, None]:
        return jnp.tanh(state @ h + weight[:, None] * row + bias[:, None]), None

    first = jnp.zeros((len(bias), x.shape[1]), bias.dtype)
    last: Array = jax.lax.scan(step, first, x)[0]
    return last


@checked
def eiie_cnn(*, lookback: int = 30, units: int = 20) -> Policy:
    """EIIE with a convolutional evaluator: 3 days to 2 maps, then all days to the units.

    Args:
        lookback: l, number of closing prices that a decision uses, at least 3.
        units: number of maps of the second convolution.

    Raises:
        InputError: a number is too small.

    Example:
        >>> policy = portfolio.eiie_cnn(lookback=10, units=4)

    References:
        Jiang, Xu, Liang, 2017, Figure 2.
    """
    return EIIE(Convolution(), units, lookback=lookback)


@checked
def eiie_rnn(*, lookback: int = 30, units: int = 20) -> Policy:
    """EIIE with a recurrent evaluator of tanh units: the agent of Fed+.

    Args:
        lookback: l, number of closing prices that a decision uses, at least 3.
        units: number of recurrent units.

    Raises:
        InputError: a number is too small.

    Example:
        >>> policy = portfolio.eiie_rnn(lookback=10, units=4)

    References:
        Jiang, Xu, Liang, 2017, Figure 3; Fed+, section 8.2.
    """
    return EIIE(Recurrence(), units, lookback=lookback)


@checked
def eiie_lstm(*, lookback: int = 30, units: int = 20) -> Policy:
    """EIIE with an LSTM evaluator.

    Args:
        lookback: l, number of closing prices that a decision uses, at least 3.
        units: number of LSTM units.

    Raises:
        InputError: a number is too small.

    Example:
        >>> policy = portfolio.eiie_lstm(lookback=10, units=4)

    References:
        Jiang, Xu, Liang, 2017, Figure 3.
    """
    return EIIE(LSTM(), units, lookback=lookback)
