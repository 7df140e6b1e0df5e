"""Random layers, such as dropout: a key for each step, on in training steps and off elsewhere."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import nightly
import resolvent as rv
from resolvent.problem.maps import GradientStep, through
from resolvent.problem.solvers.minibatches import Shuffled
from resolvent.problem.subproblem import Subproblem
from resolvent.testing.example import example_problem

KEY, TAG = jax.random.key(3), 2**31 - 6
RATE = 0.5


def noisy_outputs(params, x, key):
    noise = 0.0 if key is None else jax.random.normal(key)
    return x @ params["layer 0"]["weight"].T[:, :3] * (1 + noise)


@pytest.fixture(scope="module")
def oracle():
    problem = example_problem()
    model = rv.models.from_functions(problem.model.init, noisy_outputs, random_layers=True)
    return eqx.tree_at(lambda p: p.model, problem, model).oracle(jnp.array(4))


def compiled_step(objective):
    """A step of gradient descent on the minibatch of its number, with its key."""
    @jax.jit
    def move(w, step):
        minibatch = Shuffled().draw(KEY, step[None], objective.samples, 4)
        of_step = objective.at_step(jax.random.fold_in(jax.random.fold_in(KEY, TAG), step))
        gradient = of_step.batch_grad(w, minibatch.positions[0], minibatch.mask[0])[0]
        return jax.tree.map(lambda leaf, g: leaf - 0.1 * g, w, gradient)
    return move


@pytest.mark.when_changed
def test_each_step_has_a_key_of_its_own(oracle):
    """SGD is the loop over minibatches with the key of the step folded in; through a map as well."""
    start = example_problem().init(KEY)
    for objective in (oracle, through(oracle, GradientStep(0.1, second_order=False))):
        w, steps, _ = jax.jit(rv.SGD(0.1, batch_size=4, epochs=1))(Subproblem(objective, start), start, KEY,
                                                               jnp.ones(()))
        move, expected = compiled_step(objective), start
        for step in range(int(steps)):
            expected = move(expected, jnp.array(step))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), w, expected)


def test_evaluations_and_full_gradients_are_without_random_layers(oracle):
    plain = replace(oracle, model=rv.models.from_functions(
        oracle.model.init, lambda params, x: noisy_outputs(params, x, None)))
    w = example_problem().init(KEY)
    np.testing.assert_array_equal(oracle.value(w), plain.value(w))
    jax.tree.map(np.testing.assert_array_equal, oracle.grad(w), plain.grad(w))


class LinenNet(linen.Module):
    @linen.compact
    def __call__(self, x, deterministic=True):
        return linen.Dropout(RATE, deterministic=deterministic)(linen.Dense(40)(x))


class NnxNet(nnx.Module):
    def __init__(self, rngs):
        self.linear, self.dropout = nnx.Linear(4, 40, rngs=rngs), nnx.Dropout(RATE, rngs=rngs)

    def __call__(self, x):
        return self.dropout(self.linear(x))


class TwoDropouts(nnx.Module):
    """The share of outputs that two layers of dropout leave on: 1/4 if their masks are independent, else 1/2."""

    def __init__(self, rngs):
        self.scale = nnx.Param(jnp.ones(()))
        self.first, self.second = nnx.Dropout(RATE, rngs=rngs), nnx.Dropout(RATE, rngs=rngs)

    def __call__(self, x):
        return self.scale * self.second(self.first(x))


MODELS = {
    "equinox": lambda: rv.models.from_equinox(
        lambda key: eqx.nn.Sequential([eqx.nn.Linear(4, 40, key=key), eqx.nn.Dropout(RATE)])),
    "linen": lambda: rv.models.from_flax(LinenNet(), jnp.ones((1, 4)), training={"deterministic": False}),
    "nnx": lambda: rv.models.from_nnx(NnxNet),
}


@pytest.mark.when_changed
@nightly.parametrize("kind", MODELS, others=nightly.WHEN_CHANGED)
def test_dropout_of_wrapped_modules(kind):
    model, x = MODELS[kind](), jnp.ones((50, 4))
    assert model.has_random_layers
    w = model.init(KEY)
    evaluated = model.apply(w, x)
    step, again, other = (model.in_training(jax.random.key(seed)).apply(w, x) for seed in (0, 0, 1))
    np.testing.assert_array_equal(step, again)
    assert float(jnp.mean((step == 0) == (other == 0))) == pytest.approx(0.5, abs=0.1)
    assert float(jnp.mean(step == 0)) == pytest.approx(RATE, abs=0.1)
    np.testing.assert_allclose(jnp.where(step == 0, evaluated / (1 - RATE), step), evaluated / (1 - RATE), rtol=1e-5)


def test_layers_of_one_nnx_module_have_different_keys():
    model = rv.models.from_nnx(TwoDropouts)
    outputs = model.in_training(KEY).apply(model.init(KEY), jnp.ones((40, 40)))
    assert float(jnp.mean(outputs > 0)) == pytest.approx((1 - RATE)**2, abs=0.05)


def test_an_nnx_module_without_random_layers_is_its_function():
    model = rv.models.from_nnx(lambda rngs: nnx.Linear(4, 3, rngs=rngs))
    assert not model.has_random_layers
    w, x = model.init(KEY), jnp.arange(8.0).reshape(2, 4)
    np.testing.assert_allclose(model.apply(w, x), x @ w["kernel"] + w["bias"], rtol=1e-6)
    assert not np.allclose(w["kernel"], model.init(jax.random.key(4))["kernel"])


@pytest.mark.parametrize(("make", "message"), [
    (lambda: 3, "cannot be called with nnx.Rngs"),
])
def test_functions_that_make_no_nnx_module_are_refused(make, message):
    with pytest.raises(rv.InputError, match=message):
        rv.models.from_nnx(make)


class Attention(eqx.Module):
    """Attention over 3 samples' features, by a call without a key."""

    attention: eqx.nn.MultiheadAttention

    def __init__(self, key, rate=0.0):
        self.attention = eqx.nn.MultiheadAttention(1, 2, dropout_p=rate, key=key)

    def __call__(self, x):
        return self.attention(x, x, x).reshape(-1)


def test_dropout_of_rate_zero_needs_no_key():
    model = rv.models.from_equinox(Attention)
    assert not model.has_random_layers
    w, x = model.init(KEY), jnp.arange(12.0).reshape(2, 3, 2)
    np.testing.assert_allclose(model.in_training(KEY).apply(w, x), jax.vmap(Attention(KEY))(x), rtol=1e-6)


def test_dropout_in_a_module_without_a_key_is_refused():
    with pytest.raises(rv.InputError, match=r"Attention.*no argument key"):
        rv.models.from_equinox(lambda key: Attention(key, rate=0.5))
