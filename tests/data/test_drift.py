"""Drift of new rows against the training rows."""

import numpy as np
import pandas as pd
import pytest

import nightly
import resolvent as rv
from resolvent.data.files.plain_values import read_plain
from resolvent.tables.drift import TrainingRows, summarize, with_drift
from resolvent.tables.party_tables import from_frame

N = 900


def visits(rows, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({
        "site": rng.choice(["a", "b", "c"], rows), "age": rng.normal(60, 12, rows), "crp": rng.lognormal(1, 1, rows),
        "visits": rng.poisson(2, rows), "smokes": rng.random(rows) < 0.2, "ward": rng.choice(["n", "o", "s"], rows)})
    return frame.assign(ill=np.where(frame["age"] + rng.normal(0, 9, rows) > 60, "yes", "no"))


def drifted(data, frame, site=None):
    training = summarize(data)
    assert read_plain(TrainingRows, training.plain(), "file") == training
    return with_drift(data.encoding.encode(frame), data.encoding, training, site).remarks.drift


@nightly.parametrize("rows", [100, 20, 2000], others=nightly.WHEN_CHANGED)
def test_rows_of_the_same_distribution_seldom_drift(rows):
    data, tables = from_frame(visits(N), "site", "ill"), nightly.examples(200)
    assert sum(bool(drifted(data, visits(rows, seed))) for seed in range(1, tables + 1)) <= tables / 20


@pytest.mark.parametrize(("column", "change", "values"), [
    ("age", lambda f: f["age"] + 15, "values from "), ("crp", lambda f: f["crp"] * 3, "values from "),
    ("ward", lambda f: f["ward"].where(f.index % 3 > 0, "s").where(f.index % 2 > 0, "s"), "'s'"),
    ("smokes", lambda f: f["smokes"] | (f.index % 2 == 0), "values from 1"),
    ("visits", lambda f: f["visits"] + 2, "values ")])
def test_a_drifted_column_is_named_alone(column, change, values):
    data = from_frame(visits(N), "site", "ill")
    new = visits(200, 1)
    drift, = drifted(data, new.assign(**{column: change(new)}))
    assert drift.column == column
    assert drift.distance > drift.bound >= 0.1
    assert drift.values.startswith(values)


def test_a_column_that_is_nearly_constant_can_drift():
    """Nine deciles of such a column are one value, so that this value needs a bin of its own."""
    def rows_of(rows, seed):
        rng = np.random.default_rng(seed)
        return visits(rows, seed).assign(
            mark=(rng.random(rows) < 0.04).astype(int), has_pain=rng.random(rows) < 0.04,
            falls=rng.poisson(0.03, rows), dose=np.where(np.arange(rows) == 0, 9.0, 3.0))

    data = from_frame(rows_of(N, 0), "site", "ill")
    assert all(len(counts.counts) <= 10 for counts in summarize(data).sites[""].values())
    assert sum(bool(drifted(data, rows_of(100, seed))) for seed in range(1, 51)) <= 3
    new, found = rows_of(200, 1), {}
    for column in ("mark", "has_pain", "falls", "dose"):
        changed = new[column].where(new.index % 2 == 0, {"dose": 9.0, "has_pain": True}.get(column, 1))
        found[column] = [(drift.column, drift.values) for drift in drifted(data, new.assign(**{column: changed}))]
    assert found == {"mark": [("mark", "values above 0")], "has_pain": [("has_pain", "values above 0")],
                     "falls": [("falls", "values above 0")], "dose": [("dose", "values above 3")]}


def test_the_index_is_that_of_the_formula():
    data = from_frame(visits(N), "site", "ill", validation=0, test=0)
    new = visits(300, 1).assign(ward="s")
    drift, = drifted(data, new)
    p = np.array([*(visits(N)["ward"].value_counts().sort_index()), 0]) + 0.5
    q = np.array([0.5, 0.5, 300.5])
    p, q = p[:3] / p[:3].sum(), q / q.sum()
    assert drift.distance == pytest.approx(((q - p) * np.log(q / p)).sum(), rel=1e-12)
    assert (drift.after, drift.before) == (1, pytest.approx((visits(N)["ward"] == "s").mean()))


def test_a_site_is_compared_with_its_own_training_rows():
    frame = visits(N)
    frame["age"] += 25 * (frame["site"] == "a")
    data = from_frame(frame, "site", "ill")
    new = visits(200, 1).assign(site="a")
    new["age"] += 25
    assert [d.column for d in drifted(data, new)] == ["age"]
    assert not drifted(data, new, "a")
    assert [d.column for d in drifted(data, new, "b")] == ["age"]


def test_few_rows_and_other_data_have_no_summary():
    small = summarize(from_frame(visits(200).assign(site=["a"] * 160 + ["b"] * 40), "site", "ill"))
    assert set(small.sites) == {"", "a"}
    assert summarize(rv.datasets.synthetic(parties=2)) is None
    data = from_frame(visits(N), "site", "ill")
    assert not drifted(data, visits(19, 1).assign(age=90.0))


@pytest.mark.when_changed
def test_predictions_warn_of_drift_and_a_private_run_stores_no_summary(tmp_path):
    data = from_frame(visits(300), "site", "ill")
    new = visits(100, 1)
    model = rv.models.logistic(len(data.features), 2)
    rv.simulate(rv.fedavg(rv.SGD(0.1)), model, data, rounds=1, progress=False).save(tmp_path / "open")
    fitted = rv.load(tmp_path / "open", site="a")
    assert not fitted.check(new).drift
    with pytest.warns(rv.UnusualRowsWarning, match=r"'ward' has drifted .*: 's' are 100% of these rows, and \d+% of"):
        fitted.predict(new.assign(ward="s"))
    (tmp_path / "open" / "models" / "training_rows.json").unlink()  # which is allowed
    assert not rv.load(tmp_path / "open", site="a").check(new.assign(ward="s")).drift
    solver = rv.solvers.DPSGD(0.1, clip=1.0, noise_multiplier=1.0, batch_size=10, steps=1)
    rv.simulate(rv.fedavg(solver), model, data, rounds=1, progress=False).save(tmp_path / "private")
    assert not (tmp_path / "private" / "models" / "training_rows.json").exists()
    assert not rv.load(tmp_path / "private", site="a").check(new.assign(ward="s")).drift
