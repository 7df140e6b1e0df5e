"""The parties' states on the host: rows of a file, which are computed when a party takes part for the first time."""

import hashlib
import shutil
import uuid
import weakref
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
from resolvent.data.files.atomic_files import sync_to_disk
from resolvent.data.files.folder_lock import make_temporary_folder
from resolvent.problem.subset import PartySubset
from resolvent.simulator.storage.row_file import RowFile

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
