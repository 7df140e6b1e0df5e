"""Fitted models: what they predict is what the model computes on the encoded rows; and models as plain values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import resolvent as rv
from resolvent.data.array_encoding import ArrayEncoding
from resolvent.problem.fitted import Fitted
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


def test_a_model_of_other_classes_or_an_unknown_loss_is_refused():
    model = rv.models.logistic(3, 4)
    with pytest.raises(rv.InputError, match=r"outputs of shape \(4,\), and the data have 3 classes"):
        Fitted(model, model.init(jax.random.key(0)), ArrayEncoding((3,), "classification", ("a", "b", "c")))
    hinge = rv.models.from_functions(lambda key: jnp.zeros(3), lambda w, x: x @ w,
                                     loss=lambda outputs, y: jnp.maximum(0, 1 - outputs * (2 * y - 1)))
    fitted = Fitted(hinge, jnp.ones(3), ArrayEncoding((3,), "classification", ("a", "b")))
    assert fitted.outputs(ROWS).shape == (1100,)
    with pytest.raises(rv.InputError, match="SampleLoss defines no probabilities"):
        fitted.predict(ROWS)


@pytest.mark.parametrize("model", [
    rv.models.linear(3, l2=0.5), rv.models.logistic(4, 3), rv.models.mlp(3, 2, width=5, depth=2),
    rv.models.mnist_cnn((16, 16), 10), rv.models.char_lstm(3, ("a", "b", "c"), width=4),
    LSTM(loss=rv.models.logistic(2, 2).loss, l2=0.0, tokens=2, embedding=3, width=4, depth=1, outputs=1,
         vectors=jnp.arange(6.0).reshape(2, 3))], ids=lambda m: type(m).__name__)
def test_a_model_of_the_library_is_the_same_after_a_round_trip(model):
    import json

    settings, arrays = describe(model)
    again = model_from_description(json.loads(json.dumps(settings)), arrays)
    assert jax.tree.structure(again) == jax.tree.structure(model)
    assert all(map(np.array_equal, jax.tree.leaves(again), jax.tree.leaves(model)))


def test_models_of_the_user_have_no_description():
    class Mine(CNN):
        pass

    assert describe(rv.models.from_functions(lambda key: jnp.zeros(3), lambda w, x: x @ w)) is None
    cnn = rv.models.mnist_cnn((16, 16), 10)
    assert describe(Mine(cnn.loss, cnn.l2, cnn.shape, cnn.channels, cnn.kernel, cnn.hidden, cnn.outputs,
                         cnn.normalise)) is None
    with pytest.raises(rv.InputError, match="the saved model 'Transformer' is not known to this version"):
        model_from_description({"kind": "Transformer", "loss": "CrossEntropy"}, {})
