"""Changes of settings from the command line: ``--set key.path=value``."""

import pytest
from experiment_texts import BASE, refused

from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.errors import InputError

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
        "participation": {"name": "Stragglers", "inner": {"name": "Full", "weighting": "uniform"}}}),
    "nested component of an algorithm": (
        ["algorithms.FedAvg.solver.name=GD", "algorithms.FedAvg.solver.learning_rate=2"],
        {"algorithms": {"FedAvg": {"name": "fedavg", "solver": {"name": "GD", "learning_rate": 2.0}}}}),
    "new algorithm": (["algorithms.RFA=rfa"], {"algorithms": {"alone": {"name": "local"}, "RFA": {"name": "rfa"}}}),
    "mapping": (["algorithms={only: fedprox}"], {"algorithms": {"only": {"name": "fedprox", "mu": 0.1}}}),
    "list of names": (["algorithms=[local, fedprox]", "algorithms.fedprox.mu=2"], {
        "algorithms": {"local": {"name": "local"}, "fedprox": {"name": "fedprox", "mu": 2.0}}}),
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
    "unknown key": (["ronds=3"], "--set ronds=3: ronds: unknown key; did you mean 'rounds'? Allowed here: data, "),
    "unknown nested key": (["solver.rate=3"], "--set solver.rate=3: solver.rate: unknown key; did you mean "
                                              "'learning_rate'? Allowed here: name, "),
    "unknown part": (["modl.name=mlp"], "mine.yaml:1 with --set modl.name=mlp: modl: unknown key"),
    "unknown name": (["model.name=mpl"], "--set model.name=mpl: model.name: there is no model 'mpl'"),
    "wrong type": (["rounds=many"], "--set rounds=many: rounds: 'many' is not a valid value"),
    "ambiguous number": (["rounds=010"], "--set rounds=010: '010' is ambiguous"),
    "not YAML": (["rounds=[3"], "--set rounds=[3: '[3' is not a YAML value"),
    "what the new name lacks": (["solver.name=GD"],
                                "mine.yaml:5 with --set solver.name=GD: solver.learning_rate: missing"),
    "what the file lacks": (["model.name=mlp", "model.widht=3"], "--set model.widht=3: model.widht: unknown key"),
    "next to the change": (["solver.proximal=implicit", "data.parties=x"], "--set data.parties=x: data.parties: 'x'"),
    "same folder": (["algorithms.fedavg=fedprox"], "--set algorithms.fedavg=fedprox: algorithms.fedavg: the models of"),
}


@pytest.mark.parametrize("case", WRONG_CHANGES)
def test_wrong_change_is_refused(case, mine):
    changes, wanted = WRONG_CHANGES[case]
    message = refused(mine(BASE), *changes)
    assert message.startswith(wanted), message


def test_refused_change_is_named_beside_the_file(mine):
    file = ExperimentFile.load(mine(BASE), ["model.name=mlp", "model.width=-1"])
    with pytest.raises(InputError, match=r"^mine\.yaml:4 with --set model.name=mlp model.width=-1: model: mlp\(width="):
        file.build()
