"""Results that are saved and loaded, and results that are pickled, answer as the result of the run does."""

import json
import pickle
import shutil
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest

import resolvent as rv

SOLVER = rv.SGD(0.05, steps=2)


def regressor_init(key):
    return {"w": jnp.zeros(3)}


def regressor_apply(params, x):
    return x @ params["w"]


@pytest.fixture(scope="module")
def result():
    data = rv.datasets.synthetic(parties=3, features=3)
    return rv.simulate(rv.fedavg_plus(SOLVER, sigma=0.5), rv.models.linear(3), data, rounds=2, name="Fed+",
                       progress=False)


def same_trees(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)
        assert x.dtype == y.dtype


def answers_alike(again, result):
    for party in (1, "party 2"):
        same_trees(again.personal_model(party), result.personal_model(party))
    same_trees(again.server_model, result.server_model)
    pd.testing.assert_frame_equal(again.metrics, result.metrics)
    pd.testing.assert_frame_equal(again.scores("train"), result.scores("train"))
    assert (again.name, again.rounds, again.seed, again.digest) == ("Fed+", 2, 0, result.digest)
    assert (again.score_name, again.refused) == (result.score_name, result.refused)
    rows = np.random.default_rng(0).normal(size=(4, 3))
    for site in (None, 1, "party 2"):
        np.testing.assert_array_equal(again.fitted(site).predict(rows), result.fitted(site).predict(rows))


@pytest.mark.when_changed
def test_a_saved_result_answers_as_the_result(result, tmp_path):
    result.save(tmp_path / "mine")
    again = rv.load(tmp_path / "mine")
    answers_alike(again, result)
    assert again.facts == json.loads(json.dumps(again.facts))
    assert again.facts["bytes"] == result.facts["bytes"]
    assert again.plot() is not None
    site = rv.load(tmp_path / "mine", site="party 1")
    assert (site.method, site.site) == ("Fed+", "party 1")
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


@pytest.mark.when_changed
def test_a_pickled_result_answers_as_the_result(result):
    again = pickle.loads(pickle.dumps(result))
    answers_alike(again, result)
    same_trees(again.state, result.state)
    assert again.algorithm == result.algorithm


def test_a_pickled_result_keeps_double_precision(result):
    """It is read where double precision is not enabled."""
    with jax.enable_x64(True):
        double = replace(result, state=jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf, float)), result.state))
    same_trees(pickle.loads(pickle.dumps(double)).state, double.state)


def test_what_cannot_be_pickled_is_said(result):
    local = rv.models.from_functions(lambda key: jnp.zeros(3), lambda w, x: x @ w, loss="squared_error")
    problem = rv.problems.LearningProblem(local, result.data)
    optimizer = rv.fedavg(rv.OptaxSolver(optax.sgd(0.1)))
    for changed in (replace(result, problem=problem), replace(result, algorithm=optimizer)):
        with pytest.raises(pickle.PicklingError, match=r"model cannot be pickled .*: use result.save\(folder\)"):
            pickle.dumps(changed)


def test_a_folder_in_use_is_not_touched(result, tmp_path):
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(rv.InputError, match="is in use: save the result to a folder that does not exist or is empty"):
        result.save(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["note.txt"]


@pytest.mark.parametrize("name", ["result.json", "metrics.parquet", "models/tree.json", "models/server.safetensors"])
def test_a_damaged_file_is_refused(name, result, tmp_path):
    result.save(tmp_path / "mine")
    path = tmp_path / "mine" / name
    content = bytearray(path.read_bytes())
    # A letter: the last digit of a long number can change without a change of the number.
    at = next(i for i in range(len(content) // 2, len(content)) if chr(content[i]).isalpha())
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises(rv.InputError, match=r"damaged"):
        rv.load(tmp_path / "mine").fitted()


def test_models_of_another_result_are_refused(result, tmp_path):
    result.save(tmp_path / "mine")
    replace(result, digest="another").save(tmp_path / "other")
    shutil.rmtree(tmp_path / "mine" / "models")
    shutil.copytree(tmp_path / "other" / "models", tmp_path / "mine" / "models")
    for arguments in ({}, {"site": 0}):
        with pytest.raises(rv.InputError, match=r"tree\.json is damaged"):
            rv.load(tmp_path / "mine", **arguments)


@pytest.mark.when_changed
def test_a_model_of_the_user_is_passed_when_it_is_loaded(tmp_path):
    data = rv.datasets.synthetic(parties=2, features=3)
    model = rv.models.from_functions(regressor_init, regressor_apply, loss="squared_error")
    result = rv.simulate(rv.fedavg(SOLVER), model, data, rounds=1, progress=False)
    result.save(tmp_path / "mine")
    rows = np.eye(3)
    with pytest.raises(rv.InputError, match="not one of the library's: give it as the argument model"):
        rv.load(tmp_path / "mine", site=0)
    fitted = rv.load(tmp_path / "mine", site=0, model=model)
    np.testing.assert_array_equal(fitted.predict(rows), result.fitted(0).predict(rows))
    same_trees(rv.load(tmp_path / "mine", model=model).server_model, result.server_model)
    with pytest.raises(rv.InputError, match=r"the model has the parameters bias \[1\], weight \[1, 3\], and the saved "
                                            r"ones are w \[3\]"):
        rv.load(tmp_path / "mine", site=0, model=rv.models.linear(3))


@pytest.mark.when_changed
def test_a_problem_without_samples_has_models_and_no_predictions(tmp_path):
    problem = rv.problems.QuadraticProblem.least_squares(jnp.stack([jnp.eye(4)[:, :2]] * 2), jnp.ones((2, 4)))
    result = rv.simulate(rv.fedavg(rv.solvers.ClosedForm()), problem, rounds=1, progress=False)
    result.save(tmp_path / "mine")
    again = rv.load(tmp_path / "mine")
    same_trees(again.server_model, result.server_model)
    for subject in (result, again):
        with pytest.raises(rv.InputError, match="no rows to predict for"):
            subject.fitted()


def test_a_method_without_a_shared_model_needs_a_site(result):
    alone = replace(result, algorithm=rv.local(SOLVER))
    assert alone.server_model is None
    with pytest.raises(rv.InputError, match=r"Fed\+ has no shared model: name a site"):
        alone.fitted()
