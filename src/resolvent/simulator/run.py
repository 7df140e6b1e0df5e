"""``simulate``: run an algorithm on a problem, with evaluations and checkpoints.

A run has three steps: its plan is checked (``plan``), its parts are placed in memory (``placement``), and it is run.
"""

import contextlib
import copy
import warnings
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.participation.rules import Full
from resolvent.arguments import with_options
from resolvent.data.federated import FederatedData
from resolvent.errors import DivergedError, InputError, UnusedRepliesWarning
from resolvent.math.tree import Vector
from resolvent.problem.models.model import Model
from resolvent.problem.problem import Problem
from resolvent.simulator.checkpoint.checkpoints import RunCheckpoints
from resolvent.simulator.checkpoint.identity import forget_programs_of_edited_code
from resolvent.simulator.doubts import doubt_of_replies, doubts_of_plan
from resolvent.simulator.measurements import Measurements
from resolvent.simulator.mesh import detect_lost_process, is_writer
from resolvent.simulator.placement import Placement, choose_memory, place
from resolvent.simulator.plan import (
    CheckpointPlan,
    Plan,
    choose_evaluated_parties,
    plan_evaluation,
    plan_metrics,
)
from resolvent.simulator.record.events import (
    EvaluationEvent,
    RunCallbacks,
    as_callbacks,
    copy_arrays,
    read_only,
)
from resolvent.simulator.record.progress import Progress, live_curve, progress_bar
from resolvent.simulator.record.result import Result
from resolvent.simulator.record.run_readings import RunReadings
from resolvent.simulator.record.stopwatch import Pace, stopwatch
from resolvent.simulator.run_options import RunOptions
from resolvent.simulator.states import Federation
from resolvent.simulator.storage.parties_view import CollectedModels
from resolvent.simulator.storage.storage import Storage
from resolvent.simulator.task import Task
from resolvent.xla.compiled_programs import enable_compilation_cache, free_programs_sometimes

if TYPE_CHECKING:
    from resolvent.differential_privacy.account import PrivacyAccount


@dataclass(frozen=True, kw_only=True)
class Simulation(RunOptions):
    """What ``simulate`` gets beside the algorithm.

    Attributes:
        model: a model for ``data``, or a ``Problem`` that needs no data.
        data: the parties' samples.
        checkpoint: a folder for checkpoints. They are written between rounds, as often as possible while writing takes
            at most 5 % of the run time, and after the last round; the last two are kept. In host memory they are also
            written after every evaluation, and the parties' states are in the folder ``NAME.parties`` next to it;
            without a checkpoint, they are in a temporary folder.
        resume: continue from the newest checkpoint in this folder that is not damaged, if there is one.
        progress: show a progress bar on the terminal, and in a notebook also the curve of the score; or a function that
            is called with (rounds done, rounds in total), about every half second.
        name: name of the method, in the metrics.
    """

    model: Model | Problem = field(kw_only=False)
    data: FederatedData | None = field(default=None, kw_only=False)
    checkpoint: Path | str | None = None
    resume: bool = False
    progress: bool | Progress = True
    name: str = "run"


@with_options(Simulation)
def simulate(algorithm: Algorithm, run: Simulation) -> Result:
    """Run a federation, in this process or in all processes that JAX has connected.

    Args:
        algorithm: the algorithm, such as ``fedavg(SGD(0.1))``.

    Returns:
        The models, the metrics and the time that the run took.

    Raises:
        InputError: the arguments do not fit together, or another run writes to the folder of the checkpoints. It is
            raised before the first round.
        ProcessLostError: the run has several processes, and another one has ended.

    Warns:
        UserWarning: the run teaches little: a cohort in which a robust aggregator withstands no malicious party, a
            schedule inside an optax optimizer that begins anew in every round, inputs that are bytes, or a metric that
            is defined at no party.
        UnusedRepliesWarning: no reply counted.

    Example:
        >>> data, model = rv.datasets.digits(parties=3), rv.models.logistic(64, 10)
        >>> result = rv.simulate(rv.fedavg(rv.SGD(0.1)), model, data, rounds=2, progress=False)
        >>> result.scores("test").shape  # rounds 0, 1 and 2, and three parties
        (3, 3)
    """
    enable_compilation_cache()
    task = Task.from_arguments(run.model, run.data)
    free_programs_sometimes(run.model)
    if run.start is not None:
        from resolvent.algorithms.combinators.warm_start import WarmStart  # few runs begin with a trained model

        algorithm = WarmStart(algorithm, _parameters(run.start))
    algorithm, description = prepared = task.prepare(algorithm, run.name)
    task = task.of_algorithm(algorithm)
    place_of_states = choose_memory(run.memory, prepared, task, run.name)
    participation = Full() if run.participation is None else run.participation
    spent = None if run.privacy is None or not isinstance(run.start, RunReadings) else _spent(run.start, task)
    plan = Plan(
        run.name, algorithm, description, task, participation, run.rounds, run.seed, run.scheduler, place_of_states,
        plan_evaluation(
            algorithm, rounds=run.rounds, cohort=participation.capacity(task.parties), every=run.evaluate_every,
            parties=choose_evaluated_parties(run.evaluate_parties, task.parties, run.seed, place_of_states),
            diagnostics=run.diagnostics, clock=run.clock, metrics=plan_metrics(run.metrics or (), task),
            info=description.info, pools_data=task.pools_data),
        CheckpointPlan(None if run.checkpoint is None else Path(run.checkpoint), run.resume),
        as_callbacks(run.on_evaluation), run.privacy, spent)
    with detect_lost_process(), _lock_of(plan.checkpoint.folder):
        forget_programs_of_edited_code(plan)
        for doubt in doubts_of_plan(plan):
            warnings.warn(doubt, stacklevel=3)  # the caller of simulate, which ``with_options`` wraps
        placement = place(plan)
        return _run(plan, placement, run.progress)


def _lock_of(folder: Path | None) -> contextlib.AbstractContextManager[None]:
    """A lock on the folder of the checkpoints, which the writer process holds."""
    if folder is None or not is_writer():
        return contextlib.nullcontext()
    from resolvent.data.files.folder_lock import locked  # few runs write checkpoints

    return locked(folder, "give checkpoint= another folder")


def _parameters(start: Any) -> Vector:
    from resolvent.predict.fitted import Fitted  # few runs begin with a trained model

    if isinstance(start, Fitted):
        start.check_parameters()
        return start.params
    if not isinstance(start, RunReadings):
        return start
    if (shared := start.server_model) is None:
        raise InputError("the run to start from has no shared model: give the model of one party, such as "
                         "result.personal_model(0)")
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(shared)):
        raise DivergedError(f"{start.name}: the shared model after round {start.rounds} is no start, because its "
                            "training diverged: train it again with a smaller learning rate")
    return shared


def _spent(start: RunReadings, task: Task) -> "PrivacyAccount | None":
    """What the parties of a task have released in the run from which it starts."""
    names = None if task.data is None else task.data.parties
    account = start.privacy_account
    if account is not None:
        return account.for_parties(start.parties, names, task.parties)
    if names is None or start.parties is None or {*names} & {*start.parties}:
        raise InputError("privacy: the run to start from did not count what its parties released: run it with "
                         "privacy=; or, if it was trained on samples of others, start from its parameters, "
                         "result.server_model")
    return None


def _run(plan: Plan, placement: Placement, progress: bool | Progress) -> Result:
    """Run the rounds that no checkpoint has, and evaluate on the way."""
    storage, every = placement.storage, plan.evaluation.every
    measurements = Measurements(plan, storage, placement.message)
    checkpoints = RunCheckpoints(plan, storage, measurements)
    done = checkpoints.restore()
    if done == 0:
        measurements.evaluate(0)
    elif done < plan.rounds and measurements.stop_reason is not None and checkpoints.is_writer:
        warnings.warn(f"{plan.name}: this run was stopped after round {done} of {plan.rounds} "
                      f"({measurements.stop_reason}), so that it is not continued: to train further, give checkpoint= "
                      "another folder, or start= its result", stacklevel=3)
    checkpoints.barrier(done)
    pace = Pace()
    callbacks = RunCallbacks(plan.callbacks, partial(_event, plan, storage, measurements, done > 0))
    with callbacks.closing(), progress_bar(progress if checkpoints.is_writer else False, plan.name,
                                           plan.rounds) as report, (
            live_curve(plan.name) if progress is True and checkpoints.is_writer else contextlib.nullcontext()
            ) as draw_curve:
        report(done, plan.rounds)
        while done < plan.rounds and measurements.stop_reason is None:
            next_evaluation = min(done - done % every + every, plan.rounds)
            end = measurements.last_private_round(done, next_evaluation)
            with stopwatch() as watch:
                chunk, count = storage.advance(placement.run_chunk, done, end, pace.rounds)
            pace.add(count, watch.run)
            measurements.add_chunk(chunk, done, count, watch)
            done += count
            is_evaluated = done == next_evaluation or measurements.stop_reason is not None
            if is_evaluated:
                measurements.evaluate(done)
                if done in (every, plan.rounds):
                    measurements.measure_line(chunk, done)
            checkpoints.write_if_due(done, must_write=measurements.stop_reason is not None)
            report(done, plan.rounds)
            if is_evaluated and draw_curve is not None:
                draw_curve(measurements.metrics(), storage.problem.score_name)
            if is_evaluated and (reason := callbacks.notify(done)) is not None:
                measurements.stop_reason = reason
                checkpoints.write_if_due(done, must_write=True)
    checkpoints.barrier(done)  # no process continues, and perhaps resumes, before the checkpoint is complete
    if (doubt := doubt_of_replies(measurements.metrics(), plan.name)) is not None and checkpoints.is_writer:
        warnings.warn(doubt, UnusedRepliesWarning, stacklevel=4)
    facts = measurements.facts() | (
        {"scheduler_seconds": placement.scheduler_seconds} if placement.scheduler_seconds else {})
    return Result(plan.name, plan.algorithm, storage.problem, plan.task.data, storage.final_state(),
                  measurements.metrics(), facts, done, plan.seed, storage.digest(), storage.view)


def _event(plan: Plan, storage: Storage, measurements: Measurements, is_resumed: bool,
           rounds: int) -> EvaluationEvent:
    """The event of an evaluation; the models are copied only when a callback reads them."""
    def snapshot() -> Result:
        state = storage.evaluated_parties()[0].state
        result = Result(plan.name, plan.algorithm, storage.problem, read_only(plan.task.data), state,
                        measurements.metrics().copy(),
                        copy.deepcopy(measurements.facts()), rounds, plan.seed, storage.digest())
        if storage.view is not None:  # the state has some of the parties only
            models = CollectedModels(storage.view, replace(result, storage=storage.view).personal_models)
            return replace(result, state=Federation(copy_arrays(state.server), ()), storage=models)
        return replace(result, state=copy_arrays(state))

    problem = storage.problem
    metrics = {} if plan.evaluation.metrics is None else plan.evaluation.metrics.metrics
    directions = {name: metric.higher_is_better for name, metric in metrics.items()} | {
        "loss": False, problem.score_name: problem.higher_is_better}
    return EvaluationEvent(plan.name, plan.seed, rounds, plan.rounds, problem.score_name, directions, is_resumed,
                           measurements.metrics().copy(), snapshot)
