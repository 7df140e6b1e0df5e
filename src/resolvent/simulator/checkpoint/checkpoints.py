"""When a run writes its checkpoints, and how it continues from one."""

import contextlib
import time
from collections.abc import Iterator

import jax
import numpy as np

from resolvent.data.files.atomic_files import finish_before_interruption
from resolvent.errors import InputError
from resolvent.simulator.checkpoint.checkpoint_files import Checkpoint
from resolvent.simulator.checkpoint.identity import identity_of
from resolvent.simulator.measurements import Measurements
from resolvent.simulator.mesh import from_writer, gather_over_processes
from resolvent.simulator.plan import Plan
from resolvent.simulator.storage.storage import Storage
from resolvent.simulator.storage.tree_files import join_blocks


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
    """Says when to write again, so that writing takes at most a fraction of the run time.

    Args:
        fraction: largest fraction of the run time that writing takes, in (0, 1).
    """

    def __init__(self, fraction: float = 0.05) -> None:
        self._pause_per_second = 1 / fraction - 1
        self._due = 0.0

    def is_due(self) -> bool:
        """Whether it is time to write; the first time it is."""
        return time.monotonic() >= self._due

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Time the writing in the block; the pause until the next writing is proportional to it."""
        begin = time.monotonic()
        yield
        end = time.monotonic()
        self._due = end + self._pause_per_second * (end - begin)
