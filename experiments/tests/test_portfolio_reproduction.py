"""Reproductions on prices: back-tests and baselines as curves, chosen panels, fixed seeds, runs that are continued."""

import numpy as np
import pytest

from experiments import run_metrics
from experiments.reproduction import Reproduction
from experiments.run import reproduce
from experiments.run_metrics import RunMetrics
from resolvent.errors import InputError

TEXT = """
title: small
paper: ours
figure: none
measure: wealth
split: test
axis: wealth
log: false
seeds: 1
experiment:
  data: {name: "experiments.portfolio:prices", prices: closes.csv, parties: 2, assets: 2, train_until: "2018-06-30"}
  model: {name: "experiments.portfolio:eiie_cnn", lookback: 5, units: 2}
  solver: {name: adam, learning_rate: 0.01, batch_size: 10, steps: 2, keep: true}
  participation: {name: full, weighting: uniform}
  diagnostics: []
  rounds: 2
  evaluate_every: 2
  algorithms: {FedAvg: fedavg, Alone: local}
panels:
  last: {baselines: [UBAH, untrained, OLMAR], draw: [{x: methods}]}
  by day: {of: last, measure: wealth_by_day, baselines: [UBAH], draw: [{x: days}]}
  fixed: {experiment: {data: {seed: 7}}}
claims:
  - {says: sizes, rule: level, args: {panels: [last], methods: [FedAvg], at_least: 0.0}}
  - {says: levels, rule: level, args: {panels: [fixed], methods: [FedAvg], at_least: 0.0}}
quick: {without: [last]}
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prices")
    rng = np.random.default_rng(0)
    days = np.arange("2018-01-01", "2018-09-01", dtype="datetime64[D]")
    closes = np.exp(np.cumsum(0.01 * rng.normal(size=(len(days), 4)), axis=0))
    rows = [f"{day}," + ",".join(f"{v:.8g}" for v in row) for day, row in zip(days, closes, strict=True)]
    path = folder / "closes.csv"
    path.write_text("\n".join(["Date,A,B,C,D", *rows]) + "\n", encoding="utf-8")
    return Reproduction.parse("small", TEXT.replace("closes.csv", str(path)))


def test_back_tests_and_baselines_are_curves(small):
    (experiment,) = small.experiments("last", 0)
    read = RunMetrics(experiment)
    last, by_day = (read.curves(small.view(title)) for title in ("last", "by day"))
    assert list(last) == ["FedAvg", "Alone", "UBAH", "untrained", "OLMAR"]
    assert last["untrained"].final == pytest.approx(last["FedAvg"].values[0], rel=1e-5)
    for label in ("FedAvg", "Alone", "UBAH"):
        assert by_day[label].final == pytest.approx(last[label].final, rel=1e-5)
        assert by_day[label].parties == pytest.approx(last[label].parties, rel=1e-5)
    assert by_day["UBAH"].growth.shape == (2, 62)
    assert by_day["UBAH"].axes["days"].tolist() == list(range(63))
    data = experiment.file.build().data
    growth = [data.closes(k, "test")[-1] / data.closes(k, "test")[0] for k in range(2)]
    assert last["UBAH"].parties == pytest.approx([0.998 * g.mean() for g in growth], rel=1e-5)


@pytest.mark.nightly
def test_a_seed_in_the_file_stays(small):
    seeds = {title: small.experiments(title, 3)[0].file.bound.settings() for title in ("last", "fixed")}
    assert {title: (s["seed"], s["data"]["seed"]) for title, s in seeds.items()} == {"last": (3, 3), "fixed": (3, 7)}


@pytest.mark.nightly
def test_panels_are_chosen_with_the_claims_about_them(small):
    assert list(small.with_panels(["last"]).panels) == ["last", "by day"]
    assert [claim.says for claim in small.with_panels(["last"]).claims] == ["sizes"]
    assert list(small.restricted_to("quick").panels) == ["fixed"]
    with pytest.raises(InputError, match="the panel by day needs the panel last"):
        small.with_panels(["by day"])
    with pytest.raises(InputError, match=r"small has no panel 'lst'.*did you mean 'last'"):
        small.with_panels(["lst"])


def test_runs_are_continued_from_their_checkpoints(small, tmp_path, monkeypatch):
    record = reproduce(small, panels=["last"], checkpoints=tmp_path)
    done = []
    compare_file = run_metrics.compare_file

    def counting(file, **arguments):
        return compare_file(file, progress=lambda label, rounds, total: done.append((label, rounds)), **arguments)

    monkeypatch.setattr(run_metrics, "compare_file", counting)
    again = reproduce(small, checkpoints=tmp_path)
    assert {title: again["panels"][title] for title in record["panels"]} == record["panels"]
    announced = [("FedAvg", 0), ("Alone", 0)]
    assert done[:4] == [*announced, ("FedAvg", 2), ("Alone", 2)]  # the first panel trains no round again
    assert done[4:6] == announced  # the second panel begins
    assert ("FedAvg", 1) in done[6:]
    assert record["command"] == "python -m experiments small --panels last"


def test_baselines_need_prices():
    lines = [line for line in TEXT[:TEXT.index("panels:")].splitlines() if "model:" not in line]
    text = "\n".join("  problem: {parties: 3, samples: 8, features: 2}" if "data:" in line else line for line in lines)
    text = text.replace(", Alone: local", "") + "\npanels: {p: {baselines: [cash]}}\nclaims: []\nquick: {}"
    with pytest.raises(InputError, match="need an experiment on prices"):
        reproduce(Reproduction.parse("wrong", text))
