"""The number of bytes that a party receives and sends in a round."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from resolvent.algorithms import keys
from resolvent.algorithms.algorithm import Algorithm, Message, PartyState, Reply, ServerState
from resolvent.math import tree
from resolvent.math.codecs import wire_bits
from resolvent.problem.problem import Problem
from resolvent.simulate.states import Federation

__all__ = ["MessageBytes", "message_bytes"]


class MessageBytes(NamedTuple):
    """Bytes of one party's messages in a round, over all phases.

    Attributes:
        down: bytes that the server sends to the party.
        up: bytes that the party replies.
    """

    down: int
    up: int


def message_bytes(algorithm: Algorithm, problem: Problem, state: Federation) -> MessageBytes:
    """Bytes that one party receives and sends in a round; encoded arrays count in their wire format."""
    shapes = _messages.eval_shape(  # type: ignore[no-untyped-call]
        algorithm, problem, state.server, jax.eval_shape(lambda x: tree.rows(x, 0), state.parties), jnp.array(0))
    return MessageBytes(*(-(-wire_bits(part) // 8) for part in shapes))


@jax.jit  # It is only traced. The trace is cached, so that a second run does not trace the party's work again.
def _messages(algorithm: Algorithm, problem: Problem, server: ServerState, row: PartyState,
              k: Array) -> tuple[list[Message], list[Reply]]:
    """All messages and replies of one party in a round."""
    messages, replies = [], []
    for phase in algorithm.phases:
        message = phase.message(server, k)
        messages.append(message)
        replies.append(phase.party(row, message, problem.oracle(k), keys.root_key(0), jnp.ones(()))[1])
    return messages, replies
