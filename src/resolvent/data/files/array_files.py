"""Arrays in ``.npy`` files that are written and read by rows, so that they may exceed the memory."""

import hashlib
import math
import os
import weakref
import zlib
from collections.abc import Sequence
from pathlib import Path
from tokenize import TokenError
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from resolvent.errors import InputError, shorten

_BUFFER_BYTES = 2**20


class Blocks(NamedTuple):
    """Blocks of rows, one after the other, each with a checksum.

    Attributes:
        bounds: [B + 1] first row of each block, and the number of rows; ascending.
        checksums: [B] CRC-32 of each block's bytes.
    """

    bounds: NDArray[np.int64]
    checksums: NDArray[np.uint32]


class RowArray:
    """An array [total, ...] whose rows are not all in memory.

    Attributes:
        digest: a text that identifies the content of the whole array.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], digest: str, limits: Sequence[int]) -> None:
        self.shape, self.dtype, self.digest, self._limits = shape, dtype, digest, limits

    def __len__(self) -> int:
        return int(self.shape[0])

    @property
    def ndim(self) -> int:
        """Number of axes, that of the rows included."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements of all rows."""
        return math.prod(self.shape)

    def min(self) -> int:
        """The minimum of the whole array, if it has integers."""
        return int(self._limits[0])

    def max(self) -> int:
        """The maximum of the whole array, if it has integers."""
        return int(self._limits[1])


class PackedArray(RowArray):
    """An array [total, ...] in an ``.npy`` file, whose rows are read when they are indexed.

    The file is read, not memory-mapped: the pages of a map count as memory of this process; and if a mapped file is
    truncated, or the disk is full, an access kills the process, whereas reading raises an error. Every whole block that
    is read is checked. Rows are float32 if stored numbers are scaled, and otherwise of the stored type.
    """

    def __init__(self, path: Path, blocks: Blocks, *, scale: float = 1.0, limits: Sequence[int] = (0, 0),
                 digest: str = "") -> None:
        self._path, self._blocks, self._scale = path, blocks, scale
        try:
            with path.open("rb") as file:
                np.lib.format.read_magic(file)
                shape, _, self._stored = np.lib.format.read_array_header_2_0(file)
                self._data_offset = file.tell()
        except (OSError, ValueError, TokenError) as error:  # NumPy parses the header as Python
            raise InputError(f"{path} cannot be read: {shorten(error)}. Write the data again") from error
        self._file = open_until_collected(self, path, os.O_RDONLY)
        super().__init__(shape, np.dtype(np.float32) if scale != 1 else self._stored, digest, limits)
        self._row_bytes = self._stored.itemsize * math.prod(self.shape[1:])
        size, expected = os.fstat(self._file).st_size, self._data_offset + self.nbytes_stored
        if not digest.endswith(_description(self._stored, len(self), self.shape[1:])):
            raise InputError(f"{path} has {len(self)} rows of {self._stored}{list(self.shape[1:])}, which is not what "
                             "was written: it is damaged, write the data again")
        if size != expected:
            raise InputError(f"{path} has {size} bytes, and its {len(self)} rows need {expected}: it is damaged, write "
                             "the data again")

    @property
    def nbytes_stored(self) -> int:
        """Number of bytes on disk, without the header."""
        return len(self) * self._row_bytes

    def __getitem__(self, rows: slice | ArrayLike) -> NDArray[Any]:
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            stored = np.empty((max(stop - start, 0), *self.shape[1:]), self._stored)
            read_exactly(self._file, stored, self._data_offset + start * self._row_bytes, self._path)
            self._check(stored, start, stop)
            return self._scaled(stored)[::step]
        numbers = np.arange(len(self))[np.asarray(rows)]
        return np.concatenate([self[k:k + 1] for k in numbers.ravel()]).reshape(*numbers.shape, *self.shape[1:])

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        array = self[:]
        return array if dtype is None else array.astype(dtype, copy=False)

    def astype(self, dtype: DTypeLike, copy: bool = False) -> NDArray[Any]:
        """All rows, in memory, in another type. They are a copy of those in the file in any case."""
        return self[:].astype(dtype, copy=False)

    def _check(self, stored: NDArray[Any], start: int, stop: int) -> None:
        """Check the whole blocks among the rows from ``start`` to ``stop``."""
        bounds = self._blocks.bounds
        first, last = np.searchsorted(bounds, start), np.searchsorted(bounds, stop, side="right") - 1
        for i in range(first, last):
            low, high = bounds[i], bounds[i + 1]
            if _checksum(stored[low - start:high - start]) != self._blocks.checksums[i]:
                raise InputError(f"{self._path}: the rows {low} to {high - 1} are not what was written: the file is "
                                 "damaged, write the data again")

    def _scaled(self, stored: NDArray[Any]) -> NDArray[Any]:
        return stored if self._scale == 1 else stored.astype(np.float32) * np.float32(self._scale)


class ArrayWriter:
    """A context manager that writes an ``.npy`` file row by row.

    Attributes:
        shape: shape of one row; empty before the first rows.
        limits: minimum and maximum of the numbers so far, if they are integers; otherwise [0, 0].
        checksums: CRC-32 of each block so far.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=_BUFFER_BYTES)
        self.shape: tuple[int, ...] = ()
        self._dtype: np.dtype[Any] | None = None
        self._rows = 0
        self.limits = [0, 0]
        self.checksums: list[int] = []
        self._sha256 = hashlib.sha256()

    def __enter__(self) -> "ArrayWriter":
        return self

    def __exit__(self, *failure: object) -> None:
        with self._file:
            if self._dtype is not None and failure[0] is None:
                end = self._file.tell()
                self._file.seek(0)
                self._write_header()  # of the same length: NumPy leaves room for the first axis to grow
                self._file.seek(end)
                self._file.flush()
                os.fsync(self._file.fileno())

    def append(self, rows: NDArray[Any], party: str, sizes: Sequence[int]) -> None:
        """Write the rows of a party."""
        if self._dtype is None:
            self.shape, self._dtype = rows.shape[1:], rows.dtype
            self._write_header()
        if rows.dtype != self._dtype:
            raise InputError(f"party {shorten(repr(party))} has numbers of type {shorten(rows.dtype)}, "
                             f"the first party's are {shorten(self._dtype)}: give all numbers one type")
        if rows.dtype.kind in "iu":
            low, high = int(rows.min()), int(rows.max())
            self.limits = [min(low, self.limits[0]), max(high, self.limits[1])] if self._rows else [low, high]
        whole = np.ascontiguousarray(rows)
        self._file.write(whole.data)
        self._sha256.update(whole.data)
        self.checksums += [_checksum(block) for block in np.split(whole, np.cumsum(sizes)[:-1])]
        self._rows += len(rows)

    @property
    def digest(self) -> str:
        """A text that identifies the content: SHA-256 of the numbers, their type, and the shape."""
        return f"{self._sha256.hexdigest()} {_description(self._dtype, self._rows, self.shape)}"

    def _write_header(self) -> None:
        assert self._dtype is not None
        np.lib.format.write_array_header_2_0(self._file, {
            "descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False,
            "shape": (self._rows, *self.shape)})


def _description(dtype: np.dtype[Any] | None, rows: int, shape: tuple[int, ...]) -> str:
    return f"{dtype} {rows} {shape}"


def _checksum(rows: NDArray[Any]) -> int:
    return zlib.crc32(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)


def open_until_collected(owner: object, path: Path, flags: int) -> int:
    """Open a file and return its descriptor, which is closed when ``owner`` is garbage-collected."""
    file = os.open(path, flags, 0o644)
    weakref.finalize(owner, os.close, file)
    return file


def read_exactly(file: int, into: NDArray[Any], offset: int, path: Path) -> None:
    """Fill an array with the bytes of a file from ``offset`` on, whatever the file's position."""
    remaining = into.reshape(-1).view(np.uint8).data
    while remaining:
        count = os.preadv(file, [remaining], offset)
        if not count:
            raise InputError(f"{path} ends at byte {offset}, and {len(remaining)} more were expected: it is damaged, "
                             "write the data again")
        remaining, offset = remaining[count:], offset + count
