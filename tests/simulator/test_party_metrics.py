"""Metrics of a run: at evaluations, for each party's validation and test samples, of personal and shared models."""

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import resolvent as rv
from resolvent.errors import InputError

METRICS = [rv.metrics.Accuracy(), rv.metrics.BalancedAccuracy(), rv.metrics.ROCAUC()]
SOLVER = rv.SGD(0.5, epochs=1)


@pytest.fixture(scope="module")
def data():
    """Party 2 has one class."""
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(60, 2)) for _ in range(3)]
    y = [(x[0][:, 0] > 0).astype(int), (x[1][:, 1] > 0.5).astype(int), np.zeros(60, int)]
    return rv.FederatedData.from_arrays(x, y, test=0.5, classes=["0", "1"])


@pytest.fixture(scope="module")
def results(data):
    return {name: rv.simulate(algorithm, rv.models.logistic(2, 2), data, rounds=2, evaluate_every=1, metrics=METRICS,
                              progress=False)
            for name, algorithm in {"local": rv.local(SOLVER), "fedavg": rv.fedavg(SOLVER)}.items()}


def expected_auc(data, params, k):
    x, y = data.party(k, "test")
    return roc_auc_score(y, (x @ np.asarray(params["weight"]).T + np.asarray(params["bias"])).ravel())


@pytest.mark.when_changed
def test_metrics_are_those_of_the_models_of_the_run(data, results):
    local, fedavg = results["local"].scores("test", "roc_auc"), results["fedavg"].scores("test", "roc_auc")
    shared = results["fedavg"].scores("test", "global_roc_auc")
    assert list(local.index) == [0, 1, 2]
    for k in (0, 1):
        assert local.loc[2, k] == pytest.approx(expected_auc(data, results["local"].personal_model(k), k), abs=1e-6)
        assert fedavg.loc[2, k] == pytest.approx(expected_auc(data, results["fedavg"].server_model, k), abs=1e-6)
    assert fedavg.equals(shared)
    assert not results["local"].scores("validation", "balanced_accuracy").isna().any(axis=None)


@pytest.mark.when_changed
def test_scores_of_an_unknown_split_or_metric_are_refused(results):
    with pytest.raises(InputError, match=r"split='tests'.*did you mean 'test'"):
        results["local"].scores("tests")
    with pytest.raises(InputError, match=r"metric='rocauc'.*did you mean 'roc_auc'"):
        results["local"].scores("test", "rocauc")


@pytest.mark.when_changed
def test_party_with_one_class_has_no_roc_auc_and_the_score_is_measured_once(results):
    table = results["local"].metrics
    assert set(table.loc[table["metric"] == "roc_auc", "party"]) == {0, 1}
    assert set(table.loc[table["metric"] == "balanced_accuracy", "party"]) == {0, 1}
    assert set(table.loc[table["metric"] == "accuracy", "split"]) == {"train", "validation", "test"}
    assert not table.duplicated(["round", "party", "split", "metric"]).any()


def test_metrics_change_neither_the_models_nor_the_other_measurements(data, results):
    plain = rv.simulate(rv.local(SOLVER), rv.models.logistic(2, 2), data, rounds=2, evaluate_every=1, progress=False)
    assert plain.digest == results["local"].digest
    table = results["local"].metrics
    rows = table[table["metric"].isin(plain.metrics["metric"])].assign(method="run").reset_index(drop=True)
    assert rows.equals(plain.metrics)


@pytest.mark.when_changed
def test_diverged_model_has_nan_at_the_parties_for_which_the_metric_is_defined(data):
    result = rv.simulate(rv.local(rv.solvers.GD(0.1, steps=1)),
                         rv.models.from_functions(lambda key: jnp.zeros(2), lambda w, x: x @ w + jnp.nan,
                                                  loss="binary_cross_entropy"),
                         data, rounds=1, metrics=METRICS, progress=False)
    scores = result.scores("test", "roc_auc")
    assert list(scores.columns) == [0, 1]
    assert scores.isna().all(axis=None)


@pytest.mark.parametrize(("metrics", "message"), [
    ([rv.metrics.MAE()], "mae is for regression, and the data are for classification"),
    ([rv.metrics.F1(), rv.metrics.F1("macro")], "two are named 'f1'"),
    ({"loss": rv.metrics.LogLoss()}, "'loss' is the name of another quantity"),
    ({"accuracy": rv.metrics.LogLoss()}, "'accuracy' is the name of the score of the loss"),
    ([rv.metrics.from_function(lambda labels, predictions: 0.5, name="accuracy")], "'accuracy' is the name of"),
    ({1: rv.metrics.LogLoss()}, "the name 1 must be a text"),
])
def test_unfitting_metrics_are_refused(data, metrics, message):
    with pytest.raises(InputError, match=message):
        rv.simulate(rv.local(SOLVER), rv.models.logistic(2, 2), data, rounds=1, metrics=metrics, progress=False)


def test_metrics_need_probabilities_and_data(data):
    def hinge(outputs, y):
        return jnp.maximum(0, 1 - (2 * y - 1) * outputs)

    model = rv.models.from_functions(lambda key: jnp.zeros(2), lambda w, x: x @ w, loss=hinge)
    with pytest.raises(InputError, match="roc_auc needs probabilities of classes, and the loss SampleLoss"):
        rv.simulate(rv.local(SOLVER), model, data, rounds=1, metrics=[rv.metrics.ROCAUC()], progress=False)
    problem = rv.problems.least_squares(parties=2, features=2)
    with pytest.raises(InputError, match="metrics are computed from predictions"):
        rv.simulate(rv.fedavg(rv.solvers.GD(0.1, steps=1)), problem, rounds=1, metrics=METRICS, progress=False)
