"""Comparisons with several seeds, from a file and from a program, and runs that are compared."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from folder_contents import digests

import resolvent as rv
from resolvent.comparisons.runs.record import read_record
from resolvent.data.partition.splits import resplit
from resolvent.simulator.engine.rounds import compiled_programs

pytestmark = pytest.mark.when_changed  # whole runs: each file would train its own at every commit

SITES = ["Bochum", "Essen", "Ulm"]
FILE = """\
data: {table: visits.csv, party: hospital, label: outcome, test: 0.3}
model: logistic
solver: {name: SGD, learning_rate: 0.1}
algorithms: {alone: local, FedAvg: fedavg}
rounds: 3
folds: 1
evaluate_every: 3
diagnostics: []
"""
SOLVER = rv.SGD(0.1)
METHODS = {"alone": rv.local(SOLVER), "FedAvg": rv.fedavg(SOLVER)}


def visits():
    rng = np.random.default_rng(0)
    hospital = np.repeat(SITES, [60, 12, 48])
    age = rng.normal(60, 12, 120)
    return pd.DataFrame({"hospital": hospital, "age": age,
                         "outcome": np.where(age + rng.normal(0, 6, 120) > 62, "ill", "well")})


def from_program(data=None, **options):
    data = rv.datasets.from_frame(visits(), "hospital", "outcome", test=0.3) if data is None else data
    return rv.compare(METHODS, rv.models.logistic(1, 2), data, **{
        "rounds": 3, "folds": 1, "evaluate_every": 3, "seeds": 3, "progress": False} | options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, call):
    """A folder with a run of three seeds from a file."""
    folder = tmp_path_factory.mktemp("seeds")
    visits().to_csv(folder / "visits.csv", index=False)
    (folder / "mine.yaml").write_text(FILE)
    outcome = call("run", "mine.yaml", "--set", "seeds=3", cwd=folder)
    assert outcome.code == 0, outcome.err
    assert "Next: resolvent show runs/mine" in outcome.out
    return folder


@pytest.fixture(scope="module")
def comparison():
    return from_program()


def test_a_file_and_a_program_give_the_same(folder, comparison, tmp_path):
    summary = read_record(folder / "runs" / "mine").plain()
    assert {m: list(facts["digests"]) for m, facts in summary["methods"].items()} == {
        m: [run.digest for run in runs] for m, runs in comparison.runs.items()}
    assert summary["seeds"] == [0, 1, 2]
    assert summary["finding"] == comparison.finding
    frame = comparison.recommend()
    own = np.array([site["advice"]["own"][0] for site in summary["sites"]], dtype=float)  # null: it is not judged
    np.testing.assert_allclose(own, frame["own"])
    saved = comparison.save(tmp_path / "saved")
    again = read_record(saved).plain()
    assert again["sites"] == summary["sites"]
    assert again["means"] == summary["means"]
    assert rv.load(saved, method="FedAvg", site="Essen").predict(visits().head(3)).shape == (3,)
    page = (saved / "report.html").read_text()
    assert "3 seeds, 0 to 2" in page
    assert "Essen (" in page
    assert "http" not in page.replace("http://www.w3.org", "").split("<main>")[0]


def test_all_seeds_share_their_programs(comparison):
    before = compiled_programs()
    from_program(seeds=2, seed=5)
    assert compiled_programs() == before


def test_first_seed_is_the_run_with_one_seed(comparison):
    single = from_program(seeds=1)
    for method, runs in single.runs.items():
        assert [run.digest for run in runs] == [comparison.runs[method][0].digest]
    differ = {runs[0].digest != runs[1].digest for runs in comparison.runs.values()}
    assert differ == {True}


def test_rows_keep_their_numbers_over_the_seeds(comparison):
    """A test row of two seeds has one number: the score of a site is that of its rows."""
    rows, data = comparison.rows, comparison.experiment.data
    for seed in (1, 2):
        again, order = resplit(data, seed)
        of_seed = rows.row[(rows.seed == seed) & (rows.party == 0)]
        first, n = (int(part[0]) for part in (again.splits["test"].offset, again.splits["test"].length))
        assert sorted(of_seed) == sorted(order[first:first + n])
    metrics = comparison.metrics
    last = metrics[(metrics["metric"] == "accuracy") & (metrics["split"] == "test") & (metrics["round"] == 3)]
    for (method, seed, party), value in last.groupby(["method", "seed", "party"])["value"].first().items():
        mask = (rows.seed == seed) & (rows.party == party)
        assert rows.values[method][mask].mean() == pytest.approx(value, abs=1e-6)


def test_baseline_is_the_majority_class_of_the_training_rows(comparison):
    rows, data = comparison.rows, comparison.experiment.data
    for k in range(3):
        train, test = data.party(k)[1], data.party(k, "test")[1]
        mask = (rows.seed == 0) & (rows.party == k)
        assert rows.values["majority class"][mask].mean() == pytest.approx(
            (test == np.argmax(np.bincount(train))).mean())


def test_an_interrupted_run_continues_with_every_seed(comparison, tmp_path):
    def stop(label, done, total):
        if label == "FedAvg" and done == 6:  # two seeds of three rounds
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        from_program(out=tmp_path / "run", progress=stop)
    reports = {}
    resumed = from_program(out=tmp_path / "run", resume=True, progress=lambda label, done, total: reports.setdefault(
        label, []).append((done, total)))
    for label in ("alone", "FedAvg"):
        progress = [*dict.fromkeys(reports[label])]
        assert progress == [(0, 9), (3, 9), (6, 9), (7, 9), (9, 9)]  # two seeds are finished, the third begins
    assert digests(tmp_path / "run") == {m: runs[0].digest for m, runs in comparison.runs.items()}
    assert resumed.finding == comparison.finding
    assert not (tmp_path / "run.partial").exists()
    with pytest.raises(rv.InputError, match="complete run, so there is nothing to resume"):
        from_program(out=tmp_path / "run", resume=True)


def test_a_function_of_the_seed_gives_the_data(comparison):
    def data(seed):
        return rv.datasets.from_frame(visits(), "hospital", "outcome", test=0.3, seed=seed)

    made = from_program(data, seeds=2)
    assert made.runs["FedAvg"][0].digest == comparison.runs["FedAvg"][0].digest
    assert made.runs["FedAvg"][1].digest != comparison.runs["FedAvg"][1].digest
    with pytest.raises(rv.InputError, match="return data of the same sites"):
        from_program(lambda seed: data(0) if seed == 0 else rv.datasets.digits(parties=3), seeds=2)


@pytest.mark.parametrize(("options", "message"), [
    ({"seeds": 0}, "seeds: 0 must be at least 1"), ({"resume": True}, "give out="),
    ({"decide_by": "acuracy"}, "did you mean 'accuracy'"),
    ({"data": rv.datasets.digits(parties=3, test=0)}, "no party has test samples")])
def test_wrong_arguments_are_refused(options, message):
    with pytest.raises(rv.InputError, match=message):
        from_program(**options)


def test_runs_are_shown(folder, call):
    shown = call("show", "runs/mine", cwd=folder)
    assert shown.code == 0
    assert "What each site should do" in shown.out
    assert "majority" in shown.out
    assert json.loads(call("show", "runs/mine", "--format", "json",
                           cwd=folder).out) == read_record(folder / "runs" / "mine").plain()
    assert call("show", "mine.yaml", cwd=folder).out.startswith("data:")
    assert "there is no folder mine.yaml" in call("show", "mine.yaml", "--format", "json", cwd=folder).err


def test_runs_are_compared_on_the_same_rows(folder, call):
    more = call("run", "mine.yaml", "--set", "seeds=3", "algorithms={FedAvg: fedavg, slow: {name: fedavg, solver: "
                "{name: SGD, learning_rate: 0.01}}}", "--out", "runs/more", cwd=folder)
    assert more.code == 0, more.err
    outcome = call("compare", "runs/mine", "runs/more", "--format", "json", cwd=folder)
    assert outcome.code == 0, outcome.err
    together = json.loads(outcome.out)
    assert list(together["methods"]) == ["alone", "FedAvg", "slow"]  # FedAvg is the same in both
    assert together["alone"] == "alone"
    mine = read_record(folder / "runs" / "mine").plain()
    for site, of_mine in zip(together["sites"], mine["sites"], strict=True):
        assert site["scores"]["FedAvg"] == of_mine["scores"]["FedAvg"]
        assert set(site["gains"]) == {"FedAvg", "slow", "majority class"}
    assert "slow" in call("compare", "runs/mine", "runs/more", cwd=folder).out
    assert "at least two" in call("compare", "runs/mine", cwd=folder).err
    copy = folder / "runs" / "damaged"
    shutil.copytree(folder / "runs" / "mine", copy)
    (copy / "test_rows.parquet").write_bytes(b"no")
    assert "test_rows.parquet is damaged" in call("compare", "runs/mine", "runs/damaged", cwd=folder).err


def test_runs_with_other_rows_are_not_compared(folder, call):
    other = call("run", "mine.yaml", "--set", "seed=1", "--out", "runs/other", cwd=folder)
    assert other.code == 0, other.err
    assert "differ in seeds, [0" in call("compare", "runs/mine", "runs/other", cwd=folder).err
