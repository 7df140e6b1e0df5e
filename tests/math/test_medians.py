"""Means, geometric medians and coordinate-wise medians against NumPy, SciPy and Weiszfeld's iteration."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from centre_cases import (
    COUNT,
    centre,
    clouds,
    coordinate_median,
    counts,
    entries,
    gaussian,
    geometric_median,
    in_layers,
    mean,
    quick,
    weiszfeld,
)
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize

import nightly
import resolvent as rv
from resolvent.math import centres
from resolvent.math.penalties import L2Norm, PerLayer


@pytest.fixture(autouse=True, scope="module")
def float64():
    with jax.enable_x64(True):
        yield


@quick
@given(points=clouds, weights=counts)
def test_mean_is_numpys(points, weights):
    np.testing.assert_allclose(mean(points, weights), np.average(points, axis=0, weights=weights), atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_geometric_median_is_a_plain_weiszfelds(seed):
    points, weights = gaussian(seed), np.random.default_rng(seed).uniform(0.5, 2, COUNT)
    w, info = geometric_median(points, weights, tolerance=1e-12)
    assert info.residual <= 1e-12
    np.testing.assert_allclose(w, weiszfeld(points, weights, 1e-6), atol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_geometric_median_minimises_the_sum_of_distances(seed):
    points, weights = gaussian(seed), np.random.default_rng(seed).uniform(0.5, 2, COUNT)
    w, _ = geometric_median(points, weights)
    best = minimize(lambda w: weights @ np.linalg.norm(points - w, axis=1), points.mean(axis=0),
                    method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-13, "maxiter": 5000})
    np.testing.assert_allclose(w, best.x, atol=1e-5)


@pytest.mark.parametrize(("dtype", "distance"), [(np.float32, 1e-5), (np.float64, 1e-14)])
def test_geometric_median_is_a_fixed_point_to_the_precision_of_the_numbers(dtype, distance):
    points, weights = gaussian(3).astype(dtype), np.ones(COUNT, dtype)
    replies = rv.Replies(jnp.asarray(points), jnp.asarray(weights), jnp.arange(COUNT), jnp.ones(COUNT, bool),
                         jnp.asarray(weights) / COUNT)
    for aggregator in (rv.aggregators.GeometricMedian(), rv.aggregators.MoreauCentre(L2Norm(), 1e-6)):
        w = np.asarray(aggregator(replies)[0], np.float64)
        pull = 1 / np.linalg.norm(points.astype(np.float64) - w, axis=1)
        np.testing.assert_allclose(pull @ points / pull.sum(), w, rtol=0, atol=distance)


def test_presets_pass_the_tolerance_on():
    solver = rv.solvers.GD(0.1)
    methods = (rv.rfa(solver, tolerance=0.1), rv.fedgeomed_plus(solver, sigma=1.0, delta=0.1, tolerance=0.1),
               rv.fedplus(solver, L2Norm(), sigma=1.0, delta=0.1, tolerance=0.1))
    assert [method.aggregator.tolerance for method in methods] == [0.1] * 3


def test_geometric_median_at_a_heavy_point_is_that_point():
    """A point with half of the weight or more is the median; Weiszfeld's weight there is the smoothing's."""
    points = gaussian(5)
    w, info = geometric_median(points, np.array([10.0, 1, 1, 1, 1, 1, 1]))
    assert info.residual <= 1e-6
    np.testing.assert_allclose(w, points[0], atol=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_geometric_median_on_a_line_is_the_median(seed):
    along, direction = np.random.default_rng(seed).normal(size=COUNT), np.array([1.0, -2, 0.5])
    w, _ = geometric_median(3 + along[:, None] * direction, np.ones(COUNT))
    np.testing.assert_allclose(w, 3 + np.median(along) * direction, atol=3e-6)


def test_geometric_median_takes_one_norm_over_all_leaves():
    points, weights = gaussian(3), np.arange(1.0, COUNT + 1)
    flat, _ = geometric_median(points, weights)
    joint, _ = geometric_median(in_layers(points), weights)
    layered, _ = centre(in_layers(points), weights, PerLayer({}, default=L2Norm()), 1e-6)
    np.testing.assert_allclose(ravel_pytree(joint)[0], flat, atol=1e-9)
    np.testing.assert_allclose(layered["b"]["c"][:, 0], weiszfeld(points[:, 1:], weights, 1e-6), atol=1e-5)
    assert np.linalg.norm(ravel_pytree(layered)[0] - flat) > 1e-2


@quick
@given(points=arrays(np.float64, (7, 3), elements=st.one_of(st.integers(-3, 3).map(float), entries)))
def test_coordinate_median_is_numpys_for_odd_counts(points):
    np.testing.assert_array_equal(coordinate_median(points, np.ones(7)), np.median(points, axis=0))


@quick
@given(points=arrays(np.float64, (8, 3), elements=st.one_of(st.integers(-3, 3).map(float), entries)))
def test_coordinate_median_is_numpys_for_even_counts(points):
    np.testing.assert_array_equal(coordinate_median(points, np.full(8, 0.3)), np.median(points, axis=0))


@quick
@given(points=clouds, weights=counts)
def test_coordinate_median_with_integer_weights_is_that_of_repeated_points(points, weights):
    expected = np.median(np.repeat(points, weights, axis=0), axis=0)
    for scale in (1.0, 0.1, 1e6):
        np.testing.assert_array_equal(coordinate_median(points, weights * scale), expected)


@nightly.parametrize("count", [3002, 10, 1000, 20000], others=nightly.WHEN_CHANGED)
def test_coordinate_median_in_float32_still_sees_the_middle_of_many(count):
    """Sums of many small weights have rounding, and the midpoint is where they are exactly one half."""
    points = np.random.default_rng(count).permutation(count).astype(np.float32)[:, None]
    weights = np.full(count, 0.1, np.float32)
    assert centres.coordinate_median(jnp.asarray(points), jnp.asarray(weights)) == (count - 1) / 2


def test_coordinate_median_of_huge_values_does_not_overflow():
    assert centres.coordinate_median(jnp.array([[1.5e308], [1.5e308], [-1.5e308], [-1.5e308]]), jnp.ones(4)) == 0
