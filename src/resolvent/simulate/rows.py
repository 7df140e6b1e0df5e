"""The parties' states in a file: a row for each party that has taken part, found through a table in memory.

A checkpoint is the table. Rows that the last checkpoint's table points to are never written over: a party's next row
goes to a free place, and the old place is free once the next checkpoint is whole. So a kill at any moment leaves the
last checkpoint and every row that it points to as they were, and nothing has to be undone.
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

_CHECK = np.dtype([("party", "<i8"), ("crc", "<u4")])


class RowFile:
    """One row per party: leaves of fixed shapes, beside the party's number and a checksum.

    Attributes:
        path: the file.
        table: [N] in which place of the file a party's row lies; -1: it has none yet.
    """

    def __init__(self, path: Path, like: PyTree[Any], parties: int) -> None:
        """Begin an empty file; ``like`` is a row: leaves with shape and dtype."""
        self.path = path
        self._open(like)
        self.table = np.full(parties, -1, np.int32)
        self._kept = np.zeros(parties, bool)  # whose place the last checkpoint points to
        self._free: list[int] = []
        self._leaving: list[int] = []  # places that only the last checkpoint points to
        self._end = 0

    def _open(self, like: PyTree[Any]) -> None:
        leaves, self._structure = jax.tree.flatten(like)
        self.record = np.dtype([*_CHECK.descr, *((f"{i}", leaf.dtype, leaf.shape) for i, leaf in enumerate(leaves))])
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open_until_collected(self, self.path, os.O_RDWR | os.O_CREAT)

    def restore(self, table: NDArray[np.int32]) -> None:
        """Go on from a checkpoint's table.

        Raises:
            InputError: the file is not as long as the table says.
        """
        self.table = np.array(table, np.int32)
        self._kept = self.table >= 0
        used = self.table[self._kept]
        self._end = int(used.max(initial=-1)) + 1
        self._free, self._leaving = np.setdiff1d(np.arange(self._end), used).tolist(), []
        have, need = os.fstat(self._file).st_size, self._end * self.record.itemsize
        if have < need:
            raise InputError(f"{self.path} has {have} bytes, and the checkpoint needs {need} of it: it is damaged or "
                             "not the run's own; put it back, or start afresh without resume")

    def read(self, numbers: NDArray[np.int32]) -> tuple[PyTree[NDArray[Any]], NDArray[np.bool_]]:
        """The rows of some parties (leaves [M, ...], zero where there is none yet), and who has one: [M].

        Raises:
            InputError: a row is not what was written.
        """
        rows, places = np.zeros(len(numbers), self.record), self.table[numbers]
        for i in np.argsort(places):
            if places[i] < 0:
                continue
            read_exactly(self._file, rows[i:i + 1], int(places[i]) * self.record.itemsize, self.path)
            if rows["party"][i] != numbers[i] or rows["crc"][i] != _sum_of(rows[i:i + 1]):
                raise InputError(f"{self.path}: the state of party {numbers[i]} is not what was written: the file is "
                                 "damaged or not the run's own; put it back, or start afresh without resume")
        leaves = [np.ascontiguousarray(rows[name]) for name in self.record.names[2:]]  # type: ignore[index]
        return jax.tree.unflatten(self._structure, leaves), places >= 0

    def write(self, numbers: NDArray[np.int32], rows: PyTree[Any]) -> None:
        """Write the rows of some parties; what the last checkpoint points to stays.

        Raises:
            InputError: the disk is full, or fails.
        """
        records = np.zeros(len(numbers), self.record)
        records["party"] = numbers
        for name, leaf in zip(self.record.names[2:], jax.tree.leaves(rows), strict=True):  # type: ignore[index]
            records[name] = np.asarray(leaf)[:len(numbers)]
        for i, k in enumerate(numbers):
            records["crc"][i] = _sum_of(records[i:i + 1])
            self._write_at(self._place(int(k)) * self.record.itemsize, records[i:i + 1])

    def _place(self, k: int) -> int:
        """Where party k's next row goes."""
        old = int(self.table[k])
        if old >= 0 and not self._kept[k]:
            return old
        if self._free:
            new = self._free.pop()
        else:
            new, self._end = self._end, self._end + 1
        if old >= 0:
            self._leaving.append(old)
        self.table[k], self._kept[k] = new, False
        return new

    def _write_at(self, offset: int, record: NDArray[Any]) -> None:
        left = record.view(np.uint8).data
        try:
            while left:
                count = os.pwrite(self._file, left, offset)
                left, offset = left[count:], offset + count
        except OSError as error:
            raise InputError(f"{self.path} cannot be written: {error.strerror}. Make room and resume, or start afresh "
                             "with a checkpoint= (without one, a TMPDIR) on another disk") from error

    def sync(self) -> NDArray[np.int32]:
        """The table for a checkpoint, when all rows that it points to are on the disk."""
        os.fsync(self._file)
        return self.table.copy()

    def checkpointed(self) -> None:
        """A checkpoint with the present table is whole: what only the one before pointed to is free."""
        self._free += self._leaving
        self._leaving = []
        self._kept = self.table >= 0

    @property
    def bytes(self) -> int:
        """Bytes on the disk."""
        return os.fstat(self._file).st_blocks * 512


def _sum_of(record: NDArray[Any]) -> int:
    return zlib.crc32(record.view(np.uint8).data[_CHECK.itemsize:])
