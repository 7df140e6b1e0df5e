"""A plain Python loop over rounds and parties: the engine's twin, with none of its tricks.

It calls the same party and server functions one at a time and keeps every party's state in a Python list. It shares
with the engine only how keys are folded, which is the contract that a deployment must keep as well.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from resolvent.algorithms.admission import Private, admit
from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.participation import Participation
from resolvent.problem.problem import Problem
from resolvent.simulate import engine


def python_rounds(algorithm: Algorithm, problem: Problem, participation: Participation, seed: int,
                  rounds: int) -> list[tuple[Any, list[Any]]]:
    """The server's state and every party's after each round, the first state first."""
    shares = np.asarray(participation.shares(problem.sizes))
    key = jax.random.fold_in(jax.random.key(seed), engine._INIT)
    w0 = problem.init(key)
    dtype = jnp.zeros(()).dtype
    server = algorithm.init(w0, jnp.asarray(shares, dtype))
    parties = [algorithm.init_party(w0, problem.oracle(jnp.array(k)), jax.random.fold_in(key, k))
               for k in range(problem.parties)]
    history = [(server, list(parties))]
    party_of, server_of = _functions(algorithm, problem)
    for t in range(rounds):
        round_key = jax.random.fold_in(jax.random.key(seed), t)
        cohort = participation(jax.random.fold_in(round_key, engine._COHORT), problem.sizes)
        alive = np.asarray(cohort.alive)
        if algorithm.straggler_policy == "drop":
            alive = alive & ~np.asarray(cohort.late)
        for number, phase in enumerate(algorithm.phases):
            phase_key = jax.random.fold_in(round_key, number)
            replies, kept = {}, list(parties)
            for row, k in enumerate(np.asarray(cohort.index).tolist()):
                arguments = (parties[k], phase.message(server, jnp.array(k)), jnp.array(k),
                             jax.random.fold_in(phase_key, k), cohort.effort[row])
                like = party_of(number).eval_shape(*arguments)[1] if row == 0 else like
                if alive[row]:
                    kept[k], replies[k], _ = party_of(number)(*arguments)
            arrived, refused = admit(replies, like, cohort.index, cohort.weight, shares[np.asarray(cohort.index)])
            parties = [Private.split(kept[k], lambda new, _: new, lambda _, old: old, parties[k]) if k in refused
                       else kept[k] for k in range(problem.parties)]
            alive = np.asarray(arrived.alive)
            if not alive.any():
                continue
            server, _ = server_of(number)(server, arrived, jax.random.fold_in(phase_key, engine._SERVER))
        history.append((server, list(parties)))
    return history


def _functions(algorithm: Algorithm, problem: Problem) -> tuple[Callable[[int], Any], Callable[[int], Any]]:
    """Each phase's party function, for one party, and server function, compiled once."""
    @cache
    def party(number: int) -> Any:
        phase = algorithm.phases[number]
        return jax.jit(lambda row, message, k, key, effort: phase.party(row, message, problem.oracle(k), key, effort))

    # A lambda, because a bound method is looked up by the hash of its arrays.
    return party, cache(lambda number: jax.jit(lambda *args: algorithm.phases[number].server(*args)))
