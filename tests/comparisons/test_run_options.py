"""The options of a run: one list for simulate, compare, sweep, tune and files, of which each reaches the run."""

import dataclasses
import inspect

import numpy as np
import pytest

import resolvent as rv
from resolvent.comparisons.experiment.binding import parameters
from resolvent.comparisons.experiment.experiment_file import Experiment, ExperimentFile
from resolvent.comparisons.runs import comparison_runs
from resolvent.comparisons.tuning import files, searching, sweep
from resolvent.comparisons.tuning.files import tune_file
from resolvent.errors import InputError
from resolvent.simulator.run_options import NAMES, OF_A_TRIAL, RunOptions


def observe(event):
    """A callback."""


# A value of each option that is not its default, in a program and in a file.
OPTIONS = {
    "rounds": (3, 3), "seed": (7, 7), "start": ({"weight": np.ones((64, 10))}, "a folder"),
    "participation": (rv.participation.Uniform(2), {"name": "Uniform", "cohort": 2}), "evaluate_every": (2, 2),
    "diagnostics": (("steps",), ["steps"]), "metrics": ([rv.metrics.LogLoss()], ["log_loss"]),
    "clock": (rv.VirtualClock(), {"speed": 5.0}), "privacy": (rv.privacy.PrivacyBudget(1e-5), {"delta": 1e-5}),
    "scheduler": ("lanes", "lanes"), "memory": ("host", "host"), "evaluate_parties": (2, 2),
    "on_evaluation": (observe, [{"name": "CSV", "folder": "curves"}])}
OF_PROGRAM = {name: value for name, (value, _) in OPTIONS.items()}
OF_FILE = {"callbacks" if name == "on_evaluation" else name: value for name, (_, value) in OPTIONS.items()}
ALGORITHM = rv.fedavg(rv.SGD(0.1, batch_size=20))


class Reached(Exception):
    """The run was called."""


@pytest.fixture
def arguments(monkeypatch):
    """The arguments of the last call of ``simulate``, which runs nothing."""
    seen = {}

    def simulate(*parts, **options):
        seen.clear()
        seen.update(options)
        raise Reached

    for module in (comparison_runs, sweep, searching):
        monkeypatch.setattr(module, "simulate", simulate)
    for module in (comparison_runs, files):
        monkeypatch.setattr(module, "load_start", lambda start, *_, **__: start)
    return seen


@pytest.fixture(scope="module")
def task():
    return rv.models.logistic(64, 10), rv.datasets.digits(parties=3)


def settings_of(**changes):
    return {"data": {"name": "digits", "parties": 3}, "model": "logistic", "algorithms": ["fedavg"], "folds": 1,
            "solver": {"name": "SGD", "learning_rate": 0.1}, **changes}


def test_everything_that_starts_runs_has_the_one_list():
    assert set(OPTIONS) == set(NAMES) >= set(OF_A_TRIAL)
    defaults = {name: p.default for name, p in inspect.signature(RunOptions).parameters.items()}
    for function in (rv.simulate, rv.compare):
        taken = inspect.signature(function).parameters
        assert {name: taken[name].default for name in NAMES} == defaults
        assert all(f"    {name}: " in function.__doc__ for name in taken)
    assert {field.name for field in dataclasses.fields(Experiment)} >= set(NAMES)
    assert set(parameters(Experiment)) >= set(OF_FILE)


def test_each_option_of_a_comparison_reaches_the_run(task, arguments):
    with pytest.raises(Reached):
        rv.compare({"FedAvg": ALGORITHM}, *task, **OF_PROGRAM, folds=1, progress=False)
    metrics = arguments.pop("metrics")
    assert [type(metric) for metric in metrics.values()].count(rv.metrics.LogLoss) == 1
    assert {name: arguments[name] for name in NAMES if name != "metrics"} == {
        name: value for name, value in OF_PROGRAM.items() if name != "metrics"}


def test_each_option_of_a_file_reaches_the_run(arguments):
    file = ExperimentFile.of_settings(settings_of(**OF_FILE), "mine.yaml", "mine")
    with pytest.raises(Reached):
        comparison_runs.compare_file(file)
    assert {name for name in NAMES if repr(arguments[name]) == repr(RunOptions(rounds=100).of_run()[name])} == set()
    assert (arguments["start"], arguments["participation"], arguments["scheduler"], arguments["memory"]) == (
        "a folder", rv.participation.Uniform(2), "lanes", "host")
    assert [type(f) for f in arguments["on_evaluation"]] == [rv.callbacks.CSV]


def test_each_option_of_a_sweep_reaches_the_run(task, arguments):
    with pytest.raises(Reached):
        rv.sweep(ALGORITHM, *task, learning_rate=[0.1], progress=False, **OF_PROGRAM)
    assert {name: arguments[name] for name in NAMES} == OF_PROGRAM


def test_each_option_of_a_search_reaches_its_trials(task, arguments, tmp_path):
    options = {name: OF_PROGRAM[name] for name in OF_A_TRIAL}
    with pytest.raises(Reached):
        rv.tune(lambda rate: ALGORITHM, {"rate": [0.1]}, *task, rounds=3, strategy="grid", **options)
    assert {name: arguments[name] for name in OF_A_TRIAL} == options
    with pytest.raises(InputError, match=r"tune\(privacy=...\) is not a setting of its runs"):
        rv.tune(lambda rate: ALGORITHM, {"rate": [0.1]}, *task, rounds=3, privacy=OF_PROGRAM["privacy"])
    of_file = {name: OF_FILE[name] for name in OF_A_TRIAL}
    search = {"over": {"fedavg": {"solver.learning_rate": [0.1]}}, "strategy": "grid"}
    file = ExperimentFile.of_settings(settings_of(**of_file, search=search), "mine.yaml", "mine")
    with pytest.raises(Reached):
        tune_file(file, tmp_path / "out")
    assert {*OF_A_TRIAL} <= {*arguments}
    assert (arguments["start"], arguments["evaluate_parties"]) == ("a folder", 2)
