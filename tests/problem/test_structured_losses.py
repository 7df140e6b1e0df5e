"""Losses of several numbers, against plain NumPy, and what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nightly
import resolvent as rv
from resolvent.errors import InputError
from resolvent.problem.models.losses import score_rows

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(3, 4, 5))
TOKENS = RNG.integers(0, 5, (3, 4))
MASK = np.array([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]], bool)
TAGS = RNG.integers(0, 2, (3, 6))
VIEWS = RNG.normal(size=(5, 2, 3))


def log_softmax(z):
    return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))


def of_tokens(logits, tokens, weights):
    """[B] loss and accuracy of each sample, token by token."""
    rows = []
    for z, labels, w in zip(logits, tokens, weights, strict=True):
        terms = [(-log_softmax(z[t])[labels[t]], float(np.argmax(z[t]) == labels[t]), w[t])
                 for t in range(len(labels)) if w[t]]
        total = sum(w for *_, w in terms)
        rows.append([sum(term[i] * term[2] for term in terms) / total if terms else 0.0 for i in range(2)])
    return np.array(rows).T


def of_pairs(views, temperature):
    """[B] NT-Xent, view by view."""
    flat = np.concatenate([views[:, 0], views[:, 1]])
    flat = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    n, losses, right = len(views), [], []
    for i in range(2 * n):
        others = [k for k in range(2 * n) if k != i]
        similar = {k: flat[i] @ flat[k] / temperature for k in others}
        partner = (i + n) % (2 * n)
        losses.append(np.log(sum(np.exp(s) for s in similar.values())) - similar[partner])
        right.append(float(max(similar, key=similar.get) == partner))
    return np.reshape(losses, (2, n)).mean(0), np.reshape(right, (2, n)).mean(0)


def bce(z, y):
    return np.log1p(np.exp(z)) - y * z


CASES = {
    "tokens": (rv.losses.TokenCrossEntropy(), LOGITS, TOKENS, of_tokens(LOGITS, TOKENS, np.ones((3, 4)))),
    "padding": (rv.losses.TokenCrossEntropy(), LOGITS, np.where(MASK, TOKENS, -1), of_tokens(LOGITS, TOKENS, MASK)),
    "padding of PyTorch": (rv.losses.TokenCrossEntropy(padding=-100), LOGITS, np.where(MASK, TOKENS, -100),
                           of_tokens(LOGITS, TOKENS, MASK)),
    "mask": (rv.losses.TokenCrossEntropy(), LOGITS, {"labels": TOKENS, "mask": 0.5 * MASK},
             of_tokens(LOGITS, TOKENS, MASK)),
    "multi-label": (rv.losses.MultiLabelCrossEntropy(), LOGITS[:, 0, :], TAGS[:, :5],
                    (bce(LOGITS[:, 0], TAGS[:, :5]).mean(1), ((LOGITS[:, 0] > 0) == TAGS[:, :5]).mean(1))),
    "vector": (rv.losses.SquaredError(), LOGITS[:, 0], LOGITS[:, 1],
               (np.square(LOGITS[:, 0] - LOGITS[:, 1]).mean(1) / 2, np.square(LOGITS[:, 0] - LOGITS[:, 1]).mean(1))),
    "quantiles": (rv.losses.Quantile((0.1, 0.9)), LOGITS[:, 0, :2], LOGITS[:, 1, 0],
                  2 * (np.mean([[max(q * e, (q - 1) * e) for q, e in zip((0.1, 0.9), errors, strict=True)]
                                for errors in LOGITS[:, 1, :1] - LOGITS[:, 0, :2]], axis=1),)),
    "poisson": (rv.losses.Poisson(), LOGITS[:, 0, 0], np.array([0.0, 2.0, 7.0]),
                (np.exp(LOGITS[:, 0, 0]) - np.array([0, 2, 7]) * LOGITS[:, 0, 0],
                 2 * (np.array([0, 2 * np.log(2), 7 * np.log(7)]) - np.array([0, 2, 7]) * LOGITS[:, 0, 0]
                      - np.array([0, 2, 7]) + np.exp(LOGITS[:, 0, 0])))),
    "contrastive": (rv.losses.NTXent(0.3), VIEWS, None, of_pairs(VIEWS, 0.3)),
}


@pytest.mark.when_changed
@pytest.mark.parametrize("name", CASES)
def test_loss_and_score_are_those_of_numpy(name):
    loss, outputs, y, (value, score) = CASES[name]
    with jax.enable_x64(True):
        outputs, y = jax.tree.map(jnp.asarray, (outputs, y))
        np.testing.assert_allclose(loss.loss(outputs, y), value, rtol=1e-10)
        np.testing.assert_allclose(score_rows(loss, outputs, y), score, rtol=1e-10)


def test_padding_has_no_effect_and_no_gradient():
    loss, labels = rv.losses.TokenCrossEntropy(), jnp.asarray(np.where(MASK, TOKENS, -1))
    wild = jnp.asarray(np.where(MASK[..., None], LOGITS, np.inf), jnp.float32)
    gradient = jax.grad(lambda z: jnp.sum(loss.loss(z, labels)))(jnp.asarray(LOGITS, jnp.float32))
    assert (np.asarray(gradient)[~MASK] == 0).all()
    assert np.isfinite(loss.loss(wild, labels)).all()


def test_logits_may_be_large_and_those_of_impossible_classes_minus_infinity():
    loss, labels = rv.losses.TokenCrossEntropy(), jnp.asarray(TOKENS)
    logits = jnp.asarray(100 * LOGITS, jnp.float32)
    impossible = jnp.concatenate([logits, jnp.full_like(logits[..., :1], -jnp.inf)], axis=-1)
    values, gradient = jax.vjp(lambda z: loss.loss(z, labels), impossible)
    np.testing.assert_allclose(values, of_tokens(100 * LOGITS, TOKENS, np.ones((3, 4)))[0], rtol=1e-5)
    assert (np.asarray(gradient(jnp.ones_like(values))[0])[..., -1] == 0).all()


def test_samples_that_fill_a_batch_are_no_negatives():
    loss, outputs = rv.losses.NTXent(), jnp.asarray(VIEWS, jnp.float32)
    filled = jnp.concatenate([outputs, outputs[:1], outputs[:1]])
    mask = jnp.arange(7) < 5

    @jax.jit
    def of_batch(z, mask):
        return loss.batch_loss(z, None, mask), loss.batch_score(z, None, mask)

    for of_filled, of_all in zip(of_batch(filled, mask), of_batch(outputs, jnp.ones(5, bool)), strict=True):
        np.testing.assert_allclose(of_filled[:5], of_all, rtol=1e-5)
    gradient = jax.jit(jax.grad(lambda z: jnp.sum(jnp.where(mask, loss.batch_loss(z, None, mask), 0))))(filled)
    assert (np.asarray(gradient)[5:] == 0).all()


def pair_data():
    return rv.FederatedData.from_arrays([RNG.normal(size=(n, 2, 4)) for n in (7, 12)])


def pair_model():
    return rv.models.from_functions(lambda key: jax.random.normal(key, (4, 3)), lambda w, x: x @ w, loss="nt_xent")


@pytest.mark.when_changed
def test_a_contrastive_loss_compares_the_samples_of_one_party_only():
    data = pair_data()
    problem = rv.problems.LearningProblem(pair_model(), data, block=8)
    w = problem.init(jax.random.key(0))
    shared = problem.evaluate_shared(w, np.arange(2))
    for k in range(2):
        x = data.party(k)[0]
        blocks = [of_pairs(np.asarray(x[i:i + 8] @ np.asarray(w)), 0.5) for i in range(0, len(x), 8)]
        expected = [np.concatenate(part).mean() for part in zip(*blocks, strict=True)]
        np.testing.assert_allclose([shared[name][k, 0] for name in ("loss", "pair_accuracy")], expected, rtol=1e-4)
        assert float(problem.oracle(jnp.array(k)).value(w)) == pytest.approx(expected[0], rel=1e-4)


@pytest.mark.nightly
@nightly.parametrize("scheduler", ["sequential", "lanes"])
def test_a_contrastive_run_is_the_same_with_every_scheduler(scheduler):
    results = [rv.simulate(rv.fedavg(rv.SGD(0.1, batch_size=4)), pair_model(), pair_data_of_one_seed(), rounds=2,
                           scheduler=s, progress=False) for s in ("sequential", scheduler)]
    np.testing.assert_allclose(*(r.server_model for r in results), rtol=1e-4, atol=1e-6)
    assert results[0].score_name == "pair_accuracy"


def pair_data_of_one_seed():
    rng = np.random.default_rng(5)
    return rv.FederatedData.from_arrays([rng.normal(size=(n, 2, 4)) for n in (7, 12)])


@pytest.mark.when_changed
def test_a_reconstruction_needs_no_labels():
    x = [RNG.normal(size=(6, 2, 2)) for _ in range(2)]
    model = rv.models.from_functions(lambda key: 0.1 * jax.random.normal(key, (4, 4)),
                                     lambda w, x: (x.reshape(len(x), 4) @ w).reshape(x.shape), loss="reconstruction")
    data = rv.FederatedData.from_arrays(x)
    result = rv.simulate(rv.fedavg(rv.SGD(0.1)), model, data, rounds=3, progress=False)
    w, (rows, _) = np.asarray(result.server_model), data.party(0)
    expected = np.square(rows.reshape(-1, 4) @ w - rows.reshape(-1, 4)).mean()
    assert result.scores("train").iloc[-1, 0] == pytest.approx(expected, rel=1e-4)


@pytest.mark.when_changed
def test_a_function_keeps_the_accuracy_of_class_scores_only():
    def loss(z, y):
        return -jax.nn.log_softmax(z)[jnp.arange(len(y)), y]

    digits = rv.datasets.digits(parties=2)
    model = rv.models.from_functions(lambda key: jnp.zeros((64, 10)), lambda w, x: x @ w, loss=loss)
    named = rv.models.from_functions(lambda key: jnp.zeros((64, 10)), lambda w, x: x @ w)
    runs = [rv.simulate(rv.fedavg(rv.SGD(0.1)), m, digits, rounds=2, progress=False) for m in (model, named)]
    assert [r.score_name for r in runs] == ["accuracy", "accuracy"]
    np.testing.assert_allclose(*(r.scores("test") for r in runs))
    numbers = rv.FederatedData.from_arrays([np.eye(4)], [np.ones(4)])
    squares = rv.models.from_functions(lambda key: jnp.zeros(4), lambda w, x: x @ w, loss=lambda z, y: (z - y) ** 2)
    assert rv.problems.LearningProblem(squares, numbers).score_name == "own_loss"


def problem(loss, y, outputs, **options):
    x = np.eye(4, dtype=np.float32)
    model = rv.models.from_functions(lambda key: jnp.zeros((4, *outputs)), lambda w, x: jnp.tensordot(x, w, 1),
                                     loss=loss)
    return lambda: rv.problems.LearningProblem(model, rv.FederatedData.from_arrays([x], None if y is None else [y],
                                                                                   **options))


@pytest.mark.parametrize(("make", "message"), [
    (problem("token_cross_entropy", np.full((4, 2), 5), (2, 5)), r"the label 5 of a token is not among the 5 outputs"),
    (problem("token_cross_entropy", np.full((4, 2), -100), (2, 5)), r"padding -1: if it is, .*\(padding=-100\)"),
    (problem("token_cross_entropy", np.ones((4, 3), int), (2, 5)), r"class numbers of shape \[samples, 2\]"),
    (problem("token_cross_entropy", np.ones((4, 3), int), (5,)), r"needs outputs \[samples, tokens, classes\]"),
    (problem("multi_label", np.full((4, 2), 2), (2,)), r"0 or 1, and one is 2"),
    (problem("multi_label", np.ones((4, 2), int), (3,)), r"3 outputs, and labels have the shape \[2\]"),
    (problem("poisson", np.array([1.0, -1, 2, 3]), ()), r"a label is -1: labels must not be negative"),
    (problem("poisson", np.arange(4), ()), r"labels are class numbers.*task='regression'"),
    (problem("quantile", np.ones((4, 2)), (1,)), r"one number as the label of each sample"),
    (problem("nt_xent", None, (3,)), r"NT-Xent needs outputs \[samples, 2, d\]"),
    (problem("cross_entropy", None, (3,)), r"CrossEntropy needs labels, and the data 'data' have none"),
    (problem("cross_entropy", np.ones((4, 2), int), (3,)), r"use token_cross_entropy .* multi_label"),
    (problem("squared_error", np.ones((4, 2)), (3,)), r"the model does not fit the data"),
    (problem("squared_error", np.ones((4, 2), int), (2,)), r"task='regression'"),
    (lambda: rv.losses.Quantile((0.0,)), r"levels"),
    (lambda: rv.losses.NTXent(0), r"temperature"),
])
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()
