"""A rehearsal of two sites whose processes run during a test, over NVIDIA FLARE or Flower."""

from contextlib import chdir, contextmanager
from pathlib import Path

import numpy as np
import pandas as pd

from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.federation.lead.rehearsal import _federation, prepare_rehearsal

SITES = ("aachen", "berlin")
EXPERIMENT = """
data: {{table: {table}, party: site, label: ill, test: 0.3}}
model: logistic
solver: {{name: SGD, learning_rate: 0.1, batch_size: 10, epochs: 1}}
algorithms: {{Scaffold: scaffold}}
rounds: {rounds}
evaluate_every: {rounds}
"""


@contextmanager
def two_sites(folder, engine, rounds):
    """Start server and sites; yields the rehearsal, the kits, and the folder."""
    rng = np.random.default_rng(0)
    age = rng.normal(50, 12, 80)
    table, path = folder / "table.csv", folder / "mine.yaml"
    pd.DataFrame({"site": np.repeat(SITES, [30, 50]), "age": age, "ward": rng.choice(["east", "west"], 80),
                  "ill": np.where(age + rng.normal(0, 5, 80) > 50, "yes", "no")}).to_csv(table, index=False)
    path.write_text(EXPERIMENT.format(table=table, rounds=rounds))
    rehearsal = prepare_rehearsal(ExperimentFile.load(str(path)))
    with chdir(folder), _federation(rehearsal, Path("work"), print, engine) as kits:
        yield rehearsal, kits, folder
