"""The server's computations, compiled: its first state, and its step of a phase."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from resolvent.algorithms import keys
from resolvent.algorithms.algorithm import Algorithm, Replies, ServerState
from resolvent.algorithms.method import algorithm_of_round
from resolvent.algorithms.round import initial_server, server_step
from resolvent.federation.protocol.stores import ServerRecord
from resolvent.math.tree import Vector


@jax.jit
def first_state(algorithm: Algorithm, model: Vector, shares: Float[Array, " N"]) -> ServerState:
    """The server's state before the first round."""
    return initial_server(algorithm, model, shares)


@partial(jax.jit, static_argnames="phase", donate_argnames="state")
def next_state(algorithm: Algorithm, state: ServerState, replies: Replies, round_key: Array, t: int, *,
               phase: int) -> ServerState:
    """The server's state after a phase of round t.

    Args:
        state: the server's state. Its memory is that of the new one, so that it cannot be used any more.
        round_key: the server's key of the round; with a system key, the server's noise protects.
    """
    of_round = algorithm_of_round(algorithm, jnp.asarray(t))
    return server_step(of_round, phase, state, replies, keys.server_key(keys.phase_key(round_key, phase)))[0]


def is_over(record: ServerRecord, rounds: int, has_ended: Callable[[ServerState], bool] | None) -> bool:
    """Whether a run has no further round: after ``rounds``, or after the round in which its algorithm has ended."""
    return record.round >= rounds or (record.phase == 0 and has_ended is not None and has_ended(record.state))
