"""The simplex: the projection against bisection, and the minimiser of a quadratic by its conditions of optimality."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.portfolio import simplex


@pytest.fixture(autouse=True, scope="module")
def _x64():
    with jax.enable_x64(True):
        yield


def projected(point):
    """max(point - tau, 0), with tau found by bisection."""
    low, high = point.min() - 1, point.max()
    for _ in range(200):
        tau = (low + high) / 2
        low, high = (tau, high) if np.maximum(point - tau, 0).sum() > 1 else (low, tau)
    return np.maximum(point - tau, 0)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_projection_is_the_nearest_point(scale):
    points = scale * np.random.default_rng(0).normal(size=(20, 7))
    nearest = jax.vmap(simplex.project)(jnp.asarray(points))
    np.testing.assert_allclose(nearest, [projected(p) for p in points], atol=1e-9 * max(scale, 1e-3))
    np.testing.assert_allclose(jax.vmap(simplex.project)(nearest), nearest, atol=1e-12)


def quadratic(rank, n=8, seed=0):
    rng = np.random.default_rng(seed)
    factor = rng.normal(size=(n, rank))
    return factor @ factor.T, 3 * rng.normal(size=n)


@pytest.mark.parametrize("rank", [8, 3, 0], ids=["definite", "semidefinite", "linear"])
@pytest.mark.parametrize(("common", "scale"), [(0, 1), (1e6, 1), (0, 1e-8)])
def test_gradient_is_least_on_the_support_of_the_minimiser(rank, common, scale):
    """Px + q is smallest where x is positive. A common part of P does not change the minimiser."""
    matrix, linear = quadratic(rank)
    x = np.asarray(simplex.minimise_quadratic(jnp.asarray(scale * matrix + common), jnp.asarray(scale * linear)))
    gradient = matrix @ x + linear
    assert x.min() >= 0
    assert x.sum() == pytest.approx(1, abs=1e-12)
    assert x @ (gradient - gradient.min()) < (1e-7 if common else 1e-12)


def test_minimiser_of_the_squared_distance_is_the_projection():
    point = np.random.default_rng(1).normal(size=6)
    x = simplex.minimise_quadratic(jnp.eye(6), -jnp.asarray(point))
    np.testing.assert_allclose(x, simplex.project(jnp.asarray(point)), atol=1e-12)


def test_single_precision_is_used_fully():
    matrix, linear = quadratic(8)
    x = simplex.minimise_quadratic(jnp.asarray(matrix, jnp.float32), jnp.asarray(linear, jnp.float32))
    assert x.dtype == jnp.float32
    np.testing.assert_allclose(x, simplex.minimise_quadratic(jnp.asarray(matrix), jnp.asarray(linear)), atol=1e-5)


def test_flat_objective_gives_the_uniform_point():
    np.testing.assert_allclose(simplex.minimise_quadratic(jnp.ones((4, 4)), jnp.ones(4)), np.full(4, 0.25), atol=1e-12)


def test_minimiser_inside_the_simplex_has_equal_partial_derivatives():
    """All multipliers of x >= 0 vanish, so that the linear systems of the method come close to P itself."""
    x = simplex.minimise_quadratic(jnp.diag(jnp.arange(1.0, 6.0)), jnp.zeros(5))
    np.testing.assert_allclose(x, 1 / np.arange(1, 6) / np.sum(1 / np.arange(1, 6)), atol=1e-12)


def test_single_precision_solves_every_problem_of_a_batch():
    """With minimisers inside the simplex, rounding must not make the linear systems singular."""
    gradients = 1 + 0.02 * np.random.default_rng(0).normal(size=(300, 20, 9))
    matrices = np.eye(9) + np.einsum("kti,ktj->kij", gradients, gradients)
    single, double = (jax.vmap(simplex.minimise_quadratic)(jnp.asarray(matrices, dtype),
                                                           jnp.asarray(-gradients.sum(axis=1) / 4, dtype))
                      for dtype in (jnp.float32, jnp.float64))
    np.testing.assert_allclose(single, double, atol=1e-3)
