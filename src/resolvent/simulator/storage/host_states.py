"""The parties' states on the host: rows of a file, which are computed when a party takes part for the first time.

The file has one row for each party that has taken part, at the position that a table in memory has. A checkpoint is a
copy of the table. Rows to which the tables of the last two checkpoints point are never overwritten: the next row of
such a party goes to a free position, and its old position becomes free when two further checkpoints are complete. A
kill at any moment therefore leaves both checkpoints and all of their rows unchanged, and nothing has to be undone.
"""

import hashlib
import os
import shutil
import uuid
import weakref
import zlib
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree
from numpy.typing import NDArray

from resolvent.algorithms import keys
from resolvent.algorithms.algorithm import Algorithm, PartyState
from resolvent.algorithms.round import initial_party
from resolvent.data.files.array_files import open_until_collected, read_exactly
from resolvent.data.files.atomic_files import sync_to_disk
from resolvent.data.files.folder_lock import make_temporary_folder
from resolvent.errors import InputError
from resolvent.problem.subset import PartySubset

_HEADER = np.dtype([("party", "<i8"), ("crc", "<u4")])


class RowFile:
    """One row per party: leaves of fixed shapes, after the party's id and a checksum.

    Attributes:
        table: [N] position of each party's row in the file; -1 for a party without a row.
    """

    def __init__(self, path: Path, like: PyTree[Any], parties: int) -> None:
        """Open a file, for a new table.

        Args:
            path: the file; it is made if it does not exist.
            like: a row: leaves with shape and dtype.
        """
        self.path = path
        self._open(like)
        self.table = np.full(parties, -1, np.int32)
        self._table_of_checkpoint = self.table.copy()
        self._free: list[int] = []
        self._free_after_one: list[int] = []  # positions that are free after the next checkpoint
        self._free_after_two: list[int] = []
        self._end = 0

    def _open(self, like: PyTree[Any]) -> None:
        leaves, self._structure = jax.tree.flatten(like)
        self._record = np.dtype([*_HEADER.descr, *((f"{i}", leaf.dtype, leaf.shape) for i, leaf in enumerate(leaves))])
        self._fields = [f"{i}" for i in range(len(leaves))]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open_until_collected(self, self.path, os.O_RDWR | os.O_CREAT)

    def restore(self, tables: NDArray[np.int32]) -> None:
        """Continue from a checkpoint's tables, see ``sync``."""
        self.table, before = np.array(tables, np.int32)
        self._table_of_checkpoint = self.table.copy()
        used = np.unique(tables[tables >= 0])
        self._end = int(used.max(initial=-1)) + 1
        self._free = np.setdiff1d(np.arange(self._end), used).tolist()
        self._free_after_one, self._free_after_two = np.setdiff1d(before[before >= 0], self.table).tolist(), []
        size, expected = os.fstat(self._file).st_size, (int(self.table.max(initial=-1)) + 1) * self._record.itemsize
        if size < expected:
            raise InputError(f"{self.path} has {size} bytes, and the checkpoint needs {expected} of it: it is damaged "
                             "or belongs to another run; put it back, or start afresh without resume")

    def read(self, ids: NDArray[np.int32]) -> tuple[PyTree[NDArray[Any]], NDArray[np.bool_]]:
        """The rows of some parties (leaves [M, ...], zero for parties without a row), and [M] which have a row."""
        rows, positions = np.zeros(len(ids), self._record), self.table[ids]
        for i in np.argsort(positions):
            if positions[i] < 0:
                continue
            read_exactly(self._file, rows[i:i + 1], int(positions[i]) * self._record.itemsize, self.path)
            if rows["party"][i] != ids[i] or rows["crc"][i] != _checksum(rows[i:i + 1]):
                raise InputError(f"{self.path}: the state of party {ids[i]} is not what was written: the file is "
                                 "damaged or belongs to another run; put it back, or start afresh without resume")
        leaves = [np.ascontiguousarray(rows[name]) for name in self._fields]
        return jax.tree.unflatten(self._structure, leaves), positions >= 0

    def write(self, ids: NDArray[np.int32], rows: PyTree[Any]) -> None:
        """Write the rows of some parties; further rows are ignored."""
        records = np.zeros(len(ids), self._record)
        records["party"] = ids
        for name, leaf in zip(self._fields, jax.tree.leaves(rows), strict=True):
            records[name] = np.asarray(leaf)[:len(ids)]
        for i, k in enumerate(ids):
            records["crc"][i] = _checksum(records[i:i + 1])
            self._write_at(self._next_position(int(k)) * self._record.itemsize, records[i:i + 1])

    def _next_position(self, k: int) -> int:
        """The position of party k's next row: the present one, unless the last checkpoint points to it."""
        old = int(self.table[k])
        if old >= 0 and old != self._table_of_checkpoint[k]:
            return old
        if self._free:
            new = self._free.pop()
        else:
            new, self._end = self._end, self._end + 1
        if old >= 0:
            self._free_after_two.append(old)
        self.table[k] = new
        return new

    def _write_at(self, offset: int, record: NDArray[Any]) -> None:
        remaining = record.view(np.uint8).data
        try:
            while remaining:
                count = os.pwrite(self._file, remaining, offset)
                remaining, offset = remaining[count:], offset + count
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error  # with the name of the file

    def sync(self) -> NDArray[np.int32]:
        """[2, N] for a checkpoint: its table, once all rows in it are on the disk, and that of the one before it."""
        os.fsync(self._file)
        return np.stack([self.table, self._table_of_checkpoint])

    def confirm_checkpoint(self) -> None:
        """Called when a checkpoint with the present table is complete: rows that only older ones need become free."""
        self._free += self._free_after_one
        self._free_after_one, self._free_after_two = self._free_after_two, []
        self._table_of_checkpoint = self.table.copy()


def _checksum(record: NDArray[Any]) -> int:
    return zlib.crc32(record.view(np.uint8).data[_HEADER.itemsize:])


_ROWS_AT_ONCE = 256  # rows that are read at a time for the digest


class StoredRows(NamedTuple):
    """The states of some parties.

    Attributes:
        rows: leaves [M, ...], or more rows; zero for a party that has not taken part.
        is_stored: [M] whether the party has taken part.
    """

    rows: PyTree[NDArray[Any]]
    is_stored: NDArray[np.bool_]


class HostStates:
    """The states of all parties of a run; without a file if the algorithm's parties have no state.

    Args:
        folder: folder of the file; None: a temporary folder, which is removed with this object.
    """

    def __init__(self, algorithm: Algorithm, shapes: PyTree[jax.ShapeDtypeStruct], parties: int, seed: int,
                 folder: Path | None) -> None:
        self._algorithm, self._parties, self._seed, self.shapes = algorithm, parties, jnp.array(seed), shapes
        self._checkpoint_folder = None if folder is None else folder.parent
        if folder is None:
            folder = make_temporary_folder()
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._folder = folder
        # A new name, because the rows of an earlier run stay until the first checkpoint of this run.
        self.file_name = f"{uuid.uuid4().hex[:12]}.rows"
        self._file = self._open() if jax.tree.leaves(self.shapes) else None

    def _open(self) -> RowFile:
        return RowFile(self._folder / self.file_name, self.shapes, self._parties)

    def read(self, ids: NDArray[np.int32]) -> StoredRows:
        """The states of these parties."""
        if self._file is None:
            return StoredRows(self.shapes, np.ones(len(ids), bool))
        return StoredRows(*self._file.read(ids))

    def write(self, ids: NDArray[np.int32], rows: PyTree[Any]) -> None:
        """Write the states of these parties; further rows are ignored."""
        if self._file is not None:
            self._file.write(ids, rows)

    def complete(self, problem: PartySubset, stored: StoredRows) -> PartyState:
        """The rows on the device, with first states for the parties that have not taken part."""
        new = np.flatnonzero(~stored.is_stored)
        slots = np.zeros(problem.parties, np.int32)
        slots[:len(new)] = new
        return compute_first_rows(self._algorithm, problem, jax.tree.map(jnp.array, stored.rows), slots, len(new),
                                  self._seed)

    def table(self) -> NDArray[np.int32] | tuple[()]:
        """[2, N] for a checkpoint: the position of each party's row in it and in the checkpoint before it."""
        return () if self._file is None else self._file.sync()

    def restore(self, tables: Any, file_name: str) -> None:
        """Continue from a checkpoint's tables and file."""
        if self._file is not None:
            self._file.path.unlink()
            self.file_name = file_name
            self._file = self._open()
            self._file.restore(np.asarray(tables))

    def confirm_checkpoint(self) -> None:
        """Allow to overwrite rows that only older checkpoints need, and remove the files of earlier runs."""
        if self._file is None or self._checkpoint_folder is None:
            return
        sync_to_disk(self._checkpoint_folder)  # the checkpoint's name must be on the disk before old rows are removed
        self._file.confirm_checkpoint()
        for other in self._folder.glob("*.rows"):
            if other.name != self.file_name:
                other.unlink()

    def add_to_digest(self, total: "hashlib._Hash") -> None:
        """Add the ids and the rows of the parties that have taken part."""
        if self._file is not None:
            stored = np.flatnonzero(self._file.table >= 0).astype(np.int32)
            for ids in np.split(stored, range(_ROWS_AT_ONCE, len(stored), _ROWS_AT_ONCE)):
                total.update(ids.tobytes())
                for leaf in jax.tree.leaves(self._file.read(ids)[0]):
                    total.update(leaf.tobytes())


@partial(jax.jit, donate_argnames=("rows",))
def compute_first_rows(algorithm: Algorithm, problem: PartySubset, rows: PartyState, slots: Int[Array, " M"],
                       count: Int[Array, ""], seed: Int[Array, ""]) -> PartyState:
    """Replace the rows of the first ``count`` of ``slots`` by the first states of ``engine.initial_state``."""
    key = keys.initial_key(seed)
    w0 = problem.init(key)

    def compute(i: Array, rows: PartyState) -> PartyState:
        k = problem.numbers[slots[i]]
        row = initial_party(algorithm, w0, problem.oracle(k), key, k)
        return jax.tree.map(lambda column, leaf: column.at[slots[i]].set(leaf.astype(column.dtype)), rows, row)

    return jax.lax.fori_loop(0, count, compute, rows)
