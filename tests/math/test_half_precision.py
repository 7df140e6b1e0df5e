"""float16 and bfloat16: sums, norms and centres are those of float64 on the same numbers, rounded once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from centre_cases import CASES, compute_centre, true_residual
from penalty_cases import CASES as PENALTIES

import nightly
import resolvent as rv
from resolvent.math import centres, tree
from resolvent.math.anderson import History, mixing_weights


@pytest.fixture(autouse=True, scope="module")
def float64():
    with jax.enable_x64(True):
        yield


HALF = {"float16": jnp.float16, "bfloat16": jnp.bfloat16}
each_half = nightly.parametrize("dtype", HALF.values(), ids=HALF)


def rounding(dtype):
    return float(jnp.finfo(dtype).eps)


def exact(x):
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), x)


@each_half
def test_the_mean_of_many_rows_is_rounded_once(dtype):
    rng = np.random.default_rng(0)
    points = jnp.asarray(rng.normal(1, 0.1, size=(5000, 3)), dtype)
    weights = jnp.asarray(rng.integers(1, 40, 5000), dtype)
    mean = centres.mean(points, weights)
    assert mean.dtype == dtype
    np.testing.assert_allclose(exact(mean), np.average(exact(points), axis=0, weights=exact(weights)),
                               rtol=rounding(dtype))


@pytest.mark.parametrize("name", CASES)
@nightly.parametrize(("dtype", "t"), [(jnp.float16, 1e-6), (jnp.bfloat16, 1e-6), (jnp.float32, 1e-42)],
                     ids=["float16", "bfloat16", "float32"])
def test_the_residual_of_the_mean_is_true_though_pulls_are_tiny(name, dtype, t):
    """At the mean of nine points, one of them far away, the pulls of all points have length t and do not cancel."""
    points = np.random.default_rng(1).normal(size=(9, 3))
    points[4] = [7000, -5000, 3000]
    points = np.asarray(exact(jnp.asarray(points, dtype)))
    _, pull, _ = CASES[name]
    expected = true_residual(pull(points - points.mean(axis=0), 1e-6), np.ones(9))
    _, info = compute_centre(name, jnp.asarray(points, dtype), np.ones(9), t, max_iterations=1)
    assert expected > 0.3
    assert float(info.residual) == pytest.approx(expected, rel=0.01)


@each_half
@nightly.parametrize("name", ["L1", "L2Norm", "SquaredL2", "Quadratic full", "PerLayer"], per_commit=2)
def test_penalties_agree_with_float64(name, dtype):
    """Values do not overflow at 65,504, and envelopes for a small t do not vanish."""
    penalty, _, shape = PENALTIES[name]
    x = shape(jnp.asarray([400.0, -900.0, 30.0, 1.5, -0.25], dtype))
    for t in (1e-6, 0.5, 30.0):
        for operation in (penalty.prox, penalty.pull, penalty.envelope):
            actual, expected = operation(x, t), operation(exact(x), t)
            for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
                tolerance, smallest = 2 * rounding(a.dtype) + 1e-4, float(jnp.finfo(a.dtype).smallest_subnormal)
                np.testing.assert_allclose(exact(a), b, rtol=0, atol=tolerance * np.max(np.abs(b)) + smallest)
    assert penalty.value(x).dtype == jnp.float32
    np.testing.assert_allclose(penalty.value(x), penalty.value(exact(x)), rtol=1e-5)


@pytest.mark.when_changed
@each_half
def test_andersons_inner_products_and_combinations_agree_with_float64(dtype):
    rng = np.random.default_rng(2)
    points, images = (jnp.asarray(300 * rng.normal(size=(3, 4000)), dtype) for _ in range(2))
    row, filled = jnp.array(1), jnp.ones(3, bool)
    history, expected = History(points, images), History(exact(points), exact(images))
    for actual, products in zip(history.inner_products(row), expected.inner_products(row), strict=True):
        assert actual.dtype == jnp.float32
        np.testing.assert_allclose(actual, products, rtol=1e-5, atol=1e-5 * float(jnp.max(jnp.abs(products))))
    np.testing.assert_allclose(mixing_weights(history.inner_products(row)[0], filled),
                               mixing_weights(expected.inner_products(row)[0], filled), rtol=1e-4)
    pi = jnp.asarray([4.3, -2.1, -1.2], jnp.float32)
    np.testing.assert_allclose(exact(history.combine(pi)), expected.combine(pi), rtol=rounding(dtype), atol=1e-3)


@pytest.mark.when_changed
@each_half
def test_qsgd_of_a_vector_whose_norm_exceeds_the_largest_float16(dtype):
    x = jnp.asarray(np.random.default_rng(3).normal(size=500) * 9000, dtype)
    codec, norm = rv.codecs.QSGD(levels=400), float(tree.norm(x))
    wire = codec.encode(x, jax.random.key(0))
    decoded = codec.decode(wire)
    assert decoded.dtype == dtype
    assert wire.bits == codec.bits(x) == 32 + 500 * 10
    assert norm > 65_504
    assert np.max(np.abs(exact(decoded) - exact(x))) <= norm / 400 + rounding(dtype) * float(jnp.max(jnp.abs(x)))
