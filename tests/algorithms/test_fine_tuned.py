"""Fine-tuning: the rounds are the inner algorithm's, and what a party uses is its own training from there."""

import jax
import jax.numpy as jnp
import numpy as np
from helpers import classification, equal, quadratic, trajectory

import resolvent as rv
from resolvent.simulate.evaluate import personal_models


def test_of_quadratics_it_is_gradient_steps_from_the_shared_model():
    inner, problem = rv.reptile(rv.solvers.GD(0.1, steps=2)), quadratic()
    tuned = rv.combinators.FineTuned(inner, rv.solvers.GD(0.05, steps=3))
    plain, states = (trajectory(a, problem, 4) for a in (inner, tuned))
    equal(states, plain)
    w = np.broadcast_to(np.asarray(inner.server_model(plain[-1].server)), (6, 4))
    for _ in range(3):
        w = w - 0.05 * (np.einsum("kij,kj->ki", np.asarray(problem.hessians), w) - np.asarray(problem.linears))
    np.testing.assert_allclose(personal_models(tuned, problem, states[-1], jnp.arange(6)), w, atol=1e-12)
    exact = rv.combinators.FineTuned(inner, rv.solvers.ClosedForm())
    own = np.linalg.solve(np.asarray(problem.hessians), np.asarray(problem.linears)[..., None])[..., 0]
    np.testing.assert_allclose(personal_models(exact, problem, states[-1], jnp.arange(6)), own, atol=1e-10)


def test_minibatches_lower_every_partys_loss_and_leave_the_precision():
    problem = classification()
    tuned = rv.combinators.FineTuned(rv.fedavg(rv.SGD(0.1, batch_size=4)), rv.SGD(0.1, batch_size=4, epochs=20))
    state = trajectory(tuned, problem, 2)[-1]
    models = personal_models(tuned, problem, state, jnp.arange(6))
    assert {leaf.dtype.name for leaf in jax.tree.leaves(models)} == {"float64"}
    for k in range(6):
        oracle = problem.oracle(jnp.array(k))
        own = jax.tree.map(lambda leaf, k=k: leaf[k], models)
        assert oracle.value(own) < oracle.value(tuned.server_model(state.server))
