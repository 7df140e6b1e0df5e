"""The parties of a federation divided among devices: each device has the data and the states of its own parties.

Every party belongs to one device for the whole run. Data and states of a party are on no other device; what the devices
exchange in a round are the replies of its cohort.
"""

import heapq
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import equinox as eqx
import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array
from numpy.typing import NDArray

from resolvent.data.federated import SPLITS, FederatedData
from resolvent.data.files.own_rows import keep_parties
from resolvent.problem.learning import LearningProblem
from resolvent.problem.models.model import Model
from resolvent.problem.subset import Gatherer
from resolvent.simulator.engine.cohort_parts import PartyShard
from resolvent.simulator.mesh import concatenate, local_devices, mesh_of, replicate
from resolvent.simulator.storage.tree_files import digest_of_array


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
