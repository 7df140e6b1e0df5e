"""Moreau envelopes: Huber's function, gradients, curvature, limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from penalty_cases import (
    CASES,
    DIAGONAL,
    every,
    finite_valued,
    operations,
    ordinary_vectors,
    quick,
    rounding,
    size,
    steps,
    vectors,
)

from resolvent.math.penalties import L1, Quadratic, Scaled


@pytest.fixture(autouse=True, scope="module")
def float64():
    with jax.enable_x64(True):
        yield


@quick
@given(x=ordinary_vectors, t=steps)
def test_envelope_of_absolute_value_is_huber(x, t):
    huber = np.sum(np.where(np.abs(x) <= t, x * x / (2 * t), np.abs(x) - t / 2))
    np.testing.assert_allclose(operations("L1")(x, t)["envelope"], huber, rtol=1e-13, atol=1e-300)


@quick
@given(x=vectors, t=steps)
def test_envelope_of_norm_is_block_huber(x, t):
    r = size(x)
    huber = r * (r / (2 * t)) if r <= t else r - t / 2
    np.testing.assert_allclose(operations("L2Norm")(x, t)["envelope"], huber, rtol=1e-13, atol=1e-290)


@every
@quick
@given(x=vectors, t=steps)
def test_gradient_of_envelope_is_pull_over_t(name, x, t):
    """At every x, the kinks and 0 too: an envelope is differentiable everywhere."""
    results = operations(name)(x, t)
    expected = results["pull"] / t
    np.testing.assert_allclose(results["gradient"], expected, rtol=0, atol=1e-13 * size(expected) + 1e-300)


@every
@pytest.mark.parametrize("x", [[0, 0, 0, 0, 0], [1, -1, 0, 0, 0], [0.3, -2, 1, 0.5, -0.7]])
def test_gradient_of_envelope_is_its_slope(name, x):
    """Against central differences of the twin's envelope, and exactly 0 at 0."""
    _, twin, _ = CASES[name]
    x, t, h = np.array(x, np.float64), 1.0, 1e-5

    def envelope(x):
        gap = t * twin.conjugate(x / t, 1 / t)
        selected = np.zeros(5) if name == "OriginIndicator" else x - gap
        return twin.value(selected) + gap @ gap / (2 * t)

    slope = [(envelope(x + h * e) - envelope(x - h * e)) / (2 * h) for e in np.eye(5)]
    results = operations(name)(x, t)
    np.testing.assert_allclose(results["envelope"], envelope(x), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(results["gradient"], slope, atol=2e-5)
    np.testing.assert_array_equal(operations(name)(np.zeros(5), t)["gradient"], np.zeros(5))


def test_second_derivative_of_huber_is_one_over_t_inside_and_zero_outside():
    hessian = jax.jit(jax.hessian(lambda x: L1().envelope(x, 0.5)))(jnp.array([0.2, -0.4, 3.0, 0.0, -1.0]))
    np.testing.assert_allclose(hessian, np.diag([2.0, 2, 0, 2, 0]), atol=1e-15)


def test_envelopes_other_derivatives():
    """In t: -|pull|^2/(2t^2). In the penalty's own numbers: those of its value at the prox (Danskin)."""
    x, t = jnp.array([0.2, -0.4, 3.0, 0.0, -1.0]), 0.7
    pull = L1().pull(x, t)
    in_t = jax.jit(jax.grad(lambda t: L1().envelope(x, t)))(t)
    np.testing.assert_allclose(in_t, -np.sum(pull**2) / (2 * t**2), rtol=1e-13)
    in_scale = jax.jit(jax.grad(lambda c: Scaled(L1(), c).envelope(x, t)))(1.5)
    np.testing.assert_allclose(in_scale, np.sum(np.abs(L1().prox(x, 1.5 * t))), rtol=1e-13)
    in_weight = jax.jit(jax.grad(lambda q: Quadratic(q).envelope(x, t)))(jnp.asarray(DIAGONAL))
    np.testing.assert_allclose(in_weight, Quadratic(jnp.asarray(DIAGONAL)).prox(x, t)**2 / 2, rtol=1e-13)


@every
@quick
@given(x=ordinary_vectors, y=ordinary_vectors, t=steps)
def test_curvature_majorises(name, x, y, t):
    """env(y) <= env(x) + <grad, y - x> + sum d_j (y_j - x_j)^2 / (2t), with d between 0 and 1."""
    at_x, at_y = operations(name)(x, t), operations(name)(y, t)
    d, step = at_x["curvature"], y - x
    bound = at_x["envelope"] + at_x["gradient"] @ step + d @ step**2 / (2 * t)
    magnitude = at_x["envelope"] + np.abs(at_x["gradient"]) @ np.abs(step) + d @ step**2 / (2 * t)
    assert np.all((d >= 0) & (d <= 1))
    assert at_y["envelope"] <= bound + (1e-12 + rounding(name, t)) * magnitude


@finite_valued
@quick
@given(x=ordinary_vectors)
def test_envelope_grows_to_the_value_as_t_falls(name, x):
    """And never exceeds it: value - t*|g|^2/2 <= envelope <= value, g the subgradient at the prox."""
    envelopes = [operations(name)(x, t)["envelope"] for t in (10.0, 1.0, 1e-3, 1e-9)]
    value = operations(name)(x, 1.0)["value"]
    assert all(a <= b + 1e-12 * max(b, 1.0) for a, b in zip(envelopes, [*envelopes[1:], value], strict=True))
    np.testing.assert_allclose(envelopes[-1], value, rtol=1e-6, atol=1e-8)


@finite_valued
@quick
@given(x=ordinary_vectors)
def test_envelope_has_the_minimum_of_the_function(name, x):
    """Both are 0 at 0, and the envelope is nowhere below."""
    for t in (10.0, 1e-3):
        assert operations(name)(np.zeros_like(x), t)["envelope"] == 0 == operations(name)(np.zeros_like(x), t)["value"]
        assert operations(name)(x, t)["envelope"] >= 0
