"""Remembered replies: the server aggregates over all N parties, absent ones with their last reply."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from resolvent.algorithms.algorithm import Algorithm, Info, Message, PartyState, Phase, Replies, ServerState, Stragglers
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle

__all__ = ["Remembered"]


class RememberedState(eqx.Module):
    """The inner server's state, everybody's last reply (leaves [N, ...]) and weight [N]."""

    inner: ServerState
    replies: PyTree[Any]
    weights: Float[Array, " N"]


class Remembered(Algorithm):
    """An algorithm whose server remembers every party's last model; before its first reply, the first model.

    This is how Algorithm 1 of Fed+ reads literally: A(W) over all N with w_k unchanged for absent parties.
    The server's memory is N models, and a round's aggregation costs N.

    Attributes:
        inner: an algorithm of one phase whose replies are models.

    Raises:
        TypeError: the replies are something else, so that nothing stands for a party that never replied.
    """

    inner: Algorithm
    replies_models: ClassVar[bool] = True

    def __check_init__(self) -> None:
        if not self.inner.replies_models or len(self.inner.phases) != 1:
            raise TypeError(f"Remembered needs an algorithm of one phase whose replies are models, got "
                            f"{type(self.inner).__name__}: nothing could stand for a party that has not replied yet")

    @property
    def partial_work(self) -> Stragglers:
        """As the inner algorithm."""
        return self.inner.partial_work

    def init(self, w0: Vector, weights: Float[Array, " N"]) -> RememberedState:
        """N copies of the first model beside the inner state."""
        return RememberedState(self.inner.init(w0, weights), jax.tree.map(jnp.array, tree.stack(w0, len(weights))),
                               weights)

    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> PartyState:
        """As the inner algorithm."""
        return self.inner.init_party(w0, oracle, key)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The inner phase with a server that fills in the absent."""
        phase = self.inner.phases[0]

        def server(state: RememberedState, replies: Replies, key: Array) -> tuple[RememberedState, Info]:
            last = jax.tree.map(
                lambda memory, new: memory.at[replies.index].set(
                    jnp.where(replies.column(new), new, memory[replies.index])),
                state.replies, replies.payload)
            n = len(state.weights)
            everyone = Replies(last, state.weights, jnp.arange(n), jnp.ones(n, bool), state.weights)
            inner, info = phase.server(state.inner, everyone, key)
            return RememberedState(inner, last, state.weights), info

        return (Phase(lambda state, k: phase.message(state.inner, k), phase.party, server),)

    def deploy(self, state: PartyState, message: Message, oracle: Oracle) -> Vector:
        """As the inner algorithm."""
        return self.inner.deploy(state, message, oracle)

    def server_model(self, state: RememberedState) -> Vector | None:
        """As the inner algorithm."""
        return self.inner.server_model(state.inner)
