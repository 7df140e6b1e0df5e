"""Fine-tuning: the rounds of the inner algorithm; personal models are trained from the shared model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import classification, equal, personal_models, quadratic, trajectory

import resolvent as rv


@pytest.mark.when_changed
def test_on_quadratics_it_is_gradient_steps_from_the_shared_model():
    inner, problem = rv.reptile(rv.solvers.GD(0.1, steps=2)), quadratic()
    tuned = rv.combinators.FineTuned(inner, rv.solvers.GD(0.05, steps=3))
    plain, states = (trajectory(a, problem, 4) for a in (inner, tuned))
    equal(states, plain)
    w = np.broadcast_to(np.asarray(inner.server_model(plain[-1].server)), (6, 4))
    for _ in range(3):
        w = w - 0.05 * (np.einsum("kij,kj->ki", np.asarray(problem.hessians), w) - np.asarray(problem.linears))
    np.testing.assert_allclose(personal_models(tuned, problem, states[-1]), w, atol=1e-12)
    exact = rv.combinators.FineTuned(inner, rv.solvers.ClosedForm())
    optima = np.linalg.solve(np.asarray(problem.hessians), np.asarray(problem.linears)[..., None])[..., 0]
    np.testing.assert_allclose(personal_models(exact, problem, states[-1]), optima, atol=1e-10)


@pytest.mark.nightly
def test_minibatches_lower_every_partys_loss_and_keep_the_dtype():
    problem = classification()
    tuned = rv.combinators.FineTuned(rv.fedavg(rv.SGD(0.1, batch_size=4)), rv.SGD(0.1, batch_size=4, epochs=20))
    state = trajectory(tuned, problem, 2)[-1]
    models = personal_models(tuned, problem, state)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(models)} == {"float64"}
    for k in range(6):
        oracle = problem.oracle(jnp.array(k))
        model = jax.tree.map(lambda leaf, k=k: leaf[k], models)
        assert oracle.value(model) < oracle.value(tuned.server_model(state.server))
