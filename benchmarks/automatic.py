"""Is the automatic choice as good as the best of a grid? ``fedplus_auto`` against every pair of its own candidates.

    python benchmarks/automatic.py [--first 5] [--seeds 5] [--out benchmarks/automatic.json]

The federation is that of the experiment ``digits`` (ten parties, one inverted, one slow), drawn again for every seed.
Each row is a seed. It has the mean test accuracy over parties of local training, of the automatic choice, and of the
grid of fixed pairs: the best pair (which only the test samples reveal), the best pair by validation accuracy (which
needs a run per pair), the median and the worst. ``rank`` is the number of pairs that are better than the choice by more
than rounding. For ``model_interpolation`` it counts the parties that are worse than with local training: by validation
loss, which is impossible, and by test accuracy; with FedAvg inside, and for FedAvg without interpolation.
"""

import argparse
import json
import os
import statistics
from pathlib import Path
from typing import Any

os.environ.setdefault("PJRT_NPROC", "1")  # as the command line does: more threads only wait during steps this small

import jax
import numpy as np

import resolvent as rv
from records import as_json
from resolvent.comparisons.experiment.experiment_file import Experiment, ExperimentFile

SIGMAS, DELTAS = (0.03, 0.1, 0.3, 1.0), (0.1, 0.3, 1.0, 3.0)
ROUNDS = 100


def main() -> None:
    """Measure, print, and write the files that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--first", type=int, default=5, help="the first seed")
    parser.add_argument("--seeds", type=int, default=5, help="number of federations")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    rows = []
    for seed in range(options.first, options.first + options.seeds):
        rows.append(of_seed(seed))
        print(json.dumps(rows[-1]), flush=True)
    names = ("alone", "fedavg", "interpolated_fedavg", "auto_by_score", "auto_by_loss", "auto_default", "best",
             "by_validation", "median", "worst")
    mean = {name: round(statistics.mean(row[name] for row in rows), 4) for name in names}
    print("mean over seeds:", mean)
    if options.out:
        command = f"python benchmarks/automatic.py --first {options.first} --seeds {options.seeds} --out {options.out}"
        facts = {"sigmas": SIGMAS, "deltas": DELTAS, "rounds": ROUNDS, "mean": mean, "jax": jax.__version__,
                 "command": command}
        options.out.write_text(as_json(facts, rows=rows))


def of_seed(seed: int) -> dict[str, Any]:
    """The accuracies on one federation."""
    experiment = ExperimentFile.load("digits", [f"seed={seed}", f"data.seed={seed}"]).build()
    solver = experiment.solver

    def run(algorithm: rv.Algorithm) -> rv.Result:
        return final(experiment, algorithm, seed)

    grid = {(s, d): run(rv.fedgeomed_plus(solver, sigma=s, delta=d)) for s in SIGMAS for d in DELTAS}
    tests = {pair: score(result, "test") for pair, result in grid.items()}
    validation = {pair: score(result, "validation") for pair, result in grid.items()}
    local, fedavg = run(rv.local(solver)), run(rv.fedavg(solver))
    row: dict[str, Any] = {"seed": seed, "alone": score(local, "test"), "best": max(tests.values()),
                           "by_validation": tests[max(validation, key=lambda pair: validation[pair])],
                           "median": round(statistics.median(tests.values()), 4), "worst": min(tests.values())}
    for by in ("score", "loss"):
        auto = run(rv.fedplus_auto(solver, sigmas=SIGMAS, deltas=DELTAS, by=by))
        row |= {f"auto_by_{by}": score(auto, "test"),
                f"rank_by_{by}": sum(t > score(auto, "test") + 1e-6 for t in tests.values())}
    row["auto_default"] = score(run(rv.fedplus_auto(solver)), "test")
    interpolated = run(rv.model_interpolation(solver, rv.fedavg(solver)))
    row["fedavg"], row["interpolated_fedavg"] = score(fedavg, "test"), score(interpolated, "test")
    for name, result in (("fedavg", fedavg), ("interpolated_fedavg", interpolated)):
        row[f"{name}_hurts"] = {
            "validation loss": int(np.sum(values(result, "validation", "loss") > values(local, "validation", "loss"))),
            "test accuracy": int(np.sum(values(result, "test") < values(local, "test")))}
    return row


def final(experiment: Experiment, algorithm: rv.Algorithm, seed: int) -> rv.Result:
    """A run that is evaluated before the first and after the last round."""
    return rv.simulate(algorithm, experiment.model, experiment.data, rounds=ROUNDS, seed=seed, evaluate_every=ROUNDS,
                       participation=experiment.participation, progress=False)


def values(result: rv.Result, split: str, metric: str = "accuracy") -> np.ndarray:
    """[N] of each party after the last round."""
    return result.scores(split, metric).iloc[-1].to_numpy()


def score(result: rv.Result, split: str) -> float:
    """Mean accuracy over parties after the last round."""
    return round(float(values(result, split).mean()), 4)


if __name__ == "__main__":
    main()
