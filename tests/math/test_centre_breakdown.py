"""Breakdown of centres: bad points of less than half of the weight have bounded influence.

Honest points lie in a ball of radius R (per coordinate: in an interval), and a share a < 1/2 of the weight anywhere. At
a distance beyond the points every pull of the L2 norm has length t, and the honest pulls, at distance D, have a
component of at least sqrt(1 - (R/D)^2) of it towards the honest points. A stationary point therefore has

    (1 - a) * sqrt(1 - (R/D)^2) <= a,  that is  D <= R * (1 - a)/sqrt(1 - 2a),

or lies within R + t, where a pull may be shorter. The L1 norm's centre lies in the honest interval widened by t.
"""

import jax
import numpy as np
import pytest
from centre_cases import centre, coordinate_median, corrupted, geometric_median, mean

from resolvent.math.penalties import L1, L2Norm


@pytest.fixture(autouse=True, scope="module")
def float64():
    with jax.enable_x64(True):
        yield


def farthest(honest, t):
    """The bound on the distance of the L2 norm's centre from the honest points' mean: see the top of the file."""
    share, radius = 49 / 101, np.linalg.norm(honest - honest.mean(axis=0), axis=1).max()
    return max(radius * (1 - share) / np.sqrt(1 - 2 * share), radius + t)


far_away = pytest.mark.parametrize("far", [1e6, 1e12])
both_precisions = pytest.mark.parametrize("dtype", [np.float64, np.float32])


@far_away
def test_mean_breaks_down(far):
    points, honest = corrupted(far)
    assert np.linalg.norm(mean(points, np.ones(101)) - honest.mean(axis=0)) > 0.4 * far


@far_away
@both_precisions
def test_coordinate_median_does_not_break_down(far, dtype):
    points, honest = corrupted(far, dtype)
    median = np.asarray(coordinate_median(points, np.ones(101, dtype)))
    assert np.all(honest.min(axis=0) - 1e-6 <= median)
    assert np.all(median <= honest.max(axis=0) + 1e-6)


@far_away
@both_precisions
def test_centre_of_l1_does_not_break_down(far, dtype):
    points, honest = corrupted(far, dtype)
    t = 0.1
    w, info = centre(points, np.ones(101), L1(), t)
    assert info.residual <= 2e-6
    assert np.all(honest.min(axis=0) - t - 1e-5 <= w)
    assert np.all(w <= honest.max(axis=0) + t + 1e-5)


@pytest.mark.when_changed
@far_away
@both_precisions
@pytest.mark.parametrize("t", [1e-6, 0.1])
def test_centre_of_l2_does_not_break_down(far, dtype, t):
    points, honest = corrupted(far, dtype)
    w, info = centre(points, np.ones(101), L2Norm(), t)
    moved = np.linalg.norm(w - honest.mean(axis=0))
    assert info.residual <= 2e-6
    assert moved <= farthest(honest, t) * (1 + 1e-3)
    assert moved <= 3.1 * np.ptp(honest, axis=0).max()


def test_just_below_one_half_is_needed():
    """With 51 of 101 far away no centre can hold: the bound's a < 1/2 is sharp."""
    points, honest = corrupted(1e6)
    points[50:] = points[52]
    w, _ = geometric_median(points, np.ones(101))
    assert np.linalg.norm(w - honest.mean(axis=0)) > 1e5
