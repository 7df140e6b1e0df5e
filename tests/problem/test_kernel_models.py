"""Models and losses with gradient rules of their own, against automatic gradients, in float64."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nightly
import resolvent as rv
from resolvent.math import tree
from resolvent.problem.maps import GradientStep, through
from resolvent.problem.models import model as linear_models
from resolvent.problem.models import networks
from resolvent.problem.models.losses import CrossEntropy
from resolvent.problem.sample_oracle import SampleOracle


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def draw(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.normal(size=shape)) for shape in shapes]


def test_cross_entropy_is_optaxs_with_its_gradients():
    """The logits include large differences and ties."""
    outputs = draw((5, 4))[0] * jnp.array([[1.0], [30.0], [1e3], [1e5], [0.0]])
    y = jnp.array([0, 3, 1, 2, 2])
    (out,) = draw((5,), seed=1)

    def value_and_derivatives(f, outputs):
        """The value, the gradient, and the Hessian-vector product in the direction of the outputs."""
        def value(z):
            return jnp.vdot(jnp.sin(f(z, y)), out)

        return value(outputs), *jax.jvp(jax.grad(value), (outputs,), (outputs,))

    actual, reference = (jax.jit(partial(value_and_derivatives, f))(outputs) for f in
                         (CrossEntropy().loss, optax.losses.softmax_cross_entropy_with_integer_labels))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-9), actual, reference)


def _gradient(oracle, step, w):
    return through(oracle, step).grad(w)


@nightly.parametrize("network", ["cnn", "lstm"], per_commit=0)
def test_meta_learning_takes_hessians_through_them(network):
    """MAML's full gradient, whose Hessian-vector product is a jvp through a loop, equals the central difference."""
    rng = np.random.default_rng(0)
    if network == "cnn":
        model = networks.CNN(networks.head(3)[1], 0.0, shape=(6, 6, 1), channels=(2,), kernel=3, hidden=(), outputs=3,
                             normalise=False)
        x = jnp.asarray(rng.normal(size=(5, 6, 6)))
    else:
        model = networks.LSTM(networks.head(3)[1], 0.0, tokens=3, embedding=2, width=3, depth=1, outputs=3)
        x = jnp.asarray(rng.integers(0, 3, (5, 4)))
    oracle = SampleOracle(samples=jnp.array(5), model=model, x=x, y=jnp.arange(5) % 3, offset=jnp.array(0), block=4)
    w = model.init(jax.random.key(0))
    actual, reference = (jax.jit(partial(_gradient, oracle, GradientStep(0.5, delta=delta)))(w)
                         for delta in (None, 1e-6))
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-8), actual, reference)
    first = jax.jit(partial(_gradient, oracle, GradientStep(0.5, second_order=False)))(w)
    assert max(float(jnp.abs(d).max()) for d in jax.tree.leaves(tree.sub(first, actual))) > 1e-3  # H is not zero


@nightly.parametrize("model", [rv.models.logistic(6, 4, l2=0.1), rv.models.logistic(6, 2), rv.models.linear(6)],
                     per_commit=0)
def test_a_minibatch_sample_by_sample_is_the_gradient_of_the_mean(model, monkeypatch):
    x, targets, weight, bias = draw((20, 2, 3), (20,), (model.outputs, 6), (model.outputs,))
    y = targets if model.loss.score_name == "squared_error" else jnp.arange(20) % max(2, model.outputs)
    params, at = {"weight": weight, "bias": bias}, jnp.array([4, 4, 19, 0, 7])
    mask = jnp.array([True, True, True, False, True])

    def gradient(mask):
        oracle = SampleOracle(samples=jnp.array(20), model=model, x=x, y=y, offset=jnp.array(0), block=8)
        return jax.jit(lambda *args: oracle.batch_grad(*args)[0])(params, at, mask)

    def mean(p):
        losses = model.loss.loss(model.apply(p, x[at[mask]]), y[at[mask]])
        return jnp.mean(losses) + model.l2 / 2 * tree.full_dot(p, p)

    expected, row_by_row, of_empty_batch = jax.grad(mean)(params), gradient(mask), gradient(jnp.zeros(5, bool))
    monkeypatch.setattr(linear_models, "_MAX_ROWS_IN_PLACE", 0)
    for actual in (row_by_row, gradient(mask)):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14), actual, expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, model.l2 * b), of_empty_batch, params)
