"""The parties of a federation divided among devices: each device has the data and the states of its own parties.

Every party belongs to one device for the whole run. Data and states of a party are on no other device; what the devices
exchange in a round are the replies of its cohort.
"""

import heapq
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int, PyTree
from numpy.typing import NDArray
from typing_extensions import TypeIs, override

from resolvent.data.federated import SPLITS, FederatedData
from resolvent.data.files.own_rows import keep_parties
from resolvent.problem.learning import LearningProblem
from resolvent.problem.models.model import Model
from resolvent.problem.problem import Problem
from resolvent.problem.subset import Gatherer, PartySubset
from resolvent.simulator.checkpoint.fingerprint import digest_of_array
from resolvent.simulator.engine.schedulers import AXIS

REPLICATED, SHARDED = PartitionSpec(), PartitionSpec(AXIS)  # type: ignore[no-untyped-call]


class PartyShard(PartySubset):
    """The problem of the parties that belong to one device, which keep their global party ids.

    Arrays with an axis of slots or of rows have those of this device within ``jax.shard_map``, and those of all
    devices, one after the other, outside of it.

    Attributes:
        sizes: [N] number of training samples of every party, on every device: cohorts are drawn from them.
        device_of: [N] number of the device to which each party belongs, on every device.
        smallest: [1] id of the device's party with the fewest training samples; it occupies slots without work.
    """

    device_of: Int[Array, " N"]
    smallest: Int[Array, " 1"]
    mesh: Mesh = eqx.field(static=True)

    def __init__(self, inner: LearningProblem, numbers: Int[Array, " M"], sizes: Int[Array, " N"],
                 device_of: Int[Array, " N"], smallest: Int[Array, " 1"], mesh: Mesh) -> None:
        self.inner, self.numbers = inner, numbers
        self.splits, self.score_name, self.higher_is_better = inner.splits, inner.score_name, inner.higher_is_better
        self.sizes, self.device_of, self.smallest, self.mesh = sizes, device_of, smallest, mesh

    @override
    def row(self, k: Int[Array, "..."]) -> Int[Array, "..."]:
        """The slot of party k on its device."""
        return jnp.minimum(jnp.searchsorted(self.numbers, k, method="scan_unrolled"), len(self.numbers) - 1)

    @override
    def at(self, t: Int[Array, ""]) -> "PartyShard":
        inner = self.inner.at(t)
        return self if inner is self.inner else eqx.tree_at(lambda p: p.inner, self, inner)


def is_divided(problem: Problem) -> TypeIs[PartyShard]:
    """Whether each device has the data of its own parties only."""
    return isinstance(problem, PartyShard)


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

    def local_devices(self) -> list[int]:
        """The numbers of this process's devices in the mesh."""
        process = jax.process_index()
        return [i for i, device in enumerate(self.mesh.devices.flat) if device.process_index == process]

    def replicate(self, x: PyTree[Any]) -> PyTree[Any]:
        """A copy of the arrays on every device; every process must have the same arrays."""
        sharding = NamedSharding(self.mesh, REPLICATED)

        def of_leaf(leaf: Any) -> Any:
            if not isinstance(leaf, jax.Array | np.ndarray):
                return leaf
            host = np.asarray(leaf)
            return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

        return jax.tree.map(of_leaf, x)

    def concatenate(self, parts: Sequence[PyTree[Any]]) -> PyTree[Any]:
        """Arrays [D*n, ...] from the parts [n, ...] of this process's devices."""
        sharding, devices = NamedSharding(self.mesh, SHARDED), list(self.mesh.devices.flat)
        local = [devices[i] for i in self.local_devices()]

        def of_leaves(*leaves: Any) -> Array:
            on_devices = [jax.device_put(leaf, device) for leaf, device in zip(leaves, local, strict=True)]
            shape = (self.mesh.size * leaves[0].shape[0], *leaves[0].shape[1:])
            return jax.make_array_from_single_device_arrays(shape, sharding, on_devices)

        return jax.tree.map(of_leaves, *parts)


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
    template: LearningProblem = eqx.tree_at(lambda p: p.model, gatherer.template, layout.replicate(model))
    inner = template.with_samples(samples.x, samples.y, samples.offset, samples.length, samples.sizes)
    sizes, device_of = layout.replicate((np.asarray(data.sizes()), layout.device_of))
    return PartyShard(inner, samples.numbers, sizes, device_of, samples.smallest, layout.mesh)


def _place_samples(gatherer: Gatherer, data: FederatedData, layout: ShardLayout) -> _Samples:
    rows = max(1, int(np.bincount(layout.device_of, _samples_of_parties(data), layout.mesh.size).max()))

    def of_device(device: int) -> _Samples:
        ids = layout.parties_of(device)
        subset = gatherer(ids, layout.slots, rows=rows)
        inner, smallest = subset.inner, ids[np.argmin(data.sizes()[ids])]
        return _Samples(inner.x, inner.y, inner.offset, inner.length, inner.sizes, subset.numbers,
                        np.array([smallest], np.int32))  # type: ignore[arg-type]

    placed: _Samples = layout.concatenate([of_device(device) for device in layout.local_devices()])
    return placed


def shard_specs(problem: Problem) -> Any:
    """A tree of specifications: which arrays of a problem are divided among the devices."""
    if not is_divided(problem):
        return REPLICATED
    replicated = jax.tree.map(lambda _: REPLICATED, problem)

    def divided(p: PartyShard) -> list[Any]:
        inner = p.inner
        return jax.tree.leaves((inner.x, inner.y, inner.offset, inner.length, inner.sizes, p.numbers, p.smallest),
                               is_leaf=lambda x: isinstance(x, PartitionSpec))

    return eqx.tree_at(divided, replicated, [SHARDED] * len(divided(problem)),
                       is_leaf=lambda x: isinstance(x, PartitionSpec))


def keep_own_parties(data: FederatedData) -> FederatedData:
    """The data with the samples of this process's parties only, for runs in several processes."""
    layout = ShardLayout.of_data(data, Mesh(jax.devices(), (AXIS,)))
    local_ids = np.concatenate([layout.parties_of(device) for device in layout.local_devices()])
    return keep_parties(data, local_ids, jax.tree.map(digest_of_array, (data.x, data.y)))


def on_every_device(function: Callable[..., Any], problem: Problem, in_specs: Any, out_specs: Any) -> Any:
    """A function that runs on every device of a problem's mesh, with the parts of its arguments on that device.

    If the problem is not divided among devices, it is the function itself.
    """
    if not is_divided(problem):
        return function
    # Varying manual axes are not checked, because the scan inside an LSTM's gradient does not pass the check.
    return jax.shard_map(function, mesh=problem.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def local_view(x: PyTree[Any], number: int) -> PyTree[Any]:
    """The parts of arrays on this process's device ``number``, as arrays of that device; nothing is copied."""
    return jax.tree.map(lambda leaf: leaf.addressable_data(number) if isinstance(leaf, jax.Array) else leaf, x)


