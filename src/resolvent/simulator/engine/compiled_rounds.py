"""Rounds of any algorithm on any problem, fused into one compiled call.

The engine gathers the cohort's rows of the party states, runs the algorithm's party function for each of them, writes
the rows back and hands the replies to the server's function. It knows no algorithm. Every key is folded from (seed,
round, phase, party), so neither the scheduler nor the cohort's order changes what a party computes.
"""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from resolvent.algorithms import keys
from resolvent.algorithms.admission import update_norm
from resolvent.algorithms.algorithm import (
    Algorithm,
    Info,
    PartyState,
    Reply,
    ServerState,
    algorithm_of_round,
    local_solvers,
)
from resolvent.algorithms.cohort import Cohort
from resolvent.algorithms.combinators.combinator import innermost
from resolvent.algorithms.phase_results import party_work
from resolvent.algorithms.round import (
    commit_rows,
    counted_parties,
    initial_party,
    initial_server,
    server_step,
    stacked_replies,
    working_parties,
)
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import recording
from resolvent.problem.problem import Problem, SolvedProblem
from resolvent.simulator.engine.cohort_parts import CohortPart, part_of_cohort
from resolvent.simulator.engine.cohorts import DrawnCohorts
from resolvent.simulator.engine.scheduler_choice import SchedulerName, scheduler_named
from resolvent.simulator.engine.schedulers import Jobs
from resolvent.simulator.engine.states import Chunk, Federation, RoundRecord, Snapshot
from resolvent.simulator.storage.shards import REPLICATED, SHARDED, on_every_device, shard_specs
from resolvent.xla.fallback import FallbackJit
from xla_cpu_rewrites.small_call import allow_small_calls, call_metadata

__all__ = ["estimated_work", "initial_state", "run_chunk"]

_FEDERATION_SPECS = Federation(REPLICATED, SHARDED)
_SNAPSHOT_SPECS: Any = Snapshot(cast("Any", REPLICATED), SHARDED, REPLICATED)
_CHUNK_SPECS = Chunk(_FEDERATION_SPECS, cast("Any", REPLICATED), _SNAPSHOT_SPECS)
_INFO = {"model": "the party's model at the end of its work", "steps": "its number of steps"}
_STATES_AT_ONCE = 256  # first states of parties that are computed side by side


class _Static(NamedTuple):
    """What a compiled round is specialised to, see ``run_chunk``."""

    record: tuple[str, ...]
    scheduler: SchedulerName
    plain: bool


class _PhaseResult(NamedTuple):
    state: Federation
    counted: Bool[Array, " C"]
    party_info: Info
    server_info: Info


@jax.jit
def initial_state(algorithm: Algorithm, problem: Problem, shares: Float[Array, " N"],
                  seed: Int[Array, ""]) -> Federation:
    """The state before the first round; the first model depends on the seed alone."""
    specs = (REPLICATED, shard_specs(problem), REPLICATED, REPLICATED)
    state: Federation = on_every_device(_initial_state, problem, specs, _FEDERATION_SPECS)(
        algorithm, problem, shares, seed)
    return state


def _initial_state(algorithm: Algorithm, problem: Problem, shares: Float[Array, " N"],
                   seed: Int[Array, ""]) -> Federation:
    key = keys.initial_key(seed)
    w0, first = problem.init(key), problem.at(jnp.array(0))

    def of_party(k: Array) -> PartyState:
        return initial_party(algorithm, w0, first.oracle(k), key, k)

    return Federation(initial_server(algorithm, w0, shares),
                      jax.lax.map(of_party, problem.row_ids(), batch_size=_STATES_AT_ONCE))


@partial(FallbackJit, static_argnames=("record", "scheduler"), donate_argnames=("state",))
def run_chunk(
    algorithm: Algorithm,
    problem: Problem,
    cohorts: DrawnCohorts,
    state: Federation,
    seed: Int[Array, ""],
    start: Int[Array, ""],
    count: Int[Array, ""],
    *,
    record: tuple[str, ...],
    scheduler: SchedulerName,
    plain: bool,
) -> Chunk:
    """Run rounds start, ..., start+count-1.

    The number of rounds is traced, so that one compiled function serves every chunk of up to R rounds.

    Args:
        cohorts: the cohorts of up to R rounds.
        state: the state before the rounds; its buffers are donated.
        count: number of rounds, 1 to R.
        record: names of the parties' scalars to record (``steps``, ``inexactness``, ``model_change``,
            ``start_change``), and ``gap`` for the shared model's optimality gap if the problem's optimum is known.
        plain: compile without call metadata. Callers leave this to ``FallbackJit``.
    """
    run = partial(_run_rounds, static=_Static(record, scheduler, plain))
    specs = (REPLICATED, shard_specs(problem), REPLICATED, _FEDERATION_SPECS, REPLICATED, REPLICATED, REPLICATED)
    chunk: Chunk = on_every_device(run, problem, specs, _CHUNK_SPECS)(
        algorithm, problem, cohorts, state, seed, start, count)
    return chunk


def _run_rounds(algorithm: Algorithm, problem: Problem, cohorts: DrawnCohorts, state: Federation,
                seed: Int[Array, ""], start: Int[Array, ""], count: Int[Array, ""], *, static: _Static) -> Chunk:
    key, capacity = keys.root_key(seed), len(cohorts.rounds.index)

    def run_round(state: Federation, i: Int[Array, ""]) -> tuple[Federation, Snapshot]:
        cohort: Cohort = tree.strongly_typed(tree.rows(cohorts.rounds, i))
        after: tuple[Federation, Snapshot] = _run_round(algorithm, problem, cohort, cohorts.shares, key, state,
                                                        start + i, static=static)
        return after

    shapes = jax.eval_shape(run_round, state, count)[1]
    rows = jax.tree.map(lambda s: jnp.zeros((capacity, *s.shape), s.dtype), shapes.record)
    last = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

    def body(i: Array, chunk: Chunk) -> Chunk:
        state, snapshot = run_round(chunk.state, i)
        rows = jax.tree.map(lambda column, value: column.at[i].set(value), chunk.record, snapshot.record)
        return Chunk(state, rows, snapshot)

    chunk: Chunk = jax.lax.fori_loop(0, count, body, Chunk(state, rows, last))
    return chunk


@partial(jax.jit, static_argnames=("static",))  # so that it is traced once, for its shapes and for the loop
def _run_round(algorithm: Algorithm, problem: Problem, cohort: Cohort, shares: Float[Array, " N"], key: Array,
               state: Federation, t: Int[Array, ""], *, static: _Static) -> tuple[Federation, Snapshot]:
    """Round t: every phase over one cohort; ``key`` is the root key."""
    with call_metadata(not static.plain):
        return _run_phases(algorithm, problem, cohort, shares, key, state, t, static)


def _run_phases(algorithm: Algorithm, problem: Problem, cohort: Cohort, shares: Float[Array, " N"], key: Array,
                state: Federation, t: Int[Array, ""], static: _Static) -> tuple[Federation, Snapshot]:
    plain, algorithm, of_round = algorithm, algorithm_of_round(algorithm, t), problem.at(t)
    part = part_of_cohort(problem, cohort)
    working = counted = working_parties(algorithm, cohort)
    server_before = state.server
    party_info: Info = {}
    server_info: Info = {**cohort.info}
    for number in range(len(algorithm.phases)):
        of_phase = _keys_of_phase(number, key, t, part.index)
        # What a party works with is of the round in which it began.
        work = (algorithm, of_round, key) if cohort.began is None else (plain, problem, key)
        phase = _run_phase(algorithm, number, of_round, cohort, part, counted, of_phase, state, static, work)
        state, counted = phase.state, phase.counted
        party_info |= phase.party_info
        server_info |= phase.server_info
    _check_info(algorithm, party_info, static.record)
    models = party_info.pop("model")
    if "gap" in static.record and isinstance(problem, SolvedProblem) and (
            shared := algorithm.server_model(state.server)) is not None:
        server_info["gap"] = problem.gap(shared, shares)
    if "model_change" in static.record:
        party_info["model_change"] = part.exchange(_model_change(algorithm, of_round, part.index, state, models))
    if "start_change" in static.record:
        party_info["start_change"] = part.exchange(_start_change(algorithm, of_round, part.index, state, models))
    recorded = {name: party_info[name] for name in static.record if name != "gap"}
    record = RoundRecord(cohort.index, counted, cohort.alive, working & ~counted, recorded, server_info)
    return state, Snapshot(record, models, server_before)


def _keys_of_phase(number: int, root: Array, t: Int[Array, ""], index: Int[Array, " L"]) -> tuple[Array, Array]:
    """The keys [L] of the parties, drawn together because single draws take longer, and the key of the server."""
    key = keys.phase_key(keys.round_key(root, t), number)
    return jax.vmap(partial(keys.party_key, key))(index), keys.server_key(key)


def _check_info(algorithm: Algorithm, info: Info, record: tuple[str, ...]) -> None:
    """Refuse the info of a round's phases if something is missing that the run reads."""
    computed = ("gap", "model_change", "start_change")
    numbers = [name for name, value in info.items() if jax.tree_util.all_leaves([value]) and jnp.ndim(value) == 1]
    for name in ("model", *(name for name in record if name not in computed)):
        if name not in info:
            others = f", but {', '.join(numbers)}" if numbers else ""
            raise InputError(f"{type(innermost(algorithm)).__name__}: the info that its party functions return has no "
                             f"{name!r}{others}: return the info of local_work, or add {_INFO.get(name, 'it')} to the "
                             "info")


def _run_phase(algorithm: Algorithm, number: int, problem: Problem, cohort: Cohort, part: CohortPart,
               working: Bool[Array, " C"], of_phase: tuple[Array, Array], state: Federation, static: _Static,
               of_work: tuple[Algorithm, Problem, Array]) -> _PhaseResult:
    """Message, party and server of one phase.

    ``of_phase`` has the keys of the parties and of the server, ``of_work`` what parties work with: that of the round,
    or with ``Cohort.began`` that of all rounds, and the root key.

    Absent parties keep their states, and the server keeps its own if no reply counts, see ``server_step``. A reply that
    does not count, such as one that is not finite, does not count in the following phases of the round either.
    """
    effort = part.select(jnp.where(working, cohort.effort, 0))
    slots = problem.row(part.index)
    rows = tree.rows(state.parties, slots)

    def work(shared: tuple[Algorithm, Problem, ServerState, Array],
             job: Jobs) -> tuple[PartyState, tuple[Reply, Array], Info]:
        algorithm, problem, server, root = shared
        k, (row, key) = job.index, job.rows
        if job.began is not None:
            algorithm, problem = algorithm_of_round(algorithm, job.began), problem.at(job.began)
            key = keys.party_key(keys.phase_key(keys.round_key(root, job.began), number), k)
        phase = algorithm.phases[number]
        message = phase.message(server, k)
        oracle = recording(problem.oracle(k), static.record)
        with allow_small_calls():
            row, payload, info = party_work(phase, row, message, oracle, key, job.effort)
        norm = update_norm(algorithm, message, payload, number)
        info = {**info, "update_norm": norm}
        # XLA does not compute what is dropped here. Once exchanged between devices, it would be computed.
        return row, (payload, norm), {name: info[name] for name in info if name in ("model", *static.record)}

    new_rows, replies, info = scheduler_named(static.scheduler)(
        work, (*of_work[:2], state.server, of_work[2]),
        Jobs(part.index, (rows, of_phase[0]), effort, None if cohort.began is None else part.select(cohort.began)),
        effort * estimated_work(algorithm, problem.sizes[part.index]))
    models = {"model": info.pop("model")} if "model" in info else {}  # they stay where they are
    (payload, norms), info = part.exchange((replies, info))
    counted = counted_parties(algorithm, norms, cohort, working)
    committed = commit_rows(new_rows, rows, working=part.select(working), counted=part.select(counted))
    parties = jax.tree.map(
        lambda leaf, row: leaf.at[part.targets(slots, len(leaf))].set(row, unique_indices=True),
        state.parties, committed)
    server, server_info = server_step(algorithm, number, state.server, stacked_replies(payload, cohort, counted),
                                      of_phase[1])
    return _PhaseResult(replace(state, server=server, parties=parties), counted, info | models, server_info)


def estimated_work(algorithm: Algorithm, samples: Int[Array, " C"]) -> Float[Array, " C"]:
    """Estimated number of samples that parties process at full effort; used for load balancing.

    It is the sum over the algorithm's local solvers, or the parties' numbers of samples if there is no solver.
    """
    solvers = local_solvers(algorithm)
    if not solvers:
        return samples.astype(jnp.result_type(float))
    return jnp.asarray(sum(solver.work(samples) for solver in solvers))


def _model_change(algorithm: Algorithm, problem: Problem, index: Int[Array, " L"], state: Federation,
                  models: Vector) -> Float[Array, " L"]:
    """|personal model after the aggregation - the party's model just before it|. Source: Fed+, Figure 1."""
    model_message = algorithm.model_message

    def of_party(k: Array, row: PartyState, model: Vector) -> Array:
        after = algorithm.personal_model(row, model_message(state.server, k), problem.oracle(k))
        return tree.norm(tree.sub(after, model))

    return jax.vmap(of_party)(index, tree.rows(state.parties, problem.row(index)), models)


def _start_change(algorithm: Algorithm, problem: Problem, index: Int[Array, " L"], state: Federation,
                  models: Vector) -> Float[Array, " L"]:
    """|start of the next local work - the party's model just before the aggregation|.

    It is the jump that an aggregation makes in the parties' training. ``model_change`` is 0 for methods whose parties
    keep their own models, even if their next work begins elsewhere.
    """
    def of_party(job: tuple[Array, PartyState, Vector]) -> Array:
        k, row, model = job
        for phase in algorithm.phases:
            # Work at effort 0 returns its start.
            info = phase.party(row, phase.message(state.server, k), problem.oracle(k), keys.root_key(0),
                               jnp.zeros(()))[2]
            if "model" in info:
                return tree.norm(tree.sub(info["model"], model))
        raise TypeError("start_change needs an algorithm whose parties train a model")

    changes: Array = jax.lax.map(of_party, (index, tree.rows(state.parties, problem.row(index)), models))
    return changes
