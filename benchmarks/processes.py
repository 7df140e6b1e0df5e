"""Memory of each process and time of a round, in one and in several processes on this machine.

    python benchmarks/processes.py [--counts 1 2] [--parties 4000] [--repeats 3] [--out benchmarks/processes.json]

Parties have 50 images of 784 pixels, 157 KB in float32, on the disk. In every round 20 of them train for one epoch:
logistic regression with FedAvg+, whose parties have a state of 31 KB, or a convolutional network with FedAvg. Counts
alternate, so that other load of the machine affects all of them. Figures are medians of the repeats: seconds of a
round, CPU seconds of a round in each process, the peak of a process's resident memory, and its memory after the last
round; before JAX has computed anything, a process has ``base`` MiB. ``share`` is the part of the samples that the
process has. All counts must have the same scores.
"""

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("PJRT_NPROC", "1")  # as the command line does: more threads only wait during steps this small

import numpy as np

SAMPLES, FEATURES, CLASSES, COHORT, ROUNDS, EVALUATED = 50, 784, 10, 20, 40, 100
WORKS = ("logistic, FedAvg+", "CNN, FedAvg")


def parties(count: int) -> Iterator[tuple[Any, Any]]:
    """Images of ten patterns with noise."""
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 160, (CLASSES, FEATURES), np.uint8)
    for _ in range(count):
        labels = rng.integers(0, CLASSES, SAMPLES)
        yield (patterns[labels] + rng.integers(0, 96, (SAMPLES, FEATURES), np.uint8)).reshape(-1, 28, 28), labels


def memory() -> dict[str, float]:
    """MiB of this process: the peak, and now."""
    text = Path("/proc/self/status").read_text()
    return {name: int(re.search(rf"{field}:\s+(\d+)", text)[1]) / 1024  # type: ignore[index]
            for name, field in (("peak", "VmHWM"), ("end", "VmRSS"))}


def one_process(work: str, folder: Path, number: int, count: int, address: str) -> dict[str, Any]:
    """What one of ``count`` processes measures."""
    import resolvent as rv
    from resolvent.simulator.mesh import connect

    base = memory()["end"]
    if count > 1:
        connect(address, count, number)
    data = rv.open_packed(folder)
    if work.startswith("logistic"):
        algorithm, model = rv.fedavg_plus(rv.SGD(0.05, batch_size=10), sigma=1.0), rv.models.logistic(FEATURES, CLASSES)
    else:
        algorithm, model = rv.fedavg(rv.SGD(0.05, batch_size=10)), rv.models.mnist_cnn((28, 28), CLASSES)
    result = rv.simulate(algorithm, model, data, rounds=ROUNDS, evaluate_every=ROUNDS // 2, progress=False,
                         participation=rv.participation.Uniform(COHORT), memory="device",
                         evaluate_parties=min(EVALUATED, len(data)))
    inner = getattr(result.problem, "inner", result.problem)
    return {"base": base, **memory(), "round": result.facts["seconds_per_round"][-1],
            "cpu": result.facts["cpu_per_round"][-1], "score": float(result.scores().iloc[-1].mean()),
            "share": float(np.asarray(inner.length).sum() / (SAMPLES * len(data)))}


def run(work: str, folder: Path, count: int) -> list[dict[str, Any]]:
    """The measurements of all processes of one run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    started = [subprocess.Popen([sys.executable, __file__, "--process", work, str(folder), str(number), str(count),
                                 address], stdout=subprocess.PIPE, text=True) for number in range(count)]
    answers = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit(f"{work} in {count} processes failed")
    return [json.loads(answer.splitlines()[-1]) for answer in answers]


def summary(work: str, count: int, runs: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians over the repeats: of the slowest process for seconds, of every process for memory."""
    def median(name: str, number: int) -> float:
        return round(statistics.median(processes[number][name] for processes in runs), 6)

    return {"work": work, "processes": count,
            "seconds_per_round": round(statistics.median(max(p["round"] for p in run) for run in runs), 6),
            "cpu_per_round": [median("cpu", i) for i in range(count)],
            **{f"{name}_mib": [round(median(name, i)) for i in range(count)] for name in ("base", "peak", "end")},
            "share": [round(median("share", i), 3) for i in range(count)],
            "score": median("score", 0)}


def main() -> None:
    """Measure, print, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--counts", nargs="+", type=int, default=[1, 2], help="numbers of processes")
    parser.add_argument("--parties", type=int, default=4000, help="number of parties")
    parser.add_argument("--repeats", type=int, default=3, help="number of runs of each")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--process", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.process:
        work, folder, number, count, address = options.process
        print(json.dumps(one_process(work, Path(folder), int(number), int(count), address)))
        return
    import resolvent as rv

    runs: dict[tuple[str, int], list[list[dict[str, Any]]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "parties")
        rv.write_packed(folder, parties(options.parties), classes=[str(c) for c in range(CLASSES)], scale=1 / 255)
        for _ in range(options.repeats):
            for work in WORKS:
                for count in options.counts:
                    runs.setdefault((work, count), []).append(run(work, folder, count))
    rows = [summary(work, count, measured) for (work, count), measured in sorted(runs.items())]
    for row in rows:
        print(json.dumps(row))
    if options.out:
        options.out.write_text(json.dumps({
            "command": f"python benchmarks/processes.py --counts {' '.join(map(str, options.counts))} --parties "
                       f"{options.parties} --repeats {options.repeats}", "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
