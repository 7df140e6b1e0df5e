"""Checkpoints: when a run writes them, how it continues from one, and their files.

There is a folder per checkpoint, named after the number of rounds. ``state.safetensors`` has the state,
``metrics.parquet`` the metrics, and ``run.json`` what identifies the run, the facts, and the digests of the other files
and of itself. The last two checkpoints of a run are on the disk, so that a run continues from the one before if the
newest is damaged.
"""

import contextlib
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from resolvent.data.files.atomic_files import finish_before_interruption, hidden_sibling, remove_folder, sync_to_disk
from resolvent.data.files.data_files import read_parquet
from resolvent.data.files.digests import DamagedFileError, check_files, file_digests, read_sealed, write_sealed
from resolvent.errors import InputError
from resolvent.simulator.checkpoint.identity import STORED_KEYS, RunIdentity, identity_of
from resolvent.simulator.measurements import Measurements
from resolvent.simulator.mesh import from_writer, gather_over_processes
from resolvent.simulator.plan import Plan
from resolvent.simulator.storage.storage import Storage
from resolvent.simulator.storage.tree_files import join_blocks, read_tree, write_tree

if TYPE_CHECKING:
    import pandas as pd

_STATE, _METRICS, _RUN = "state.safetensors", "metrics.parquet", "run.json"
_ADVICE = "this checkpoint cannot be used"
_MAX_SHARE = 0.05  # of the run time, for writing


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
        state = read_tree(path / _STATE, like)
        return cls(run["rounds"], state, read_parquet(path / _METRICS), run["facts"])


def _name(rounds: int) -> str:
    return f"{rounds:09d}"


def _folder_of(folder: Path, rounds: int) -> Path:
    return folder / _name(rounds)


class RunCheckpoints:
    """The checkpoints of one run; without a folder, nothing is written.

    Attributes:
        is_writer: whether this process, of several, writes the checkpoints of all.
    """

    def __init__(self, plan: Plan, storage: Storage, measurements: Measurements) -> None:
        self.is_writer = jax.process_index() == 0
        self._plan, self._folder, self._storage, self._measurements = (
            plan, plan.checkpoint.folder, storage, measurements)
        self._identity = None if self._folder is None else identity_of(plan)
        self._timer = CheckpointTimer()
        self._previous: int | None = None  # rounds of the checkpoint that this run wrote or continued from

    def restore(self) -> int:
        """Continue from the newest checkpoint if the plan says so. Returns the number of rounds that are done."""
        if self._folder is None or self._identity is None or not self._plan.checkpoint.resume:
            return 0
        checkpoint = Checkpoint.read(self._folder, self._storage.checkpoint_state(), self._identity)
        if checkpoint is None:
            return 0
        if checkpoint.rounds > self._plan.rounds:
            raise InputError(f"the checkpoint in {self._folder} is of round {checkpoint.rounds}, beyond "
                             f"rounds={self._plan.rounds}")
        self._storage.restore(checkpoint.state, dict(checkpoint.facts), checkpoint.rounds)
        self._measurements.restore(checkpoint.metrics, dict(checkpoint.facts), checkpoint.rounds)
        self._previous = checkpoint.rounds
        return checkpoint.rounds

    def write_if_due(self, rounds: int, *, must_write: bool = False) -> None:
        """Write a checkpoint after this number of rounds, if it is time, after the last round, or if it must."""
        if self._folder is None or self._identity is None or not (self.is_writer or self._storage.is_shared):
            return
        # Rows of party states on the host cannot be reused before the next checkpoint: one is written after every
        # evaluation at least. One before each call of a callback makes sure that a resumed run does not repeat it.
        at_evaluations = self._plan.memory == "host" or bool(self._plan.callbacks)
        must_write |= rounds == self._plan.rounds or (at_evaluations and rounds % self._plan.evaluation.every == 0)
        is_due = must_write or self._timer.is_due()
        if self._storage.is_shared and not must_write:
            is_due = bool(from_writer(is_due))  # processes have different clocks
        if not is_due:
            return
        if not self.is_writer:
            join_blocks(self._storage.checkpoint_state())
            return
        with self._timer.writing(), finish_before_interruption():
            facts = self._measurements.facts() | self._storage.facts()
            Checkpoint(rounds, self._storage.checkpoint_state(), self._measurements.metrics(), facts).write(
                self._folder, self._identity, self._previous)
            self._storage.confirm_checkpoint()
        self._previous = rounds

    def barrier(self, rounds: int) -> None:
        """Wait for all processes."""
        if self._folder is None or jax.process_count() == 1:
            return
        rounds_of_processes = gather_over_processes(np.array(rounds))
        if (rounds_of_processes != rounds).any():
            raise InputError(f"the processes read checkpoints of different rounds, {rounds_of_processes.tolist()}: all "
                             f"must see the folder {self._folder}")


class CheckpointTimer:
    """Says when to write again, so that writing takes at most 5 % of the run time."""

    _due = 0.0

    def is_due(self) -> bool:
        """Whether it is time to write; the first time it is."""
        return time.monotonic() >= self._due

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Time the writing in the block; the pause until the next writing is proportional to it."""
        begin = time.monotonic()
        yield
        end = time.monotonic()
        self._due = end + (1 / _MAX_SHARE - 1) * (end - begin)
