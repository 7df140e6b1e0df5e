"""A file of party states: one row for each party that has taken part, at the position that a table in memory has.

A checkpoint is a copy of the table. Rows to which the last checkpoint's table points are never overwritten: the next
row of such a party goes to a free position, and its old position becomes free when the next checkpoint is complete. A
kill at any moment therefore leaves the last checkpoint and all of its rows unchanged, and nothing has to be undone.
"""

import os
import zlib
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree
from numpy.typing import NDArray

from resolvent.data.array_files import open_until_collected, read_exactly
from resolvent.errors import InputError

__all__ = ["RowFile"]

_HEADER = np.dtype([("party", "<i8"), ("crc", "<u4")])


class RowFile:
    """One row per party: leaves of fixed shapes, after the party's id and a checksum.

    Attributes:
        path: the file.
        table: [N] position of each party's row in the file; -1 for a party without a row.
    """

    def __init__(self, path: Path, like: PyTree[Any], parties: int) -> None:
        """Open a file, for a new table.

        Args:
            path: the file; it is made if it does not exist.
            like: a row: leaves with shape and dtype.
            parties: N, the number of parties.
        """
        self.path = path
        self._open(like)
        self.table = np.full(parties, -1, np.int32)
        self._in_checkpoint = np.zeros(parties, bool)  # whether the last checkpoint points to the party's present row
        self._free: list[int] = []
        self._free_after_checkpoint: list[int] = []
        self._end = 0

    def _open(self, like: PyTree[Any]) -> None:
        leaves, self._structure = jax.tree.flatten(like)
        self._record = np.dtype([*_HEADER.descr, *((f"{i}", leaf.dtype, leaf.shape) for i, leaf in enumerate(leaves))])
        self._fields = [f"{i}" for i in range(len(leaves))]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open_until_collected(self, self.path, os.O_RDWR | os.O_CREAT)

    def restore(self, table: NDArray[np.int32]) -> None:
        """Continue from a checkpoint's table.

        Raises:
            InputError: the file is shorter than the table says.
        """
        self.table = np.array(table, np.int32)
        self._in_checkpoint = self.table >= 0
        used = self.table[self._in_checkpoint]
        self._end = int(used.max(initial=-1)) + 1
        self._free, self._free_after_checkpoint = np.setdiff1d(np.arange(self._end), used).tolist(), []
        size, expected = os.fstat(self._file).st_size, self._end * self._record.itemsize
        if size < expected:
            raise InputError(f"{self.path} has {size} bytes, and the checkpoint needs {expected} of it: it is damaged "
                             "or belongs to another run; put it back, or start afresh without resume")

    def read(self, ids: NDArray[np.int32]) -> tuple[PyTree[NDArray[Any]], NDArray[np.bool_]]:
        """The rows of some parties (leaves [M, ...], zero for parties without a row), and [M] which have a row.

        Raises:
            InputError: a row is not what was written.
        """
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
        """Write the rows of some parties; further rows are ignored.

        Raises:
            InputError: the disk is full or has failed.
        """
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
        if old >= 0 and not self._in_checkpoint[k]:
            return old
        if self._free:
            new = self._free.pop()
        else:
            new, self._end = self._end, self._end + 1
        if old >= 0:
            self._free_after_checkpoint.append(old)
        self.table[k], self._in_checkpoint[k] = new, False
        return new

    def _write_at(self, offset: int, record: NDArray[Any]) -> None:
        remaining = record.view(np.uint8).data
        try:
            while remaining:
                count = os.pwrite(self._file, remaining, offset)
                remaining, offset = remaining[count:], offset + count
        except OSError as error:
            raise InputError(f"{self.path} cannot be written: {error.strerror}. Make room and resume, or start afresh "
                             "with a checkpoint= (without one, a TMPDIR) on another disk") from error

    def sync(self) -> NDArray[np.int32]:
        """The table for a checkpoint, once all rows to which it points are on the disk."""
        os.fsync(self._file)
        return self.table.copy()

    def confirm_checkpoint(self) -> None:
        """Called when a checkpoint with the present table is complete: the rows of the one before it are free."""
        self._free += self._free_after_checkpoint
        self._free_after_checkpoint = []
        self._in_checkpoint = self.table >= 0

    @property
    def bytes(self) -> int:
        """Bytes on the disk."""
        return os.fstat(self._file).st_blocks * 512


def _checksum(record: NDArray[Any]) -> int:
    return zlib.crc32(record.view(np.uint8).data[_HEADER.itemsize:])
