"""Compressed replies: parties send a codec's encoding of a reply, or of its difference from a stored shift."""

from dataclasses import replace
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float
from typing_extensions import override

from resolvent.algorithms.algorithm import Algorithm, Info, Message, PartyState, Replies, ServerState
from resolvent.algorithms.combinators.combinator import (
    Combinator,
    CombinatorState,
    InnerParty,
    InnerServer,
    contains,
    innermost,
    layers,
)
from resolvent.algorithms.keys import codec_key
from resolvent.algorithms.round import reply_shapes
from resolvent.errors import InputError, check_range
from resolvent.math import tree
from resolvent.math.codecs import Codec, Wire
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle

__all__ = ["Compressed", "CompressedPartyState", "Shifts"]

Shifts = tuple[Vector, ...]


class CompressedPartyState(NamedTuple):
    """A party's state."""

    inner: PartyState
    shifts: Shifts  # h_k of each phase; () without shifts


class Compressed(Combinator):
    """The inner algorithm, whose replies are encoded by a codec. The server stores the shifts h, one for each phase.

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

    @property
    @override
    def needs_individual_replies(self) -> bool:
        return True

    @override
    def init_extra(self, inner: ServerState, w0: Vector, shares: Float[Array, " N"]) -> Shifts:
        return self._zero_shifts(w0)

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> CompressedPartyState:
        return CompressedPartyState(self.inner.init_party(w0, oracle, key), self._zero_shifts(w0))

    @override
    def party(self, inner: InnerParty, state: CompressedPartyState, message: Message, oracle: Oracle, key: Array,
              effort: Float[Array, ""], phase: int) -> tuple[CompressedPartyState, Wire, Info]:
        after, reply, info = inner(state.inner, message, oracle, key, effort)
        if tree.parts(reply, Wire):
            raise InputError("Compressed needs replies that are not compressed yet, and those of "
                             f"{type(innermost(self.inner)).__name__} are encoded already: use the algorithm as it is")
        difference = tree.sub(reply, self._shift(state.shifts, phase, reply))
        wire = self.codec.encode(difference, codec_key(key))
        return CompressedPartyState(after, self._moved(state.shifts, phase, self.codec.decode(wire))), wire, info

    @override
    def server(self, inner: InnerServer, state: CombinatorState, replies: Replies, key: Array,
               phase: int) -> tuple[CombinatorState, Info]:
        decoded = jax.vmap(self.codec.decode)(replies.payload)
        shift = self._shift(state.extra, phase, tree.rows(decoded, 0))
        payload = jax.tree.map(lambda d, h: jnp.where(replies.column(d), d + h, 0), decoded, shift)
        after, info = inner(state.inner, replace(replies, payload=payload), key)
        return CombinatorState(after, self._moved(state.extra, phase, replies.total(decoded))), info

    @override
    def personal_model(self, state: CompressedPartyState, message: Message, oracle: Oracle) -> Vector:
        return self.inner.personal_model(state.inner, message, oracle)

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
