"""Runs of one algorithm with several values of its numbers, side by side in one compiled call.

The runs have the same data, cohorts and random numbers, and differ in traced numbers only, such as learning rates. A
chunk of rounds of all runs is one ``jax.vmap`` over the algorithms and their states, so that the small models of many
runs occupy an accelerator together. The results are those of single runs, up to rounding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.participation.rules import Full, Participation
from resolvent.data.federated import FederatedData
from resolvent.errors import InputError
from resolvent.problem.metrics.metric import Metric
from resolvent.problem.models.model import Model
from resolvent.problem.problem import Problem
from resolvent.simulator.engine.cohorts import DrawnCohorts
from resolvent.simulator.engine.compiled_rounds import run_chunk
from resolvent.simulator.engine.schedulers import Lanes, Scheduler, Sequential
from resolvent.simulator.measurements import Measurements
from resolvent.simulator.placement import place
from resolvent.simulator.plan import CheckpointPlan, Plan, plan_evaluation, plan_metrics
from resolvent.simulator.record.result import Result
from resolvent.simulator.record.stopwatch import Stopwatch, stopwatch
from resolvent.simulator.states import Chunk, Federation
from resolvent.simulator.storage.storage import DeviceStorage
from resolvent.simulator.task import Task
from resolvent.xla.compiled_programs import enable_compilation_cache, free_programs_sometimes


def structure_of(algorithm: Algorithm) -> tuple[Any, ...]:
    """A key that two algorithms have in common if they differ in traced numbers only."""
    leaves, structure = jax.tree.flatten(algorithm)
    return structure, *((np.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)


def groups_of_one_structure(algorithms: Mapping[int, Algorithm], size: int) -> list[dict[int, Algorithm]]:
    """The algorithms, by number, in groups of at most ``size`` that can run together; every one alone with size 1."""
    of_structure: dict[Any, list[tuple[int, Algorithm]]] = {}
    for number, algorithm in algorithms.items():
        of_structure.setdefault(structure_of(algorithm) if size > 1 else (), []).append((number, algorithm))
    return [dict(same[start:start + size]) for same in of_structure.values() for start in range(0, len(same), size)]


def simulate_together(
    algorithms: Sequence[Algorithm],
    model: Model | Problem,
    data: FederatedData | None = None,
    *,
    rounds: int,
    seed: int = 0,
    participation: Participation | None = None,
    evaluate_every: int | None = None,
    metrics: Sequence[Metric] | Mapping[str, Metric] = (),
    name: str = "run",
) -> list[Result]:
    """Run several algorithms of one structure side by side, on one device.

    Args:
        algorithms: algorithms with the same ``structure_of``.
        model: the model, as for ``simulate``.
        data: the parties' samples, as for ``simulate``.
        rounds: number of rounds of each run.
        seed: seed of all random numbers, the same for all runs.
        participation: which parties take part in a round, as for ``simulate``.
        evaluate_every: number of rounds between evaluations, as for ``simulate``.
        metrics: the metrics, as for ``simulate``.
        name: name of the method, in the metrics.

    Returns:
        The result of each algorithm. The seconds of a run are an equal part of those of all runs.

    Raises:
        InputError: the structures differ, there are several processes, or the arguments do not fit together.
    """
    if len({structure_of(algorithm) for algorithm in algorithms}) != 1:
        raise InputError("the algorithms differ in more than traced numbers, such as learning rates: run those of each "
                         "structure together")
    if jax.process_count() > 1:
        raise InputError("runs side by side are for one process: run them one after the other")
    enable_compilation_cache()
    free_programs_sometimes(model)
    runs = [_Run(plan) for plan in _plans(algorithms, model, data, rounds, seed, participation, evaluate_every,
                                          plan_metrics(metrics, Task.from_arguments(model, data)), name)]
    for run in runs:
        run.measurements.evaluate(0)
    _run_rounds(runs)
    return [run.result() for run in runs]


def _plans(algorithms: Sequence[Algorithm], model: Model | Problem, data: FederatedData | None, rounds: int, seed: int,
           participation: Participation | None, every: int | None, metrics: Any, name: str) -> list[Plan]:
    """The plan of each run. All of them share one problem, so that the samples are on the device once."""
    task = Task.from_arguments(model, data)
    prepared = [task.prepare(algorithm, name) for algorithm in algorithms]
    task = replace(task, problem=task.whole_problem()).of_algorithm(algorithms[0])
    participation = Full() if participation is None else participation
    scheduler: Scheduler = Sequential() if jax.default_backend() == "cpu" else Lanes()
    evaluation = plan_evaluation(
        algorithms[0], rounds=rounds, cohort=participation.capacity(task.parties), every=every,
        parties=np.arange(task.parties, dtype=np.int32), diagnostics=(), clock=None, metrics=metrics,
        pools_data=task.pools_data)
    return [Plan(name, algorithm, description, task, participation, rounds, seed, scheduler, "device", evaluation,
                 CheckpointPlan(None, False)) for algorithm, description in prepared]


class _Run:
    """One of the runs.

    Attributes:
        runner: its algorithm and what a compiled call is specialised to.
    """

    def __init__(self, plan: Plan) -> None:
        placement = place(plan)
        self.plan, self.runner = plan, placement.run_chunk
        self.storage = cast("DeviceStorage", placement.storage)  # that of a plan for one device
        self.measurements = Measurements(plan, self.storage, placement.message)

    def add(self, chunk: Chunk, start: int, rounds: int, watch: Stopwatch) -> None:
        """Add a chunk of rounds, and evaluate if one is due."""
        end = start + rounds
        self.storage.restore(chunk.state, {}, end)
        self.measurements.add_chunk(chunk, start, rounds, watch)
        if end % self.plan.evaluation.every == 0 or end == self.plan.rounds:
            self.measurements.evaluate(end)

    def result(self) -> Result:
        """The result after all rounds."""
        plan = self.plan
        return Result(plan.name, plan.algorithm, self.storage.problem, plan.task.data, self.storage.final_state(),
                      self.measurements.metrics(), self.measurements.facts(), plan.rounds, plan.seed,
                      self.storage.digest())


def _run_rounds(runs: Sequence[_Run]) -> None:
    plan, runner = runs[0].plan, runs[0].runner
    inputs = [run.storage.first_inputs() for run in runs]
    states = _stack([of_run.state for of_run in inputs])
    algorithms = _stack([run.runner.algorithm for run in runs])
    done, every, seed = 0, plan.evaluation.every, jnp.array(plan.seed)
    while done < plan.rounds:
        count = min(done - done % every + every, plan.rounds, done + runs[0].storage.capacity) - done
        with stopwatch() as watch:
            chunks = _run_chunks(algorithms, inputs[0].problem, runs[0].storage.draw(done, count), states, seed,
                                 jnp.array(done), jnp.array(count), record=runner.record, scheduler=runner.scheduler)
            jax.block_until_ready(chunks.record)  # type: ignore[no-untyped-call]
        states = chunks.state
        part = Stopwatch(*(seconds / len(runs) for seconds in (watch.total, watch.compile, watch.cpu)))
        for number, run in enumerate(runs):
            run.add(jax.tree.map(lambda leaf, i=number: leaf[i], chunks), done, count, part)
        done += count


@partial(jax.jit, static_argnames=("record", "scheduler"))
def _run_chunks(algorithms: Algorithm, problem: Problem, cohorts: DrawnCohorts, states: Federation,
                seed: Int[Array, ""], start: Int[Array, ""], count: Int[Array, ""], *, record: tuple[str, ...],
                scheduler: Scheduler) -> Chunk:
    """``run_chunk`` for each of several algorithms and states, leaves [T, ...]."""
    def of_run(algorithm: Algorithm, state: Federation) -> Chunk:
        # Without call metadata: the compiled call could not fall back to the plain form.
        return run_chunk.function(algorithm, problem, cohorts, state, seed, start, count, record=record,
                                  scheduler=scheduler, mesh=None, plain=True)

    chunks: Chunk = jax.vmap(of_run)(algorithms, states)
    return chunks


def _stack(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *trees)
