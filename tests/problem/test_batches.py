"""Rules for minibatches: the distribution of consecutive ones, and that a solver steps over them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import resolvent as rv
from resolvent.problem.solvers.minibatches import draw_first_position

KEY = jax.random.key(3)


@pytest.mark.parametrize(("bias", "last"), [(0.0, 9), (0.3, 9), (5e-5, 3191), (0.9, 40), (0.5, 0)])
def test_first_positions_have_the_truncated_geometric_distribution(bias, last):
    """P(s) is in proportion to (1 - bias)^(last - s): a chi-square test on at most 20 classes."""
    draws = np.asarray(draw_first_position(jax.random.uniform(KEY, (100_000,)), jnp.array(last), bias))
    assert draws.min() >= 0
    assert draws.max() <= last
    probability = (1 - bias) ** np.arange(last, -1, -1.0)
    probability /= probability.sum()
    classes = np.minimum(np.cumsum(probability) * 20, 19.999).astype(int)
    expected = np.bincount(classes, probability * len(draws), 20)
    counts = np.bincount(classes[draws], minlength=20)
    used = expected > 5
    assert counts[~used].sum() <= 20
    if used.sum() > 1:
        expected = expected[used] * counts[used].sum() / expected[used].sum()
        assert stats.chisquare(counts[used], expected).pvalue > 1e-3


def test_the_inverse_of_the_distribution_function_is_exact_in_double_precision():
    with jax.enable_x64(True):
        n, bias, uniform = 12, 0.2, np.linspace(0, 1, 1001)[:-1] + 5e-4
        weights = (1 - bias) ** np.arange(n + 1.0)  # of last - s
        before_last = np.searchsorted(np.cumsum(weights) / weights.sum(), uniform, side="right")
        np.testing.assert_array_equal(draw_first_position(jnp.asarray(uniform), jnp.array(n), bias), n - before_last)


@pytest.mark.parametrize("samples", [3, 8, 30])
def test_consecutive_minibatches(samples):
    batches = rv.solvers.Consecutive(0.1)
    positions, mask = batches.draw(KEY, jnp.arange(40), jnp.array(samples), 8)
    np.testing.assert_array_equal(positions - positions[:, :1], np.broadcast_to(np.arange(8), (40, 8)))
    np.testing.assert_array_equal(mask.sum(axis=1), min(samples, 8))
    assert (np.asarray(positions)[np.asarray(mask)] < samples).all()
    np.testing.assert_array_equal(positions[7], batches.draw(KEY, jnp.array([7]), jnp.array(samples), 8).positions[0])
    assert samples <= 8 or len(np.unique(positions[:, 0])) > 3


@pytest.mark.parametrize("make", [lambda b: rv.SGD(0.1, 4, steps=5, batches=b),
                                  lambda b: rv.solvers.momentum(0.1, decay=0.0, batch_size=4, steps=5, batches=b)])
def test_solvers_step_over_the_chosen_minibatches(make):
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(11, 3)), rng.normal(size=11)
        data = rv.FederatedData.from_arrays([x], [y], task="regression", validation=0, test=0)
        oracle = rv.problems.LearningProblem(rv.models.linear(3), data).oracle(jnp.array(0))
        start = {"weight": jnp.zeros((1, 3)), "bias": jnp.zeros(1)}
        batches = rv.solvers.Consecutive(0.2)
        actual, *_ = make(batches)(rv.problems.Subproblem(oracle, start), start, KEY, jnp.array(1.0))
        w, x, y = start, np.asarray(oracle.x), np.asarray(oracle.y)
        for rows in np.asarray(batches.draw(KEY, jnp.arange(5), jnp.array(11), 4).positions):
            residual = x[rows] @ w["weight"][0] + w["bias"] - y[rows]
            w = {"weight": w["weight"] - 0.1 * (residual @ x[rows] / 4), "bias": w["bias"] - 0.1 * residual.mean()}
        np.testing.assert_allclose(actual["weight"], w["weight"], atol=1e-12)
        np.testing.assert_allclose(actual["bias"], w["bias"], atol=1e-12)


@pytest.mark.when_changed
def test_a_bias_out_of_range_is_refused():
    with pytest.raises(rv.InputError, match=r"Consecutive\(bias=1"):
        rv.solvers.Consecutive(1.0)
