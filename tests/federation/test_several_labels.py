"""Tables with several labels over encoded messages: models of a simulation, and the rules of a site for each label."""


import numpy as np
import pytest

import nightly
from federation.harness import EXPERIMENT, SITES, Consortium, limits
from resolvent.comparisons.after.predictions import predict_file
from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.federation.engines.in_process import InProcess
from resolvent.federation.lead.rehearsal import prepare_rehearsal, rehearse
from resolvent.federation.protocol.files import Approval
from resolvent.federation.protocol.job import FederationJob
from resolvent.federation.protocol.policy import REHEARSAL
from resolvent.federation.protocol.wire import decode, encode
from resolvent.simulator.record.model_folder import ModelFolder
from resolvent.simulator.run import simulate
from resolvent.tables.encoding_files import read_encoding
from resolvent.tables.party_tables import from_frame
from resolvent.tables.text_formats import TextFormat

LABELS = {"multi-label": (["ill", "tired"], "logistic", ""), "regression": (["pulse", "height"], "linear", "")}


def consortium(folder, kind, change=lambda frame: frame, **options):
    """Two sites whose tables have four labels, of which the experiment predicts two."""
    labels, model, more = LABELS[kind]
    text = EXPERIMENT.replace("label: ill", f"label: [{', '.join(labels)}], features: [age, ward]{more}").replace(
        "model: logistic", f"model: {model}").replace("alone: local, ", "")
    federation = Consortium(folder, text=text, **options)
    rng = np.random.default_rng(3)
    rows, age = len(federation.frame), federation.frame["age"]
    federation.frame = change(federation.frame.assign(
        tired=age + rng.normal(0, 5, rows) > 55, pulse=age / 30 + rng.normal(0, 1, rows),
        height=rng.normal(0, 1, rows)))
    for site in SITES:
        federation.frame[federation.frame["site"] == site].drop(columns="site").to_csv(
            federation.folder / f"{site}.csv", index=False)
    return federation


@pytest.mark.when_changed
@nightly.parametrize("kind", LABELS)
def test_models_are_those_of_a_simulation_and_predict_every_label(kind, tmp_path):
    federation = consortium(tmp_path, kind, policy=REHEARSAL)
    assert federation.serve() == {"status": "complete"}
    encoding = read_encoding(tmp_path / "aachen" / "mine-1" / "encoding.json")
    labels = LABELS[kind][0]
    data = from_frame(federation.frame, "site", labels, encoding=encoding, test=0.3)
    assert data.label_shape == (2,)
    result = simulate(federation.experiment.algorithm("FedAvg"), federation.experiment.model(encoding), data, rounds=3,
                      progress=False)
    shared = ModelFolder(tmp_path / "out" / "models" / "FedAvg").parameters(None)
    assert shared["weight"].shape[0] == 2
    for name, leaf in result.server_model.items():
        np.testing.assert_allclose(shared[name], leaf, atol=2e-6)
    predicted = predict_file(tmp_path / "berlin" / "mine-1", "FedAvg", "berlin", str(tmp_path / "berlin.csv"),
                             tmp_path / "p.csv", TextFormat())
    assert predicted.scores.startswith("label accuracy" if kind == "multi-label" else "squared error")
    header = (tmp_path / "p.csv").read_text().splitlines()[0].split(",")
    assert header[:3] == ["row", *(f"prediction {label}" for label in labels)]


@pytest.mark.nightly
@pytest.mark.parametrize("kind", LABELS)
def test_a_rehearsal_over_nvidia_flare_gives_the_models_of_a_simulation(kind, tmp_path, monkeypatch):
    pytest.importorskip("nvflare")
    federation = consortium(tmp_path, kind)
    federation.frame.to_csv(tmp_path / "pooled.csv", index=False)
    text = federation.experiment.text.replace("the table of each site", "pooled.csv")
    monkeypatch.chdir(tmp_path)
    rehearsal = prepare_rehearsal(ExperimentFile.parse(text, "pooled.yaml", "pooled"))
    job = FederationJob("", rehearsal.plan.text, tuple(rehearsal.sites))
    _, parities = rehearse(rehearsal, tmp_path / "run", job, print, folder=tmp_path / "work", notify=print)
    assert [parity.method for parity in parities] == ["FedAvg"]
    assert parities[0].is_equal


def test_every_label_must_be_one_that_the_site_allows(tmp_path):
    allowed = {"aachen": {"limits": limits(labels=("ill",))}}
    assert "limits" in consortium(tmp_path, "multi-label", files=allowed).serve()["message"]
    waiting = Approval(leads=("lead",), labels=("ill",)).obstacles("lead", ("ill", "tired"), ["fedavg"], 3)
    assert waiting == ["approval.labels does not have tired"]


def test_a_class_of_few_rows_of_the_second_label_is_refused(tmp_path):
    def one_row(frame):
        tired = np.zeros(len(frame), bool)
        tired[np.flatnonzero(frame["site"] == "aachen")[0]] = True
        tired[frame["site"] == "berlin"] = frame.loc[frame["site"] == "berlin", "age"] > 50
        return frame.assign(tired=tired)

    message = consortium(tmp_path, "multi-label", one_row).serve()["message"]
    assert "aachen: refused (rare): column 'tired'" in message


def test_a_site_that_reports_another_number_of_labels_is_refused(tmp_path):
    class Cuts(InProcess):
        def broadcast(self, messages, **rules):
            replies = {site: decode(reply) for site, reply in super().broadcast(messages, **rules).items()}
            for message in replies.values():
                if "table" in message.facts.get("content", {}):
                    del message.facts["content"]["table"]["labels"][1:]
            return {site: encode(message) for site, message in replies.items()}

    status = consortium(tmp_path, "multi-label", policy=REHEARSAL).serve(transport=Cuts)
    assert "reports 1 labels, and the experiment has 2" in status["message"]


def test_labels_that_do_not_belong_together_are_refused(tmp_path):
    federation = consortium(tmp_path, "multi-label", lambda frame: frame.assign(tired=frame["height"]),
                            policy=REHEARSAL)
    assert "of several labels all are numbers" in federation.serve()["message"]
