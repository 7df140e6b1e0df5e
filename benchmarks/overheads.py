"""The time of evaluation, metrics, checkpoints and progress as a fraction of a run, at their default intervals.

    python benchmarks/overheads.py [--repeats 3] [--out benchmarks/overheads.json]

Runs ``digits`` as the command line does, with the report, and W2 of the simulators' benchmark for 100, 200 and 1,000
rounds with a checkpoint and the progress bar. Each run is a process with a warm compilation cache; figures are medians.
Time is measured around the functions, with their tracing and compilation, and without Python's garbage ``collector``.
``share`` is the fraction of the whole process, ``share_of_work`` the fraction of the rounds and these functions,
without imports, tracing, compilation and output. Needs RESOLVENT_DATA with MNIST for W2.
"""

import argparse
import contextlib
import functools
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.setdefault("PJRT_NPROC", "1")  # as the command line does: more threads only wait during steps this small
_BEGIN = time.perf_counter()
RUNS = ("digits", "W2, 100 rounds", "W2, 200 rounds", "W2, 1000 rounds")


def main() -> None:
    """Measure, print, and write the files that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=3, help="runs that count")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--run", choices=RUNS, help="one run in this process")
    options = parser.parse_args()
    if options.run:
        print(json.dumps(run(options.run)))
        return
    record: dict[str, Any] = {"command": f"python benchmarks/overheads.py --repeats {options.repeats}"}
    for name in RUNS:
        runs = [run_in_process(name) for _ in range(options.repeats + 1)][1:]
        record[name] = {key: round(statistics.median(run[key] for run in runs), 4) for key in runs[0]}
        print(name, json.dumps(record[name]), flush=True)
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n")


def run_in_process(name: str) -> dict[str, float]:
    """The seconds of one run in a new process."""
    process = subprocess.run([sys.executable, __file__, "--run", name], check=True, capture_output=True, text=True)
    seconds: dict[str, float] = json.loads(process.stdout.splitlines()[-1])
    return seconds


def run(name: str) -> dict[str, float]:
    """Seconds of a run: in total, in rounds, in each kind of overhead; and the fractions."""
    import pandas  # noqa: F401 - the report needs it as well, so its import does not count for the metrics
    from rich.progress import Progress

    from resolvent.simulator.checkpoint.checkpoints import RunCheckpoints
    from resolvent.simulator.record.measurements import Measurements
    from resolvent.simulator.storage.storage import DeviceStorage

    spent: Counter[str] = Counter()
    watch_collector(spent)
    for owner, method, kind in ((DeviceStorage, "advance", "rounds"), (Measurements, "evaluate", "evaluation"),
                                (Measurements, "measure_line", "evaluation"), (Measurements, "add_chunk", "metrics"),
                                (Measurements, "metrics", "metrics"),
                                (RunCheckpoints, "write_if_due", "checkpoints"), (Progress, "update", "progress")):
        watch(owner, method, kind, spent)
    with tempfile.TemporaryDirectory() as folder:
        compiling = digits(Path(folder)) if name == "digits" else w2(Path(folder), int(name.split()[1]))
    total = time.perf_counter() - _BEGIN
    overheads = sum(spent[kind] for kind in ("evaluation", "metrics", "checkpoints", "progress"))
    rounds = spent["rounds"] - compiling
    return {"total": total, **spent, "rounds": rounds, "share": overheads / total,
            "share_of_work": overheads / (overheads + rounds)}


def watch(owner: type, method: str, kind: str, spent: Counter[str]) -> None:
    """Add the time in a method to that of its kind; watched methods that it calls count for their own kind only."""
    original = getattr(owner, method)

    def seconds_of_others() -> float:
        """Collections count for the rounds, because their compilation is subtracted with its collections."""
        return sum(seconds for name, seconds in spent.items() if (name, kind) != ("collector", "rounds"))

    @functools.wraps(original)
    def timed(*args: Any, **options: Any) -> Any:
        begin, before = time.perf_counter(), seconds_of_others()
        try:
            return original(*args, **options)
        finally:
            spent[kind] += time.perf_counter() - begin - (seconds_of_others() - before)

    setattr(owner, method, timed)


def watch_collector(spent: Counter[str]) -> None:
    """Add Python's garbage collections to ``spent``, so that no function that they interrupt has them."""
    def on_collection(phase: str, _: dict[str, int]) -> None:
        spent["collector"] += time.perf_counter() * (1 if phase == "stop" else -1)

    gc.callbacks.append(on_collection)


def digits(folder: Path) -> float:
    """``resolvent run digits``; returns the seconds of compilation within the rounds' calls."""
    from resolvent import cli
    from resolvent.comparisons.runs import compare as comparing
    from resolvent.simulator.record.result import Result

    results: list[Result] = []
    simulate = comparing.simulate

    def simulate_and_store(*args: Any, **options: Any) -> Result:
        results.append(simulate(*args, **options))
        return results[-1]

    comparing.simulate = simulate_and_store
    sys.argv = ["resolvent", "run", "digits", "--out", str(folder / "run")]
    with contextlib.suppress(SystemExit):
        cli.main()
    return sum(r.facts["seconds"]["compile"] for r in results)


def w2(folder: Path, rounds: int) -> float:
    """FedProx on a thousand parties, with a checkpoint and the progress bar."""
    import resolvent as rv

    sys.path.insert(0, str(Path(__file__).parent / "simulators"))
    from workloads import WORKLOADS, Workload

    work: Workload = WORKLOADS["W2"]
    solver = rv.SGD(work.learning_rate, batch_size=work.batch, epochs=work.epochs)
    result = rv.simulate(rv.fedprox(solver, mu=work.mu), rv.models.logistic(784, 10), work.data(), rounds=rounds,
                         participation=rv.participation.Uniform(work.cohort), checkpoint=folder / "checkpoint")
    return float(result.facts["seconds"]["compile"])


if __name__ == "__main__":
    main()
