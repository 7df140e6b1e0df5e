"""Small calls: the same numbers as plain loops, only where XLA supports them, and never in lanes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xla_cpu_rewrites import versions
from xla_cpu_rewrites.small_call import allow_small_calls, is_elemental, no_inline, repeat, small_call

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="for CPUs")
special_form = pytest.mark.skipif(not versions.supports_call_metadata(), reason="this version of JAX has plain forms")
X = np.random.default_rng(0).normal(size=(6, 600)) / 25


def ascend(i, w, x):
    """A step with two matrix-vector products, a small sum and a moving index."""
    row = jax.lax.dynamic_index_in_dim(x, i % 6, keepdims=False)
    return w + 0.1 * row * jnp.tanh(jnp.sum(x @ w)) - 0.01 * jax.nn.softmax(w)


def expected(total, w, x):
    for i in range(total):
        soft = np.exp(w - w.max())
        w = w + 0.1 * x[i % 6] * np.tanh((x @ w).sum()) - 0.01 * soft / soft.sum()
    return w


def run(total, w, x):
    with allow_small_calls():
        return repeat(total, lambda i, w: ascend(i, w, x), w)


def has_small_call(function, *args):
    return "xla_cpu_small_call" in jax.jit(function).lower(*args).as_text()


@special_form
@pytest.mark.parametrize("total", [0, 1, 17])
def test_it_is_the_loop(total):
    with jax.enable_x64(True):
        args = jnp.array(total), jnp.ones(600), jnp.asarray(X)
        assert has_small_call(run, *args)
        np.testing.assert_allclose(jax.jit(run)(*args), expected(total, np.ones(600), X), rtol=1e-12)


def test_lanes_are_loops_side_by_side():
    with jax.enable_x64(True):
        totals, w = jnp.array([3, 0, 9]), jnp.asarray(np.random.default_rng(1).normal(size=(3, 600)))
        lanes = jax.vmap(run, (0, 0, None))
        assert not has_small_call(lanes, totals, w, jnp.asarray(X))
        actual = jax.jit(lanes)(totals, w, jnp.asarray(X))
        for k, total in enumerate(totals):
            np.testing.assert_allclose(actual[k], expected(int(total), np.asarray(w[k]), X), rtol=1e-12)


def test_a_loop_within_a_simple_loop():
    """The inner loop becomes a function. The outer loop stays a loop, because it contains one."""
    def outer(total, w, x):
        with allow_small_calls():
            return repeat(total, lambda i, w: repeat(i, lambda j, w: ascend(j, w, x), w), w)

    with jax.enable_x64(True):
        w = np.ones(600)
        for i in range(5):
            w = expected(i, w, X)
        np.testing.assert_allclose(jax.jit(outer)(jnp.array(5), jnp.ones(600), jnp.asarray(X)), w, rtol=1e-12)


@pytest.mark.parametrize(("function", "simple"), [
    (lambda w, x: x.T @ jnp.exp(x @ w), True),
    (lambda w, x: x @ x.T, False),
    (lambda w, x: jnp.sum(jnp.tile(w, 100)), False),
    (lambda w, x: jnp.sort(w), False),
    (lambda w, x: w[jnp.argsort(w)], False),
    (lambda w, x: jax.lax.fori_loop(0, 3, lambda i, v: v + 1, w), False),
    (lambda w, x: jnp.zeros(40).at[jnp.array([1, 2])].add(1), False),
    (lambda w, x: jax.random.normal(jax.random.key(0), (3,)), False),
    (lambda w, x: jax.jit(jnp.sort)(w), False),
    # XLA makes a reduction of a product with one result, and calls a library if it is large.
    (lambda w, x: jnp.ones((1, 4095)) @ jnp.ones(4095), True),
    (lambda w, x: jnp.ones((1, 4096)) @ jnp.ones(4096), False),
    (lambda w, x: jnp.ones(4096) @ jnp.ones((4096, 1)), False),
    (lambda w, x: jnp.ones((4096, 1)) @ jnp.ones(1), True),
    (lambda w, x: jnp.ones((2, 4096)) @ jnp.ones(4096), True)])
def test_what_needs_the_runtime_is_not_simple(function, simple):
    assert is_elemental(jax.make_jaxpr(function)(jnp.ones(40), jnp.ones((6, 40))).jaxpr) is simple


def test_a_tiny_loop_is_left_to_xla():
    """XLA makes functions of small inner loops; it cannot compile a function inside another one."""
    def tiny(total, w):
        with allow_small_calls():
            return repeat(total, lambda i, w: w / 2 + i, w)

    assert not has_small_call(tiny, jnp.array(3), jnp.ones(3))
    np.testing.assert_array_equal(jax.jit(tiny)(jnp.array(3), jnp.ones(3)), np.full(3, 2.625))


def test_it_can_be_switched_off(monkeypatch):
    monkeypatch.setenv("XLA_CPU_SMALL_CALLS", "0")
    with jax.enable_x64(True):
        assert not has_small_call(lambda *args: run(*args), jnp.array(3), jnp.ones(600), jnp.asarray(X))


@pytest.mark.parametrize(("version", "is_tested"), [((0, 9, 2), False), ((0, 10, 0), True), ((0, 11, 0), False)])
def test_only_tested_versions_have_small_calls(version, is_tested, monkeypatch):
    monkeypatch.delenv("XLA_CPU_SMALL_CALLS", raising=False)
    monkeypatch.setattr(jax, "__version_info__", version)
    monkeypatch.setattr(versions, "jaxlib_version", version)
    versions._warn.cache_clear()
    if is_tested:
        assert versions.supports_call_metadata()
        return
    with pytest.warns(UserWarning, match=r"1.6 times as long.*Install jax==0.10.\*, or try XLA_CPU_SMALL_CALLS=1"):
        assert not versions.supports_call_metadata()
    assert not versions.supports_call_metadata()  # warns once: a second warning is an error
    for setting, expected in (("0", False), ("1", True)):
        versions._warn.cache_clear()
        monkeypatch.setenv("XLA_CPU_SMALL_CALLS", setting)
        assert versions.supports_call_metadata() is expected


def test_without_leave_it_is_a_loop_like_any_other():
    assert not has_small_call(lambda n, w: repeat(n, lambda i, w: w + 1, w), jnp.array(3), jnp.ones(5000))


@special_form
@pytest.mark.parametrize(("numbers", "is_one"), [(100, False), (600, True), (32_000, True), (33_000, False)])
def test_a_step_is_one_function_if_it_is_neither_tiny_nor_large(numbers, is_one):
    def step(w):
        return jnp.tanh(w) * 2 + 1, -w

    def run(w):
        with allow_small_calls():
            return small_call(step)(w)

    with jax.enable_x64(True):
        w = np.random.default_rng(0).normal(size=numbers)
        assert has_small_call(run, jnp.asarray(w)) is is_one
        for actual, reference in zip(jax.jit(run)(jnp.asarray(w)), (np.tanh(w) * 2 + 1, -w), strict=True):
            np.testing.assert_allclose(actual, reference, rtol=1e-12, atol=1e-12)


def test_what_computes_more_than_it_moves_is_for_several_threads():
    def long(w):
        for _ in range(30):
            w = w * w + 0.1
        return w

    def run(w):
        with allow_small_calls():
            return small_call(long)(w)

    assert not has_small_call(run, jnp.ones(10_000))
    np.testing.assert_allclose(jax.jit(run)(jnp.full(10_000, 0.1)), long(0.1), rtol=1e-6)


@special_form
@pytest.mark.parametrize("step", [
    lambda i, w, x: w + 1 + 0 * x[0],  # XLA finds that this is zero
    lambda i, w, x: w + 1 + jnp.where(jnp.arange(600) >= 0, 0, x[i % 6]),  # XLA also finds that this is zero
    lambda i, w, x: w + 1 + (x - x)[0],
    lambda i, w, x: (w + 1, jnp.sum(x[0]))[0],  # the sum is not used
    lambda i, w, x: w + 1 + x[i % 6],
])
def test_arguments_that_xla_simplifies_away_are_allowed(step):
    """Without the guard XLA aborts the process when it removes an unused argument."""
    def run(w, x):
        return repeat(jnp.array(3), lambda i, w: step(i, w, x), w), small_call(lambda w, x: step(1, w, x))(w, x)

    def small_run(w, x):
        with allow_small_calls():
            return run(w, x)

    x, w = jnp.arange(3600).reshape(6, 600), jnp.zeros(600)
    assert has_small_call(small_run, w, x)
    for actual, plain in zip(jax.jit(small_run)(w, x), jax.jit(run)(w, x), strict=True):
        np.testing.assert_array_equal(actual, plain)


def test_arguments_without_numbers_leave_it_a_plain_call():
    def run(w, x):
        with allow_small_calls():
            return repeat(jnp.array(3), lambda i, w: w + 1 + jnp.sum(x), w)

    assert not has_small_call(run, jnp.zeros(600), jnp.zeros((0, 4)))
    np.testing.assert_array_equal(jax.jit(run)(jnp.zeros(600), jnp.zeros((0, 4))), 3)


@special_form
@pytest.mark.parametrize(("entries", "is_small"), [(1000, True), (20_000, False)])
def test_a_large_constant_leaves_it_a_plain_call(entries, is_small):
    """XLA stores a large constant in a buffer. Inside of a small function it aborts the process."""
    constant = np.linspace(0, 1, entries)

    def run(w):
        with allow_small_calls():
            return repeat(jnp.array(3), lambda i, w: w + constant.astype(np.float32), w)

    assert has_small_call(run, jnp.zeros(entries)) is is_small
    np.testing.assert_allclose(jax.jit(run)(jnp.zeros(entries)), 3 * constant, rtol=1e-6)


@pytest.mark.parametrize("step", [lambda w, x: x.T @ (x @ w), lambda w, x: w * jnp.sum(w[:100])])
def test_a_step_with_sums_is_left_to_xla(step):
    """Under ``vmap`` its sums and products become larger ones, which need the runtime."""
    def run(w, x):
        with allow_small_calls():
            return jax.vmap(lambda w: small_call(step)(w, x))(w)

    assert not has_small_call(run, jnp.ones((3, 600)), jnp.ones((6, 600)))


@special_form
def test_no_inline_keeps_the_call():
    run = jax.jit(lambda w: jnp.exp(no_inline(lambda w: w * 2)(w)) + 1)
    assert 'inlineable="false"' in run.lower(jnp.ones(3)).as_text("hlo")
    np.testing.assert_allclose(run(jnp.ones(3)), np.exp(2 * np.ones(3)) + 1, rtol=1e-6)
    np.testing.assert_allclose(jax.grad(lambda w: run(w).sum())(jnp.ones(3)), 2 * np.exp(2 * np.ones(3)), rtol=1e-6)
