"""The keys with which an algorithm draws noise, from a trace of a party's work without data.

The trace is followed with the party's key, its number, its effort and the numbers of the algorithm; the states of the
server and of the party are unknown. Then every key must be known, and so must be how often noise is drawn: all runs
have the keys of this trace. Two releases with one key have the same noise, and their difference has none:

.. code-block:: text

    solve f_k from v with the key K:  v - eta (g(v) + noise(K))
    solve f_k from w with the key K:  w - eta (g(w) + noise(K))        the difference reveals g(v) - g(w)
"""

from collections import Counter
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.description import PRIVATE_WORK, Description
from resolvent.algorithms.keys import initial_key, initial_party_key, party_key, phase_key, root_key, round_key
from resolvent.errors import InputError
from resolvent.xla.known_values import NotKnownError, Value, count_marked, follow, known

Key: TypeAlias = tuple[int, ...]


class NoiseKeys(NamedTuple):
    """The keys of the releases of two parties in two rounds, at full effort.

    Attributes:
        first: party -> the keys before the first round.
        rounds: (round, party) -> the keys of all phases, in the order of the calls of the solver.
        personal: number of releases whenever a party computes its personal model; a loop counts once.
    """

    first: dict[int, tuple[Key, ...]]
    rounds: dict[tuple[int, int], tuple[Key, ...]]
    personal: int


def noise_keys(algorithm: Algorithm, description: Description) -> NoiseKeys:
    """The keys of the releases of an algorithm, which are those of its solvers ``DPSGD``."""
    numbers, root, initial = [*map(jnp.asarray, jax.tree.leaves(algorithm))], root_key(0), initial_key(0)
    try:
        return NoiseKeys(
            {k: _keys(description.first_program, *numbers, initial_party_key(initial, jnp.array(k)))
             for k in range(2)},
            {(t, k): tuple(key for phase, program in enumerate(description.phase_programs) for key in _keys(
                program, *numbers, jnp.array(k), party_key(phase_key(round_key(root, jnp.array(t)), phase),
                                                           jnp.array(k)), jnp.ones(())))
             for t in range(2) for k in range(2)},
            count_marked(description.model_program.jaxpr, PRIVATE_WORK))
    except NotKnownError as error:
        raise InputError(f"{type(algorithm).__name__} calls the solver {error}, so that its noise cannot be accounted "
                         "for: call it a fixed number of times, with keys that are derived from the key of the "
                         "party's function") from None


def check_same_noise(keys: NoiseKeys, name: str) -> None:
    """Refuse an algorithm in which two releases have one key."""
    for releases in (*keys.first.values(), *keys.rounds.values()):
        if len(set(releases)) < len(releases):
            raise InputError(f"{name} calls the solver {len(releases)} times in a round with {len(set(releases))} "
                             "different keys: with one key two releases have the same noise, and their difference "
                             "reveals the samples. Derive a key for each call, such as jax.random.fold_in(key, number)")
    together = Counter(key for releases in (*keys.first.values(), *keys.rounds.values()) for key in releases)
    if any(count > 1 for count in together.values()):
        raise InputError(f"{name} calls the solver with a key that is the same in several rounds or for several "
                         "parties: their releases have the same noise, and differences of them reveal the samples. "
                         "Derive every key from the key of the party's function")


def _keys(program: Any, *inputs: Array) -> tuple[Key, ...]:
    """The keys of the releases of a program whose first inputs are known."""
    keys: list[Key] = []

    def record(values: list[Value]) -> None:
        if values[0] is None:
            raise NotKnownError("with a key that depends on a state")
        data = np.asarray(values[0]())
        keys.extend(tuple(row) for row in data.reshape(-1, data.shape[-1]).tolist())  # several keys under vmap

    states: list[Value] = [None] * (len(program.jaxpr.invars) - len(inputs))
    follow(program, [*map(known, inputs), *states], PRIVATE_WORK, record)
    return tuple(keys)
