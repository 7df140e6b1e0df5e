"""The objective of a portfolio agent: a policy's mean logarithmic growth on a party's prices, and its gradients.

With the policy's weights w_t, the drifted weights w'_t and the cost factor mu_t, the objective is

.. code-block:: text

    mu_t = 1 - c sum_{i>=1} |w'_{t,i} - w_{t,i}|
    f(params) = -mean_t ln(mu_t  y_t . w_t)

Its gradient is the deterministic policy gradient: the reward is an explicit function of the action, so that no critic
is needed. A policy reads its last weights, so the weights of all days are a recurrence. Online stochastic batch
learning breaks it: a *portfolio-vector memory* has the last output of each day, which a minibatch reads without
gradient and then replaces.

Source: Jiang, Xu, Liang, 2017, section 5; Fed+, section 8.2.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PyTree
from typing_extensions import override

from experiments.portfolio.market import FirstOrderCosts, drift
from experiments.portfolio.policies import Policy
from resolvent.problems import Oracle

BURN_IN_DAYS = 5  # after these days the first weights have almost no influence


class PolicyDays(NamedTuple):
    """What a policy observes and earns at some decisions.

    Attributes:
        windows: closing prices in units of the last one.
        relatives: y_t, the relative prices of the day after each decision, cash first.
        earlier: y_{t-1}, the relative prices of the day before each decision.
    """

    windows: Float[Array, "l B m"]
    relatives: Float[Array, "B m+1"]
    earlier: Float[Array, "B m+1"]


class AgentOracle(Oracle):
    """A party's objective on its training prices. A sample is a day on which a decision is made.

    Attributes:
        policy: the policy.
        closes: [markets, days, m] closing prices; a party has one market, pooled data have those of all parties.
        costs: the costs of trades in the reward.
        discount: gamma; the reward of position b in a minibatch has the weight gamma^b.
        lag: number of the latest closes that a decision does not use yet.
        is_stored: whether minibatches use the portfolio-vector memory. Otherwise the last weights are computed from
            ``BURN_IN_DAYS`` days before.
    """

    policy: Policy
    closes: Float[Array, "markets days m"]
    costs: FirstOrderCosts
    discount: ArrayLike
    lag: int = eqx.field(static=True)
    is_stored: bool = eqx.field(static=True)

    @property
    def decisions(self) -> int:
        """Number of decisions in each market: the first needs l closes, and the last one day after it."""
        return int(self.closes.shape[1]) - self.policy.lookback - self.lag

    @override
    def init_memory(self, w: PyTree) -> Float[Array, "rows m+1"] | tuple[()]:
        """For each market the uniform weights of the assets before the first decision and after each decision."""
        if not self.is_stored:
            return ()
        markets, _, assets = self.closes.shape
        return jnp.broadcast_to(self._first_weights, (markets * (self.decisions + 1), assets + 1))

    @override
    def value(self, w: PyTree) -> Float[Array, ""]:
        """f, with the exact recurrence of each market from uniform weights."""
        return jnp.mean(jax.lax.map(lambda closes: self._value_of_market(w, closes), self.closes))

    @override
    def grad(self, w: PyTree) -> PyTree:
        """The gradient of f through the recurrence."""
        gradient: PyTree = jax.grad(self.value)(w)
        return gradient

    @override
    def batch_grad(self, w: PyTree, positions: Int[Array, " B"], mask: Bool[Array, " B"],
                   memory: Any = ()) -> tuple[PyTree, Any]:
        """The gradient of the mean reward of a minibatch; afterwards the memory has the new weights of its days.

        A decision reads the weights of the day before from the memory, without gradient. The cost of a trade depends on
        the new weights of the day before, with gradient, if the minibatch has that day, and on the memory otherwise.
        Without a memory, the last weights are computed from uniform weights ``BURN_IN_DAYS`` days before.
        """
        if isinstance(memory, tuple):
            return self._gradient(w, positions, mask, self._recomputed_weights(w, positions))[0], memory
        rows = self._memory_row(positions)
        gradient, weights = self._gradient(w, positions, mask, memory[rows])
        return gradient, memory.at[jnp.where(mask, rows + 1, len(memory))].set(weights.astype(memory.dtype),
                                                                               mode="drop")

    def weights(self, w: PyTree, market: int = 0) -> Float[Array, "decisions m+1"]:
        """The weights of all decisions by the exact recurrence from uniform weights."""
        days = self._days_of(self.closes[market], jnp.arange(self.decisions))
        return self._recurrence(w, days, self._first_weights)

    def _gradient(self, w: PyTree, positions: Array, mask: Array, previous: Array) -> tuple[PyTree, Array]:
        days, previous = self._days(positions), jax.lax.stop_gradient(previous)
        follows = jnp.concatenate([jnp.zeros(1, bool), positions[1:] == positions[:-1] + 1])
        follows &= positions % self.decisions > 0  # not the day before, but the last day of another market

        def loss(w: PyTree) -> tuple[Array, Array]:
            weights = self._decide(w, days, previous)
            neighbours = jnp.concatenate([previous[:1], weights[:-1]])
            before = jnp.where(follows[:, None], neighbours, previous)
            rewards = self._rewards(days, before, weights)
            importance = jnp.where(mask, jnp.asarray(self.discount, rewards.dtype) ** jnp.arange(len(mask)), 0)
            return -jnp.sum(jnp.where(mask, rewards, 0) * importance) / jnp.sum(importance), weights

        result: tuple[PyTree, Array] = jax.grad(loss, has_aux=True)(w)
        return result

    def _decide(self, w: PyTree, days: PolicyDays, previous: Array) -> Float[Array, "B m+1"]:
        votes = self.policy.votes(w, days.windows.reshape(len(days.windows), -1))
        return self.policy.weights(w, votes.reshape(days.windows.shape[1:]), previous)

    def _rewards(self, days: PolicyDays, before: Array, weights: Array) -> Float[Array, " B"]:
        """ln(mu_t y_t . w_t)."""
        factors = jax.vmap(self.costs.factor)(jax.vmap(drift)(before, days.earlier), weights)
        return jnp.log(factors * jnp.sum(weights * days.relatives, axis=1))

    def _recurrence(self, w: PyTree, days: PolicyDays, first: Array) -> Float[Array, "B m+1"]:
        votes = self.policy.votes(w, days.windows.reshape(len(days.windows), -1)).reshape(days.windows.shape[1:])

        def decide(previous: Array, votes: Array) -> tuple[Array, Array]:
            weights = self.policy.weights(w, votes, previous)
            return weights, weights

        weights: Array = jax.lax.scan(decide, first, votes)[1]
        return weights

    def _value_of_market(self, w: PyTree, closes: Float[Array, "days m"]) -> Float[Array, ""]:
        days = self._days_of(closes, jnp.arange(self.decisions))
        weights = self._recurrence(w, days, self._first_weights)
        return -jnp.mean(self._rewards(days, jnp.concatenate([self._first_weights[None], weights[:-1]]), weights))

    def _recomputed_weights(self, w: PyTree, positions: Int[Array, " B"]) -> Float[Array, "B m+1"]:
        """The weights of the day before each position."""
        previous = jnp.broadcast_to(self._first_weights, (len(positions), len(self._first_weights)))
        in_market = positions % self.decisions
        for offset in range(BURN_IN_DAYS, 0, -1):
            days = self._days(jnp.maximum(positions - offset, 0))
            previous = jnp.where((in_market >= offset)[:, None], self._decide(w, days, previous), previous)
        return previous

    @property
    def _first_weights(self) -> Float[Array, " m+1"]:
        assets = self.closes.shape[2]
        return jnp.concatenate([jnp.zeros(1, self.closes.dtype), jnp.full(assets, 1 / assets, self.closes.dtype)])

    def _memory_row(self, positions: Int[Array, " B"]) -> Int[Array, " B"]:
        """The row of the weights of the day before each position."""
        return positions + positions // self.decisions

    def _days(self, positions: Int[Array, " B"]) -> PolicyDays:
        """The days at these positions; those of the second market follow those of the first."""
        markets, days, assets = self.closes.shape
        number, position = jnp.divmod(positions, self.decisions)
        return self._days_of(self.closes.reshape(markets * days, assets), number * days + position)

    def _days_of(self, closes: Float[Array, "days m"], rows: Int[Array, " B"]) -> PolicyDays:
        """The days whose windows begin with these rows."""
        lookback = self.policy.lookback
        today = lookback - 1 + self.lag
        block = closes[rows + jnp.arange(today + 2)[:, None]]
        ones = jnp.ones((len(rows), 1), closes.dtype)
        relatives, earlier = (jnp.concatenate([ones, block[t + 1] / block[t]], axis=1) for t in (today, today - 1))
        return PolicyDays(block[:lookback] / block[lookback - 1], relatives, earlier)
