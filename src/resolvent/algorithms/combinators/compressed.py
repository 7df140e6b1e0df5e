"""Compression: parties send encoded replies, and the server sends encoded messages."""

from dataclasses import replace
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int, PyTree, UInt32
from typing_extensions import override

from resolvent.algorithms.algorithm import Algorithm, Info, Message, Replies, Reply, ServerState
from resolvent.algorithms.combinators.combinator import (
    Combinator,
    InnerMessage,
    InnerParty,
    InnerServer,
    Wrapped,
    contains,
    innermost,
    layers,
)
from resolvent.algorithms.keys import GENERATOR, codec_key, root_key, substep_key
from resolvent.algorithms.round import reply_shapes
from resolvent.errors import InputError, check_range
from resolvent.math import tree
from resolvent.math.codecs import Codec, Wire
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle

Shifts = tuple[Vector, ...]


class Compressed(Combinator):
    """The inner algorithm, whose replies are encoded by a codec. The server stores the shifts h, one for each phase.

    Party k stores its own shifts h_k.

    .. code-block:: text

        party:   d_k = C(reply_k - h_k);   h_k <- h_k + step * d_k
        server:  each reply counts as h + d_k;   h <- h + sum over replies of lambda_k step d_k

    h is the sum over all N of lambda_k h_k after every round, under any participation: an absent party changes neither
    side. The mean over a cohort is h + mean(d_k). In expectation over an unbiased codec and a uniformly drawn cohort it
    is the mean of all N replies. As h_k approaches party k's reply, the noise of compression and of sampling vanishes
    (without compression and with step 1, this is SAGA's variance reduction). With step = 0 there are no shifts: h is 0,
    and the mean over a cohort is that of the decoded replies.

    On the distributed gradient method step = 0 is DCGD and step > 0 is DIANA (Mishchenko, Gorbunov, Takac, Richtarik);
    with TopK and step = 1 it is EF21 (Richtarik, Sokolov, Fatkhullin).

    A server state that must equal a mean of party states (Scaffold's c) does so up to the codec's error only.

    Attributes:
        inner: any algorithm; with shifts, one whose server needs only the means of the replies.
        codec: encodes the replies of each phase.
        step: step size of the shifts, in [0, 1]; 0 is without shifts; default: the codec's, 1/(1 + omega), or 1 for
            TopK.
        has_shift: whether there are shifts; follows from the step.

    Raises:
        InputError: with shifts, the inner server needs individual replies; or the replies are compressed already.

    Example:
        >>> algorithm = rv.combinators.Compressed(rv.fedavg(rv.SGD(0.1)), rv.codecs.TopK(share=0.1))
    """

    codec: Codec
    step: ArrayLike | None
    has_shift: bool = eqx.field(static=True)
    replies_models: ClassVar[bool] = False
    needs_individual_replies: ClassVar[bool] = True

    def __init__(self, inner: Algorithm, codec: Codec, step: ArrayLike | None = None) -> None:
        self.inner, self.codec, self.step = inner, codec, step
        self.has_shift = not (isinstance(step, int | float) and step == 0)
        if step is not None:
            check_range(self, "[0, 1]", step=step)
        if contains(inner, Compressed):
            raise InputError("Compressed needs replies that are not compressed yet, got Compressed: use one codec")
        if self.has_shift and inner.needs_individual_replies:
            raise InputError(f"Compressed(step={step}) needs a linear aggregator, got {_nonlinear_part(inner)}: "
                             "the server stores only the mean of h_k. Use Mean() or step=0.")

    @override
    def init_extra(self, inner: ServerState, w0: Vector, shares: Float[Array, " N"]) -> Shifts:
        return self._zero_shifts(w0)

    @override
    def init_party_extra(self, w0: Vector, oracle: Oracle, key: Array) -> Shifts:
        return self._zero_shifts(w0)

    @override
    def party(self, inner: InnerParty, state: Wrapped, message: Wrapped, oracle: Oracle, key: Array,
              effort: Float[Array, ""], phase: int) -> tuple[Wrapped, Wire, Info]:
        after, reply, info = inner(state.inner, message.inner, oracle, key, effort)
        if tree.parts(reply, Wire):
            raise InputError("Compressed needs replies that are not compressed yet, and those of "
                             f"{type(innermost(self.inner)).__name__} are encoded already: use the algorithm as it is")
        difference = tree.sub(reply, self._shift(state.extra, phase, reply))
        wire = self.codec.encode(difference, codec_key(key))
        return Wrapped(after, self._moved(state.extra, phase, self.codec.decode(wire))), wire, info

    @override
    def server(self, inner: InnerServer, state: Wrapped, replies: Replies, key: Array,
               phase: int) -> tuple[Wrapped, Info]:
        decoded = jax.vmap(self.codec.decode)(replies.payload)
        shift = self._shift(state.extra, phase, tree.rows(decoded, 0))
        payload = jax.tree.map(lambda d, h: jnp.where(replies.column(d), d + h, 0), decoded, shift)
        after, info = inner(state.inner, replace(replies, payload=payload), key)
        return Wrapped(after, self._moved(state.extra, phase, replies.total(decoded))), info

    def _zero_shifts(self, w0: Vector) -> Shifts:
        if not self.has_shift:
            return ()
        return tuple(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape)
                     for shape in reply_shapes(self.inner, w0))

    def _shift(self, shifts: Shifts, phase: int, like: Vector) -> Vector:
        return shifts[phase] if self.has_shift else jax.tree.map(jnp.zeros_like, like)

    def _moved(self, shifts: Shifts, phase: int, difference: Vector) -> Shifts:
        """The shifts after a step along the decoded difference of one phase."""
        size = sum(leaf.size for leaf in jax.tree.leaves(difference))
        step = self.codec.step(size) if self.step is None else self.step
        return tuple(tree.axpy(step, difference, shift) if i == phase else shift for i, shift in enumerate(shifts))


def _nonlinear_part(algorithm: Algorithm) -> str:
    """The name of the part that needs individual replies: a combinator, an aggregator, or the innermost algorithm."""
    *_, core = (layer for layer in layers(algorithm) if layer.needs_individual_replies)
    part = core if isinstance(core, Combinator) else getattr(core, "aggregator", core)
    return type(part).__name__


_CODEC_DRAW = 201  # number of the draw from the server's key, different from those of inner algorithms


class SentState(NamedTuple):
    """The combinator's part of the server's state."""

    received: tuple[Vector, ...]  # leaves [N, ...] for each phase: r_k, what every party has received
    key: UInt32[Array, " 2"]  # data of the random key with which the codec encodes the messages of the next phase


class CompressedMessages(Combinator):
    """The inner algorithm, whose messages to the parties are encoded by a codec. Replies do not change.

    .. code-block:: text

        server:  d_k = C(message - r_k) to party k;   r_k <- r_k + step * d_k
        party:   r_k <- r_k + step * d_k, and works from r_k instead of the message

    The server and party k both store r_k, what the party has received. Both change it only if the party's reply counts,
    so that they agree under any sampling and any drop-outs. For a server that sends its model this is EF21-P, the way
    down of methods that compress in both directions; as r_k approaches the model, the error of the compression
    vanishes.

    Source: Gruntkowska, Tyurin, Richtarik, *EF21-P and Friends: Improved Theoretical Communication Complexity for
    Distributed Optimization with Bidirectional Compression*, Algorithm 1. Its server has one r for all parties, which
    are always present; here the r_k of parties that have taken part in the same rounds are equal.

    The message from which a party computes its personal model at an evaluation is sent whole. For replies, see
    ``Compressed``, which belongs inside.

    Attributes:
        inner: any algorithm.
        codec: encodes the arrays of each message. A biased codec, such as TopK, makes steps of length 1, an unbiased
            one of length 1/(1 + omega), with omega its relative variance.

    Raises:
        InputError: the messages are compressed already.

    Example:
        >>> inner = rv.fedavg(rv.SGD(0.1, batch_size=20, epochs=1))
        >>> algorithm = rv.combinators.CompressedMessages(inner, rv.codecs.TopK(share=0.1))
    """

    codec: Codec
    # A reply is a model as before, but the party's message no longer has the model from which it differs.
    replies_models: ClassVar[bool] = False

    def __check_init__(self) -> None:
        if contains(self.inner, CompressedMessages):
            raise InputError("CompressedMessages got an algorithm whose messages are compressed already: use it once")

    @override
    def init_extra(self, inner: ServerState, w0: Vector, shares: Float[Array, " N"]) -> SentState:
        received = jax.tree.map(jnp.array, tree.stack(self._first_received(w0), len(shares)))
        return SentState(received, jax.random.key_data(root_key(0)))

    @override
    def init_party_extra(self, w0: Vector, oracle: Oracle, key: Array) -> tuple[Vector, ...]:
        return self._first_received(w0)

    def _first_received(self, w0: Vector) -> tuple[Vector, ...]:
        """r_k before the first round: the first message of a federation of one party, which both sides can compute."""
        state = self.inner.init(w0, jnp.ones(1, tree.dtype(w0)))
        return tuple(_split(phase.message(state, jnp.array(0)))[0] for phase in self.inner.phases)

    @override
    def message(self, inner: InnerMessage, state: Wrapped, k: Int[Array, ""], phase: int) -> Wrapped:
        """The inner message without its arrays of real numbers, and d_k, encoded."""
        arrays, other = _split(inner(state.inner, k))
        sent: SentState = state.extra
        key = substep_key(jax.random.wrap_key_data(sent.key, impl=GENERATOR), phase)
        return Wrapped(other, self.codec.encode(tree.sub(arrays, tree.rows(sent.received[phase], k)), key))

    @override
    def party(self, inner: InnerParty, state: Wrapped, message: Wrapped, oracle: Oracle, key: Array,
              effort: Float[Array, ""], phase: int) -> tuple[Wrapped, Reply, Info]:
        received = self._moved(state.extra[phase], message.extra)
        after, reply, info = inner(state.inner, eqx.combine(received, message.inner), oracle, key, effort)
        return Wrapped(after, _replaced(state.extra, phase, received)), reply, info

    @override
    def server(self, inner: InnerServer, state: Wrapped, replies: Replies, key: Array,
               phase: int) -> tuple[Wrapped, Info]:
        sent: SentState = state.extra
        inner_message = self.inner.phases[phase].message

        def received_by(k: Int[Array, ""], before: Vector) -> Vector:
            return self._moved(before, self.message(inner_message, state, k, phase).extra)

        before = tree.rows(sent.received[phase], replies.index)
        received = replies.write(jax.vmap(received_by)(replies.index, before), sent.received[phase])
        after, info = inner(state.inner, replies, key)
        next_key = jax.random.key_data(substep_key(key, _CODEC_DRAW))
        return Wrapped(after, SentState(_replaced(sent.received, phase, received), next_key)), info

    @override
    def model_message(self, state: Wrapped, k: Int[Array, ""]) -> Wrapped:
        return Wrapped(self.inner.model_message(state.inner, k), ())

    def _moved(self, received: Vector, difference: Wire) -> Vector:
        size = sum(leaf.size for leaf in jax.tree.leaves(received))
        return tree.axpy(self.codec.step(size), self.codec.decode(difference), received)


def _split(message: Message) -> tuple[Vector, Message]:
    """The arrays of real numbers of a message, which are compressed, and everything else."""
    parts: tuple[Vector, Message] = eqx.partition(message, _is_compressed)
    return parts


def _is_compressed(leaf: PyTree) -> bool:
    return getattr(leaf, "ndim", 0) > 0 and bool(jnp.issubdtype(leaf.dtype, jnp.floating))


def _replaced(items: tuple[Vector, ...], position: int, item: Vector) -> tuple[Vector, ...]:
    return (*items[:position], item, *items[position + 1:])
