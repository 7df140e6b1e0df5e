"""Steps that update the rows of a table, against the original steps: values and derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nightly
from xla_cpu_rewrites import rewrite, row_updates
from xla_cpu_rewrites.row_updates import update_rows

ROWS, WIDTH = 40, 3
TOKENS = jnp.array([[3, 7, 3], [39, 0, 7]])  # with repetitions


@pytest.fixture(autouse=True)
def _no_minimum(monkeypatch):
    monkeypatch.setattr(row_updates, "_MIN_BYTES", 0)


def loss(params):
    return jnp.mean(jnp.tanh(jnp.take(params["table"], TOKENS, axis=0).mean(1) @ params["output"]) ** 2)


@pytest.fixture(scope="module")
def params():
    with jax.enable_x64(True):
        random = np.random.default_rng(0)
        yield {"table": jnp.asarray(random.normal(size=(ROWS, WIDTH))),
               "output": jnp.asarray(random.normal(size=(WIDTH, 2)))}


gradient_of = rewrite(jax.grad(loss))


def proximal(values, w):
    """The implicit step of SGD, with weight decay and a linear term."""
    gradient = jax.tree.map(lambda g, v: g + values["decay"] * v, gradient_of(w), w)
    kappa = 1 / (1 + 0.1 * values["weight"])
    return jax.tree.map(lambda v, g, c: kappa * (v - 0.1 * (g + values["linear"] * c)) + (1 - kappa) * c, w, gradient,
                        values["center"])


def gradients_of_rows(step, w):
    return list(row_updates.row_gradients(jax.make_jaxpr(step)(w).jaxpr))


@pytest.mark.when_changed
@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.sampled_from([0.0, 0.3]), st.sampled_from([0.0, 0.5]), st.sampled_from([0.0, 2.0]))
def test_a_step_is_that_of_the_whole_table(params, decay, weight, linear):
    with jax.enable_x64(True):
        values = {"decay": jnp.asarray(decay), "weight": jnp.asarray(weight), "linear": jnp.asarray(linear),
                  "center": jax.tree.map(jnp.cos, params)}
        plain, ours = _compiled(values, params)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-12), plain, ours)


@jax.jit
def _compiled(values, params):
    def transformed(step):
        two = jax.tree.map(lambda leaf: jnp.stack([leaf, -leaf]), params)
        return step(params), jax.jvp(step, (params,), (params,))[1], jax.vmap(step)(two)

    def step(w):
        return proximal(values, w)

    return transformed(step), transformed(update_rows(step))


def test_the_gradient_of_the_table_is_not_stored(params):
    def step(w):
        return jax.tree.map(lambda v, g: v - 0.1 * g, w, gradient_of(w))

    with jax.enable_x64(True):
        assert [(table.shape, updates.shape) for table, updates in gradients_of_rows(step, params)] == [
            ((ROWS, WIDTH), (2, 3, WIDTH))]
        assert not gradients_of_rows(update_rows(step), params)
        assert [(item.operation, item.operands) for item in rewrite.replacements(jax.grad(loss), params)] == [
            ("scatter-add", ("float64[40,3]", "int32[2,3,1]", "float64[2,3,3]"))]


def test_a_gradient_that_is_not_rewritten_stays(params):
    def step(w):
        return jax.tree.map(lambda v, g: v - 0.1 * g, w, jax.grad(loss)(w))

    with jax.enable_x64(True):
        assert str(jax.make_jaxpr(update_rows(step))(params)) == str(jax.make_jaxpr(step)(params))


def clipped(w):
    gradient = gradient_of(w)
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradient)))
    return jax.tree.map(lambda v, g: v - g / jnp.maximum(norm, 1), w, gradient)


def momentum(state):
    w, moments = state
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, gradient_of(w))
    return jax.tree.map(lambda v, m: v - 0.1 * m, w, moments), moments


STAYS = {
    "the step reads the gradient": (clipped, lambda w: w),
    "two results need the gradient": (momentum, lambda w: (w, w)),
    "the next table is no linear combination": (
        lambda w: jax.tree.map(lambda v, g: jnp.tanh(v - g), w, gradient_of(w)), lambda w: w)}


@nightly.parametrize("case", STAYS, others=nightly.WHEN_CHANGED)
def test_what_needs_the_whole_gradient_stays(params, case):
    step, state = STAYS[case]
    with jax.enable_x64(True):
        assert gradients_of_rows(update_rows(step), state(params)) == gradients_of_rows(step, state(params))
        jax.tree.map(np.testing.assert_array_equal, update_rows(step)(state(params)), step(state(params)))


@pytest.mark.when_changed
def test_it_can_be_switched_off(params, monkeypatch):
    monkeypatch.setenv("XLA_CPU_REWRITES", "0")

    def program(gradient, change=lambda step: step):
        return str(jax.make_jaxpr(change(lambda w: jax.tree.map(jnp.subtract, w, gradient(w))))(params))

    with jax.enable_x64(True):
        assert program(gradient_of, update_rows) == program(jax.grad(loss))
