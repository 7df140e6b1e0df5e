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

from resolvent.algorithms.algorithm import Algorithm, Replies
from resolvent.problem.problem import Problem
from resolvent.simulate import engine
from resolvent.simulate.participation import Participation


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
        if algorithm.partial_work == "drop":
            alive = alive & ~np.asarray(cohort.late)
        for number, phase in enumerate(algorithm.phases):
            phase_key = jax.random.fold_in(round_key, number)
            replies = []
            for row, k in enumerate(np.asarray(cohort.index)):
                if not alive[row]:
                    replies.append(None)
                    continue
                parties[k], reply, _ = party_of(number)(parties[k], phase.message(server, jnp.array(k)), jnp.array(k),
                                                        jax.random.fold_in(phase_key, int(k)), cohort.effort[row])
                replies.append(reply)
            if not alive.any():
                continue
            some = next(r for r in replies if r is not None)
            filled = [jax.tree.map(jnp.zeros_like, some) if r is None else r for r in replies]
            payload = jax.tree.map(lambda *leaves: jnp.stack(leaves), *filled)
            arrived = np.where(alive, shares[np.asarray(cohort.index)], 0)
            server, _ = server_of(number)(
                server, Replies(payload, jnp.where(jnp.asarray(alive), cohort.weight, 0), cohort.index,
                                jnp.asarray(alive), jnp.asarray(arrived, dtype)),
                jax.random.fold_in(phase_key, engine._SERVER))
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
