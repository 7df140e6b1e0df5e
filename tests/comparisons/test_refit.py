"""Methods that are trained again on all rows: oracles, decisions, the folder, and what uses it."""

import json
import shutil
from dataclasses import replace

import jax
import numpy as np
import pandas as pd
import pytest
from six_sites import SITES, visits

import nightly
import resolvent as rv
from resolvent.algorithms.combinators.ridge_path import uses_held_out
from resolvent.comparisons.after import refit_folder
from resolvent.comparisons.after.calibrations import calibrate
from resolvent.comparisons.after.explanations import explain_models
from resolvent.comparisons.after.refit import refit_run
from resolvent.comparisons.after.refit_plan import check_can_be_refitted, plan_refit
from resolvent.comparisons.after.run_rows import rows_of_run
from resolvent.comparisons.judgement.advice import FederationAdvice, SiteAdvice, SiteEvidence
from resolvent.comparisons.judgement.site_judgement import SiteFacts, SiteJudgement
from resolvent.comparisons.runs.load import load_start
from resolvent.comparisons.runs.record import DataRecord, MethodRecord, RunRecord, read_record
from resolvent.data.files.digests import SEAL, read_sealed, write_sealed
from resolvent.predict.intervals import Interval
from resolvent.tables.party_tables import from_frame


@pytest.fixture
def run(site_run_copy):
    return site_run_copy.folder


def decide(run, **use):
    """Let the run's decisions be these: site -> the method to use."""
    summary = read_sealed(run / "summary.json", "")
    for site in summary["sites"]:
        advice = site["advice"]
        advice["use"] = use.get(site["name"], summary["federation"]["about"])
        advice["answer"], advice["model"] = ("stay alone", "alone") if advice["use"] == "alone" else ("join", "shared")
        if "personal" in site["evidence"].get(advice["use"], {}):
            advice["model"] = "personal"
    write_sealed(run / "summary.json", {key: value for key, value in summary.items() if key != SEAL})


def all_rows():
    """The table of the run, of which all rows train."""
    return from_frame(visits().drop(columns="patient"), "hospital", "outcome", missing="impute", validation=0, test=0)


def judged(party, name, use, **losses):
    """A site that should use its own model or its personal one of FedAvg, and the losses of the methods there."""
    nothing = Interval(0.0, 0.0, 0.0)
    answer, model = ("stay alone", "alone") if use == "alone" else ("join", "shared")
    advice = SiteAdvice(answer, "expected gain", model, 0.9, nothing, nothing, None, 0.0)
    facts = SiteFacts(losses=losses | {"majority class": 0.7}, evidence={"FedAvg": {"shared": SiteEvidence(0, 1, 9)}})
    return SiteJudgement(party, name, 9, 0, {}, {}, advice, facts=facts)


SITES_OF_RECORD = [judged(0, "a", "FedAvg", **{"alone": 0.6, "FedAvg": 0.5, "Fed+": 0.5}),
                   judged(1, "b", "alone", **{"alone": 0.5, "FedAvg": 0.9, "Fed+": 0.6})]
RECORD = RunRecord(
    seed=0, seeds=[0], finding="", score="accuracy", split="test", higher_is_better=True, alone="alone", level=None,
    baseline="majority class", federation=FederationAdvice("FedAvg", "FedAvg", (), {}, 0.0, ()),
    data=DataRecord("", ["a", "b"], [30, 10]), sites=SITES_OF_RECORD,
    methods={label: MethodRecord({}) for label in ("alone", "FedAvg", "Fed+")})


def curves(*scores, method="FedAvg"):
    """Metrics: for each seed the validation scores of the two sites after rounds 0, 2, 4, 6."""
    return pd.DataFrame([
        {"seed": seed, "method": method, "round": 2 * i, "party": party, "split": "validation", "metric": "accuracy",
         "value": value} for seed, of_seed in enumerate(scores) for party, of_site in enumerate(of_seed)
        for i, value in enumerate(of_site)])


def same(a, b, **tolerance):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, **tolerance)


def test_predictions_calibrations_and_explanations_use_the_advised_model_of_each_site(run):
    decide(run, Essen="alone")
    chosen = read_record(run).federation.about
    rows = rows_of_run(run)  # which calibrations and explanations read
    for site in ("Essen", "Gera"):
        label = "alone" if site == "Essen" else chosen
        fitted, loaded = rows.sites[site].fitted, rv.load(run, site=site)
        assert [fitted.method, loaded.method, loaded.site] == [label, label, site]
        same(fitted.params, rv.load(run, site=site, method=label).params)
        same(loaded.params, fitted.params)


@pytest.mark.when_changed
def test_a_file_for_another_runtime_has_the_advised_model(run, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("jax2onnx")
    decide(run, Essen="alone")
    rows = visits(seed=1, rows=20).drop(columns=["patient", "hospital", "outcome"]).dropna()
    for site in ("Essen", "Gera"):
        advised = rv.load(run, site=site)
        advised.to_onnx(tmp_path / "model.onnx")
        session = runtime.InferenceSession(tmp_path / "model.onnx")
        names = json.loads(session.get_modelmeta().custom_metadata_map["resolvent.inputs"])
        numbers = pd.get_dummies(rows, columns=["ward"], prefix_sep="=").astype(np.float32)[names].to_numpy()
        of_methods = {method: rv.load(run, site=site, method=method).predict_proba(rows)
                      for method in ("alone", "FedAvg", "FedAvg+")}
        written = session.run(None, {"rows": numbers})[0]
        differences = {method: np.abs(written - p).max() for method, p in of_methods.items()}
        assert differences.pop(advised.method) < 1e-5
        assert min(differences.values()) > 1e-3  # so that the file is of no other method


@pytest.mark.when_changed
def test_a_model_that_is_worse_than_no_training_is_used_by_nothing_unless_its_method_is_named(run, call, tmp_path):
    decide(run, Essen="alone")
    summary = read_sealed(run / "summary.json", "")
    essen = next(site for site in summary["sites"] if site["name"] == "Essen")
    essen["losses"]["alone"] = 1.2 * essen["losses"]["majority class"]
    write_sealed(run / "summary.json", {key: value for key, value in summary.items() if key != SEAL})
    visits(seed=1, rows=20).to_csv(tmp_path / "new.csv", index=False)
    reason = "no model is advised for Essen: on its test rows the model is worse than the majority class"
    with pytest.raises(rv.InputError, match=reason):  # before it could be written as a file for another runtime
        rv.load(run, site="Essen")
    refused = call("model", "predict", run, "new.csv", "--site", "Essen", cwd=tmp_path)
    assert (refused.code, reason in refused.err) == (2, True)
    named = call("model", "predict", run, "new.csv", "--site", "Essen", "--method", "alone", cwd=tmp_path)
    assert (named.code, "the model is worse than the majority class" in " ".join(named.out.split())) == (0, True)
    for rows in (rows_of_run(run), rows_of_run(run, rows=str(tmp_path / "new.csv"))):
        with pytest.raises(rv.InputError, match=reason):
            rows.chosen(["Essen"])
        for used in (rows.chosen, lambda _, rows=rows: explain_models(rows).sites,
                     lambda _, rows=rows: calibrate(rows).sites):
            with pytest.warns(UserWarning, match=reason):
                models = used([])
            assert "Essen" not in models
            assert "Gera" in models
    assert "Essen" in rows_of_run(run, "alone").chosen([])


@pytest.mark.when_changed
def test_a_refit_is_the_training_on_all_rows_and_follows_the_decisions(run):
    """The oracle is ``simulate`` with data of which no row is held out."""
    decide(run, Essen="alone", Ulm="alone")
    plan = refit_run(run)
    chosen = read_record(run).federation.about
    assert plan.use == {site: "alone" if site in ("Essen", "Ulm") else chosen for site in plan.use}
    data, solver = all_rows(), rv.SGD(0.1, epochs=2)
    algorithms = {"alone": rv.local(solver), "FedAvg": rv.fedavg(solver), "FedAvg+": rv.fedavg_plus(solver, sigma=0.5)}
    model = rv.models.logistic(len(data.features), 2)
    for site, label in {"Essen": "alone", "Gera": chosen}.items():
        result = rv.simulate(algorithms[label], model, data, rounds=plan.rounds[label], progress=False)
        fitted = rv.load(run, site=site)  # without a method: the one that the site uses
        assert (fitted.method, fitted.site) == (label, site)
        same(fitted.params, result.personal_model(site), rtol=1e-6)
        assert fitted.encoding == data.encoding
    before = rv.load(run, site="Essen", method="alone", before_refit=True)
    assert before.encoding != data.encoding
    assert not np.allclose(before.params["weight"], rv.load(run, site="Essen").params["weight"])


@pytest.mark.nightly
def test_a_closed_form_is_that_of_all_rows():
    """Ridge regression: training alone with an exact solver, and pooled training, in float64."""
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(n, 3)) for n in (20, 31, 42)]
    y = [a @ [1.0, -2.0, 0.5] + rng.normal(0, 0.3, len(a)) for a in x]
    with jax.enable_x64(True):
        data = rv.FederatedData.from_arrays(x, y, validation=0.25, test=0.3)
        model = rv.models.linear(3, l2=0.1)
        comparison = rv.compare({"alone": rv.local(rv.solvers.GD(0.5, steps=200))}, model, data, rounds=1,
                                progress=False)
        refit = comparison.refit(progress=False)
        assert refit.plan.use == {f"party {k}": "alone" for k in range(3)}
        for k in range(3):
            features = np.hstack([x[k], np.ones((len(x[k]), 1))])
            gram = features.T @ features / len(x[k]) + 0.1 * np.eye(4)
            params = refit.fitted(k).params
            np.testing.assert_allclose(np.append(np.ravel(params["weight"]), params["bias"]),
                                       np.linalg.solve(gram, features.T @ y[k] / len(x[k])), atol=1e-9)


def test_the_number_of_rounds_has_the_best_pooled_validation_score():
    """Site a has three times the rows of site b; the first model does not count, and the first of equals is taken."""
    cases = [
        (curves(([9, 1, 2, 2], [9, 2, 1, 1])), 4),
        (curves(([9, 1, 2, 2], [9, 9, 1, 1])), 2),
        (curves(([0, 1, 2, 3],) * 2, ([0, 1, 5, 3],) * 2), 4),
        (curves(([0, 1, np.nan, 3],) * 2, ([0, 9, 9, 1],) * 2), 2),  # diverged with one seed
        (curves(([0, 1, 1, 1], [np.nan] * 4)), 2),  # site b has no validation rows
        (pd.concat([curves(([0, 1, 2, 3],) * 2).assign(split="train"), curves(([np.nan] * 4,) * 2)]), 6)]
    for metrics, rounds in cases:
        assert plan_refit(replace(RECORD, sites=[]), metrics).rounds == {"FedAvg": rounds}
    both = pd.concat([cases[0][0], cases[1][0].assign(method="alone")])
    assert plan_refit(replace(RECORD, higher_is_better=False), both).rounds == {"alone": 4, "FedAvg": 2}
    assert plan_refit(RECORD, both, rounds=7).rounds == {"alone": 7, "FedAvg": 7}


def test_a_plan_follows_the_decisions():
    metrics = pd.concat([curves(([0, 1, 2, 3],) * 2, method=label) for label in RECORD.methods])
    assert plan_refit(RECORD, metrics) == ("FedAvg", {"alone": 6, "FedAvg": 6}, {"a": "FedAvg", "b": "alone"}, (), {})
    assert plan_refit(RECORD, metrics, "Fed+").use == {"a": "Fed+", "b": "alone"}  # at b it is worse than alone
    assert plan_refit(RECORD, metrics, "alone").use == {"a": "alone", "b": "alone"}
    undecided = SiteJudgement(1, "b", 9, 0, {}, {})
    assert plan_refit(replace(RECORD, sites=[undecided]), metrics).use == {"a": "FedAvg", "b": "FedAvg"}
    evidence = {"FedAvg": dict.fromkeys(("shared", "personal"), SiteEvidence(0, 1, 9))}
    mixed = [SITES_OF_RECORD[0]._replace(facts=SITES_OF_RECORD[0].facts._replace(evidence=evidence))]
    assert plan_refit(replace(RECORD, sites=mixed), metrics).shared == ("a",)
    with pytest.raises(rv.InputError, match=r"chose no method.*--method, such as 'FedAvg'"):
        plan_refit(replace(RECORD, sites=[], federation=None), metrics)
    with pytest.raises(rv.InputError, match=r"no method 'FedAv'.*FedAvg"):
        plan_refit(RECORD, metrics, "FedAv")


def test_a_model_that_is_worse_than_no_training_needs_an_explicit_option():
    """At b everything is worse than the majority class: no model is written, unless the user says so."""
    metrics = pd.concat([curves(([0, 1, 2, 3],) * 2, method=label) for label in RECORD.methods])
    worse = judged(1, "b", "alone", **{"alone": 0.8, "FedAvg": 0.9, "Fed+": 0.9})
    record = replace(RECORD, sites=[SITES_OF_RECORD[0], worse])
    plan = plan_refit(record, metrics)
    assert plan.use == {"a": "FedAvg"}
    assert plan.against == {"b": "on its test rows the model is worse than the majority class (loss 0.8 against 0.7)"}
    anyway = plan_refit(record, metrics, anyway=True)
    assert anyway.use == {"a": "FedAvg", "b": "alone"}
    assert anyway.against == plan.against
    assert plan_refit(record, metrics, "FedAvg", anyway=True).use == {"a": "FedAvg", "b": "FedAvg"}
    with pytest.raises(rv.InputError, match="no site has a model that is worth using: b: on its test rows"):
        plan_refit(replace(record, data=DataRecord("", ["b"], [10]), sites=[worse]), metrics)


@pytest.mark.when_changed
def test_a_method_that_chooses_by_validation_rows_keeps_them():
    data = from_frame(visits().drop(columns="patient"), "hospital", "outcome", missing="impute", validation=0.25)
    solver = rv.SGD(0.1, epochs=1)
    methods = {"mixed": rv.combinators.HeldOutInterpolation(rv.fedavg(solver), solver, points=3)}
    comparison = rv.compare(methods, rv.models.logistic(len(data.features), 2), data, rounds=1, folds=1,
                            progress=False)
    refit = comparison.refit(progress=False)
    assert set(refit.rows["mixed"].values()) == {(75, 100)}
    trained = refit.results["mixed"].data
    assert trained.sizes("validation").tolist() == [25] * 6
    for k in range(6):  # the same rows, encoded by all rows
        np.testing.assert_allclose(data.encoding.numbers[0].deviation * data.party(k, "validation")[0][:, 0]
                                   + data.encoding.numbers[0].mean,
                                   trained.encoding.numbers[0].deviation * trained.party(k, "validation")[0][:, 0]
                                   + trained.encoding.numbers[0].mean, atol=1e-4)
    assert trained.encoding == all_rows().encoding


def test_a_ridge_path_needs_no_validation_rows_in_a_refit():
    linear, network, careful = rv.models.logistic(2, 2), rv.models.mlp(2, 2), rv.careful_local(rv.SGD(0.1))
    assert [uses_held_out(careful, model) for model in (linear, network)] == [False, True]
    assert uses_held_out(rv.robust_interpolation(rv.SGD(0.1)), linear)
    assert not uses_held_out(rv.fedavg(rv.SGD(0.1)), network)


def test_private_models_are_not_refitted():
    private = rv.solvers.DPSGD(0.1, batch_size=5, steps=2)
    with pytest.raises(rv.InputError, match="FedAvg is differentially private"):
        check_can_be_refitted("FedAvg", rv.fedavg(private))
    with pytest.raises(rv.InputError, match="server is differentially private"):
        check_can_be_refitted("server", rv.combinators.PrivateParties(rv.fedavg(rv.SGD(0.1)), clip=1.0,
                                                                      noise_multiplier=1.0, cohort=2))


@pytest.mark.when_changed
def test_what_cannot_be_refitted_is_refused(run, call, tmp_path):
    data = rv.datasets.synthetic(parties=2, features=3)
    comparison = rv.compare({"alone": rv.local(rv.SGD(0.1))}, rv.models.linear(3), data, rounds=1, progress=False,
                            out=tmp_path / "program")
    with pytest.raises(rv.InputError, match="another one than this comparison"):
        comparison.refit(folder=run, progress=False)
    outcome = call("model", "refit", tmp_path / "program", cwd=tmp_path)
    assert outcome.code == 2
    assert "comparison.refit(folder=...)" in outcome.err
    assert call("model", "refit", tmp_path / "absent", cwd=tmp_path).code == 2
    prices = rv.compare({"a": rv.local(rv.solvers.GD(0.1, steps=1))}, rv.problems.QuadraticProblem.least_squares(
        np.ones((2, 3, 1)), np.ones((2, 3))), rounds=1, progress=False)
    with pytest.raises(rv.InputError, match="nothing to train again"):
        prices.refit(progress=False)


@pytest.mark.when_changed
def test_another_table_than_that_of_the_run_is_refused(site_run, run):
    path = site_run.csv
    text, table = path.read_text(), pd.read_csv(path)
    try:
        for changed in (*(table.assign(age=table["age"] + (np.arange(len(table)) == row)) for row in (7, 8, 9, 10)),
                        table.iloc[:-6]):
            changed.to_csv(path, index=False)
            with pytest.raises(rv.InputError, match=r"changed since|not those of the run"):
                refit_run(run)
    finally:
        path.write_text(text)
    assert not (run / "refit").exists()


@pytest.mark.when_changed
def test_the_command_line_uses_the_refitted_models(run, call, tmp_path):
    decide(run, Essen="alone")
    outcome = call("model", "refit", run, "--method", "FedAvg+", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    assert "Essen uses alone, trained on all 100 rows of Essen; accuracy" in outcome.out
    assert ("Bochum uses FedAvg+, trained on all 100 rows of Bochum and 500 rows of 5 other sites; accuracy"
            in outcome.out)
    assert "measured before on its 30 test rows, by models trained on 50 of its rows" in outcome.out
    visits(seed=1, rows=60).to_csv(tmp_path / "new.csv", index=False)
    frame = visits(seed=1, rows=60).drop(columns="patient")
    for written, label, is_refitted in (
            ("--site Essen", "alone", True), ("--site Bochum", "FedAvg+", True), ("", "FedAvg+", True),
            ("--method FedAvg --site Bochum", "FedAvg", False),
            ("--method alone --site Bochum --set refit=false", "alone", False)):
        arguments = written.split()
        outcome = call("model", "predict", run, "new.csv", *arguments, "--overwrite", cwd=tmp_path)
        assert outcome.code == 0, outcome.err
        assert ("all 100 rows" in outcome.out or "600 rows of 6 sites" in outcome.out) == is_refitted
        site = arguments[arguments.index("--site") + 1] if "--site" in arguments else None
        fitted = rv.load(run, method=label, site=site, before_refit=not is_refitted)
        with pytest.warns(rv.UnusualRowsWarning):
            expected = fitted.predict_proba(frame)
        np.testing.assert_allclose(pd.read_csv(tmp_path / "predictions.csv")["probability ill"], expected[:, 0],
                                   rtol=1e-6)
        assert fitted.provenance in " ".join(outcome.out.split())
    evaluated = call("model", "evaluate", run, "new.csv", "--site", "Bochum", cwd=tmp_path)
    assert "all 100 rows of Bochum" in evaluated.out
    help_text = call("model", "refit", "--help", cwd=tmp_path).out
    assert "resolvent model refit runs/mine" in help_text
    assert "No row is left to measure the new models" in help_text


def test_a_run_does_not_start_from_a_model_that_has_seen_its_test_rows(run):
    before = rv.load(run, method="FedAvg")
    refit_run(run, "FedAvg", 3)
    record = read_record(run)
    assert not np.allclose(rv.load(run, method="FedAvg").params["weight"], before.params["weight"])
    shutil.rmtree(run / "models" / "FedAvg-plus")
    shutil.rmtree(run / "models" / "alone")
    only = replace(record, methods={"FedAvg": record.methods["FedAvg"]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("resolvent.comparisons.runs.load.read_record", lambda folder: only)
        same(load_start(run, None, is_private=False).params, before.params)


@pytest.mark.when_changed
@nightly.parametrize("name", ["write_sealed", "remove_folder", "write_model_folder", "sync_to_disk"], per_commit=2)
def test_a_refit_that_is_killed_leaves_the_one_before(name, run, monkeypatch):
    """At each step; only the removal of the older models comes after the new ones are in use."""
    refit_run(run, "FedAvg", 2)
    models = {}
    for _ in range(2):
        old = rv.load(run, site="Ulm", method="FedAvg").params["weight"]
        with monkeypatch.context() as patch:
            patch.setattr(refit_folder, name, lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                refit_run(run, "FedAvg", 3)
        models[name] = rv.load(run, site="Ulm", method="FedAvg").params["weight"]
        assert np.array_equal(models[name], old) == (name != "remove_folder" or _ == 1)
    refit_run(run, "FedAvg", 3)
    assert not np.array_equal(rv.load(run, site="Ulm", method="FedAvg", before_refit=True).params["weight"],
                              rv.load(run, site="Ulm", method="FedAvg").params["weight"])
    assert len([path for path in (run / "refit").iterdir() if path.is_dir()]) == 1  # nothing is left of the others


def test_a_damaged_refit_and_that_of_another_run_are_refused(run):
    refit_run(run, "FedAvg", 2)
    note = (run / "refit" / "refit.json").read_text()
    (run / "refit" / "refit.json").write_text(note.replace("FedAvg", "FedAvh"))
    with pytest.raises(rv.InputError, match="run resolvent model refit again, or use the models of the run with"):
        rv.load(run, site="Ulm")
    (run / "refit" / "refit.json").write_text(note)
    decide(run)
    with pytest.raises(rv.InputError, match="another run"):
        rv.load(run, site="Ulm")
    assert rv.load(run, method="FedAvg", site="Ulm", before_refit=True).site in SITES


def test_a_score_that_is_not_defined_at_a_site_is_stated_in_words(run):
    record = read_record(run)
    site = record.sites[0]
    # As of a balanced accuracy, if all test rows have one class.
    site.scores["FedAvg"] = site.scores["FedAvg"]._replace(value=np.nan)
    text = refit_folder.provenance(record, None, "FedAvg", site.name)
    assert f"; accuracy not defined on its {site.test_rows} test rows" in text


def test_a_run_that_an_earlier_version_judged_is_refused(run):
    summary = read_sealed(run / "summary.json", "")
    for site in summary["sites"]:
        del site["advice"]
    write_sealed(run / "summary.json", {key: value for key, value in summary.items() if key != SEAL})
    with pytest.raises(rv.InputError, match="was written by another version of resolvent: run the experiment again"):
        read_record(run)


@pytest.mark.when_changed
def test_numbers_have_the_root_of_the_mean_squared_error_in_the_units_of_the_label():
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(30, 3)) for _ in range(3)]
    data = rv.FederatedData.from_arrays(x, [rows.sum(axis=1) + rng.normal(size=30) for rows in x])
    comparison = rv.compare({"alone": rv.local(rv.SGD(0.1))}, rv.models.linear(3), data, rounds=1, progress=False)
    assert comparison.evidence.score == "rmse"
    metrics = comparison.metrics[comparison.metrics["split"] == "test"]
    error, squared = (metrics[metrics["metric"] == name]["value"].to_numpy() for name in ("rmse", "squared_error"))
    assert len(error) == len(squared) > 0
    np.testing.assert_allclose(error**2, squared, rtol=1e-5)
