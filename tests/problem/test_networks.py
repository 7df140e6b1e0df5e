"""The papers' networks: their numbers of parameters, and their outputs against reference implementations."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nightly
import resolvent as rv
from resolvent.data.images_text.tokens import CHARACTERS
from resolvent.problem.models import networks

# Layer by layer: Tables 2 and 3 of the operator-splitting paper.
TABLE_2 = {"convolution 0": 260, "convolution 1": 5_020, "layer 0": 6_420, "layer 1": 210}
TABLE_3 = {"convolution 0": 4_864, "convolution 1": 102_464, "layer 0": 614_784, "layer 1": 73_920, "layer 2": 1_930}


def count(tree):
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize(("make", "shape", "table", "total"), [
    (networks.mnist_cnn, (28, 28), TABLE_2, 11_910), (networks.cifar_cnn, (32, 32, 3), TABLE_3, 797_962)])
def test_convolutional_networks_have_the_papers_parameters(make, shape, table, total):
    params = jax.eval_shape(make(shape, 10).init, jax.random.key(0))
    assert {name: count(layer) for name, layer in params.items()} == table
    assert count(params) == total


def test_recurrent_networks_have_the_papers_sizes():
    params = jax.eval_shape(networks.char_lstm(80, tuple(CHARACTERS)).init, jax.random.key(0))
    assert len(CHARACTERS) == 80
    assert count(params["embedding"]) == 80 * 8
    assert count(params["lstm 0"]) == 4 * 100 * (8 + 100 + 1)
    assert count(params["lstm 1"]) == 4 * 100 * (100 + 100 + 1)
    assert count(params["output"]) == 80 * 101
    words = jax.eval_shape(networks.sentiment_lstm(2, tuple("abc")).init, jax.random.key(0))
    assert words["embedding"].shape == (3, 300)
    assert words["lstm 1"]["state"].shape == (256, 4 * 256)
    assert words["output"]["weight"].shape == (1, 256)  # one logit for two classes


def textbook(params, x, normalise):
    """A reference implementation with JAX's convolution and window primitives."""
    def window(h, combine, start, size, strides, padding="VALID"):
        return jax.lax.reduce_window(h, start, combine, size, strides, padding)

    def pool(h):
        return window(h, jax.lax.max, -jnp.inf, (1, 2, 2, 1), (1, 2, 2, 1))

    def responses(h):
        total = window(h**2, jax.lax.add, 0.0, (1, 1, 1, 2), (1, 1, 1, 1), ((0, 0), (0, 0), (0, 0), (1, 0)))
        return h / (1 + 1e-4 * total / 2) ** 0.75

    for i in range(2):
        layer = params[f"convolution {i}"]
        h = jax.lax.conv_general_dilated(x, layer["weight"], (1, 1), "VALID",
                                         dimension_numbers=("NHWC", "HWIO", "NHWC"))
        h = jax.nn.relu(h + layer["bias"])
        x = pool(h) if not normalise else responses(pool(h)) if i == 0 else pool(responses(h))
    h = x.reshape(len(x), -1)
    last = len(params) - 3
    for i in range(last + 1):
        h = h @ params[f"layer {i}"]["weight"].T + params[f"layer {i}"]["bias"]
        h = jax.nn.relu(h) if i < last else h
    return h


@pytest.mark.when_changed
@nightly.parametrize(("shape", "normalise"), [((16, 19, 1), False), ((16, 19, 3), True)])
def test_convolutional_networks_are_the_textbooks(shape, normalise):
    model = networks.CNN(networks.head(10)[1], 0.0, shape=shape, channels=(3, 4), kernel=5,
                         hidden=(6,) * (1 + normalise), outputs=10, normalise=normalise)
    params = jax.tree.map(lambda p: p + 0.01, jax.jit(model.init)(jax.random.key(1)))  # nonzero biases
    x = jax.random.uniform(jax.random.key(2), (3, *shape)) * (30 if normalise else 1)  # larger inputs
    y = jnp.array([1, 5, 7])
    def loss(outputs):
        return jnp.mean(model.loss.loss(outputs, y))

    ours, grad = jax.jit(jax.value_and_grad(lambda p: loss(model.apply(p, x))))(params)
    theirs, other = jax.jit(jax.value_and_grad(lambda p: loss(textbook(p, x, normalise))))(params)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    scale = max(float(jnp.abs(g).max()) for g in jax.tree.leaves(other))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5 * scale), grad, other)
    if normalise:
        plain = jax.jit(lambda p: loss(textbook(p, x, False)))(params)
        assert abs(float(theirs - plain)) > 1e-3  # the normalisation has an effect


@pytest.mark.when_changed
def test_lstm_is_equinoxs_cell_in_a_plain_loop():
    model = networks.LSTM(networks.head(5)[1], 0.0, tokens=9, embedding=3, width=4, depth=2, outputs=5)
    params = jax.tree.map(lambda p: p + 0.1, jax.jit(model.init)(jax.random.key(0)))
    x = jax.random.randint(jax.random.key(1), (2, 4), 0, 9)
    for row, got in zip(np.asarray(x), model.apply(params, x), strict=True):
        sequence = [params["embedding"][t] for t in row]
        for i in range(2):
            layer = params[f"lstm {i}"]
            cell = eqx.nn.LSTMCell(sequence[0].size, 4, key=jax.random.key(0))
            bias = layer["bias"] + jnp.repeat(jnp.array([0.0, 1.0, 0.0, 0.0]), 4)  # the forget gate's bias is 1
            cell = eqx.tree_at(lambda c: (c.weight_ih, c.weight_hh, c.bias), cell,
                               (layer["input"].T, layer["state"].T, bias))
            state, out = (jnp.zeros(4), jnp.zeros(4)), []
            for vector in sequence:
                state = eqx.filter_jit(cell)(vector, state)
                out.append(state[0])
            sequence = out
        want = params["output"]["weight"] @ sequence[-1] + params["output"]["bias"]
        np.testing.assert_allclose(got, want, atol=1e-6)


@pytest.mark.when_changed
def test_glove_vectors_are_read_and_stay_fixed(tmp_path):
    file = tmp_path / "glove.txt"
    file.write_text("the 1 2 3\ncat -1 0.5 4e-1\nelse 9 9 9\n")
    words = ("<pad>", "the", "cat")
    model = networks.sentiment_lstm(2, words, glove=str(file), embedding=3, width=4)
    np.testing.assert_array_equal(model.vectors, np.float32([[0, 0, 0], [1, 2, 3], [-1, 0.5, 0.4]]))
    params = eqx.filter_jit(model.init)(jax.random.key(0))
    assert "embedding" not in params
    x = jnp.array([[0, 1, 2], [1, 1, 1]])
    learned = networks.sentiment_lstm(2, words, embedding=3, width=4)
    np.testing.assert_array_equal(learned.apply(params | {"embedding": model.vectors}, x), model.apply(params, x))
    file.write_text("the 1 2 3\ncat -1 0.5")
    with pytest.raises(rv.InputError, match=r"glove.txt, line 2: 2 numbers after the word, expected 3"):
        networks.sentiment_lstm(2, words, glove=str(file), embedding=3)
    file.write_text("dog 1 2 3\n")
    with pytest.raises(rv.InputError, match=r"none of the 3 words"):
        networks.sentiment_lstm(2, words, glove=str(file), embedding=3)


@pytest.mark.parametrize(("make", "message"), [
    (lambda: networks.mnist_cnn((64,), 10), r"images of at least 16x16 pixels.*\(64,\)"),
    (lambda: networks.cifar_cnn((8, 8, 3), 10), r"images of at least 16x16 pixels"),
    (lambda: networks.char_lstm(80, ()), r"sequences of tokens.* no vocabulary"),
    (lambda: networks.char_lstm(80, ("a",), width=0), r"width=0\) must lie in \[1, inf\)"),
    (lambda: networks.mnist_cnn((28, 28), 1), r"at least 2"),
])
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def follow_up(vocabulary=("a", "b", "c"), dtype=np.int32):
    """Sequences whose label is their last token."""
    x = np.random.default_rng(0).integers(0, 3, (120, 4)).astype(dtype)
    return rv.FederatedData.from_arrays(np.split(x, 4), np.split(x[:, -1].astype(int), 4), classes=["0", "1", "2"],
                                        validation=0, test=0.2, vocabulary=vocabulary)


@pytest.mark.nightly
def test_tokens_stay_integers_and_an_lstm_learns_from_them():
    model = networks.char_lstm(3, tuple("abc"), width=8)
    for dtype in (np.int32, np.uint8):
        assert rv.problems.LearningProblem(model, follow_up(dtype=dtype)).x.dtype == dtype
    result = rv.simulate(rv.fedavg(rv.SGD(1.0, epochs=5)), model, follow_up(dtype=np.uint8), rounds=10,
                         evaluate_every=10, progress=False)
    assert result.scores().iloc[-1].mean() > 0.9
    assert rv.problems.LearningProblem(rv.models.logistic(4, 3), follow_up(())).x.dtype == jnp.zeros(()).dtype


def test_what_are_no_tokens_is_refused():
    with pytest.raises(rv.InputError, match=r"tokens 0 to 2, but the vocabulary has 2: they are numbered 0 to 1"):
        follow_up(("a", "b"))
    with pytest.raises(rv.InputError, match=r"type float64 cannot be tokens"):
        follow_up(dtype=np.float64)


@pytest.mark.when_changed
def test_the_initial_weights_of_a_network_have_the_stated_variance():
    he, lecun = (networks.cifar_cnn((32, 32, 3), 10, initial_variance=variance).init(jax.random.key(0))
                 for variance in (2.0, 1.0))
    weight = he["layer 0"]["weight"]  # [384, 1600]
    key = jax.random.split(jax.random.key(0), 5)[2]
    he_normal = jax.nn.initializers.he_normal(in_axis=1, out_axis=0)
    np.testing.assert_array_equal(weight, he_normal(key, weight.shape))
    np.testing.assert_allclose(1600 * np.var(np.asarray(lecun["layer 0"]["weight"])), 1.0, rtol=0.02)
    with pytest.raises(rv.InputError, match="initial_variance"):
        networks.cifar_cnn((32, 32, 3), 10, initial_variance=0.0)
