"""The ridge of federated methods is scikit-learn's, chosen by the sum of the sites' validation losses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss, mean_squared_error

import nightly
import resolvent as rv
from resolvent.algorithms.combinators.ridge_path import STRENGTHS
from resolvent.comparisons.experiment.experiment_file import Experiment
from resolvent.comparisons.runs.shared_ridge import shared_ridge, with_ridge
from resolvent.comparisons.runs.summary import Source, summarize
from resolvent.problem.ridge_path import Folds

SITES, FEATURES = (30, 40, 25), 4
METHODS = {"alone": rv.careful_local(rv.SGD(0.1)), "FedAvg": rv.fedavg(rv.solvers.GD(0.1)), "pooled": rv.pooled()}


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def data_of(*, is_number):
    """Three sites whose labels depend weakly on the inputs."""
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(n, FEATURES)) for n in SITES]
    eta = [rows @ [0.4, -0.3, 0.2, 0.0] + rng.normal(size=len(rows)) for rows in x]
    return rv.FederatedData.from_arrays(x, eta if is_number else [(of_site > 0.3).astype(int) for of_site in eta],
                                        test=0.2, validation=0.0)


def experiment_of(data, model, **settings):
    return Experiment(data=data, model=model, solver=rv.SGD(0.1), **{"algorithms": METHODS, **settings})


def fit(r, x, y, *, is_number):
    return (Ridge(r) if is_number else LogisticRegression(C=1 / r, tol=1e-10, max_iter=1000)).fit(x, y)


def losses_of_sites(r, x, y, site, fold, *, is_number):
    """The validation losses of each site at the fits to the other folds of all sites."""
    losses = np.zeros(len(SITES))
    for j in range(5):
        model = fit(r, x[fold != j], y[fold != j], is_number=is_number)
        for k in range(len(SITES)):
            rows = (fold == j) & (site == k)
            losses[k] += rows.sum() * (mean_squared_error(y[rows], model.predict(x[rows])) if is_number else
                                       log_loss(y[rows], model.predict_proba(x[rows]), labels=[0, 1]))
    return losses


@nightly.parametrize("is_number", [True, False], others=nightly.WHEN_CHANGED)
def test_fedavg_converges_to_the_ridge_regression_with_the_least_sum_of_the_sites_validation_losses(is_number):
    data = data_of(is_number=is_number)
    model = rv.models.linear(FEATURES) if is_number else rv.models.logistic(FEATURES, 2)
    parts = [data.party(k) for k in range(len(SITES))]
    x, y = (np.concatenate([np.asarray(part[i], float).reshape(len(part[0]), -1) for part in parts]) for i in (0, 1))
    y, site = y.ravel(), np.repeat(np.arange(len(SITES)), [len(part[0]) for part in parts])
    salt = jax.random.bits(jax.random.key(3), (), jnp.uint32)
    fold = np.asarray(Folds(5, salt).of(jnp.arange(len(x))))
    best = min(STRENGTHS, key=lambda r: losses_of_sites(r, x, y, site, fold, is_number=is_number).sum())
    ridge = shared_ridge(experiment_of(data, model), data, 3)
    assert ridge == pytest.approx(best / len(x), rel=1e-6)
    algorithm = METHODS["FedAvg"] if is_number else rv.fedavg(rv.solvers.GD(1.0))
    result = rv.simulate(algorithm, with_ridge(model, algorithm, ridge), data, rounds=600, progress=False)
    expected = fit(best, x, y, is_number=is_number)
    np.testing.assert_allclose(result.server_model["weight"], np.atleast_2d(expected.coef_), atol=1e-7)
    np.testing.assert_allclose(result.server_model["bias"], np.atleast_1d(expected.intercept_), atol=1e-7)


def test_a_model_with_an_l2_a_private_method_and_a_comparison_without_the_careful_reference_have_no_ridge():
    data, model = data_of(is_number=True), rv.models.linear(FEATURES)
    others = {label: algorithm for label, algorithm in METHODS.items() if label != "alone"}
    for experiment in (experiment_of(data, rv.models.linear(FEATURES, l2=1e-3)),
                       experiment_of(data, model, algorithms={"alone": rv.local(rv.SGD(0.1)), **others}),
                       experiment_of(data, rv.models.mlp(FEATURES, 2, task="regression")),
                       experiment_of(data, model, privacy=rv.privacy.PrivacyBudget(delta=1e-5))):
        assert shared_ridge(experiment, data, 0) == 0.0
    private = rv.fedavg(rv.solvers.DPSGD(0.1, noise_multiplier=1.0, batch_size=5, steps=1))
    assert [with_ridge(model, algorithm, 0.5).ridge for algorithm in (*METHODS.values(), private)] == [0, 0.5, 0, 0]


@pytest.mark.when_changed
def test_a_comparison_and_its_refit_use_the_ridge_and_say_so():
    data, model = data_of(is_number=True), rv.models.linear(FEATURES)
    comparison = rv.compare(METHODS, model, data, rounds=300, seed=3, progress=False)
    ridge = shared_ridge(comparison.experiment, data, 3)
    assert 0 < ridge < 1
    assert [result.model.ridge for result in comparison.results.values()] == [0.0, ridge, 0.0]
    notes = summarize(Source.of_program("t", comparison), comparison).data.notes
    assert any(f"the ridge {ridge:.3g} |W|^2 / 2" in note for note in notes)
    refit = comparison.refit("FedAvg", rounds=300, anyway=True, progress=False)
    parts = [data.party(k, split) for k in range(len(SITES)) for split in ("train", "test")]
    x, y = (np.concatenate([np.asarray(part[i], float).reshape(len(part[0]), -1) for part in parts]) for i in (0, 1))
    model = refit.results["FedAvg"].server_model
    closest = min(STRENGTHS, key=lambda r: np.abs(Ridge(r).fit(x, y.ravel()).coef_ - model["weight"]).max())
    np.testing.assert_allclose(model["weight"][0], Ridge(closest).fit(x, y.ravel()).coef_, atol=1e-6)
