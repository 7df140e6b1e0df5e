"""Rounds of any algorithm on any problem, fused into one compiled call.

``run_chunk`` runs rounds, ``run_round`` the phases of one, and ``run_phase`` gathers the cohort's rows of the party
states, runs the algorithm's party function for each of them, writes the rows back and hands the replies to the server's
function. They know no algorithm. Every key is folded from (seed, round, phase, party), so neither the scheduler nor the
cohort's order changes what a party computes.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from resolvent.algorithms import keys
from resolvent.algorithms.admission import update_norm
from resolvent.algorithms.algorithm import Algorithm, Info, PartyState, Reply
from resolvent.algorithms.cohort import Cohort
from resolvent.algorithms.combinators.combinator import innermost
from resolvent.algorithms.method import algorithm_of_round, local_solvers
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
from resolvent.simulator.engine.cohort_parts import WholeCohort, is_divided, part_of_cohort, problem_specs
from resolvent.simulator.engine.cohorts import DrawnCohorts
from resolvent.simulator.engine.schedulers import Jobs, Scheduler
from resolvent.simulator.mesh import DIVIDED, REPLICATED, on_every_device
from resolvent.simulator.states import Chunk, Federation, RoundRecord, Snapshot
from resolvent.xla.fallback import FallbackJit
from xla_cpu_rewrites.small_call import allow_small_calls, call_metadata

__all__ = ["ChunkInputs", "ChunkRunner", "estimated_work", "initial_state", "run_chunk"]

_INFO = {"model": "the party's model at the end of its work", "steps": "its number of steps"}
_STATES_AT_ONCE = 256  # first states of parties that are computed side by side


class RoundContext(eqx.Module):
    """What all phases of a round read.

    Attributes:
        shares: [N] lambda_k of all parties.
        root: the root key.
        t: number of the round.
        record: see ``run_chunk``; so are the fields after it.
    """

    algorithm: Algorithm
    problem: Problem
    cohort: Cohort
    shares: Float[Array, " N"]
    root: Array
    t: Int[Array, ""]
    record: tuple[str, ...] = eqx.field(static=True)
    scheduler: Scheduler = eqx.field(static=True)
    mesh: Mesh | None = eqx.field(static=True)
    plain: bool = eqx.field(static=True)


class PhaseResult(NamedTuple):
    """The result of a phase.

    Attributes:
        counted: whether the reply of each party of the cohort counted.
        home: the parties whose rows this device has.
        models: their models before the aggregation, if the phase has them.
        party_info: name -> [C].
        server_info: name -> scalar.
    """

    state: Federation
    counted: Bool[Array, " C"]
    home: WholeCohort
    models: dict[str, Vector]
    party_info: Info
    server_info: Info


@partial(jax.jit, static_argnames=("mesh",))
def initial_state(algorithm: Algorithm, problem: Problem, shares: Float[Array, " N"], seed: Int[Array, ""], *,
                  mesh: Mesh | None = None) -> Federation:
    """The state before the first round; the first model depends on the seed alone."""
    def on_device(algorithm: Algorithm, problem: Problem, shares: Float[Array, " N"],
                  seed: Int[Array, ""]) -> Federation:
        key = keys.initial_key(seed)
        w0, first = problem.init(key), problem.at(jnp.array(0))

        def of_party(k: Array) -> PartyState:
            return initial_party(algorithm, w0, first.oracle(k), key, k)

        return Federation(initial_server(algorithm, w0, shares),
                          jax.lax.map(of_party, problem.row_ids(), batch_size=_STATES_AT_ONCE))

    specs = (REPLICATED, problem_specs(problem), REPLICATED, REPLICATED)
    state: Federation = on_every_device(on_device, mesh, specs, _state_specs(problem))(algorithm, problem, shares, seed)
    return state


def _state_specs(problem: Problem) -> Any:
    return Federation(REPLICATED, DIVIDED if is_divided(problem) else REPLICATED)


@partial(FallbackJit, static_argnames=("record", "scheduler", "mesh"), donate_argnames=("state",))
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
    scheduler: Scheduler,
    mesh: Mesh | None,
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
        mesh: the devices among which parties are divided, or to which they are dealt; None: one device.
        plain: compile without call metadata. Callers leave this to ``FallbackJit``.
    """
    def on_device(algorithm: Algorithm, problem: Problem, cohorts: DrawnCohorts, state: Federation,
                  seed: Int[Array, ""], start: Int[Array, ""], count: Int[Array, ""]) -> Chunk:
        root, capacity = keys.root_key(seed), len(cohorts.rounds.index)

        def of_round(state: Federation, i: Int[Array, ""]) -> tuple[Federation, Snapshot]:
            cohort = tree.strongly_typed(tree.rows(cohorts.rounds, i))
            after: tuple[Federation, Snapshot] = run_round(RoundContext(
                algorithm, problem, cohort, cohorts.shares, root, start + i, record, scheduler, mesh, plain), state)
            return after

        shapes = jax.eval_shape(of_round, state, count)[1]
        rows = jax.tree.map(lambda s: jnp.zeros((capacity, *s.shape), s.dtype), shapes.record)
        last = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

        def body(i: Array, chunk: Chunk) -> Chunk:
            state, snapshot = of_round(chunk.state, i)
            rows = jax.tree.map(lambda column, value: column.at[i].set(value), chunk.record, snapshot.record)
            return Chunk(state, rows, snapshot)

        rounds: Chunk = jax.lax.fori_loop(0, count, body, Chunk(state, rows, last))
        return rounds

    states = _state_specs(problem)
    specs = (REPLICATED, problem_specs(problem), REPLICATED, states, REPLICATED, REPLICATED, REPLICATED)
    results: Any = Chunk(states, REPLICATED, Snapshot(REPLICATED, states.parties, REPLICATED))  # type: ignore[arg-type]
    chunk: Chunk = on_every_device(on_device, mesh, specs, results)(
        algorithm, problem, cohorts, state, seed, start, count)
    return chunk


@jax.jit  # so that it is traced once, for its shapes and for the loop
def run_round(context: RoundContext, state: Federation) -> tuple[Federation, Snapshot]:
    """All phases of a round, over one cohort."""
    algorithm, problem = algorithm_of_round(context.algorithm, context.t), context.problem.at(context.t)
    of_round, cohort, record = replace(context, algorithm=algorithm, problem=problem), context.cohort, context.record
    working = counted = working_parties(algorithm, cohort)
    server_before = state.server
    models: dict[str, Vector] = {}
    party_info: Info = {}
    server_info: Info = {**cohort.info}
    with call_metadata(not context.plain):
        for number in range(len(algorithm.phases)):
            phase = run_phase(of_round, context, number, counted, state)
            state, counted = phase.state, phase.counted
            models |= phase.models
            party_info |= phase.party_info
            server_info |= phase.server_info
        _check_info(algorithm, models | party_info, record)
        if "gap" in record and isinstance(context.problem, SolvedProblem) and (
                shared := algorithm.server_model(state.server)) is not None:
            server_info["gap"] = context.problem.gap(shared, context.shares)
        for name, change in (("model_change", _model_change), ("start_change", _start_change)):
            if name in record:
                home = phase.home
                party_info[name] = home.exchange(change(algorithm, problem, home.index, state, models["model"]))
    recorded = {name: party_info[name] for name in record if name != "gap"}
    result = RoundRecord(cohort.index, counted, cohort.alive, working & ~counted, recorded, server_info)
    return state, Snapshot(result, models["model"], server_before)


def run_phase(context: RoundContext, of_all_rounds: RoundContext, number: int, working: Bool[Array, " C"],
              state: Federation) -> PhaseResult:
    """Message, party and server of one phase.

    Absent parties keep their states, and the server keeps its own if no reply counts, see ``server_step``. A reply that
    does not count, such as one that is not finite, does not count in the following phases of the round either.

    Args:
        context: with the learning rates and the data of the round.
        of_all_rounds: with those of no round, for parties that began in an earlier one.
        working: whether each party of the cohort works.
    """
    algorithm, problem, cohort, record = context.algorithm, context.problem, context.cohort, context.record
    effort = jnp.where(working, cohort.effort, 0)
    amount = effort * estimated_work(algorithm, problem.sizes[cohort.index])
    part = part_of_cohort(problem, cohort.index, amount, context.mesh, context.scheduler.slack)
    # What a party works with is of the round in which it began.
    began = None if cohort.began is None else part.select(cohort.began)
    own_keys = jax.vmap(lambda t, k: keys.party_key(keys.phase_key(keys.round_key(context.root, t), number), k),
                        in_axes=(None if began is None else 0, 0))(context.t if began is None else began, part.index)
    slots = problem.row(part.index)
    rows = tree.rows(state.parties, slots)

    def work(job: Jobs) -> tuple[PartyState, tuple[Reply, Array], Info, dict[str, Vector]]:
        row, key, began = job.rows
        own_algorithm, own_problem = (algorithm, problem) if began is None else (
            algorithm_of_round(of_all_rounds.algorithm, began), of_all_rounds.problem.at(began))
        phase = own_algorithm.phases[number]
        message = phase.message(state.server, job.index)
        oracle = recording(own_problem.oracle(job.index), record)
        with allow_small_calls():
            row, payload, info = phase.party(row, message, oracle, key, job.effort)
        norm = update_norm(own_algorithm, message, payload, number)
        info = {**info, "update_norm": norm}
        # XLA does not compute what is dropped here. Once exchanged between devices, it would be computed.
        return (row, (payload, norm), {name: info[name] for name in info if name in record},
                {name: info[name] for name in info if name == "model"})

    new_rows, replies, info, models = context.scheduler(
        work, Jobs(part.index, (rows, own_keys, began), part.select(effort)), part.select(amount))
    ((payload, norms), info), (new_rows, models) = part.collect((replies, info), (new_rows, models))
    counted = counted_parties(algorithm, norms, cohort, working)
    if (home := part.home) is not part:
        slots = problem.row(home.index)
        rows = tree.rows(state.parties, slots)
    committed = commit_rows(new_rows, rows, working=home.select(working), counted=home.select(counted))
    parties = jax.tree.map(
        lambda leaf, row: leaf.at[home.targets(slots, len(leaf))].set(row, unique_indices=True),
        state.parties, committed)
    key = keys.server_key(keys.phase_key(keys.round_key(context.root, context.t), number))
    server, server_info = server_step(algorithm, number, state.server, stacked_replies(payload, cohort, counted), key)
    return PhaseResult(replace(state, server=server, parties=parties), counted, home, models, info, server_info)


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


class ChunkInputs(NamedTuple):
    """What a chunk of rounds reads.

    Attributes:
        problem: the objectives of all parties, or of the parties of the chunk's cohorts.
        cohorts: the cohorts of its rounds.
        state: the state before the chunk; running the chunk donates its buffers.
    """

    problem: Problem
    cohorts: DrawnCohorts
    state: Federation


@dataclass(frozen=True, eq=False)
class ChunkRunner:
    """Runs chunks of rounds, with everything that is the same in all of them.

    Attributes:
        record: names of what each round records, see ``run_chunk``.
        mesh: the devices, see ``run_chunk``.
    """

    algorithm: Algorithm
    seed: int
    record: tuple[str, ...]
    scheduler: Scheduler
    mesh: Mesh | None = None

    def __call__(self, inputs: ChunkInputs, start: int, rounds: int) -> Chunk:
        """Run rounds start, ..., start+rounds-1."""
        return run_chunk(
            self.algorithm, *inputs, jnp.array(self.seed), jnp.array(start), jnp.array(rounds),
            record=self.record, scheduler=self.scheduler, mesh=self.mesh)

    def check(self, inputs: ChunkInputs) -> None:
        """Trace a chunk without running it, which raises the errors of parts that do not fit together.

        The trace is cached: the first chunk does not trace again.
        """
        run_chunk.eval_shape(
            self.algorithm, *inputs, jnp.array(self.seed), jnp.array(0), jnp.array(1),
            record=self.record, scheduler=self.scheduler, mesh=self.mesh)

    def run_copy(self, inputs: ChunkInputs, scheduler: Scheduler) -> Chunk:
        """Run the first round with another scheduler, and leave ``inputs`` as they are."""
        copied = inputs._replace(state=jax.tree.map(jnp.copy, inputs.state))
        return replace(self, scheduler=scheduler)(copied, 0, 1)
