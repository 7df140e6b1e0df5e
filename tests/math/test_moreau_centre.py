"""The Moreau centre against its definition, and its iteration: descent, stopping, dtypes, vmap."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from centre_cases import (
    CASES,
    COUNT,
    DIM,
    SPLIT,
    WEIGHTS,
    Q,
    centre,
    clouds,
    compute_centre,
    corrupted,
    counts,
    envelopes,
    every,
    gaussian,
    geometric_median,
    in_layers,
    mean,
    quick,
    steps,
    true_residual,
    weiszfeld,
)
from hypothesis import given
from jax.flatten_util import ravel_pytree

import nightly
from resolvent.math import centres
from resolvent.math.penalties import L1, L2Norm, OriginIndicator, Quadratic, Scaled, SquaredL2, Zero


@pytest.fixture(autouse=True, scope="module")
def float64():
    with jax.enable_x64(True):
        yield


ALL_PENALTIES = [L1(), L2Norm(), SquaredL2(), Zero(), OriginIndicator(), Quadratic(Q), Scaled(L1(), np.array(2.0)),
                 SPLIT]


@every
@quick
@given(points=clouds, weights=counts, t=steps)
def test_moreau_centre_is_stationary_and_its_residual_is_honest(name, points, weights, t):
    _, pull, _ = CASES[name]
    weights = weights.astype(np.float64)
    w, info = compute_centre(name, points, weights, t)
    residual = true_residual(pull(points - w, t), weights)
    np.testing.assert_allclose(info.residual, residual, rtol=1e-6, atol=1e-9)
    assert residual <= 1e-6 or info.iterations == 1000


@every
@pytest.mark.parametrize("seed", range(3))
def test_residual_reaches_the_tolerance_asked_for(name, seed):
    points, weights = gaussian(seed), np.arange(1.0, COUNT + 1)
    for tolerance in (1e-3, 1e-12):
        _, info = compute_centre(name, points, weights, 0.1, tolerance=tolerance)
        assert info.residual <= tolerance
        assert 0 < info.iterations < 1000


@every
def test_iterations_cut_short_are_reported(name):
    points, weights = gaussian(0), np.arange(1.0, COUNT + 1)
    _, pull, _ = CASES[name]
    for limit in (1, 2, 3):
        w, info = compute_centre(name, points, weights, 0.1, max_iterations=limit)
        assert info.iterations == limit
        assert info.residual > 1e-6
        np.testing.assert_allclose(info.residual, true_residual(pull(points - w, 0.1), weights), rtol=1e-9)
        if limit == 0:
            np.testing.assert_allclose(w, np.average(points, axis=0, weights=weights))


@pytest.mark.parametrize("penalty", [SquaredL2(), OriginIndicator(), Quadratic(Q), Zero()],
                         ids=lambda p: type(p).__name__)
@quick
@given(points=clouds, weights=counts)
def test_centre_of_a_quadratic_penalty_is_the_mean(penalty, points, weights):
    w, info = centre(points, weights, penalty, 0.7)
    np.testing.assert_allclose(w, np.average(points, axis=0, weights=weights), atol=1e-10)
    assert info.residual <= 1e-6


@quick
@given(points=clouds)
def test_centre_of_l1_is_within_t_of_the_coordinate_median(points):
    w, info = compute_centre("L1", points, np.ones(COUNT), 1e-4, tolerance=1e-9)
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


@pytest.mark.when_changed
def test_every_iteration_descends():
    """Momentum alone would overshoot; what it spoils is thrown away."""
    points, _ = corrupted(1e3)

    def objective(w):
        return np.mean(envelopes(points - np.asarray(w), L2Norm(), 0.1))

    path = [objective(centre(points, np.ones(101), L2Norm(), 0.1, max_iterations=limit)[0]) for limit in range(60)]
    assert np.all(np.diff(path) <= 1e-12 * path[0])
    assert path[-1] < path[20] < path[0]


def test_momentum_takes_fewer_steps_than_weiszfeld():
    """From the mean a plain step shrinks the distance by 49/52 only: 300 of them for a factor 1e8."""
    points, honest = corrupted(1e8)
    _, info = geometric_median(points, np.ones(101), tolerance=1e-6)
    assert info.iterations < 150
    assert np.linalg.norm(weiszfeld(points, np.ones(101), 1e-6, 150) - honest.mean(axis=0)) > 1e3


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
    w, info = centre(far, np.ones(10), L2Norm(), 0.1)
    exact, _ = centre(far.astype(np.float64), np.ones(10), L2Norm(), 0.1, tolerance=1e-12)
    assert info.iterations < 20  # more iterations do not improve it
    assert np.linalg.norm(w - exact) < np.finfo(np.float32).eps * np.linalg.norm(exact)


def test_stops_where_float32_cannot_move_any_more():
    """A median at a point at 1, where floats are 1e-7 apart and t is 1e-6: the residual stays above, and says so."""
    points = np.random.default_rng(1).integers(0, 3, size=(21, 4)).astype(np.float32)
    w, info = centre(points, np.ones(21), L1(), 1e-6)
    assert info.residual > 1e-6
    assert info.iterations < 200
    np.testing.assert_allclose(w, np.median(points, axis=0), atol=2e-6)


@nightly.diagonal(("penalty", "dtype"), ALL_PENALTIES, [np.float64, np.float32, np.int64])
def test_float32_points_have_a_float32_centre(penalty, dtype):
    weights = np.ones(COUNT, dtype)
    """Whatever the dtypes of weights, t and the penalty's own numbers."""
    points = jnp.zeros((COUNT, DIM), jnp.float32)
    points = in_layers(points) if penalty is SPLIT else points
    for t in (0.1, np.ones(())):
        w, info = jax.eval_shape(lambda p, w, t=t: centres.moreau_centre(p, w, penalty, t), points, weights)
        assert {leaf.dtype for leaf in jax.tree.leaves((w, info.residual))} == {np.dtype(np.float32)}
    for simple in (centres.mean, centres.coordinate_median):
        leaves = jax.tree.leaves(jax.eval_shape(simple, points, weights))
        assert {leaf.dtype for leaf in leaves} == {np.dtype(np.float32)}


@nightly.parametrize("penalty", [p for p in ALL_PENALTIES if p.ignores_layers], ids=lambda p: type(p).__name__,
                     per_commit=3, others=nightly.WHEN_CHANGED)
def test_layers_are_one_array_for_a_penalty_that_ignores_them(penalty):
    points = jnp.asarray(gaussian(0))
    flat, info = centre(points, WEIGHTS, penalty, 0.1)
    of_layers, same_info = centre(in_layers(points), WEIGHTS, penalty, 0.1)
    np.testing.assert_array_equal(np.asarray(ravel_pytree(of_layers)[0]), flat)
    assert same_info == info

    def body(x):
        loops = [e for e in jax.make_jaxpr(lambda p: centres.moreau_centre(p, WEIGHTS, penalty, 0.1))(x).eqns
                 if e.primitive.name == "while"]
        return str(loops[0].params["body_jaxpr"])

    assert body(in_layers(points)) == body(points)  # it does not grow with the number of layers


@pytest.mark.when_changed
def test_large_points_are_not_copied_and_have_the_same_centre(monkeypatch):
    points = in_layers(jnp.asarray(gaussian(0)))
    copied, _ = centre(points, WEIGHTS, L2Norm(), 0.1)
    monkeypatch.setattr(centres, "_MAX_COPIED_BYTES", 0)
    program = jax.make_jaxpr(lambda p: centres.moreau_centre(p, WEIGHTS, L2Norm(), 0.1))(points)
    assert "concatenate" not in str(program)
    in_place, _ = centres.moreau_centre(points, WEIGHTS, L2Norm(), 0.1)
    np.testing.assert_allclose(ravel_pytree(in_place)[0], ravel_pytree(copied)[0], rtol=1e-7, atol=1e-9)


@pytest.mark.when_changed
def test_a_sweep_over_t_is_one_vmap():
    """Each lane stops when it has converged, with the answer of a run without lanes."""
    points, ts = jnp.asarray(gaussian(7)), jnp.array([1e-3, 0.1, 1.0, 100.0])
    swept, info = jax.vmap(lambda t: centres.moreau_centre(points, WEIGHTS, L2Norm(), t))(ts)
    assert len(set(info.iterations.tolist())) > 1
    for k, t in enumerate(ts):
        alone, alone_info = compute_centre("L2Norm", np.asarray(points), WEIGHTS, t)
        np.testing.assert_allclose(swept[k], alone, atol=1e-12)
        assert info.iterations[k] == alone_info.iterations
    np.testing.assert_allclose(swept[-1], mean(points, WEIGHTS))      # t beyond the points: a quadratic, the mean
