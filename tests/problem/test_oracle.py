"""The exact proximal point of quadratics, and the oracle that has only shapes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import resolvent as rv
from resolvent.problem.maps import GradientStep, Mixture, through
from resolvent.problem.oracle import ShapeOracle
from resolvent.problem.quadratic import QuadraticOracle

SOLVERS = [rv.SGD(0.1), rv.solvers.GD(0.1, steps=2), rv.solvers.adam(0.1), rv.solvers.LBFGS(steps=2),
           rv.solvers.ClosedForm()]


def test_the_proximal_point_is_the_zero_of_the_gradient():
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        a, g, center, linear = (jnp.asarray(rng.normal(size=shape)) for shape in ((4, 4), 4, 4, 4))
        oracle = QuadraticOracle(jnp.array(1), a @ a.T, g, jnp.zeros(()))
        for term in (None, linear):
            w = oracle.proximal_point(center, 0.3, term)
            np.testing.assert_allclose(rv.problems.Subproblem(oracle, center, 0.3, term).grad(w), 0, atol=1e-12)


def test_an_oracle_without_a_closed_form_raises():
    problem = rv.problems.LearningProblem(rv.models.linear(10), rv.datasets.synthetic(parties=2))
    w = problem.init(jax.random.key(0))
    with pytest.raises(TypeError, match="needs a quadratic problem, got SampleOracle"):
        problem.oracle(jnp.array(0)).proximal_point(w, 1.0, None)


@pytest.mark.parametrize("map_", [None, Mixture(0.3, {"w": jnp.ones(3)}), GradientStep(0.1)],
                         ids=["plain", "mixture", "gradient step"])
@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: type(s).__name__)
def test_solvers_are_traced_on_shapes_alone(solver, map_):
    def work(w):
        oracle = ShapeOracle() if map_ is None else through(ShapeOracle(), map_)
        value, held_out = oracle.value(w), oracle.held_out(w)
        reply, _, _ = solver(rv.problems.Subproblem(oracle, w, 0.5), w, jax.random.key(0), jnp.ones(()))
        return reply, value, held_out

    w = {"w": jnp.ones(3)}
    reply, value, held_out = jax.eval_shape(work, w)
    assert jax.tree.map(jnp.shape, reply) == {"w": (3,)}
    assert value.shape == held_out[0].shape == held_out[1].shape == ()
    assert value.dtype == w["w"].dtype
