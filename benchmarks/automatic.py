"""Is the automatic choice as good as the best of a grid? ``fedplus_auto`` against every pair of its own candidates.

    python benchmarks/automatic.py [--first 5] [--seeds 5] [--out benchmarks/automatic.json]

The federation is that of the shipped experiment ``digits`` (ten parties, one inverted, one slow), drawn anew for every
seed. Each row is a seed: the mean test accuracy over parties of local training, of the automatic choice, and of the
whole grid of fixed pairs: its best (known only with the test samples at hand), its best by validation accuracy after as
many whole runs as there are pairs, its median and its worst. ``rank`` is how many pairs beat the choice by more than
rounding. ``model_interpolation`` is the guarantee on digits: how many parties are worse off than alone on validation loss (none
can be), and on test accuracy, with FedAvg inside and without.
"""

import argparse
import json
import os
import statistics
from pathlib import Path
from typing import Any

os.environ.setdefault("PJRT_NPROC", "1")  # as the command line does: XLA's threads only spin on steps this small

import jax
import numpy as np

import resolvent as rv
from resolvent.study.experiment import Experiment, ExperimentFile

SIGMAS, DELTAS = (0.03, 0.1, 0.3, 1.0), (0.1, 0.3, 1.0, 3.0)
ROUNDS = 100


def main() -> None:
    """Measure and print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--first", type=int, default=5, help="the first seed")
    parser.add_argument("--seeds", type=int, default=5, help="how many federations")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    given = parser.parse_args()
    rows = []
    for seed in range(given.first, given.first + given.seeds):
        rows.append(of_seed(seed))
        print(json.dumps(rows[-1]), flush=True)
    names = ("alone", "fedavg", "never_worse_fedavg", "auto_by_score", "auto_by_loss", "auto_default", "best",
             "by_validation", "median", "worst")
    mean = {name: round(statistics.mean(row[name] for row in rows), 4) for name in names}
    print("mean over seeds:", mean)
    if given.out:
        command = f"python benchmarks/automatic.py --first {given.first} --seeds {given.seeds} --out {given.out}"
        facts = {"sigmas": SIGMAS, "deltas": DELTAS, "rounds": ROUNDS, "mean": mean, "jax": jax.__version__,
                 "command": command}
        lines = ",\n  ".join(json.dumps(row) for row in rows)
        given.out.write_text(json.dumps(facts, indent=1)[:-2] + f',\n "rows": [\n  {lines}\n ]\n}}\n')


def of_seed(seed: int) -> dict[str, Any]:
    """One federation."""
    experiment = ExperimentFile.load("digits", [f"seed={seed}", f"data.seed={seed}"]).build()
    solver = experiment.solver

    def run(algorithm: rv.Algorithm) -> rv.Result:
        return final(experiment, algorithm, seed)

    grid = {(s, d): run(rv.fedgeomed_plus(solver, sigma=s, delta=d)) for s in SIGMAS for d in DELTAS}
    tests = {pair: score(result, "test") for pair, result in grid.items()}
    valid = {pair: score(result, "validation") for pair, result in grid.items()}
    alone, fedavg = run(rv.local(solver)), run(rv.fedavg(solver, stragglers="keep"))
    row: dict[str, Any] = {"seed": seed, "alone": score(alone, "test"), "best": max(tests.values()),
                           "by_validation": tests[max(valid, key=lambda pair: valid[pair])],
                           "median": round(statistics.median(tests.values()), 4), "worst": min(tests.values())}
    for by in ("score", "loss"):
        auto = run(rv.fedplus_auto(solver, sigmas=SIGMAS, deltas=DELTAS, by=by))
        row |= {f"auto_by_{by}": score(auto, "test"),
                f"rank_by_{by}": sum(t > score(auto, "test") + 1e-6 for t in tests.values())}
    row["auto_default"] = score(run(rv.fedplus_auto(solver)), "test")
    safe = run(rv.model_interpolation(solver, rv.fedavg(solver, stragglers="keep")))
    row["fedavg"], row["never_worse_fedavg"] = score(fedavg, "test"), score(safe, "test")
    for name, result in (("fedavg", fedavg), ("never_worse_fedavg", safe)):
        row[f"{name}_hurts"] = {
            "validation loss": int(np.sum(values(result, "validation", "loss") > values(alone, "validation", "loss"))),
            "test accuracy": int(np.sum(values(result, "test") < values(alone, "test")))}
    return row


def final(experiment: Experiment, algorithm: rv.Algorithm, seed: int) -> rv.Result:
    """All rounds, evaluated at the end alone."""
    return rv.simulate(algorithm, experiment.model, experiment.data, rounds=ROUNDS, seed=seed, evaluate_every=ROUNDS,
                       participation=experiment.participation, progress=False)


def values(result: rv.Result, split: str, metric: str = "accuracy") -> np.ndarray:
    """Per party, at the last round."""
    return result.scores(split, metric).iloc[-1].to_numpy()


def score(result: rv.Result, split: str) -> float:
    """Mean accuracy over parties, at the last round."""
    return round(float(values(result, split).mean()), 4)


if __name__ == "__main__":
    main()
