"""Experiment files: what `show` shows, what binds, and that every mistake is refused where it stands."""

import inspect
import json
import re
from types import SimpleNamespace

import numpy as np
import pydantic
import pytest

import resolvent as rv
from resolvent.data.federated import FederatedData
from resolvent.errors import InputError
from resolvent.problem.models.model import Model
from resolvent.study import runner
from resolvent.study.components import REGISTRIES, bind, first_line, help_of, parameters
from resolvent.study.experiment import Experiment, ExperimentFile, experiments, slug

BASE = """\
data:
  name: digits
  parties: 4
model: logistic
solver:
  name: SGD
  learning_rate: 0.05
algorithms:
  alone: local
  FedAvg: fedavg
participation: full
rounds: 3
"""

RICH = """\
title: "100 %: a #1 'title' with \\"quotes\\", <b>tags</b> — and so many words that a line of a hundred is too short"
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


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Write mine.yaml into an empty current folder."""
    monkeypatch.chdir(tmp_path)

    def write(text):
        (tmp_path / "mine.yaml").write_text(text)
        return "mine.yaml"
    return write


def refused(what, *changes):
    with pytest.raises(InputError) as caught:
        ExperimentFile.load(what, changes)
    return str(caught.value)


# ---------------------------------------------------------------------------------------------------- what is shown

def bound_functions(bound):
    """Every bound function of an experiment."""
    yield bound
    for part in bound.parts.values():
        for one in part.values() if isinstance(part, dict) else [part]:
            yield from bound_functions(one)


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
        assert wanted <= set(settings), bound.where
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
    assert re.search(r"^title: .*too short.* # the report's heading\.$", text, re.MULTILINE)
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
  fast: {name: Anderson, memory: 6, on: mean, inner: {name: fedpi, eta: 1.0}}
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
    assert (type(fast), fast.memory, fast.on) == (rv.combinators.Anderson, 6, "mean")
    assert fast.inner.solver is experiment.solver
    assert local.weight == rv.schedules.InversePower(1.0)
    assert local.inner.inner.solver.learning_rate == 1
    assert type(experiment.algorithms["all"]) is rv.combinators.StaleReplies


@pytest.mark.parametrize(("component", "message"), [
    ("Anderson", "algorithms.FedAvg.inner: missing; an algorithm of one phase whose server holds the iterate"),
    ("{name: Anderson, inner: {name: fedpi, eta: x}}", "algorithms.FedAvg.inner.eta"),
    ("{name: Anderson, inner: local}", "algorithms.FedAvg: Anderson needs an algorithm of one phase whose server"),
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


# --------------------------------------------------------------------------------------------------------- mistakes

MISTAKES = {
    "top-level key": ("rounds: 3", "ronds: 3", ["mine.yaml:12: ronds: unknown key", "allowed here: data, model, solver",
                                               "did you mean 'rounds'?"]),
    "nested key": ("learning_rate", "learning_rat", [
        "mine.yaml:7: solver.learning_rat: unknown key", "allowed here: name, learning_rate, batch_size",
        "did you mean 'learning_rate'?"]),
    "misspelt name key": ("name: SGD", "nme: SGD", ["mine.yaml:5: solver.name: missing", "SGD, GD"]),
    "misspelt name key with a default": ("name: digits", "nme: digits", [
        "mine.yaml:2: data.nme: unknown key", "did you mean 'name'?"]),
    "data set": ("digits", "digit", ["mine.yaml:2: data.name: there is no data set 'digit'",
                                     "stackexchange, synthetic, table", "did you mean 'digits'?"]),
    "model": ("logistic", "logistics", ["mine.yaml:4: model.name: there is no model 'logistics'",
                                        "linear, logistic, mlp", "did you mean 'logistic'?"]),
    "solver": ("SGD", "SDG", ["mine.yaml:6: solver.name: there is no solver 'SDG'", "SGD, GD", "did you mean 'SGD'?"]),
    "algorithm": ("FedAvg: fedavg", "FedAvg: fedvag", [
        "mine.yaml:10: algorithms.FedAvg.name: there is no algorithm 'fedvag'", "fedprox", "did you mean 'fedavg'?"]),
    "participation": ("full", "ful", ["mine.yaml:11: participation.name: there is no participation 'ful'", "uniform",
                                      "did you mean 'full'?"]),
    "penalty": ("FedAvg: fedavg", "FedAvg: {name: fedplus, penalty: L2}", [
        "mine.yaml:10: algorithms.FedAvg.penalty.name: there is no penalty 'L2'", "L1, L2Norm",
        "did you mean 'L2Norm'?"]),
    "penalty in a penalty": ("FedAvg: fedavg", "FedAvg:\n    name: fedplus\n    penalty:\n      name: Scaled\n"
                             "      penalty: Zer\n      scale: 1", [
        "mine.yaml:14: algorithms.FedAvg.penalty.penalty.name: there is no penalty 'Zer'", "did you mean 'Zero'?"]),
    "aggregator": ("FedAvg: fedavg", "FedAvg: {name: fedplus_pull, aggregator: men}", [
        "mine.yaml:10: algorithms.FedAvg.aggregator.name: there is no aggregator 'men'", "did you mean 'mean'?"]),
    "name that is a list": ("name: digits", "name: [digits]", ["mine.yaml:2: data.name: there is no data set"]),
    "name that is a number": ("model: logistic", "model: 3", ["mine.yaml:4: model: expected the name of a model"]),
    "text for a number": ("parties: 4", "parties: four", [
        "mine.yaml:3: data.parties: 'four' is not a valid value", "integer"]),
    "number in quotes": ("0.05", "'0.05'", ["mine.yaml:7: solver.learning_rate: '0.05' is not a valid value"]),
    "fraction for a count": ("parties: 4", "parties: 4.5", ["mine.yaml:3: data.parties: 4.5 is not a valid value"]),
    "true for a number": ("0.05", "true", ["mine.yaml:7: solver.learning_rate: True is not a valid value"]),
    "nothing for a number": ("0.05", "", ["mine.yaml:7: solver.learning_rate: None is not a valid value"]),
    "list for a number": ("0.05", "[0.05]", ["mine.yaml:7: solver.learning_rate: [0.05] is not a valid value"]),
    "not a number": ("0.05", ".nan", ["mine.yaml:7: solver.learning_rate: nan is not a valid value", "finite"]),
    "infinity": ("0.05", ".inf", ["mine.yaml:7: solver.learning_rate: inf is not a valid value"]),
    "one of a list": ("participation: full", "participation:\n  name: stragglers\n  parties: [1, two]", [
        "mine.yaml:13: participation.parties.1: 'two' is not a valid value"]),
    "choice": ("FedAvg: fedavg", "FedAvg: {name: fedavg, stragglers: kep}", [
        "mine.yaml:10: algorithms.FedAvg.stragglers: 'kep' is not a valid value; allowed: drop, keep",
        "did you mean 'keep'?"]),
    "choice in a list": ("rounds: 3", "rounds: 3\ndiagnostics:\n- line\n- step", [
        "mine.yaml:15: diagnostics.1: 'step' is not a valid value; allowed: model_change", "did you mean 'steps'?"]),
    "missing setting": ("  learning_rate: 0.05\n", "", ["mine.yaml:5: solver.learning_rate: missing"]),
    "missing part": ("model: logistic\n", "", ["mine.yaml: model: missing; what every party trains"]),
    "missing penalty": ("FedAvg: fedavg", "FedAvg: fedplus", ["mine.yaml:10: algorithms.FedAvg.penalty: missing"]),
    "empty part": ("model: logistic", "model: {}", ["mine.yaml:4: model.name: missing", "linear, logistic, mlp"]),
    "null part": ("model: logistic", "model:", ["mine.yaml:4: model: missing; what every party trains"]),
    "null rounds": ("rounds: 3", "rounds:", ["mine.yaml:12: rounds: None is not a valid value"]),
    "empty algorithms": ("algorithms:\n  alone: local\n  FedAvg: fedavg", "algorithms: {}", [
        "mine.yaml:8: algorithms: expected a mapping from labels to algorithms, at least one, got {}"]),
    "list of algorithms": ("algorithms:\n  alone: local\n  FedAvg: fedavg", "algorithms: [fedavg, fedprox]", [
        "mine.yaml:8: algorithms: expected a mapping from labels to algorithms"]),
    "what the data say": ("model: logistic", "model:\n  name: logistic\n  classes: 3", [
        "mine.yaml:6: model.classes: the experiment supplies it; leave it out"]),
    "a date": ("rounds: 3", "title: 2026-01-31", ["mine.yaml:12: title: 2026-01-31", "date", "put text in quotes"]),
    "a date as a key": ("rounds: 3", "title: {2026-01-31: 1}", ["mine.yaml:12: title: ", "put text in quotes"]),
    "no rounds": ("rounds: 3", "rounds: 0", ["mine.yaml:12: rounds: 0 must be at least 1"]),
    "no evaluation": ("rounds: 3", "evaluate_every: 0", ["mine.yaml:12: evaluate_every: 0 must be at least 1"]),
    "negative seed": ("rounds: 3", "seed: -1", ["mine.yaml:12: seed: -1 must be at least 0"]),
    "huge seed": ("rounds: 3", "seed: 2147483648", ["mine.yaml:12: seed: 2147483648", "less than 2^31"]),
    "empty label": ("FedAvg: fedavg", "'': fedavg", ["mine.yaml:8: algorithms: '' cannot be a label"]),
    "invisible label": ("FedAvg: fedavg", '"a\\tb": fedavg', ["mine.yaml:8: algorithms: 'a\\tb' cannot be a label"]),
    "two keys alike": ("rounds: 3", "model: mlp", ["mine.yaml:12: not YAML", "duplicate"]),
    "unclosed list": ("rounds: 3", "rounds: [3", ["mine.yaml:13: not YAML"]),
    "tab": ("  parties: 4", "\tparties: 4", ["mine.yaml:3: not YAML"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_refused_with_its_place(mistake, mine):
    right, wrong, wanted = MISTAKES[mistake]
    assert BASE.count(right) == 1
    message = refused(mine(BASE.replace(right, wrong)))
    assert [part for part in wanted if part not in message] == [], message
    assert message.startswith(wanted[0])


@pytest.mark.parametrize(("text", "wanted"), [
    ("", "mine.yaml: expected a mapping with keys data, model, solver"),
    ("just text", "mine.yaml: expected a mapping with keys"),
    ("- fedavg\n", "mine.yaml: expected a mapping with keys"),
    ("a: 1\n---\nb: 2\n", "mine.yaml:2: not YAML"),
])
def test_file_that_is_no_experiment_is_refused(text, wanted, mine):
    assert refused(mine(text)).startswith(wanted)


def test_file_that_is_not_there_or_not_text_is_refused(mine, tmp_path):
    assert refused("yours.yaml") == "there is no file yours.yaml"
    (tmp_path / "image.yaml").write_bytes(b"\x89PNG\xff\xfe")
    assert refused("image.yaml").startswith("image.yaml cannot be read: ")
    message = refused("digit")
    assert "there is no experiment 'digit'; there are digits" in message
    assert "did you mean 'digits'?" in message


OUT_OF_RANGE = {
    "data": ("parties: 4", "parties: 0", "mine.yaml:1: data: parties=0 must lie in 1 to 100"),
    "share": ("parties: 4", "test: 1.5", "mine.yaml:1: data: validation=0.2 and test=1.5"),
    "no test samples": ("parties: 4", "test: 0", "mine.yaml:1: data: no party has test samples"),
    "model": ("model: logistic", "model: {name: mlp, width: 0}", "mine.yaml:4: model: width=0 must be at least 1"),
    "model of numbers": ("model: logistic", "model: linear",
                         "mine.yaml:4: model: linear does not fit the data 'digits', which are for classification: use "
                         "logistic or mlp"),
    "solver": ("0.05", "-1", "mine.yaml:5: solver: SGD(learning_rate=-1.0) must be positive"),
    "two budgets": ("0.05", "0.05\n  steps: 2\n  epochs: 2", "mine.yaml:5: solver: SGD takes epochs= or steps="),
    "own solver": ("FedAvg: fedavg", "FedAvg:\n    name: fedavg\n    solver: {name: GD, learning_rate: 0}",
                   "mine.yaml:12: algorithms.FedAvg.solver: GD(learning_rate=0.0) must be positive"),
    "participation": ("participation: full", "participation: {name: bernoulli, probability: 2}",
                      "mine.yaml:11: participation: Bernoulli(probability=2.0) must lie in (0, 1]"),
    "inner participation": ("participation: full", "participation:\n  name: stragglers\n"
                            "  inner: {name: uniform, cohort: 0}",
                            "mine.yaml:13: participation.inner: Uniform(cohort=0) must be at least 1"),
    "cohort": ("participation: full", "participation: {name: uniform, cohort: 5}",
               "mine.yaml:11: participation: a cohort of 5 cannot be drawn from 4 parties"),
    "straggler": ("participation: full", "participation: {name: stragglers, parties: [4]}",
                  "mine.yaml:11: participation: Stragglers(parties=...) names party 4"),
}


@pytest.mark.parametrize("mistake", OUT_OF_RANGE)
def test_value_out_of_range_is_refused_before_any_work(mistake, mine, tmp_path, monkeypatch):
    right, wrong, wanted = OUT_OF_RANGE[mistake]
    assert BASE.count(right) == 1
    file = ExperimentFile.load(mine(BASE.replace(right, wrong)))
    monkeypatch.setattr(runner, "compare", lambda *a, **k: pytest.fail("work began"))
    with pytest.raises(InputError) as caught:
        runner.run_experiment(file)
    assert str(caught.value).startswith(wanted)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.yaml"]  # no run folder, finished or not


def test_model_of_classes_does_not_fit_a_regression(mine):
    text = BASE.replace("  name: digits\n  parties: 4", "  name: synthetic\n  parties: 4")
    with pytest.raises(InputError, match=r"mine\.yaml:4: model: logistic .* regression: use linear or mlp"):
        ExperimentFile.load(mine(text)).build()
    assert ExperimentFile.load(mine(text), ["model=mlp"]).build().model.sizes[-1] == 1


@pytest.mark.parametrize(("labels", "folder"), [
    (("FedAvg+", "FedAvg-plus"), "FedAvg-plus"), (("a b", "a-b"), "a-b"), (("fedavg", "FedAvg"), "FedAvg"),
    (("..", "."), "method"), (("x" * 60, "x" * 61), "x" * 60), (("é é", "é-é"), "é-é")])
def test_labels_of_one_folder_are_refused(labels, folder, mine):
    algorithms = "".join(f"  {json.dumps(label)}: fedavg\n" for label in labels)
    message = refused(mine(BASE.replace("  alone: local\n  FedAvg: fedavg\n", algorithms)))
    assert message.startswith("mine.yaml:10: algorithms.")
    assert f"the models of {labels[1]!r} and of {labels[0]!r} would go to the same folder, {folder}:" in message


@pytest.mark.parametrize("label", ["..", ".", "/etc/passwd", "a/../b", "+", "<b>&\"'", "x" * 500, "é" * 200, "-"])
def test_slug_is_one_plain_folder(label):
    name = slug(label)
    assert name not in ("", ".", "..")
    assert "/" not in name
    assert len(name.encode()) <= 255
    assert slug("FedAvg+") == "FedAvg-plus"


# ------------------------------------------------------------------------------------------------------------ --set

CHANGES = {
    "value": (["rounds=50"], {"rounds": 50}),
    "nested value": (["solver.learning_rate=1e-3"], {"solver": {"learning_rate": 0.001}}),
    "name and setting": (["model.name=mlp", "model.width=8"], {"model": {"name": "mlp", "width": 8}}),
    "setting before name": (["model.width=8", "model.name=mlp"], {"model": {"name": "mlp", "width": 8}}),
    "name alone": (["model=mlp"], {"model": {"name": "mlp", "width": 64}}),
    "setting of a bare name": (["model.l2=2"], {"model": {"name": "logistic", "l2": 2.0}}),
    "new name drops the old one's settings": (["solver.name=GD", "solver.learning_rate=3", "data.name=synthetic"], {
        "solver": {"name": "GD", "learning_rate": 3.0, "steps": 1.0}, "data": {"name": "synthetic", "parties": 30}}),
    "same name keeps them": (["solver.name=SGD"], {"solver": {"name": "SGD", "learning_rate": 0.05}}),
    "nested component": (["participation.name=stragglers", "participation.inner.weighting=uniform"], {
        "participation": {"name": "stragglers", "inner": {"name": "full", "weighting": "uniform"}}}),
    "nested component of an algorithm": (
        ["algorithms.FedAvg.solver.name=GD", "algorithms.FedAvg.solver.learning_rate=2"],
        {"algorithms": {"FedAvg": {"name": "fedavg", "solver": {"name": "GD", "learning_rate": 2.0}}}}),
    "new algorithm": (["algorithms.RFA=rfa"], {"algorithms": {"alone": {"name": "local"}, "RFA": {"name": "rfa"}}}),
    "mapping": (["algorithms={only: fedprox}"], {"algorithms": {"only": {"name": "fedprox", "mu": 0.1}}}),
    "list": (["diagnostics=[steps, line]"], {"diagnostics": ["steps", "line"]}),
    "equals sign in the value": (["title=a=b"], {"title": "a=b"}),
    "null": (["evaluate_every=null"], {"evaluate_every": None}),
    "the last one counts": (["rounds=5", "rounds=6"], {"rounds": 6}),
}


def contains(settings, wanted):
    if not isinstance(wanted, dict):
        return settings == wanted and type(settings) is type(wanted)
    return all(key in settings and contains(settings[key], value) for key, value in wanted.items())


@pytest.mark.parametrize("case", CHANGES)
def test_change(case, mine):
    changes, wanted = CHANGES[case]
    settings = ExperimentFile.load(mine(BASE), changes).bound.settings()
    assert contains(settings, wanted), settings


def test_change_reaches_labels_with_dots(mine):
    text = BASE.replace("FedAvg: fedavg", "v1.0 FedProx: fedprox")
    settings = ExperimentFile.load(mine(text), ["algorithms.v1.0 FedProx.mu=2"]).bound.settings()
    assert settings["algorithms"]["v1.0 FedProx"]["mu"] == 2
    assert refused(mine(text), "algorithms.v1.0 FedProx.muh=2").startswith(
        "--set algorithms.v1.0 FedProx.muh=2: algorithms.v1.0 FedProx.muh: unknown key")


WRONG_CHANGES = {
    "no equals sign": (["rounds"], "--set rounds: expected key.path=value"),
    "no key": (["=3"], "--set =3: expected key.path=value"),
    "through a number": (["rounds.x=3"], "--set rounds.x=3: rounds is a value, not a mapping"),
    "through a nested number": (["solver.learning_rate.x=3"],
                                "--set solver.learning_rate.x=3: solver.learning_rate is a value, not a mapping"),
    "unknown key": (["ronds=3"], "--set ronds=3: ronds: unknown key; allowed here: data, "),
    "unknown nested key": (["solver.rate=3"], "--set solver.rate=3: solver.rate: unknown key; allowed here: name, "),
    "unknown part": (["modl.name=mlp"], "mine.yaml with --set modl.name=mlp: modl: unknown key"),
    "unknown name": (["model.name=mpl"], "--set model.name=mpl: model.name: there is no model 'mpl'"),
    "wrong type": (["rounds=many"], "--set rounds=many: rounds: 'many' is not a valid value"),
    "not YAML": (["rounds=[3"], "--set rounds=[3: '[3' is not a YAML value"),
    "what the new name lacks": (["solver.name=GD"],
                                "mine.yaml:5 with --set solver.name=GD: solver.learning_rate: missing"),
    "what the file lacks": (["model.name=mlp", "model.widht=3"], "--set model.widht=3: model.widht: unknown key"),
    "beside the change": (["solver.proximal=implicit", "data.parties=x"], "--set data.parties=x: data.parties: 'x'"),
    "same folder": (["algorithms.fedavg=fedprox"], "--set algorithms.fedavg=fedprox: algorithms.fedavg: the models of"),
}


@pytest.mark.parametrize("case", WRONG_CHANGES)
def test_wrong_change_is_refused(case, mine):
    changes, wanted = WRONG_CHANGES[case]
    message = refused(mine(BASE), *changes)
    assert message.startswith(wanted), message


def test_refused_change_is_named_beside_the_file(mine):
    file = ExperimentFile.load(mine(BASE), ["model.name=mlp", "model.width=-1"])
    with pytest.raises(InputError, match=r"^mine\.yaml:4 with --set model.name=mlp model.width=-1: model: width=-1"):
        file.build()


# ------------------------------------------------------------------------------------------------------- registries

EVERYTHING = [(registry, name) for registry in REGISTRIES.values() for name in registry.functions]
FUNCTIONS = [("experiment", Experiment), *((name, registry.functions[name]) for registry, name in EVERYTHING)]
PARAMETERS = [(name, function, key) for name, function in FUNCTIONS for key in parameters(function)]


@pytest.mark.parametrize(("registry", "name"), EVERYTHING, ids=[name for _, name in EVERYTHING])
def test_registered_function_has_a_first_line(registry, name):
    line = first_line(registry.functions[name])
    assert len(line) > 10, line
    assert line.endswith("."), line


@pytest.mark.parametrize(("name", "function", "key"), PARAMETERS, ids=[f"{n}-{k}" for n, _, k in PARAMETERS])
def test_parameter_has_help_and_a_type_that_a_file_can_hold(name, function, key):
    p = parameters(function)[key]
    assert p.help, f"the docstring of {name} does not say what {key} is"
    assert "``" not in p.help
    hint = inspect.signature(function).parameters[key].annotation
    assert hint is not inspect.Parameter.empty
    if p.registry is None:
        adapter = pydantic.TypeAdapter(p.type)
        adapter.json_schema()
        if p.default is not inspect.Parameter.empty:
            held = json.loads(adapter.dump_json(adapter.validate_python(p.default)))
            assert adapter.validate_json(json.dumps(held), strict=True) == p.default
    elif isinstance(p.default, float):
        name, argument = p.registry.number  # a number is short for this component
        assert getattr(bind(p.registry.functions[name], {argument: p.default}).build(), argument) == p.default
    elif p.default not in (inspect.Parameter.empty, None):
        name = next(n for n, f in p.registry.functions.items() if type(p.default) is f)
        assert bind(p.registry.functions[name], {}).build() == p.default  # `show` says the name alone


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


@pytest.mark.parametrize(("registry", "name"), EVERYTHING, ids=[name for _, name in EVERYTHING])
def test_docstring_names_no_parameter_that_is_not_there(registry, name):
    function = registry.functions[name]
    assert set(help_of(function)) <= set(parameters(function))


def test_registered_functions_return_what_their_registry_makes():
    for kind, registry in REGISTRIES.items():
        for function in registry.functions.values():
            made = function if inspect.isclass(function) else inspect.signature(function).return_annotation
            assert made is kind or made == kind.__name__ or (inspect.isclass(made) and issubclass(made, kind)), function


def test_what_the_experiment_supplies_is_a_parameter_of_something():
    for registry in REGISTRIES.values():
        known = {key for function in registry.functions.values() for key in parameters(function)}
        assert registry.given <= known
    assert REGISTRIES[Model].given
    assert REGISTRIES[FederatedData].default == "table"


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
    built = ExperimentFile.load("digits", [change, "model=mnist_cnn"]).build()
    assert (len(built.data), built.data.input_shape, built.model.shape) == (4, (28, 28), (28, 28, 1))
    assert "party 3 is an outlier: its images are inverted" in built.data.notes
    timed = ExperimentFile.load("digits", ["clock={speed: 10}"])
    assert (built.clock, timed.build().clock) == (None, rv.VirtualClock(speed=10.0))
    assert "name: lognormal" in timed.to_yaml()
    said = f"data={{name: shakespeare, file: {tmp_path}/said.txt, length: 5}}"
    spoken = ExperimentFile.load("digits", [said, "model={name: char_lstm, width: 4}"]).build()
    assert (spoken.model.tokens, spoken.model.outputs, spoken.data.parties) == (80, 80, ("A", "B"))
    with pytest.raises(InputError, match=r"model: logistic does not fit .*Shakespeare.* tokens.*use char_lstm or "):
        ExperimentFile.load("digits", [said, "model=logistic"]).build()
    with pytest.raises(InputError, match=r"data\.partition\.name: there is no partition 'dirichle';.*'dirichlet'"):
        ExperimentFile.load("digits", ["data={name: mnist, partition: dirichle}"])


def test_function_that_refuses_is_named_by_its_path():
    def picky(x: int) -> int:
        raise KeyError(f"no {x}")

    with pytest.raises(InputError, match=r"^here\.there: no 3$"):
        bind(picky, {"x": 3}, where="here.there").build()


def test_defects_are_not_dressed_as_mistakes_of_the_user():
    def broken(x: int) -> int:
        return SimpleNamespace().missing

    with pytest.raises(AttributeError):
        bind(broken, {"x": 3}).build()
