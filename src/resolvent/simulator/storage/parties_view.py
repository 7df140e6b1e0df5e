"""The parties of a run after its last round, wherever they are: on the device, on the host, in several processes."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import override

from resolvent.algorithms.algorithm import Algorithm, PartyState
from resolvent.math.tree import Vector
from resolvent.problem.problem import Problem
from resolvent.simulator.engine.evaluate import personal_models
from resolvent.simulator.states import Federation


class SampledParties(NamedTuple):
    """Parties whose samples this process has on one device.

    Attributes:
        positions: [m] their positions among the parties that were asked for.
    """

    problem: Problem
    positions: NDArray[np.intp]


class PartiesView(ABC):
    """The models and the samples of the parties of a run.

    Attributes:
        is_shared: whether every process has a part only. Then all processes must call the methods in the same order,
            with the same arguments.
    """

    is_shared: bool = False

    @abstractmethod
    def party_ids(self) -> NDArray[np.integer]:
        """Ids of the parties whose samples the run has evaluated, in one of its processes; ascending."""

    @abstractmethod
    def personal_models(self, algorithm: Algorithm, ids: NDArray[np.integer]) -> Vector:
        """The models that these parties use: leaves [M, ...]."""

    @abstractmethod
    def sampled_parties(self, ids: NDArray[np.integer]) -> list[SampledParties]:
        """Those of these parties whose samples this process has, by device."""

    def sum_over_processes(self, values: NDArray[Any]) -> NDArray[Any]:
        """The sum of the arrays of all processes, each of which has the entries of its own parties."""
        return values


class DeviceParties(PartiesView):
    """All parties are on the device."""

    def __init__(self, problem: Problem, state: Federation) -> None:
        self._problem, self._state = problem, state

    @override
    def party_ids(self) -> NDArray[np.integer]:
        return self._problem.party_ids()

    @override
    def personal_models(self, algorithm: Algorithm, ids: NDArray[np.integer]) -> Vector:
        models: Vector = personal_models(algorithm, self._problem, self._state, jnp.asarray(ids))
        return models

    @override
    def sampled_parties(self, ids: NDArray[np.integer]) -> list[SampledParties]:
        return [SampledParties(self._problem, np.arange(len(ids)))]


class CollectedModels(PartiesView):
    """All personal models are in this process, as they were when they were collected.

    Args:
        models: leaves [N, ...].
    """

    def __init__(self, view: PartiesView, models: Vector) -> None:
        self._view, self._models = view, models

    @override
    def party_ids(self) -> NDArray[np.integer]:
        return self._view.party_ids()

    @override
    def personal_models(self, algorithm: Algorithm, ids: NDArray[np.integer]) -> Vector:
        models: Vector = jax.tree.map(lambda leaf: leaf[ids], self._models)
        return models

    @override
    def sampled_parties(self, ids: NDArray[np.integer]) -> list[SampledParties]:
        return self._view.sampled_parties(ids)

    @override
    def sum_over_processes(self, values: NDArray[Any]) -> NDArray[Any]:
        return self._view.sum_over_processes(values)


class PartyRows:
    """Parties' states that are not arrays of this process: ``rows[k]`` reads party k's, ``rows[[2, 5]]`` two, stacked.

    Args:
        read: ids [M] -> the states of these parties, leaves [M, ...].
    """

    def __init__(self, read: Callable[[NDArray[np.integer]], PartyState]) -> None:
        self._read = read

    def __getitem__(self, ids: ArrayLike) -> PartyState:
        """The rows of these parties; leaves have the shape of ``ids`` in front."""
        index = np.asarray(ids)
        return jax.tree.map(lambda leaf: leaf.reshape(*index.shape, *leaf.shape[1:]), self._read(index.ravel()))
