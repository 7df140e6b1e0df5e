"""A file of party states: one row for each party that has taken part, at the position that a table in memory has.

A checkpoint is a copy of the table. Rows to which the tables of the last two checkpoints point are never overwritten:
the next row of such a party goes to a free position, and its old position becomes free when two further checkpoints are
complete. A kill at any moment therefore leaves both checkpoints and all of their rows unchanged, and nothing has to be
undone.
"""

import os
import zlib
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree
from numpy.typing import NDArray

from resolvent.data.files.array_files import open_until_collected, read_exactly
from resolvent.errors import InputError

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
