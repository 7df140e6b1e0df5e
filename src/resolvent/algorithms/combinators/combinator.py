"""What every combinator shares: what it does not change is the inner algorithm's."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import ClassVar, Protocol, cast, runtime_checkable

import equinox as eqx
from jaxtyping import Array, Float, Int

from resolvent.algorithms.algorithm import (
    Algorithm,
    Info,
    Message,
    PartyState,
    Phase,
    Replies,
    Reply,
    ServerState,
    StragglerPolicy,
)
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle

__all__ = ["Combinator", "HoldsIterate", "HoldsMean", "InnerMessage", "InnerParty", "InnerServer", "Memory", "contains",
           "holder_of", "holds_iterate", "innermost", "layers"]

InnerMessage = Callable[[ServerState, Int[Array, ""]], Message]
InnerParty = Callable[[PartyState, Message, Oracle, Array, Float[Array, ""]], tuple[PartyState, Reply, Info]]
InnerServer = Callable[[ServerState, Replies, Array], tuple[ServerState, Info]]


@runtime_checkable
class HoldsIterate(Protocol):
    """An algorithm whose server state contains a point that a round maps to the next."""

    def iterate(self, state: ServerState) -> Vector:
        """The point."""

    def with_iterate(self, state: ServerState, point: Vector) -> ServerState:
        """The same state at another point."""


@runtime_checkable
class HoldsMean(Protocol):
    """A splitting scheme whose next u_k follow from the mean of all z."""

    def mean(self, state: ServerState) -> Vector:
        """P_H(z)."""

    def with_mean(self, state: ServerState, mean: Vector) -> ServerState:
        """The same state, had P_H(z) been another."""


class Memory(eqx.Module):
    """The state of a combinator's server that keeps something of its own beside the inner server's state.

    Attributes:
        inner: the inner server's state.
    """

    inner: ServerState


class Combinator(Algorithm):
    """An algorithm around another. Each method here is transparent; a combinator says only what it changes.

    Attributes:
        inner: the algorithm that is changed.
        remembers: whether the server's state is a ``Memory`` around the inner one's; else it is the inner one's.
        needs_held_out: whether parties choose by held-out samples.
    """

    inner: Algorithm
    remembers: ClassVar[bool] = False
    needs_held_out: ClassVar[bool] = False

    def _inner_state(self, state: ServerState) -> ServerState:
        return state.inner if self.remembers else state

    def _with_inner(self, state: ServerState, inner: ServerState) -> ServerState:
        return replace(state, inner=inner) if self.remembers else inner

    def message(self, inner: InnerMessage, state: ServerState, k: Int[Array, ""]) -> Message:
        """What party k is sent, given what the inner server would send."""
        return inner(self._inner_state(state), k)

    def party(self, inner: InnerParty, state: PartyState, message: Message, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[PartyState, Reply, Info]:
        """What a party does, given what it would do for the inner algorithm."""
        return inner(state, message, oracle, key, effort)

    def server(self, inner: InnerServer, state: ServerState, replies: Replies, key: Array) -> tuple[ServerState, Info]:
        """What the server does, given what the inner server would."""
        after, info = inner(self._inner_state(state), replies, key)
        return self._with_inner(state, after), info

    @property
    def straggler_policy(self) -> StragglerPolicy:
        """As the inner algorithm."""
        return self.inner.straggler_policy

    @property
    def replies_models(self) -> bool:
        """As the inner algorithm."""
        return self.inner.replies_models

    def init(self, w0: Vector, weights: Float[Array, " N"]) -> ServerState:
        """As the inner algorithm."""
        return self.inner.init(w0, weights)

    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> PartyState:
        """As the inner algorithm."""
        return self.inner.init_party(w0, oracle, key)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The inner phases, changed."""
        return tuple(Phase(partial(self.message, phase.message), partial(self.party, phase.party),
                           partial(self.server, phase.server)) for phase in self.inner.phases)

    def model_message(self, state: ServerState, k: Int[Array, ""]) -> Message:
        """What the inner algorithm offers, changed as its messages are."""
        return self.message(self.inner.model_message, state, k)

    def personal_model(self, state: PartyState, message: Message, oracle: Oracle) -> Vector:
        """As the inner algorithm."""
        return self.inner.personal_model(state, message, oracle)

    def server_model(self, state: ServerState) -> Vector | None:
        """As the inner algorithm."""
        return self.inner.server_model(self._inner_state(state))

    @property
    def needs_individual_replies(self) -> str | None:
        """As the inner algorithm."""
        return self.inner.needs_individual_replies

    def reply_like(self, w0: Vector) -> tuple[Reply, ...]:
        """As the inner algorithm."""
        return self.inner.reply_like(w0)

    def iterate(self, state: ServerState) -> Vector:
        """The inner algorithm's iterate, where it has one."""
        return cast(HoldsIterate, self.inner).iterate(self._inner_state(state))

    def with_iterate(self, state: ServerState, point: Vector) -> ServerState:
        """The same state at another point."""
        return self._with_inner(state, cast(HoldsIterate, self.inner).with_iterate(self._inner_state(state), point))

    def mean(self, state: ServerState) -> Vector:
        """P_H(z), of a splitting scheme."""
        return cast(HoldsMean, self.inner).mean(self._inner_state(state))

    def with_mean(self, state: ServerState, mean: Vector) -> ServerState:
        """The same state of a splitting scheme at another P_H(z)."""
        return self._with_inner(state, cast(HoldsMean, self.inner).with_mean(self._inner_state(state), mean))


def layers(algorithm: Algorithm) -> Iterator[Algorithm]:
    """The algorithm and those within it, the outermost first."""
    yield algorithm
    while isinstance(algorithm, Combinator):
        algorithm = algorithm.inner
        yield algorithm


def innermost(algorithm: Algorithm) -> Algorithm:
    """The algorithm within all combinators."""
    *_, core = layers(algorithm)
    return core


def contains(algorithm: Algorithm, kind: type[Combinator]) -> bool:
    """Whether the algorithm is such a combinator or has one inside."""
    return any(isinstance(layer, kind) for layer in layers(algorithm))


def holds_iterate(algorithm: Algorithm) -> bool:
    """Whether the server holds a point that a round maps to the next: of a combinator, whether the inner one does."""
    return isinstance(innermost(algorithm), HoldsIterate)


def holder_of(inner: Algorithm, owner: str, instead: str) -> HoldsIterate:
    """``inner`` as an algorithm of one phase whose server holds the iterate.

    Raises:
        TypeError: it is none; the message names the combinator and what to use instead.
    """
    if not holds_iterate(inner) or len(inner.phases) != 1:
        raise TypeError(f"{owner} needs an algorithm of one phase whose server holds the iterate, got "
                        f"{type(inner).__name__}: use {instead}")
    return cast(HoldsIterate, inner)
