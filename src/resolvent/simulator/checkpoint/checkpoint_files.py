"""The files of a checkpoint: a folder per checkpoint, named after the number of rounds.

``state.safetensors`` has the state, ``metrics.parquet`` the metrics, and ``run.json`` what identifies the run, the
facts, and the digests of the other files and of itself. The last two checkpoints of a run are on the disk, so that a
run continues from the one before if the newest is damaged.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxtyping import PyTree

from resolvent.data.files.atomic_files import finish_before_interruption, hidden_sibling, remove_folder, sync_to_disk
from resolvent.data.files.digests import DamagedFileError, check_files, file_digests, read_sealed, write_sealed
from resolvent.data.files.parquet import read_parquet
from resolvent.errors import InputError
from resolvent.simulator.checkpoint.identity import STORED_KEYS, RunIdentity
from resolvent.simulator.storage.tree_files import read_tree, write_tree

if TYPE_CHECKING:
    import pandas as pd

_STATE, _METRICS, _RUN = "state.safetensors", "metrics.parquet", "run.json"
_ADVICE = "this checkpoint cannot be used"


class Checkpoint(NamedTuple):
    """A run after some rounds.

    Attributes:
        rounds: number of rounds so far.
        state: what the next round needs.
        metrics: all metrics so far.
        facts: seconds, bytes and other facts that JSON can hold.
    """

    rounds: int
    state: PyTree[Any]
    metrics: "pd.DataFrame"
    facts: Mapping[str, Any]

    def write(self, folder: Path, identity: RunIdentity, previous: int | None = None) -> None:
        """Write the checkpoint, then remove all but this and the previous one.

        A kill at any moment leaves a complete checkpoint, if there was one. An interruption waits until the end.

        Args:
            previous: number of rounds of the checkpoint that this run wrote or continued from, if there is one.
        """
        with finish_before_interruption():
            folder.mkdir(parents=True, exist_ok=True)
            target = _folder_of(folder, self.rounds)
            partial = hidden_sibling(target, "partial")
            remove_folder(partial)
            partial.mkdir()
            try:
                self._write_files(partial, identity)
                remove_folder(target)
                partial.rename(target)
            except OSError:
                remove_folder(partial)  # it may have filled the disk
                raise
            sync_to_disk(folder)  # the new name must be on the disk before old checkpoints are removed
            names = {target.name, *(() if previous is None else (_folder_of(folder, previous).name,))}
            for other in folder.iterdir():
                if other.name not in names:
                    remove_folder(other)

    def _write_files(self, folder: Path, identity: RunIdentity) -> None:
        self.metrics.to_parquet(folder / _METRICS, index=False)
        sync_to_disk(folder / _METRICS)
        write_tree(folder / _STATE, self.state)
        write_sealed(folder / _RUN, {
            "rounds": self.rounds, **identity.as_json(),
            "facts": dict(self.facts), "files": file_digests(folder, (_STATE, _METRICS))})
        sync_to_disk(folder)

    @classmethod
    def read(cls, folder: Path, like: PyTree[Any], identity: RunIdentity) -> "Checkpoint | None":
        """The newest checkpoint in a folder that is whole, or None if there is no checkpoint.

        Args:
            like: a tree with the structure, shapes and dtypes of the state.
            identity: identity of the run that continues.

        Warns:
            UserWarning: the versions differ, or a newer checkpoint is damaged.
        """
        paths = [p for p in folder.glob("[0-9]*") if p.is_dir()] if folder.is_dir() else []
        damages: list[str] = []
        for path in sorted(paths, key=lambda p: (len(p.name), p.name), reverse=True):
            try:
                checkpoint = cls._read(path, like, identity)
            except DamagedFileError as error:
                damages.append(str(error))
                continue
            if damages:
                warnings.warn(f"{damages[0]}; the run continues from the checkpoint before it, of round "
                              f"{checkpoint.rounds}", stacklevel=2)
            return checkpoint
        if damages:
            raise InputError(f"{'; '.join(damages)}; start afresh without resume")
        return None

    @classmethod
    def _read(cls, path: Path, like: PyTree[Any], identity: RunIdentity) -> "Checkpoint":
        run = read_sealed(path / _RUN, _ADVICE)
        if not {"rounds", "facts", "files", *STORED_KEYS} <= set(run) or path.name != _name(run["rounds"]):
            raise DamagedFileError(f"{path / _RUN} does not belong to this checkpoint: {_ADVICE}")
        # Before the state is read: the leaves of another run would be reported as a damaged file.
        identity.check(RunIdentity.from_json(run), path)
        check_files(path, run["files"], _ADVICE)
        state, _ = read_tree(path / _STATE, like)
        return cls(run["rounds"], state, read_parquet(path / _METRICS), run["facts"])


def _name(rounds: int) -> str:
    return f"{rounds:09d}"


def _folder_of(folder: Path, rounds: int) -> Path:
    return folder / _name(rounds)
