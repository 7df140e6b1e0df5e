"""A rehearsal of two sites whose processes run during a test, over NVIDIA FLARE or Flower, and a refit of its run."""

from contextlib import chdir, contextmanager
from pathlib import Path

import jax
import numpy as np
import pandas as pd

from resolvent import load
from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.comparisons.runs.record import read_record
from resolvent.data.partition.splits import join_splits
from resolvent.federation.lead.lead import federate
from resolvent.federation.lead.refit import RefitOrder, refit_federation
from resolvent.federation.lead.rehearsal import compare_with_simulation, prepare_rehearsal, rehearsed_federation
from resolvent.federation.protocol.experiment import experiment_from_text
from resolvent.federation.protocol.job import FederationJob
from resolvent.federation.protocol.kits import SERVER_KIT
from resolvent.federation.protocol.policy import REHEARSAL
from resolvent.simulator.run import simulate
from resolvent.tables.encoding_files import read_encoding
from resolvent.tables.party_tables import from_frame

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
    with chdir(folder), rehearsed_federation(rehearsal, Path("work"), print, engine) as kits:
        yield rehearsal, kits, folder


def check_private_sums(rehearsal, kits, folder, note):
    """Private Fed+ with noise of the sites in secure sums: every model is that of the simulation."""
    text = EXPERIMENT.format(table=folder / "table.csv", rounds=2).replace("Scaffold: scaffold", """private: {
        name: PrivateParties, noise: parties, cohort: 2, clip: 0.5, noise_multiplier: 0.5,
        inner: {name: fedavg_plus, sigma: 0.5}}""").replace("label: ill", "label: ill, levels: {ill: [no, yes], ward: "
                                                            "[east, west]}")
    experiment = experiment_from_text(text + "participation: {name: Full, weighting: uniform}\n"
                                      "privacy: {secure_sums: true, min_sites: 2}\n", "private", policy=REHEARSAL)
    job = FederationJob("", experiment.text, SITES)
    federate(note, experiment, folder / "private", job, print, notify=print)
    (parity,) = compare_with_simulation(rehearsal, experiment, folder / "private", {site: kits[site] for site in SITES})
    assert parity.is_equal, parity


def check_late_replies(rehearsal, kits, folder, note):
    """An asynchronous method with a quorum of one is repeated by the simulation; returns whether replies were late."""
    server = kits.get(SERVER_KIT, note.kit)  # over Flower the lead makes the server's steps
    text = EXPERIMENT.format(table=folder / "table.csv", rounds=8).replace("Scaffold: scaffold",
                                                                           "FedBuff: {name: fedbuff, buffer: 2}")
    experiment = experiment_from_text(text, "late", policy=REHEARSAL)
    job = FederationJob("", experiment.text, SITES, quorum=1)
    federate(note, experiment, folder / "late", job, print, notify=print)
    (parity,) = compare_with_simulation(rehearsal, experiment, folder / "late", {site: kits[site] for site in SITES},
                                        server)
    assert parity.is_equal, parity
    log = server / "runs" / read_record(folder / "late").run / "stores" / "00" / "rounds.jsonl"
    return '"began": {"' in log.read_text()


def check_refit(folder, kits, note):
    """Train for two rounds, and two rounds again on all rows; every model of the refit is that of a simulation."""
    run, table = folder / "for refit", pd.read_csv(folder / "table.csv")
    experiment = experiment_from_text(EXPERIMENT.format(table=folder / "table.csv", rounds=2), "mine")
    federate(note, experiment, run, FederationJob("", experiment.text, SITES), print, notify=print)
    order = RefitOrder(run)
    refit_federation(note, order, print, notify=print)
    encoding = read_encoding(kits[SITES[0]] / "runs" / order.name / "encoding.json")
    data = join_splits(from_frame(table, "site", "ill", encoding=encoding, test=0.3))
    assert data.sizes().sum() == len(table)
    expected = simulate(order.experiment.algorithm("Scaffold"), order.experiment.model(encoding), data,
                        rounds=order.plan.rounds["Scaffold"], progress=False)
    fitted = [load(kits[site] / "runs" / read_record(run).run, method="Scaffold", site=site) for site in SITES]
    for model in (load(run, method="Scaffold"), *fitted):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), model.params, expected.server_model)
    assert all(f"trained on all {rows} rows of {site}" in model.provenance
               for model, site, rows in zip(fitted, SITES, data.sizes(), strict=True))
