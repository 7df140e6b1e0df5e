"""Schedulers: in what order, side by side with whom, and on which device the parties of a cohort do their work.

A scheduler is handed a function of one party and a cohort, and gives back each party's results. It knows no algorithm,
and changes a result by rounding at most. Which is fast depends on the machine: a CPU likes parties one after the
other in loops of their own length, a GPU likes many side by side.
"""

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int, PyTree

from resolvent.algorithms.algorithm import PartyState
from resolvent.errors import InputError, nearest
from resolvent.math import tree
from resolvent.xla.loops import lane_queue
from resolvent.xla.small_call import no_inline

__all__ = [
    "Choice",
    "Jobs",
    "Lanes",
    "Queue",
    "Scheduler",
    "SchedulerName",
    "Sequential",
    "Sharded",
    "choose",
    "deal",
    "fastest",
    "named",
    "rivals",
]

_AXIS = "parties"
_spec: Callable[..., PartitionSpec] = PartitionSpec
_ALIKE = _spec()


class Jobs(eqx.Module):
    """What there is to do for a cohort; leaves [C, ...], or those of one party.

    Attributes:
        index: the parties' numbers.
        rows: their states.
        effort: the share of its solver's budget that each does; 0 is none.
    """

    index: Int[Array, " C"]
    rows: PartyState
    effort: Float[Array, " C"]


Shared: TypeAlias = PyTree[Any]
Work: TypeAlias = Callable[[Shared, Jobs], PyTree[Any]]


class Scheduler(ABC):
    """Runs a function of one party for a whole cohort. Static: it is part of what is compiled.

    Attributes:
        spare: how much more room than its equal share of a cohort each device has, as a share of that, so that many
            small parties can stand against a large one; above 0 where a party without work takes next to no time.
    """

    spare: ClassVar[float] = 0.0

    @abstractmethod
    def __call__(self, work: Work, shared: Shared, jobs: Jobs, amount: Float[Array, " C"]) -> PyTree[Any]:
        """The results of all parties, leaves [C, ...].

        Args:
            work: (what all are given, the jobs of one party) -> its results.
            shared: what all are given.
            jobs: the cohort's.
            amount: about how much work each party has, in any unit.
        """

    def place(self, x: PyTree[Any]) -> PyTree[Any]:
        """The arrays of a tree, where the rounds want them."""
        return x

    def fetch(self, x: PyTree[Any]) -> PyTree[Any]:
        """The arrays of a tree that rounds have left, where this process can read them and compute with them."""
        return x


@dataclass(frozen=True)
class Sequential(Scheduler):
    """Parties one after the other, each in loops of its own length: nothing is padded or masked."""

    spare: ClassVar[float] = 1.0

    def __call__(self, work: Work, shared: Shared, jobs: Jobs, amount: Float[Array, " C"]) -> PyTree[Any]:
        """One after the other."""
        return jax.lax.map(partial(work, shared), jobs)


@dataclass(frozen=True)
class Lanes(Scheduler):
    """``width`` parties side by side, as long as the slowest of them; those with about as much to do go together.

    Attributes:
        width: how many lanes.
    """

    width: int = 64

    def __post_init__(self) -> None:
        _at_least_one(self, "width", self.width)

    def __call__(self, work: Work, shared: Shared, jobs: Jobs, amount: Float[Array, " C"]) -> PyTree[Any]:
        """Batch by batch, those with the most work first."""
        size = len(amount)
        if size <= self.width:
            return jax.vmap(partial(work, shared))(jobs)
        batches = -(-size // self.width)
        slots = _padded(_longest_first(amount), batches * self.width, size)
        of_slots = _taken(jobs, slots, amount)
        packed = jax.tree.map(lambda leaf: leaf.reshape(batches, self.width, *leaf.shape[1:]), of_slots)
        done = jax.lax.map(jax.vmap(partial(work, shared)), packed)
        return _returned(jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), done), slots, size)


@dataclass(frozen=True)
class Queue(Scheduler):
    """All parties side by side, but in the solver's loop, where ``width`` lanes take up one party after the other.

    A loop that is not written with ``resolvent.xla.loops`` runs in plain lanes, as many as there are parties.

    Attributes:
        width: how many lanes.
    """

    width: int = 8

    def __post_init__(self) -> None:
        _at_least_one(self, "width", self.width)

    def __call__(self, work: Work, shared: Shared, jobs: Jobs, amount: Float[Array, " C"]) -> PyTree[Any]:
        """Batched, with queues for loops."""
        with lane_queue(self.width):
            return jax.vmap(partial(work, shared))(jobs)


@dataclass(frozen=True)
class Sharded(Scheduler):
    """The cohort dealt to the devices of a mesh; all else is on every device alike, the server's step included.

    The longest work goes first, to the device with the least so far. Every device has room for its share of the
    parties, ceil(C / devices), and what ``inner`` has to ``spare``; what is left of it is filled with the party that
    has the least work, at effort 0, and results of that are thrown away.

    Attributes:
        inner: what each device does with its share.
        mesh: the devices, along one axis named ``parties``; ``Sharded.over(inner, jax.devices())`` makes it.
    """

    inner: Scheduler
    mesh: Mesh

    @classmethod
    def over(cls, inner: Scheduler, devices: "list[jax.Device] | None" = None) -> "Sharded":
        """Over devices; default: all that there are, those of other processes included."""
        return cls(inner, Mesh(jax.devices() if devices is None else devices, (_AXIS,)))

    def __call__(self, work: Work, shared: Shared, jobs: Jobs, amount: Float[Array, " C"]) -> PyTree[Any]:
        """Every device its share; then all have all results."""
        size = len(amount)
        room = min(size, int(-(-size // self.mesh.size) * (1 + self.inner.spare)))
        distinct, whole = _distinct(work)

        def share(shared: Shared, jobs: Jobs, amount: Float[Array, " C"]) -> PyTree[Any]:
            # Every device deals for itself, and alike: that costs less than to wait for another's answer.
            slots = deal(amount, self.mesh.size, room)
            mine = jax.lax.dynamic_slice_in_dim(slots, jax.lax.axis_index(_AXIS) * room, room)
            done = self.inner(distinct, shared, _taken(jobs, mine, amount), jnp.append(amount, 0)[mine])
            return _returned(whole(_gathered(done)), slots, size)

        # Varying manual axes are not checked: the scan inside an LSTM's gradient does not pass.
        everywhere = jax.shard_map(share, mesh=self.mesh, in_specs=_ALIKE, out_specs=_ALIKE, check_vma=False)
        return everywhere(shared, jobs, amount)

    def place(self, x: PyTree[Any]) -> PyTree[Any]:
        """A copy on every device."""
        everywhere = NamedSharding(self.mesh, _ALIKE)

        def of_leaf(leaf: Any) -> Any:
            if not isinstance(leaf, jax.Array):
                return leaf
            if self.mesh.is_multi_process:
                return jax.make_array_from_callback(leaf.shape, everywhere, lambda _: leaf)
            return jax.device_put(leaf, everywhere)

        return jax.tree.map(of_leaf, x)

    def fetch(self, x: PyTree[Any]) -> PyTree[Any]:
        """One of the copies."""
        return jax.tree.map(lambda leaf: leaf.addressable_data(0), x)


def deal(amount: Float[Array, " C"], hands: int, room: int) -> Int[Array, " slots"]:
    """Who works where: [hands * room], each hand's parties after the other's, and C where nobody is.

    The longest first, to the hand with the least work among those that have room.
    """
    size = len(amount)
    order = _longest_first(amount)

    def give(i: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        slots, held, load = carry
        k = order[i]
        hand = jnp.argmin(jnp.where(held < room, load, jnp.inf))
        return slots.at[hand * room + held[hand]].set(k), held.at[hand].add(1), load.at[hand].add(amount[k])

    start = jnp.full(hands * room, size), jnp.zeros(hands, jnp.int32), jnp.zeros(hands, amount.dtype)
    slots: Array = jax.lax.fori_loop(0, size, give, start)[0]
    return slots


SchedulerName: TypeAlias = Scheduler | Literal["sequential", "lanes", "queue"]
_NAMED: dict[str, Callable[[], Scheduler]] = {"sequential": Sequential, "lanes": Lanes, "queue": Queue}


def named(scheduler: SchedulerName) -> Scheduler:
    """The scheduler of that name, or the one given.

    Raises:
        InputError: there is none of that name.
    """
    if isinstance(scheduler, Scheduler):
        return scheduler
    if scheduler not in _NAMED:
        raise InputError(f"there is no scheduler {scheduler!r}{nearest(scheduler, _NAMED)} Use any of {list(_NAMED)}, "
                         "auto, measured, or a Scheduler")
    return _NAMED[scheduler]()


Choice: TypeAlias = SchedulerName | Literal["auto", "measured"]


def choose(scheduler: Choice, parties: int) -> Scheduler:
    """The scheduler for a cohort: one that is given as it is, one that is named on every device that there is.

    ``auto`` is ``sequential`` on a CPU and ``lanes`` elsewhere; so is ``measured``, before anything is.
    """
    if isinstance(scheduler, Scheduler):
        return scheduler
    if scheduler == "auto" or scheduler == "measured":
        scheduler = "sequential" if jax.default_backend() == "cpu" else "lanes"
    return _everywhere(named(scheduler), parties)


def rivals(parties: int) -> dict[str, Scheduler]:
    """What ``measured`` tries for a cohort, by name; no two of them would do the same."""
    here = -(-parties // min(jax.device_count(), parties))  # parties on a device
    widths = [w for w in (8, 64, 512) if w < here]
    lanes = {f"lanes of {w}": Lanes(w) for w in [*widths, here]}
    queues = {f"queue of {w}": Queue(w) for w in widths}
    found: dict[str, Scheduler] = {"sequential": Sequential(), **lanes, **queues}
    return {name: _everywhere(one, parties) for name, one in found.items()}


def fastest(candidates: Mapping[str, Scheduler], run: Callable[[Scheduler], Any]) -> tuple[Scheduler, dict[str, float]]:
    """The one that runs in the least time, and the seconds of each: the better of two runs, after one that compiles."""
    seconds = {}
    for name, one in candidates.items():
        times = []
        for _ in range(3):
            begin = time.perf_counter()
            for leaf in jax.tree.leaves(run(one)):
                leaf.block_until_ready()
            times.append(time.perf_counter() - begin)
        seconds[name] = min(times[1:])
    return candidates[min(seconds, key=lambda name: seconds[name])], seconds


def _everywhere(inner: Scheduler, parties: int) -> Scheduler:
    """On every device that there is."""
    return inner if min(jax.device_count(), parties) == 1 else Sharded.over(inner)


def _longest_first(amount: Float[Array, " C"]) -> Int[Array, " C"]:
    return jnp.argsort(-amount, stable=True)


def _padded(order: Int[Array, " C"], slots: int, size: int) -> Int[Array, " slots"]:
    return jnp.concatenate([order, jnp.full(slots - size, size, order.dtype)])


def _taken(jobs: Jobs, slots: Int[Array, " slots"], amount: Float[Array, " C"]) -> Jobs:
    """The jobs of the parties in the slots; where there is nobody, that of the one with the least work, at effort 0."""
    size = len(jobs.effort)
    found: Jobs = tree.rows(jobs, jnp.where(slots < size, slots, jnp.argmin(amount)))
    return Jobs(found.index, found.rows, jnp.where(slots < size, found.effort, 0))


def _returned(results: PyTree[Any], slots: Int[Array, " slots"], size: int) -> PyTree[Any]:
    """The results of slots, in the cohort's order."""
    where = jnp.zeros(size, slots.dtype).at[slots].set(jnp.arange(len(slots), dtype=slots.dtype), mode="drop")
    return tree.rows(results, where)


def _distinct(work: Work) -> tuple[Work, Callable[[list[Array]], PyTree[Any]]]:
    """The work with each array of its results once, and how the results are made of them again."""
    structure: Any = None
    places: list[int] = []

    def once(shared: Shared, job: Jobs) -> list[Array]:
        nonlocal structure
        leaves, structure = jax.tree.flatten(work(shared, job))
        found = {id(leaf): leaf for leaf in leaves}
        places[:] = [list(found).index(id(leaf)) for leaf in leaves]
        return list(found.values())

    return once, lambda leaves: jax.tree.unflatten(structure, [leaves[i] for i in places])


def _gathered(leaves: list[Array]) -> list[Array]:
    """Leaves [S, ...] of every device, one below the other, in one message for each dtype: what costs is to wait."""
    together = {}
    for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):  # in an order that all processes share
        flat = [leaf.reshape(-1) for leaf in leaves if leaf.dtype == dtype]
        packed = jax.lax.all_gather(no_inline(jnp.concatenate)(flat), _AXIS)
        ends = list(itertools.accumulate(map(len, flat)))
        together[dtype] = iter(jnp.split(packed, ends[:-1], axis=1))
    return [next(together[leaf.dtype]).reshape(-1, *leaf.shape[1:]) for leaf in leaves]


def _at_least_one(of: Scheduler, field: str, value: int) -> None:
    if value < 1:
        raise InputError(f"{type(of).__name__}({field}={value}) must be at least 1")
