"""Models whose training diverged: they have no score, are no reference, and predict nothing."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import resolvent as rv

TABLE = """\
data: {table: rows.csv, party: site, label: outcome}
model: {name: logistic, l2: 0.1}
solver: {name: SGD, learning_rate: 0.1, batch_size: 20}
algorithms:
  alone: {name: local, solver: {name: SGD, learning_rate: 1.0e+20, batch_size: 20}}
  FedAvg: fedavg
rounds: 2
folds: 1
evaluate_every: 1
"""
CLASSES = rv.FederatedData.from_arrays([10 * np.eye(3)[[0, 1, 2] * 10]] * 2, [[0, 1, 1] * 10] * 2)


@pytest.fixture(scope="module")
def diverged(call, tmp_path_factory):
    """A run in which training alone diverges at every site: the outcome of the command, and its folder."""
    folder = tmp_path_factory.mktemp("diverged")
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"site": np.repeat(["Bonn", "Trier"], 60), **{f"x{i}": rng.normal(size=120) for i in range(3)}})
    rows["outcome"] = np.where(rows["x0"] + 0.5 * rng.normal(size=120) > 0, "ill", "well")
    rows.to_csv(folder / "rows.csv", index=False)
    (folder / "mine.yaml").write_text(TABLE)
    outcome = call("run", "mine.yaml", cwd=folder)
    assert outcome.code == 0, outcome.err
    return outcome, folder


@pytest.mark.when_changed
def test_it_has_no_score_and_is_no_reference(diverged):
    _, folder = diverged
    summary = json.loads((folder / "runs/mine/summary.json").read_text())
    assert summary["diverged"] == {"alone": {"Bonn": 1, "Trier": 1}}
    assert summary["methods"]["alone"]["final"]["mean"] is None
    assert summary["methods"]["FedAvg"]["final"]["mean"] > 0.6
    assert [site["scores"]["alone"] for site in summary["sites"]] == [["-inf"] * 3] * 2
    assert [site["gains"]["FedAvg"] for site in summary["sites"]] == [[None] * 3] * 2
    assert [site["advice"] for site in summary["sites"]] == [None, None]
    assert summary["finding"] == "alone diverged at every site, so that there is no gain over training alone."
    metrics = pd.read_parquet(folder / "runs/mine/metrics.parquet")
    scores = metrics[(metrics["metric"] == "accuracy") & (metrics["method"] == "alone") & (metrics["round"] > 0)]
    assert len(scores) == 2 * 3 * 2
    assert scores["value"].isna().all()


@pytest.mark.when_changed
def test_it_is_named_on_the_terminal_and_in_the_report(diverged):
    outcome, folder = diverged
    summary = json.loads((folder / "runs/mine/summary.json").read_text())
    (warning,) = summary["warnings"]
    assert warning.startswith("alone: the training diverged at Bonn (round 1) and Trier (round 1): ")
    assert "Try a learning rate smaller than 1e+20" in warning
    assert f" {warning}" in " ".join(outcome.out.split())
    report = (folder / "runs/mine/report.html").read_text()
    assert f"<li>{warning}</li>" in report
    assert "nan" not in report[:report.index('<script type="application/json"')].replace("finance", "")


@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_the_commands_refuse_it(diverged, call, command):
    _, folder = diverged
    outcome = call("model", command, "runs/mine", "rows.csv", "--method", "alone", "--site", "Bonn", cwd=folder)
    assert outcome.code == 2
    assert "alone: the model of Bonn after round 2 cannot be used, because its training diverged" in outcome.err
    assert "smaller learning rate" in outcome.err
    assert not (folder / "predictions.csv").exists()


def test_a_loaded_model_is_refused_by_every_use(diverged, tmp_path):
    _, folder = diverged
    fitted = rv.load(folder / "runs/mine", method="alone", site="Trier")
    rows = pd.read_csv(folder / "rows.csv")

    def start(rows):
        rv.simulate(rv.fedavg(rv.SGD(0.1)), rv.models.logistic(3, 2), CLASSES, rounds=1, start=fitted, progress=False)

    for use in (fitted.predict, fitted.predict_proba, fitted.evaluate, start, lambda rows: fitted.to_torch(),
                lambda rows: fitted.to_onnx(tmp_path / "model.onnx")):
        with pytest.raises(rv.DivergedError, match=r"alone: the model of Trier after round 2 .* its training diverged"):
            use(rows)


@pytest.mark.when_changed
def test_the_readings_of_a_run_do_not_leave_diverged_parties_out():
    """The mean over the other parties would be the score of a run that did not diverge."""
    data = rv.datasets.digits(parties=3, classes_per_party=5, test=0.3, seed=0)
    x = data.x.copy()
    split = data.splits["train"]
    x[split.offset[1]:split.offset[1] + split.length[1]] = 3e38
    histories, stopped = [], rv.callbacks.EarlyStopping(patience=2)
    broken = replace(data, x=x)
    result = rv.simulate(rv.local(rv.SGD(0.1, batch_size=20)), rv.models.logistic(64, 10), broken, rounds=4,
                         evaluate_every=1, progress=False,
                         on_evaluation=[lambda event: histories.append((event.history(split="test"), event.means())),
                                        stopped])
    assert result.diverged == {"party 1": 1}
    assert repr(result) == "Result('run', 2 rounds, diverged at 1 party)"
    history, means = histories[-1]
    assert history.isna().tolist() == [False, True, True]
    assert np.isnan(means["test/accuracy"])
    assert result.scores().iloc[-1].isna().tolist() == [False, True, False]


@pytest.mark.when_changed
def test_rows_for_which_the_outputs_overflow_are_refused():
    fitted = rv.simulate(rv.fedavg(rv.SGD(0.1)), rv.models.logistic(3, 2), CLASSES, rounds=1, progress=False).fitted()
    rows = np.array([[0, 0, 0], [3e38, 0, 0]], np.float32)
    fitted = replace(fitted, params={"weight": np.full((1, 3), 10, np.float32), "bias": np.zeros(1, np.float32)})
    assert fitted.outputs_of_inputs(rows[:1]).shape == (1, 1)
    with pytest.raises(rv.DivergedError, match=r"the shared model after round 1 has outputs that are not finite, "
                                               r"first for row 2 of 2: look for extreme"):
        fitted.outputs_of_inputs(rows)
