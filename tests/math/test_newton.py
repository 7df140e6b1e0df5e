"""Newton's method, one evaluation at a time: exact on quadratics, safeguarded elsewhere, the same over any division."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import resolvent as rv
from resolvent.math import newton
from resolvent.math.newton import SecondOrder
from resolvent.regression.newton import FederatedNewton


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def _minimise(f, w, l1=None, rounds=60):
    @jax.jit
    def advance(state):
        at = state.candidate
        return newton.advance(state, SecondOrder(f(at), jax.grad(f)(at), jax.hessian(f)(at)), 1e-20, l1)

    state = newton.start(jnp.asarray(w))
    for _ in range(rounds):
        state = advance(state)
    return state


def test_a_quadratic_takes_two_evaluations():
    a = jnp.array([[3.0, 1.0], [1.0, 2.0]])
    state = _minimise(lambda w: w @ a @ w / 2 - w @ jnp.array([1.0, -1.0]), [5.0, 5.0])
    np.testing.assert_allclose(a @ state.point, [1.0, -1.0], atol=1e-14)
    assert state.evaluations == 2


def test_the_line_search_saves_steps_that_are_too_long():
    def f(w):  # from 5, plain Newton diverges
        return jnp.sum(jnp.log(jnp.cosh(w)))

    plain = 5.0 - np.tanh(5.0) * np.cosh(5.0)**2
    assert abs(plain) > 1000
    state = _minimise(f, [5.0])
    assert state.has_converged
    np.testing.assert_allclose(state.point, [0.0], atol=1e-10)


def test_a_saddle_is_left_and_a_flat_direction_is_not_moved():
    state = _minimise(lambda w: (w[0]**2 - 1)**2 / 4 + 0 * w[1], [0.1, 7.0])
    np.testing.assert_allclose(state.point, [1.0, 7.0], atol=1e-9)


@pytest.mark.when_changed
def test_the_proximal_step_satisfies_the_optimality_conditions():
    rng = np.random.default_rng(0)
    x, y, l1 = jnp.asarray(rng.normal(size=(50, 6))), jnp.asarray(rng.integers(0, 2, 50)), jnp.full(6, 0.04)

    def f(w):
        return jnp.mean(jax.nn.softplus(x @ w) - y * (x @ w))

    w = _minimise(f, np.zeros(6), l1).point
    slope = jax.grad(f)(w)
    assert 0 < np.sum(w == 0) < 6
    np.testing.assert_allclose(slope[w != 0], -l1[w != 0] * jnp.sign(w[w != 0]), atol=1e-10)
    assert jnp.all(jnp.abs(slope[w == 0]) <= l1[w == 0] + 1e-12)


def test_parties_reach_the_optimum_of_all_rows_in_two_rounds():
    problem = rv.problems.least_squares(parties=4, samples=60, features=5)
    result = rv.simulate(FederatedNewton(), problem, rounds=2, progress=False)
    np.testing.assert_allclose(result.server_model, problem.optimum(problem.sizes / problem.sizes.sum()), atol=1e-12)


@pytest.mark.nightly
def test_it_runs_on_models_with_samples():
    data, model = rv.datasets.digits(parties=3), rv.models.logistic(64, 10, l2=0.01)
    result = rv.simulate(rv.local(rv.solvers.Newton(steps=15)), model, data, rounds=1, progress=False)
    gradient = result.problem.oracle(jnp.array(0)).grad(result.personal_model(0))
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(gradient)) < 1e-9
