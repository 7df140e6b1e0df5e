"""Parties' data and states on the host: a chunk of rounds is given those of its cohorts.

What a chunk costs is set by its cohorts, not by how many parties there are. While one chunk runs, a thread writes back
the states of the one before and gathers what the next one needs.
"""

import hashlib
import os
import shutil
import tempfile
import uuid
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree
from numpy.typing import ArrayLike, NDArray

from resolvent.algorithms import keys
from resolvent.algorithms.algorithm import Algorithm, PartyState, ServerState
from resolvent.algorithms.participation import Participation
from resolvent.algorithms.round import initial_party, initial_server
from resolvent.data.federated import FederatedData
from resolvent.data.array_files import PackedArray
from resolvent.math import tree
from resolvent.problem.models.model import Model
from resolvent.problem.problem import Problem
from resolvent.problem.subset import Gatherer, PartySubset
from resolvent.simulate.engine import Chunk, Federation
from resolvent.simulate.predrawn import PredrawnCohorts, draw
from resolvent.simulate.rows import RowFile
from resolvent.simulate.storage import Memory, Step
from resolvent.simulate.tree_files import digest

__all__ = ["HostStorage", "PartyRows", "fits_device"]

_CHUNK_BYTES = 2**28  # of one chunk's data and states; about four times as much is in use at once
_TRAINING = ("train", "validation")


class _Part(NamedTuple):
    """A chunk's parties: the first and the number of its rounds, who draws them, and what was gathered of them."""

    start: int
    rounds: int
    who: PredrawnCohorts
    numbers: NDArray[np.int32]
    gathered: Future[tuple[PartySubset, PyTree[NDArray[Any]], NDArray[np.bool_]]]


class HostStorage(Memory):
    """Data stay where they are, in memory or on the disk; states are rows of a file, begun when a party first comes.

    Beside the parties of a chunk, memory holds some numbers per party (sizes, offsets, weights, the table of rows) and
    what the algorithm's server keeps.
    """

    def __init__(self, algorithm: Algorithm, model: Model, data: FederatedData, who: Participation, seed: int,
                 rounds: int, every: int, evaluated: NDArray[np.int32], folder: Path | None) -> None:
        """Prepare a run.

        Args:
            algorithm: what runs.
            model: what every party trains.
            data: the samples.
            who: who takes part.
            seed: of everything random.
            rounds: how many rounds the run has.
            every: rounds between evaluations.
            evaluated: whose models are.
            folder: where rows are kept for resuming; None: in a temporary folder, for this run alone.
        """
        self._algorithm, self._data, self._who, self._seed = algorithm, data, who, jnp.array(seed)
        self._model, self._rounds, self._every = model, rounds, every
        self.evaluated = evaluated
        self._gather = Gatherer(model, data)
        self._sizes = jnp.asarray(data.sizes())
        self._server: ServerState = _first_server(algorithm, self._gather.one, who, self._sizes, self._seed)
        self._row = row_like(algorithm, self._gather.one)
        cohort = who.capacity(len(data))
        per_party = self._gather.bytes_of(1, _TRAINING) + _bytes(self._row) + 1
        self.capacity = int(np.clip(_CHUNK_BYTES // (cohort * per_party), 1, every))
        self._slots = min(len(data), self.capacity * cohort)
        self.problem = _on_device(Gatherer(model, data)(evaluated, len(evaluated)))
        self.identity = ("host", model, _digest_of(data))
        self._folder = folder
        if folder is None:
            self._place = Path(tempfile.mkdtemp(prefix="resolvent-"))
            weakref.finalize(self, shutil.rmtree, self._place, ignore_errors=True)
        else:
            self._place = folder
        self._name = f"{uuid.uuid4().hex[:12]}.rows"  # an older run's rows stay until this run's first checkpoint
        self._file = self._open() if jax.tree.leaves(self._row) else None
        self._worker = ThreadPoolExecutor(1, "resolvent-memory")
        self._writing: list[Future[None]] = []
        self._last: tuple[NDArray[np.int32], PyTree[Any]] | None = None
        self._recent: PartySubset | None = None
        self._next = self._begin_gathering(0)

    def _open(self) -> RowFile:
        return RowFile(self._place / self._name, self._row, len(self._data))

    def example(self) -> tuple[Problem, Participation, Federation]:
        """The parties of the first chunk."""
        members, rows, _ = self._next.gathered.result()
        return _on_device(members), self._next.who, Federation(self._server, jax.tree.map(jnp.asarray, rows))

    def _begin_gathering(self, start: int) -> _Part:
        """Draw the cohorts of the chunk that begins with a round, and let the thread gather their members' things."""
        count = min(self.capacity, self._every - start % self._every, self._rounds - start)
        who = draw(self._who, self._sizes, self._seed, jnp.array(start), rounds=self.capacity)
        numbers = np.unique(np.asarray(who.cohorts.index)[:count]).astype(np.int32)
        return _Part(start, count, who, numbers, self._worker.submit(self._gathered, numbers))

    def _gathered(self, numbers: NDArray[np.int32]) -> tuple[PartySubset, PyTree[NDArray[Any]], NDArray[np.bool_]]:
        members = self._gather(numbers, self._slots, _TRAINING)
        rows, known = self._stored(numbers)
        padded = jax.tree.map(
            lambda leaf: np.pad(leaf, [(0, self._slots - len(numbers)), *[(0, 0)] * (leaf.ndim - 1)]), rows)
        return members, padded, known

    def _stored(self, numbers: NDArray[np.int32]) -> tuple[PyTree[NDArray[Any]], NDArray[np.bool_]]:
        return (self._row, np.ones(len(numbers), bool)) if self._file is None else self._file.read(numbers)

    def advance(self, step: Step, start: int, count: int) -> Chunk:
        """As many calls as the parties' bytes ask for."""
        records = []
        while start < (stop := start + count):
            part = self._next
            assert part.start == start
            members, rows, known = part.gathered.result()
            self._patch(part.numbers, rows, known)
            if start + part.rounds < self._rounds:
                self._next = self._begin_gathering(start + part.rounds)
            self._recent = _on_device(members)
            chunk = step(self._recent, part.who, Federation(self._server, self._begun(self._recent, rows, known)),
                         start, part.rounds)
            jax.tree.leaves(chunk.record)[0].block_until_ready()
            self._server = chunk.state.server
            self._write(part.numbers, chunk.state.parties)
            records.append(jax.tree.map(lambda leaf, n=part.rounds: np.asarray(leaf)[:n], chunk.record))
            start, count = start + part.rounds, stop - start - part.rounds
        record = jax.tree.map(lambda *parts: np.concatenate(parts), *records)
        return chunk._replace(record=record)

    def _patch(self, numbers: NDArray[np.int32], rows: PyTree[NDArray[Any]], known: NDArray[np.bool_]) -> None:
        """Rows were read while the chunk before ran: take those that it changed from its result."""
        if self._last is None:
            return
        _, mine, theirs = np.intersect1d(numbers, self._last[0], assume_unique=True, return_indices=True)
        for leaf, new in zip(jax.tree.leaves(rows), jax.tree.leaves(self._last[1]), strict=True):
            leaf[mine] = np.asarray(new)[theirs]
        known[mine] = True

    def _begun(self, problem: PartySubset, rows: PyTree[NDArray[Any]], known: NDArray[np.bool_]) -> PartyState:
        """The rows with a first state for those who have none yet."""
        new = np.flatnonzero(~known)
        slots = np.zeros(problem.parties, np.int32)
        slots[:len(new)] = new
        return _begin_rows(self._algorithm, problem, jax.tree.map(jnp.array, rows), slots, len(new), self._seed)

    def _write(self, numbers: NDArray[np.int32], rows: PyTree[Any]) -> None:
        self._last = (numbers, rows)
        if self._file is not None:
            self._writing.append(self._worker.submit(self._file.write, numbers, rows))
            self._wait(1)

    def _wait(self, left: int = 0) -> None:
        """Until no more than so many chunks wait to be written; what went wrong is raised here."""
        while len(self._writing) > left:
            self._writing.pop(0).result()

    def state(self) -> Federation:
        """With the rows of the parties that are evaluated."""
        return Federation(self._server, self._rows_of(self.problem, self.evaluated))

    def _rows_of(self, problem: Problem, numbers: NDArray[np.int32]) -> PartyState:
        assert isinstance(problem, PartySubset)
        self._wait()
        return self._begun(problem, *self._stored(numbers))

    def at(self, numbers: NDArray[np.integer]) -> tuple[Problem, Federation]:
        """Problem and state of these parties, gathered now."""
        these = np.unique(numbers).astype(np.int32)
        problem = _on_device(Gatherer(self._model, self._data)(these, len(these)))
        return problem, Federation(self._server, self._rows_of(problem, these))

    @property
    def cohort_problem(self) -> Problem:
        """The last chunk's parties."""
        assert self._recent is not None
        return self._recent

    def whole(self) -> Federation:
        """The server's, and in place of arrays [N, ...] what reads a party's row when it is asked for one."""
        self._wait()
        self._worker.shutdown()
        return Federation(self._server, PartyRows(self))

    def kept(self) -> Federation:
        """The server's state, and where in the file the parties' rows lie."""
        self._wait()
        return Federation(self._server, () if self._file is None else self._file.sync())

    def facts(self) -> dict[str, Any]:
        """Which file."""
        return {"rows": self._name}

    def checkpointed(self) -> None:
        """Rows that only older checkpoints point to may go, and older runs' files."""
        if self._file is None or self._folder is None:
            return
        directory = os.open(self._folder.parent, os.O_RDONLY)
        os.fsync(directory)  # the checkpoint's own name must be on the disk before what it replaces goes
        os.close(directory)
        self._file.checkpointed()
        for other in self._place.glob("*.rows"):
            if other.name != self._name:
                other.unlink()

    def restore(self, kept: Federation, facts: dict[str, Any], done: int) -> None:
        """The server's state of then, and the file's rows."""
        self._server = kept.server
        self._next.gathered.result()
        if self._file is not None:
            self._file.path.unlink()
            self._name = facts["rows"]
            self._file = self._open()
            self._file.restore(np.asarray(kept.parties))
        if done < self._rounds:
            self._next = self._begin_gathering(done)

    def digest(self) -> str:
        """Of the server's state, and the numbers and rows of the parties that have taken part."""
        self._wait()
        total = hashlib.sha256(digest(self._server).encode())
        if self._file is not None:
            there = np.flatnonzero(self._file.table >= 0).astype(np.int32)
            for some in np.split(there, range(256, len(there), 256)):
                total.update(some.tobytes())
                for leaf in jax.tree.leaves(self._file.read(some)[0]):
                    total.update(leaf.tobytes())
        return total.hexdigest()


class PartyRows:
    """The parties' states in host memory: ``rows[k]`` reads party k's, ``rows[[2, 5]]`` those of some, stacked."""

    def __init__(self, memory: HostStorage) -> None:
        self._memory = memory

    def __getitem__(self, numbers: ArrayLike) -> PartyState:
        """Rows by the parties' numbers."""
        which = np.asarray(numbers)
        problem, state = self._memory.at(which.ravel())
        return tree.rows(state.parties, problem.row(jnp.asarray(which)))


@jax.jit
def _first_server(algorithm: Algorithm, problem: Problem, who: Participation, sizes: Int[Array, " N"],
                  seed: Int[Array, ""]) -> ServerState:
    """The server's state before the first round, as ``initial`` makes it."""
    return initial_server(algorithm, problem.init(keys.initial_key(seed)), who.shares(sizes))


def row_like(algorithm: Algorithm, problem: Problem) -> PyTree[jax.ShapeDtypeStruct]:
    """Shapes and dtypes of a party's state."""
    def first(seed: Array) -> PartyState:
        key = keys.initial_key(seed)
        return algorithm.init_party(problem.init(key), problem.oracle(jnp.array(0)), key)
    return jax.eval_shape(first, jnp.array(0))


@partial(jax.jit, donate_argnames=("rows",))
def _begin_rows(algorithm: Algorithm, problem: PartySubset, rows: PartyState, slots: Int[Array, " M"],
                count: Int[Array, ""], seed: Int[Array, ""]) -> PartyState:
    """First states in the first ``count`` of ``slots``, as ``initial`` makes them."""
    key = keys.initial_key(seed)
    w0 = problem.init(key)

    def begin(i: Array, rows: PartyState) -> PartyState:
        k = problem.numbers[slots[i]]
        row = initial_party(algorithm, w0, problem.oracle(k), key, k)
        return jax.tree.map(lambda all_, one: all_.at[slots[i]].set(one.astype(all_.dtype)), rows, row)

    return jax.lax.fori_loop(0, count, begin, rows)


def fits_device(algorithm: Algorithm, model: Model, data: FederatedData) -> bool:
    """Whether all parties' data and states, and a copy of the states, take at most half of the device's memory."""
    device = jax.devices()[0]
    limits = device.memory_stats() or {}
    have = limits.get("bytes_limit") or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    gather = Gatherer(model, data)
    samples = gather.bytes_of(len(data))
    if samples + 100 * len(data) * _bytes(jax.eval_shape(model.init, jax.random.key(0))) < have / 2:
        return True  # no party keeps that many models
    return samples + 2 * len(data) * _bytes(row_like(algorithm, gather.one)) < have / 2


def _bytes(x: PyTree[Any]) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(x))


def _on_device(members: PartySubset) -> PartySubset:
    """With arrays of the device; by the calling thread, whose precision counts."""
    moved: PartySubset = jax.tree.map(lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf, members)
    return moved


def _digest_of(data: FederatedData) -> str:
    """Of the samples and how they are shared out; of packed data, as it was found when they were written."""
    def of_array(a: Any) -> str:
        if isinstance(a, PackedArray):
            return a.digest
        return f"{hashlib.sha256(np.ascontiguousarray(a).data).hexdigest()} {a.dtype} {a.shape}"

    arrays = [of_array(data.x), of_array(data.y)]
    return f"{arrays} {digest({s: (data.splits[s].offset, data.splits[s].length) for s in data.splits})}"
