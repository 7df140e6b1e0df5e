"""What the advice costs: five folds beside one split, and the population of many sites.

    python benchmarks/advice_cost.py [--repeats 2] [--out benchmarks/advice_cost.json]

``folds`` has the CPU seconds of whole processes, ``resolvent run`` with five folds and with one, in alternation, after
one run of each that fills the cache of compiled programs: a table of 3,000 rows and 8 sites with three methods of a
logistic model, and digits. ``population`` has those of ``advise`` for two candidates, without its first call.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

from records import as_json
from resolvent.comparisons.judgement.advice import Candidate, SiteEvidence, advise

_FILE = """data: {table: table.csv, party: hospital, label: ill}
model: logistic
solver: {name: SGD, learning_rate: 0.1, batch_size: 20, epochs: 2}
algorithms: {alone: careful_local, FedAvg: fedavg, robust interpolation: robust_interpolation}
"""
_FOLDS, _SITES = (1, 5), (12, 50, 200)


def main() -> None:
    """Measure and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        _write_table(Path(folder))
        folds = {name: _of_folds(name, Path(folder), options.repeats) for name in ("mine.yaml", "digits")}
    record = {"command": f"python benchmarks/advice_cost.py --repeats {options.repeats}",
              "folds": folds, "population": {str(sites): _of_population(sites) for sites in _SITES}}
    print(json.dumps(record, indent=1))
    if options.out is not None:
        options.out.write_text(as_json(record))


def _write_table(folder: Path) -> None:
    rng, n = np.random.default_rng(0), 3000
    frame = pd.DataFrame({"hospital": rng.choice(list("abcdefgh"), n)} | {
        f"x{i}": rng.normal(size=n).round(3) for i in range(10)})
    frame["ill"] = (rng.random(n) < 1 / (1 + np.exp(frame["x1"] / 2 - frame["x0"]))).astype(int)
    frame.to_csv(folder / "table.csv", index=False)
    (folder / "mine.yaml").write_text(_FILE)


def _of_folds(name: str, folder: Path, repeats: int) -> dict[str, float]:
    """Median CPU seconds with each number of folds, and how many times as much the folds cost."""
    seconds: dict[int, list[float]] = {folds: [] for folds in _FOLDS}
    for repeat in range(repeats + 1):
        for folds in _FOLDS:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            command = [Path(sys.executable).with_name("resolvent"), "run", name, "--set", f"folds={folds}"]
            subprocess.run([*command, "--out", f"{Path(name).stem}-{folds}-{repeat}"], cwd=folder, check=True,
                           capture_output=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            if repeat:
                seconds[folds].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    one, five = (statistics.median(seconds[folds]) for folds in _FOLDS)
    return {"one split": round(one, 1), "five folds": round(five, 1), "ratio": round(five / one, 2)}


def _of_population(sites: int) -> float:
    """CPU seconds of the advice to so many sites."""
    rng = np.random.default_rng(0)
    candidates = [Candidate(method, [SiteEvidence(
        float(rng.normal(0.1, 0.1)), float(rng.uniform(0.02, 0.1) ** 2), int(rng.integers(50, 500)),
        float(rng.normal(1, 0.2)), 0.15**2) for _ in range(sites)], kind)
        for method, kind in (("FedAvg", "shared"), ("own", "personal"))]
    advise(candidates)
    start = time.process_time()
    advise(candidates)
    return round(time.process_time() - start, 2)


if __name__ == "__main__":
    main()
