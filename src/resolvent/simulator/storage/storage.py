"""Where the parties' data and states are during a run: on the device, or on the host (``host_storage``).

Both run the same compiled rounds, with bit-identical results.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PyTree
from numpy.typing import ArrayLike, NDArray
from typing_extensions import override

from resolvent.algorithms.algorithm import ServerState
from resolvent.problem.problem import Problem
from resolvent.simulator.engine.cohorts import CohortDraws, DrawnCohorts
from resolvent.simulator.engine.compiled_rounds import ChunkInputs, ChunkRunner, initial_state
from resolvent.simulator.mesh import local_view, replicate, replicate_constants
from resolvent.simulator.states import Chunk, Federation, Rounds
from resolvent.simulator.storage.parties_view import PartiesView
from resolvent.simulator.storage.tree_files import digest

_CALL_ROUNDS = 256  # the same for all runs, so that runs of other lengths are the same programs
_MAX_ROWS = 2**16  # rows of cohorts, and records of parties, in one compiled call


class EvaluationView(NamedTuple):
    """Evaluated parties whose data are on one device of this process.

    Attributes:
        state: the server's state and the states of these parties.
        parties: [m] their ids.
        positions: [m] their positions among all evaluated parties.
    """

    problem: Problem
    state: Federation
    parties: Int[Array, " m"]
    positions: NDArray[np.intp]


class CohortView(NamedTuple):
    """Parties of the last cohort whose data are on one device of this process.

    Attributes:
        models: their models before the aggregation, leaves [L, ...].
        parties: [L] their ids; the first m rows count.
        positions: [m] their positions in the cohort.
        server: the server's state after the round.
        server_before: the server's state before the round.
    """

    problem: Problem
    models: PyTree[Any]
    parties: Int[Array, " L"]
    positions: NDArray[np.intp]
    server: ServerState
    server_before: ServerState


class Storage(ABC):
    """Holds the data and the states of a run, and runs rounds on them.

    Attributes:
        problem: the problem on which models are evaluated.
        capacity: the maximum number of rounds in one compiled call.
        is_shared: whether every process has a part only. Then all processes must call ``collect``,
            ``checkpoint_state``, ``digest`` and the methods of the result together.
    """

    problem: Problem
    capacity: int
    is_shared: bool = False

    @abstractmethod
    def first_inputs(self) -> ChunkInputs:
        """The inputs of the first compiled call."""

    @abstractmethod
    def advance(self, run_chunk: ChunkRunner, start: int, end: int, limit: int) -> tuple[Chunk, int]:
        """Run rounds start, start+1, ... in one compiled call, and keep the state after them.

        Args:
            end: number of the round at which the call must end at the latest.

        Returns:
            The result of the call, and the number of rounds that it ran.
        """

    @abstractmethod
    def evaluated_parties(self) -> list[EvaluationView]:
        """The evaluated parties of this process in the current state, by device."""

    @abstractmethod
    def last_cohort(self, chunk: Chunk) -> list[CohortView]:
        """The parties of the last cohort of a chunk, by device."""

    def collect(self, positions: Sequence[NDArray[np.intp]], parts: Sequence[ArrayLike], size: int) -> NDArray[Any]:
        """An array [size, ...] from rows that the views have; of several processes, from the rows of all.

        Args:
            positions: for each view, the positions of its rows.
            parts: for each view, its rows; further rows are ignored.
        """
        arrays = [np.asarray(part) for part in parts]
        collected = np.zeros((size, *arrays[0].shape[1:]), arrays[0].dtype)
        for at, rows in zip(positions, arrays, strict=True):
            collected[at] = rows[:len(at)]
        return collected

    @abstractmethod
    def final_state(self) -> Federation:
        """The state for the result of the run."""

    @property
    def view(self) -> PartiesView | None:
        """The models and the samples of the parties; None if all of them are on the device."""
        return None

    @abstractmethod
    def checkpoint_state(self) -> PyTree[Any]:
        """The arrays that a checkpoint must have."""

    def facts(self) -> dict[str, Any]:
        """Other facts that a checkpoint must have."""
        return {}

    @abstractmethod
    def restore(self, state: PyTree[Any], facts: dict[str, Any], rounds: int) -> None:
        """Continue from a checkpoint after this number of rounds."""

    def confirm_checkpoint(self) -> None:  # noqa: B027 - most storages do nothing
        """Called when the last ``checkpoint_state`` is on the disk."""

    def digest(self) -> str:
        """SHA-256 of the states of the server and of the parties."""
        return digest(self.checkpoint_state())


class DeviceStorage(Storage):
    """All parties' data and states are arrays on devices between rounds; with a mesh, on each of its devices.

    Attributes:
        draw: draws the cohorts of a chunk.
    """

    def __init__(self, rounds: Rounds, training: Problem, evaluation: Problem, mesh: Mesh | None) -> None:
        """Compute the first state and copy everything to the devices.

        Args:
            training: the problem of the rounds.
            evaluation: the problem on which models are evaluated.
        """
        self.problem, self._mesh, self._evaluated = evaluation, mesh, jnp.asarray(rounds.evaluated)
        shares = self._begin(rounds, training.sizes)
        self._state: Federation = initial_state(rounds.algorithm, training, shares, jnp.array(rounds.seed))
        self._training = replicate_constants(training, mesh)
        self._device_state: Federation = replicate(self._state, mesh)

    def _begin(self, rounds: Rounds, sizes: Int[Array, " N"]) -> Float[Array, " N"]:
        """Draw the first cohorts of parties with these numbers of samples; returns the shares lambda_k."""
        self.capacity = call_capacity(rounds.participation.capacity(len(sizes)))
        self.draw = CohortDraws(rounds.participation, sizes, rounds.seed, self.capacity)
        self._first = self.draw(0, 1)
        return self._first.shares

    @override
    def first_inputs(self) -> ChunkInputs:
        return self._inputs(self._first)

    def _inputs(self, cohorts: DrawnCohorts) -> ChunkInputs:
        return ChunkInputs(self._training, replicate_constants(cohorts, self._mesh), self._device_state)

    @override
    def advance(self, run_chunk: ChunkRunner, start: int, end: int, limit: int) -> tuple[Chunk, int]:
        rounds = min(end - start, limit, self.capacity)
        chunk = run_chunk(self._inputs(self.draw(start, rounds)), start, rounds)
        jax.tree.leaves(chunk.record)[0].block_until_ready()
        self._device_state = chunk.state
        return self._local(chunk), rounds

    def _local(self, chunk: Chunk) -> Chunk:
        """The chunk as this process reads it."""
        local: Chunk = chunk if self._mesh is None else local_view(chunk)
        self._state = local.state
        return local

    @override
    def evaluated_parties(self) -> list[EvaluationView]:
        return [EvaluationView(self.problem, self._state, self._evaluated, np.arange(len(self._evaluated)))]

    @override
    def last_cohort(self, chunk: Chunk) -> list[CohortView]:
        return [whole_cohort(self.problem, chunk)]

    @override
    def final_state(self) -> Federation:
        return self._state

    @override
    def checkpoint_state(self) -> Federation:
        return self._state

    @override
    def restore(self, state: Federation, facts: dict[str, Any], rounds: int) -> None:
        self._state, self._device_state = state, replicate(state, self._mesh)


def call_capacity(cohort: int) -> int:
    """The maximum number of rounds with cohorts of this size in one compiled call, if all parties are on devices."""
    return max(1, min(_CALL_ROUNDS, _MAX_ROWS // cohort))


def whole_cohort(problem: Problem, chunk: Chunk) -> CohortView:
    """The view of a cohort whose parties are all on one device."""
    record = chunk.snapshot.record
    return CohortView(problem, chunk.snapshot.models, record.index, np.arange(len(record.index)), chunk.state.server,
                      chunk.snapshot.server_before)
