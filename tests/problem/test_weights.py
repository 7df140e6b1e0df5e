"""Weights of samples and of classes in the loss: against repeated samples."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import nightly
import resolvent as rv
from resolvent.errors import InputError
from resolvent.problem.subset import Gatherer

WEIGHTS = ([3, 1, 2, 1, 1, 2], [1, 4, 1], [2, 2, 1, 1])
CLASSES = list("012")


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def samples(loss="cross_entropy"):
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(len(s), 3)) for s in WEIGHTS]
    y = [np.arange(len(s)) % 3 if loss == "cross_entropy" else rng.normal(size=len(s)) for s in WEIGHTS]
    return x, y


def arrays(x, y, **options):
    is_class = y[0].dtype.kind == "i"
    return rv.FederatedData.from_arrays(x, y, validation=0, test=0, **({"classes": CLASSES} if is_class else {}),
                                        **options)


def problems(loss):
    """The weighted federation, and the one in which sample i occurs weights[i] times."""
    x, y = samples(loss)
    model = rv.models.logistic(3, 3) if loss == "cross_entropy" else rv.models.linear(3)
    repeated = [[np.repeat(a, s, axis=0) for a, s in zip(part, WEIGHTS, strict=True)] for part in (x, y)]
    return [rv.problems.LearningProblem(model, data)
            for data in (arrays(x, y, weights=WEIGHTS), arrays(*repeated))]


def gradient(problem, w):
    """sum_k n_k/n grad f_k(w)."""
    shares = np.asarray(problem.sizes) / np.asarray(problem.sizes).sum()
    parts = [jax.tree.map(lambda g, s=s: s * g, problem.oracle(jnp.array(k)).grad(w)) for k, s in enumerate(shares)]
    return jax.tree.map(lambda *g: sum(g), *parts)


def point(problem):
    return jax.tree.map(lambda leaf: jax.random.normal(jax.random.key(1), leaf.shape), problem.init(jax.random.key(0)))


@pytest.mark.when_changed
@nightly.parametrize("loss", ["cross_entropy", "squared_error"])
def test_gradient_is_that_of_repeated_samples(loss):
    weighted, repeated = problems(loss)
    w = point(weighted)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), gradient(weighted, w), gradient(repeated, w))
    values = [sum(float(n) * float(p.oracle(jnp.array(k)).value(w)) for k, n in enumerate(p.sizes)) / int(sum(p.sizes))
              for p in (weighted, repeated)]
    assert values[0] == pytest.approx(values[1], rel=1e-6)


@pytest.mark.when_changed
def test_run_is_that_of_repeated_samples_with_one_full_step_per_round():
    results = [rv.simulate(rv.fedavg(rv.solvers.GD(0.3, steps=1)), problem, rounds=4, progress=False).server_model
               for problem in problems("cross_entropy")]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), *results)


@pytest.mark.nightly
def test_minibatch_gradients_have_the_mean_of_the_full_gradient():
    problem = problems("cross_entropy")[0]
    w, oracle = point(problem), problem.oracle(jnp.array(0))
    for is_linear in (True, False):  # both ways to compute a minibatch gradient
        count = 2 if is_linear else 200
        batches = [oracle.batch_grad(w, jnp.resize(jnp.array([i]), count), jnp.arange(count) < 2)[0] for i in range(6)]
        mean = jax.tree.map(lambda *g: sum(g) / 6, *batches)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), mean, oracle.grad(w))


def test_scores_and_predictions_count_every_sample_once():
    weighted = problems("cross_entropy")[0]
    x, y = samples()
    plain = rv.problems.LearningProblem(rv.models.logistic(3, 3), arrays(x, y))
    w, k, split = point(plain), jnp.array(0), jnp.array(0)
    assert weighted.evaluate_party(w, k, split)[1] == plain.evaluate_party(w, k, split)[1]
    shared = [p.evaluate_shared(w, np.arange(3, dtype=np.int32))["accuracy"] for p in (weighted, plain)]
    np.testing.assert_array_equal(*shared)
    np.testing.assert_array_equal(weighted.labels, plain.labels)


def test_gathered_parties_keep_their_weights():
    x, y = samples()
    data, model = arrays(x, y, weights=WEIGHTS), rv.models.logistic(3, 3)
    whole, part = rv.problems.LearningProblem(model, data), Gatherer(model, data)(np.array([2], np.int32), 1)
    part = jax.tree.map(jnp.asarray, part)
    w = point(whole)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), whole.oracle(jnp.array(2)).grad(w),
                 part.oracle(jnp.array(2)).grad(w))


def test_flipped_labels_keep_their_weights():
    weighted = problems("cross_entropy")[0].oracle(jnp.array(0))
    flipped = rv.attacks.LabelFlip().oracle(weighted, jnp.array(True))
    x, y = samples()
    plain = rv.problems.LearningProblem(rv.models.logistic(3, 3), arrays(x, [2 - labels for labels in y],
                                                                         weights=WEIGHTS)).oracle(jnp.array(0))
    w = point(problems("cross_entropy")[0])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), flipped.grad(w), plain.grad(w))


@pytest.mark.parametrize("choice", ["balanced", "balanced_per_party"])
def test_balanced_classes_have_equal_weight(choice):
    rng = np.random.default_rng(1)
    y = [rng.permutation(np.repeat([0, 1, 2], n)) for n in ([5, 20, 75], [40, 8, 2])]
    data = rv.FederatedData.from_arrays([rng.normal(size=(len(a), 2)) for a in y], y, classes=CLASSES)
    data = data.with_class_weights(choice)
    totals = np.zeros((2, 3))
    for k in range(2):
        split = data.splits["train"]
        rows = slice(split.offset[k], split.offset[k] + split.length[k])
        np.add.at(totals[k], data.y[rows], data.weights[rows])
    if choice == "balanced":
        np.testing.assert_allclose(totals.sum(axis=0), data.sizes().sum() / 3, rtol=1e-5)
    else:
        np.testing.assert_allclose(totals, np.repeat(data.sizes()[:, None] / 3, 3, axis=1), rtol=1e-5)


def test_weights_by_name_and_a_column_of_a_table_multiply(tmp_path):
    frame = pd.DataFrame({"site": list("aabb"), "age": [1.0, 2, 3, 4], "w": [1.0, 3, 2, 2], "ill": list("ynny")})
    path = tmp_path / "visits.csv"
    frame.to_csv(path, index=False)
    data = rv.datasets.table(str(path), "site", "ill", weight="w", validation=0, test=0, scale="none")
    assert data.features == ("age",)
    np.testing.assert_allclose(data.weights, np.array([1, 3, 2, 2])[data.x[:, 0].astype(int) - 1] / 2)
    doubled = data.with_class_weights({"y": 2.0, "n": 1.0})
    ratio = doubled.weights / data.weights
    np.testing.assert_allclose(ratio / ratio[data.y == 0][0], 1.0 + data.y, rtol=1e-6)
    frame["w"] = [1.0, -3, 2, 2]
    with pytest.raises(InputError, match=r"the weight must be a number that is not negative"):
        rv.datasets.from_frame(frame, "site", "ill", weight="w")
    with pytest.raises(InputError, match="named twice, as "):
        rv.datasets.from_frame(frame, "site", "ill", weight="w", features=["w"])


@pytest.mark.parametrize(("weights", "message"), [
    ({"0": 1.0}, "class '1' has no weight"), ({"4": 1.0}, "there is no class '4'"), ("even", "'even' is not known"),
])
def test_wrong_class_weights_are_refused(weights, message):
    x, y = samples()
    with pytest.raises(InputError, match=message):
        arrays(x, y).with_class_weights(weights)


def test_wrong_weights_are_refused():
    x, y = samples()
    data = arrays(x, y)
    with pytest.raises(InputError, match="row 1 is -1"):
        data.with_weights([1, -1, *[1] * 11])
    with pytest.raises(InputError, match="weight 0"):
        data.with_weights(np.zeros(13))
    with pytest.raises(InputError, match="for regression"):
        arrays(*samples("squared_error")).with_class_weights("balanced")
