"""Schedulers: in which order, in which lanes and on which devices the parties of a cohort do their work.

A scheduler gets a function of one party and a cohort, and returns the results of all parties. It knows no algorithm,
and it changes results by rounding errors at most. Which scheduler is fast depends on the machine: a CPU is fast with
parties one after the other, each in loops of its own length; a GPU is fast with many parties in parallel lanes.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int, PyTree
from typing_extensions import override

from resolvent.algorithms.algorithm import PartyState
from resolvent.arguments import CheckedArguments
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.xla.loops import lane_queue
from xla_cpu_rewrites.small_call import no_inline

__all__ = ["AXIS", "Jobs", "Lanes", "Queue", "Scheduler", "Sequential", "Sharded", "distribute"]

AXIS = "parties"
_spec: Callable[..., PartitionSpec] = PartitionSpec
_REPLICATED = _spec()
_SHARED_BYTES = 2**20  # smallest array that the devices of a CPU share


class Jobs(eqx.Module):
    """The work of a cohort: leaves [C, ...], or without the first axis for one party.

    Attributes:
        index: ids of the parties.
        rows: states of the parties.
        effort: fraction of the solver's budget that each party does; 0 is no work.
        began: see ``Cohort``.

    Example:
        >>> jobs = rv.schedulers.Jobs(jnp.arange(2), rows=jnp.zeros((2, 3)), effort=jnp.array([1.0, 0.5]))
    """

    index: Int[Array, " C"]
    rows: PartyState
    effort: Float[Array, " C"]
    began: Int[Array, " C"] | None = None


Shared: TypeAlias = PyTree[Any]
Work: TypeAlias = Callable[[Shared, Jobs], PyTree[Any]]


class Scheduler(CheckedArguments, ABC):
    """Runs a function of one party for a whole cohort. It is static: the compiled rounds are specialised to it.

    Attributes:
        slack: additional slots per device of a ``Sharded`` cohort, as a fraction of its equal part of the parties.
            With slack, a device can take many small parties while another has a large one. It pays if a slot without
            work takes almost no time.
    """

    slack: ClassVar[float] = 0.0

    @abstractmethod
    def __call__(self, work: Work, shared: Shared, jobs: Jobs, amount: Float[Array, " C"]) -> PyTree[Any]:
        """The results of all parties, leaves [C, ...].

        Args:
            work: (shared, jobs of one party) -> its results.
            shared: inputs that are the same for all parties.
            jobs: the jobs of the cohort.
            amount: [C] estimated amount of work of each party, in any unit.
        """

    def to_devices(self, x: PyTree[Any]) -> PyTree[Any]:
        """The arrays of a tree on the devices on which the rounds read them."""
        return x

    def constants_to_devices(self, x: PyTree[Any]) -> PyTree[Any]:
        """As ``to_devices``, for arrays that no round overwrites: the devices of a CPU may share their memory."""
        return self.to_devices(x)

    def from_devices(self, x: PyTree[Any]) -> PyTree[Any]:
        """The arrays of a tree that rounds returned, where this process can read them and compute with them."""
        return x


@dataclass(frozen=True)
class Sequential(Scheduler):
    """Parties one after the other, each in loops of its own length: nothing is padded or masked.

    Example:
        >>> jobs = rv.schedulers.Jobs(jnp.arange(3), rows=jnp.array([1.0, 2.0, 3.0]), effort=jnp.ones(3))
        >>> rv.schedulers.Sequential()(lambda factor, job: factor * job.rows, 10, jobs, jnp.ones(3)).tolist()
        [10.0, 20.0, 30.0]
    """

    slack: ClassVar[float] = 1.0

    @override
    def __call__(self, work: Work, shared: Shared, jobs: Jobs, amount: Float[Array, " C"]) -> PyTree[Any]:
        # Most algorithms reply with the model that they also record: without duplicates it is stored once.
        distinct_work, restore = _without_duplicates(work)
        return restore(jax.lax.map(partial(distinct_work, shared), jobs))


@dataclass(frozen=True)
class Lanes(Scheduler):
    """Batches of ``width`` parties in parallel lanes. A batch takes as long as its slowest party.

    Parties are sorted by their amount of work, so that those of one batch have a similar amount.

    Attributes:
        width: number of lanes.

    Example:
        >>> jobs = rv.schedulers.Jobs(jnp.arange(3), rows=jnp.array([1.0, 2.0, 3.0]), effort=jnp.ones(3))
        >>> rv.schedulers.Lanes(width=4)(lambda factor, job: factor * job.rows, 10, jobs, jnp.ones(3)).tolist()
        [10.0, 20.0, 30.0]
    """

    width: int = 64

    def __post_init__(self) -> None:
        _check_width(self, self.width)

    @override
    def __call__(self, work: Work, shared: Shared, jobs: Jobs, amount: Float[Array, " C"]) -> PyTree[Any]:
        size = len(amount)
        if size <= self.width:
            return jax.vmap(partial(work, shared))(jobs)
        batches = -(-size // self.width)
        slots = _pad(_longest_first(amount), batches * self.width, size)
        jobs_of_slots = _jobs_of_slots(jobs, slots, amount)
        batched = jax.tree.map(lambda leaf: leaf.reshape(batches, self.width, *leaf.shape[1:]), jobs_of_slots)
        results = jax.lax.map(jax.vmap(partial(work, shared)), batched)
        return _in_cohort_order(jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), results), slots, size)


@dataclass(frozen=True)
class Queue(Scheduler):
    """``width`` parallel lanes in the solver's loop. A lane that is done continues with the next waiting party.

    Everything outside of loops, and loops that are not written with ``resolvent.xla.loops``, run in a lane per party.

    Attributes:
        width: number of lanes.

    Example:
        >>> jobs = rv.schedulers.Jobs(jnp.arange(3), rows=jnp.array([1.0, 2.0, 3.0]), effort=jnp.ones(3))
        >>> rv.schedulers.Queue(width=2)(lambda factor, job: factor * job.rows, 10, jobs, jnp.ones(3)).tolist()
        [10.0, 20.0, 30.0]
    """

    width: int = 8

    def __post_init__(self) -> None:
        _check_width(self, self.width)

    @override
    def __call__(self, work: Work, shared: Shared, jobs: Jobs, amount: Float[Array, " C"]) -> PyTree[Any]:
        with lane_queue(self.width):
            return jax.vmap(partial(work, shared))(jobs)


@dataclass(frozen=True)
class Sharded(Scheduler):
    """The parties of a cohort distributed over the devices of a mesh. Everything else is replicated.

    The party with the most work goes first, to the device with the least work so far. Each device has
    ceil(C / devices) * (1 + ``inner.slack``) slots. Slots without a party run the party with the least work at effort
    0, and the results are dropped. The server's step runs on every device.

    Attributes:
        inner: the scheduler of each device for its parties.
        mesh: the devices, along one axis named ``parties``; ``Sharded.over(inner, jax.devices())`` makes it.

    Example:
        >>> scheduler = rv.schedulers.Sharded.over(rv.schedulers.Sequential(), jax.devices()[:1])
        >>> scheduler.mesh.size
        1
    """

    inner: Scheduler
    mesh: Mesh

    @classmethod
    def over(cls, inner: Scheduler, devices: "list[jax.Device] | None" = None) -> "Sharded":
        """Over these devices; default: all devices, including those of other processes."""
        return cls(inner, Mesh(jax.devices() if devices is None else devices, (AXIS,)))

    @override
    def __call__(self, work: Work, shared: Shared, jobs: Jobs, amount: Float[Array, " C"]) -> PyTree[Any]:
        size = len(amount)
        slots_per_device = min(size, int(-(-size // self.mesh.size) * (1 + self.inner.slack)))
        distinct_work, restore = _without_duplicates(work)

        def on_device(shared: Shared, jobs: Jobs, amount: Float[Array, " C"]) -> PyTree[Any]:
            # Every device computes the whole distribution, because that costs less than to receive it.
            slots = distribute(amount, self.mesh.size, slots_per_device)
            first = jax.lax.axis_index(AXIS) * slots_per_device
            local_slots = jax.lax.dynamic_slice_in_dim(slots, first, slots_per_device)
            results = self.inner(distinct_work, shared, _jobs_of_slots(jobs, local_slots, amount),
                                 jnp.append(amount, 0)[local_slots])
            return _in_cohort_order(restore(_all_gather(results)), slots, size)

        # Varying manual axes are not checked, because the scan inside an LSTM's gradient does not pass the check.
        on_every_device = jax.shard_map(on_device, mesh=self.mesh, in_specs=_REPLICATED, out_specs=_REPLICATED,
                                        check_vma=False)
        return on_every_device(shared, jobs, amount)

    @override
    def to_devices(self, x: PyTree[Any]) -> PyTree[Any]:
        """A replica on every device."""
        replicated = NamedSharding(self.mesh, _REPLICATED)

        def of_leaf(leaf: Any) -> Any:
            if not isinstance(leaf, jax.Array):
                return leaf
            if self.mesh.is_multi_process:
                return jax.make_array_from_callback(leaf.shape, replicated, lambda _: leaf)
            return jax.device_put(leaf, replicated)

        return jax.tree.map(of_leaf, x)

    @override
    def constants_to_devices(self, x: PyTree[Any]) -> PyTree[Any]:
        """A replica on every device; large arrays are stored once if the devices are those of one CPU."""
        if self.mesh.is_multi_process or self.mesh.devices.flat[0].platform != "cpu":
            return self.to_devices(x)
        replicated = NamedSharding(self.mesh, _REPLICATED)

        def of_leaf(leaf: Any) -> Any:
            is_large = (isinstance(leaf, jax.Array) and leaf.nbytes >= _SHARED_BYTES
                        and not jnp.issubdtype(leaf.dtype, jax.dtypes.extended))
            if not is_large:
                return self.to_devices(leaf)
            # JAX does not copy an aligned NumPy array to a CPU device, but it copies an array of another CPU device.
            memory = np.asarray(leaf)
            replicas = [jax.device_put(memory, device) for device in self.mesh.devices.flat]
            return jax.make_array_from_single_device_arrays(leaf.shape, replicated, replicas)

        return jax.tree.map(of_leaf, x)

    @override
    def from_devices(self, x: PyTree[Any]) -> PyTree[Any]:
        """One of the copies: every device holds the same values."""
        return jax.tree.map(lambda leaf: leaf.addressable_data(0), x)


def distribute(amount: Float[Array, " C"], devices: int, slots_per_device: int) -> Int[Array, " slots"]:
    """Assign the parties of a cohort to the slots of devices.

    The party with the most work goes first, to the device with the least work among those with a free slot.

    Args:
        amount: [C] amount of work of each party.
        devices: number of devices.
        slots_per_device: number of parties that a device can take.

    Returns:
        [devices * slots_per_device] the party of each slot, device by device; C for a slot without a party.

    Example:
        >>> rv.schedulers.distribute(jnp.array([3.0, 1.0, 2.0]), devices=2, slots_per_device=2).tolist()
        [0, 3, 2, 1]
    """
    size = len(amount)
    order = _longest_first(amount)

    def assign(i: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        slots, counts, load = carry
        k = order[i]
        device = jnp.argmin(jnp.where(counts < slots_per_device, load, jnp.inf))
        slots = slots.at[device * slots_per_device + counts[device]].set(k)
        return slots, counts.at[device].add(1), load.at[device].add(amount[k])

    first = (jnp.full(devices * slots_per_device, size), jnp.zeros(devices, jnp.int32),
             jnp.zeros(devices, amount.dtype))
    slots: Array = jax.lax.fori_loop(0, size, assign, first)[0]
    return slots


def _longest_first(amount: Float[Array, " C"]) -> Int[Array, " C"]:
    return jnp.argsort(-amount, stable=True)


def _pad(order: Int[Array, " C"], slots: int, size: int) -> Int[Array, " slots"]:
    return jnp.concatenate([order, jnp.full(slots - size, size, order.dtype)])


def _jobs_of_slots(jobs: Jobs, slots: Int[Array, " slots"], amount: Float[Array, " C"]) -> Jobs:
    """The jobs of the parties in the slots; in an empty slot, that of the party with the least work at effort 0."""
    size = len(jobs.effort)
    rows: Jobs = tree.rows(jobs, jnp.where(slots < size, slots, jnp.argmin(amount)))
    return replace(rows, effort=jnp.where(slots < size, rows.effort, 0))


def _in_cohort_order(results: PyTree[Any], slots: Int[Array, " slots"], size: int) -> PyTree[Any]:
    """The results of slots, in the cohort's order; those of empty slots are dropped."""
    slot_of = jnp.zeros(size, slots.dtype).at[slots].set(jnp.arange(len(slots), dtype=slots.dtype), mode="drop")
    return tree.rows(results, slot_of)


def _without_duplicates(work: Work) -> tuple[Work, Callable[[list[Array]], PyTree[Any]]]:
    """The work with each array among its results once, and a function that restores the original results."""
    structure: Any = None
    positions: list[int] = []

    def distinct_work(shared: Shared, job: Jobs) -> list[Array]:
        nonlocal structure
        leaves, structure = jax.tree.flatten(work(shared, job))
        distinct = {id(leaf): leaf for leaf in leaves}
        positions[:] = [list(distinct).index(id(leaf)) for leaf in leaves]
        return list(distinct.values())

    return distinct_work, lambda leaves: jax.tree.unflatten(structure, [leaves[i] for i in positions])


def _all_gather(leaves: list[Array]) -> list[Array]:
    """Leaves [S, ...] of all devices, concatenated, in one message per dtype: most of the cost is per message."""
    parts = {}
    for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):  # in an order that all processes share
        flat = [leaf.reshape(-1) for leaf in leaves if leaf.dtype == dtype]
        message = jax.lax.all_gather(no_inline(jnp.concatenate)(flat), AXIS)
        ends = list(itertools.accumulate(map(len, flat)))
        parts[dtype] = iter(jnp.split(message, ends[:-1], axis=1))
    return [next(parts[leaf.dtype]).reshape(-1, *leaf.shape[1:]) for leaf in leaves]


def _check_width(scheduler: Scheduler, width: int) -> None:
    if width < 1:
        raise InputError(f"{type(scheduler).__name__}(width={width}) must be at least 1")
