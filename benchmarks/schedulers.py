"""What each scheduler costs on four workloads: sequential, lanes and queues, on one device and on two.

    python benchmarks/schedulers.py [--workloads W1 W2 W3 W4] [--repeats 7] [--out benchmarks/schedulers.json]

W1 is like Synthetic(1,1) (30 parties, 10 a round, E=20), W2 like MNIST over 1,000 parties (10 a round, E=20), W3 the
11,910-parameter CNN on 20 parties x 2,400 images, W4 a character LSTM on 30 parties x 100 sequences of 80, 10 a round;
samples are random numbers, which cost the same. A process has the devices that it began with, so that there is one for
each number of devices; within it schedulers take turns. Seconds are medians; CPU seconds are of the whole process;
``useful`` is the share of the lanes' steps that a party needed (devices wait for each other as well: not counted).
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

os.environ.setdefault("PJRT_NPROC", "1")  # as the command line does: XLA's threads only spin on steps this small

import jax
import jax.numpy as jnp
import numpy as np

import resolvent as rv
from resolvent.simulate.engine import initial, run_chunk

ROUNDS = {"W1": 10, "W2": 10, "W3": 1, "W4": 2}
SCHEDULERS: dict[int, dict[str, rv.schedulers.Scheduler]] = {
    1: {"sequential": rv.schedulers.Sequential(), "lanes of 2": rv.schedulers.Lanes(2), "all in lanes": rv.schedulers.Lanes(), "queue of 2": rv.schedulers.Queue(2),
        "queue of 4": rv.schedulers.Queue(4)},
    2: {"sequential": rv.schedulers.Sequential(), "queue of 2": rv.schedulers.Queue(2)},
}


def main() -> None:
    """Measure and print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workloads", nargs="+", default=list(ROUNDS), choices=list(ROUNDS))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--on", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.on:
        jax.config.update("jax_num_cpu_devices", given.on)
        print(json.dumps(measure(given.workloads[0], given.on, given.repeats)))
        return
    rows: list[dict[str, Any]] = []
    for workload in given.workloads:
        for devices in SCHEDULERS:
            command = [sys.executable, __file__, "--workloads", workload, "--repeats", str(given.repeats), "--on",
                       str(devices)]
            rows += json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        base = next(row["seconds"] for row in rows if row["workload"] == workload)
        for row in rows:
            if row["workload"] == workload:
                row["speed"] = round(base / row["seconds"], 3)
                print("{workload} {devices} device(s) {scheduler:14} {seconds:9.4f} s a round, {speed:6.2f} times one "
                      "device sequential; CPU {cpu_seconds:9.4f} s; useful {useful:4.0%}".format(**row), flush=True)
    if given.out:
        facts = {"jax": jax.__version__, "cores": os.cpu_count(), "device": jax.devices()[0].device_kind,
                 "repeats": given.repeats, "rounds": ROUNDS,
                 "command": f"python benchmarks/schedulers.py {' '.join(sys.argv[1:])}"}
        given.out.write_text(json.dumps(facts | {"rows": rows}, indent=1) + "\n")


def measure(workload: str, devices: int, repeats: int) -> list[dict[str, Any]]:
    """Seconds and CPU seconds of a round for each scheduler, taking turns."""
    problem, solver, who = make(workload)
    algorithm, rounds = rv.fedprox(solver, mu=1.0), ROUNDS[workload]
    runs: dict[str, Any] = {}
    for name, inner in SCHEDULERS[devices].items():
        how = inner if devices == 1 else rv.schedulers.Sharded.over(inner)
        *world, state = how.place((problem, who, initial(algorithm, problem, who, jnp.array(0))))
        runs[name] = [how, world, state, [], []]
    useful = {}
    for repeat in range(repeats + 1):
        for name, run in runs.items():
            how, world, state, wall, cpu = run
            began = time.perf_counter(), time.process_time()
            chunk = run_chunk(algorithm, *world, state, jnp.array(0), jnp.array(0), jnp.array(rounds), capacity=rounds,
                              record=("steps",), scheduler=how)
            run[2] = jax.block_until_ready(chunk.state)
            if repeat:  # the first one compiles
                wall.append((time.perf_counter() - began[0]) / rounds)
                cpu.append((time.process_time() - began[1]) / rounds)
            useful[name] = share(SCHEDULERS[devices][name], np.asarray(chunk.record.party["steps"]))
    return [{"workload": workload, "devices": devices, "scheduler": name, "seconds": statistics.median(wall),
             "cpu_seconds": statistics.median(cpu), "useful": useful[name]}
            for name, (_, _, _, wall, cpu) in runs.items()]


def share(scheduler: rv.schedulers.Scheduler, steps: np.ndarray) -> float:
    """Steps that parties made over steps that lanes ran, in rounds of one device: [R, C] steps."""
    ran = 0
    for one in np.sort(steps, axis=1)[:, ::-1].astype(int):
        if isinstance(scheduler, rv.schedulers.Queue):
            ends = [0] * min(scheduler.width, len(one))
            for n in one:
                heapq.heapreplace(ends, ends[0] + int(n))
            ran += len(ends) * max(ends)
        elif isinstance(scheduler, rv.schedulers.Lanes):
            width = min(scheduler.width, len(one))
            batches = np.pad(one, (0, -len(one) % width)).reshape(-1, width)
            ran += width * int(batches.max(axis=1).sum())
        else:
            ran += int(one.sum())
    return float(steps.sum() / ran)


def make(workload: str) -> tuple[rv.problems.Problem, rv.solvers.LocalSolver, rv.participation.Participation]:
    """The problem, the local work and who takes part."""
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
