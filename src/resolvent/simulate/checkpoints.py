"""A run's checkpoints: when they are written, and how a run goes on from one."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from resolvent.errors import InputError
from resolvent.simulate.measure import Measurements
from resolvent.simulate.storage import Memory
from resolvent.simulate.tree_files import Checkpoint

__all__ = ["Pace", "RunCheckpoints"]


class RunCheckpoints:
    """The checkpoints of one run, in a folder or nowhere.

    Attributes:
        speaks: whether this process, of several, is the one that writes for all.
    """

    def __init__(self, folder: Path | None, place: Memory, measured: Measurements, fingerprint: Callable[[], str], *,
                 paced: bool) -> None:
        """Prepare.

        Args:
            folder: where checkpoints are; None: nowhere.
            place: what holds the state.
            measured: what holds the metrics.
            fingerprint: tells this run from every other; takes a look at all samples.
            paced: write as often as takes a twentieth of the time at most, not always.
        """
        self.speaks = jax.process_index() == 0
        self._folder, self._place, self._measured = folder, place, measured
        self._mark = "" if folder is None else fingerprint()
        self._paced, self._pace = paced, Pace()

    def restore(self, rounds: int) -> int:
        """Go on from the newest checkpoint; returns how many rounds are done, 0 where there is none.

        Raises:
            InputError: it is of another run, or of a later round than the last.
        """
        found = Checkpoint.read(self._folder, self._place.kept(), self._mark) if self._folder else None
        if found is None:
            return 0
        if found.rounds > rounds:
            raise InputError(f"the checkpoint in {self._folder} is of round {found.rounds}, beyond rounds={rounds}")
        self._place.restore(found.state, found.facts, found.rounds)
        self._measured.restore(found.metrics, found.facts)
        return found.rounds

    def keep(self, done: int, *, last: bool) -> None:
        """Write a checkpoint of so many rounds if it is time, and after the last in any case."""
        if self._folder is None or not self.speaks or (self._paced and not last and not self._pace.due()):
            return
        with self._pace.writing():
            Checkpoint(done, self._place.kept(), self._measured.metrics(),
                       self._measured.facts() | self._place.facts()).write(self._folder, self._mark)
            self._place.checkpointed()

    def agree(self, done: int) -> None:
        """Wait for all processes; refuse what would have them wait for one another for ever."""
        if self._folder is None or jax.process_count() == 1:
            return
        from jax.experimental import multihost_utils

        rounds = np.asarray(multihost_utils.process_allgather(jnp.array(done)))
        if (rounds != done).any():
            raise InputError(f"the processes found checkpoints of different rounds, {rounds.tolist()}: all must see "
                             f"the folder {self._folder}")


class Pace:
    """Says when it is time to write again, so that writing takes at most a share of all the time.

    Args:
        share: how much of the time, in (0, 1).
    """

    def __init__(self, share: float = 0.05) -> None:
        self._rest = 1 / share - 1
        self._due = 0.0

    def due(self) -> bool:
        """Whether it is time; the first time it is."""
        return time.monotonic() >= self._due

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Measures what is written within; the longer it takes the longer is the rest."""
        begin = time.monotonic()
        yield
        end = time.monotonic()
        self._due = end + self._rest * (end - begin)
