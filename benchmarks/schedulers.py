"""The time of a round with each scheduler on four workloads: sequential, lanes and queues, on one and two devices.

    python benchmarks/schedulers.py [--workloads W1 W2 W3 W4] [--repeats 7] [--out benchmarks/schedulers.json]

W1 is like Synthetic(1,1) (30 parties, 10 a round, E=20), W2 like MNIST over 1,000 parties (10 a round, E=20), W3 the
11,910-parameter CNN on 20 parties x 2,400 images, W4 a character LSTM on 30 parties x 100 sequences of 80, 10 a round.
Samples are random numbers, which does not change the time. A process keeps the devices with which it starts, so there
is a process for each number of devices; in it schedulers alternate. Seconds are medians; CPU seconds are of the whole
process. ``useful`` is the fraction of the lanes' steps that a party needed; it does not count that devices wait for
each other.
"""

import argparse
import heapq
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("PJRT_NPROC", "1")  # as the command line does: more threads only wait during steps this small

import jax
import numpy as np

import resolvent as rv
from resolvent.simulator.engine.cohorts import draw_cohorts
from resolvent.simulator.engine.compiled_rounds import ChunkInputs, ChunkRunner
from resolvent.simulator.engine.rounds import initial_state
from resolvent.simulator.mesh import mesh_of, replicate

ROUNDS = {"W1": 10, "W2": 10, "W3": 1, "W4": 2}
SCHEDULERS: dict[int, dict[str, rv.schedulers.Scheduler]] = {
    1: {"sequential": rv.schedulers.Sequential(), "lanes of 2": rv.schedulers.Lanes(2),
        "all in lanes": rv.schedulers.Lanes(), "queue of 2": rv.schedulers.Queue(2),
        "queue of 4": rv.schedulers.Queue(4)},
    2: {"sequential": rv.schedulers.Sequential(), "queue of 2": rv.schedulers.Queue(2)},
}


def main() -> None:
    """Measure, print, and write the files that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workloads", nargs="+", default=list(ROUNDS), choices=list(ROUNDS))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--devices", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.devices:
        jax.config.update("jax_num_cpu_devices", options.devices)
        print(json.dumps(measure(options.workloads[0], options.devices, options.repeats)))
        return
    rows: list[dict[str, Any]] = []
    for workload in options.workloads:
        for devices in SCHEDULERS:
            command = [sys.executable, __file__, "--workloads", workload, "--repeats", str(options.repeats),
                       "--devices", str(devices)]
            rows += json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        base = next(row["seconds"] for row in rows if row["workload"] == workload)
        for row in rows:
            if row["workload"] == workload:
                row["speed"] = round(base / row["seconds"], 3)
                print("{workload} {devices} device(s) {scheduler:14} {seconds:9.4f} s a round, {speed:6.2f} times one "
                      "device sequential; CPU {cpu_seconds:9.4f} s; useful {useful:4.0%}".format(**row), flush=True)
    if options.out:
        facts = {"jax": jax.__version__, "cores": os.cpu_count(), "device": jax.devices()[0].device_kind,
                 "repeats": options.repeats, "rounds": ROUNDS,
                 "command": f"python benchmarks/schedulers.py {' '.join(sys.argv[1:])}"}
        options.out.write_text(json.dumps(facts | {"rows": rows}, indent=1) + "\n")


def measure(workload: str, devices: int, repeats: int) -> list[dict[str, Any]]:
    """Seconds and CPU seconds of a round for each scheduler; schedulers alternate."""
    problem, solver, participation = make(workload)
    algorithm, rounds = rv.fedprox(solver, mu=1.0), ROUNDS[workload]
    runs = {}
    mesh = None if devices == 1 else mesh_of()
    for name, scheduler in SCHEDULERS[devices].items():
        cohorts = draw_cohorts(participation, problem.sizes, 0, 0, rounds=rounds)
        state = initial_state(algorithm, problem, participation)
        runs[name] = Run(ChunkRunner(algorithm, 0, ("steps",), scheduler, mesh),
                         ChunkInputs(*replicate((problem, cohorts, state), mesh)))
    for repeat in range(repeats + 1):
        for run in runs.values():
            run.once(rounds, is_timed=repeat > 0)  # the first one compiles
    return [{"workload": workload, "devices": devices, "scheduler": name, "seconds": statistics.median(run.wall),
             "cpu_seconds": statistics.median(run.cpu), "useful": useful_steps(SCHEDULERS[devices][name], run.steps)}
            for name, run in runs.items()]


class Run:
    """The rounds of one scheduler, and the seconds and the parties' steps [R, C] of each of its calls."""

    def __init__(self, run_chunk: ChunkRunner, inputs: ChunkInputs) -> None:
        self.run_chunk, self.inputs = run_chunk, inputs
        self.wall: list[float] = []
        self.cpu: list[float] = []
        self.steps = np.zeros((0, 0))

    def once(self, rounds: int, *, is_timed: bool) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        chunk = self.run_chunk(self.inputs, 0, rounds)
        self.inputs = self.inputs._replace(state=jax.block_until_ready(chunk.state))
        if is_timed:
            self.wall.append((time.perf_counter() - wall) / rounds)
            self.cpu.append((time.process_time() - cpu) / rounds)
        self.steps = np.asarray(chunk.record.party["steps"])


def useful_steps(scheduler: rv.schedulers.Scheduler, steps: np.ndarray) -> float:
    """The fraction of the lanes' steps that a party needed, from the parties' steps [R, C] on one device."""
    lane_steps = 0
    for cohort in np.sort(steps, axis=1)[:, ::-1].astype(int):
        if isinstance(scheduler, rv.schedulers.Queue):
            ends = [0] * min(scheduler.width, len(cohort))
            for n in cohort:
                heapq.heapreplace(ends, ends[0] + int(n))
            lane_steps += len(ends) * max(ends)
        elif isinstance(scheduler, rv.schedulers.Lanes):
            width = min(scheduler.width, len(cohort))
            batches = np.pad(cohort, (0, -len(cohort) % width)).reshape(-1, width)
            lane_steps += width * int(batches.max(axis=1).sum())
        else:
            lane_steps += int(cohort.sum())
    return float(steps.sum() / lane_steps)


def make(workload: str) -> tuple[rv.problems.Problem, rv.solvers.LocalSolver, rv.participation.Participation]:
    """The problem, the local solver and the participation of a workload."""
    rng = np.random.default_rng(0)
    if workload in ("W1", "W2"):
        parties, features, spread = (30, 60, (4, 2, 50)) if workload == "W1" else (1000, 784, (3, 1.2, 10))
        sizes = np.minimum(rng.lognormal(*spread[:2], parties).astype(int) + spread[2], 6000)
        return (_problem(rv.models.logistic(features, 10), [rng.normal(size=(n, features)) for n in sizes], 10),
                rv.SGD(0.01, batch_size=10, epochs=20), rv.participation.Uniform(10))
    if workload == "W3":
        images = [rng.normal(size=(2400, 28, 28)).astype(np.float32) for _ in range(20)]
        return (_problem(rv.models.mnist_cnn((28, 28), 10), images, 10), rv.SGD(0.05, batch_size=50, epochs=1),
                rv.participation.Full())
    vocabulary = tuple(chr(40 + i) for i in range(80))
    tokens = [rng.integers(0, 80, (100, 80)) for _ in range(30)]
    return (_problem(rv.models.char_lstm(80, vocabulary), tokens, 80, vocabulary=vocabulary),
            rv.SGD(0.5, batch_size=10, epochs=1), rv.participation.Uniform(10))


def _problem(model: rv.Model, x: list[np.ndarray], classes: int, **options: Any) -> rv.problems.Problem:
    rng = np.random.default_rng(1)
    data = rv.FederatedData.from_arrays(x, [rng.integers(0, classes, len(rows)) for rows in x], validation=0, test=0,
                                        classes=[str(c) for c in range(classes)], **options)
    return rv.problems.LearningProblem(model, data)


if __name__ == "__main__":
    main()
