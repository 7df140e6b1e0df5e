"""Where the parties' data and states live during a run: all on the device, or on the host (``host.py``).

Both run the same compiled rounds and come to the same bits.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from numpy.typing import NDArray

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.participation import Participation
from resolvent.problem.problem import Problem
from resolvent.simulate.engine import Chunk, Federation, initial
from resolvent.simulate.schedulers import Scheduler
from resolvent.simulate.tree_files import digest

__all__ = ["DeviceStorage", "Memory", "Place", "Step"]

Place: TypeAlias = Literal["auto", "device", "host"]
Step: TypeAlias = Callable[[Problem, Participation, Federation, int, int], Chunk]


class Memory(ABC):
    """What a run asks of the place where its parties' data and states are.

    Attributes:
        problem: on which models are evaluated.
        evaluated: [M] the numbers of the parties whose models are.
        capacity: the most rounds that are run in one call.
        identity: what tells this problem in this place from another.
    """

    problem: Problem
    evaluated: NDArray[np.int32]
    capacity: int
    identity: tuple[Any, ...]

    @abstractmethod
    def example(self) -> tuple[Problem, Participation, Federation]:
        """What the first call of ``step`` is given."""

    @abstractmethod
    def advance(self, step: Step, start: int, count: int) -> Chunk:
        """Run rounds start, ..., start+count-1."""

    @abstractmethod
    def state(self) -> Federation:
        """The state now, with the rows of at least the parties that are evaluated."""

    @property
    @abstractmethod
    def cohort_problem(self) -> Problem:
        """A problem that has at least the last cohort's parties."""

    @abstractmethod
    def whole(self) -> Federation:
        """The state for the result."""

    @abstractmethod
    def kept(self) -> PyTree[Any]:
        """What a checkpoint must hold."""

    @abstractmethod
    def restore(self, kept: PyTree[Any], facts: dict[str, Any], done: int) -> None:
        """Go on from a checkpoint of so many rounds."""

    def facts(self) -> dict[str, Any]:
        """What a checkpoint must say beside."""
        return {}

    @abstractmethod
    def checkpointed(self) -> None:
        """The last ``kept`` is safely on the disk."""

    def digest(self) -> str:
        """SHA-256 of the state."""
        return digest(self.state())


class DeviceStorage(Memory):
    """All parties' data and states are arrays on the device."""

    def __init__(self, algorithm: Algorithm, problem: Problem, training: Problem, who: Participation, seed: int,
                 every: int, evaluated: NDArray[np.int32], how: Scheduler) -> None:
        self.problem, self.evaluated, self.capacity, self.identity = problem, evaluated, every, (problem,)
        self._how = how
        self._state: Federation = initial(algorithm, training, who, jnp.array(seed))
        self._training, self._who, self._placed = how.place((training, who, self._state))

    def example(self) -> tuple[Problem, Participation, Federation]:
        """Everybody."""
        return self._training, self._who, self._placed

    def advance(self, step: Step, start: int, count: int) -> Chunk:
        """One call."""
        chunk = step(self._training, self._who, self._placed, start, count)
        jax.tree.leaves(chunk.record)[0].block_until_ready()
        self._placed = chunk.state
        fetched: Chunk = self._how.fetch(chunk)
        self._state = fetched.state
        return fetched

    def state(self) -> Federation:
        """Everybody's."""
        return self._state

    @property
    def cohort_problem(self) -> Problem:
        """Everybody's."""
        return self.problem

    def whole(self) -> Federation:
        """Everybody's."""
        return self._state

    def kept(self) -> Federation:
        """The state."""
        return self._state

    def restore(self, kept: Federation, facts: dict[str, Any], done: int) -> None:
        """The state of then."""
        self._state, self._placed = kept, self._how.place(kept)

    def checkpointed(self) -> None:
        """Nothing more is to be done: a checkpoint holds everything."""
