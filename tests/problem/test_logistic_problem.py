"""The logistic problem against NumPy and against its known minimiser."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import resolvent as rv
from resolvent.problem.problems import logistic_regression

PARTIES, SAMPLES, FEATURES = 3, 40, 4
SHARES = np.full(PARTIES, 1 / PARTIES)


@pytest.fixture(scope="module")
def problem():
    with jax.enable_x64(True):
        yield logistic_regression(parties=PARTIES, samples=SAMPLES, features=FEATURES, heterogeneity=0.3, seed=2)


def by_hand(w):
    """The mean of the documented loss over the parties, in NumPy."""
    data = rv.datasets.splitting_logistic(parties=PARTIES, samples=SAMPLES, features=FEATURES, heterogeneity=0.3,
                                          seed=2)
    margins = (2 * data.y - 1) * (data.x.astype(float) @ w)
    return np.sum(np.log1p(np.exp(-margins))) / PARTIES + w @ w / (2 * PARTIES * SAMPLES)


@pytest.mark.when_changed
def test_value_gap_and_minimiser_are_those_of_another_program(problem):
    actual = minimize(by_hand, np.zeros(FEATURES), method="BFGS", options={"gtol": 1e-9})
    np.testing.assert_allclose(problem.optimum(SHARES), actual.x, rtol=1e-5)
    best, gap = np.asarray(problem.minimiser), jax.jit(lambda w: problem.gap(w, SHARES))
    value = jax.jit(lambda k, w: problem.oracle(k).value(w))
    for w in (np.zeros(FEATURES), np.ones(FEATURES), best + 1e-3):
        mean = np.mean([value(jnp.array(k), w) for k in range(PARTIES)])
        assert mean == pytest.approx(by_hand(w), rel=1e-13)
        assert float(gap(w)) == pytest.approx(by_hand(w) - by_hand(best), rel=1e-8)
    assert problem.gap(problem.minimiser, SHARES) == 0


@pytest.mark.when_changed
def test_gradients(problem):
    w = jnp.linspace(-1, 2, FEATURES)
    total = jnp.mean(jnp.stack([problem.oracle(jnp.array(k)).grad(problem.minimiser) for k in range(PARTIES)]), 0)
    np.testing.assert_allclose(total, 0, atol=1e-10)
    oracle, everybody = problem.oracle(jnp.array(1)), jnp.ones(SAMPLES, bool)
    exact = jax.grad(oracle.value)(w)
    np.testing.assert_allclose(oracle.grad(w), exact, rtol=1e-12)
    np.testing.assert_allclose(oracle.batch_grad(w, jnp.arange(SAMPLES), everybody)[0], exact, rtol=1e-12)
    halves = [oracle.batch_grad(w, jnp.arange(SAMPLES), everybody.at[part].set(False))[0]
              for part in (slice(0, SAMPLES // 2), slice(SAMPLES // 2, None))]
    np.testing.assert_allclose(sum(halves) / 2, exact, rtol=1e-12)
    np.testing.assert_allclose(oracle.batch_grad(w, jnp.arange(2), jnp.zeros(2, bool))[0], problem.l2 * w, rtol=1e-12)


@pytest.mark.nightly
def test_douglas_rachford_finds_the_minimiser(problem):
    solver = rv.solvers.LBFGS(steps=50, tolerance=1e-12)
    result = rv.simulate(rv.fedpi(solver, eta=0.05), problem, rounds=200, progress=False)
    np.testing.assert_allclose(result.server_model, problem.minimiser, atol=1e-6)
    gaps = result.metrics[result.metrics["metric"] == "gap"]["value"].to_numpy()
    assert gaps[-1] < 1e-10 * gaps[0]
