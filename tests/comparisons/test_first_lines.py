"""What a run prints about its table before it trains, or refuses it."""

import json

import pandas as pd

from resolvent.comparisons.experiment.data_check import check
from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.comparisons.experiment.first_lines import first_lines

EXPERIMENT = """
data: {table: TABLE, party: site, label: ill}
model: logistic
solver: {name: SGD, learning_rate: 0.1}
algorithms: [local, fedavg]
"""


def test_a_run_names_all_errors_of_its_table_at_once(tmp_path):
    """Lung cancer, as survival tables ship it, has six columns with missing values: a list of five would hide two."""
    frame = pd.DataFrame({"site": [*"aabb" * 10], "ill": ["no", "yes"] * 20, "unit": range(40)})
    names = [f"column {i}" for i in range(7)]
    for i, name in enumerate(names):
        frame[name] = [None, *range(i, i + 39)]
    frame.loc[3, "site"] = None
    frame.to_csv(tmp_path / "t.csv", index=False)
    lines = first_lines(ExperimentFile.parse(EXPERIMENT.replace("TABLE", str(tmp_path / "t.csv")), "t.yaml", "t"))
    assert all(any(line.startswith(f"error: column {name!r} has 1 missing") for line in lines) for name in names)
    assert lines[0].startswith("error: the party 'site' is missing in 1 row (")


def test_all_faults_of_a_raw_table_are_one_list(call, tmp_path):
    """Also those for which the table cannot be read as numbers; a run prints the same list, and trains nothing."""
    n = 300
    days = pd.date_range("2025-01-01", periods=n).strftime("%d.%m.%Y")
    frame = pd.DataFrame({"site": ["Aachen", "Bonn", None] * (n // 3), "dose": ["1.5", "1,5", "2.25"] * (n // 3),
                          "cost": ["1.234,5", "2,5", "7"] * (n // 3), "day": days,
                          "note": [f"patient {i} is well today" for i in range(n)],
                          "number": [f"P{i}" for i in range(n)],
                          "code": [f"C{i % 140}" for i in range(n)], "age": [*map(str, range(n - 1)), "unknown"]})
    frame["ill"] = [None, *["no", "yes"] * (n // 2 - 1), "no"]
    frame.to_csv(tmp_path / "t.csv", index=False)
    (tmp_path / "mine.yaml").write_text(EXPERIMENT.replace("TABLE", str(tmp_path / "t.csv")), "utf-8")
    outcome = call("check", "mine.yaml", "--format", "json", cwd=tmp_path)
    assert outcome.code == 1
    assert not outcome.err
    errors = [f for f in json.loads(outcome.out)["findings"] if f["severity"] == "error"]
    assert sorted((f["kind"], f["column"]) for f in errors) == sorted(
        [("numbers", "dose"), ("numbers", "cost"), ("missing", "site"), ("missing", "ill"), ("free text", "note"),
         ("identifier", "number"), ("levels", "code"), ("kind", "age"), ("dates", "day")])
    assert "'1.5' and '1,5'" in next(f["message"] for f in errors if f["column"] == "dose")
    outcome = call("run", "mine.yaml", cwd=tmp_path)
    *lines, last = [line for line in outcome.err.splitlines() if line.startswith("error: ")]
    assert len(lines) == len(errors)
    assert last.startswith("error: mine.yaml: data: the table has the errors above")
    assert not (tmp_path / "runs").exists()


def test_a_table_whose_sites_have_no_test_rows_is_refused_by_the_check_too():
    """A column of patient numbers as the party: every site has one row."""
    frame = pd.DataFrame({"patient": range(60), "ill": ["no", "yes"] * 30, "age": [40.5, 50.0, 60.25] * 20})
    (error,) = [f for f in check(frame, party="patient", label="ill").findings if f.severity == "error"]
    assert error.message == ("none of the 60 sites has test rows, on which methods are compared; they have at most 1 "
                             "row each")
    assert not [f for f in check(frame.assign(patient=[0, 1, 2] * 20), party="patient", label="ill").findings
                if f.severity == "error"]
