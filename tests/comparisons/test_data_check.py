"""``resolvent check`` and ``rv.check``: files, exit codes, JSON, sites and the first lines of a run."""

import json
import sys

import numpy as np
import pandas as pd
import pytest

import resolvent as rv
from resolvent import cli
from resolvent.cli.experiments_and_runs import shorten_groups
from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.comparisons.experiment.first_lines import first_lines
from resolvent.comparisons.judgement.power_forecast import smallest_gain
from resolvent.data.federated import SPLITS
from resolvent.data.partition.folds import split_fold
from resolvent.tables.checks.finding import Finding

FILE = """
data: {table: visits.csv, party: site, label: ill, test: 0.4}
model: logistic
solver: {name: SGD, learning_rate: 0.1, batch_size: 20, epochs: 1}
algorithms: {alone: local, FedAvg: fedavg}
rounds: 1
"""


def visits(rows=500):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"site": rng.choice(["Aachen", "Bonn", "Celle"], rows), "weight": rng.normal(75, 14, rows)})
    return frame.assign(ill=np.where(frame["weight"] + rng.normal(0, 14, rows) > 75, "yes", "no"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(FILE)
    visits().to_csv("visits.csv", index=False)
    return tmp_path


def command(monkeypatch, *arguments):
    """The exit code of a command."""
    monkeypatch.setattr(sys, "argv", ["resolvent", *arguments])
    try:
        cli.main()
    except SystemExit as end:
        return end.code
    return 0


def plant(folder):
    """Pounds at Bonn, a date, a missing label and a missing number."""
    frame = visits()
    frame["weight"] = frame["weight"].where(frame["site"] != "Bonn", 2.2046 * frame["weight"]).where(frame.index != 9)
    frame["ill"] = frame["ill"].where(frame.index != 4)
    frame.assign(day="2024-05-01").to_csv(folder / "visits.csv", index=False)


def test_a_clean_table_has_no_finding_and_exit_code_0(folder, monkeypatch, capsys):
    assert command(monkeypatch, "check", "mine.yaml") == 0
    printed = capsys.readouterr().out
    assert "0 errors, 0 warnings, 0 notes" in printed
    assert "points" in printed.split("Celle")[1]


def test_errors_are_listed_together_and_the_exit_code_is_1(folder, monkeypatch, capsys):
    plant(folder)
    assert command(monkeypatch, "check", "mine.yaml") == 1
    printed = capsys.readouterr().out
    for part in ("'ill' is missing in 1 row (row 6)", "'weight' has 1 missing value (", "column 'day' holds dates",
                 "dates: days", "pounds for kilograms?", "3 errors, 1 warning, 0 notes"):
        assert part in printed
    options = ("--set", "data.dates=days", "data.missing=impute")
    assert command(monkeypatch, "check", "mine.yaml", "--format", "json", *options) == 1
    content = json.loads(capsys.readouterr().out)
    assert [f["kind"] for f in content["findings"] if f["severity"] == "error"] == ["missing"]
    units = next(f for f in content["findings"] if f["kind"] == "units")
    assert (units["column"], units["site"], units["severity"]) == ("weight", "Bonn", "warning")
    assert units["value"] == pytest.approx(2.2, rel=0.1)
    assert {site["site"] for site in content["sites"]} == {"Aachen", "Bonn", "Celle"}


def test_warnings_alone_have_exit_code_0(folder, monkeypatch):
    visits().assign(constant=1).to_csv("visits.csv", index=False)
    assert command(monkeypatch, "check", "mine.yaml") == 0


def test_a_wrong_file_has_exit_code_2(folder, monkeypatch, capsys):
    assert command(monkeypatch, "check", "yours.yaml") == 2
    assert command(monkeypatch, "check", "mine.yaml", "--set", "data.table=absent.csv") == 2
    assert "there is no file" in capsys.readouterr().err


def test_a_run_begins_with_all_errors_and_at_most_five_lines_of_others(folder, monkeypatch, capsys):
    plant(folder)
    assert len(first_lines(ExperimentFile.load("mine.yaml"))) == 4
    frame = pd.read_csv("visits.csv")
    frame.assign(**{f"day {i}": "2024-05-01" for i in range(4)}).to_csv("visits.csv", index=False)
    lines = first_lines(ExperimentFile.load("mine.yaml"))
    assert [line.partition(":")[0] for line in lines[:-1]] == ["error"] * 7
    assert lines[-1] == "and 1 more finding about the data: resolvent check"
    assert command(monkeypatch, "run", "mine.yaml", "--out", "out") == 2
    assert capsys.readouterr().err.splitlines()[:2] == lines[:2]
    visits().assign(**{f"constant {i}": 1 for i in range(9)}).to_csv("visits.csv", index=False)
    assert len(first_lines(ExperimentFile.load("mine.yaml"))) == 5


def test_a_frame_an_experiment_and_its_file_give_the_same_findings(folder):
    plant(folder)
    by_file, by_frame = rv.check("mine.yaml"), rv.check(pd.read_csv("visits.csv"), party="site", label="ill", test=0.4)
    assert {(f.kind, f.column, f.site, f.value) for f in by_file.findings} == {
        (f.kind, f.column, f.site, f.value) for f in by_frame.findings}
    assert by_file.sites == by_frame.sites
    assert by_file.has_errors
    assert not rv.check(visits(), party="site", label="ill", test=0.4).findings


def test_with_folds_no_test_rows_are_few(folder):
    visits(60).to_csv("visits.csv", index=False)
    one_split = {f.kind for f in rv.check("mine.yaml", ["folds=1"]).findings}
    assert {"few test rows", "power"} <= one_split
    for changes in (["folds=2"], []):  # by default, a small table has folds
        assert not {"few test rows", "power"} & {f.kind for f in rv.check("mine.yaml", changes).findings}
    assert not rv.check(visits(60), party="site", label="ill").findings
    for changes in (["start=runs/x"], ["search={over: {FedAvg: {solver.learning_rate: [0.1]}}}"]):
        assert {f.kind for f in rv.check("mine.yaml", changes).findings} == one_split


def test_sites_have_the_rows_of_the_run(folder):
    data = rv.datasets.from_frame(visits(), "site", "ill", test=0.4)
    checked = rv.check("mine.yaml"), rv.check("mine.yaml", ["folds=1"])
    assert [of.folds for of in checked] == [5, 1]
    fold = split_fold(data, 1, 5, seed=0).data
    for k, (site, of_split) in enumerate(zip(*(of.sites for of in checked), strict=True)):
        assert site.site == of_split.site == data.parties[k]
        assert of_split.rows == tuple(data.sizes(split)[k] for split in SPLITS)
        assert site.rows == (fold.sizes("train")[k], fold.sizes("validation")[k], len(data.rows_of(k)))
        assert site.smallest_gain < of_split.smallest_gain
    assert rv.check("mine.yaml").record()["folds"] == 5


def test_samples_of_a_data_set_are_counted_by_class():
    checked = rv.check("digits")
    data = rv.datasets.digits(parties=5, test=0.5)
    assert len(checked.sites) == len(ExperimentFile.load("digits").build().data)
    assert {f.kind for f in checked.findings} <= {"class absent", "few test rows", "power"}
    assert data.task == "classification"


def test_arguments_that_do_not_fit_are_refused(folder):
    with pytest.raises(rv.InputError, match="a data frame needs party and label"):
        rv.check(visits(), party="site")
    with pytest.raises(rv.InputError, match=r"check\(labl=...\) is not a setting of a table.*label"):
        rv.check(visits(), party="site", labl="ill")
    with pytest.raises(rv.InputError, match="test='much'"):
        rv.check(visits(), party="site", label="ill", test="much")
    with pytest.raises(rv.InputError, match="party: the file has these settings"):
        rv.check("mine.yaml", party="site")
    with pytest.raises(rv.InputError, match="has prices or a problem"):
        rv.check("splitting")


def test_many_findings_alike_are_shortened():
    findings = tuple(Finding("power", "note", f"site {i}", "more rows", site=str(i)) for i in range(9))
    shown, more = shorten_groups((*findings, Finding("leak", "warning", "a", "b", "x")))
    assert (len(shown), more) == (5, 5)


@pytest.mark.parametrize(("rows", "tolerance"), [(40, 0.1), (200, 0.05), (1000, 0.03)])
def test_the_smallest_gain_is_shown_with_the_stated_probability(rows, tolerance):
    gain, share = smallest_gain([rows]), 0.2
    rng = np.random.default_rng(0)
    better, worse = (share + gain) / 2, (share - gain) / 2
    draws = rng.multinomial(rows, [better, worse, 1 - share], size=20_000)
    difference = (draws[:, 0] - draws[:, 1]) / rows
    error = np.sqrt(((draws[:, 0] + draws[:, 1]) / rows - difference**2) / rows)
    assert (difference > 1.96 * error).mean() == pytest.approx(0.8, abs=tolerance)


def test_the_smallest_gain_by_class_is_that_of_the_rare_class():
    assert smallest_gain([500, 20]) > smallest_gain([520]) * 2
    assert smallest_gain([10]) is None
    assert smallest_gain([100, 0]) is None
    assert smallest_gain([]) is None


REGRESSION = """
data: {table: visits.csv, party: site}
regression: {formula: dose ~ weight + age + score + visits}
"""


def doses():
    """Pounds at Bonn, codes of missing values, a gap, and a label of another unit at Celle."""
    rng, frame = np.random.default_rng(3), visits()
    frame = frame.assign(dose=0.1 * frame["weight"] + rng.normal(0, 0.4, len(frame)),
                         age=rng.integers(20, 80, len(frame)), score=rng.integers(1, 6, len(frame)),
                         visits=np.where(frame.index % 50, rng.integers(10, 30, len(frame)), -1),
                         weight=frame["weight"].where(frame.index != 7))
    frame["age"] = frame["age"].where(frame.index % 50 > 0, -999)
    frame["score"] = frame["score"].where(frame.index % 50 > 0, 9)
    frame["weight"] = frame["weight"].where(frame["site"] != "Bonn", 2.2046 * frame["weight"])
    return frame.assign(dose=frame["dose"].where(frame["site"] != "Celle", 60 * frame["dose"]))


def test_columns_that_are_no_features_of_a_regression_are_not_judged_as_such(folder):
    """All events occurred, which is no reason to leave them out; nor is an offset that is the same in all rows."""
    frame = visits().assign(days=lambda f: 1 + f.index % 90, died=1, risk=0.5)
    frame.to_csv("visits.csv", index=False)
    (folder / "fit.yaml").write_text(REGRESSION.split("regression:")[0]
                                     + "regression: {formula: 'Surv(days, died) ~ weight', offset: risk}\n")
    assert rv.check("fit.yaml").findings == ()
    (folder / "fit.yaml").write_text(REGRESSION.split("regression:")[0]
                                     + "regression: {formula: 'Surv(days, died) ~ dose'}\n")
    (finding,) = rv.check("fit.yaml").findings  # and none about classes of days
    assert "names the column 'dose'" in finding.message


def test_the_file_of_a_regression_is_checked_as_that_of_an_experiment_and_refuses_what_it_refuses(folder, monkeypatch,
                                                                                                  capsys):
    (folder / "fit.yaml").write_text(REGRESSION)
    doses().to_csv("visits.csv", index=False)
    assert command(monkeypatch, "check", "fit.yaml") == 0
    printed = capsys.readouterr().out
    found = {(f.kind, f.severity, f.column) for f in rv.check("fit.yaml").findings}
    assert found == {("units", "warning", "weight"), ("units", "warning", "dose"), ("missing code", "warning", "age"),
                     ("missing code", "warning", "score"), ("missing code", "warning", "visits"),
                     ("missing", "note", "weight")}
    assert "the regression leaves these rows out" in printed
    assert "0 errors, 5 warnings, 1 note" in printed
    n, wrong = len(doses()), []
    for column, cells, kind, advice in (
            ("age", [f"{120 + i % 30}/80" for i in range(n)], "kind", "text: [age]"),
            ("age", [f"{20 + i % 30} %" for i in range(n)], "kind", "write the number alone"),
            ("age", pd.date_range("2024-05", periods=n).strftime("%Y-%m"), "dates", "the days since a first day"),
            ("score", ["yes", "Yes"] * (n // 2), "spelling", "write them alike"),
            ("age", ["41"] * (n - 1) + ["?"], "kind", "missing: ['?']"),
            ("age", ["all alike"] * n, "regression", "leave it out")):
        doses().assign(**{column: cells}).to_csv("visits.csv", index=False)
        error, *others = (f for f in rv.check("fit.yaml").findings if f.severity == "error")
        refused = command(monkeypatch, "regress", "fit.yaml")
        if (error.kind, advice in error.line, others, refused) != (kind, True, [], 2):
            wrong.append((error, others, refused))
    assert wrong == []
