"""The choice of a scheduler: by name, by backend, or by timing the candidates."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import jax

from resolvent.errors import InputError, nearest, quote
from resolvent.simulator.engine.schedulers import Lanes, Queue, Scheduler, Sequential, Sharded

SchedulerName: TypeAlias = Scheduler | Literal["sequential", "lanes", "queue"]
SchedulerChoice: TypeAlias = SchedulerName | Literal["auto", "measured"]

_NAMED: dict[str, Callable[[], Scheduler]] = {"sequential": Sequential, "lanes": Lanes, "queue": Queue}
_WIDTHS = (8, 64, 512)
_TIMED_RUNS = 2


def scheduler_named(scheduler: SchedulerName) -> Scheduler:
    """The scheduler of that name; a ``Scheduler`` is returned unchanged."""
    if isinstance(scheduler, Scheduler):
        return scheduler
    if scheduler not in _NAMED:
        raise InputError(f"there is no scheduler {quote(scheduler)}{nearest(scheduler, _NAMED)} Use any of "
                         f"{list(_NAMED)}, auto, measured, or a Scheduler")
    return _NAMED[scheduler]()


def choose_scheduler(choice: SchedulerChoice, parties: int) -> Scheduler:
    """The scheduler for a cohort of this number of parties.

    A ``Scheduler`` is returned unchanged. A named scheduler runs on every device. ``auto`` is ``sequential`` on a CPU
    and ``lanes`` on other devices; so is ``measured``, until the candidates have been timed.
    """
    if isinstance(choice, Scheduler):
        return choice
    if choice == "auto" or choice == "measured":
        choice = "sequential" if jax.default_backend() == "cpu" else "lanes"
    return _on_all_devices(scheduler_named(choice), parties)


def scheduler_candidates(parties: int) -> dict[str, Scheduler]:
    """The schedulers that ``measured`` times for a cohort, by name; no two of them do the same."""
    parties_per_device = -(-parties // min(jax.device_count(), parties))
    widths = [width for width in _WIDTHS if width < parties_per_device]
    candidates: dict[str, Scheduler] = {
        "sequential": Sequential(),
        **{f"lanes of {width}": Lanes(width) for width in [*widths, parties_per_device]},
        **{f"queue of {width}": Queue(width) for width in widths}}
    return {name: _on_all_devices(scheduler, parties) for name, scheduler in candidates.items()}


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


def _on_all_devices(inner: Scheduler, parties: int) -> Scheduler:
    return inner if min(jax.device_count(), parties) == 1 else Sharded.over(inner)
