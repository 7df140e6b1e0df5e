"""Rounds as a plain Python loop over parties: what the simulator must compute, without any of its techniques.

One party after the other is called, party states are in a list, and replies are collected one by one, as over a
network. The simulator and this loop share the keys (``algorithms.keys``) and the rules of a round
(``algorithms.round``).
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from resolvent.algorithms import keys
from resolvent.algorithms.admission import update_norm
from resolvent.algorithms.aggregators.aggregator import with_limited_shares
from resolvent.algorithms.algorithm import Algorithm, PartyState, Replies, Reply, ServerState, party_work, server_work
from resolvent.algorithms.cohort import Cohort, check_cohort
from resolvent.algorithms.combinators.prepared import with_memory
from resolvent.algorithms.method import algorithm_of_round
from resolvent.algorithms.participation import rules
from resolvent.algorithms.participation.rules import Participation
from resolvent.algorithms.round import (
    collect_replies,
    commit_party,
    initial_party,
    initial_server,
    reply_shapes,
    working_parties,
)
from resolvent.problem.problem import Problem
from resolvent.simulator.states import Federation


def python_rounds(algorithm: Algorithm, problem: Problem, participation: Participation, seed: int,
                  rounds: int) -> list[Federation]:
    """The state before the first round and after each round, as NumPy arrays: ``rounds + 1`` states.

    Raises:
        InputError: the participation draws a party twice in a round, or a cohort that is wrong otherwise.
    """
    algorithm, ids = with_memory(algorithm, problem), range(problem.parties)
    server = _first_server(algorithm, problem, participation, seed)
    parties = [_first_party(algorithm, problem, seed, k) for k in ids]
    shapes = reply_shapes(algorithm, jax.eval_shape(problem.init, keys.initial_key(seed)))
    states = [_stacked(server, parties)]
    for t in range(rounds):
        key, cohort = draw_cohort(participation, problem.sizes, seed, t)
        check_cohort(cohort, rows=participation.capacity(len(ids)), parties=len(ids),
                     owner=type(participation).__name__, start=t)
        working = np.asarray(working_parties(algorithm, cohort))
        objectives, of_round = problem.at(jnp.array(t)), algorithm_of_round(algorithm, jnp.array(t))
        for phase in range(len(algorithm.phases)):
            after, replies = list(parties), {}
            for k, works, effort in zip(np.asarray(cohort.index).tolist(), working, cohort.effort, strict=True):
                if works:
                    after[k], replies[k] = _party_work(of_round, objectives, server, parties[k], key, k, effort, phase)
            collected = collect_replies(
                replies, shapes[phase], cohort,
                partial(_norm, of_round, server, phase=phase), of_round.norm_multiple)
            parties = [commit_party(after[k], parties[k], counted=k not in collected.refused) for k in ids]
            working = np.asarray(collected.replies.alive)
            if working.any() or algorithm.steps_without_replies:
                server = server_step(of_round, server, collected.replies, key, phase)
        states.append(_stacked(server, parties))
    return states


@jax.jit
def draw_cohort(participation: Participation, sizes: Int[Array, " N"], seed: int, t: int) -> tuple[Array, Cohort]:
    """The key of round t and its cohort."""
    return rules.draw_cohort(participation, sizes, keys.root_key(seed), jnp.asarray(t))


@partial(jax.jit, static_argnames="phase")
def server_step(algorithm: Algorithm, server: ServerState, replies: Replies, round_key: Array,
                phase: int) -> ServerState:
    """The server's state after a phase."""
    key = keys.server_key(keys.phase_key(round_key, phase))
    limited = replace(replies, weight=with_limited_shares(algorithm, replies.weight))
    return server_work(algorithm.phases[phase], server, limited, key)[0]


@partial(jax.jit, static_argnames="phase")
def _party_work(algorithm: Algorithm, problem: Problem, server: ServerState, party: PartyState, round_key: Array,
                k: int, effort: Float[Array, ""], phase: int) -> tuple[PartyState, Reply]:
    exchange, party_id = algorithm.phases[phase], jnp.asarray(k)
    key = keys.party_key(keys.phase_key(round_key, phase), party_id)
    message, oracle = exchange.message(server, party_id), problem.oracle(party_id)
    after, reply, _ = party_work(exchange, party, message, oracle, key, effort)
    return after, reply


@partial(jax.jit, static_argnames="phase")
def _norm(algorithm: Algorithm, server: ServerState, k: int, reply: Reply, *, phase: int) -> Float[Array, ""]:
    return update_norm(algorithm, algorithm.phases[phase].message(server, jnp.asarray(k)), reply, phase)


@jax.jit
def _first_server(algorithm: Algorithm, problem: Problem, participation: Participation, seed: int) -> ServerState:
    return initial_server(algorithm, problem.init(keys.initial_key(seed)), participation.shares(problem.sizes))


@jax.jit
def _first_party(algorithm: Algorithm, problem: Problem, seed: int, k: int) -> PartyState:
    key, party_id = keys.initial_key(seed), jnp.asarray(k)
    first = problem.at(jnp.array(0))
    return initial_party(algorithm, problem.init(key), first.oracle(party_id), key, party_id)


def _stacked(server: ServerState, parties: list[PartyState]) -> Federation:
    def stack(*leaves: PyTree[Any]) -> Any:
        return np.stack([np.asarray(leaf) for leaf in leaves])
    return Federation(jax.tree.map(np.asarray, server), jax.tree.map(stack, *parties))
