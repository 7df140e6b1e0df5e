"""A party's computations, compiled: its first state, its work in a phase, and its personal model; and its state."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from resolvent.algorithms.algorithm import Algorithm, PartyState, Reply
from resolvent.algorithms.keys import GENERATOR
from resolvent.algorithms.method import algorithm_of_round
from resolvent.algorithms.round import first_party_state
from resolvent.federation.protocol.stores import PartyRecord
from resolvent.federation.protocol.wire import Message, WireError
from resolvent.math.tree import Vector
from resolvent.problem.problem import Problem

_ZERO = np.int32(0)  # the party's own problem has one party


@jax.jit
def first_state(algorithm: Algorithm, problem: Problem, w0: Vector, key: Array) -> PartyState:
    """The party's state before the first round."""
    oracle = problem.at(jnp.array(0)).oracle(jnp.asarray(_ZERO))
    return first_party_state(algorithm, w0, oracle, jax.random.wrap_key_data(key, impl=GENERATOR))


@partial(jax.jit, static_argnames="phase")
def party_step(algorithm: Algorithm, problem: Problem, state: PartyState, payload: PyTree[Any], key: Array,
               effort: Float[Array, ""], t: Int[Array, ""], *, phase: int) -> tuple[PartyState, Reply]:
    """The party's state after its work in a phase of round t, and its reply."""
    oracle = problem.at(t).oracle(jnp.asarray(_ZERO))
    after, reply, _ = algorithm_of_round(algorithm, t).phases[phase].party(
        state, payload, oracle, key, effort)
    return jax.tree.map(lambda new, old: new.astype(old.dtype), after, state), reply


@jax.jit
def personal_model(algorithm: Algorithm, state: PartyState, payload: PyTree[Any], problem: Problem) -> Vector:
    """The model that the party uses."""
    return algorithm.personal_model(state, payload, problem.oracle(jnp.asarray(_ZERO)))


def position_in(message: Message, name: str) -> tuple[int, int] | None:
    """The round and phase of the party's last reply that counted, or was refused; None without any."""
    value = message.facts.get(name)
    if value is None:
        return None
    if not (isinstance(value, list) and len(value) == 2 and all(type(v) is int for v in value)):
        raise WireError(f"the message has no round and phase for {name}")
    return value[0], value[1]


def state_after(record: PartyRecord, message: Message) -> PartyState:
    """The party's state. It depends on whether its last reply counted, which the message says."""
    return record.settled(position_in(message, "counted"), position_in(message, "refused"))
