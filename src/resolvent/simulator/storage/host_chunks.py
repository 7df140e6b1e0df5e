"""Chunks of rounds whose parties' data and states are gathered from the host, in a thread, while other rounds run."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from numpy.typing import NDArray

from resolvent.math import tree
from resolvent.problem.subset import Gatherer, PartySubset
from resolvent.simulator.engine.cohorts import CohortDraws, DrawnCohorts, check_cohorts
from resolvent.simulator.states import Rounds
from resolvent.simulator.storage.host_states import HostStates, StoredRows

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
