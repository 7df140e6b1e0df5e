"""SVRG: identities with gradient descent, and convergence where SGD fluctuates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import classification, equal, limit, trajectory

import resolvent as rv


@pytest.mark.when_changed
def test_with_all_samples_in_a_batch_it_is_gradient_descent():
    problem = classification()
    svrg = rv.fedprox(rv.solvers.SVRG(0.2, batch_size=100, steps=3), mu=0.3)
    descent = rv.fedprox(rv.solvers.GD(0.2, steps=3), mu=0.3)
    equal([s.server for s in trajectory(svrg, problem, 3)], [s.server for s in trajectory(descent, problem, 3)])


@pytest.mark.nightly
def test_the_first_step_is_the_full_gradient_for_any_batch():
    problem = classification()
    svrg = rv.fedavg(rv.solvers.SVRG(0.2, batch_size=2, steps=1))
    descent = rv.fedavg(rv.solvers.GD(0.2, steps=1))
    equal([s.server for s in trajectory(svrg, problem, 3)], [s.server for s in trajectory(descent, problem, 3)])


@pytest.mark.nightly
def test_on_one_party_it_converges_and_sgd_with_the_same_steps_does_not():
    rng = np.random.default_rng(0)
    data = rv.FederatedData.from_arrays([rng.normal(size=(30, 3))], [rng.integers(0, 3, 30)], validation=0, test=0,
                                        classes=["0", "1", "2"])
    problem = rv.problems.LearningProblem(rv.models.logistic(3, 3, l2=0.1), data)
    oracle = problem.oracle(jnp.array(0))
    gradients = [max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(oracle.grad(jax.tree.map(
        jnp.asarray, limit(rv.fedavg(solver), problem, 400).server)))) for solver in (
            rv.solvers.SVRG(0.3, batch_size=3, epochs=2), rv.SGD(0.3, batch_size=3, epochs=2))]
    assert gradients[0] < 1e-10 < 1e-3 < gradients[1]


def test_a_budget_that_is_not_positive_is_refused():
    with pytest.raises(rv.InputError, match="epochs"):
        rv.solvers.SVRG(0.1, epochs=0)
