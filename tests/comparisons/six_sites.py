"""A table of six sites with a number, a category, a true/false column and an outcome, as a hospital would have it."""

import numpy as np
import pandas as pd

SITES = ["Bochum", "Essen", "Fulda", "Gera", "Hagen", "Ulm"]

EXPERIMENT = """\
data: {table: visits.csv, party: hospital, label: outcome, missing: impute}
model: logistic
solver: {name: SGD, learning_rate: 0.1, epochs: 2}
algorithms: {alone: local, FedAvg+: fedavg_plus}
rounds: 10
evaluate_every: 10
diagnostics: []
"""


def visits(seed=0, rows=240):
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
