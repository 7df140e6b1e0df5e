"""Calibration, thresholds and explanations of a run: the commands, what is stored, and who uses it."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from six_sites import SITES, visits

import resolvent as rv
from resolvent.comparisons.after.calibrations import calibrate
from resolvent.comparisons.after.run_rows import rows_of_run
from resolvent.data.files.digests import read_sealed, write_sealed
from resolvent.data.files.plain_values import read_plain
from resolvent.errors import InputError
from resolvent.predict.calibration import Calibration, probabilities_of
from resolvent.predict.threshold import Goal, Threshold

pytestmark = pytest.mark.when_changed  # whole runs: each file would train its own at every commit


@pytest.fixture
def run(site_run_copy):
    return site_run_copy


COSTS = ("--goal", "ill", "cost=5:1")


def test_predictions_use_the_stored_calibration_and_threshold(run, call, tmp_path):
    outcome = call("model", "calibrate", run.folder, "--method", "FedAvg+", *COSTS, cwd=tmp_path, columns=80)
    assert outcome.code == 0, outcome.err
    assert all(f"\n{site} " in outcome.out for site in SITES)
    stored = read_sealed(run.folder / "models" / "FedAvg-plus" / "calibration.json", "")
    record = stored["sites"]["Essen"]
    fitted = rv.load(run.folder, method="FedAvg+", site="Essen")
    assert fitted.calibration == read_plain(Calibration, record["calibration"], "record")
    assert fitted.threshold == Threshold("ill", record["threshold"]["threshold"]["value"], Goal(5, 1))
    new = visits(seed=1, rows=60).drop(columns=["patient", "hospital"])
    new.to_csv(tmp_path / "new.csv", index=False)
    chosen = ("--method", "FedAvg+", "--site", "Essen")
    outcome = call("model", "predict", run.folder, "new.csv", *chosen, cwd=tmp_path)
    assert str(fitted.threshold) in outcome.out
    table = pd.read_csv(tmp_path / "predictions.csv")
    raw = rv.load(run.folder, method="FedAvg+", site="Essen", raw=True)
    assert raw.threshold is raw.calibration is None
    encoded = raw.encoding.encode(new)
    probabilities = probabilities_of(fitted.calibration.apply(raw.outputs_of(encoded)))
    np.testing.assert_allclose(table["probability ill"], probabilities[:, 0], rtol=1e-5)
    is_ill = probabilities[:, 0] >= fitted.threshold.value
    assert (table["prediction"] == np.where(is_ill, "ill", "well")).all()
    scores = json.loads(call("model", "evaluate", run.folder, "new.csv", *chosen, "--format", "json", "--metrics",
                             "balanced_accuracy",
                             cwd=tmp_path).out)["scores"]
    is_right = np.where(is_ill, "ill", "well") == new["outcome"]
    assert scores["accuracy"]["value"] == pytest.approx(is_right.mean())
    recalls = [is_right[new["outcome"] == name].mean() for name in ("ill", "well")]
    assert scores["balanced_accuracy"]["value"] == pytest.approx(np.mean(recalls))
    of_label = probabilities[np.arange(60), (new["outcome"] == "well").astype(int)]
    assert scores["loss"]["value"] == pytest.approx(-np.log(of_label).mean(), rel=1e-4)
    assert call("model", "predict", run.folder, "new.csv", *chosen, "--set", "calibration=false",
                "--out", "raw.csv", cwd=tmp_path).code == 0
    np.testing.assert_allclose(pd.read_csv(tmp_path / "raw.csv")["probability ill"],
                               raw.probabilities(raw.outputs_of(encoded))[:, 0], rtol=1e-5)
    assert json.loads((tmp_path / "raw.csv.json").read_text())["adjustments"] == []
    assert str(fitted.threshold) in json.loads((tmp_path / "predictions.csv.json").read_text())["adjustments"][-1]


def test_without_a_method_each_site_is_calibrated_for_the_model_that_predicts_there(run, call, tmp_path):
    held_out = rows_of_run(run.folder).sites
    assert call("model", "calibrate", run.folder, cwd=tmp_path).code == 0
    for site in SITES:
        predicts, calibrated = rv.load(run.folder, site=site), held_out[site].fitted
        assert (predicts.method, predicts.site) == (calibrated.method, site)
        for name in predicts.params:
            np.testing.assert_array_equal(predicts.params[name], calibrated.params[name])
        assert predicts.calibration is not None


def test_the_run_folder_and_the_comparison_give_the_same(site_run):
    from_folder = calibrate(rows_of_run(site_run.folder, "FedAvg+"), positive="ill", goal=Goal(sensitivity=0.9))
    in_memory = site_run.comparison.calibrate("FedAvg+", positive="ill", sensitivity=0.9)
    for table in (from_folder.table, in_memory.table):
        assert table["site"].tolist() == [*SITES, "shared model"]
    pd.testing.assert_frame_equal(from_folder.table, in_memory.table, rtol=1e-4)


def test_nothing_is_fitted_to_test_rows(site_run):
    """With other labels of the test rows, calibrations and thresholds are the same, and the scores are others.

    The kind is given: otherwise test rows decide whether the calibration is used.
    """
    rows = site_run.comparison.held_out_rows("FedAvg+")
    turned = rows.__class__(rows.method, {name: site._replace(test=site.test._replace(y=1 - site.test.y))
                                          for name, site in rows.sites.items()},
                            rows.shared._replace(test=rows.shared.test._replace(y=1 - rows.shared.test.y)))
    results = [calibrate(r, kind="temperature", positive="ill", goal=Goal(5, 1)) for r in (rows, turned)]
    unused = calibrate(turned, positive="ill")
    assert any(made.choice.reason == "no calibration improved the log loss on test rows"
               and made.fitted.calibration.kind == "none" for made in unused.sites.values())
    assert all(made.improves or made.fitted.calibration.kind == "none" for made in unused.sites.values())
    for name in (*SITES, None):
        fitted = [result.fitted(name) for result in results]
        assert fitted[0].calibration == fitted[1].calibration
        assert fitted[0].threshold == fitted[1].threshold
        assert results[0].sites[name].scores["log_loss"] != results[1].sites[name].scores["log_loss"]


def test_scores_on_test_rows_are_those_of_evaluate(site_run):
    made = site_run.comparison.calibrate("FedAvg+", positive="ill", specificity=0.8)
    data = site_run.comparison.experiment.data
    for name in SITES:
        x, y = data.party(name, "test")
        site, fitted = made.sites[name], made.fitted(name)
        metrics = [rv.metrics.LogLoss(), rv.metrics.BrierScore(), rv.metrics.CalibrationError()]
        for stage, model in (("before", fitted.raw), ("after", fitted)):
            scores = model.score(model.outputs_of_inputs(x), y, metrics)
            for metric in metrics:
                measured = getattr(site.scores[metric.name], stage)
                assert measured.value == pytest.approx(scores[metric.name], rel=1e-4, abs=1e-6)
        p = probabilities_of(fitted.outputs_of_inputs(x))[:, 0]
        reached = (p < fitted.threshold.value)[y == 1].mean()
        assert site.reached.specificity.value == pytest.approx(reached)
        assert site.reached.specificity.low <= reached <= site.reached.specificity.high
        for points in site.reliability.values():
            assert sum(point.rows for point in points) == len(y) == site.test_rows
            assert sum(point.rows * point.frequency for point in points) == pytest.approx((y == 0).sum())


def test_a_threshold_on_validation_rows_keeps_its_promise_on_them(site_run):
    rows = site_run.comparison.held_out_rows("FedAvg+")
    made = calibrate(rows, sites=["Essen"], kind="none", positive="ill", goal=Goal(sensitivity=0.9))
    assert list(made.sites) == ["Essen"]
    assert made.fitted("Essen").calibration == Calibration()
    assert made.sites["Essen"].fitted.threshold is not None


def test_one_site_is_added_and_the_others_stay(run, call, tmp_path):
    path = run.folder / "models" / "alone" / "calibration.json"
    for site in ("Essen", "Ulm"):
        assert call("model", "calibrate", run.folder, "--method", "alone", "--sites", site, cwd=tmp_path).code == 0
    stored = read_sealed(path, "")
    assert list(stored["sites"]) == ["Essen", "Ulm"]
    assert stored["shared"] is None
    assert rv.load(run.folder, method="alone", site="Bochum").calibration is None
    assert rv.load(run.folder, method="alone", site="Ulm").calibration is not None


@pytest.mark.nightly
def test_a_model_that_was_trained_again_has_the_calibration_of_the_one_before(run, call, tmp_path):
    assert call("model", "calibrate", run.folder, "--method", "FedAvg+", *COSTS, cwd=tmp_path).code == 0
    before = rv.load(run.folder, method="FedAvg+", site="Essen")
    assert call("model", "refit", run.folder, "--method", "FedAvg+", "--rounds", 3, cwd=tmp_path).code == 0
    after = rv.load(run.folder, method="FedAvg+", site="Essen")
    assert (after.calibration, after.threshold) == (before.calibration, before.threshold)
    assert after.provenance != before.provenance
    assert call("model", "calibrate", run.folder, "--method", "FedAvg+", "--set", "kind=none", cwd=tmp_path).code == 0
    assert rv.load(run.folder, method="FedAvg+", site="Essen").calibration == Calibration()


def test_damaged_files_and_those_of_other_models_are_refused(run, call, tmp_path):
    assert call("model", "calibrate", run.folder, "--method", "alone", cwd=tmp_path).code == 0
    path = run.folder / "models" / "alone" / "calibration.json"
    shutil.copy(path, run.folder / "models" / "FedAvg-plus")
    with pytest.raises(InputError, match="belongs to other models than those in its folder"):
        rv.load(run.folder, method="FedAvg+", site="Essen")
    path.write_text(path.read_text().replace('"slope": ', '"slope": 2'))
    with pytest.raises(InputError, match="is damaged"):
        rv.load(run.folder, method="alone", site="Essen")


def test_rows_that_are_not_those_of_the_run_are_refused(run, call, tmp_path):
    """Labels do not change the encoding, and change the losses."""
    original, other = run.csv.read_bytes(), run.table.copy()
    other["outcome"] = np.roll(other["outcome"], 1)
    try:
        other.to_csv(run.csv, index=False)
        outcome = call("model", "calibrate", run.folder, "--method", "alone", cwd=tmp_path)
        other.assign(age=other["age"] + 1).to_csv(run.csv, index=False)
        shifted = call("model", "explain", run.folder, "--method", "alone", cwd=tmp_path)
    finally:
        run.csv.write_bytes(original)
    assert outcome.code == shifted.code == 2
    assert "have changed since the run in" in outcome.err
    assert "have changed since the run in" in shifted.err


@pytest.mark.parametrize(("arguments", "message"), [
    (("--method", "FedProx", ), "there is no method 'FedProx'; there are alone, FedAvg, FedAvg+"),
    (("--sites", "Esen"), "there is no site 'Esen' with rows; there are Bochum, Essen, Fulda, Gera, Hagen, Ulm"),
    (("--goal", "sensitivity=0.9"), "name the class that the threshold is for with positive: 'ill' or 'well'"),
    (("--goal", "sick", "sensitivity=0.9"), "positive: there is no class 'sick'"),
    (("--goal", "ill", "cost=5:0"), "cost_false_positive=0.0 must be a positive number"),
    (("--goal", "ill", "cost=5"), "write a class and cost=5:1, sensitivity=0.9 or specificity=0.9"),
    (("nothing.csv",), "nothing.csv"),
    (("new.csv",), "'new.csv' has no column 'hospital', which names the site of each row: name the site of all rows"),
    (("unlabelled.csv",), "'unlabelled.csv' has no column 'outcome', the label"),
])
def test_what_cannot_be_calibrated_is_refused(site_run, call, tmp_path, arguments, message):
    visits(seed=1, rows=30).drop(columns="hospital").to_csv(tmp_path / "new.csv", index=False)
    visits(seed=1, rows=30).drop(columns="outcome").to_csv(tmp_path / "unlabelled.csv", index=False)
    outcome = call("model", "calibrate", site_run.folder, *arguments, cwd=tmp_path)
    assert outcome.code == 2
    assert message in outcome.err
    assert not list(site_run.folder.rglob("calibration.json"))


def test_new_rows_of_one_site_calibrate_and_measure(run, call, tmp_path):
    visits(seed=1, rows=60).drop(columns="hospital").to_csv(tmp_path / "new.csv", index=False)
    outcome = call("model", "calibrate", run.folder, "new.csv", "--sites", "Essen", "--method", "alone", "--format",
                   "json", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    record = json.loads(outcome.out)["sites"]["Essen"]
    assert record["test_rows"] == 30
    halves = rows_of_run(run.folder, "alone", str(tmp_path / "new.csv"), "Essen").sites["Essen"]
    assert len(halves.validation.y) == len(halves.test.y) == 30
    assert not {x.tobytes() for x in halves.validation.x} & {x.tobytes() for x in halves.test.x}
    all_rows = rows_of_run(run.folder, "alone", str(tmp_path / "new.csv"), "Essen", has_validation=False)
    assert len(all_rows.sites["Essen"].test.y) == 60


def test_explanations_of_the_sites(run, call, tmp_path):
    outcome = call("model", "explain", run.folder, "--method", "FedAvg+", "--out", "c.csv", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    columns = [line.split()[0] for line in lines if line.split() and line.split()[0] in ("age", "pressure", "smoker",
                                                                                         "ward")]
    assert set(columns[:2]) == {"age", "pressure"}  # on which the outcome depends most
    stored = read_sealed(run.folder / "models" / "FedAvg-plus" / "explanation.json", "")
    assert set(stored["sites"]) == set(SITES)
    shared = stored["shared"]
    assert shared["importance"]["age"][1] > 0
    assert shared["importance"]["ward"][1] <= 0 <= shared["importance"]["ward"][2]
    table = pd.read_csv(tmp_path / "c.csv", index_col=0)
    assert list(table.columns) == [*SITES, "shared model"]
    assert list(table.index) == ["age", "pressure", "smoker", "ward=01", "ward=02", "ward=intensive", "intercept"]
    made = run.comparison.explain("FedAvg+")
    np.testing.assert_allclose(made.coefficients, table, rtol=1e-5)
    assert set(made.table["site"]) == {*SITES, "shared model"}
    np.testing.assert_allclose(made.sites[None].importance["age"], shared["importance"]["age"], rtol=1e-3)


def test_the_report_shows_both(run, call, tmp_path):
    assert call("model", "calibrate", run.folder, "--method", "FedAvg+", *COSTS, cwd=tmp_path).code == 0
    assert not (run.folder / "report.html").exists()
    (run.folder / "report.html").write_text("of the run")
    assert call("model", "explain", run.folder, "--method", "FedAvg+", cwd=tmp_path).code == 0
    page = (run.folder / "report.html").read_text()
    assert '<details id="calibration-1">' in page
    assert '<details id="explanation-1">' in page
    assert "ill is predicted from a probability on that was chosen for each site" in page
    assert "logit of well" in page
    for title in (*(f"reliability at {site}" for site in SITES), "reliability at all sites", "importance of columns"):
        assert page.count(f'aria-label="FedAvg+: {title}') == 1
    assert "http" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", "")


def test_saved_comparisons_are_calibrated_in_python(site_run, tmp_path):
    folder = site_run.comparison.save(tmp_path / "saved")
    with pytest.raises(InputError, match="that names its table"):
        rows_of_run(folder, "FedAvg+")
    made = site_run.comparison.calibrate("FedAvg+")
    made.save(folder)
    assert rv.load(folder, method="FedAvg+", site="Ulm").calibration == made.fitted("Ulm").calibration
    other = rv.load(folder, method="alone", site="Ulm")
    path = folder / "models" / "FedAvg-plus" / "tree.json"
    write_sealed(path, read_sealed(path, "") | {"round": 11})
    with pytest.raises(InputError):
        made.save(folder)
    assert other.calibration is None


@pytest.mark.nightly
def test_a_regression_is_explained_and_not_calibrated():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"site": rng.choice(["a", "b"], 300), "x": rng.normal(0, 5, 300), "z": rng.normal(0, 1, 300)})
    frame["y"] = 3 * frame["x"] + rng.normal(0, 1, 300)
    data = rv.datasets.from_frame(frame, "site", "y")
    methods = {"FedAvg": rv.fedavg(rv.SGD(0.05, epochs=3))}
    comparison = rv.compare(methods, rv.models.linear(2), data, rounds=10, folds=1, progress=False)
    made = comparison.explain()
    assert made.coefficients.loc["x"].tolist() == pytest.approx([3, 3, 3], abs=0.3)
    assert made.sites["a"].importance["x"].low > 0
    with pytest.raises(InputError, match="has a model with the loss SquaredError, and a calibration needs"):
        comparison.calibrate()
