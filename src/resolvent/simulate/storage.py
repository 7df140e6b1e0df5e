"""Where the parties' data and states are during a run: on the device, or on the host (``host_storage``).

Both run the same compiled rounds, with bit-identical results.
"""

from abc import ABC, abstractmethod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from typing_extensions import override

from resolvent.algorithms.cohort import check_ids
from resolvent.problem.problem import Problem
from resolvent.simulate.chunks import ChunkInputs, ChunkRunner
from resolvent.simulate.engine import initial_state
from resolvent.simulate.plan import Plan
from resolvent.simulate.schedulers import Scheduler
from resolvent.simulate.states import Chunk, Federation
from resolvent.simulate.tree_files import digest

__all__ = ["DeviceStorage", "Storage"]

_MAX_RECORDS = 2**20  # of parties in the record of a compiled call; a record has about 10 bytes


class Storage(ABC):
    """Holds the data and the states of a run, and runs rounds on them.

    Attributes:
        problem: the problem on which models are evaluated.
        capacity: the maximum number of rounds in one compiled call.
    """

    problem: Problem
    capacity: int

    @abstractmethod
    def first_inputs(self) -> ChunkInputs:
        """The inputs of the first compiled call."""

    @abstractmethod
    def advance(self, run_chunk: ChunkRunner, start: int, end: int, limit: int) -> tuple[Chunk, int]:
        """Run rounds start, start+1, ... in one compiled call, and keep the state after them.

        Args:
            run_chunk: runs the rounds.
            start: number of the first round.
            end: number of the round at which the call must end at the latest.
            limit: the preferred maximum number of rounds.

        Returns:
            The result of the call, and the number of rounds that it ran.
        """

    @abstractmethod
    def evaluated_state(self) -> Federation:
        """The current state, with the rows of at least the parties that are evaluated."""

    @property
    @abstractmethod
    def cohort_problem(self) -> Problem:
        """A problem with at least the parties of the last cohort."""

    @abstractmethod
    def final_state(self) -> Federation:
        """The state for the result of the run."""

    @abstractmethod
    def checkpoint_state(self) -> PyTree[Any]:
        """The arrays that a checkpoint must have."""

    def facts(self) -> dict[str, Any]:
        """Other facts that a checkpoint must have."""
        return {}

    @abstractmethod
    def restore(self, state: PyTree[Any], facts: dict[str, Any], rounds: int) -> None:
        """Continue from a checkpoint after this number of rounds."""

    @abstractmethod
    def confirm_checkpoint(self) -> None:
        """Called when the last ``checkpoint_state`` is on the disk."""

    def digest(self) -> str:
        """SHA-256 of the state."""
        return digest(self.evaluated_state())


class DeviceStorage(Storage):
    """All parties' data and states are arrays on the device."""

    def __init__(self, plan: Plan, problem: Problem, scheduler: Scheduler) -> None:
        """Compute the first state and copy everything to the scheduler's devices.

        Args:
            plan: the plan of the run.
            problem: the problem of all parties.
            scheduler: the scheduler of the first rounds.
        """
        self.problem = problem
        self.capacity = max(1, min(plan.evaluation.every, plan.rounds, _MAX_RECORDS // plan.cohort_size))
        self._scheduler = scheduler
        training = problem.pooled() if plan.pools_data else problem
        participation = plan.training_participation
        self._state: Federation = initial_state(plan.algorithm, training, participation, jnp.array(plan.seed))
        self._inputs = ChunkInputs(*scheduler.to_devices((training, participation, self._state)))

    @override
    def first_inputs(self) -> ChunkInputs:
        return self._inputs

    @override
    def advance(self, run_chunk: ChunkRunner, start: int, end: int, limit: int) -> tuple[Chunk, int]:
        rounds = min(end - start, limit, self.capacity)
        chunk = run_chunk(self._inputs, start, rounds)
        jax.tree.leaves(chunk.record)[0].block_until_ready()
        self._inputs = self._inputs._replace(state=chunk.state)
        local: Chunk = self._scheduler.from_devices(chunk)
        check_ids(np.asarray(local.record.index)[:rounds], parties=self._inputs.problem.parties,
                  owner=type(self._inputs.participation).__name__, start=start)
        self._state = local.state
        return local, rounds

    @override
    def evaluated_state(self) -> Federation:
        return self._state

    @property
    @override
    def cohort_problem(self) -> Problem:
        return self.problem

    @override
    def final_state(self) -> Federation:
        return self._state

    @override
    def checkpoint_state(self) -> Federation:
        return self._state

    @override
    def restore(self, state: Federation, facts: dict[str, Any], rounds: int) -> None:
        self._state = state
        self._inputs = self._inputs._replace(state=self._scheduler.to_devices(state))

    @override
    def confirm_checkpoint(self) -> None:
        pass
