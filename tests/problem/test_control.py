"""Linear-quadratic control: costs against rollouts, Riccati gains, and federated policy gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import resolvent as rv
from resolvent.simulator.record.diagnostics import pooled_optimum


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def test_the_cost_is_that_of_rollouts_and_its_minimiser_the_riccati_gain():
    problem = rv.problems.linear_quadratic(parties=3, seed=1)
    gains = problem.optimal_gains()
    for k in range(3):
        oracle = problem.oracle(k)
        a, b = np.asarray(oracle.dynamics), np.asarray(oracle.control)
        p = scipy.linalg.solve_discrete_are(a, b, np.eye(3), np.eye(2))
        np.testing.assert_allclose(gains[k], np.linalg.solve(np.eye(2) + b.T @ p @ b, b.T @ p @ a), atol=1e-12)
        np.testing.assert_allclose(oracle.value(gains[k]), np.trace(p), rtol=1e-12)
        np.testing.assert_allclose(oracle.grad(gains[k]), 0, atol=1e-10)
        gain, states, cost = 0.9 * np.asarray(gains[k]), np.eye(3), 0.0
        for _ in range(400):
            cost += np.sum(states**2) + np.sum((gain @ states) ** 2)
            states = (a - b @ gain) @ states
        np.testing.assert_allclose(oracle.value(jnp.asarray(gain)), cost, rtol=1e-10)
    assert jnp.isinf(oracle.value(-10 * gains[2]))


def test_policy_gradient_alone_converges_to_each_partys_optimum():
    problem = rv.problems.linear_quadratic(parties=4, heterogeneity=0.2, seed=2)
    result = rv.simulate(rv.local(rv.solvers.GD(0.02, steps=400)), problem, rounds=2, progress=False)
    np.testing.assert_allclose(result.personal_models, problem.optimal_gains(), atol=1e-6)
    assert result.scores("train").iloc[-1].max() < 1e-10
    assert result.scores("train", "gain_error").iloc[-1].max() < 1e-6


@pytest.mark.nightly
def test_federated_policy_gradient_converges():
    """With one system for all, to its Riccati gain; with different ones and one step, to the minimum of the mean."""
    same = rv.problems.linear_quadratic(parties=3, heterogeneity=0.0, seed=2)
    fedavg = rv.simulate(rv.fedavg(rv.solvers.GD(0.02, steps=20)), same, rounds=40, progress=False)
    np.testing.assert_allclose(fedavg.server_model, same.optimal_gains()[0], atol=1e-6)
    different = rv.problems.linear_quadratic(parties=3, heterogeneity=0.2, seed=2)
    fedavg = rv.simulate(rv.fedavg(rv.solvers.GD(0.02, steps=1)), different, rounds=600, progress=False)
    optimum = pooled_optimum(different, different.init(jax.random.key(0)), tolerance=1e-9)
    np.testing.assert_allclose(fedavg.server_model, optimum.w, atol=1e-6)
    assert fedavg.scores("train").iloc[-1].min() > 1e-4  # one policy is not optimal for every party


@pytest.mark.parametrize(("make", "message"), [
    (lambda: rv.problems.linear_quadratic(radius=1.0), r"linear_quadratic\(radius=1.0\)"),
    (lambda: rv.problems.linear_quadratic(parties=0), r"linear_quadratic\(parties=0\)"),
    (lambda: rv.problems.LinearQuadraticProblem(2 * np.eye(2)[None], np.ones((1, 2, 1))), "spectral radius 2"),
    (lambda: rv.problems.LinearQuadraticProblem(np.eye(2), np.ones((1, 2, 1))), r"dynamics \[N, d, d\]"),
])
def test_wrong_systems_are_refused(make, message):
    with pytest.raises(rv.InputError, match=message):
        make()


@pytest.mark.parametrize(("arguments", "noun"), [
    ({"controls": np.ones((2, 2))}, "controls"), ({"dynamics": np.full((2, 2, 2), np.nan)}, "finite"),
    ({"dynamics": np.ones((2, 2, 2))}, "system 0"), ({"state_cost": np.eye(3)}, "state_cost"),
    ({"control_cost": -np.eye(1)}, "control_cost"), ({"state_cost": np.full((2, 2), np.nan)}, "state_cost"),
])
def test_impossible_systems_are_refused(arguments, noun):
    with pytest.raises(rv.InputError, match=noun):
        rv.problems.LinearQuadraticProblem(**{"dynamics": np.zeros((2, 2, 2)), "controls": np.ones((2, 2, 1))}
                                           | arguments)
