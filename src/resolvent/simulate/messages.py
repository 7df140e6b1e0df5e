"""The number of bytes that a party receives and sends in a round."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.keys import root_key
from resolvent.algorithms.shapes import exchange_shapes
from resolvent.math.codecs import wire_bits
from resolvent.problem.problem import Problem

__all__ = ["MessageBytes", "message_bytes"]


class MessageBytes(NamedTuple):
    """Bytes of one party's messages in a round, over all phases.

    Attributes:
        down: bytes that the server sends to the party.
        up: bytes that the party replies.
    """

    down: int
    up: int


def message_bytes(algorithm: Algorithm, problem: Problem) -> MessageBytes:
    """Bytes that one party receives and sends in a round; encoded arrays count in their wire format."""
    shapes = exchange_shapes(algorithm, jax.eval_shape(problem.init, root_key(0)),
                             oracle=jax.eval_shape(problem.oracle, jnp.array(0)))
    return MessageBytes(*(-(-wire_bits(part) // 8) for part in (shapes.messages, shapes.replies)))
