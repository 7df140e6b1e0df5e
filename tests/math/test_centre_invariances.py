"""All centres: equivariance, scale, weights as repetitions, points of weight zero, equal points."""

import jax
import numpy as np
import pytest
from centre_cases import (
    CASES,
    COUNT,
    WEIGHTS,
    centre,
    compute_centre,
    coordinate_median,
    every,
    gaussian,
    geometric_median,
    in_layers,
    mean,
)

import nightly
from resolvent.math.penalties import L2Norm, PerLayer, SquaredL2


@pytest.fixture(autouse=True, scope="module")
def float64():
    with jax.enable_x64(True):
        yield


CENTRES = {
    "mean": mean,
    "coordinate_median": coordinate_median,
    "geometric_median": lambda points, weights: geometric_median(points, weights, tolerance=1e-10)[0],
    **{name: lambda points, weights, name=name: compute_centre(name, points, weights, 0.5, tolerance=1e-10)[0]
       for name in CASES},
}
every_centre = pytest.mark.parametrize("name", CENTRES)
every_centre = pytest.mark.parametrize("name", CENTRES)


@nightly.diagonal(("name", "seed"), CENTRES, range(3))
def test_centres_are_equivariant(name, seed):
    """A(w - p) = w - A(p) (eq. 28); the order of the points and the scale of the weights change nothing."""
    points, a = gaussian(seed), CENTRES[name]
    base, origin = np.asarray(a(points, WEIGHTS)), np.array([3.0, -1, 0.5])
    order = np.random.default_rng(seed).permutation(COUNT)
    np.testing.assert_allclose(a(origin - points, WEIGHTS), origin - base, atol=1e-7)
    np.testing.assert_allclose(a(points[order], WEIGHTS[order]), base, atol=1e-7)
    for scale in (1e-6, 0.1, 1e6):
        np.testing.assert_allclose(a(points, WEIGHTS * scale), base, atol=1e-7)


@every
@pytest.mark.parametrize("scale", [1e-3, 10.0, 1e6, 1e150])
def test_centres_scale_with_points_and_t(name, scale):
    base, _ = compute_centre(name, gaussian(1), WEIGHTS, 0.5, tolerance=1e-10)
    scaled, info = compute_centre(name, scale * gaussian(1), WEIGHTS, scale * 0.5, tolerance=1e-10)
    assert info.residual <= 1e-10
    np.testing.assert_allclose(scaled / scale, base, atol=1e-7)


@every_centre
def test_weights_count_repetitions(name):
    points, weights = gaussian(2), np.array([1, 2, 1, 3, 0, 0, 0])
    repeated = np.repeat(points, weights, axis=0)
    np.testing.assert_allclose(
        CENTRES[name](points, weights.astype(float)), CENTRES[name](repeated, np.ones(COUNT)), atol=1e-7)


@every_centre
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_point_without_weight_has_no_influence(name, dtype):
    points, weights = gaussian(4).astype(dtype), WEIGHTS.astype(dtype)
    weights[[1, 5]] = 0
    without = CENTRES[name](points, weights)
    points[1], points[5] = 1e30, -1e30
    result = CENTRES[name](points, weights)
    assert result.dtype == dtype
    np.testing.assert_allclose(result, without, atol=1e-7 if dtype == np.float64 else 1e-5)


def test_a_point_without_weight_that_overflows_does_not_hinder():
    """Its squares are infinite, in float32: the objective of a layered penalty must not be NaN for it."""
    points, weights = gaussian(4).astype(np.float32), np.float32([1, 0, 1, 2, 1, 2, 1])
    points[1] = 1e30
    penalty = PerLayer({"a": SquaredL2()}, default=L2Norm())
    _, info = centre(in_layers(points), weights, penalty, 0.01)
    points[1] = 0
    _, usual = centre(in_layers(points), weights, penalty, 0.01)
    assert info.residual <= 1e-6
    assert info.iterations <= 1.5 * usual.iterations


@every_centre
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("point", [[0.0, 0, 0], [0.1, -1e3, 1e30]])
def test_points_all_equal_are_their_own_centre(name, dtype, point):
    points = np.tile(np.array(point, dtype), (COUNT, 1))
    np.testing.assert_allclose(CENTRES[name](points, WEIGHTS.astype(dtype)), points[0], rtol=4 * np.finfo(dtype).eps)


@pytest.mark.parametrize("name", ["mean", "coordinate_median", "geometric_median", "PerLayer"])
def test_a_single_point_is_its_own_centre(name):
    np.testing.assert_allclose(CENTRES[name](gaussian(6, count=1), np.array([0.3])), gaussian(6, count=1)[0],
                               rtol=1e-15)
