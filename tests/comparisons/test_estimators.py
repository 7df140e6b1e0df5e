"""Estimators with scikit-learn's interface: its own checks, and that they are the library's algorithms."""

import contextlib
import os
import pickle
from types import SimpleNamespace
from unittest import SkipTest

import jax
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import cross_val_score

import nightly
import resolvent as rv
from resolvent.comparisons.after import estimators
from resolvent.comparisons.after.estimators import FederatedClassifier, FederatedRegressor
from resolvent.data.images_text.array_encoding import ArrayEncoding
from resolvent.predict.fitted import Fitted

RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 2))
PARTIES = np.array(["north", "south", "west"])[np.arange(64) % 3]
NIGHTLY = os.environ.get("RESOLVENT_NIGHTLY") == "1"


def solved(algorithm, model, data, **options):
    """A result whose models are scikit-learn's, because the checks are of the interface and fit a hundred times."""
    x, y = data.party(0)
    solver = LogisticRegression() if data.task == "classification" else LinearRegression()
    solver.fit(x, y)
    params = {"weight": np.atleast_2d(solver.coef_), "bias": np.atleast_1d(solver.intercept_)}
    fitted = Fitted(model, params, ArrayEncoding(data.input_shape, data.task, data.classes))
    return SimpleNamespace(fitted=lambda site=None: fitted, server_model=params)


@pytest.mark.when_changed
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of scikit-learn's checks
@nightly.parametrize("estimator", [FederatedRegressor(), FederatedClassifier()], ids=lambda e: type(e).__name__)
def test_checks_of_scikit_learn(estimator, monkeypatch):
    checks = pytest.importorskip("sklearn.utils.estimator_checks")
    if not hasattr(checks, "estimator_checks_generator"):
        pytest.skip("scikit-learn before 1.6 has no generator of its checks")
    if not NIGHTLY:
        monkeypatch.setattr(estimators, "simulate", solved)
    for subject, check in checks.estimator_checks_generator(estimator):
        with contextlib.suppress(SkipTest):  # of checks that need the environment variable SCIPY_ARRAY_API
            check(subject)


@pytest.fixture(scope="module")
def classifier():
    y = np.where(X @ [1.0, -2.0] > 0, "ill", "well")
    return FederatedClassifier(rv.fedavg_plus(rv.SGD(0.5, steps=5)), rounds=5).fit(X, y, groups=PARTIES)


@pytest.mark.when_changed
def test_each_row_is_predicted_by_its_partys_model(classifier):
    assert classifier.parties_.tolist() == ["north", "south", "west"]
    assert classifier.classes_.tolist() == ["ill", "well"]
    probabilities = classifier.predict_proba(X, groups=PARTIES)
    inputs = (X - X.mean(axis=0)) / X.std(axis=0)
    for k, party in enumerate(classifier.parties_):
        params = classifier.fitted_models_[k].params
        logits = inputs[party == PARTIES] @ params["weight"].T + params["bias"]
        np.testing.assert_allclose(probabilities[party == PARTIES][:, 1:], 1 / (1 + np.exp(-logits)))
    weights = [model.params["weight"] for model in classifier.fitted_models_]
    assert not np.array_equal(weights[0], weights[1])
    shared = classifier.predict_proba(X)
    assert not np.array_equal(shared, probabilities)
    assert np.mean(classifier.predict(X, groups=PARTIES) == np.where(X @ [1.0, -2.0] > 0, "ill", "well")) > 0.9


@pytest.mark.when_changed
def test_training_is_that_of_simulate(classifier):
    inputs, y = (X - X.mean(axis=0)) / X.std(axis=0), (X @ [1.0, -2.0] <= 0).astype(int)
    members = [party == PARTIES for party in ("north", "south", "west")]
    data = rv.FederatedData.from_arrays([inputs[m] for m in members], [y[m] for m in members], validation=0, test=0)
    with jax.enable_x64(True):
        result = rv.simulate(rv.fedavg_plus(rv.SGD(0.5, steps=5)), rv.models.logistic(2, 2), data, rounds=5,
                             evaluate_every=5, progress=False)
        np.testing.assert_allclose(result.personal_model(1)["weight"], classifier.fitted_models_[1].params["weight"])
        np.testing.assert_allclose(result.server_model["weight"], classifier.shared_model_.params["weight"])


@pytest.mark.when_changed
def test_it_can_be_cloned_pickled_and_is_refused_with_a_reason(classifier):
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(again.predict_proba(X, groups=PARTIES), classifier.predict_proba(X, groups=PARTIES))
    assert clone(classifier).get_params()["rounds"] == 5
    with pytest.raises(rv.InputError, match="groups has the party 'east', which fit has not had"):
        classifier.predict(X[:1], groups=["east"])
    with pytest.raises(rv.InputError, match=r"groups has shape \(1,\) for 64 rows"):
        clone(classifier).fit(X, np.arange(64) % 2, groups=["east"])
    with pytest.raises(rv.InputError, match=r"y has 1 class, .*: give rows of another class"):
        clone(classifier).fit(X, np.zeros(64), groups=PARTIES)


@pytest.mark.when_changed
@pytest.mark.slow
def test_cross_validation_of_a_regressor():
    """Each fold has 32 rows, which are filled up by rows that belong to no party."""
    regressor = FederatedRegressor(rv.fedavg(rv.SGD(0.5, steps=5)), rounds=10)
    assert cross_val_score(regressor, X, X @ [1.0, -2.0] + 3, cv=2).min() > 0.99
