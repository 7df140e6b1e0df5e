"""Centres against their definitions: optimality by hand, NumPy's and SciPy's medians, invariances, breakdown.

Breakdown: honest points in a ball of radius R (per coordinate: an interval), a share a < 1/2 of the weight
anywhere. Beyond the points' reach every pull of the L2 norm has length t, and the honest ones, seen from
distance D, have at least sqrt(1 - (R/D)^2) of it along the way back, so that a stationary point has

    (1 - a) * sqrt(1 - (R/D)^2) <= a,  that is  D <= R * (1 - a)/sqrt(1 - 2a),

or lies within R + t, where a pull may be shorter. The L1 norm's centre lies in the honest interval widened by t.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize

from resolvent.math import centres
from resolvent.math.penalties import L1, L2Norm, OriginIndicator, PerLayer, Quadratic, Scaled, SquaredL2, Zero


@pytest.fixture(autouse=True, scope="module")
def _x64():
    with jax.enable_x64(True):
        yield


mean, coordinate_median = jax.jit(centres.mean), jax.jit(centres.coordinate_median)
_centre, _geometric_median = eqx.filter_jit(centres.moreau_centre), eqx.filter_jit(centres.geometric_median)


def centre(points, weights, penalty, t, tolerance=1e-6, max_iterations=1000):
    """Jitted once for each penalty, shape and dtype of the points: all numbers are traced."""
    points = jax.tree.map(jnp.asarray, points)
    dtype = jax.tree.leaves(points)[0].dtype
    weights, t, tolerance = (jnp.asarray(np.asarray(number, dtype)) for number in (weights, t, tolerance))
    return _centre(points, weights, penalty, t, tolerance=tolerance, max_iterations=jnp.asarray(max_iterations))


def geometric_median(points, weights, tolerance=1e-6):
    points = jax.tree.map(jnp.asarray, points)
    dtype = jax.tree.leaves(points)[0].dtype
    return _geometric_median(points, jnp.asarray(np.asarray(weights, dtype)), tolerance=jnp.asarray(tolerance))


COUNT, DIM = 7, 3
Q = np.array([[2.0, 0.5, 0], [0.5, 1, 0.2], [0, 0.2, 3]])
SPLIT = PerLayer({"a": L1()}, default=L2Norm())


def clipped(r, t):
    return np.clip(r, -t, t)


def shortened(r, t):
    return r * np.minimum(1, t / np.maximum(np.linalg.norm(r, axis=-1, keepdims=True), 1e-300))


def in_layers(points):
    return {"a": points[..., 0], "b": {"c": points[..., 1:, None]}}


# A penalty; x - prox(x) for rows of flat vectors, in NumPy; and from flat vectors to what the penalty is for.
CASES = {
    "L1": (L1(), clipped, lambda x: x),
    "L2Norm": (L2Norm(), shortened, lambda x: x),
    "PerLayer": (SPLIT, lambda r, t: np.hstack([clipped(r[:, :1], t), shortened(r[:, 1:], t)]), in_layers),
}
every = pytest.mark.parametrize("name", CASES)


def true_residual(pulls, weights):
    """|sum w_k pull_k| / sum w_k |pull_k|, in NumPy."""
    total = weights @ np.linalg.norm(pulls, axis=1)
    return np.linalg.norm(weights @ pulls) / total if total > 0 else 0.0


def found(name, points, weights, t, **options):
    """The centre as a flat vector, and its info."""
    penalty, _, shape = CASES[name]
    w, info = centre(shape(points), weights, penalty, t, **options)
    return np.asarray(ravel_pytree(w)[0]), info


def weiszfeld(points, weights, smoothing, iterations=3000):
    """Weiszfeld's iteration, plain: no momentum, no stopping."""
    w = weights @ points / weights.sum()
    for _ in range(iterations):
        pull = weights / np.maximum(smoothing, np.linalg.norm(points - w, axis=1))
        w = pull @ points / pull.sum()
    return w


entries = st.one_of(st.sampled_from([0.0, 1.0, -1.0]), st.floats(-100, 100).map(lambda v: round(v, 3)))
clouds = arrays(np.float64, (COUNT, DIM), elements=entries)
counts = arrays(np.int64, COUNT, elements=st.integers(0, 3)).filter(lambda w: w.sum() > 0)
steps = st.sampled_from([0.01, 1.0, 30.0])
quick = settings(deadline=None, max_examples=40)


def gaussian(seed, count=COUNT, dim=DIM):
    return np.random.default_rng(seed).normal(size=(count, dim))


# ---- the Moreau centre is what it says


@every
@quick
@given(points=clouds, weights=counts, t=steps)
def test_moreau_centre_is_stationary_and_its_residual_is_honest(name, points, weights, t):
    _, pull, _ = CASES[name]
    weights = weights.astype(np.float64)
    w, info = found(name, points, weights, t)
    residual = true_residual(pull(points - w, t), weights)
    np.testing.assert_allclose(info.residual, residual, rtol=1e-6, atol=1e-9)
    assert residual <= 1e-6 or info.iterations == 1000


@every
@pytest.mark.parametrize("seed", range(3))
def test_residual_reaches_the_tolerance_asked_for(name, seed):
    points, weights = gaussian(seed), np.arange(1.0, COUNT + 1)
    for tolerance in (1e-3, 1e-12):
        _, info = found(name, points, weights, 0.1, tolerance=tolerance)
        assert info.residual <= tolerance
        assert 0 < info.iterations < 1000


@every
def test_iterations_cut_short_are_reported(name):
    points, weights = gaussian(0), np.arange(1.0, COUNT + 1)
    _, pull, _ = CASES[name]
    for most in (1, 2, 3):
        w, info = found(name, points, weights, 0.1, max_iterations=most)
        assert info.iterations == most
        assert info.residual > 1e-6
        np.testing.assert_allclose(info.residual, true_residual(pull(points - w, 0.1), weights), rtol=1e-9)
        if most == 0:
            np.testing.assert_allclose(w, np.average(points, axis=0, weights=weights))


@pytest.mark.parametrize("penalty", [SquaredL2(), OriginIndicator(), Quadratic(Q), Zero()], ids=lambda p: type(p).__name__)
@quick
@given(points=clouds, weights=counts)
def test_centre_of_a_quadratic_penalty_is_the_mean(penalty, points, weights):
    w, info = centre(points, weights, penalty, 0.7)
    np.testing.assert_allclose(w, np.average(points, axis=0, weights=weights), atol=1e-10)
    assert info.residual <= 1e-6


@quick
@given(points=clouds)
def test_centre_of_l1_is_within_t_of_the_coordinate_median(points):
    w, info = found("L1", points, np.ones(COUNT), 1e-4, tolerance=1e-9)
    assert info.residual <= 1e-9
    np.testing.assert_allclose(w, np.median(points, axis=0), atol=1.001e-4)


@quick
@given(points=clouds, weights=counts)
def test_centre_never_has_a_larger_objective_than_the_mean(points, weights):
    for penalty, t in ((L1(), 0.01), (L2Norm(), 1.0)):
        w, _ = centre(points, weights, penalty, t)

        def objective(w, penalty=penalty, t=t):
            return weights @ np.asarray(envelopes(points - np.asarray(w), penalty, t))

        at_mean = objective(np.average(points, axis=0, weights=weights))
        assert objective(w) <= at_mean * (1 + 1e-13)


envelopes = eqx.filter_jit(jax.vmap(lambda r, penalty, t: penalty.envelope(r, t), in_axes=(0, None, None)))


# ---- medians


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
    apart, _ = centre(in_layers(points), weights, PerLayer({}, default=L2Norm()), 1e-6)
    np.testing.assert_allclose(ravel_pytree(joint)[0], flat, atol=1e-9)
    np.testing.assert_allclose(apart["b"]["c"][:, 0], weiszfeld(points[:, 1:], weights, 1e-6), atol=1e-5)
    assert np.linalg.norm(ravel_pytree(apart)[0] - flat) > 1e-2


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


@pytest.mark.parametrize("count", [10, 1000, 3002, 20000])
def test_coordinate_median_in_float32_still_sees_the_middle_of_many(count):
    """Sums of many small weights have rounding, and the midpoint is where they are exactly one half."""
    points = np.random.default_rng(count).permutation(count).astype(np.float32)[:, None]
    weights = np.full(count, 0.1, np.float32)
    assert centres.coordinate_median(jnp.asarray(points), jnp.asarray(weights)) == (count - 1) / 2


def test_coordinate_median_of_huge_values_does_not_overflow():
    assert centres.coordinate_median(jnp.array([[1.5e308], [1.5e308], [-1.5e308], [-1.5e308]]), jnp.ones(4)) == 0


@quick
@given(points=clouds, weights=counts)
def test_mean_is_numpys(points, weights):
    np.testing.assert_allclose(mean(points, weights), np.average(points, axis=0, weights=weights), atol=1e-12)


# ---- invariances


CENTRES = {
    "mean": mean,
    "coordinate_median": coordinate_median,
    "geometric_median": lambda points, weights: geometric_median(points, weights, tolerance=1e-10)[0],
    **{name: lambda points, weights, name=name: found(name, points, weights, 0.5, tolerance=1e-10)[0]
       for name in CASES},
}
every_centre = pytest.mark.parametrize("name", CENTRES)
WEIGHTS = np.array([1.0, 2, 1, 3, 1, 2, 1])


@every_centre
@pytest.mark.parametrize("seed", range(3))
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
    base, _ = found(name, gaussian(1), WEIGHTS, 0.5, tolerance=1e-10)
    scaled, info = found(name, scale * gaussian(1), WEIGHTS, scale * 0.5, tolerance=1e-10)
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


# ---- breakdown


def corrupted(far, dtype=np.float64):
    """101 points of the plane, 49 of which lie far away together; and the honest ones."""
    points = gaussian(11, count=101, dim=2)
    points[52:] = far * np.array([0.6, 0.8])
    return points.astype(dtype), points[:52]


def farthest(honest, t):
    """How far from the middle of the honest points the centre of the L2 norm may lie: see the top of the file."""
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


def test_every_iteration_descends():
    """Momentum alone would overshoot; what it spoils is thrown away."""
    points, _ = corrupted(1e3)

    def objective(w):
        return np.mean(envelopes(points - np.asarray(w), L2Norm(), 0.1))

    path = [objective(centre(points, np.ones(101), L2Norm(), 0.1, max_iterations=most)[0]) for most in range(60)]
    assert np.all(np.diff(path) <= 1e-12 * path[0])
    assert path[-1] < path[20] < path[0]


def test_momentum_takes_fewer_steps_than_weiszfeld():
    """From the mean a plain step shrinks the distance by 49/52 only: 300 of them for a factor 1e8."""
    points, honest = corrupted(1e8)
    _, info = geometric_median(points, np.ones(101))
    assert info.iterations < 150
    assert np.linalg.norm(weiszfeld(points, np.ones(101), 1e-6, 150) - honest.mean(axis=0)) > 1e3


# ---- float32, dtypes, jit, vmap


def test_a_small_t_in_float32_loses_no_digits():
    """With t at 1e-6 of the points, x - prox(x) had no digits left, and the mean passed for a median."""
    points = gaussian(0).astype(np.float32)
    w, info = geometric_median(points, np.ones(COUNT))
    assert info.residual <= 1e-6
    assert info.iterations < 100
    np.testing.assert_allclose(w, weiszfeld(points.astype(np.float64), np.ones(COUNT), 1e-6), atol=1e-5)


def test_stops_where_the_rounding_of_a_far_away_centre_is_all_that_is_left():
    rng = np.random.default_rng(0)
    far = (20 * rng.normal(size=500) + 0.02 * rng.normal(size=(10, 500))).astype(np.float32)
    found, info = centre(far, np.ones(10), L2Norm(), 0.1)
    exact, _ = centre(far.astype(np.float64), np.ones(10), L2Norm(), 0.1, tolerance=1e-12)
    assert info.iterations < 20  # a hundred or a thousand more looks find nothing
    assert np.linalg.norm(found - exact) < np.finfo(np.float32).eps * np.linalg.norm(exact)


def test_stops_where_float32_cannot_move_any_more():
    """A median at a point at 1, where floats are 1e-7 apart and t is 1e-6: the residual stays above, and says so."""
    points = np.random.default_rng(1).integers(0, 3, size=(21, 4)).astype(np.float32)
    w, info = centre(points, np.ones(21), L1(), 1e-6)
    assert info.residual > 1e-6
    assert info.iterations < 200
    np.testing.assert_allclose(w, np.median(points, axis=0), atol=2e-6)


ALL_PENALTIES = [L1(), L2Norm(), SquaredL2(), Zero(), OriginIndicator(), Quadratic(Q), Scaled(L1(), np.array(2.0)), SPLIT]


@pytest.mark.parametrize("penalty", ALL_PENALTIES, ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("weights", [np.ones(COUNT), np.ones(COUNT, np.float32), np.ones(COUNT, np.int64)],
                         ids=lambda w: w.dtype.name)
def test_float32_points_have_a_float32_centre(penalty, weights):
    """Whatever the dtypes of weights, t and the penalty's own numbers."""
    points = jnp.zeros((COUNT, DIM), jnp.float32)
    points = in_layers(points) if penalty is SPLIT else points
    for t in (0.1, np.ones(())):
        w, info = jax.eval_shape(lambda p, w, t=t: centres.moreau_centre(p, w, penalty, t), points, weights)
        assert {leaf.dtype for leaf in jax.tree.leaves((w, info.residual))} == {np.dtype(np.float32)}
    for simple in (centres.mean, centres.coordinate_median):
        leaves = jax.tree.leaves(jax.eval_shape(simple, points, weights))
        assert {leaf.dtype for leaf in leaves} == {np.dtype(np.float32)}


def test_a_sweep_over_t_is_one_vmap():
    """Each lane stops by itself, with the answer that it has alone."""
    points, ts = jnp.asarray(gaussian(7)), jnp.array([1e-3, 0.1, 1.0, 100.0])
    swept, info = jax.vmap(lambda t: centres.moreau_centre(points, WEIGHTS, L2Norm(), t))(ts)
    assert len(set(info.iterations.tolist())) > 1
    for k, t in enumerate(ts):
        alone, alone_info = found("L2Norm", np.asarray(points), WEIGHTS, t)
        np.testing.assert_allclose(swept[k], alone, atol=1e-12)
        assert info.iterations[k] == alone_info.iterations
    np.testing.assert_allclose(swept[-1], mean(points, WEIGHTS))      # t beyond the points: a quadratic, the mean
