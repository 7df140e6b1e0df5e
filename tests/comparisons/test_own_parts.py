"""Parts of the user's own in experiment files, by ``module:function`` and by ``file.py:function``."""

import itertools

import numpy as np
import pytest

import resolvent as rv
from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.comparisons.experiment.own_parts import _file_module, _module
from resolvent.comparisons.runs.comparison_runs import compare_file
from resolvent.comparisons.runs.run_folder import begin, write_results
from resolvent.comparisons.runs.runner import run_experiment
from resolvent.comparisons.runs.summary import Source
from resolvent.errors import InputError

PARTS = '''
import jax.numpy as jnp
import numpy as np
import resolvent as rv
from resolvent.solvers import LocalSolver


def data(parties: int = 2, *, noise: float = 0.1) -> rv.FederatedData:
    """Two classes on a line.

    Args:
        parties: number of parties.
        noise: deviation of the inputs.
    """
    rng = np.random.default_rng(0)
    y = [np.arange(12) % 2 for _ in range(parties)]
    return rv.FederatedData.from_arrays([k[:, None] + rng.normal(0, noise, (12, 3)) for k in y], y, test=0.5)


def model(features, classes, *, scale: float = 1.0):
    return rv.models.from_functions(lambda key: jnp.zeros((features, classes)), lambda w, x: scale * x @ w)


def algorithm(solver: LocalSolver, *, mu: float):
    return rv.fedprox(solver, mu=mu)


def failing(features, classes):
    raise RuntimeError("no such model")


def number(features, classes):
    return 3


def unsettable(features, classes, layers):
    return None


def open_ended(**options):
    return None


INSTANCE = rv.fedavg(rv.SGD(0.1))
'''
EXPERIMENT = """\
data: {name: SOURCE:data, parties: 3}
model: {name: SOURCE:model, scale: 2}
solver: {name: SGD, learning_rate: 0.1, steps: 2}
algorithms: {alone: local, mine: {name: SOURCE:algorithm, mu: 0.5}}
rounds: 2
diagnostics: []
"""
numbers = itertools.count()


@pytest.fixture(params=["module", "file"])
def source(request, tmp_path, monkeypatch):
    """A module in the current folder, or the path of its file. Its name is new: modules are imported once."""
    monkeypatch.chdir(tmp_path)
    name = f"parts_{next(numbers)}"
    (tmp_path / f"{name}.py").write_text(PARTS)
    return name if request.param == "module" else f"{name}.py"


def load(source, *changes):
    return ExperimentFile.parse(EXPERIMENT.replace("SOURCE", source), "mine.yaml", "mine", changes)


def refused(source, *changes):
    with pytest.raises(InputError) as caught:
        load(source, *changes).build()
    return str(caught.value)


def test_own_parts_are_bound_checked_and_written_like_those_of_the_library(source):
    file = load(source)
    settings = file.bound.settings()
    assert settings["data"] == {"name": f"{source}:data", "parties": 3, "noise": 0.1}
    assert settings["model"] == {"name": f"{source}:model", "scale": 2.0}
    assert settings["algorithms"]["mine"] == {"name": f"{source}:algorithm", "mu": 0.5}
    assert "deviation of the inputs" in file.to_yaml()
    assert ExperimentFile.parse(file.to_yaml(), "again.yaml", "mine").bound.settings() == settings
    assert load(source, "model.scale=3").bound.settings()["model"]["scale"] == 3.0


@pytest.mark.parametrize(("change", "message"), [
    ("data.partis=3", "data.partis: unknown key; did you mean 'parties'? Allowed here: name, parties, noise"),
    ("data.parties=many", "data.parties: 'many' is not a valid value"),
    ("algorithms.mine.name=SOURCE:algoritm", "has no function 'algoritm'; did you mean 'algorithm'?"),
    ("model.name=SOURCE:failing", "SOURCE:failing: RuntimeError: no such model (STEM.py, line 29)"),
    ("model.name=SOURCE:number", "SOURCE:number returned a int, and a Model or ProblemModel is needed: return one"),
    ("model.name=SOURCE:unsettable", "an experiment file cannot set its parameter layers: annotate it"),
    ("model.name=SOURCE:open_ended", "it has the parameter options, which is not named in a call"),
    ("algorithms.mine.name=SOURCE:INSTANCE", "SOURCE:INSTANCE is not a function: name a function, or a class, that"),
    ("model.features=3", "model.features: the experiment supplies it; remove this setting"),
    ("model.name=nowhere_at_all:model", "nowhere_at_all cannot be imported: ModuleNotFoundError"),
    ("model.name=nowhere.py:model", "there is no file "),
    ("model.name=logistik", "did you mean 'logistic'? Allowed: linear"),
])
def test_what_is_wrong_is_said(source, change, message):
    stem = source.removesuffix(".py")
    text = refused(source, change.replace("SOURCE", source))
    assert message.replace("SOURCE", source).replace("STEM", stem) in text
    assert "--set " in text.split(": ")[0]


def test_a_part_of_a_file_is_the_same_part_in_every_process(tmp_path, monkeypatch):
    """A process has its own hash() of text; a checkpoint identifies a part by the name of its module."""
    file = tmp_path / "mine.py"
    file.write_text("class Part: pass")
    names = set()
    for number in range(2):
        monkeypatch.setattr("resolvent.comparisons.experiment.own_parts.hash", lambda text, number=number: number,
                            raising=False)
        names.add(_file_module(file, "model").Part.__module__)
    assert len(names) == 1


def test_a_required_setting_is_missing(source):
    assert "algorithms.mine.mu: missing" in refused(source, "algorithms.mine=" + source + ":algorithm")


@pytest.mark.when_changed
def test_own_parts_run_and_their_models_predict(tmp_path, monkeypatch):
    """The model is built again from the experiment file of the run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parts.py").write_text(PARTS)
    file = load("parts.py")
    comparison = compare_file(file)
    assert comparison.results["mine"].personal_model(0).shape == (3, 2)
    begin(tmp_path, file, resume=False)
    write_results(tmp_path, Source.of_file(file), comparison)
    rows = np.array([[-1.0, 0, 0], [2.0, 1, 1]])
    fitted = rv.load(tmp_path, method="mine", site="party 1")
    np.testing.assert_allclose(fitted.outputs(rows), comparison.results["mine"].fitted(1).outputs(rows))


@pytest.mark.when_changed
def test_a_complete_run_of_edited_code_is_not_shown(tmp_path, monkeypatch):
    """Neither after an edit of the part nor after one of what it calls; a comment does not matter."""
    monkeypatch.chdir(tmp_path)
    text = PARTS + "\n\nFACTOR = 2.0\n\n\ndef scaled(mu):\n    return FACTOR * mu\n"
    text = text.replace("mu=mu", "mu=scaled(mu)")
    assert "scaled(mu))" in text

    def run(text, **options):
        """As a new process, which imports the file as it is now."""
        (tmp_path / "parts.py").write_text(text)
        _module.cache_clear()
        return run_experiment(load("parts.py"), tmp_path / "run", resume=True, **options)[1].plain()

    first = run(text)
    assert run(text.replace("FACTOR = 2.0", "FACTOR = 2.0  # two")) == first
    for old, new in (("FACTOR = 2.0", "FACTOR = 3.0"), ("return FACTOR * mu", "return FACTOR + mu")):
        with pytest.raises(InputError, match=r"is a complete run of other code: parts\.py:algorithm, or what it calls"):
            run(text.replace(old, new))
