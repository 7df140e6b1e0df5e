"""Kernels against reference operations and their automatic gradients, to rounding in float64."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nightly
from xla_cpu_rewrites import kernels
from xla_cpu_rewrites.small_call import allow_small_calls


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def draw(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.normal(size=shape)) for shape in shapes]


def convolution(x, weight):
    return jax.lax.conv_general_dilated(x, weight, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def block(x, weight, bias):
    h = jax.nn.relu(convolution(x, weight) + bias)
    return jax.lax.reduce_window(h, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def layer(x, inputs, state, bias):
    h = c = jnp.zeros((x.shape[1], len(state)))
    states = []
    for inputs_t in x:
        i, f, g, o = jnp.split(inputs_t @ inputs + h @ state + bias, 4, axis=-1)
        c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        states.append(h)
    return jnp.stack(states)


def value_and_gradients(function, args, out):
    """The value, the gradient, and the Hessian-vector product in the direction of the arguments."""
    def value(*args):
        return jnp.vdot(jnp.sin(function(*args)), out)

    gradient = jax.grad(value, argnums=tuple(range(len(args))))
    return value(*args), *jax.jvp(gradient, args, args)


CASES = {
    "convolution 5x5": (kernels.convolve, convolution, [(3, 9, 8, 2), (5, 5, 2, 3)]),
    "convolution 1x1": (kernels.convolve, convolution, [(2, 3, 4, 2), (1, 1, 2, 3)]),
    "block 5x5": (kernels.convolve_relu_pool, block, [(3, 10, 12, 2), (5, 5, 2, 3), (3,)]),
    "block 5x5, odd": (kernels.convolve_relu_pool, block, [(2, 9, 11, 1), (5, 5, 1, 4), (4,)]),
    "block 4x4": (kernels.convolve_relu_pool, block, [(2, 9, 8, 2), (4, 4, 2, 3), (3,)]),
    "block 2x2": (kernels.convolve_relu_pool, block, [(2, 5, 6, 2), (2, 2, 2, 3), (3,)]),
    "block 1x1": (kernels.convolve_relu_pool, block, [(2, 5, 4, 2), (1, 1, 2, 3), (3,)]),
    "lstm": (kernels.lstm, layer, [(4, 2, 3), (3, 20), (5, 20), (20,)]),
    "lstm of 33 units": (kernels.lstm, layer, [(2, 8, 3), (3, 132), (33, 132), (132,)]),
    "lstm of one time": (kernels.lstm, layer, [(1, 2, 3), (3, 4), (1, 4), (4,)]),
}
EVERY_COMMIT = ["lstm"]


@pytest.mark.when_changed
@nightly.parametrize("case", sorted(CASES, key=EVERY_COMMIT.__contains__, reverse=True), per_commit=len(EVERY_COMMIT),
                     others=nightly.WHEN_CHANGED)
def test_it_is_the_textbooks_with_its_gradients(case):
    ours, theirs, shapes = CASES[case]
    args = tuple(draw(*shapes))
    want = theirs(*args)
    (out,) = draw(want.shape, seed=1)
    np.testing.assert_allclose(ours(*args), want, atol=1e-13)
    actual, reference = (jax.jit(partial(value_and_gradients, f))(args, out) for f in (ours, theirs))
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-11), actual, reference)
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(reference[2])) > 0.01  # the curvature is not zero


@pytest.mark.when_changed
@nightly.parametrize("case", ["convolution 5x5", "lstm", "block 5x5"], per_commit=2)
def test_it_is_the_same_in_lanes(case):
    ours, theirs, shapes = CASES[case]
    args = tuple(draw(*[(3, *shape) for shape in shapes]))
    (out,) = draw(theirs(*[a[0] for a in args]).shape, seed=1)
    actual = jax.jit(jax.vmap(partial(value_and_gradients, ours), in_axes=(0, None)))(args, out)
    single = jax.jit(partial(value_and_gradients, theirs))
    reference = jax.tree.map(lambda *rows: jnp.stack(rows), *[single(tuple(a[i] for a in args), out) for i in range(3)])
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-11), actual, reference)


@pytest.mark.when_changed
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="for CPUs")
@nightly.parametrize("lanes", [True, False])
def test_it_is_the_same_with_the_gates_as_one_function(lanes):
    """The engine compiles the gates as one function."""
    ours, theirs, shapes = CASES["lstm of 33 units"]
    args = tuple(draw(*[(2, *shape) for shape in shapes]))
    (out,) = draw(theirs(*[a[0] for a in args]).shape, seed=1)

    def of_two(f):
        of_pair = partial(value_and_gradients, f)
        if lanes:
            return jax.jit(jax.vmap(of_pair, in_axes=(0, None)))
        return jax.jit(lambda args, out: jax.lax.map(lambda a: of_pair(a, out), args))

    with allow_small_calls():
        assert "xla_cpu_small_call" in of_two(ours).lower(args, out).as_text()
        actual = of_two(ours)(args, out)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-11), actual, of_two(theirs)(args, out))


def test_ties_belong_to_the_first_of_a_square_and_zero_has_no_gradient():
    """As in JAX's reduce-window primitive. Small integers tie often."""
    rng = np.random.default_rng(0)
    x, weight = (jnp.asarray(rng.integers(-1, 2, shape), float) for shape in [(4, 8, 8, 1), (3, 3, 1, 2)])
    bias = jnp.array([0.0, 1.0])
    (out,) = draw((4, 3, 3, 2))
    actual, reference = (jax.jit(jax.grad(lambda *a, f=f: jnp.vdot(f(*a), out), argnums=(0, 1, 2)))(x, weight, bias)
                    for f in (kernels.convolve_relu_pool, block))
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-12), actual, reference)
    squares = np.asarray(convolution(x, weight))[:, :6, :6].reshape(4, 3, 2, 3, 2, 2)
    top = squares.max(axis=(2, 4), keepdims=True)
    assert ((squares == top).sum(axis=(2, 4)) > 1).mean() > 0.2
    assert (top + np.asarray(bias) == 0).any()


@pytest.mark.when_changed
def test_dtypes_stay_and_mixed_ones_widen():
    x, weight, bias = (a.astype(jnp.float32) for a in draw((2, 6, 6, 1), (3, 3, 1, 2), (2,)))
    gradient = jax.jit(jax.grad(lambda *a: jnp.sum(kernels.convolve_relu_pool(*a)), argnums=(0, 1, 2)))
    assert {g.dtype for g in gradient(x, weight, bias)} == {jnp.dtype("float32")}
    wide = gradient(x, weight.astype(float), bias)
    assert [g.dtype for g in wide] == [jnp.dtype(d) for d in ("float32", "float64", "float32")]
    assert kernels.convolve_relu_pool(jnp.ones((1, 6, 6, 1), int), weight, bias).dtype == jnp.float32
