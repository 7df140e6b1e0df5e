"""Parties' data and states on the host; only the parties of the next chunk of rounds are on the device.

The cost of a chunk depends on its cohorts, not on the number of parties. While one chunk runs, a thread writes the
states of the chunk before it and gathers what the next one needs.
"""

import hashlib
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree
from numpy.typing import NDArray
from typing_extensions import override

from resolvent.algorithms import keys
from resolvent.algorithms.algorithm import Algorithm, PartyState, ServerState
from resolvent.algorithms.round import initial_server
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.problem import Problem
from resolvent.problem.subset import Gatherer, PartySubset
from resolvent.simulator.engine.cohorts import CohortDraws, DrawnCohorts, check_cohorts
from resolvent.simulator.engine.compiled_rounds import ChunkInputs, ChunkRunner
from resolvent.simulator.engine.evaluate import personal_models
from resolvent.simulator.mesh import local_view, replicate, replicate_constants
from resolvent.simulator.states import Chunk, Federation, Rounds
from resolvent.simulator.storage.host_states import HostStates, StoredRows
from resolvent.simulator.storage.parties_view import PartiesView, PartyRows, SampledParties
from resolvent.simulator.storage.storage import CohortView, EvaluationView, Storage, whole_cohort
from resolvent.simulator.storage.tree_files import digest

_CHUNK_BYTES = 2**28  # bytes of one chunk's data and states; the memory in use is about four times as much
_SPLITS = ("train", "validation")  # the splits that the rounds read


class GatheredChunk(NamedTuple):
    """What was gathered for a chunk.

    Attributes:
        problem: the problem of the chunk's parties, in NumPy arrays.
        stored: their states; the rows are padded to the number of slots.
    """

    problem: PartySubset
    stored: StoredRows


class PendingChunk(NamedTuple):
    """A chunk that is being gathered.

    Attributes:
        ids: ids of the parties of the cohorts, ascending.
        gathered: the data and states, when the thread has gathered them.
    """

    start: int
    rounds: int
    cohorts: DrawnCohorts
    ids: NDArray[np.int32]
    gathered: Future[GatheredChunk]


class HostChunks:
    """Divides a run into chunks and gathers them.

    Attributes:
        capacity: the maximum number of rounds in a chunk, so that its data and states take at most 256 MiB.
    """

    def __init__(self, rounds: Rounds, gatherer: Gatherer, states: HostStates, worker: ThreadPoolExecutor) -> None:
        self._rounds, self._gatherer, self._states, self._worker = rounds, gatherer, states, worker
        parties = len(gatherer.data)
        cohort = rounds.participation.capacity(parties)
        bytes_per_party = gatherer.bytes_of(1, _SPLITS) + tree.size_in_bytes(states.shapes) + 1
        max_rounds = min(rounds.every, rounds.total)
        self.capacity = int(np.clip(_CHUNK_BYTES // (cohort * bytes_per_party), 1, max_rounds))
        self._slots, self._parties = min(parties, self.capacity * cohort), parties
        self._draw = CohortDraws(rounds.participation, jnp.asarray(gatherer.data.sizes()), rounds.seed, self.capacity)

    def begin(self, start: int, limit: int) -> PendingChunk:
        """Draw the cohorts of the chunk that begins with round ``start``, and let the thread gather their parties.

        The chunk has at most ``limit`` rounds, and ends at the next evaluation or at the end of the run.
        """
        every = self._rounds.every
        rounds = min(self.capacity, limit, every - start % every, self._rounds.total - start)
        cohorts = self._draw(start, rounds)
        check_cohorts(cohorts, start, rounds, self._rounds.participation, self._parties)
        # No problem in host memory has a known optimum, and only its gap needs the shares of all parties: without them
        # the program does not depend on the number of parties.
        cohorts = cohorts._replace(shares=cohorts.shares[:0])
        ids = np.unique(np.asarray(cohorts.rounds.index)[:rounds]).astype(np.int32)
        return PendingChunk(start, rounds, cohorts, ids, self._worker.submit(self._gather, ids))

    def _gather(self, ids: NDArray[np.int32]) -> GatheredChunk:
        problem = self._gatherer(ids, self._slots, _SPLITS)
        stored = self._states.read(ids)
        rows = jax.tree.map(
            lambda leaf: np.pad(leaf, [(0, self._slots - len(ids)), *[(0, 0)] * (leaf.ndim - 1)]), stored.rows)
        return GatheredChunk(problem, stored._replace(rows=rows))


def gather_parties(gatherer: Gatherer, ids: NDArray[np.int32]) -> PartySubset:
    """The problem of these parties, on the device."""
    return to_device(gatherer(ids, len(ids)))


def to_device(problem: PartySubset) -> PartySubset:
    """The problem in arrays of the device.

    It must be called by the main thread, because another thread has its own setting of the precision.
    """
    moved: PartySubset = jax.tree.map(lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf, problem)
    return moved


def replace_rows(ids: NDArray[np.int32], stored: StoredRows, newer_ids: NDArray[np.int32],
                 newer_rows: PyTree[Any]) -> None:
    """Overwrite the states of the parties that two chunks have in common with those of the other chunk."""
    _, positions, newer_positions = np.intersect1d(ids, newer_ids, assume_unique=True, return_indices=True)
    for leaf, newer in zip(jax.tree.leaves(stored.rows), jax.tree.leaves(newer_rows), strict=True):
        leaf[positions] = np.asarray(newer)[newer_positions]
    stored.is_stored[positions] = True


class HostStorage(Storage, PartiesView):
    """Data stay in host memory or on disk; states are rows of a file.

    Memory has the parties of a few chunks, a few numbers per party (sizes, offsets, shares, the positions of rows), and
    the server's state.
    """

    problem: PartySubset

    def __init__(self, rounds: Rounds, gatherer: Gatherer, party: PyTree[jax.ShapeDtypeStruct],
                 folder: Path | None) -> None:
        """Compute the first state of the server, and begin to gather the first chunk.

        Args:
            gatherer: gathers the data of parties.
            party: the shapes of a party's state.
            folder: the folder of the parties' states; None: a temporary one.
        """
        self._count, self._gatherer = rounds.total, gatherer
        self._states = HostStates(rounds.algorithm, party, len(gatherer.data), rounds.seed, folder)
        self._evaluated = rounds.evaluated
        # One thread, so that what it writes is on the disk before it reads for a later chunk.
        self._worker = ThreadPoolExecutor(1, "resolvent-memory")
        self._chunks = HostChunks(rounds, gatherer, self._states, self._worker)
        self.capacity = self._chunks.capacity
        self.problem = gather_parties(gatherer, self._evaluated)
        self._writes: list[Future[None]] = []
        self._last_rows: tuple[NDArray[np.int32], PyTree[Any]] | None = None
        self._cohort_problem: PartySubset | None = None
        self._next = self._chunks.begin(0, 1)
        shares = rounds.participation.shares(jnp.asarray(gatherer.data.sizes()))
        self._server: ServerState = _initial_server(rounds.algorithm, gatherer.template, shares,
                                                    jnp.array(rounds.seed))

    @override
    def first_inputs(self) -> ChunkInputs:
        chunk = self._next.gathered.result()
        rows = jax.tree.map(jnp.asarray, chunk.stored.rows)
        return ChunkInputs(to_device(chunk.problem), self._next.cohorts, Federation(self._server, rows))

    @override
    def advance(self, run_chunk: ChunkRunner, start: int, end: int, limit: int) -> tuple[Chunk, int]:
        """Run the gathered chunk; ``limit`` applies to the next one, which is gathered meanwhile."""
        pending = self._next
        assert pending.start == start
        assert start + pending.rounds <= end
        gathered = pending.gathered.result()
        if self._last_rows is not None:  # they were not yet written when the thread read the rows of this chunk
            replace_rows(pending.ids, gathered.stored, *self._last_rows)
        if (following := start + pending.rounds) < self._count:
            self._next = self._chunks.begin(following, limit)
        self._cohort_problem = to_device(gathered.problem)
        parties = self._states.complete(self._cohort_problem, gathered.stored)
        mesh = run_chunk.mesh
        problem, cohorts = replicate_constants((self._cohort_problem, pending.cohorts), mesh)
        chunk = run_chunk(ChunkInputs(problem, cohorts, replicate(Federation(self._server, parties), mesh)), start,
                          pending.rounds)
        chunk = chunk if mesh is None else local_view(chunk)
        jax.tree.leaves(chunk.record)[0].block_until_ready()
        self._server = chunk.state.server
        self._last_rows = (pending.ids, chunk.state.parties)
        self._writes.append(self._worker.submit(self._states.write, *self._last_rows))
        self._wait_for_writes(leave=1)
        return chunk, pending.rounds

    def _wait_for_writes(self, leave: int = 0) -> None:
        """Wait until at most ``leave`` chunks are not yet written; errors of the thread are raised here."""
        while len(self._writes) > leave:
            self._writes.pop(0).result()

    @override
    def evaluated_parties(self) -> list[EvaluationView]:
        return [EvaluationView(self.problem, self._state_of(self.problem, self._evaluated),
                               jnp.asarray(self._evaluated), np.arange(len(self._evaluated)))]

    @override
    def last_cohort(self, chunk: Chunk) -> list[CohortView]:
        assert self._cohort_problem is not None
        return [whole_cohort(self._cohort_problem, chunk)]

    def _state_of(self, problem: PartySubset, ids: NDArray[np.int32]) -> Federation:
        self._wait_for_writes()
        return Federation(self._server, self._states.complete(problem, self._states.read(ids)))

    @property
    @override
    def view(self) -> PartiesView:
        return self

    @override
    def party_ids(self) -> NDArray[np.integer]:
        return self.problem.party_ids()

    @override
    def personal_models(self, algorithm: Algorithm, ids: NDArray[np.integer]) -> Vector:
        problem, state = self._gather(ids)
        models: Vector = personal_models(algorithm, problem, state, jnp.asarray(ids))
        return models

    @override
    def sampled_parties(self, ids: NDArray[np.integer]) -> list[SampledParties]:
        return [SampledParties(self.problem, np.arange(len(ids)))]

    def _gather(self, ids: NDArray[np.integer]) -> tuple[PartySubset, Federation]:
        """The problem and the state of these parties, gathered now, on the device."""
        ascending = np.unique(ids).astype(np.int32)
        problem = gather_parties(self._gatherer, ascending)
        return problem, self._state_of(problem, ascending)

    def _rows(self, ids: NDArray[np.integer]) -> PartyState:
        problem, state = self._gather(ids)
        return tree.rows(state.parties, problem.row(jnp.asarray(ids)))

    @override
    def final_state(self) -> Federation:
        """The server's state; instead of arrays [N, ...], an object that reads the rows of parties by index."""
        self._wait_for_writes()
        self._worker.shutdown()
        return Federation(self._server, PartyRows(self._rows))

    @override
    def checkpoint_state(self) -> Federation:
        """The server's state, and the positions of the parties' rows in the file."""
        self._wait_for_writes()
        return Federation(self._server, self._states.table())

    @override
    def facts(self) -> dict[str, Any]:
        """The name of the file of rows."""
        return {"rows": self._states.file_name}

    @override
    def confirm_checkpoint(self) -> None:
        self._states.confirm_checkpoint()

    @override
    def restore(self, state: Federation, facts: dict[str, Any], rounds: int) -> None:
        self._server = state.server
        self._next.gathered.result()
        self._states.restore(state.parties, facts["rows"])
        if rounds < self._count:
            self._next = self._chunks.begin(rounds, 1)

    @override
    def digest(self) -> str:
        """SHA-256 of the server's state, and of ids and rows of the parties that have taken part."""
        self._wait_for_writes()
        total = hashlib.sha256(digest(self._server).encode())
        self._states.add_to_digest(total)
        return total.hexdigest()


@jax.jit
def _initial_server(algorithm: Algorithm, problem: Problem, shares: Float[Array, " N"],
                    seed: Int[Array, ""]) -> ServerState:
    """The server's state before the first round, as ``engine.initial_state`` computes it."""
    return initial_server(algorithm, problem.init(keys.initial_key(seed)), shares)
