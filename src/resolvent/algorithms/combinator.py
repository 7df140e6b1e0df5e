"""What every combinator shares: the parties and messages are the inner algorithm's, the server is its own."""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Protocol, runtime_checkable

from jaxtyping import Array

from resolvent.algorithms.algorithm import Algorithm, Info, Message, PartyState, Phase, Replies, ServerState, Stragglers
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle

__all__ = ["Combinator", "HoldsIterate", "InnerServer", "holder_of"]

InnerServer = Callable[[ServerState, Replies, Array], tuple[ServerState, Info]]


@runtime_checkable
class HoldsIterate(Protocol):
    """An algorithm whose server state contains a point that a round maps to the next."""

    def iterate(self, state: ServerState) -> Vector:
        """The point."""

    def with_iterate(self, state: ServerState, point: Vector) -> ServerState:
        """The same state at another point."""


class Combinator(Algorithm):
    """An algorithm around another of one phase; its server's state holds the inner one's as ``inner``.

    Attributes:
        inner: the algorithm that is changed.
    """

    inner: Algorithm

    @abstractmethod
    def server(self, inner: InnerServer, state: ServerState, replies: Replies, key: Array) -> tuple[ServerState, Info]:
        """What the server does, given what the inner server would."""

    @property
    def partial_work(self) -> Stragglers:
        """As the inner algorithm."""
        return self.inner.partial_work

    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> PartyState:
        """As the inner algorithm."""
        return self.inner.init_party(w0, oracle, key)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The inner phase with a server of its own."""
        phase = self.inner.phases[0]
        return (Phase(lambda state, k: phase.message(state.inner, k), phase.party, partial(self.server, phase.server)),)

    def deploy(self, state: PartyState, message: Message, oracle: Oracle) -> Vector:
        """As the inner algorithm."""
        return self.inner.deploy(state, message, oracle)

    def server_model(self, state: ServerState) -> Vector | None:
        """As the inner algorithm."""
        return self.inner.server_model(state.inner)


def holder_of(inner: Algorithm, owner: str, instead: str) -> HoldsIterate:
    """``inner`` as an algorithm of one phase whose server holds the iterate.

    Raises:
        TypeError: it is none; the message names the combinator and what to use instead.
    """
    if not isinstance(inner, HoldsIterate) or len(inner.phases) != 1:
        raise TypeError(f"{owner} needs an algorithm of one phase whose server holds the iterate, got "
                        f"{type(inner).__name__}: use {instead}")
    return inner
