"""Diagnostics against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import resolvent as rv
from resolvent.simulator.record.diagnostics import dissimilarity


def least_squares(seed=0, parties=5, dimension=3):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(parties, 8, dimension)), rng.normal(size=(parties, 8))
    return a, b, rv.problems.QuadraticProblem.least_squares(jnp.asarray(a), jnp.asarray(b))


def gradients_at(a, b, w):
    return np.einsum("kni,kn->ki", a, np.einsum("kni,i->kn", a, w) - b)


def test_dissimilarity_by_numpy():
    with jax.enable_x64(True):
        a, b, problem = least_squares()
        problem = rv.problems.QuadraticProblem(problem.hessians, problem.linears, problem.constants, jnp.arange(1, 6))
        w = np.array([0.3, -1, 2])
        measured = dissimilarity(problem, jnp.asarray(w))
        gradients, shares = gradients_at(a, b, w), np.arange(1, 6) / 15
        mean = shares @ gradients
        squares = (gradients**2).sum(1)
        assert float(measured.b) == pytest.approx(np.sqrt(shares @ squares / (mean**2).sum()), rel=1e-12)
        assert float(measured.gradient_variance) == pytest.approx(shares @ ((gradients - mean) ** 2).sum(1), rel=1e-12)
        assert float(measured.heterogeneity) == pytest.approx(squares.mean(), rel=1e-12)


def test_b_of_equal_parties_is_one_also_if_every_gradient_vanishes():
    problem = rv.problems.QuadraticProblem(jnp.tile(jnp.eye(2), (3, 1, 1)), jnp.ones((3, 2)))
    measured = dissimilarity(problem, jnp.zeros(2))
    assert (float(measured.b), float(measured.gradient_variance)) == (1.0, 0.0)
    assert float(dissimilarity(problem, jnp.ones(2)).b) == 1.0


@pytest.mark.when_changed
def test_heterogeneity_of_a_run_is_h_at_the_pooled_optimum():
    """H of the operator-splitting paper, A.1: the mean of |grad f_i(w*)|^2 at the least-squares solution."""
    with jax.enable_x64(True):
        a, b, problem = least_squares()
        result = rv.simulate(rv.fedavg(rv.solvers.GD(0.01)), problem, rounds=1, diagnostics=("heterogeneity",),
                             progress=False)
        w, *_ = np.linalg.lstsq(a.reshape(-1, 3), b.ravel(), rcond=None)
        measured = result.metrics.set_index("metric")["value"]
        assert measured["heterogeneity"] == pytest.approx((gradients_at(a, b, w) ** 2).sum(1).mean(), rel=1e-5)
        assert measured["heterogeneity_gradient"] <= 1e-6
