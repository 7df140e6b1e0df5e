"""From a checked plan to everything that a run needs on the machine; refused if the memory is not enough."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import PyTree

from resolvent.algorithms.combinators.prepared import Prepared
from resolvent.algorithms.method import local_solvers
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.problem.subset import Gatherer
from resolvent.simulator.engine.cohorts import check_first_cohorts
from resolvent.simulator.engine.compiled_rounds import ChunkRunner
from resolvent.simulator.engine.schedulers import choose_scheduler, fastest_scheduler, scheduler_candidates
from resolvent.simulator.mesh import mesh_of
from resolvent.simulator.plan import Plan
from resolvent.simulator.record.systems import MessageBytes, message_bytes
from resolvent.simulator.run_options import MemoryChoice
from resolvent.simulator.storage.storage import DeviceStorage, Storage
from resolvent.simulator.task import Task
from resolvent.simulator.user_errors import naming_errors

_CONTAINER_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")
_MIN_BATCH_LIMIT = 1024  # samples; smaller batches stay as they are, and sums over them have the same rounding errors


class Placement(NamedTuple):
    """A run that is ready to start.

    Attributes:
        storage: the data and the states.
        message: bytes of a party's messages in a round.
        scheduler_seconds: the seconds of a round with each candidate, if the schedulers were measured.
    """

    storage: Storage
    run_chunk: ChunkRunner
    message: MessageBytes
    scheduler_seconds: dict[str, float]


def place(plan: Plan) -> Placement:
    """Compute the first states, put data and states into memory, and choose the scheduler.

    Raises:
        InputError: the algorithm, the model and the data do not fit together, or not into the memory.
    """
    with naming_errors(plan.name):
        check_memory(plan)
        plan = limit_batches(plan)
        check_first_cohorts(plan.training_participation, jnp.asarray(plan.task.sizes), plan.seed)
        scheduler, mesh = choose_scheduler(plan.scheduler, plan.cohort_size)
        mesh = mesh_of() if plan.divides_parties else mesh
        storage = _storage_of(plan, mesh)
        run_chunk = ChunkRunner(plan.algorithm, plan.seed, plan.recorded, scheduler, mesh)
        inputs = storage.first_inputs()
        message = MessageBytes(0, 0) if plan.task.pools_data else message_bytes(plan.description)
        run_chunk.check(inputs)
        seconds: dict[str, float] = {}
        if plan.scheduler == "measured":
            scheduler, seconds = fastest_scheduler(scheduler_candidates(plan.cohort_size),
                                                   lambda candidate: run_chunk.run_copy(inputs, candidate))
            run_chunk = replace(run_chunk, scheduler=scheduler)
        return Placement(storage, run_chunk, message, seconds)


def _storage_of(plan: Plan, mesh: Mesh | None) -> Storage:
    task, rounds = plan.task, plan.of_rounds
    if plan.memory == "host":
        from resolvent.simulator.storage.host_storage import HostStorage  # most data fit on the device

        return HostStorage(rounds, task.gatherer, plan.description.party, plan.checkpoint.rows_folder)
    if plan.divides_parties:
        assert task.model is not None
        assert task.data is not None
        from resolvent.simulator.storage.shard_storage import ShardStorage  # most runs have one process

        return ShardStorage(rounds, task.model, task.data)
    return DeviceStorage(rounds, *task.problems(), mesh)


def limit_batches(plan: Plan) -> Plan:
    """The plan with minibatches that are no larger than the largest party: the remainder would be padding."""
    largest = max(_MIN_BATCH_LIMIT, int(plan.task.training_sizes.max(initial=1)))
    if all(solver.limit_batches(largest) is solver for solver in local_solvers(plan.algorithm)):
        return plan
    return replace(plan, algorithm=tree.map_parts(
        lambda solver: solver.limit_batches(largest), plan.algorithm, LocalSolver))


def choose_memory(memory: MemoryChoice, prepared: Prepared, task: Task, name: str) -> Literal["device", "host"]:
    """Where the parties' data and states are; ``auto`` is the device if they take less than half of its memory."""
    obstacle = None
    if task.model is None or task.data is None:
        obstacle = "memory='host' gathers from data: give simulate a model and data=, not a problem of its own"
    elif task.pools_data:
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
    on_device = 0 if plan.memory == "host" else 1 if plan.task.pools_data else parties
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
