"""Comparisons with folds: one score from all rows, no leak into a fold, one compilation, resumption, search inside."""

import json
import shutil
from collections import Counter
from dataclasses import replace

import jax
import numpy as np
import pandas as pd
import pytest
from folder_contents import digests

import resolvent as rv
from resolvent.comparisons.after.calibrations import calibrate
from resolvent.comparisons.after.explanations import explain_models
from resolvent.comparisons.after.run_rows import rows_of_run
from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.comparisons.runs.summary import Source, summarize
from resolvent.data.partition.folds import split_fold
from resolvent.errors import InputError
from resolvent.predict.calibration import probabilities_of
from resolvent.problem.metrics.metric import Predictions
from resolvent.simulator.engine.rounds import compiled_programs

pytestmark = pytest.mark.when_changed  # whole runs: each file would train its own at every commit

SOLVER = rv.SGD(0.1)
# The two federated methods are one program with two numbers.
METHODS = {"alone": rv.local(SOLVER), "FedAvg": rv.fedprox(SOLVER, mu=0.0), "FedProx": rv.fedprox(SOLVER, mu=0.5)}
SIZES = [31, 12, 44]  # no multiple of the number of folds
FILE = """\
data: {table: visits.csv, party: hospital, label: outcome}
model: logistic
solver: {name: SGD, learning_rate: 0.1}
algorithms: {alone: local, FedProx: fedprox}
rounds: 2
evaluate_every: 2
diagnostics: []
folds: 2
search: {over: {FedProx: {mu: [0.1, 10], solver.learning_rate: [0.001, 0.1]}}, strategy: grid, trials: 2}
"""


def federation(seed=0, sizes=SIZES):
    rng = np.random.default_rng(0)
    xs = [rng.normal(size=(n, 2)) for n in sizes]
    return rv.FederatedData.from_arrays(xs, [(x[:, 0] + rng.normal(size=len(x)) > 0.3).astype(int) for x in xs],
                                        seed=seed)


def compared(data=None, **options):
    return rv.compare(METHODS, rv.models.logistic(2, 2), federation() if data is None else data, **{
        "rounds": 2, "evaluate_every": 2, "folds": 3, "decide_by": "roc_auc",
        "metrics": [rv.metrics.ROCAUC(), rv.metrics.LogLoss()], "progress": False} | options)


@pytest.fixture(scope="module")
def comparison():
    return compared(seeds=2)


def log_odds(p):
    return np.log(p[:, 1]) - np.log(p[:, 0])


def test_the_score_of_a_site_is_that_of_all_its_rows(comparison):
    """An area from the log-odds of all folds together, less their mean over the training rows, from single runs."""
    data, runs = comparison.experiment.data, comparison.runs["FedAvg"]
    parts = [[] for _ in SIZES]
    for fold in range(3):
        split = split_fold(data, fold, 3, seed=0)
        result = rv.simulate(METHODS["FedAvg"], rv.models.logistic(2, 2), split.data, rounds=2, evaluate_every=2,
                             diagnostics=("model_change", "line"), progress=False)
        assert result.digest == runs[fold].digest
        for k in range(3):
            first, n = (int(part[k]) for part in (split.data.splits["test"].offset, split.data.splits["test"].length))
            counts = ~split.is_repeated[first:first + n]
            x, y = (part[first:first + n][counts] for part in (split.data.x, split.data.y))
            fitted = result.fitted(k)
            parts[k].append((y, log_odds(fitted.predict_proba(x))
                             - log_odds(fitted.predict_proba(split.data.party(k)[0])).mean()))
    for k, of_folds in enumerate(parts):
        y, odds = (np.concatenate(part) for part in zip(*of_folds, strict=True))
        p = np.stack([-odds, odds], axis=1)  # the area depends on their order alone
        assert len(y) == SIZES[k]
        mask = (comparison.rows.seed == 0) & (comparison.rows.party == k)
        assert comparison.rows.values["FedAvg"][mask].mean() == pytest.approx(
            rv.metrics.ROCAUC().value(Predictions(y, p.argmax(axis=1), p, p)), abs=1e-6)


def test_every_row_is_tested_once_with_each_seed(comparison):
    rows = comparison.rows
    for seed in (0, 1):
        for k, start in enumerate(np.cumsum([0, *SIZES[:-1]])):
            assert sorted(rows.row[(rows.seed == seed) & (rows.party == k)]) == list(range(start, start + SIZES[k]))
    assert [site.test_rows for site in comparison.verdict.sites.sites] == SIZES
    means = comparison.verdict.table.set_index("method")["mean"]
    for method in METHODS:
        sites = [site.scores[method].value for site in comparison.verdict.sites.sites]
        assert means[method] == pytest.approx(np.mean(sites))
    assert {run.metrics["fold"].iloc[0] for run in comparison.runs["alone"]} == {0, 1, 2}


def test_a_site_with_fewer_rows_than_folds_has_each_row_tested_once():
    """In the other folds it has no row of its own to test."""
    small = compared(federation(sizes=[31, 12, 2]), folds=5)
    assert [site.test_rows for site in small.verdict.sites.sites] == [31, 12, 2]
    assert small.recommend()["reason"].tolist()[-1] == "no evidence"


def test_all_folds_share_their_programs(comparison):
    """Only the first fold compiles: neither rounds nor evaluations nor predictions compile again."""
    events, before = Counter(), compiled_programs()

    def count(event, duration, **_):
        events[event.rpartition("/")[2]] += 1

    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        compared(seed=7)
    finally:
        jax.monitoring.unregister_event_duration_listener(count)
    assert compiled_programs() == before
    assert events["backend_compile_duration"] == 0


def test_a_fold_does_not_read_its_test_rows():
    """Other labels of the test rows of the first fold do not change its models."""
    rng = np.random.default_rng(0)
    xs = [rng.normal(size=(n, 2)) for n in SIZES]
    ys = [x[:, 0] + rng.normal(size=len(x)) for x in xs]
    data = rv.FederatedData.from_arrays(xs, ys)
    split = split_fold(data, 0, 3, seed=0)
    tested = np.concatenate([np.arange(o, o + n) for o, n in zip(
        split.data.splits["test"].offset, split.data.splits["test"].length, strict=True)])
    other = np.array(data.y)
    other[split.rows[tested]] += 100.0
    first, second = (rv.compare(METHODS, rv.models.linear(2), d, rounds=2, evaluate_every=2, folds=3, progress=False)
                     for d in (data, replace(data, y=other)))
    for method in METHODS:
        same = [a.digest == b.digest for a, b in zip(first.runs[method], second.runs[method], strict=True)]
        assert same == [True, False, False]


def test_calibrations_and_explanations_read_every_row_with_the_model_of_its_fold(tmp_path):
    """Their scores before a calibration are those of the comparison, in memory and from the folder of the run."""
    comparison = compared(decide_by="log_loss", seeds=2)
    comparison.save(tmp_path / "run")
    for rows in (comparison.held_out_rows("FedAvg"), rows_of_run(tmp_path / "run", "FedAvg", federation())):
        table = calibrate(rows, kind="none").table.set_index("site")
        assert table.loc[["party 0", "party 1", "party 2"], "test_rows"].tolist() == SIZES
        assert table.loc["shared model", "test_rows"] == sum(SIZES)
        first = comparison.rows.seed == 0
        for k, name in enumerate(rows.sites):
            losses = comparison.rows.values["FedAvg"][first & (comparison.rows.party == k)]
            assert table.loc[name, "log_loss_before"] == pytest.approx(losses.mean(), rel=1e-5)
        assert {record.test_rows for record in explain_models(rows).sites.values()} == {*SIZES, sum(SIZES)}
    shutil.rmtree(tmp_path / "run/models/FedAvg/fold-2")
    with pytest.raises(InputError, match="no models of fold 2"):
        rows_of_run(tmp_path / "run", "FedAvg", federation())


@pytest.mark.nightly
def test_a_calibration_is_not_measured_on_the_rows_to_which_it_was_fitted():
    """Labels are coins: no calibration is better, but one that is fitted to the rows themselves seems so."""
    rng = np.random.default_rng(0)
    xs = [rng.normal(size=(90, 2)) for _ in range(6)]
    data = rv.FederatedData.from_arrays(xs, [rng.integers(0, 2, 90) for _ in xs])
    comparison = rv.compare(METHODS, rv.models.logistic(2, 2), data, rounds=2, evaluate_every=2, folds=3,
                            progress=False)
    made, measured, in_sample = comparison.calibrate("FedAvg", kind="isotonic"), [], []
    for name, site in made.rows.sites.items():
        measured.append(made.sites[name].scores["log_loss"].after.value)
        for part in site.folds:
            p = probabilities_of(made.fitted(name).calibration.apply(part.fitted.outputs_of_inputs(part.test.x)))
            in_sample.append(-np.log(p[np.arange(len(p)), part.test.y]).mean())
    assert np.mean(measured) > np.log(2) - 0.002
    assert np.mean(in_sample) < np.mean(measured) - 0.01


def test_an_interrupted_run_continues_with_every_fold(tmp_path):
    def stop(label, done, total):
        if label == "FedAvg" and done == 4:  # two folds of two rounds
            raise KeyboardInterrupt

    whole = compared()
    with pytest.raises(KeyboardInterrupt):
        compared(out=tmp_path / "run", progress=stop)
    reports = {}
    compared(out=tmp_path / "run", resume=True, progress=lambda label, done, total: reports.setdefault(
        label, []).append((done, total)))
    progress = [*dict.fromkeys(reports["FedAvg"])]
    assert progress == [(0, 6), (2, 6), (4, 6), (5, 6), (6, 6)]  # two folds are finished, the third begins
    assert reports["alone"][-1] == (6, 6)
    assert digests(tmp_path / "run") == {m: runs[0].digest for m, runs in whole.runs.items()}
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["folds"] == 3
    assert {m: facts["digests"] for m, facts in summary["methods"].items()} == {
        m: [run.digest for run in runs] for m, runs in whole.runs.items()}


def test_a_file_searches_inside_each_fold(tmp_path, call):
    rng = np.random.default_rng(0)
    age = rng.normal(60, 12, 61)
    pd.DataFrame({"hospital": np.repeat(["Bochum", "Essen"], [40, 21]), "age": age,
                  "outcome": np.where(age + rng.normal(0, 6, 61) > 62, "ill", "well")}).to_csv(
        tmp_path / "visits.csv", index=False)
    (tmp_path / "mine.yaml").write_text(FILE)
    with pytest.warns(UserWarning, match="FedProx: the chosen .* that was tried: search"):
        outcome = call("run", "mine.yaml", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    assert "2 folds x 2 methods = 4 runs of 2 rounds, after a search inside each of 2 folds" in " ".join(
        outcome.err.split())
    assert ", each tested once" in " ".join(outcome.out.split())
    summary = json.loads((tmp_path / "runs/mine/summary.json").read_text())
    assert summary["data"]["test"] == [40, 21]
    points = summary["methods"]["FedProx"]["tuned"]
    assert [set(point) for point in points] == [{"mu", "solver.learning_rate"}] * 2
    assert "tuned" not in summary["methods"]["alone"]
    page = " ".join((tmp_path / "runs/mine/report.html").read_text().split())
    assert "Every row was tested once" in page
    assert "Inside the folds, FedProx chose" in page
    calibrated = call("model", "calibrate", "runs/mine", "--method", "FedProx", "--format", "json", cwd=tmp_path)
    assert calibrated.code == 0, calibrated.err
    assert [site["test_rows"] for site in json.loads(calibrated.out)["sites"].values()] == [40, 21]
    assert call("model", "explain", "runs/mine", "--method", "FedProx", cwd=tmp_path).code == 0
    refit = call("model", "refit", "runs/mine", "--method", "FedProx", cwd=tmp_path)
    assert "the hyperparameters of FedProx were chosen in each fold" in refit.err
    refused = call("tune", "mine.yaml", cwd=tmp_path)
    assert refused.code != 0
    assert "mine.yaml:8: folds: 2: the search is part of each fold" in refused.err


def test_a_small_table_has_five_folds_unless_the_file_or_the_program_says_otherwise(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"hospital": np.repeat(["Bochum", "Essen"], 30), "age": rng.normal(60, 12, 60),
                          "size": rng.normal(170, 9, 60)})
    frame["outcome"] = np.where(frame["age"] + rng.normal(0, 6, 60) > 62, "ill", "well")
    frame.to_csv(tmp_path / "visits.csv", index=False)
    text = FILE.replace("visits.csv", str(tmp_path / "visits.csv"))
    plain, search = text[:text.index("folds")], text.replace("folds: 2\n", "")
    texts = (plain, text, search, f"{plain}folds: 1\n", f"{plain}start: runs/other\n")
    files = [ExperimentFile.parse(text, "mine.yaml", "mine") for text in texts]
    assert [file.build().number_of_folds for file in files] == [5, 2, 1, 1, 1]
    data = rv.datasets.from_frame(frame, "hospital", "outcome")
    options = {"rounds": 1, "evaluate_every": 1, "progress": False}
    found = [rv.compare({"FedAvg": rv.fedavg(SOLVER)}, rv.models.logistic(2, 2), data, **options | more)
             for more in ({}, {"folds": 1})]
    assert [len(comparison.runs["FedAvg"]) for comparison in found] == [5, 1]
    tested = [summarize(Source("t", None, {"FedAvg": "x"}, ""), comparison).data.test for comparison in found]
    assert tested == [[30, 30], [6, 6]]
