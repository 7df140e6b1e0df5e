"""Trees as vectors: arithmetic against NumPy, dtypes kept, a norm that is safe at every size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import nightly
from resolvent.math import tree


@pytest.fixture(autouse=True, scope="module")
def _x64():
    with jax.enable_x64(True):
        yield


# Sizes whose squares overflow or vanish, but none near the subnormals, which processors flush to zero.
scalars = st.floats(-10, 10).map(lambda v: v if abs(v) > 1e-100 else 0.0)
sizes = st.one_of(scalars, st.sampled_from([1.0, -1.0, 1e-290, -1e-290, 1e-160, 1e160, -1e300, 1e300]))
vectors = arrays(np.float64, 6, elements=sizes)
quick = settings(deadline=None, max_examples=nightly.examples(50))


def split(v):
    """A vector of six entries as a tree of three leaves, one a scalar and one empty."""
    return {"b": {"c": v[:3].reshape(3, 1), "a": v[3]}, "a": (v[4:], v[:0])}


def flat(x):
    """The inverse of ``split``."""
    return np.concatenate([np.ravel(x["b"]["c"]), np.ravel(x["b"]["a"]), x["a"][0]])


norm = jax.jit(lambda v: tree.norm(split(v)))
norm_gradient = jax.jit(jax.grad(lambda v: tree.norm(split(v))))
full_dot = jax.jit(lambda u, v: tree.full_dot(split(u), split(v)))
combine = jax.jit(lambda a, u, v: (
    tree.axpy(a, split(u), split(v)), tree.lerp(split(u), split(v), a), tree.sub(split(u), split(v)),
    tree.map2(lambda p, q: p * q, split(u), split(v))))


def true_norm(v):
    """The Euclidean norm in extended precision, whose exponent no square here exceeds."""
    return float(np.sqrt(np.sum(np.square(v.astype(np.longdouble)))))


@quick
@given(vectors)
def test_norm_neither_overflows_nor_vanishes(v):
    np.testing.assert_allclose(norm(v), true_norm(v), rtol=1e-14)


@quick
@given(vectors)
def test_gradient_of_norm_is_the_unit_vector_and_zero_at_zero(v):
    size = np.longdouble(true_norm(v))
    expected = np.zeros(6) if size == 0 else np.asarray(v / size, np.float64)
    np.testing.assert_allclose(norm_gradient(v), expected, rtol=1e-13, atol=1e-300)


def test_second_derivative_of_norm_is_the_projection_over_its_length():
    v = np.array([3.0, 0.0, -4.0, 1.0, 2.0, 0.5])
    size = np.linalg.norm(v)
    expected = (np.eye(6) - np.outer(v, v) / size**2) / size
    np.testing.assert_allclose(jax.hessian(norm)(v), expected, atol=1e-14)


def test_norm_of_what_is_not_finite():
    assert np.isposinf(norm(np.array([1.0, -np.inf, 0, 0, 0, 0])))
    assert np.isnan(norm(np.array([1.0, np.nan, 0, 0, 0, 0])))


def test_norm_of_nothing_is_zero():
    assert tree.norm({}) == 0
    assert tree.norm({"a": jnp.zeros((0, 3), jnp.float32)}) == 0
    assert tree.full_dot({}, {}) == 0


@quick
@given(arrays(np.float64, 6, elements=scalars), arrays(np.float64, 6, elements=scalars))
def test_full_dot_is_numpys(u, v):
    np.testing.assert_allclose(full_dot(u, v), u @ v, atol=1e-12)


def test_full_dot_refuses_trees_of_different_size():
    with pytest.raises(ValueError, match="zip"):
        tree.full_dot({"a": jnp.ones(2)}, {"a": jnp.ones(2), "b": jnp.ones(2)})


@quick
@given(scalars, arrays(np.float64, 6, elements=scalars), arrays(np.float64, 6, elements=scalars))
def test_axpy_lerp_sub_and_map2_are_numpys(a, u, v):
    axpy, lerp, sub, product = combine(a, u, v)
    np.testing.assert_allclose(flat(axpy), v + a * u, atol=1e-13)
    np.testing.assert_allclose(flat(lerp), (1 - a) * u + a * v, atol=1e-12)
    np.testing.assert_array_equal(flat(sub), u - v)
    np.testing.assert_array_equal(flat(product), u * v)


@quick
@given(vectors, vectors)
def test_lerp_is_exact_at_both_ends(u, v):
    np.testing.assert_array_equal(flat(combine(0.0, u, v)[1]), u)
    np.testing.assert_array_equal(flat(combine(1.0, u, v)[1]), v)


@pytest.mark.parametrize("a", [0.5, np.float64(0.5), np.ones((), np.float64)])
def test_a_scalar_never_widens_a_vector(a):
    x = {"w": jnp.ones(3, jnp.float32), "b": jnp.ones((), jnp.float16)}
    wide = {"w": jnp.ones(3, jnp.float64), "b": jnp.ones((), jnp.float64)}
    for result in jax.eval_shape(lambda: (
            tree.axpy(a, x, x), tree.lerp(x, x, a), tree.axpy(a, wide, x), tree.lerp(x, wide, a), tree.sub(x, wide),
            tree.map2(jnp.multiply, x, wide), tree.rows(tree.stack(x, 2), 0))):
        assert result["w"].dtype == jnp.float32
        assert result["b"].dtype == jnp.float16


@pytest.mark.parametrize(("dtype", "expected"), [
    (jnp.float64, jnp.float64), (jnp.float32, jnp.float32), (jnp.float16, jnp.float32), (jnp.bfloat16, jnp.float32)])
def test_a_scalar_made_from_a_vector_has_its_dtype_but_at_least_float32(dtype, expected):
    x = {"w": jnp.ones(3, dtype), "b": jnp.ones((), jnp.float16)}
    norm, dot, wide, back, of_nothing = jax.eval_shape(lambda: (
        tree.norm(x), tree.full_dot(x, x), tree.widen(x), tree.cast(tree.widen(x), x), tree.norm({})))
    assert tree.dtype(x) == norm.dtype == dot.dtype == wide["w"].dtype == expected
    assert {leaf.dtype for leaf in jax.tree.leaves(back)} == {x["w"].dtype, x["b"].dtype}
    assert tree.dtype({}) == of_nothing.dtype == jnp.float64      # the default under x64


def test_norm_and_dot_of_half_precision_do_not_overflow_or_lose_digits():
    large = jnp.full(400, 60_000, jnp.float16)
    assert tree.norm(large) == pytest.approx(20 * float(large[0]), rel=1e-6)
    assert tree.full_dot(large, large) == pytest.approx(400 * float(large[0]) ** 2, rel=1e-6)
    assert tree.full_dot(jnp.ones(1001, jnp.bfloat16), jnp.ones(1001, jnp.bfloat16)) == 1001


def test_rows_undoes_stack():
    x = split(jnp.arange(6.0))
    stacked = tree.stack(x, 4)
    assert [leaf.shape for leaf in jax.tree.leaves(stacked)] == [(4, 2), (4, 0), (4,), (4, 3, 1)]
    for index in (0, 3, -1, jnp.array(2)):
        jax.tree.map(np.testing.assert_array_equal, tree.rows(stacked, index), x)


def test_rows_picks_in_the_order_asked_and_under_jit():
    stacked = {"w": jnp.arange(12.0).reshape(4, 3), "b": jnp.arange(4)}
    chosen = jax.jit(tree.rows)(stacked, jnp.array([2, 0, 2]))
    np.testing.assert_array_equal(chosen["w"], [[6, 7, 8], [0, 1, 2], [6, 7, 8]])
    np.testing.assert_array_equal(chosen["b"], [2, 0, 2])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_finite_sees_one_bad_entry_in_any_leaf(bad):
    good = split(jnp.arange(6.0))
    assert bool(tree.finite(good))
    assert bool(tree.finite({}))
    for k in range(6):
        assert not bool(jax.jit(tree.finite)(split(jnp.arange(6.0).at[k].set(bad))))


def test_named_leaves_names_each_leaf_in_the_trees_order():
    x = split(jnp.arange(6.0))
    named = tree.named_leaves(x)
    assert [name for name, _ in named] == ["a.0", "a.1", "b.a", "b.c"]
    for (_, mine), leaf in zip(named, jax.tree.leaves(x), strict=True):
        assert mine is leaf
