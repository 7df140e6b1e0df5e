"""Metrics and predictions of sequences, several labels, vectors and embeddings, against plain Python."""

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import f1_score, r2_score

import nightly
import resolvent as rv
from resolvent.errors import InputError
from resolvent.metrics import Predictions

RNG = np.random.default_rng(0)


def sequences(n=7, length=5, classes=3):
    z = RNG.normal(size=(n, length, classes))
    p = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    y = np.where(np.arange(length) < RNG.integers(1, length + 1, n)[:, None], RNG.integers(0, classes, (n, length)), -1)
    return Predictions(y, z.argmax(-1), p, z)


def test_tokens():
    part = sequences()
    tokens = [(part.labels[i, t], part.predicted[i, t], part.probabilities[i, t])
              for i in range(7) for t in range(5) if part.labels[i, t] >= 0]
    assert rv.metrics.TokenAccuracy().value(part) == pytest.approx(np.mean([y == p for y, p, _ in tokens]))
    logs = [np.log(p[y]) for y, _, p in tokens]
    assert rv.metrics.Perplexity().value(part) == pytest.approx(np.exp(-np.mean(logs)))
    masked = part._replace(labels={"labels": np.maximum(part.labels, 0), "mask": part.labels >= 0})
    assert rv.metrics.Perplexity().value(masked) == rv.metrics.Perplexity().value(part)
    nothing = part._replace(labels=np.full((7, 5), -1))
    assert np.isnan(rv.metrics.TokenAccuracy().value(nothing))


@nightly.parametrize("average", ["micro", "macro"])
def test_several_labels(average):
    y, p = RNG.integers(0, 2, (2, 30, 4))
    part = Predictions(y, p, p.astype(float), p - 0.5)
    assert rv.metrics.MultiLabelF1(average).value(part) == pytest.approx(f1_score(y, p, average=average))
    assert rv.metrics.ExactMatch().value(part) == pytest.approx((y == p).all(axis=1).mean())


def test_vectors():
    y, p = RNG.normal(size=(2, 20, 3))
    y[:, 2] = 1.0  # a target that does not vary has no R2
    part = Predictions(y, p, None, p)
    assert rv.metrics.R2().value(part) == pytest.approx(r2_score(y[:, :2], p[:, :2]))
    assert rv.metrics.MAE().value(part) == pytest.approx(np.abs(y - p).mean())
    assert rv.metrics.RMSE().value(part) == pytest.approx(np.sqrt(np.square(y - p).mean()))


@nightly.parametrize("k", [2, 1, 100])
def test_retrieval(k):
    z, kinds = RNG.normal(size=(15, 2, 3)), RNG.integers(0, 3, 15)

    def cosine(a, b):
        return a @ b / np.linalg.norm(a) / np.linalg.norm(b)

    nearest = [sorted(range(15), key=lambda j, i=i: -cosine(z[i, 0], z[j, 1]))[:k] for i in range(15)]
    pairs = Predictions(None, z, None, z)
    assert rv.metrics.RecallAtK(k).value(pairs) == pytest.approx(np.mean([i in row for i, row in enumerate(nearest)]))
    nearest = [sorted((j for j in range(15) if j != i), key=lambda j, i=i: -cosine(z[i, 0], z[j, 0]))[:k]
               for i in range(15)]
    alone = Predictions(kinds, z[:, 0], None, z[:, 0])
    expected = np.mean([any(kinds[j] == kinds[i] for j in row) for i, row in enumerate(nearest)])
    assert rv.metrics.RecallAtK(k).value(alone) == pytest.approx(expected)
    with pytest.raises(InputError, match=r"recall_at_k needs outputs \[n, 2, d\]"):
        rv.metrics.RecallAtK(k).value(Predictions(None, z[:, 0], None, z[:, 0]))


def run(loss, y, outputs, metrics, **options):
    x = [RNG.normal(size=(20, 3)) for _ in range(2)]
    model = rv.models.from_functions(lambda key: jnp.zeros((3, *outputs)), lambda w, x: jnp.tensordot(x, w, 1),
                                     loss=loss)
    data = rv.FederatedData.from_arrays(x, y, **options)
    return rv.simulate(rv.fedavg(rv.SGD(0.1)), model, data, rounds=2, metrics=metrics, progress=False), data


@pytest.mark.when_changed
def test_runs_and_fitted_models_of_several_labels():
    y = [RNG.integers(0, 2, (20, 2)) for _ in range(2)]
    result, data = run("multi_label", y, (2,), [rv.metrics.MultiLabelF1(), rv.metrics.ExactMatch()])
    fitted = result.fitted()
    x, labels = data.party(0, "test")
    predicted = fitted.predict(x)
    np.testing.assert_array_equal(predicted, fitted.predict_proba(x) > 0.5)
    scores = fitted.evaluate(x, labels, metrics=[rv.metrics.ExactMatch()])
    assert scores["exact_match"] == pytest.approx((predicted == labels).all(axis=1).mean())
    assert scores["label_accuracy"] == pytest.approx((predicted == labels).mean())
    assert {"exact_match", "multi_label_f1"} <= set(result.metrics["metric"].astype(str))


@pytest.mark.when_changed
def test_runs_and_fitted_models_of_sequences_and_vectors():
    y = [np.where(np.arange(4) < 3, RNG.integers(0, 5, (20, 4)), -1) for _ in range(2)]
    result, data = run("token_cross_entropy", y, (4, 5), [rv.metrics.Perplexity(), rv.metrics.TokenAccuracy()])
    x, labels = data.party(1, "test")
    scores = result.fitted().evaluate(x, labels, metrics=[rv.metrics.Perplexity()])
    assert scores["perplexity"] == pytest.approx(np.exp(scores["loss"]), rel=1e-4)  # sequences have equal length
    assert result.fitted().predict(x).shape == (len(x), 4)
    result, data = run("squared_error", [RNG.normal(size=(20, 2)) for _ in range(2)], (2,), [rv.metrics.R2()])
    x, labels = data.party(1, "test")
    fitted = result.fitted()
    np.testing.assert_allclose(fitted.predict(x), fitted.outputs(x))
    error = np.square(fitted.predict(x) - labels).mean()
    assert fitted.evaluate(x, labels)["squared_error"] == pytest.approx(error, rel=1e-4)


def test_metrics_of_another_task_are_refused():
    with pytest.raises(InputError, match="accuracy is for classification, and the data are for structured"):
        run("multi_label", [np.ones((20, 2), int)] * 2, (2,), [rv.metrics.Accuracy()])


@pytest.mark.nightly
def test_fitted_models_of_several_inputs(tmp_path):
    """Predictions are those of the model on the arrays, also from a folder; other rows are refused."""
    x = [{"a": RNG.normal(size=(9, 3)), "meta": {"group": RNG.integers(0, 4, 9)}} for _ in range(2)]
    data = rv.FederatedData.from_arrays(x, [RNG.choice(["no", "yes"], 9) for _ in range(2)], seed=0)
    model = rv.models.from_functions(
        lambda key: {"w": jnp.zeros((3, 2)), "group": jnp.zeros((4, 2))},
        lambda p, x: x["a"] @ p["w"] + p["group"][x["meta"]["group"]], loss="cross_entropy")
    result = rv.simulate(rv.fedavg(rv.SGD(0.5)), model, data, rounds=2, progress=False)
    rows = {"a": RNG.normal(size=(5, 3)), "meta": {"group": RNG.integers(0, 4, 5)}}
    result.save(tmp_path / "run")
    for fitted in (result.fitted("party 1"), rv.load(tmp_path / "run", model=model).fitted("party 1")):
        expected = np.asarray(model.apply(result.personal_model("party 1"), rows))
        np.testing.assert_allclose(fitted.outputs(rows), expected, rtol=1e-5)
        predicted = fitted.predict(rows)
        np.testing.assert_array_equal(predicted, np.where(expected[:, 1] > expected[:, 0], "yes", "no"))
        assert fitted.evaluate(rows, predicted)["accuracy"] == 1
        for wrong, reason in [
                (rows["a"], "have the arrays without a name, and the model was fitted to a, meta.group"),
                ({"a": rows["a"]}, "have the arrays a, and"),
                (rows | {"a": rows["a"][:4]}, r"'meta.group' has shape \[5\]"),
                (rows | {"a": rows["a"] * np.nan}, "'a' has a value that is not finite"),
                (rows | {"meta": {"group": np.zeros(5)}}, "'meta.group' has type float64, and .* integers")]:
            with pytest.raises(InputError, match=reason):
                fitted.predict(wrong)
    with pytest.raises(InputError, match=r"several arrays .*use Fitted.predict"):
        fitted.to_onnx(tmp_path / "model.onnx")
