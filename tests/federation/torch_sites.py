"""Three sites whose model is a PyTorch module, and the check that its parameters are those of a simulation."""

import numpy as np
import pandas as pd

from resolvent.comparisons.runs.load import load
from resolvent.federation.protocol.experiment import experiment_of_file
from resolvent.simulator.record.model_folder import ModelFolder
from resolvent.simulator.run import simulate
from resolvent.tables.encoding_files import read_encoding
from resolvent.tables.party_tables import from_frame

SITES = ("aachen", "berlin", "celle")
NETWORK = """
import torch

import resolvent as rv


def small(features, classes):
    return rv.models.from_torch(lambda: torch.nn.Sequential(
        torch.nn.Linear(features, 4), torch.nn.Tanh(), torch.nn.Linear(4, classes)))
"""
EXPERIMENT = """
data: {label: ill, test: 0.3}
model: networks:small
solver: {name: SGD, learning_rate: 0.1, batch_size: 10, epochs: 1}
algorithms: {Scaffold: scaffold}
rounds: 2
evaluate_every: 2
"""


def make_folder(folder):
    """Three sites, each with a table, a site file and the module of the network."""
    rng = np.random.default_rng(0)
    age = rng.normal(50, 12, 90)
    frame = pd.DataFrame({"site": np.repeat(SITES, [30, 40, 20]), "age": age, "weight": rng.normal(70, 10, 90),
                          "ill": np.where(age + rng.normal(0, 5, 90) > 50, "yes", "no")})
    frame.to_csv(folder / "all.csv", index=False)
    (folder / "mine.yaml").write_text(EXPERIMENT)
    (folder / "networks.py").write_text(NETWORK)
    for site in SITES:
        (folder / site).mkdir()
        (folder / site / "networks.py").write_text(NETWORK)
        (folder / site / "site.yaml").write_text(
            "table: patients.csv\nmodels: ['networks:small']\n"
            "limits: {min_rows: 1, min_cell: 1, min_sites: 2, max_parameters_per_row: null, max_scores: null, "
            "networks: true}\n")
        rows = frame[frame["site"] == site].drop(columns="site")
        rows.to_csv(folder / site / "patients.csv", index=False)
    return folder


def check_models(folder, out, run):
    """The shared model in ``out`` and that of Aachen in ``run`` are those of a simulation."""
    experiment, encoding = experiment_of_file("mine.yaml"), read_encoding(run / "encoding.json")
    data = from_frame(pd.read_csv(folder / "all.csv"), "site", "ill", encoding=encoding, test=0.3)
    model = experiment.model(encoding)
    result = simulate(experiment.algorithm("Scaffold"), model, data, rounds=2, progress=False)
    shared = ModelFolder(out / "models" / "Scaffold").parameters(None, model)
    assert [*shared] == ["0.bias", "0.weight", "2.bias", "2.weight"]  # the names of the state dict
    for name, leaf in result.server_model.items():
        np.testing.assert_allclose(shared[name], leaf, atol=2e-6)
    module = load(run, method="Scaffold", site="aachen").to_torch()
    np.testing.assert_allclose(module.state_dict()["0.weight"], result.personal_model("aachen")["0.weight"], atol=2e-6)
