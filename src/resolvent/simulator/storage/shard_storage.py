"""Storage of a run in several processes: each has the data and the states of its own parties only.

Every party belongs to one device for the whole run. Data and states of a party are on no other device; what the devices
exchange in a round are the replies of its cohort.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Int, PyTree
from numpy.typing import ArrayLike, NDArray
from typing_extensions import override

from resolvent.algorithms.algorithm import Algorithm, PartyState
from resolvent.data.federated import SPLITS, FederatedData
from resolvent.data.files.own_rows import keep_parties
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.learning import LearningProblem
from resolvent.problem.models.model import Model
from resolvent.problem.subset import Gatherer
from resolvent.simulator.engine.cohort_parts import PartyShard, problem_specs
from resolvent.simulator.engine.compiled_rounds import initial_state
from resolvent.simulator.engine.evaluate import personal_models
from resolvent.simulator.mesh import (
    AXIS,
    DIVIDED,
    REPLICATED,
    concatenate,
    local_devices,
    local_view,
    mesh_of,
    on_every_device,
    replicate,
    sum_over_devices,
    sum_over_processes,
)
from resolvent.simulator.states import Chunk, Federation, Rounds, Snapshot
from resolvent.simulator.storage.parties_view import PartiesView, PartyRows, SampledParties
from resolvent.simulator.storage.storage import CohortView, DeviceStorage, EvaluationView
from resolvent.simulator.storage.tree_files import BlockedLeaf, digest_of_array


class ShardLayout(NamedTuple):
    """Which device has which parties.

    Attributes:
        mesh: the devices of all processes, along one axis.
        device_of: [N] number of the device of each party.
    """

    mesh: Mesh
    device_of: NDArray[np.int32]
    slots: int

    @classmethod
    def of_data(cls, data: FederatedData, mesh: Mesh) -> "ShardLayout":
        """The layout of these data; it depends on the parties' numbers of samples and of devices only."""
        device_of = assign_parties(_samples_of_parties(data), mesh.size)
        return cls(mesh, device_of, int(np.bincount(device_of).max()))

    def parties_of(self, device: int) -> NDArray[np.int32]:
        """The ids of a device's parties, ascending."""
        return np.flatnonzero(self.device_of == device).astype(np.int32)


def _samples_of_parties(data: FederatedData) -> NDArray[np.int64]:
    """[N] number of samples of each party, in all splits."""
    samples: NDArray[np.int64] = np.sum([data.sizes(s) for s in SPLITS], axis=0, dtype=np.int64)
    return samples


def assign_parties(samples: NDArray[np.integer], devices: int) -> NDArray[np.int32]:
    """[N] number of the device of each party: the largest party first, to the device with the fewest samples so far.

    Every device has a party if there are at least as many parties as devices.
    """
    assigned = np.zeros(len(samples), np.int32)
    loads = [(0, 0, device) for device in range(devices)]  # samples, parties, device
    for k in np.argsort(-samples, kind="stable"):
        load, count, device = heapq.heappop(loads)
        assigned[k] = device
        heapq.heappush(loads, (load + int(samples[k]), count + 1, device))
    return assigned


class _Samples(NamedTuple):
    """The arrays of a ``PartyShard`` that depend on the data only."""

    x: Array
    y: Array
    offset: Array
    length: Array
    sizes: Array
    numbers: Array
    smallest: Array


_samples_of_data: "WeakKeyDictionary[FederatedData, tuple[Any, _Samples]]" = WeakKeyDictionary()


def place_shards(model: Model, data: FederatedData, layout: ShardLayout) -> PartyShard:
    """The problem of all parties, with the samples of each on its device. A process reads those of its own parties.

    Several runs on the same data share the arrays.
    """
    gatherer = Gatherer(model, data)
    key = (layout.mesh, *(leaf.dtype for leaf in jax.tree.leaves((gatherer.template.x, gatherer.template.y))))
    stored = _samples_of_data.get(data)
    if stored is None or stored[0] != key:
        stored = (key, _place_samples(gatherer, data, layout))
        _samples_of_data[data] = stored
    samples = stored[1]
    template: LearningProblem = eqx.tree_at(lambda p: p.model, gatherer.template, replicate(model, layout.mesh))
    inner = template.with_samples(samples.x, samples.y, samples.offset, samples.length, samples.sizes)
    sizes, device_of = replicate((np.asarray(data.sizes()), layout.device_of), layout.mesh)
    return PartyShard(inner, samples.numbers, sizes, device_of, samples.smallest)


def _place_samples(gatherer: Gatherer, data: FederatedData, layout: ShardLayout) -> _Samples:
    rows = max(1, int(np.bincount(layout.device_of, _samples_of_parties(data), layout.mesh.size).max()))

    def of_device(device: int) -> _Samples:
        ids = layout.parties_of(device)
        subset = gatherer(ids, layout.slots, rows=rows)
        inner, smallest = subset.inner, ids[np.argmin(data.sizes()[ids])]
        return _Samples(inner.x, inner.y, inner.offset, inner.length, inner.sizes, subset.numbers,
                        np.array([smallest], np.int32))  # type: ignore[arg-type]

    placed: _Samples = concatenate([of_device(device) for device in local_devices(layout.mesh)], layout.mesh)
    return placed


def keep_own_parties(data: FederatedData) -> FederatedData:
    """The data with the samples of this process's parties only, for runs in several processes."""
    layout = ShardLayout.of_data(data, mesh_of())
    local_ids = np.concatenate([layout.parties_of(device) for device in local_devices(layout.mesh)])
    return keep_parties(data, local_ids, jax.tree.map(digest_of_array, (data.x, data.y)))


_BLOCK_BYTES = 2**24  # bytes of party states or models that the processes exchange at a time, outside of rounds


class ShardStorage(DeviceStorage, PartiesView):
    """The parties are divided among the devices of all processes. The server's state is on every device.

    All processes call the same methods in the same order.
    """

    problem: PartyShard
    is_shared = True

    def __init__(self, rounds: Rounds, model: Model, data: FederatedData) -> None:
        """Read the samples of this process's parties, and compute their first states."""
        self._layout = layout = ShardLayout.of_data(data, mesh_of())
        self._mesh, self._devices = layout.mesh, local_devices(layout.mesh)
        self._training = problem = place_shards(model, data, layout)
        shares = replicate(self._begin(rounds, jnp.asarray(data.sizes())), layout.mesh)
        self._device_state = initial_state(rounds.algorithm, problem, shares, jnp.array(rounds.seed), mesh=layout.mesh)
        self._snapshot: Snapshot | None = None
        self._problems = [local_view(problem, i) for i in range(len(self._devices))]
        self.problem = self._problems[0]
        self._positions = [np.flatnonzero(layout.device_of[rounds.evaluated] == device)
                           for device in self._devices]
        self._evaluated_ids = [jnp.asarray(rounds.evaluated[at]) for at in self._positions]

    @override
    def _local(self, chunk: Chunk) -> Chunk:
        self._snapshot = chunk.snapshot
        server, record, last_record, server_before = local_view(
            (chunk.state.server, chunk.record, chunk.snapshot.record, chunk.snapshot.server_before), 0)
        snapshot = Snapshot(last_record, chunk.snapshot.models, server_before)
        return Chunk(Federation(server, chunk.state.parties), record, snapshot)

    @override
    def evaluated_parties(self) -> list[EvaluationView]:
        return [EvaluationView(problem, local_view(self._device_state, i), index, positions)
                for i, (problem, index, positions) in enumerate(
                    zip(self._problems, self._evaluated_ids, self._positions, strict=True))]

    @override
    def last_cohort(self, chunk: Chunk) -> list[CohortView]:
        assert self._snapshot is not None
        cohort = np.asarray(chunk.snapshot.record.index)
        views = []
        for i, (device, problem) in enumerate(zip(self._devices, self._problems, strict=True)):
            positions = np.flatnonzero(self._layout.device_of[cohort] == device)
            index = np.full(min(len(cohort), self._layout.slots), np.asarray(problem.smallest)[0], np.int32)
            index[:len(positions)] = cohort[positions]
            models, server, before = local_view(
                (self._snapshot.models, self._device_state.server, self._snapshot.server_before), i)
            views.append(CohortView(problem, models, jnp.asarray(index), positions, server, before))
        return views

    @override
    def collect(self, positions: Sequence[NDArray[np.intp]], parts: Sequence[ArrayLike], size: int) -> NDArray[Any]:
        return sum_over_processes(super().collect(positions, parts, size))

    @property
    @override
    def view(self) -> PartiesView:
        return self

    @override
    def party_ids(self) -> NDArray[np.integer]:
        return np.arange(len(self._layout.device_of))

    @override
    def sampled_parties(self, ids: NDArray[np.integer]) -> list[SampledParties]:
        return [SampledParties(problem, np.flatnonzero(self._layout.device_of[ids] == device))
                for device, problem in zip(self._devices, self._problems, strict=True)]

    @override
    def sum_over_processes(self, values: NDArray[Any]) -> NDArray[Any]:
        return sum_over_processes(values)

    @override
    def personal_models(self, algorithm: Algorithm, ids: NDArray[np.integer]) -> Vector:
        """The models that these parties use, leaves [M, ...]; all processes call it with the same ids."""
        shapes = jax.eval_shape(self.problem.init, jax.random.key(0))
        blocks = [self._models_of_block(algorithm, block) for block in _blocks(np.asarray(ids), shapes)]
        return jax.tree.map(lambda *parts: np.concatenate(parts), *blocks)

    def _models_of_block(self, algorithm: Algorithm, ids: NDArray[np.integer]) -> PyTree[NDArray[Any]]:
        positions, models = [], []
        for i, (device, problem) in enumerate(zip(self._devices, self._problems, strict=True)):
            at = np.flatnonzero(self._layout.device_of[ids] == device)
            index = np.full(len(ids), np.asarray(problem.smallest)[0], np.int32)  # one shape for all devices
            index[:len(at)] = ids[at]
            positions.append(at)
            models.append(personal_models(algorithm, problem, local_view(self._device_state, i), jnp.asarray(index)))
        return jax.tree.map(lambda *parts: self.collect(positions, parts, len(ids)), *models)

    def _rows(self, ids: NDArray[np.integer]) -> PartyState:
        """The states of these parties, leaves [M, ...]; all processes call it with the same ids."""
        return self._gather(self._device_state.parties, ids)

    def _gather(self, states: PyTree[Array], ids: NDArray[np.integer]) -> PyTree[NDArray[Any]]:
        gathered = _gather_rows(self._training, states, jnp.asarray(ids, jnp.int32), mesh=self._layout.mesh)
        return jax.tree.map(lambda leaf: np.asarray(leaf.addressable_data(0)), gathered)

    @override
    def final_state(self) -> Federation:
        """The server's state; instead of arrays [N, ...], an object that gathers the rows of parties by index."""
        return Federation(local_view(self._device_state.server, 0), PartyRows(self._rows))

    @override
    def checkpoint_state(self) -> Federation:
        """The state in the form of one process; the parties' states are exchanged in blocks when they are read."""
        state = self._device_state
        return Federation(local_view(state.server, 0), jax.tree.map(self._in_blocks, state.parties))

    def _in_blocks(self, leaf: Array) -> "_StateLeaf":
        return _StateLeaf(leaf, self._layout, lambda ids: self._gather(leaf, ids))

    @override
    def restore(self, state: Federation, facts: dict[str, Any], rounds: int) -> None:
        self._device_state = Federation(replicate(state.server, self._layout.mesh), state.parties)


class _StateLeaf(BlockedLeaf):
    """One leaf of the states of all parties, [N, ...], in the order of their ids."""

    def __init__(self, leaf: Array, layout: ShardLayout, gather: Callable[[NDArray[np.int32]], NDArray[Any]]) -> None:
        self._layout, self._gather = layout, gather
        self._ids = np.arange(len(layout.device_of), dtype=np.int32)
        self.shape, self.dtype = (len(self._ids), *leaf.shape[1:]), np.dtype(leaf.dtype)
        self._row = np.empty(leaf.shape[1:], self.dtype)

    @override
    def blocks(self) -> Iterator[NDArray[Any]]:
        size = _block_size(self._row)
        for start in range(0, len(self._ids), size):
            block = self._ids[start:start + size]
            padded = np.resize(block, min(size, len(self._ids)))  # one shape for all blocks
            yield self._gather(padded)[:len(block)]

    @override
    def from_blocks(self, read: Callable[[int, int], NDArray[Any]]) -> Array:
        layout, devices = self._layout, local_devices(self._layout.mesh)
        local_ids = [layout.parties_of(device) for device in devices]
        parts = [np.zeros((layout.slots, *self.shape[1:]), self.dtype) for _ in devices]
        size = _block_size(self._row)
        for start in range(0, len(self._ids), size):
            stop = min(start + size, len(self._ids))
            rows = read(start, stop)
            for ids, part in zip(local_ids, parts, strict=True):
                first, last = np.searchsorted(ids, [start, stop])
                part[first:last] = rows[ids[first:last] - start]
        placed: Array = concatenate(parts, layout.mesh)
        return placed


@partial(jax.jit, static_argnames=("mesh",))
def _gather_rows(problem: PartyShard, states: PyTree[Array], ids: Int[Array, " M"], *, mesh: Mesh) -> PyTree[Array]:
    """The states of the parties ``ids`` on every device, from states [D*slots, ...]."""
    def on_device(problem: PartyShard, states: PyTree[Array], ids: Array) -> PyTree[Array]:
        is_own = problem.device_of[ids] == jax.lax.axis_index(AXIS)
        rows = tree.rows(states, problem.row(ids))
        return sum_over_devices(jax.tree.map(
            lambda leaf: jnp.where(tree.column(is_own, leaf), leaf, jnp.zeros_like(leaf)), rows))

    specs = (problem_specs(problem), DIVIDED, REPLICATED)
    return on_every_device(on_device, mesh, specs, REPLICATED)(problem, states, ids)


def _blocks(ids: NDArray[np.integer], row: PyTree[Any]) -> list[NDArray[np.integer]]:
    return np.split(ids, range(_block_size(row), len(ids), _block_size(row)))


def _block_size(row: PyTree[Any]) -> int:
    """The number of rows of this shape in a block."""
    return max(1, _BLOCK_BYTES // max(1, tree.size_in_bytes(row)))
