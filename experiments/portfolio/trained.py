"""Policies with fixed parameters as strategies for back-tests."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree
from typing_extensions import override

from experiments.portfolio.policies import Policy
from experiments.portfolio.strategies import Strategy
from resolvent.errors import InputError


class PolicyState(NamedTuple):
    """State of a policy in a back-test.

    Attributes:
        closes: [lookback, m] the latest closing prices, in any unit; the last row is the latest day.
        previous: the last weights, cash first.
    """

    closes: Float[Array, "l m"]
    previous: Float[Array, " m+1"]


class PolicyStrategy(Strategy):
    """A policy with fixed parameters; its last weights are cash at first.

    Prices before the first known day are taken as equal to the first. Give the back-test at least ``lookback - 1`` days
    of history.

    Attributes:
        policy: the policy.
        params: its parameters, such as ``Result.personal_model(0)``.

    Example:
        >>> policy = portfolio.eiie_cnn(lookback=5)
        >>> strategy = portfolio.PolicyStrategy(policy, policy.init(jax.random.key(0)))
        >>> relatives = jnp.array([[1.0, 1.1, 0.9]])
        >>> portfolio.backtest(strategy, relatives, history=jnp.ones((4, 3))).weights.shape
        (1, 3)
    """

    policy: Policy
    params: PyTree[Any]

    @override
    def init(self, assets: int) -> PolicyState:
        return PolicyState(jnp.ones((self.policy.lookback, assets)), jax.nn.one_hot(0, assets + 1))

    @override
    def observe(self, state: PolicyState, relatives: Float[Array, " m+1"]) -> PolicyState:
        latest = state.closes[-1:] * relatives[1:]
        # In units of the latest close, so that the numbers stay near 1.
        return state._replace(closes=jnp.concatenate([state.closes[1:], latest]) / latest)

    @override
    def decide(self, state: PolicyState, drifted: Float[Array, " m+1"]) -> tuple[Float[Array, " m+1"], PolicyState]:
        votes = self.policy.votes(self.params, state.closes / state.closes[-1])
        weights = self.policy.weights(self.params, votes, state.previous).astype(drifted.dtype)
        return weights, state._replace(previous=weights)


class VoteState(NamedTuple):
    """State of a strategy with votes.

    Attributes:
        previous: the last weights, cash first.
    """

    day: Int[Array, ""]
    previous: Float[Array, " m+1"]


class VoteStrategy(Strategy):
    """``PolicyStrategy`` whose votes of all days were computed together, which is much faster.

    Attributes:
        votes: [days, m] of each decision, each from the prices before it.
    """

    policy: Policy
    params: PyTree[Any]
    votes: Float[Array, "days m"]

    @override
    def init(self, assets: int) -> VoteState:
        if self.votes.shape[1] != assets:
            raise InputError(f"VoteStrategy(votes) is for {self.votes.shape[1]} assets, and the prices have {assets}")
        return VoteState(jnp.array(0), jax.nn.one_hot(0, assets + 1))

    @override
    def decide(self, state: VoteState, drifted: Float[Array, " m+1"]) -> tuple[Float[Array, " m+1"], VoteState]:
        weights = self.policy.weights(self.params, self.votes[state.day], state.previous).astype(drifted.dtype)
        return weights, VoteState(state.day + 1, weights)
