"""Arrays of which this process has only the rows of some parties."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from resolvent.data.federated import SPLITS, FederatedData
from resolvent.data.files.array_files import PackedArray, RowArray
from resolvent.errors import InputError


class OwnRows(RowArray):
    """An array [total, ...] that has some blocks of its rows in memory, and no others."""

    def __init__(self, array: NDArray[Any], blocks: Sequence[tuple[int, int]], digest: str) -> None:
        """Copy blocks of the rows of a whole array: pairs of the first row and the number of rows."""
        is_integer = array.dtype.kind in "iu" and array.size
        super().__init__(array.shape, array.dtype, digest,
                         (int(array.min()), int(array.max())) if is_integer else (0, 0))
        first, count = np.array(sorted(block for block in blocks if block[1]), np.int64).reshape(-1, 2).T
        self._first, self._end = first, first + count
        self._position = np.concatenate([[0], np.cumsum(count)])
        self._rows = np.empty((int(self._position[-1]), *array.shape[1:]), array.dtype)
        for start, stop, position in zip(first, self._end, self._position, strict=False):
            self._rows[position:position + stop - start] = array[start:stop]

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        start, stop, _ = rows.indices(len(self))
        block = int(np.searchsorted(self._first, start, side="right")) - 1
        if stop > start and (block < 0 or stop > self._end[block]):
            raise InputError(f"the rows {start} to {stop - 1} belong to a party of another process: ask for the "
                             "samples of this process's parties only")
        offset = self._position[block] - self._first[block] if stop > start else 0
        return self._rows[start + offset:stop + offset] if stop > start else self._rows[:0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        raise InputError("the samples of all parties were asked for, and this process has those of its own parties "
                         "only")


def keep_parties(data: FederatedData, parties: NDArray[np.integer], digests: tuple[Any, Any]) -> FederatedData:
    """The same data, of which only the samples of some parties are in memory; data on disk stay as they are.

    Args:
        parties: ids of the parties whose samples are kept.
        digests: a text for each array of the inputs and of the labels, which identifies its rows of all parties.
    """
    if any(isinstance(leaf, PackedArray) for leaf in jax.tree.leaves(data.x)):
        return data
    blocks = [(int(data.splits[s].offset[k]), int(data.splits[s].length[k])) for k in parties for s in SPLITS]
    x, y = jax.tree.map(lambda array, digest: OwnRows(array, blocks, digest), (data.x, data.y), digests)
    return replace(data, x=x, y=y)
