"""The memory that a run needs: it is placed where there is enough, or refused before anything is allocated."""

import os
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import jax
from jaxtyping import PyTree

from resolvent.algorithms.combinators.persistent_memory import Prepared
from resolvent.algorithms.combinators.pooled_data import uses_pooled_data
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.problem.subset import Gatherer
from resolvent.simulator.plan import Plan
from resolvent.simulator.task import Task
from resolvent.simulator.user_errors import naming_errors

MemoryChoice: TypeAlias = Literal["auto", "device", "host"]

_CONTAINER_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


def choose_memory(memory: MemoryChoice, prepared: Prepared, task: Task, name: str) -> Literal["device", "host"]:
    """Where the parties' data and states are; ``auto`` is the device if they take less than half of its memory."""
    if memory not in get_args(MemoryChoice):
        raise InputError(f"memory={memory!r} is not known: use any of {list(get_args(MemoryChoice))}")
    obstacle = None
    if task.model is None or task.data is None:
        obstacle = "memory='host' gathers from data: give simulate a model and data=, not a problem of its own"
    elif uses_pooled_data(prepared.algorithm):
        obstacle = (f"{name}: it trains on the pooled samples of all parties, which are on the device then: leave it "
                    "out, or use memory='device'")
    elif jax.process_count() > 1:
        obstacle = "memory='host' is for one process, which owns the files: use memory='device' with several processes"
    if memory == "host" and obstacle is not None:
        raise InputError(obstacle)
    if memory != "auto":
        return memory
    if obstacle is not None:
        return "device"
    with naming_errors(name):
        return "device" if fits_device(task.gatherer, prepared.description.party) else "host"


def fits_device(gatherer: Gatherer, party: PyTree[jax.ShapeDtypeStruct]) -> bool:
    """Whether all parties' data and states, and a copy of the states, take less than half of the device's memory."""
    parties = len(gatherer.data)
    return gatherer.bytes_of(parties) + 2 * parties * tree.size_in_bytes(party) < _memory_limit() / 2


def check_memory(plan: Plan) -> None:
    """Compare the models and states that a run has in memory at once with the memory of the device.

    These are at least the states before and after a round, the replies and a working copy of the model.
    """
    description, parties, limit = plan.description, plan.task.parties, _memory_limit()
    on_device = 0 if plan.memory == "host" else 1 if plan.pools_data else parties
    if plan.divides_parties:
        on_device = -(-parties // jax.device_count())
    model, server, party, reply = map(tree.size_in_bytes, (
        description.model, description.server, description.party, description.replies))
    states, replies = on_device * party, plan.cohort_size * reply
    if (total := 2 * server + 2 * states + replies + model) > limit:
        raise InputError(
            f"the run needs at least {_amount(total)} of memory, and the device has {_amount(limit)}: the model "
            f"takes {_amount(model)}, the server's state {_amount(server)}, the states of the {parties} "
            f"parties {_amount(states)}, and the replies of {plan.cohort_size} parties in a round "
            f"{_amount(replies)}. Use a smaller model, a participation with fewer parties per round, "
            "such as Uniform(cohort=10), or memory='host' for the parties' states")


def _memory_limit() -> int:
    """Bytes of the device's memory; on a CPU those of the machine, or of the container if they are fewer."""
    statistics = jax.local_devices()[0].memory_stats() or {}
    if statistics.get("bytes_limit"):
        return int(statistics["bytes_limit"])
    limits = [file.read_text().strip() for file in _CONTAINER_LIMITS if file.is_file()]
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *map(int, filter(str.isdigit, limits))])


def _amount(size: float) -> str:
    unit = 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.3g} {_UNITS[unit]}"
