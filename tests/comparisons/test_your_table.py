"""An experiment on the user's own table, from the file to the report."""

import json

import numpy as np
import pandas as pd
import pytest

import nightly


@pytest.fixture(scope="module")
def visits():
    """A table of three hospitals with a number, a category and an outcome."""
    rng = np.random.default_rng(0)
    n = 120
    age = rng.normal(60, 10, n).round(1)
    ward = rng.choice(["north", "south"], n)
    return pd.DataFrame({"hospital": rng.choice(["A", "B & C", "<D>"], n, p=[0.5, 0.3, 0.2]), "age": age, "ward": ward,
                         "outcome": np.where(age + 8 * (ward == "north") + rng.normal(0, 4, n) > 64, "ill", "well")})


EXPERIMENT = """\
data: {table: TABLE, party: hospital, label: outcome}
model: logistic
solver: {name: SGD, learning_rate: 0.1}
algorithms: {alone: local, FedAvg: fedavg}
rounds: 20
folds: 1
"""


@pytest.mark.when_changed
@nightly.parametrize("kind", ["csv", "parquet"])
def test_table_is_read_trained_on_and_reported(kind, visits, call, tmp_path):
    """The table's path is relative to the current folder, wherever the experiment file lies."""
    (tmp_path / "tables").mkdir()
    (tmp_path / "files").mkdir()
    table = tmp_path / "tables" / f"visits.{kind}"
    visits.to_csv(table, index=False) if kind == "csv" else visits.to_parquet(table)
    (tmp_path / "files" / "mine.yaml").write_text(EXPERIMENT.replace("TABLE", f"tables/visits.{kind}"))
    outcome = call("run", "files/mine.yaml", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    folder = tmp_path / "runs" / "mine"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["title"] == "mine"
    assert summary["data"]["name"] == "visits"
    assert summary["data"]["parties"] == ["<D>", "A", "B & C"]
    counts = visits["hospital"].value_counts()
    assert all(summary["data"]["train"][k] + summary["data"]["test"][k] < counts[party]
               for k, party in enumerate(summary["data"]["parties"]))
    assert "Columns of text are one-hot encoded (columns: 1, 0/1 inputs: 2)" in summary["data"]["notes"]
    assert summary["methods"]["alone"]["final"]["mean"] > 0.7  # a random guess has 0.5
    assert len(pd.read_parquet(folder / "metrics.parquet")["party"].dropna().unique()) == 3
    note = json.loads((folder / "models" / "FedAvg" / "tree.json").read_text())
    assert note["leaves"]["weight"]["shape"] == [1, 3]
    again = call("run", "runs/mine/experiment.yaml", "--out", "again", cwd=tmp_path)
    assert again.code == 0, again.err
    repeated = json.loads((tmp_path / "again" / "summary.json").read_text())
    assert [m["digest"] for m in repeated["methods"].values()] == [m["digest"] for m in summary["methods"].values()]


def test_missing_table_is_named(visits, call, tmp_path):
    (tmp_path / "files").mkdir()
    visits.to_csv(tmp_path / "files" / "visits.csv", index=False)  # next to the experiment file, which is not searched
    visits.to_csv(tmp_path / "visit.csv", index=False)
    (tmp_path / "files" / "mine.yaml").write_text(EXPERIMENT.replace("TABLE", "visits.csv"))
    outcome = call("run", "files/mine.yaml", cwd=tmp_path)
    assert outcome.code == 2
    assert f"error: files/mine.yaml:1: data: there is no file '{tmp_path / 'visits.csv'}'" in outcome.err
    assert "did you mean 'visit.csv'?" in outcome.err
    assert not (tmp_path / "runs").exists()


def test_missing_column_is_named(visits, call, tmp_path):
    visits.to_csv(tmp_path / "visits.csv", index=False)
    (tmp_path / "mine.yaml").write_text(EXPERIMENT.replace("TABLE", "visits.csv").replace("outcome", "outcom"))
    outcome = call("run", "mine.yaml", cwd=tmp_path)
    assert outcome.code == 2
    assert "error: label names the column 'outcom'" in outcome.err
    assert "mine.yaml: data: the table has the errors above" in " ".join(outcome.err.split())
    assert "did you mean 'outcome'?" in outcome.err
    assert not (tmp_path / "runs").exists()
