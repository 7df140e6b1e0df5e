"""From a checked plan to everything that a run needs on the machine."""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from resolvent.problem.solvers import LocalSolver
from resolvent.simulator.engine.cohorts import check_first_cohorts
from resolvent.simulator.engine.compiled_rounds import ChunkRunner
from resolvent.simulator.engine.schedulers import choose_scheduler, fastest_scheduler, scheduler_candidates
from resolvent.simulator.memory import check_memory
from resolvent.simulator.mesh import mesh_of
from resolvent.simulator.plan import Plan
from resolvent.simulator.record.systems import MessageBytes, message_bytes
from resolvent.simulator.storage.host_storage import HostStorage
from resolvent.simulator.storage.shard_storage import ShardStorage
from resolvent.simulator.storage.storage import DeviceStorage, Storage
from resolvent.simulator.user_errors import naming_errors

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
        return _place(limit_batches(plan))


def _place(plan: Plan) -> Placement:
    check_first_cohorts(plan.training_participation, jnp.asarray(plan.task.sizes), plan.seed)
    scheduler, mesh = choose_scheduler(plan.scheduler, plan.cohort_size)
    mesh = mesh_of() if plan.divides_parties else mesh
    storage = _storage_of(plan, mesh)
    run_chunk = ChunkRunner(plan.algorithm, plan.seed, plan.recorded, scheduler, mesh)
    inputs = storage.first_inputs()
    message = MessageBytes(0, 0) if plan.pools_data else message_bytes(plan.description)
    run_chunk.check(inputs)
    seconds: dict[str, float] = {}
    if plan.scheduler == "measured":
        scheduler, seconds = fastest_scheduler(scheduler_candidates(plan.cohort_size),
                                               lambda candidate: run_chunk.run_copy(inputs, candidate))
        run_chunk = replace(run_chunk, scheduler=scheduler)
    return Placement(storage, run_chunk, message, seconds)


def _storage_of(plan: Plan, mesh: Mesh | None) -> Storage:
    if plan.memory == "host":
        return HostStorage(plan)
    return ShardStorage(plan) if plan.divides_parties else DeviceStorage(plan, plan.task.whole_problem(), mesh)


def limit_batches(plan: Plan) -> Plan:
    """The plan with minibatches that are no larger than the largest party: the remainder would be padding."""
    sizes = np.asarray(plan.task.sizes)
    largest = max(_MIN_BATCH_LIMIT, int(sizes.sum() if plan.pools_data else sizes.max(initial=1)))

    def is_solver(part: Any) -> bool:
        return isinstance(part, LocalSolver)

    def limited(part: Any) -> Any:
        return part.limit_batches(largest) if is_solver(part) else part

    if all(limited(part) is part for part in jax.tree.leaves(plan.algorithm, is_leaf=is_solver)):
        return plan
    return replace(plan, algorithm=jax.tree.map(limited, plan.algorithm, is_leaf=is_solver))
