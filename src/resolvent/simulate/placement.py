"""From a checked plan to everything that a run needs on the machine."""

from typing import NamedTuple

from resolvent.errors import InputError
from resolvent.problem.learning import LearningProblem
from resolvent.problem.problem import Problem
from resolvent.simulate.chunks import ChunkRunner
from resolvent.simulate.host_storage import HostStorage
from resolvent.simulate.messages import MessageBytes, message_bytes
from resolvent.simulate.plan import Plan, Task
from resolvent.simulate.scheduler_choice import choose_scheduler, fastest_scheduler, scheduler_candidates
from resolvent.simulate.storage import DeviceStorage, Storage

__all__ = ["Placement", "place"]


class Placement(NamedTuple):
    """A run that is ready to start.

    Attributes:
        storage: the data and the states.
        run_chunk: runs chunks of rounds, with the chosen scheduler.
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
        InputError: the algorithm, the model and the data do not fit together.
    """
    try:
        return _place(plan)
    except (TypeError, ValueError, KeyError) as error:
        raise InputError(f"{plan.name}: {error.args[0] if error.args else error}") from error


def _place(plan: Plan) -> Placement:
    scheduler = choose_scheduler(plan.scheduler, plan.cohort_size)
    storage = HostStorage(plan) if plan.memory == "host" else DeviceStorage(plan, _problem_of(plan.task), scheduler)
    run_chunk = ChunkRunner(plan.algorithm, plan.seed, storage.capacity, plan.recorded, scheduler)
    inputs = storage.first_inputs()
    no_messages = MessageBytes(0, 0)
    message = no_messages if plan.pools_data else message_bytes(plan.algorithm, inputs.problem, inputs.state)
    run_chunk.check(inputs)
    seconds: dict[str, float] = {}
    if plan.scheduler == "measured":
        scheduler, seconds = fastest_scheduler(scheduler_candidates(plan.cohort_size),
                                               lambda candidate: run_chunk.run_copy(inputs, candidate))
        run_chunk = run_chunk.with_scheduler(scheduler)
    return Placement(storage, run_chunk, message, seconds)


def _problem_of(task: Task) -> Problem:
    if task.problem is not None:
        return task.problem
    assert task.model is not None
    assert task.data is not None
    return LearningProblem(task.model, task.data)
