"""Channels-last layouts against the program as written: values and derivatives of networks of random operations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax

from xla_cpu_rewrites.layouts import carry_layouts
from xla_cpu_rewrites.values import from_order
from xla_cpu_rewrites.weights import orient_products

B, C, H = 2, 4, 6
BIG = B * C * H * H


def convolve(x, w, strides=(1, 1)):
    return lax.conv_general_dilated(x, w[:C, :, :3, :3], strides, "SAME")


def group_norm(x, w):
    groups = x.reshape(B, 2, -1)
    mean, variance = jnp.mean(groups, 2, keepdims=True), jnp.var(groups, 2, keepdims=True)
    return ((groups - mean) * lax.rsqrt(variance + 0.1)).reshape(x.shape) * w[0, :, :1, :1] + w[1, :, :1, :1]


OPERATIONS = {
    "convolution": convolve,
    "group norm": group_norm,
    "activation": lambda x, w: jax.nn.silu(x) + jax.nn.relu(w[0, 0, 0, 0] - x),
    "residual": lambda x, w: x + convolve(jnp.tanh(x), w),
    "one sample at a time": lambda x, w: jax.vmap(lambda v: v * w[0, 0] + jnp.max(v, axis=0))(x),
    "pooling": lambda x, w: lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 3, 2), (1, 1, 1, 1), "SAME"),
    "rows and columns exchanged": lambda x, w: jnp.swapaxes(x, 2, 3) * w[0, 0],
    "channels shuffled": lambda x, w: jnp.swapaxes(x.reshape(B, 2, C // 2, H, H), 1, 2).reshape(x.shape),
    "pad and slice": lambda x, w: jnp.pad(x, ((0, 0), (1, 0), (0, 0), (1, 1)))[:, :C, :, 1:-1],
    "concatenation": lambda x, w: jnp.concatenate([x[:, 2:], x[:, :2] * w[0, 0]], axis=1),
    "upsampling": lambda x, w: jnp.repeat(jnp.repeat(x[:, :, ::2, ::2], 2, 2), 2, 3),
    "attention to channels": lambda x, w: x * jax.nn.sigmoid(jnp.mean(x, (2, 3)) @ w[0, :, :C, 0])[:, :, None, None],
    "softmax": lambda x, w: jax.nn.softmax(x, axis=1),
    "cumulative sum": lambda x, w: jnp.cumsum(x, axis=1) / C,
    "columns flattened": lambda x, w: (x.reshape(B, C * H, H) * w[0, 0, 0]).reshape(x.shape),
}


@pytest.mark.when_changed
@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from(list(OPERATIONS)), min_size=2, max_size=4))
def test_networks(names):
    def network(w, x):
        h = convolve(x, w)
        for name in names:
            h = OPERATIONS[name](h, w)
        return jnp.sum(jnp.sin(h.reshape(B, -1)) ** 2)

    def derivatives(w, x):
        gradient = jax.grad(network)
        return network(w, x), jax.jvp(lambda w: gradient(w, x), (w,), (jnp.cos(w),))

    with jax.enable_x64(True):
        random = np.random.default_rng(0)
        args = [jnp.asarray(random.normal(size=shape)) for shape in ((C, C, H, H), (B, C, H, H))]
        closed, shape = jax.make_jaxpr(derivatives, return_shape=True)(*args)
        carried = carry_layouts(closed)
        plain, ours = jax.jit(lambda *args: [jax.core.eval_jaxpr(c.jaxpr, c.consts, *args) for c in (closed, carried)])(
            *args)
        assert [a.shape for a in ours] == [leaf.shape for leaf in jax.tree.leaves(shape)]
        for a, b in zip(plain, ours, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-9)


def transposes(jaxpr):
    """The number of transpositions of arrays of the size of an image."""
    return sum(equation.primitive.name == "transpose" and equation.invars[0].aval.size >= BIG
               for equation in jaxpr.eqns) + sum(
        transposes(inner.jaxpr) for equation in jaxpr.eqns if equation.primitive.name == "jit"
        for inner in [equation.params["jaxpr"]])


@pytest.mark.parametrize("layers", [1, 4])
def test_transposes_cancel_between_layers(layers):
    def loss(w, x):
        for _ in range(layers):
            x = jax.nn.relu(group_norm(convolve(x, w), w)) + x
        return jnp.sum(x**2)

    closed = jax.make_jaxpr(jax.grad(loss))(jnp.ones((C, C, 3, 3)), jnp.ones((B, C, H, H)))
    assert transposes(carry_layouts(closed).jaxpr) <= 2


def test_an_activation_keeps_its_derivative():
    @jax.custom_jvp
    def clipped(x):
        return jnp.maximum(x, 0)

    clipped.defjvps(lambda t, _, x: 7 * t)

    def loss(w, x):
        return jnp.sum(clipped(convolve(x, w)))

    w, x = jnp.ones((C, C, 3, 3)), -jnp.ones((B, C, H, H))
    closed = carry_layouts(jax.make_jaxpr(loss)(w, x))
    assert "custom_jvp_call" in str(closed)
    gradient = jax.grad(lambda w: jax.core.eval_jaxpr(closed.jaxpr, closed.consts, w, x)[0])(w)
    np.testing.assert_allclose(gradient, jax.grad(loss)(w, x), rtol=1e-5)


def test_a_reshape_that_transposes():
    """As in the gradients of ``vmap``, which joins the parties and the features of a convolution."""
    def f(w, x):
        h = jnp.tanh(convolve(x, w))
        return jax.lax.reshape(h, (H, B * C, H), dimensions=(2, 0, 1, 3))

    w, x = jnp.asarray(np.random.default_rng(0).normal(size=(C, C, 3, 3))), jnp.ones((B, C, H, H)).cumsum()
    x = x.reshape(B, C, H, H) / x.size
    closed = carry_layouts(jax.make_jaxpr(f)(w, x))
    np.testing.assert_allclose(jax.core.eval_jaxpr(closed.jaxpr, closed.consts, w, x)[0], f(w, x), rtol=1e-5, atol=1e-5)


def test_a_program_without_windows_is_the_same():
    closed = jax.make_jaxpr(lambda x: jnp.sum(x.T @ x))(jnp.ones((3, 3)))
    assert carry_layouts(closed) is closed


@pytest.mark.when_changed
def test_a_mask_of_labels_keeps_the_order_of_the_logits():
    def loss(x, w, y):
        logits = jax.vmap(lambda row: w @ row)(jnp.tanh(x))
        mask = jnp.arange(logits.shape[1]) == y[:, None]
        return jnp.sum(jnp.where(mask, logits, 0) - jax.nn.logsumexp(logits, axis=-1, keepdims=True))

    x, w, y = jnp.ones((9, 5)).cumsum().reshape(9, 5) / 45, jnp.ones((4, 5)).cumsum().reshape(4, 5), jnp.arange(9) % 4
    gradient = jax.grad(loss, (0, 1))
    closed = orient_products(jax.make_jaxpr(gradient)(x, w, y))
    assert not any(v.aval.shape == (4, 9) for equation in closed.jaxpr.eqns for v in equation.outvars)
    for ours, plain in zip(jax.core.eval_jaxpr(closed.jaxpr, closed.consts, x, w, y), gradient(x, w, y), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-5)


def test_an_array_with_the_axes_in_any_order():
    x = jnp.arange(24.0).reshape(2, 3, 4)
    value = from_order(jnp.transpose(x, (2, 0, 1)), (2, 0, 1))
    np.testing.assert_array_equal(value.plain(), x)
    np.testing.assert_array_equal(value.split([[2], [3], [2, 2]]).plain(), x)
