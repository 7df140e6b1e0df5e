"""The ridge path is scikit-learn's on the same folds, and careful local training uses it, or stops early."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegressionCV, Ridge

import nightly
import resolvent as rv
from resolvent.algorithms.combinators.ridge_path import STRENGTHS
from resolvent.comparisons.after.advised import chosen_method
from resolvent.comparisons.after.refit_folder import provenance
from resolvent.comparisons.runs.summary import Source, summarize
from resolvent.problem.ridge_path import Folds, fit_ridge_path

ROWS, FEATURES, FOLDS = 100, 4, 5
SALT = np.uint32(7)


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


@partial(jax.jit, static_argnames="number")
def fit(problem, k, number=FOLDS):
    w0 = problem.init(jax.random.key(0))
    return fit_ridge_path(problem.oracle(k), w0, Folds(number, jnp.asarray(SALT)), jnp.asarray(STRENGTHS))


def problem_of(classes):
    """Two parties; the labels depend on the inputs."""
    rng = np.random.default_rng(classes)
    x = rng.normal(size=(2, ROWS, FEATURES))
    outputs = x @ rng.normal(0, 0.7, size=(FEATURES, max(classes, 1))) + rng.gumbel(size=(2, ROWS, max(classes, 1)))
    y = outputs.argmax(axis=-1) if classes > 1 else outputs[..., 0]
    data = rv.FederatedData.from_arrays([*x], [*y], test=0.0, validation=0.0)
    model = rv.models.logistic(FEATURES, classes) if classes > 1 else rv.models.linear(FEATURES)
    return rv.problems.LearningProblem(model, data)


def rows_of(problem, k):
    first = int(problem.offset[0, k])
    return (np.asarray(leaf)[first:first + int(problem.sizes[k])] for leaf in (problem.x, problem.y))


def splits(rows=ROWS):
    fold = np.asarray(Folds(FOLDS, jnp.asarray(SALT)).of(jnp.arange(rows)))
    assert np.bincount(fold).tolist() == [rows // FOLDS] * FOLDS
    assert len({tuple(group) for group in fold.reshape(-1, FOLDS)}) > 1  # not the same order everywhere
    return [(np.flatnonzero(fold != j), np.flatnonzero(fold == j)) for j in range(FOLDS)]


@pytest.mark.when_changed
@nightly.parametrize("classes", [3, 2], others=nightly.WHEN_CHANGED)
def test_logistic_regression_is_that_of_scikit_learn(classes):
    problem = problem_of(classes)
    x, y = rows_of(problem, 1)
    strength = {"Cs": [1 / r for r in STRENGTHS], "cv": splits(), "scoring": "neg_log_loss",
                "l1_ratios": (0,), "use_legacy_attributes": False}
    expected = LogisticRegressionCV(**strength, tol=1e-12, max_iter=10_000).fit(x, y)
    model, strength = fit(problem, jnp.array(1))
    assert float(strength) == pytest.approx(1 / float(expected.C_))
    coefficients = expected.coef_, expected.intercept_
    for name, values in zip(("weight", "bias"), coefficients, strict=True):
        np.testing.assert_allclose(model[name], values, atol=1e-6)


def test_least_squares_is_ridge_regression():
    problem = problem_of(1)
    x, y = rows_of(problem, 0)

    def error(r):
        return sum(np.sum((y[test] - Ridge(r).fit(x[train], y[train]).predict(x[test])) ** 2)
                   for train, test in splits())

    best = min(STRENGTHS, key=error)
    expected = Ridge(best).fit(x, y)
    model, strength = fit(problem, jnp.array(0))
    assert float(strength) == pytest.approx(best)
    np.testing.assert_allclose(model["weight"][0], expected.coef_, rtol=1e-9)
    np.testing.assert_allclose(model["bias"][0], expected.intercept_, rtol=1e-9)


def test_noise_is_predicted_by_the_most_frequent_class_and_a_class_without_rows_by_half_a_row():
    """Labels that the inputs do not predict; the second party has no row of the last class."""
    problem = problem_of(3)
    rng = np.random.default_rng(5)
    y = rng.permutation(np.repeat([0, 1, 2], [60, 30, 10]))
    problem = problem.with_samples(problem.x, jnp.asarray([*y, *np.where(y == 2, 0, y)]),
                                   problem.offset, problem.length, problem.sizes)
    model, strength = fit(problem, jnp.array(0))
    assert np.isinf(strength)
    assert not np.asarray(model["weight"]).any()
    np.testing.assert_allclose(jax.nn.softmax(model["bias"]), [0.6, 0.3, 0.1], atol=1e-8)
    model, _ = fit(problem, jnp.array(1))
    assert not np.asarray(model["weight"][2]).any()
    np.testing.assert_allclose(jax.nn.softmax(model["bias"]), np.array([70, 30, 0.5]) / 100.5, rtol=1e-3)


@pytest.mark.when_changed
def test_a_class_without_rows_is_never_predicted_and_careful_training_beats_untuned_training():
    """Sites with 2 to 73 training rows of five of ten classes, where the model is less certain of other rows."""
    data = rv.datasets.digits(parties=30, classes_per_party=5, size_spread=1.0, outliers=1, test=0.4)
    solver, model = rv.SGD(0.05, batch_size=20, epochs=2), rv.models.logistic(64, 10)
    careful = rv.simulate(rv.careful_local(solver), model, data, rounds=1, progress=False)
    models = careful.models_of(np.arange(30))
    for k in range(30):
        (_, y), (x, _) = data.party(k), data.party(k, "test")
        logits = x.reshape(len(x), -1) @ np.asarray(models["weight"][k]).T + np.asarray(models["bias"][k])
        seen = np.bincount(y, minlength=10) > 0
        assert seen[logits.argmax(axis=1)].all()
        odds = np.exp(logits[:, ~seen]) / np.exp(logits[:, seen]).sum(axis=1, keepdims=True)
        assert odds.max(initial=0) <= 1.001 / (2 * len(y))

    def last(result, metric):
        table = result.metrics[(result.metrics["metric"] == metric) & (result.metrics["split"] == "test")]
        return table[table["round"] == table["round"].max()]["value"].mean()

    untuned = rv.simulate(rv.local(solver), model, data, rounds=60, progress=False)
    assert last(careful, "accuracy") > last(untuned, "accuracy") + 0.01
    assert last(careful, "loss") < last(untuned, "loss") - 0.2


@pytest.mark.when_changed
def test_careful_local_training_of_a_linear_model_is_solved_in_its_first_round():
    problem = problem_of(2)
    result = rv.simulate(rv.careful_local(rv.SGD(0.1)), problem, rounds=2, evaluate_every=1, progress=False)
    losses = result.metrics[(result.metrics["metric"] == "loss") & (result.metrics["split"] == "train")]
    by_round = losses.pivot_table(index="round", columns="party", values="value").to_numpy()
    assert (by_round[1] < by_round[0]).all()
    assert by_round[2].tolist() == by_round[1].tolist()
    for k in range(2):
        x, y = rows_of(problem, k)
        model = result.personal_model(k)
        r = min(STRENGTHS, key=lambda s: _gradient_norm(model, x, y, s))
        assert _gradient_norm(model, x, y, r) < 1e-6


def _gradient_norm(model, x, y, r):
    """Of the sum of the log losses and r |W|^2 / 2."""
    error = 1 / (1 + np.exp(-(x @ model["weight"][0] + model["bias"][0]))) - y
    return np.linalg.norm([*(x.T @ error + r * model["weight"][0]), error.sum()])


@pytest.mark.when_changed
def test_careful_local_training_of_a_network_is_the_best_of_all_rounds_and_rates_on_validation_rows():
    data = rv.datasets.digits(parties=2, classes_per_party=4, seed=0)
    model, solver = rv.models.mlp(64, 10, width=4), rv.SGD(0.3, batch_size=16, epochs=1)
    settings = {"rounds": 6, "seed": 0, "evaluate_every": 1, "progress": False}
    tables = [rv.simulate(rv.local(rv.SGD(rate, batch_size=16, epochs=1)), model, data, **settings).metrics
              for rate in (0.3, 0.09, 3.0)]
    careful = rv.simulate(rv.careful_local(solver, rates=(1.0, 0.3, 10.0)), model, data, **settings).metrics

    def losses(table, split):
        rows = table[(table["metric"] == "loss") & (table["split"] == split)]
        return rows.pivot_table(index="round", columns="party", values="value", dropna=False).to_numpy()

    held_out = np.stack([losses(table, "validation") for table in tables]).reshape(-1, 2)  # [rate and round, party]
    tested = np.stack([losses(table, "test") for table in tables]).reshape(-1, 2)
    best = np.nanargmin(held_out, axis=0)
    np.testing.assert_allclose(losses(careful, "test")[-1], tested[best, [0, 1]], rtol=1e-6)
    assert (best != 6).any()  # the solver's own rate to the end is not the best


def test_wrong_settings_are_refused():
    for settings, message in (({"rates": ()}, "no learning rates"), ({"rates": (0.0,)}, "rates"),
                              ({"folds": 1}, "folds")):
        with pytest.raises(rv.InputError, match=message):
            rv.careful_local(rv.SGD(0.1), **settings)


@pytest.mark.when_changed
def test_it_is_the_reference_of_a_comparison_and_untuned_training_alone_is_shown_but_advised_to_nobody():
    data = rv.FederatedData.from_arrays([np.arange(40.0).reshape(-1, 2)] * 2, [np.arange(20.0)] * 2)
    methods = {"FedAvg": rv.fedavg(rv.solvers.GD(1e-4)), "alone": rv.careful_local(rv.SGD(0.1))}
    comparison = rv.compare({"untuned": rv.local(rv.SGD(0.1)), **methods}, rv.models.linear(2), data, rounds=1,
                            progress=False)
    assert comparison.alone == "alone"  # the tuned one of two
    assert comparison.evidence.candidates == ("FedAvg",)
    record = summarize(Source("t", None, dict.fromkeys(comparison.results, "x"), ""), comparison)
    assert [record.marked(label) for label in record.methods] == ["untuned (collapsed)", "FedAvg", "alone"]
    assert [method.is_bound for method in record.methods.values()] == [True, False, True]
    assert chosen_method(replace(record, federation=None)) == "FedAvg"  # a refit trains no reference
    assert ["other site" in provenance(record, None, label, "party 0") for label in record.methods] == [
        False, True, False]
