"""Metrics: scikit-learn's values, where they are defined, and the predictions of every party that they read."""

import math
from dataclasses import field

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import metrics as reference

import resolvent as rv
from resolvent.errors import InputError
from resolvent.metrics import Predictions
from resolvent.predict.party_predictions import predictions_of_parties
from resolvent.problem.metrics.metric import settings_of
from resolvent.problem.subset import Gatherer

METRICS = rv.metrics


def predictions(classes, n=60, seed=0):
    """Probabilities with two decimals, so that many are equal."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(classes), n).round(2).astype(np.float32)
    p = np.maximum(p, 0.01) / np.maximum(p, 0.01).sum(axis=1, keepdims=True)
    return Predictions(rng.integers(0, classes, n), p.argmax(axis=1), p, np.log(p))


def over_classes(score, p):
    classes = [1] if p.probabilities.shape[1] == 2 else range(p.probabilities.shape[1])
    return np.mean([score(p.labels == c, p.probabilities[:, c]) for c in classes])


def brier(p):
    onehot = np.eye(p.probabilities.shape[1])[p.labels]
    of_all = sum(reference.brier_score_loss(onehot[:, c], p.probabilities[:, c]) for c in range(onehot.shape[1]))
    return of_all / 2 if onehot.shape[1] == 2 else of_all


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize(("metric", "expected"), [
    (METRICS.Accuracy(), lambda p: reference.accuracy_score(p.labels, p.predicted)),
    (METRICS.BalancedAccuracy(), lambda p: reference.balanced_accuracy_score(p.labels, p.predicted)),
    (METRICS.ROCAUC(), lambda p: over_classes(reference.roc_auc_score, p)),
    (METRICS.AveragePrecision(), lambda p: over_classes(reference.average_precision_score, p)),
    (METRICS.F1("macro"), lambda p: reference.f1_score(p.labels, p.predicted, average="macro")),
    (METRICS.F1("weighted"), lambda p: reference.f1_score(p.labels, p.predicted, average="weighted")),
    (METRICS.F1(), lambda p: reference.f1_score(
        p.labels, p.predicted, average="binary" if p.probabilities.shape[1] == 2 else "macro")),
    (METRICS.LogLoss(), lambda p: reference.log_loss(p.labels, p.probabilities)),
    (METRICS.BrierScore(), brier),
], ids=lambda x: getattr(x, "name", ""))
def test_classification_metrics_are_those_of_scikit_learn(metric, expected, classes):
    p = predictions(classes)
    assert metric.value(p) == pytest.approx(expected(p), rel=1e-6)


def test_regression_metrics_are_those_of_scikit_learn():
    rng = np.random.default_rng(1)
    y, z = rng.normal(size=40), rng.normal(size=40)
    p = Predictions(y, z, None, z)
    assert METRICS.MAE().value(p) == pytest.approx(reference.mean_absolute_error(y, z))
    assert METRICS.RMSE().value(p) == pytest.approx(reference.root_mean_squared_error(y, z))
    assert METRICS.R2().value(p) == pytest.approx(reference.r2_score(y, z))


def test_calibration_error_by_its_definition():
    p = predictions(3, n=200)
    confidence, is_right = p.probabilities.max(axis=1).astype(float), p.predicted == p.labels
    expected = 0.0
    for low in np.arange(10) / 10:
        in_bin = (confidence > low) & (confidence <= low + 0.1)
        if in_bin.any():
            expected += in_bin.mean() * abs(is_right[in_bin].mean() - confidence[in_bin].mean())
    assert METRICS.CalibrationError().value(p) == pytest.approx(expected)
    certain = np.eye(3)[p.labels]
    assert METRICS.CalibrationError().value(Predictions(p.labels, p.labels, certain, certain)) == 0


def test_metrics_that_compare_classes_are_not_defined_for_one_class():
    p = predictions(2)._replace(labels=np.zeros(60, int))
    assert math.isnan(METRICS.ROCAUC().value(p))
    assert math.isnan(METRICS.AveragePrecision().value(p))
    assert math.isnan(METRICS.BalancedAccuracy().value(p))  # errors on other classes are unknown
    constant = Predictions(np.ones(5), np.ones(5), None, np.ones(5))
    assert math.isnan(METRICS.R2().value(constant))


def test_own_function_gets_what_its_second_parameter_names():
    def probability(labels, probabilities, label=1):
        return probabilities[labels == label, label].mean()

    metric = METRICS.from_function(probability, settings={"label": 2}, higher_is_better=True)
    p = predictions(3)
    assert metric.value(p) == pytest.approx(p.probabilities[p.labels == 2, 2].mean())
    assert (metric.name, metric.needs_probabilities) == ("probability", True)
    with pytest.raises(InputError, match="no parameter 'class_'"):
        METRICS.from_function(probability, settings={"class_": 1})
    with pytest.raises(InputError, match="second one of predictions, probabilities, outputs"):
        METRICS.from_function(lambda y, z: 0)
    with pytest.raises(InputError, match=r"'fails' cannot be computed for 60 samples: ZeroDivisionError"):
        METRICS.from_function(lambda labels, predictions: 1 / 0, name="fails", higher_is_better=False).value(p)


def test_a_score_of_ones_own_states_its_direction():
    def kind(base, **attributes):
        return type("Own", (base,), attributes)

    unknown = "whether a larger .* is better is not known: set higher_is_better"
    loss = {"loss": lambda self, outputs, y: outputs}
    for make in (lambda: METRICS.from_function(lambda labels, predictions: 0.0, name="cost"),
                 lambda: settings_of(lambda labels, predictions: 0.0)(),
                 lambda: kind(METRICS.MAE, name="cost"), lambda: kind(METRICS.Accuracy, name=field(default="cost")),
                 lambda: kind(rv.losses.Loss, score_name="utility", **loss),
                 lambda: kind(rv.losses.CrossEntropy, score_name="utility"),
                 lambda: kind(rv.losses.Loss, score_name=property(lambda self: "accuracy"), **loss)):
        with pytest.raises(InputError, match=unknown):
            make()
    with pytest.raises(InputError, match="Own has a score without a name"):
        kind(rv.losses.Loss, score=lambda self, outputs, y: outputs, **loss)
    assert [kind(rv.losses.Loss, score_name=name, **loss).higher_is_better for name in ("accuracy", "rmse")] == [
        True, False]
    assert [METRICS.from_function(lambda labels, predictions: 0.0, name=name).higher_is_better
            for name in ("f1", "log_loss")] == [True, False]
    assert [METRICS.higher_is_better(name) for name in ("global_accuracy", "gap")] == [True, False]


class _Structured(rv.losses.Loss):
    score_name = "accuracy"

    def loss(self, outputs, y):
        return rv.losses.CrossEntropy().loss(outputs["logits"], y) + 0.01 * outputs["penalty"]

    def score(self, outputs, y):
        return rv.losses.CrossEntropy().score(outputs["logits"], y)


@pytest.mark.when_changed
def test_outputs_of_several_arrays_are_compared_measured_and_predicted():
    def model(loss, structure):
        return rv.models.from_functions(lambda key: jnp.zeros((2, 3)), lambda w, x: structure(x @ w), loss=loss)

    rng = np.random.default_rng(0)
    x = [rng.normal(size=(12, 2)) for _ in range(2)]
    data = rv.FederatedData.from_arrays(x, [np.arange(12) % 3] * 2, test=0.5, validation=0.2)
    plain = model(rv.losses.CrossEntropy(), lambda logits: logits)
    several = model(_Structured(), lambda logits: {"logits": logits, "penalty": jnp.zeros(len(logits))})
    metrics = [METRICS.BalancedAccuracy(), METRICS.F1()]
    methods, runs = {"FedAvg": rv.fedavg(rv.SGD(0.1, epochs=1)), "alone": rv.local(rv.SGD(0.1, epochs=1))}, []
    for kind in (plain, several):
        compared = rv.compare(methods, kind, data, rounds=2, metrics=metrics, progress=False)
        run = compared.results["FedAvg"]
        fitted = run.fitted()
        rows, labels = data.party(0, "test")
        runs.append((compared.table("markdown").split("Mean")[0], fitted.predict(rows).tolist(),
                     {**fitted.evaluate(rows, labels, metrics=metrics)}))
    assert runs[0][:2] == runs[1][:2]
    assert runs[0][2] == pytest.approx(runs[1][2])
    with pytest.raises(InputError, match="defines no probabilities"):
        fitted.predict_proba(rows)
    with pytest.raises(InputError, match="outputs that are one array of predicted numbers"):
        METRICS.MAE().value(Predictions(np.zeros(2), {"mean": np.zeros(2)}, None, {"mean": np.zeros(2)}))


def test_samples_of_which_nothing_counts_have_no_score():
    tokens = np.array([[0, 1], [1, 0], [-1, -1]])
    several = {"labels": np.array([[0, 1], [1, 0], [1, 1]]), "mask": np.array([[1, 1], [0, 1], [0, 0]])}
    for loss, labels, outputs, what in ((rv.losses.TokenCrossEntropy(), tokens, np.zeros((3, 2, 2)), "token"),
                                        (rv.losses.MultiLabelCrossEntropy(), several, np.zeros((3, 2)), "label")):
        with pytest.raises(InputError, match=f"sample 2 of the data has no {what} that counts"):
            loss.check_labels(labels, outputs)
    wrong = Predictions(several, 1 - several["labels"], None, np.zeros((3, 2)))
    assert METRICS.ExactMatch().value(wrong) == 0
    none = {"labels": several["labels"], "mask": np.zeros((3, 2))}
    assert math.isnan(METRICS.ExactMatch().value(wrong._replace(labels=none)))


@pytest.mark.parametrize("is_subset", [False, True])
def test_predictions_of_every_party_are_those_of_its_model(is_subset):
    """Blocks of rows of several parties: against the model applied to each party's rows."""
    rng = np.random.default_rng(2)
    sizes = (70, 5, 130)
    data = rv.FederatedData.from_arrays([rng.normal(size=(n, 4)) for n in sizes],
                                        [rng.integers(0, 3, n) for n in sizes], test=0.3, classes=list("012"))
    model = rv.models.logistic(4, 3)
    problem = rv.problems.LearningProblem(model, data, block=8)
    if is_subset:
        gathered = Gatherer(model, data)(np.array([0, 1, 2], np.int32), 3)
        problem = jax.tree.map(jax.numpy.asarray, gathered)
    keys = jax.random.split(jax.random.key(0))
    models = {"weight": jax.random.normal(keys[0], (2, 3, 4)), "bias": jax.random.normal(keys[1], (2, 3))}
    parties, choice = np.array([0, 1, 2]), np.array([1, 0, 1])
    results = list(predictions_of_parties(problem, models, choice, parties, ("validation", "test"), "classification"))
    assert {(r.position, r.split) for r in results} == {(k, s) for k in range(3) for s in ("validation", "test")}
    for r in results:
        x, y = data.party(int(parties[r.position]), r.split)
        weight, bias = (np.asarray(models[name][choice[r.position]]) for name in ("weight", "bias"))
        outputs = x.astype(np.float32) @ weight.T + bias
        np.testing.assert_array_equal(r.predictions.labels, y)
        np.testing.assert_allclose(r.predictions.outputs, outputs, atol=1e-5)
        np.testing.assert_array_equal(r.predictions.predicted, outputs.argmax(axis=1))
        np.testing.assert_allclose(r.predictions.probabilities, jax.nn.softmax(outputs), atol=1e-5)
