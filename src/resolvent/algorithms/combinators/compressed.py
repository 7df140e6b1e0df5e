r"""Compressed replies: parties send what a codec leaves of a reply, or of its change since the last one.

.. code-block:: text

    party:   d_k = C(reply_k - h_k);   h_k <- h_k + step * d_k
    server:  each reply counts as h + d_k;   h <- h + sum over replies of lambda_k step d_k

h = sum over all N of lambda_k h_k after every round, whoever took part: an absent party changes neither side. The mean
over a cohort is h + mean(d_k): in expectation over an unbiased codec and an evenly drawn cohort it is the mean of all N
replies, and as h_k comes to equal party k's reply, neither compression nor sampling leaves noise (where nothing is
compressed and the step is 1, this is SAGA's variance reduction). Without memory, step = 0, h is 0, and the mean over a
cohort is that of what was decoded.

On the distributed gradient method step = 0 is DCGD and step > 0 DIANA (Mishchenko, Gorbunov, Takac, Richtarik); with
TopK and step = 1 it is EF21 (Richtarik, Sokolov, Fatkhullin).
"""

from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from resolvent.algorithms.algorithm import Algorithm, Info, Message, PartyState, Phase, Replies
from resolvent.algorithms.combinators.combinator import Combinator, InnerParty, InnerServer, Memory
from resolvent.errors import check_range
from resolvent.math import tree
from resolvent.math.codecs import Codec, Wire
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle

__all__ = ["Compressed"]

_CODEC = 2**31 - 4  # folded into the party's key, so that its own draws are those of the inner algorithm
Parts = tuple[Vector, ...]
Own = tuple[PartyState, Parts]


class CompressedState(Memory):
    """The inner server's state, and h = sum_k lambda_k h_k for each phase; nothing without memory."""

    h: Parts


class Compressed(Combinator):
    """An algorithm whose replies travel through a codec.

    A server memory that must equal a mean of what parties keep (Scaffold's c) does so up to the codec's error only.

    Attributes:
        inner: any algorithm; with memory, one whose server needs no more of the replies than their means.
        codec: what shortens the replies of each phase.
        step: of the memories, in [0, 1]; 0 is without memory; default: the codec's, 1/(1 + omega) or 1 for TopK.

    Raises:
        TypeError: with memory, the inner server reads single replies; or the replies are compressed already.
    """

    codec: Codec
    step: ArrayLike | None
    memory: bool = eqx.field(static=True)  # whether there are memories; follows from the step
    remembers: ClassVar[bool] = True
    replies_models: ClassVar[bool] = False

    def __init__(self, inner: Algorithm, codec: Codec, step: ArrayLike | None = None) -> None:
        self.inner, self.codec, self.step = inner, codec, step
        self.memory = not (isinstance(step, int | float) and step == 0)
        if step is not None:
            check_range(self, "[0, 1]", step=step)
        while isinstance(inner, Combinator):
            if isinstance(inner, Compressed):
                raise TypeError("Compressed needs replies that are not compressed yet, got Compressed: use one codec")
            inner = inner.inner
        if self.memory and self.inner.needs_individual_replies is not None:
            raise TypeError(f"Compressed(step={step}) needs a linear aggregator, got {self.inner.needs_individual_replies}: "
                            "the server stores only the mean of h_k. Use Mean() or step=0.")

    @property
    def needs_individual_replies(self) -> str:
        """It reads every reply."""
        return type(self).__name__

    def reply_like(self, w0: Vector) -> tuple[Any, ...]:
        """What the codec makes of the inner replies."""
        return tuple(self.codec.encode(like, jax.random.key(0)) for like in self.inner.reply_like(w0))

    def init(self, w0: Vector, weights: Float[Array, " N"]) -> CompressedState:
        """The inner state, and h = 0."""
        return CompressedState(self.inner.init(w0, weights), self._zeros(w0))

    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> Own:
        """The inner state, and h_k = 0."""
        return self.inner.init_party(w0, oracle, key), self._zeros(w0)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The inner phases, each with its own memories."""
        return tuple(Phase(partial(self.message, phase.message), partial(self._party, number, phase.party),
                           partial(self._server, number, phase.server))
                     for number, phase in enumerate(self.inner.phases))

    def personal_model(self, state: Own, message: Message, oracle: Oracle) -> Vector:
        """As the inner algorithm."""
        return self.inner.personal_model(state[0], message, oracle)

    def _party(self, number: int, inner: InnerParty, state: Own, message: Message, oracle: Oracle, key: Array,
               effort: Float[Array, ""]) -> tuple[Own, Wire, Info]:
        own, h = state
        own, reply, info = inner(own, message, oracle, key, effort)
        change = tree.sub(reply, self._part(h, number, reply))
        wire = self.codec.encode(change, jax.random.fold_in(key, _CODEC))
        return (own, self._moved(h, number, self.codec.decode(wire))), wire, info

    def _server(self, number: int, inner: InnerServer, state: CompressedState, replies: Replies,
                key: Array) -> tuple[CompressedState, Info]:
        decoded = jax.vmap(self.codec.decode)(replies.payload)
        h = self._part(state.h, number, tree.rows(decoded, 0))
        payload = jax.tree.map(lambda d, mean: jnp.where(replies.column(d), d + mean, 0), decoded, h)
        after, info = inner(state.inner, replace(replies, payload=payload), key)
        return CompressedState(after, self._moved(state.h, number, replies.total(decoded))), info

    def _zeros(self, w0: Vector) -> Parts:
        return jax.tree.map(jnp.zeros_like, self.inner.reply_like(w0)) if self.memory else ()

    def _part(self, h: Parts, number: int, like: Vector) -> Vector:
        """The memory of a phase; zero without."""
        if not self.memory:
            return jax.tree.map(jnp.zeros_like, like)
        if jax.tree.map(jnp.shape, h[number]) != jax.tree.map(jnp.shape, like):
            raise TypeError(f"{type(self.inner).__name__}.reply_like does not have the shapes of its replies")
        return h[number]

    def _moved(self, h: Parts, number: int, change: Vector) -> Parts:
        """The memories after a step along the change of one phase's."""
        size = sum(leaf.size for leaf in jax.tree.leaves(change))
        step = self.codec.step(size) if self.step is None else self.step
        return tuple(tree.axpy(step, change, part) if i == number else part for i, part in enumerate(h))
