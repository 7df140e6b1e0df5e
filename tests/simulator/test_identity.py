"""A run is identified by its settings, versions and code: edits that are refused, and edits that change nothing."""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import nightly
import resolvent as rv
from resolvent.simulator.checkpoint import checkpoints
from resolvent.simulator.checkpoint.identity import RunIdentity, digest_of_code, identity_of, own_parts
from resolvent.simulator.engine import compiled_rounds as engine

SOURCE = '''
import dataclasses
import math

import jax.numpy as jnp
import numpy as np

import resolvent as rv
from resolvent.algorithms.algorithm import Phase
from resolvent.algorithms.method import Method, local_work
from resolvent.math import tree
from resolvent.solvers import LocalSolver
from resolvent.problem.subproblem import Subproblem

STEP = 0.25
SLOPE = jnp.array([1.0, 2.0])


class Own(Method):
    solver: LocalSolver
    needs_individual_replies = False
    replies_models = True

    def init(self, w0, shares):
        return w0

    def init_party(self, w0, oracle, key):
        return ()

    @property
    def phases(self):
        return (Phase(lambda w, k: w, self.party, self.server, lambda w: w),)

    def party(self, state, w, oracle, key, effort):
        new, info = local_work(self.solver, Subproblem(oracle, w), w, key, effort)
        return state, new, info

    def server(self, w, replies, key):
        b = replies.mean()
        return tree.lerp(w, b, STEP), {}

    def personal_model(self, state, w, oracle):
        return w

    def server_model(self, w):
        return w


def hidden(x):
    return jnp.tanh(x)


@dataclasses.dataclass
class Weights:
    values: np.ndarray


WEIGHTS = Weights(np.array([1.0, 1.0]))
TABLE = np.array([1, None])
SCALED = np.vectorize(lambda x: scaled(x))


def scaled(x):
    return 1.5 * x


class Output:
    def __init__(self, scale):
        self.scale = scale

    def __call__(self, x):
        return self.scale * x


def init(key):
    return {"w": jnp.zeros((2, 2))}


OUTPUT = Output(2.0)


def apply(params, x):
    return OUTPUT(hidden(x * SLOPE * WEIGHTS.values * SCALED(2.0)) @ params["w"]) * TABLE[0]


def share(labels, predictions):
    return float(np.mean(labels == predictions)) + 0 * math.pi


MODEL = rv.models.from_functions(init, apply)
ALGORITHM = Own(rv.SGD(0.1, batch_size=4, epochs=1))
METRIC = rv.metrics.from_function(share, name="share", higher_is_better=True)
'''
EDITS = {
    "the server's function": ("tree.lerp(w, b, STEP)", "tree.lerp(b, w, STEP)"),
    "a global number": ("STEP = 0.25", "STEP = 0.9"),
    "a global array": ("jnp.array([1.0, 2.0])", "jnp.array([1.0, 3.0])"),
    "a helper of the model": ("jnp.tanh(x)", "jnp.sin(x)"),
    "the setting of an object": ("Output(2.0)", "Output(3.0)"),
    "the method of an object": ("self.scale * x", "self.scale + x"),
    "the array of a dataclass": ("Weights(np.array([1.0, 1.0]))", "Weights(np.array([1.0, 2.0]))"),
    "an array of objects": ("np.array([1, None])", "np.array([2, None])"),
    "a function in an object of a package": ("return 1.5 * x", "return 1.6 * x"),
}
HARMLESS = SOURCE.replace("STEP = 0.25", "STEP   =   0.25  # a quarter").replace(
    "    def server(", "\n    # the mean\n    def server(")


def module_of(text, folder):
    """The module of this text, as a new process would import it."""
    path = folder / "own_run.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("own_run", path)
    module = sys.modules["own_run"] = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode, written = True, sys.dont_write_bytecode
    importlib.invalidate_caches()
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)
    spec.loader.exec_module(module)
    sys.dont_write_bytecode = written
    return module


def data():
    rng = np.random.default_rng(0)
    return rv.FederatedData.from_arrays([rng.normal(size=(12, 2)) for _ in range(3)],
                                        [rng.integers(0, 2, 12) for _ in range(3)], seed=0)


DATA = data()


def run(module, folder=None, rounds=4, **settings):
    return rv.simulate(module.ALGORITHM, module.MODEL, DATA, rounds=rounds, evaluate_every=2, progress=False,
                       checkpoint=None if folder is None else folder / "run", resume=folder is not None,
                       **{"metrics": [module.METRIC]} | settings)


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """The folder of a run with 2 of 4 rounds."""
    folder = tmp_path_factory.mktemp("half")
    run(module_of(SOURCE, folder), folder, rounds=2)
    return folder


@pytest.mark.when_changed
@pytest.mark.parametrize("edit", EDITS)
def test_edited_code_is_refused_by_name(half, edit):
    edited = module_of(SOURCE.replace(*EDITS[edit]), half)
    with pytest.raises(rv.InputError, match=r"by other code: .*(Own|apply).* has been edited since"):
        run(edited, half)


def test_an_edited_metric_is_refused(half):
    edited = module_of(SOURCE.replace("0 * math.pi", "0 * math.e"), half)
    with pytest.raises(rv.InputError, match="with another value of code of the metrics"):
        run(edited, half)


@pytest.mark.when_changed
def test_comments_and_layout_do_not_matter(half, tmp_path):
    same = module_of(HARMLESS, half)
    for name in (p.name for p in (half / "run").iterdir()):
        target = tmp_path / "run" / name
        target.mkdir(parents=True)
        for file in (half / "run" / name).iterdir():
            (target / file.name).write_bytes(file.read_bytes())
    assert run(same, tmp_path).digest == run(module_of(SOURCE, half)).digest


@pytest.mark.when_changed
def test_a_complete_run_of_other_code_is_not_shown(tmp_path):
    run(module_of(SOURCE, tmp_path), tmp_path)
    with pytest.raises(rv.InputError, match="has been edited since"):
        run(module_of(SOURCE.replace(*EDITS["a global number"]), tmp_path), tmp_path)


class Stop(Exception):
    pass


def identity(folder, algorithm, model, **settings):
    """The identity of a run that ends before its first round."""
    def stop(plan):
        identities.append(identity_of(plan))
        raise Stop

    identities = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "identity_of", stop)
        with pytest.raises(Stop):
            rv.simulate(algorithm, model, DATA, **{"rounds": 2, "progress": False, "checkpoint": folder} | settings)
    return identities[0]


@pytest.mark.when_changed
def test_the_identity_does_not_depend_on_the_process(tmp_path):
    """In another process, and under another order of sets."""
    module = module_of(SOURCE, tmp_path)
    command = ("import json, own_run, sys, test_identity as t; m = own_run; "
               "print(json.dumps(t.identity(sys.argv[1], m.ALGORITHM, m.MODEL).as_json()))")
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    output = subprocess.run([sys.executable, "-c", command, str(tmp_path)], cwd=Path(__file__).parent, check=True,
                            capture_output=True, text=True, env=environment).stdout
    expected = identity(tmp_path, module.ALGORITHM, module.MODEL).as_json()
    assert json.loads(output) == json.loads(json.dumps(expected))


@pytest.mark.when_changed
def test_the_code_depends_neither_on_the_scheduler_nor_on_the_number_of_rounds(tmp_path):
    """Nor on where the data are, on what is recorded, and on the values of arrays that are settings."""
    module = module_of(SOURCE, tmp_path)

    def code(**settings):
        return identity(tmp_path, module.ALGORITHM, module.MODEL, **settings).code

    assert {code(), code(scheduler="lanes"), code(rounds=50, evaluate_every=1), code(memory="host"),
            code(diagnostics=["model_change", "steps"])} == {code()}
    dropouts = [rv.participation.Dropout(np.full(3, share)) for share in (0.1, 0.2)]
    assert code(participation=dropouts[0]) == code(participation=dropouts[1]) != code()


@pytest.mark.when_changed
@nightly.parametrize("has_checkpoint", [True, False], others=nightly.WHEN_CHANGED)
def test_a_run_traces_its_rounds_once(has_checkpoint, tmp_path, monkeypatch):
    """Code of the library and own code, with a checkpoint and without one."""
    counts = []
    phase = engine.run_phase  # fedprox has one
    monkeypatch.setattr(engine, "run_phase", lambda *args: counts.append(1) or phase(*args))
    model = rv.models.mlp(2, 2, width=7 + has_checkpoint)  # of a shape that no other test has traced
    rv.simulate(rv.fedprox(rv.SGD(0.1, batch_size=3), mu=0.1), model, DATA, rounds=2, progress=False,
                checkpoint=tmp_path / "library" if has_checkpoint else None)
    assert len(counts) == 1
    counts.clear()
    run(module_of(SOURCE, tmp_path), tmp_path if has_checkpoint else None)
    assert len(counts) == 1


@pytest.mark.when_changed
def test_a_global_that_changed_after_compilation_has_its_new_value(tmp_path):
    """JAX would run the program that it compiled for the earlier value, as after another cell of a notebook."""
    module = module_of(SOURCE, tmp_path)
    first = run(module, rounds=2).digest
    module.STEP = 0.9
    second = run(module, rounds=2).digest
    (tmp_path / "edited").mkdir()
    edited = run(module_of(SOURCE.replace(*EDITS["a global number"]), tmp_path / "edited"), rounds=2).digest
    assert first != second == edited


STORED = RunIdentity({"seed": "0"}, {"python": "3.11", "jax": "1"}, "code", ("Own",))


@pytest.mark.parametrize(("changes", "message"), [
    ({"code": "other"}, "by other code: Own has been edited since"),
    ({"code": "other", "versions": {"python": "3.11", "jax": "2"}}, "by other code: Own has been edited since"),
    ({"code": "other", "versions": {"python": "3.12", "jax": "1"}}, "with python 3.11, now 3.12.*code of Own cannot"),
    ({"code": "", "names": ()}, "this run has been edited since"),
    ({"fingerprint": {"seed": "1"}}, "another value of seed"),
])
def test_what_differs_is_said(changes, message):
    with pytest.raises(rv.InputError, match=message):
        STORED._replace(**changes).check(STORED, Path("run"))


def test_another_version_of_jax_is_not_an_edit():
    """The same code continues with a warning."""
    with pytest.warns(UserWarning, match="was written with jax 1, now 2"):
        STORED._replace(versions={"python": "3.11", "jax": "2"}).check(STORED, Path("run"))


def test_packages_of_another_environment_are_not_own(tmp_path, monkeypatch):
    for folder in ("site-packages", "project"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"metric_in_{folder[:4]}.py").write_text("def metric(x): return x\n")
        monkeypatch.syspath_prepend(tmp_path / folder)
    installed, own = (importlib.import_module(f"metric_in_{name}").metric for name in ("site", "proj"))
    assert (own_parts(installed), own_parts(own)) == ((), ("metric",))


def test_only_own_code_is_described(tmp_path):
    module = module_of(SOURCE, tmp_path)
    assert digest_of_code((rv.fedavg(rv.SGD(0.1)), rv.models.logistic(2, 2), np.mean)) == ""
    assert "hidden" in own_parts(module.MODEL)
    assert {"Own", "share"} <= set(own_parts([module.ALGORITHM, module.METRIC]))
