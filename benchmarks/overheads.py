"""What evaluation, metrics, checkpoints and progress cost, as a share of a run, at their default intervals.

    python benchmarks/overheads.py [--repeats 3] [--out benchmarks/overheads.json]

Runs all of ``digits``' methods as the command line does, and W2 of the simulators' benchmark, 100 rounds; each once to
compile and then again, of which the median is taken. ``rounds`` is the time in the rounds themselves; all else is
overhead but what JAX still spends on tracing. Needs RESOLVENT_DATA with MNIST for W2.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("PJRT_NPROC", "1")  # as the command line does: XLA's threads only spin on steps this small

import jax

import resolvent as rv
from resolvent.study.compare import compare
from resolvent.study.experiment import ExperimentFile

sys.path.insert(0, str(Path(__file__).parent / "simulators"))

Facts = list[dict[str, Any]]


def main() -> None:
    """Measure and print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=3, help="runs that count")
    parser.add_argument("--work", nargs="+", choices=["digits", "W2"], default=["digits", "W2"], help="which")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    given = parser.parse_args()
    record: dict[str, Any] = {"command": f"python benchmarks/overheads.py --repeats {given.repeats}",
                              "jax": jax.__version__}
    for name in given.work:
        record[name] = shares(digits() if name == "digits" else w2(), given.repeats)
        print(name, json.dumps(record[name]))
    if given.out:
        given.out.write_text(json.dumps(record, indent=1) + "\n")


def shares(run: Callable[[Path], Facts], repeats: int) -> dict[str, float]:
    """Medians over runs: seconds in all, in rounds, in evaluation, elsewhere; and the share of overheads."""
    found = []
    for _ in range(repeats + 1):
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            facts = run(Path(folder))
            total = time.perf_counter() - start
        spent = {key: sum(f["seconds"][key] for f in facts) for key in ("compile", "rounds", "evaluation")}
        found.append({"total": total, **spent, "other": total - sum(spent.values()),
                      "overhead": 1 - spent["rounds"] / (total - spent["compile"])})
    return {key: round(statistics.median(f[key] for f in found[1:]), 4) for key in found[0]}


def digits() -> Callable[[Path], Facts]:
    """The shipped experiment, checkpoints and progress included."""
    file = ExperimentFile.load("digits")
    experiment = file.build()

    def run(folder: Path) -> Facts:
        results = compare(file, experiment, checkpoints=folder, progress=lambda label, done, total: None).results
        return [result.facts for result in results.values()]

    return run


def w2() -> Callable[[Path], Facts]:
    """FedProx on a thousand parties, with a checkpoint and the progress bar."""
    from workloads import WORKLOADS, Workload

    work: Workload = WORKLOADS["W2"]
    data = work.data()
    model = rv.models.logistic(784, 10)
    solver = rv.SGD(work.learning_rate, batch_size=work.batch, epochs=work.epochs)

    def run(folder: Path) -> Facts:
        return [rv.simulate(rv.fedprox(solver, mu=work.mu), model, data, rounds=100,
                            participation=rv.Uniform(work.cohort), checkpoint=folder).facts]

    return run


if __name__ == "__main__":
    main()
