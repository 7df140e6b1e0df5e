"""Fitted models: what they predict is what the model computes on the encoded rows; and models as plain values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import f1_score, log_loss, roc_auc_score

import nightly
import resolvent as rv
from resolvent.data.images_text.array_encoding import ArrayEncoding
from resolvent.predict.fitted import Fitted
from resolvent.problem.models.descriptions import describe, model_from_description
from resolvent.problem.models.networks import CNN, LSTM

ROWS = np.random.default_rng(0).normal(size=(1100, 3)).astype(np.float32)


def classifier(classes):
    model = rv.models.logistic(3, len(classes))
    params = jax.tree.map(lambda leaf: jax.random.normal(jax.random.key(1), leaf.shape), model.init(jax.random.key(0)))
    return Fitted(model, params, ArrayEncoding((3,), "classification", classes))


@pytest.mark.parametrize("classes", [("no", "yes"), ("cat", "dog", "owl")])
def test_classes_and_their_probabilities_are_those_of_the_logits(classes):
    """More rows than are predicted at a time; and a single one gives the same."""
    fitted = classifier(classes)
    logits = ROWS @ np.asarray(fitted.params["weight"]).T + np.asarray(fitted.params["bias"])
    logits = np.hstack([np.zeros_like(logits), logits]) if len(classes) == 2 else logits
    odds = np.exp(logits)
    np.testing.assert_allclose(fitted.predict_proba(ROWS), odds / odds.sum(axis=1, keepdims=True), rtol=1e-4)
    predicted = fitted.predict(ROWS)
    np.testing.assert_array_equal(predicted, np.array(classes)[logits.argmax(axis=1)])
    assert fitted.predict(ROWS[7:8]) == predicted[7]
    assert fitted.evaluate(ROWS, predicted)["accuracy"] == 1
    assert fitted.evaluate(ROWS, [classes[0]] * 1100)["accuracy"] == np.mean(predicted == classes[0])


def test_metrics_of_rows_are_those_of_their_definitions():
    fitted = classifier(("cat", "dog", "owl"))
    rows, labels = ROWS[:200], np.array(fitted.classes)[np.arange(200) % 3]
    named = {"auc": rv.metrics.ROCAUC(), "f1": rv.metrics.F1(average="macro"), "accuracy": rv.metrics.Accuracy()}
    scores = fitted.evaluate(rows, labels, metrics=named)
    probabilities, predicted = fitted.predict_proba(rows), fitted.predict(rows)
    assert list(scores) == ["rows", "loss", "accuracy", "auc", "f1"]
    expected = [200, log_loss(labels, probabilities), np.mean(predicted == labels),
                roc_auc_score(labels, probabilities, multi_class="ovr"), f1_score(labels, predicted, average="macro")]
    np.testing.assert_allclose(list(scores.values()), expected, rtol=1e-5)
    assert (scores.table["low"] < scores.table["value"]).all()
    assert (scores.table["value"] < scores.table["high"]).all()
    nearly_perfect = fitted.evaluate(rows, predicted, metrics=named).intervals["auc"]
    assert nearly_perfect.high <= 1
    assert np.isnan(fitted.evaluate(rows[:5], ["cat"] * 5, metrics=[rv.metrics.ROCAUC()])["roc_auc"])
    assert "<td>auc</td>" in scores._repr_html_()


def test_an_interval_of_a_score_is_that_of_comparisons():
    """Close to the interval of Agresti and Coull, as long as all rows have the same weight; wider for fewer rows."""
    fitted = classifier(("no", "yes"))
    labels = np.where(np.arange(80) % 10 < 8, fitted.predict(ROWS[:80]), "no")
    scores = fitted.evaluate(ROWS[:80], labels)
    n, p = 84, (80 * scores["accuracy"] + 2) / 84
    half = 1.96 * np.sqrt(p * (1 - p) / n)
    np.testing.assert_allclose(scores.intervals["accuracy"][1:], [p - half, p + half], atol=0.03)
    few = fitted.evaluate(ROWS[:8], labels[:8]).intervals["accuracy"]
    assert few.high - few.low > 4 * half
    assert fitted.evaluate(ROWS[:80], labels).intervals == scores.intervals


def test_class_weights_count_in_the_loss_alone():
    fitted = classifier(("no", "yes"))
    rows, labels = ROWS[:100], np.array(["no"] * 90 + ["yes"] * 10)
    losses = -np.log(fitted.predict_proba(rows)[np.arange(100), (labels == "yes").astype(int)])
    balanced = fitted.evaluate(rows, labels, class_weight="balanced")
    assert balanced["loss"] == pytest.approx((losses[:90].mean() + losses[90:].mean()) / 2, rel=1e-4)
    assert balanced["accuracy"] == fitted.evaluate(rows, labels)["accuracy"]
    named = fitted.evaluate(rows, labels, class_weight={"no": 0, "yes": 3})
    assert named["loss"] == pytest.approx(losses[90:].mean(), rel=1e-4)


@pytest.mark.parametrize(("settings", "message"), [
    ({"metrics": [rv.metrics.MAE()]}, "mae is for regression, and the data are for classification"),
    ({"metrics": {"accuracy": rv.metrics.LogLoss()}}, "'accuracy' is the name of the score of the loss"),
    ({"class_weight": "even"}, "'even' is not known: use balanced"),
    ({"class_weight": {"no": 1}}, "class 'yes' has no weight"),
    ({"class_weight": {"no": -1, "yes": 1}}, "must be finite numbers that are not negative"),
    ({"labels": None}, "arrays have no label column: give the labels"),
])
def test_scores_that_cannot_be_computed_are_refused(settings, message):
    arguments = {"rows": ROWS[:2], "labels": ["no", "yes"]} | settings
    with pytest.raises(rv.InputError, match=message):
        classifier(("no", "yes")).evaluate(**arguments)


def test_numbers_are_predicted_for_regression_and_no_probabilities():
    fitted = Fitted(rv.models.linear(3), {"weight": jnp.array([[1.0, 2, 3]]), "bias": jnp.array([4.0])},
                    ArrayEncoding((3,), "regression"))
    np.testing.assert_allclose(fitted.predict(ROWS), ROWS @ [1, 2, 3] + 4, rtol=1e-4, atol=1e-5)
    assert fitted.evaluate(ROWS, ROWS @ [1, 2, 3])["squared_error"] == pytest.approx(16, rel=1e-5)
    with pytest.raises(rv.InputError, match="SquaredError defines no probabilities of classes"):
        fitted.predict_proba(ROWS)


def test_unusual_rows_are_predicted_with_a_warning():
    fitted = Fitted(rv.models.linear(3), rv.models.linear(3).init(jax.random.key(0)),
                    ArrayEncoding((3,), "regression", low=-4.0, high=4.0))
    fitted.predict(ROWS)
    with pytest.warns(rv.UnusualRowsWarning, match=r"'input': 2 of 2 rows lie far outside .* range, -4 to 4"):
        fitted.predict(np.full((2, 3), 100.0))
    assert fitted.check(np.full((2, 3), 100.0)).far[0][1].rows == 2


def test_double_precision_is_that_of_the_parameters():
    with jax.enable_x64(True):
        params = {"weight": jnp.ones((1, 3)), "bias": jnp.array([1e-9])}
    fitted = Fitted(rv.models.linear(3), params, ArrayEncoding((3,), "regression"))
    np.testing.assert_allclose(fitted.predict(np.zeros((1, 3))), [1e-9], rtol=1e-12)
    np.testing.assert_allclose(fitted.predict(ROWS), ROWS.astype(float).sum(axis=1) + 1e-9, rtol=1e-12)


def test_a_model_of_other_classes_is_refused_and_an_unknown_loss_has_no_probabilities():
    model = rv.models.logistic(3, 4)
    with pytest.raises(rv.InputError, match=r"outputs of shape \(4,\), and the data have 3 classes"):
        Fitted(model, model.init(jax.random.key(0)), ArrayEncoding((3,), "classification", ("a", "b", "c")))
    hinge = rv.models.from_functions(lambda key: jnp.zeros(3), lambda w, x: x @ w,
                                     loss=lambda outputs, y: jnp.maximum(0, 1 - outputs * (2 * y - 1)))
    fitted = Fitted(hinge, jnp.ones(3), ArrayEncoding((3,), "classification", ("a", "b")))
    assert fitted.outputs(ROWS).shape == (1100,)
    # The class with the smallest loss.
    np.testing.assert_array_equal(fitted.predict(ROWS), np.where(fitted.outputs(ROWS) > 0, "b", "a"))
    with pytest.raises(rv.InputError, match="SampleLoss defines no probabilities"):
        fitted.predict_proba(ROWS)


# Functions: lora draws the model that it adapts, and a list of models would be built whenever tests are collected.
MODELS = {
    "linear": lambda: rv.models.linear(3, l2=0.5),
    "logistic": lambda: rv.models.logistic(4, 3),
    "mlp": lambda: rv.models.mlp(3, 2, width=5, depth=2),
    "several labels": lambda: rv.models.linear(3, targets=2),
    "structured": lambda: rv.models.logistic(4, 3, task="structured"),
    "lora": lambda: rv.models.lora(rv.models.mlp(6, 3, width=5), rank=2, layers="layer 0", trained="layer 1", l2=0.1),
    "cnn": lambda: rv.models.mnist_cnn((16, 16), 10),
    "lstm": lambda: rv.models.char_lstm(3, ("a", "b", "c"), width=4),
    "lstm of vectors": lambda: LSTM(
        loss=rv.models.logistic(2, 2).loss, l2=0.0, tokens=2, embedding=3, width=4, depth=1, outputs=1,
        vectors=jnp.arange(6.0).reshape(2, 3)),
    "lora of a cnn": lambda: rv.models.lora(rv.models.mnist_cnn((16, 16), 10), rank=2, layers="layer *", frozen_a=True),
}


@nightly.parametrize("name", MODELS, per_commit=len(MODELS) - 1, others=nightly.WHEN_CHANGED)
def test_a_model_of_the_library_is_the_same_after_a_round_trip(name):
    import json

    model = MODELS[name]()
    settings, arrays = describe(model)
    again = model_from_description(json.loads(json.dumps(settings)), arrays)
    assert jax.tree.structure(again) == jax.tree.structure(model)
    assert all(map(np.array_equal, jax.tree.leaves(again), jax.tree.leaves(model)))


@pytest.mark.when_changed
def test_models_of_the_user_have_no_description():
    class Mine(CNN):
        pass

    assert describe(rv.models.from_functions(lambda key: jnp.zeros(3), lambda w, x: x @ w)) is None
    cnn = rv.models.mnist_cnn((16, 16), 10)
    assert describe(Mine(cnn.loss, cnn.l2, cnn.shape, cnn.channels, cnn.kernel, cnn.hidden, cnn.outputs,
                         cnn.normalise)) is None
    with pytest.raises(rv.InputError, match="the saved model 'Transformer' is not known to this version"):
        model_from_description({"kind": "Transformer", "loss": "CrossEntropy"}, {})
