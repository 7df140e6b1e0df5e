"""Schedulers: in which order and in which lanes a device does the work of the parties of a cohort.

A scheduler gets a function of one party and a cohort, and returns the results of all parties. It knows no algorithm,
and it changes results by rounding errors at most. Which scheduler is fast depends on the machine: a CPU is fast with
parties one after the other, each in loops of its own length; a GPU is fast with many parties in parallel lanes.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PyTree
from typing_extensions import override

from resolvent.arguments import CheckedArguments
from resolvent.errors import InputError, nearest, quote
from resolvent.math import tree
from resolvent.simulator.mesh import mesh_of
from resolvent.xla.loops import lane_queue

__all__ = ["Jobs", "Lanes", "Queue", "Scheduler", "Sequential", "Sharded"]

_WIDTHS = (8, 64, 512)  # that are timed
_TIMED_RUNS = 2


class Jobs(eqx.Module):
    """The work of a cohort: leaves [C, ...], or without the first axis for one party.

    Attributes:
        index: ids of the parties.
        rows: what each party works with, such as its state and its random key.
        effort: fraction of the solver's budget that each party does; 0 is no work.

    Example:
        >>> jobs = rv.schedulers.Jobs(jnp.arange(2), rows=jnp.zeros((2, 3)), effort=jnp.array([1.0, 0.5]))
    """

    index: Int[Array, " C"]
    rows: PyTree[Any]
    effort: Float[Array, " C"]


Work: TypeAlias = Callable[[Jobs], PyTree[Any]]


class Scheduler(CheckedArguments, ABC):
    """Runs a function of one party for a whole cohort. It is static: the compiled rounds are specialised to it.

    Attributes:
        slack: additional slots of a device to which parties are dealt, as a fraction of its equal part of the cohort.
            With slack, a device can take many small parties while another has a large one. It pays if a slot without
            work takes almost no time.
    """

    slack: ClassVar[float] = 0.0

    @abstractmethod
    def __call__(self, work: Work, jobs: Jobs, amount: Float[Array, " C"]) -> PyTree[Any]:
        """The results of all parties, leaves [C, ...].

        Args:
            work: the job of one party -> its results.
            jobs: the jobs of the cohort.
            amount: [C] estimated amount of work of each party, in any unit.
        """


@dataclass(frozen=True)
class Sequential(Scheduler):
    """Parties one after the other, each in loops of its own length: nothing is padded or masked.

    Example:
        >>> jobs = rv.schedulers.Jobs(jnp.arange(3), rows=jnp.array([1.0, 2.0, 3.0]), effort=jnp.ones(3))
        >>> rv.schedulers.Sequential()(lambda job: 10 * job.rows, jobs, jnp.ones(3)).tolist()
        [10.0, 20.0, 30.0]
    """

    slack: ClassVar[float] = 1.0

    @override
    def __call__(self, work: Work, jobs: Jobs, amount: Float[Array, " C"]) -> PyTree[Any]:
        # Most algorithms reply with the model that they also record: without duplicates it is stored once.
        distinct_work, restore = _without_duplicates(work)
        return restore(jax.lax.map(distinct_work, jobs))


@dataclass(frozen=True)
class Lanes(Scheduler):
    """Batches of ``width`` parties in parallel lanes. A batch takes as long as its slowest party.

    Parties are sorted by their amount of work, so that those of one batch have a similar amount.

    Attributes:
        width: number of lanes.

    Example:
        >>> jobs = rv.schedulers.Jobs(jnp.arange(3), rows=jnp.array([1.0, 2.0, 3.0]), effort=jnp.ones(3))
        >>> rv.schedulers.Lanes(width=4)(lambda job: 10 * job.rows, jobs, jnp.ones(3)).tolist()
        [10.0, 20.0, 30.0]
    """

    width: int = 64

    def __post_init__(self) -> None:
        _check_width(self, self.width)

    @override
    def __call__(self, work: Work, jobs: Jobs, amount: Float[Array, " C"]) -> PyTree[Any]:
        size = len(amount)
        if size <= self.width:
            return jax.vmap(work)(jobs)
        batches = -(-size // self.width)
        slots = _pad(longest_first(amount), batches * self.width, size)
        jobs_of_slots = _jobs_of_slots(jobs, slots, amount)
        batched = jax.tree.map(lambda leaf: leaf.reshape(batches, self.width, *leaf.shape[1:]), jobs_of_slots)
        results = jax.lax.map(jax.vmap(work), batched)
        return _in_cohort_order(jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), results), slots, size)


@dataclass(frozen=True)
class Queue(Scheduler):
    """``width`` parallel lanes in the solver's loop. A lane that is done continues with the next waiting party.

    Everything outside of loops, and loops that are not written with ``resolvent.xla.loops``, run in a lane per party.

    Attributes:
        width: number of lanes.

    Example:
        >>> jobs = rv.schedulers.Jobs(jnp.arange(3), rows=jnp.array([1.0, 2.0, 3.0]), effort=jnp.ones(3))
        >>> rv.schedulers.Queue(width=2)(lambda job: 10 * job.rows, jobs, jnp.ones(3)).tolist()
        [10.0, 20.0, 30.0]
    """

    width: int = 8

    def __post_init__(self) -> None:
        _check_width(self, self.width)

    @override
    def __call__(self, work: Work, jobs: Jobs, amount: Float[Array, " C"]) -> PyTree[Any]:
        with lane_queue(self.width):
            return jax.vmap(work)(jobs)


def longest_first(amount: Float[Array, " C"]) -> Int[Array, " C"]:
    """The positions in the order of the amount of work, the largest first."""
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

    def distinct_work(job: Jobs) -> list[Array]:
        nonlocal structure
        leaves, structure = jax.tree.flatten(work(job))
        distinct = {id(leaf): leaf for leaf in leaves}
        positions[:] = [list(distinct).index(id(leaf)) for leaf in leaves]
        return list(distinct.values())

    return distinct_work, lambda leaves: jax.tree.unflatten(structure, [leaves[i] for i in positions])


def _check_width(scheduler: Scheduler, width: int) -> None:
    if width < 1:
        raise InputError(f"{type(scheduler).__name__}(width={width}) must be at least 1")


class Sharded(NamedTuple):
    """The scheduler of each of several devices, to which the parties of a cohort are dealt, and these devices.

    All devices of the process, or of all processes, are used if a scheduler alone is given.

    Attributes:
        inner: the scheduler of each device for its parties.
        mesh: the devices, along one axis; ``Sharded.over(inner, jax.devices())`` makes it.

    Example:
        >>> scheduler = rv.schedulers.Sharded.over(rv.schedulers.Sequential(), jax.devices()[:1])
        >>> scheduler.mesh.size
        1
    """

    inner: Scheduler
    mesh: Mesh | None

    @classmethod
    def over(cls, inner: Scheduler, devices: Sequence[jax.Device] | None = None) -> "Sharded":
        """Over these devices; default: all devices, including those of other processes."""
        return cls(inner, mesh_of(devices))


SchedulerName: TypeAlias = Scheduler | Literal["sequential", "lanes", "queue"]
SchedulerChoice: TypeAlias = SchedulerName | Sharded | Literal["auto", "measured"]

_NAMED: dict[str, Callable[[], Scheduler]] = {"sequential": Sequential, "lanes": Lanes, "queue": Queue}


def scheduler_named(scheduler: SchedulerName) -> Scheduler:
    """The scheduler of that name; a ``Scheduler`` is returned unchanged."""
    if isinstance(scheduler, Scheduler):
        return scheduler
    if scheduler not in _NAMED:
        raise InputError(f"there is no scheduler {quote(scheduler)}{nearest(scheduler, _NAMED)} Use any of "
                         f"{list(_NAMED)}, auto, measured, or a Scheduler")
    return _NAMED[scheduler]()


def choose_scheduler(choice: SchedulerChoice, parties: int) -> Sharded:
    """The scheduler for a cohort of this number of parties, and the devices; no mesh if one device does all the work.

    ``auto`` is ``sequential`` on a CPU and ``lanes`` on other devices; so is ``measured``, until the candidates have
    been timed. Unless the devices are chosen, all are used.
    """
    if isinstance(choice, Sharded):
        return choice
    if choice == "auto" or choice == "measured":
        choice = "sequential" if jax.default_backend() == "cpu" else "lanes"
    return Sharded(scheduler_named(choice), None if min(jax.device_count(), parties) == 1 else mesh_of())


def scheduler_candidates(parties: int) -> dict[str, Scheduler]:
    """The schedulers that ``measured`` times for a cohort, by name; no two of them do the same."""
    parties_per_device = -(-parties // min(jax.device_count(), parties))
    widths = [width for width in _WIDTHS if width < parties_per_device]
    return {
        "sequential": Sequential(),
        **{f"lanes of {width}": Lanes(width) for width in [*widths, parties_per_device]},
        **{f"queue of {width}": Queue(width) for width in widths}}


def fastest_scheduler(candidates: Mapping[str, Scheduler],
                      run: Callable[[Scheduler], Any]) -> tuple[Scheduler, dict[str, float]]:
    """The candidate that runs in the shortest time, and the seconds of each.

    Seconds are the minimum of two runs, after one that compiles.
    """
    seconds = {}
    for name, scheduler in candidates.items():
        times = []
        for _ in range(1 + _TIMED_RUNS):
            begin = time.perf_counter()
            jax.block_until_ready(run(scheduler))  # type: ignore[no-untyped-call]
            times.append(time.perf_counter() - begin)
        seconds[name] = min(times[1:])
    return candidates[min(seconds, key=lambda name: seconds[name])], seconds
