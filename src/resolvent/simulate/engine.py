"""Rounds of any algorithm on any problem, fused into one compiled call.

The engine gathers the cohort's rows of the party states, runs the algorithm's party function over them, scatters the
rows back and hands the replies to the server. It knows nothing of any algorithm. Every key is folded from (seed, round,
phase, party), so neither the scheduler nor the cohort's order changes what a party computes.
"""

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from resolvent.algorithms import keys
from resolvent.algorithms.algorithm import Algorithm, PartyState, ServerState
from resolvent.algorithms.participation import Cohort, Participation
from resolvent.algorithms.round import (
    commit_rows,
    counted_parties,
    initial_party,
    initial_server,
    server_step,
    stacked_replies,
    working_parties,
)
from resolvent.math import tree
from resolvent.problem.problem import Problem, SolvedProblem
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.simulate.schedulers import Jobs, SchedulerName, named
from resolvent.xla.small_call import allow_small_calls

__all__ = ["Chunk", "Federation", "RoundRecord", "Snapshot", "initial", "run_chunk", "work_of"]


class Federation(eqx.Module):
    """All that a next round needs: the server's state and every party's (leaves [N, ...])."""

    server: ServerState
    parties: PartyState


class RoundRecord(eqx.Module):
    """What one round leaves for the reader.

    Attributes:
        index: [C] the cohort.
        alive: [C] whose reply counted.
        invited: [C] who was sent a message.
        refused: [C] whose reply was not finite, and counted as not arrived.
        party: name -> [C] per party.
        server: name -> scalar.
    """

    index: Int[Array, " C"]
    alive: Array
    invited: Array
    refused: Array
    party: dict[str, Array]
    server: dict[str, Array]


class Snapshot(NamedTuple):
    """The last aggregation of a chunk: the cohort, its models before it, and the server's state before it."""

    record: RoundRecord
    local: PyTree[Any]
    server_before: ServerState


class Chunk(NamedTuple):
    """What a chunk of rounds returns; record leaves are [capacity, ...], rows beyond the count are zero."""

    state: Federation
    record: RoundRecord
    snapshot: Snapshot


@jax.jit
def initial(algorithm: Algorithm, problem: Problem, participation: Participation, seed: Int[Array, ""]) -> Federation:
    """The state before the first round; the first model depends on the seed alone."""
    key = keys.initial_key(seed)
    w0 = problem.init(key)

    def of_party(k: Array) -> PartyState:
        return initial_party(algorithm, w0, problem.oracle(k), key, k)

    return Federation(initial_server(algorithm, w0, participation.shares(problem.sizes)),
                      jax.lax.map(of_party, jnp.arange(problem.parties), batch_size=256))


@partial(jax.jit, static_argnames=("capacity", "record", "scheduler"), donate_argnames=("state",))
def run_chunk(
    algorithm: Algorithm,
    problem: Problem,
    participation: Participation,
    state: Federation,
    seed: Int[Array, ""],
    start: Int[Array, ""],
    count: Int[Array, ""],
    *,
    capacity: int,
    record: tuple[str, ...],
    scheduler: SchedulerName,
) -> Chunk:
    """Run rounds start, ..., start+count-1.

    The number of rounds is traced, so that one compiled function serves every chunk up to ``capacity`` rounds.

    Args:
        algorithm: what a round does.
        problem: the parties' objectives.
        participation: who takes part.
        state: the state before the rounds; its buffers are given away.
        seed: of everything random.
        start: number of the first round.
        count: how many rounds, 1 to ``capacity``.
        capacity: rows of the record.
        record: names of the parties' scalars to keep (``steps``, ``inexactness``, ``model_change``), and ``gap``, the
            shared model's, of a problem whose optimum is known.
        scheduler: who works side by side with whom, and where: a scheduler or its name.
    """
    run_round = partial(_round, algorithm, problem, participation, keys.root_key(seed), record=record,
                        scheduler=scheduler)
    shapes = jax.eval_shape(run_round, state, start)[1]
    rows = jax.tree.map(lambda s: jnp.zeros((capacity, *s.shape), s.dtype), shapes.record)
    last = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

    def body(i: Array, carry: tuple[Federation, RoundRecord, Snapshot]) -> tuple[Federation, RoundRecord, Snapshot]:
        state, rows, _ = carry
        state, snapshot = run_round(state, start + i)
        return state, jax.tree.map(lambda all_, one: all_.at[i].set(one), rows, snapshot.record), snapshot

    return Chunk(*jax.lax.fori_loop(0, count, body, (state, rows, last)))


@partial(jax.jit, static_argnames=("record", "scheduler"))  # so that it is traced once, for its shapes and for the loop
def _round(
    algorithm: Algorithm,
    problem: Problem,
    participation: Participation,
    key: Array,
    state: Federation,
    t: Int[Array, ""],
    *,
    record: tuple[str, ...],
    scheduler: SchedulerName,
) -> tuple[Federation, Snapshot]:
    """One round: every phase over one cohort."""
    round_key = keys.round_key(key, t)
    cohort = participation(keys.cohort_key(round_key), problem.sizes)
    alive = working_parties(algorithm, cohort)
    before, came = state.server, alive
    party_info: dict[str, Any] = {}
    server_info: dict[str, Any] = {}
    for number in range(len(algorithm.phases)):
        phase_key = keys.phase_key(round_key, number)
        state, alive, seen, found = _phase(algorithm, number, problem, cohort, alive, phase_key, state, scheduler,
                                            record)
        party_info |= seen
        server_info |= found
    local = party_info.pop("model")
    if isinstance(problem, SolvedProblem) and "gap" in record and (
            shared := algorithm.server_model(state.server)) is not None:
        server_info["gap"] = problem.gap(shared, participation.shares(problem.sizes))
    if "model_change" in record:
        party_info["model_change"] = _model_change(algorithm, problem, cohort, state, local)
    of_parties = {name: party_info[name] for name in record if name != "gap"}
    kept = RoundRecord(cohort.index, alive, cohort.alive, came & ~alive, of_parties, server_info)
    return state, Snapshot(kept, local, before)


def _phase(
    algorithm: Algorithm, number: int, problem: Problem, cohort: Cohort, alive: Array, key: Array, state: Federation,
    scheduler: SchedulerName, record: tuple[str, ...],
) -> tuple[Federation, Array, dict[str, Any], dict[str, Any]]:
    """Message, party and server of one phase; absent parties keep their state; without replies so does the server.

    A reply that is not finite counts as one that did not arrive, in this phase and the rest of the round.
    """
    effort = jnp.where(alive, cohort.effort, 0)
    at = problem.row(cohort.index)
    rows = tree.rows(state.parties, at)

    def work(shared: tuple[Algorithm, Problem, ServerState, Array],
             job: Jobs) -> tuple[PartyState, Any, dict[str, Any]]:
        algorithm, problem, server, key = shared
        phase, k = algorithm.phases[number], job.index
        with allow_small_calls():
            row, payload, info = phase.party(job.rows, phase.message(server, k), problem.oracle(k),
                                             keys.party_key(key, k), job.effort)
        # What nobody reads must not get as far as the devices' exchange: before that, XLA does not compute it.
        return row, payload, {name: info[name] for name in info if name in ("model", *record)}

    new_rows, payload, info = named(scheduler)(
        work, (algorithm, problem, state.server, key), Jobs(cohort.index, rows, effort),
        effort * work_of(algorithm, problem.sizes[cohort.index]))
    counted = counted_parties(payload, alive)
    states = commit_rows(new_rows, rows, working=alive, counted=counted)
    parties = jax.tree.map(lambda leaf, row: leaf.at[at].set(row, unique_indices=True), state.parties, states)
    server, server_info = server_step(algorithm.phases[number], state.server,
                                      stacked_replies(payload, cohort, counted), keys.server_key(key))
    return Federation(server, parties), counted, info, server_info


def work_of(algorithm: Algorithm, samples: Int[Array, " C"]) -> Float[Array, " C"]:
    """About how much work parties with so many samples have: what the local solvers say, or all samples without any."""
    def is_solver(part: Any) -> bool:
        return isinstance(part, LocalSolver)

    solvers = [part for part in jax.tree.leaves(algorithm, is_leaf=is_solver) if is_solver(part)]
    return sum(solver.work(samples) for solver in solvers) if solvers else samples.astype(jnp.result_type(float))


def _model_change(algorithm: Algorithm, problem: Problem, cohort: Cohort, state: Federation,
                  local: PyTree[Any]) -> Float[Array, " C"]:
    """|deployed after the aggregation - the party's model just before it|. Source: Fed+, Figure 1."""
    model_message = algorithm.model_message

    def of_party(k: Array, row: PartyState, model: PyTree[Any]) -> Array:
        after = algorithm.personal_model(row, model_message(state.server, k), problem.oracle(k))
        return tree.norm(tree.sub(after, model))

    return jax.vmap(of_party)(cohort.index, tree.rows(state.parties, problem.row(cohort.index)), local)
