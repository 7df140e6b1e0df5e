"""The keys ``start`` and ``callbacks`` of an experiment file."""

import numpy as np
import pytest

import resolvent as rv
from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.comparisons.runs import comparison_runs

TEXT = """
data: {name: digits, parties: 2, classes_per_party: 10}
model: logistic
solver: {name: SGD, learning_rate: 0.1, schedule: {name: WarmUp, rounds: 2, then: {name: Cosine, rounds: 8}}}
algorithms: [fedavg]
rounds: 1
callbacks: [{name: EarlyStopping, patience: 2}, {name: CSV, folder: curves}]
"""


class Called(Exception):
    pass


@pytest.mark.when_changed
def test_simulate_gets_the_callbacks_and_the_trained_model(tmp_path, monkeypatch):
    data = rv.datasets.digits(parties=2, classes_per_party=10)
    first = rv.simulate(rv.fedavg(rv.SGD(0.1)), rv.models.logistic(64, 10), data, rounds=1, progress=False)
    first.save(tmp_path / "first")

    def record(*args, **settings):
        raise Called(settings)

    monkeypatch.setattr(comparison_runs, "simulate", record)
    file = ExperimentFile.parse(TEXT + f"start: {tmp_path / 'first'}\n", "mine.yaml", "mine")
    with pytest.raises(Called) as called:
        comparison_runs.compare_file(file)
    settings = called.value.args[0]
    assert [type(callback) for callback in settings["on_evaluation"]] == [rv.callbacks.EarlyStopping, rv.callbacks.CSV]
    assert settings["on_evaluation"][0].patience == 2
    np.testing.assert_array_equal(settings["start"].params["weight"], first.server_model["weight"])


def test_a_schedule_is_a_part_of_a_solver():
    solver = ExperimentFile.parse(TEXT, "mine.yaml", "mine").build().solver
    assert solver.schedule == rv.schedules.WarmUp(rounds=2, then=rv.schedules.Cosine(rounds=8))


def test_mistakes_name_the_line():
    with pytest.raises(rv.InputError, match=r"mine.yaml:7: callbacks.*name: there is no callback 'EarlyStoping'.*"
                                            "did you mean 'EarlyStopping'"):
        ExperimentFile.parse(TEXT.replace("EarlyStopping", "EarlyStoping"), "mine.yaml", "mine").build()
