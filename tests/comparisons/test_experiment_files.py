"""Experiment files: what `show` prints, what binds, and what is built."""

import json
import re

import numpy as np
import pytest
from experiment_texts import BASE

import resolvent as rv
from resolvent.comparisons.experiment.binding import parameters
from resolvent.comparisons.experiment.experiment_file import Experiment, ExperimentFile, experiments
from resolvent.errors import InputError

RICH = """\
title: "100 %: a #1 'title' with \\"quotes\\", <b>tags</b> — and enough words that a line of a hundred is too short"
data: {table: "a b.csv", party: site, label: "yes", features: [x, "1"], task: regression}
model: {name: mlp, width: 3, l2: 1e-3}
solver: {name: SGD, learning_rate: 1e-1, steps: 7}
algorithms:
  "1": local
  "null": {name: fedavg, solver: {name: GD, learning_rate: 1}}
  "a: b #c": {name: fedplus_pull, aggregator: {name: moreau_centre, penalty: L1, delta: 2}, gamma: [0.5, 1]}
  per.layer: {name: fedplus, penalty: {name: PerLayer, layers: {layer 0: L1, layer 1: {name: Scaled, penalty: L2Norm,
              scale: 2}}}}
participation: {name: fixed_effort, effort: [1, 0.5], inner: {name: bernoulli, probability: 0.5}}
rounds: 12
diagnostics: []
"""


def bound_functions(bound):
    """Every bound function of an experiment."""
    yield bound
    for part in bound.parts.values():
        for inner in part.values() if isinstance(part, dict) else [part]:
            yield from bound_functions(inner)


@pytest.mark.parametrize("name", experiments())
def test_shown_experiment_binds_to_the_same_settings(name, mine):
    file = ExperimentFile.load(name)
    for comments in (True, False):
        again = ExperimentFile.load(mine(file.to_yaml(comments=comments)))
        assert again.bound.settings() == file.bound.settings()
        assert again.to_yaml(comments=comments) == file.to_yaml(comments=comments)


@pytest.mark.parametrize("name", experiments())
def test_shown_experiment_has_every_default_and_every_help(name):
    file = ExperimentFile.load(name)
    text = file.to_yaml()
    # What the experiment supplies may be left out: an algorithm's solver, a model's features, classes and task.
    supplied = {"solver", "features", "classes", "task"}
    for bound in bound_functions(file.bound):
        settings = bound.settings()
        known = parameters(bound.function)
        wanted = set(known) - (supplied if bound.function is not Experiment else set())
        assert wanted <= set(settings), bound.path
        for key in set(settings) & set(known):
            assert re.search(rf"^ *{re.escape(key)}:.*# {re.escape(known[key].help)}$", text, re.MULTILINE), key


def test_rich_experiment_binds_to_the_same_settings(mine):
    file = ExperimentFile.load(mine(RICH))
    settings = file.bound.settings()
    assert list(settings["algorithms"]) == ["1", "null", "a: b #c", "per.layer"]
    assert settings["algorithms"]["a: b #c"]["gamma"] == [0.5, 1.0]
    assert settings["algorithms"]["per.layer"]["penalty"]["default"] is None
    assert settings["diagnostics"] == []
    text = file.to_yaml()
    assert re.search(r"^title: .*too short.* # heading of the report\.$", text, re.MULTILINE)
    again = ExperimentFile.load(mine(text))
    assert again.bound.settings() == settings
    assert again.to_yaml() == file.to_yaml()
    assert json.loads(json.dumps(settings, allow_nan=False)) == settings


@pytest.mark.parametrize("number", ["1e-3", "0.001", "1.0e-3", "1E-3"])
def test_numbers_read_as_numbers(number, mine):
    for file in (ExperimentFile.load(mine(BASE.replace("0.05", number))),
                 ExperimentFile.load(mine(BASE), [f"solver.learning_rate={number}"])):
        rate = file.bound.settings()["solver"]["learning_rate"]
        assert rate == 0.001
        assert type(rate) is float


def test_integers_are_numbers_too(mine):
    settings = ExperimentFile.load(mine(BASE.replace("0.05", "1"))).bound.settings()
    assert type(settings["solver"]["learning_rate"]) is float


def test_a_name_alone_is_a_component_with_its_defaults(mine):
    short = ExperimentFile.load(mine(BASE)).bound.settings()
    long = ExperimentFile.load(mine(BASE.replace("model: logistic", "model: {name: logistic}"))).bound.settings()
    assert short == long
    assert short["model"] == {"name": "logistic", "l2": 0.0}


def test_data_without_a_name_are_a_table(mine):
    text = BASE.replace("data:\n  name: digits\n  parties: 4", "data: {table: visits.csv, party: site, label: y}")
    assert ExperimentFile.load(mine(text)).bound.settings()["data"]["name"] == "table"


COMBINED = """
  fast: {name: Anderson, history_size: 6, on: mean, inner: {name: fedpi, eta: 1.0}}
  local: {name: ErgodicAveraging, weight: {name: inverse_power, first: 1}, inner: {name: DecentralisedAnderson, inner:
          {name: fedrp, decentralised: true, solver: {name: GD, learning_rate: 1}}}}
  all: {name: StaleReplies, inner: fedavg}"""


def test_combinators_have_an_inner_algorithm(mine):
    text = BASE.replace("\n  FedAvg: fedavg", COMBINED)
    file = ExperimentFile.load(mine(text))
    again = ExperimentFile.load(mine(file.to_yaml()))
    assert again.bound.settings() == file.bound.settings()
    assert file.bound.settings()["algorithms"]["fast"]["forward"] == 1.0
    experiment = file.build()
    fast, local = experiment.algorithms["fast"], experiment.algorithms["local"]
    assert (type(fast), fast.history_size, fast.on) == (rv.combinators.Anderson, 6, "mean")
    assert fast.inner.solver is experiment.solver
    assert local.weight == rv.schedules.InversePower(1.0)
    assert local.inner.inner.solver.learning_rate == 1
    assert type(experiment.algorithms["all"]) is rv.combinators.StaleReplies


@pytest.mark.parametrize(("component", "message"), [
    ("Anderson", "algorithms.FedAvg.inner: missing; "),
    ("{name: Anderson, inner: {name: fedpi, eta: x}}", "algorithms.FedAvg.inner.eta"),
    ("{name: Anderson, inner: local}", "algorithms.FedAvg: Anderson needs "),
    ("{name: Anderson, on: both, inner: fedpi}", "algorithms.FedAvg.on: 'both' is not a valid value; allowed: u, mean"),
])
def test_combinations_that_make_no_sense_are_refused(component, message, mine):
    with pytest.raises(InputError) as caught:
        ExperimentFile.load(mine(BASE.replace("FedAvg: fedavg", f"FedAvg: {component}"))).build()
    assert message in str(caught.value)


def test_build_calls_the_functions_with_the_settings(mine):
    text = BASE.replace("FedAvg: fedavg", "FedAvg: {name: fedprox, mu: 3, solver: {name: GD, learning_rate: 2}}")
    experiment = ExperimentFile.load(mine(text)).build()
    assert len(experiment.data) == 4
    assert experiment.model.features == 64
    assert experiment.algorithms["alone"].solver is experiment.solver
    assert experiment.algorithms["FedAvg"].mu == 3
    assert experiment.algorithms["FedAvg"].solver.learning_rate == 2
    assert experiment.rounds == 3


def test_a_number_is_a_constant_schedule_and_another_is_a_component():
    algorithms = "algorithms={a: {name: fedpi, eta: 2}, b: {name: fedrp, eta: {name: inverse_power, first: 5}}}"
    file = ExperimentFile.load("digits", [algorithms])
    built = file.build().algorithms
    assert built["a"].relaxation.eta == rv.schedules.Constant(2.0)
    assert built["b"].relaxation.eta == rv.schedules.InversePower(5.0)
    assert "first: 2.0" in file.to_yaml()
    with pytest.raises(InputError, match=r"algorithms\.a: alpha=3.0 must lie in \[0, 2\]"):
        ExperimentFile.load("digits", ["algorithms={a: {name: splitting, alpha: 3}}"]).build()
    with pytest.raises(InputError, match=r"algorithms\.a\.eta: expected the name of a schedule .* got True"):
        ExperimentFile.load("digits", ["algorithms={a: {name: fedpi, eta: true}}"])


def test_data_sets_with_partitions_and_networks_are_named_in_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("RESOLVENT_DATA", str(tmp_path))
    images = np.arange(60 * 28 * 28, dtype=np.uint32).astype(np.uint8).reshape(60, 28, 28)
    for name, array in (("images-idx3", images), ("labels-idx1", np.arange(60, dtype=np.uint8) % 10)):
        header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
        (tmp_path / f"train-{name}-ubyte").write_bytes(header + array.tobytes())
    (tmp_path / "mnist").symlink_to(tmp_path)
    (tmp_path / "said.txt").write_text("A:\nto be or not to be\n\nB:\nthat is the question\n")
    shift = "shift: {name: laplace_noise, scale: 0.1, inner: {name: negative, share: 0.5}}"
    change = f"data={{name: mnist, part: train, partition: {{name: dirichlet, parties: 4}}, {shift}}}"
    built = ExperimentFile.load("digits", [change, "model=mnist_cnn", "algorithms=[local]"]).build()
    assert (len(built.data), built.data.input_shape, built.model.shape) == (4, (28, 28), (28, 28, 1))
    assert "party 3 is an outlier: its images are inverted" in built.data.notes
    timed = ExperimentFile.load("digits", ["clock={speed: 10}"])
    assert (built.clock, timed.build().clock) == (None, rv.VirtualClock(speed=10.0))
    assert "name: VirtualClock" in timed.to_yaml()
    said = f"data={{name: shakespeare, file: {tmp_path}/said.txt, length: 5}}"
    spoken = ExperimentFile.load("digits", [said, "model={name: char_lstm, width: 4}", "algorithms=[local]"]).build()
    assert (spoken.model.tokens, spoken.model.outputs, spoken.data.parties) == (80, 80, ("A", "B"))
    with pytest.raises(InputError, match=r"model: logistic does not fit .*Shakespeare.* tokens.*use char_lstm or "):
        ExperimentFile.load("digits", [said, "model=logistic"]).build()
    with pytest.raises(InputError, match=r"data\.partition\.name: there is no partition 'dirichle';.*'Dirichlet'"):
        ExperimentFile.load("digits", ["data={name: mnist, partition: dirichle}"])


def test_the_solver_of_the_experiment_replaces_the_default_of_an_algorithm():
    file = ExperimentFile.parse("data: digits\nmodel: logistic\nsolver: {name: SGD, learning_rate: 0.7}\n"
                                "algorithms: {own: {name: robust_interpolation, solver: {name: SGD, "
                                "learning_rate: 0.2}}, default: robust_interpolation}\nrounds: 1\n",
                                "mine.yaml", "mine")
    algorithms = file.build().algorithms
    assert [float(algorithms[label].solver.learning_rate) for label in ("default", "own")] == [0.7, 0.2]
