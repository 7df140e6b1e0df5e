"""What evaluation, metrics, checkpoints and progress cost, as a share of a run, at their default intervals.

    python benchmarks/overheads.py [--repeats 3] [--out benchmarks/overheads.json]

Runs ``digits`` as the command line does, report and all, and W2 of the simulators' benchmark for 100, 200 and 1,000
rounds with a checkpoint and the progress bar; each in a process of its own with a warm compilation cache, medians. Time
is taken around the very functions: their tracing and compilation count, too; Python's garbage ``collector`` does not.
``share`` is of the whole process, ``share_of_work`` of the rounds and these functions alone, as if nothing had to be
imported, traced, compiled or shown. Needs RESOLVENT_DATA with MNIST for W2.
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

os.environ.setdefault("PJRT_NPROC", "1")  # as the command line does: XLA's threads only spin on steps this small
_BEGIN = time.perf_counter()
RUNS = ("digits", "W2, 100 rounds", "W2, 200 rounds", "W2, 1000 rounds")


def main() -> None:
    """Measure and print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=3, help="runs that count")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--run", choices=RUNS, help="one run in this process")
    given = parser.parse_args()
    if given.run:
        print(json.dumps(run(given.run)))
        return
    record: dict[str, Any] = {"command": f"python benchmarks/overheads.py --repeats {given.repeats}"}
    for name in RUNS:
        found = [in_a_process(name) for _ in range(given.repeats + 1)][1:]
        record[name] = {key: round(statistics.median(f[key] for f in found), 4) for key in found[0]}
        print(name, json.dumps(record[name]), flush=True)
    if given.out:
        given.out.write_text(json.dumps(record, indent=1) + "\n")


def in_a_process(name: str) -> dict[str, float]:
    """One run, its seconds."""
    done = subprocess.run([sys.executable, __file__, "--run", name], check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def run(name: str) -> dict[str, float]:
    """Seconds of a run: in all, in rounds, in each kind of overhead; and the shares."""
    import pandas  # noqa: F401 - the report needs it as well, so that its import is not the metrics'
    from rich.progress import Progress

    from resolvent.simulate.checkpoints import RunCheckpoints
    from resolvent.simulate.measure import Measurements
    from resolvent.simulate.storage import DeviceStorage

    spent: Counter[str] = Counter()
    watch_collector(spent)
    for owner, method, kind in ((DeviceStorage, "advance", "rounds"), (Measurements, "evaluate", "evaluation"),
                                (Measurements, "add_chunk", "metrics"), (Measurements, "metrics", "metrics"),
                                (RunCheckpoints, "keep", "checkpoints"), (Progress, "update", "progress")):
        watch(owner, method, kind, spent)
    with tempfile.TemporaryDirectory() as folder:
        compiling = digits(Path(folder)) if name == "digits" else w2(Path(folder), int(name.split()[1]))
    total = time.perf_counter() - _BEGIN
    overheads = sum(spent[kind] for kind in ("evaluation", "metrics", "checkpoints", "progress"))
    rounds = spent["rounds"] - compiling
    return {"total": total, **spent, "rounds": rounds, "share": overheads / total,
            "share_of_work": overheads / (overheads + rounds)}


def watch(owner: type, method: str, kind: str, spent: Counter[str]) -> None:
    """Add the time in a method to the others of its kind; what it calls counts for its own kind only."""
    plain = getattr(owner, method)

    def elsewhere() -> float:
        """Of the rounds compilation is taken away later, collections included: there they count."""
        return sum(seconds for name, seconds in spent.items() if (name, kind) != ("collector", "rounds"))

    @functools.wraps(plain)
    def timed(*args: Any, **options: Any) -> Any:
        begin, before = time.perf_counter(), elsewhere()
        try:
            return plain(*args, **options)
        finally:
            spent[kind] += time.perf_counter() - begin - (elsewhere() - before)

    setattr(owner, method, timed)


def watch_collector(spent: Counter[str]) -> None:
    """Add Python's garbage collections to ``spent``, so that they count for none of the functions that they fall in."""
    def seen(phase: str, _: dict[str, int]) -> None:
        spent["collector"] += time.perf_counter() * (1 if phase == "stop" else -1)

    gc.callbacks.append(seen)


def digits(folder: Path) -> float:
    """``resolvent run digits``; returns the seconds of compilation within the rounds' calls."""
    from resolvent import cli
    from resolvent.simulate.result import Result
    from resolvent.study import compare as comparing

    found: list[Result] = []
    plain = comparing.simulate

    def kept(*args: Any, **options: Any) -> Result:
        found.append(plain(*args, **options))
        return found[-1]

    comparing.simulate = kept
    sys.argv = ["resolvent", "run", "digits", "--out", str(folder / "run")]
    with contextlib.suppress(SystemExit):
        cli.main()
    return sum(r.facts["seconds"]["compile"] for r in found)


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
