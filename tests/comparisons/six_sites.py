"""A table of six sites with a number, a category, a true/false column and an outcome, as a hospital would have it."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.comparisons.runs.comparison import Comparison
from resolvent.comparisons.runs.comparison_runs import compare_file
from resolvent.comparisons.runs.run_folder import begin, write_results
from resolvent.comparisons.runs.summary import Source

SITES = ["Bochum", "Essen", "Fulda", "Gera", "Hagen", "Ulm"]
ROWS = 600

EXPERIMENT = """\
data: {table: visits.csv, party: hospital, label: outcome, missing: impute, test: 0.3}
model: logistic
solver: {name: SGD, learning_rate: 0.1, epochs: 2}
algorithms: {alone: local, FedAvg: fedavg, FedAvg+: {name: fedavg_plus, sigma: 0.5}}
rounds: 10
folds: 1
evaluate_every: 2
diagnostics: []
"""


def visits(seed=0, rows=ROWS):
    """Rows of all sites; one pressure in twenty is missing."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({
        "patient": [f"{seed}-{i:04d}" for i in range(rows)],
        "hospital": np.array(SITES)[np.arange(rows) % 6],
        "age": rng.normal(60, 12, rows).clip(20, 95).round(1),
        "pressure": rng.normal(130, 15, rows).round(),
        "ward": rng.choice(["01", "02", "intensive"], rows, p=[0.5, 0.3, 0.2]),
        "smoker": rng.random(rows) < 0.3,
    })
    risk = (frame["age"] - 60) / 12 + (frame["pressure"] - 130) / 15 + frame["smoker"] + rng.normal(0, 0.7, rows)
    frame["outcome"] = np.where(risk > 0.3, "ill", "well")
    frame.loc[rng.random(rows) < 0.05, "pressure"] = np.nan
    return frame


class Run(NamedTuple):
    """A finished run on a table, without its report: its folder, the file of the table, the table, the comparison."""

    folder: Path
    csv: Path
    table: pd.DataFrame
    comparison: Comparison


def write_run(folder, table, text=EXPERIMENT):
    """Run the experiment on a table in a folder."""
    table.to_csv(folder / "visits.csv", index=False)
    file = ExperimentFile.parse(text.replace("visits.csv", str(folder / "visits.csv")), "mine.yaml", "mine")
    begin(folder, file, resume=False)
    comparison = Comparison.of(compare_file(file))
    write_results(folder, Source.of_file(file), comparison)
    return Run(folder, folder / "visits.csv", table, comparison)
