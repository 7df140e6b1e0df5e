"""StaleReplies replies: the server aggregates over all N parties, absent ones with their last reply."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from resolvent.algorithms.algorithm import Info, Replies
from resolvent.algorithms.combinators.combinator import Combinator, InnerServer, Memory, contains
from resolvent.math import tree
from resolvent.math.tree import Vector

__all__ = ["StaleReplies"]


class StaleRepliesState(Memory):
    """The inner server's state, everybody's last reply (leaves [N, ...]) and weight [N]."""

    replies: PyTree[Any]
    weights: Float[Array, " N"]


class StaleReplies(Combinator):
    """An algorithm whose server remembers every party's last model; before its first reply, the first model.

    This is how Algorithm 1 of Fed+ reads literally: A(W) over all N with w_k unchanged for absent parties.
    The server's memory is N models, and a round's aggregation costs N.

    Attributes:
        inner: an algorithm of one phase whose replies are models.

    Raises:
        TypeError: the replies are something else, so that nothing stands for a party that never replied.
    """

    remembers: ClassVar[bool] = True

    def __check_init__(self) -> None:
        if not self.inner.replies_models or len(self.inner.phases) != 1:
            raise TypeError(f"StaleReplies needs an algorithm of one phase whose replies are models, got "
                            f"{type(self.inner).__name__}: nothing could stand for a party that has not replied yet")

        if contains(self.inner, StaleReplies):
            raise TypeError("StaleReplies got an algorithm whose server remembers every reply already: use it once")

    @property
    def needs_individual_replies(self) -> str:
        """It keeps every reply."""
        return type(self).__name__

    def init(self, w0: Vector, weights: Float[Array, " N"]) -> StaleRepliesState:
        """N copies of the first model beside the inner state."""
        return StaleRepliesState(self.inner.init(w0, weights), jax.tree.map(jnp.array, tree.stack(w0, len(weights))),
                               weights)

    def server(self, inner: InnerServer, state: StaleRepliesState, replies: Replies,
               key: Array) -> tuple[StaleRepliesState, Info]:
        """Fill in the absent."""
        last = jax.tree.map(
            lambda memory, new: memory.at[replies.index].set(
                jnp.where(replies.column(new), new, memory[replies.index])),
            state.replies, replies.payload)
        n = len(state.weights)
        everyone = Replies(last, state.weights, jnp.arange(n), jnp.ones(n, bool), state.weights)
        after, info = inner(state.inner, everyone, key)
        return StaleRepliesState(after, last, state.weights), info
