"""Experiments on problems without a known optimum and on own prices; searches on a validation period."""


import json

import numpy as np
import pandas as pd
import pytest

import resolvent as rv
from command_line import call_command
from experiments import portfolio, run_metrics
from experiments import search as search_module
from experiments.curves import Curve
from experiments.reproduction import Reproduction
from resolvent.experiment_files import ExperimentFile

PRICES = """
data:
  name: "experiments.portfolio:prices"
  prices: {path}
  parties: 3
  assets: 2
  train_until: "2019-03-11"
  augmenters: [GBM]
  years: 2
  rounds_per_year: 1
model: {{name: "experiments.portfolio:eiie_cnn", lookback: 5, units: 4}}
solver:
  {{name: adam, learning_rate: 0.001, batch_size: 8, steps: 3, keep: true, batches: {{name: consecutive, bias: 0.01}}}}
algorithms: {{local: local, fedavg: fedavg}}
rounds: 2
evaluate_every: 2
diagnostics: []
"""


@pytest.fixture(scope="module")
def prices(tmp_path_factory):
    """The path of a file with 90 days of 4 assets."""
    path = tmp_path_factory.mktemp("prices") / "closes.csv"
    closes = np.exp(0.02 * np.random.default_rng(0).normal(size=(90, 4)).cumsum(axis=0))
    days = np.datetime64("2019-01-01") + np.arange(90)
    rows = [",".join([str(day), *(f"{x:.6f}" for x in row)]) for day, row in zip(days, closes, strict=True)]
    path.write_text("\n".join(["Date,A,B,C,D", *rows]), encoding="utf-8")
    return path


def parse(text, changes=()):
    return ExperimentFile.parse(text, "mine.yaml", "mine", changes)


def test_an_experiment_on_own_prices(prices, tmp_path):
    (tmp_path / "mine.yaml").write_text(PRICES.format(path=prices), encoding="utf-8")
    done = call_command("run", "mine.yaml", "--out", "out", cwd=tmp_path)
    assert done.code == 0, done.err
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert (summary["score"], summary["split"], summary["higher_is_better"]) == ("annual_return", "test", True)
    assert summary["data"]["notes"] == ["train: 69 days from 2019-01-02 to 2019-03-11",
                                        "test: 20 days from 2019-03-12 to 2019-03-31"]
    assert summary["alone"] == "local"
    metrics = pd.read_parquet(tmp_path / "out" / "metrics.parquet")
    assert {"sharpe_ratio", "wealth", "max_drawdown", "turnover"} <= set(metrics["metric"])
    file = parse(PRICES.format(path=prices))
    problem = file.build().problem
    data = portfolio.draw_markets(portfolio.read_prices(str(prices)), parties=3, assets=2,
                                  train_until="2019-03-11")
    augmented = portfolio.generate([portfolio.GBM()], data.training_prices.closes, data.universes, years=2)
    np.testing.assert_array_equal(problem.augmented.relatives[:, 0], augmented)
    again = parse(file.to_yaml())
    assert again.settings == file.settings


@pytest.mark.parametrize(("changes", "message"), [
    (["model=mlp"], "--set model=mlp: model: mlp does not fit the data 'closes.csv', which are prices: "
     "use module:function of your own that returns a Policy"),
    (["data.assets=5"], "mine.yaml:2 with --set data.assets=5: data: .*must be at most 4"),
    (["model.lookback=80"], "mine.yaml:2: data: .*there are 70 closes for training"),
    (["data.augmenters=[gmb]"], "'gmb'.*did you mean 'GBM'"),
    (["data.memory=stoerd"], "Allowed: stored, recomputed"),
])
def test_mistakes_are_located(prices, changes, message):
    with pytest.raises(rv.InputError, match=message):
        parse(PRICES.format(path=prices), changes).build()


def test_a_policy_does_not_fit_samples():
    text = ("{data: digits, model: 'experiments.portfolio:eiie_cnn', solver: {name: SGD, learning_rate: 0.1}, "
            "algorithms: [fedavg]}")
    with pytest.raises(rv.InputError, match=r"model: experiments\.portfolio:eiie_cnn does not fit samples"):
        parse(text).build()


def test_trials_of_a_search_have_settings_of_their_own(prices, monkeypatch):
    """They train on a shorter period, with another solver, and are compared on the days before those for testing."""
    experiments = []

    class Recorded:
        def __init__(self, experiment, checkpoints):
            experiments.append(experiment.file.build())
            self.labels, self.restored_cpu_seconds = experiment.points, 0.0

        def curves(self, view):
            assert (view.measure, view.split) == ("sharpe_ratio", "validation")
            return {label: Curve(np.arange(2), np.array([0.0, i]), {}, {}) for i, label in enumerate(self.labels)}

    monkeypatch.setattr(run_metrics, "RunMetrics", Recorded)
    body = "\n".join(f"  {line}" for line in PRICES.format(path=prices).strip().splitlines())
    reproduction = Reproduction.parse("mine", f"""
title: a search
paper: none
figure: none
measure: sharpe_ratio
split: test
seeds: 1
experiment:
{body}
panels: {{one: {{}}}}
search:
  select: {{measure: sharpe_ratio}}
  grid: {{fedavg: {{solver.learning_rate: [0.01, 0.1]}}}}
  experiment: {{data: {{train_until: "2019-02-20", validate_until: "2019-03-11"}}, solver: {{batch_size: 7}}}}
claims: []
quick: {{}}
""")
    outcome = search_module.search(reproduction, "one", "paper scale", (), lambda *_: None,
                                   run_metrics.Checkpoints(None))
    assert outcome["fedavg"]["chosen"] == {"solver.learning_rate": 0.1}
    assert [tuple(period) for period in experiments[0].data.periods] == [(0, 50), (50, 19), (69, 20)]
    assert all("batch_size=7" in repr(trial) for trial in experiments[0].algorithms.values())
    (of_panel,) = reproduction.experiments("one", 0)
    assert [tuple(period) for period in of_panel.file.build().data.periods] == [(0, 69), (69, 0), (69, 20)]
