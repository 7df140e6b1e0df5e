"""Rewritten operations against the original ones: values and derivatives of any kind, in float64 and float32."""

from functools import partial
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax

import nightly
from xla_cpu_rewrites import rewrite, versions
from xla_cpu_rewrites.convolutions import winograd
from xla_cpu_rewrites.proof import obstacle_to_rewriting

SWEEP = settings(max_examples=nightly.examples(20), deadline=None, derandomize=True,
                 suppress_health_check=list(HealthCheck))


def draw_array(seed, shape, dtype):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def operations(f, *args):
    return {item.operation for item in rewrite.replacements(f, *args)}


def value_and_derivatives(f, cotangent):
    """Value, both gradients, and the derivative of all three along the arguments: every transpose of every order."""
    def all_of(*args):
        value, pull_back = jax.vjp(f, *args)
        return value, *pull_back(cotangent)
    return lambda *args: jax.jvp(all_of, args, args)


def assert_equal(f, *args, exactly=False):
    shape = jax.eval_shape(f, *args)
    derivatives = value_and_derivatives(f, draw_array(9, shape.shape, shape.dtype))
    plain, rewritten = jax.jit(lambda *args: (derivatives(*args), rewrite(derivatives)(*args)))(*args)
    tolerance = 0 if exactly else 1e-4 if shape.dtype == np.float32 else 1e-11
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(rewritten), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance * max(1, np.abs(a).max(initial=0)))


@st.composite
def convolutions(draw, with_larger_windows=False):
    """Operands and parameters of a convolution with at least one output."""
    spatial = draw(st.sampled_from([1, 2, 2, 3]))
    small = st.lists(st.integers(1, 3), min_size=spatial, max_size=spatial).map(tuple)
    groups, features, multiplier = draw(st.sampled_from([(1, 1, 3), (1, 3, 2), (2, 2, 1), (3, 1, 2), (5, 1, 1),
                                                         (6, 2, 1), (2, 3, 8)]))
    window, strides, lhs_dilation, rhs_dilation = (draw(small) for _ in range(4))
    if with_larger_windows and draw(st.booleans()):  # of a kind that has Winograd's forms
        window = tuple(draw(st.sampled_from([2, 3, 5, 7])) for _ in range(spatial))
        strides = lhs_dilation = rhs_dilation = (1,) * spatial
    reach = [(k - 1) * d + 1 for k, d in zip(window, rhs_dilation, strict=True)]
    padding = tuple((draw(st.integers(-1, 3)), draw(st.integers(-1, 3))) for _ in range(spatial))
    sizes = [max(draw(st.integers(1, 7)), -(-(r - min(p, 0) * 2 + 2) // d)) for r, d, p
             in zip(reach, lhs_dilation, map(min, padding), strict=True)]
    lhs_order, rhs_order, out_order = (draw(st.permutations(range(spatial + 2))) for _ in range(3))
    lhs, rhs = [0] * (spatial + 2), [0] * (spatial + 2)
    for axis, size in zip(lhs_order, (draw(st.integers(1, 3)), groups * features, *sizes), strict=True):
        lhs[axis] = size
    for axis, size in zip(rhs_order, (groups * multiplier, features, *window), strict=True):
        rhs[axis] = size
    numbers = lax.ConvDimensionNumbers(*(tuple(order) for order in (lhs_order, rhs_order, out_order)))
    return lhs, rhs, {"window_strides": strides, "padding": padding, "lhs_dilation": lhs_dilation,
                      "rhs_dilation": rhs_dilation, "dimension_numbers": numbers, "feature_group_count": groups}


@pytest.mark.when_changed
@SWEEP
@given(convolutions(with_larger_windows=True), st.sampled_from([np.float64, np.float64, np.float32]))
def test_convolutions(case, dtype):
    lhs, rhs, params = case
    with jax.enable_x64(True), patch.multiple(winograd, _MIN_SAVED=0, _MIN_SAVED_BY_FILTER=0):
        args = draw_array(0, lhs, dtype), draw_array(1, rhs, dtype)

        def convolve(lhs, rhs):
            return lax.conv_general_dilated(lhs, rhs, **params)

        assert operations(convolve, *args) == {"conv_general_dilated"}
        assert_equal(convolve, *args)


@pytest.mark.when_changed
@settings(SWEEP, max_examples=nightly.examples(8))
@given(convolutions(), st.sampled_from([np.float64, np.float32, np.float16, jnp.bfloat16]))
def test_convolutions_of_several_parties_in_a_loop(case, dtype):
    """Under ``vmap`` of both operands, in a scan, with gradients; half precision stays XLA's own."""
    lhs, rhs, params = case

    def steps(x, filters):
        def step(total, w):
            value, gradients = jax.value_and_grad(lambda *args: jnp.sum(jnp.tanh(
                lax.conv_general_dilated(*args, **params))), (0, 1))(x, w)
            return total + value, gradients

        return lax.scan(step, jnp.zeros((), x.dtype), filters)

    with jax.enable_x64(True):
        args = draw_array(0, (2, *lhs), dtype), draw_array(1, (2, 3, *rhs), dtype)
        every = jax.vmap(steps)
        assert bool(operations(every, *args)) == (dtype in (np.float64, np.float32))
        plain, rewritten = jax.jit(lambda *args: (every(*args), rewrite(every)(*args)))(*args)
    tolerance = {np.float64: 1e-11, np.float32: 1e-4}.get(dtype, 0)
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(rewritten), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(b.astype(float), a.astype(float), rtol=tolerance,
                                   atol=tolerance * np.abs(a).max(initial=1))


@settings(SWEEP, max_examples=nightly.examples(10))
@given(st.lists(st.integers(1, 6), min_size=3, max_size=5), st.integers(0, 31),
       st.sampled_from([jnp.sum, jnp.max, jnp.min, jnp.mean]), st.sampled_from([np.float64, np.float32, np.float16]))
def test_reductions(shape, chosen, reduce, dtype):
    axes = tuple(axis for axis in range(len(shape)) if chosen >> axis & 1)
    shape = [4 * n + 1 for n in shape[:2]] + shape[2:]

    def f(x):
        return jnp.tanh(reduce(x, axes)) * reduce(x * x, axes)

    with jax.enable_x64(True):
        x = draw_array(0, shape, dtype)
        if dtype == np.float16:
            plain, rewritten = jax.jit(lambda x: (f(x), rewrite(f)(x)))(x)
            np.testing.assert_allclose(rewritten, plain, rtol=4e-3, atol=4e-3)
        else:
            assert_equal(f, x)
            assert_equal(jax.vmap(f, 1, 1 if len(axes) < len(shape) - 1 else 0), jnp.stack([x, 2 * x], 1))


def test_a_reduction_over_pixels_and_groups_is_two():
    x = draw_array(0, (4, 8, 8, 4, 2), np.float32)
    for reduce, name in ((jnp.sum, "reduce_sum"), (jnp.max, "reduce_max"), (jnp.min, "reduce_min")):
        assert operations(lambda x, reduce=reduce: reduce(x, (1, 2, 4)), x) == {name}
        assert not operations(lambda x, reduce=reduce: reduce(x, (1, 2)), x)
        assert not operations(lambda x, reduce=reduce: reduce(x, (3, 4)), x)


@pytest.mark.parametrize("reduce", [jnp.sum, jnp.max, jnp.min])
def test_a_rewritten_reduction_is_transformed_as_the_original(reduce):
    def f(x):
        return jnp.sin(reduce(jnp.tanh(x), (1, 2, 4)))

    with jax.enable_x64(True):
        x, of_two = draw_array(0, (4, 8, 8, 4, 2), np.float64), draw_array(1, (2, 4, 8, 8, 4, 2), np.float64)
        assert operations(f, x) == {f"reduce_{reduce.__name__}"}
        for transformed in (lambda f: jax.vmap(f)(of_two), lambda f: jax.jvp(f, (x,), (x,)),
                            lambda f: jax.vmap(jax.grad(lambda x: jnp.sum(f(x))))(of_two)):
            jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-11, atol=1e-12), transformed(rewrite(f)),
                         transformed(f))


def normalised(x, scale, shift, *, groups=None, is_stable=False):
    """Batch or group normalisation of images with the features last."""
    divided, axes = (x, (0, 1, 2)) if groups is None else (x.reshape(*x.shape[:-1], groups, -1), (1, 2, 4))
    mean = jnp.mean(divided, axes, keepdims=True)
    variance = jnp.var(divided, axes, keepdims=True) if is_stable else (
        jnp.maximum(jnp.mean(divided * divided, axes, keepdims=True) - mean * mean, 0))
    return ((divided - mean) / jnp.sqrt(variance + 1e-5)).reshape(x.shape) * scale + shift


@pytest.mark.when_changed
@nightly.parametrize(("shape", "groups", "is_stable"), [
    ((3, 8, 9, 24), 4, False), ((2, 17, 5, 30), 15, True), ((3, 8, 9, 24), None, False), ((3, 8, 9, 24), None, True),
    ((3, 8, 9, 24), 4, True), ((2, 17, 5, 30), 15, False)], per_commit=1, others=nightly.WHEN_CHANGED)
def test_normalisation(shape, groups, is_stable):
    """Alone, for several parties, after other operations and before a residual connection."""
    def f(x, scale, shift):
        y = normalised(jnp.tanh(x), scale, shift, groups=groups, is_stable=is_stable)
        return jax.nn.silu(y * x + y) + x

    with jax.enable_x64(True):
        args = [draw_array(i, s, np.float64) for i, s in enumerate((shape, shape[-1:], shape[-1:]))]
        assert "mul" in operations(jax.grad(lambda *args: jnp.sum(f(*args)), (0, 1, 2)), *args)
        assert_equal(f, *args)
        assert_equal(jax.vmap(f), *(jnp.stack([a, 2 * a]) for a in args))


def test_normalisation_is_as_exact_as_before():
    """Errors in float32, compared with float64, for images whose mean is ten times their standard deviation."""
    def f(x, scale, shift, g):
        out, pull_back = jax.vjp(lambda *args: normalised(*args, groups=4), x, scale, shift)
        return out, *pull_back(g)

    shapes = (8, 16, 16, 16), (16,), (16,), (8, 16, 16, 16)
    args = [draw_array(i, s, np.float32) + 10 * (i == 0) for i, s in enumerate(shapes)]
    plain, rewritten = jax.jit(lambda *args: (f(*args), rewrite(f)(*args)))(*args)
    with jax.enable_x64(True):
        exact = jax.jit(f)(*(np.float64(a) for a in args))
    for a, b, c in zip(*(map(np.asarray, results) for results in (plain, rewritten, exact)), strict=True):
        assert np.linalg.norm(b - c) <= 3 * np.linalg.norm(a - c) + 1e-6 * np.linalg.norm(c)


def test_sums_over_rows_stay():
    def layer_normalisation(x, scale):
        return (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True) * scale

    x, scale = draw_array(0, (128, 64), np.float32), draw_array(1, (64,), np.float32)
    assert not operations(jax.grad(lambda *args: jnp.sum(layer_normalisation(*args) ** 2), (0, 1)), x, scale)


@pytest.mark.parametrize(("columns", "filters"), [(8, 16), (8, 3), (6, 8), (7, 16)])
def test_convolutions_with_few_filters(columns, filters):
    def convolve(lhs, rhs):
        return lax.conv_general_dilated(lhs, rhs, (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NCHW"))

    with jax.enable_x64(True):
        assert_equal(convolve, draw_array(0, (2, 5, columns, 2), np.float64),
                     draw_array(1, (3, 3, 2, filters), np.float64))


@pytest.mark.when_changed
@nightly.diagonal(("case", "dtype"), [(3, 1), (5, 1), (7, 1), (3, 2)], [np.float64, np.float32])
def test_winograds_forms_and_sums_of_groups_under_every_transformation(case, dtype, monkeypatch):
    """In a scan, under ``vmap``, with derivatives of the second order, as in meta-learning."""
    window, groups = case
    for name in ("_MIN_SAVED", "_MIN_SAVED_BY_FILTER"):
        monkeypatch.setattr(winograd, name, 1)

    def loss(filters, x, y):
        def layer(h, w):
            return jnp.tanh(lax.conv_general_dilated(h, w, (1, 1), "SAME", feature_group_count=groups)), None

        return jnp.sum((lax.scan(layer, x, filters)[0] - y) ** 2)

    def adapted(filters, x, y):
        return loss(filters - 0.1 * jax.grad(loss)(filters, x, y), x, y)

    def every(*args):
        return jax.vmap(jax.value_and_grad(adapted, (0, 1)), (None, 0, 0))(*args)

    with jax.enable_x64(True):
        features, columns = (2, 8) if groups == 1 else (16, 17)
        shapes = [(2, features, features // groups, window, window), *[(3, 2, features, 7, columns)] * 2]
        args = [draw_array(n, shape, dtype) for n, shape in enumerate(shapes)]
        plain, rewritten = jax.jit(lambda *args: (every(*args), rewrite(every)(*args)))(args[0] / window**2, *args[1:])
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(rewritten), strict=True):
        assert a.dtype == b.dtype
        tolerance = 1e-4 if dtype == np.float32 else 1e-11
        np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance * np.abs(a).max())


@st.composite
def poolings(draw):
    """An operand with ties, and the windows of a reduction."""
    sizes = draw(st.sampled_from([(1, 1, 2, 2), (1, 2, 2, 1), (1, 1, 3, 2), (1, 3, 1), (2, 2)]))
    tiles = draw(st.booleans())
    strides = sizes if tiles else tuple(draw(st.integers(1, 3)) for _ in sizes)
    padding = tuple((draw(st.integers(0, size - 1)), draw(st.integers(0, size - 1))) for size in sizes)
    shape = [draw(st.integers(max(2, size), 7)) for size in sizes]
    return shape, {"window_dimensions": sizes, "window_strides": strides, "padding": padding}, draw(st.integers(0, 99))


@pytest.mark.nightly
@SWEEP
@given(poolings(), st.sampled_from([(lax.max, -np.inf), (lax.min, np.inf), (lax.add, 0.0)]))
def test_pooling_with_the_gradient_of_the_same_tied_entry(case, reduction):
    shape, params, seed = case
    combine, neutral = reduction
    with jax.enable_x64(True):
        x = jnp.asarray(np.random.default_rng(seed).integers(0, 3, shape), np.float64)
        assert_equal(lambda x: lax.reduce_window(x, neutral, combine, **params), x,
                     exactly=combine is not lax.add)


def network(params, x):
    """All kinds of nested programs around convolutions and pooling."""
    def convolve(h, w):
        return lax.conv_general_dilated(h, w, (1, 1), "SAME")

    @jax.custom_jvp
    def squashed(h, w):
        return jnp.tanh(convolve(h, w))

    @squashed.defjvp
    def _(primals, tangents):
        return jax.jvp(lambda h, w: jnp.tanh(convolve(h, w)), primals, tangents)

    @jax.custom_vjp
    def halved(h, w):
        return convolve(h, w) / 2

    halved.defvjp(lambda h, w: (convolve(h, w) / 2, (h, w)),
                  lambda operands, g: jax.vjp(lambda h, w: convolve(h, w) / 2, *operands)[1](g))
    h = jax.checkpoint(lambda h: jnp.sin(convolve(h, params["a"])))(x)
    h = squashed(h, params["a"])
    h = halved(h, params["a"])
    h = jax.lax.scan(lambda h, w: (jax.jit(convolve)(h, w), None), h, jnp.stack([params["a"], params["b"]]))[0]
    h = lax.cond(jnp.sum(x) > 0, lambda h: convolve(h, params["a"]), lambda h: convolve(h, params["b"]), h)
    h = lax.reduce_window(h, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    return jnp.sum(h**2)


@pytest.fixture
def small_network():
    with jax.enable_x64(True):
        params = {"a": draw_array(0, (2, 2, 3, 3), np.float64), "b": draw_array(1, (2, 2, 3, 3), np.float64)}
        yield params, draw_array(2, (2, 2, 4, 4), np.float64)


@pytest.mark.when_changed
def test_every_transformation_of_a_network(small_network):
    params, x = small_network

    def transformed(f):
        gradient = jax.grad(f)
        of_two = jax.tree.map(lambda leaf: jnp.stack([leaf, -leaf]), params)
        return (f(params, x), gradient(params, x), jax.vmap(gradient, (0, None))(of_two, x),
                jax.jvp(lambda p: gradient(p, x), (params,), (params,))[1],
                jax.grad(lambda p: sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(gradient(p, x))))(params))

    plain, ours = jax.jit(lambda: (transformed(network), transformed(rewrite(network))))()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, rtol=1e-10, atol=1e-10), plain, ours)


@pytest.mark.when_changed
def test_the_rewritten_gradient_has_derivatives(small_network):
    params, x = small_network
    gradient = jax.grad(network)
    rewritten = rewrite(gradient)
    assert "fast_select_and_scatter_add" in str(jax.make_jaxpr(rewritten)(params, x))
    plain, ours = jax.jit(lambda: [jax.jvp(g, (params, x), (params, x)) for g in (gradient, rewritten)])()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, rtol=1e-10, atol=1e-10), plain, ours)


def test_a_loop_of_unknown_length_is_rewritten():
    def f(x, w):
        return lax.fori_loop(0, x.shape[0] + jnp.int32(jnp.sum(w) * 0), lambda i, h: lax.conv_general_dilated(
            h, w, (1,), "SAME"), x)

    x, w = draw_array(0, (2, 3, 5), np.float32), draw_array(1, (3, 3, 3), np.float32)
    assert operations(f, x, w) == {"conv_general_dilated"}
    np.testing.assert_allclose(jax.jit(rewrite(f))(x, w), jax.jit(f)(x, w), rtol=1e-5, atol=1e-5)


def test_without_known_operations_the_program_is_the_same():
    def f(x):
        return jnp.sum(jax.nn.softmax(x @ x.T))

    x = jnp.ones((3, 3))
    assert str(jax.make_jaxpr(jax.grad(rewrite(f)))(x)) == str(jax.make_jaxpr(jax.grad(f))(x))


UNSUPPORTED = {
    "integers": lambda x: lax.reduce_window(x.astype(int), 0, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID"),
    "four dimensions": lambda x: lax.conv_general_dilated(x[None, None], jnp.ones((4, 1, *[2] * 4)), (1,) * 4, "SAME"),
    "a reduction of one's own": lambda x: lax.reduce_window(x, 1.0, lambda a, b: a * b, (1, 1, 2, 2), (1, 1, 1, 1),
                                                            "VALID"),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_what_is_not_known_stays(case):
    assert not operations(UNSUPPORTED[case], jnp.ones((4, 4, 4, 4)))


def convolve_once(x):
    return lax.conv_general_dilated(x, x, (1, 1), "SAME")


def test_on_an_accelerator_the_original_is_compiled():
    x = jnp.ones((3, 3, 4, 4))
    program, plain = (jax.jit(f).trace(x).lower(lowering_platforms=("cuda",)).as_text()
                      for f in (rewrite(convolve_once), convolve_once))
    numbers = [line.split("dim_numbers")[1].split(",")[0:5] for text in (program, plain)
               for line in text.splitlines() if "stablehlo.convolution" in line]
    assert len(numbers) == 2
    assert numbers[0] == numbers[1]


@pytest.mark.parametrize("setting", ["accelerator", "environment"])
def test_it_is_off(setting, monkeypatch):
    if setting == "accelerator":
        monkeypatch.setattr(versions, "on_cpu", lambda: False)
    else:
        monkeypatch.setenv("XLA_CPU_REWRITES", "0")
    assert not operations(convolve_once, jnp.ones((3, 3, 4, 4)))


@pytest.fixture
def untested_version(monkeypatch, tmp_path):
    """Another version of JAX, in a process that has compared and warned of nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(jax, "__version_info__", (0, 99, 0))
    caches = versions._obstacle, versions._warn
    for function in caches:
        function.cache_clear()
    yield tmp_path / "xla_cpu_rewrites"
    for function in caches:
        function.cache_clear()


def test_an_untested_version_compares_once(untested_version, monkeypatch):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 3, 4, 4)), jnp.float32)
    assert "fast_conv" in str(jax.make_jaxpr(jax.vmap(rewrite(convolve_once)))(x))  # compares while it is traced
    assert len(list(untested_version.iterdir())) == 1
    versions._obstacle.cache_clear()  # another process
    monkeypatch.setattr(versions, "_proofs", [lambda: pytest.fail("compared again")])
    assert operations(convolve_once, x[0]) == {"conv_general_dilated"}


@pytest.mark.parametrize(("change", "cause"), [
    (lambda f: lambda *args: jax.tree.map(lambda leaf: leaf * 1.001, f(*args)), "programs and the original ones"),
    (lambda f: 1 / 0, "ZeroDivisionError"),
    (None, "not recognised: conv_general_dilated, reduce_window_max, select_and_scatter_add")])
def test_an_untested_version_that_differs_is_off_with_a_warning(untested_version, monkeypatch, change, cause):
    proof = partial(obstacle_to_rewriting, change, (lambda *_: set()) if change is None else operations)
    monkeypatch.setattr(versions, "_proofs", [proof])
    with pytest.warns(UserWarning, match=f"11 to 44 times as long.*{cause}.*Install jax==0.10"):
        assert not operations(convolve_once, jnp.ones((3, 3, 4, 4)))
    assert not operations(convolve_once, jnp.ones((3, 3, 4, 4)))  # warns once: a second warning is an error
    assert not untested_version.exists()
