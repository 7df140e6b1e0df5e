"""FedAvg with an optimizer on the server: against NumPy, and at rest."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import SEED, classification, equal, trajectory

import nightly
import resolvent as rv
from resolvent.simulator.engine.rounds import initial_state, run_rounds
from resolvent.simulator.states import Federation

SAMPLED = rv.participation.Stragglers(rv.participation.Uniform(cohort=4), share=0.5)
SOLVER = rv.SGD(0.2, batch_size=4, epochs=3)
B1, B2, EPS, MOMENTUM = 0.85, 0.95, 2e-3, 0.8


def momentum(m, v, g, t):
    m = MOMENTUM * m + g
    return m, v, m


def adam(m, v, g, t):
    m, v = B1 * m + (1 - B1) * g, B2 * v + (1 - B2) * g**2
    return m, v, m / (1 - B1**t) / (np.sqrt(v / (1 - B2**t)) + EPS)


def yogi(m, v, g, t):
    m, v = B1 * m + (1 - B1) * g, v - (1 - B2) * np.sign(v - g**2) * g**2
    return m, v, m / (1 - B1**t) / (np.sqrt(v / (1 - B2**t)) + EPS)


# The algorithm, its server rate, v_0, and (m, v, g, t) -> (m, v, direction). m_0 is 0.
OPTIMIZERS = {
    "reptile": (rv.reptile(SOLVER, server_rate=0.3), 0.3, 0.0, lambda m, v, g, t: (m, v, g)),
    "plain": (rv.reptile(SOLVER, server_rate=1.0), 1.0, 0.0, lambda m, v, g, t: (m, v, g)),
    "fedavgm": (rv.fedavgm(SOLVER, server_rate=0.7, momentum=MOMENTUM), 0.7, 0.0, momentum),
    "fedadam": (rv.fedadam(SOLVER, server_rate=0.05, b1=B1, b2=B2, eps=EPS), 0.05, 0.0, adam),
    "fedyogi": (rv.fedyogi(SOLVER, server_rate=0.05, b1=B1, b2=B2, eps=EPS), 0.05, EPS**2, yogi),
}


@nightly.parametrize("name", ["fedavgm", "fedadam", "fedyogi", "reptile", "plain"])
def test_server_optimizers_step_along_fedavgs_pseudo_gradient(name):
    """A plain loop: one round of FedAvg from w to w+, then the optimizer's step along w - w+, in NumPy."""
    algorithm, rate, v0, step = OPTIMIZERS[name]
    problem, plain = classification(), rv.fedavg(SOLVER)
    states = trajectory(algorithm, problem, 4, SAMPLED)
    w = initial_state(plain, problem, SAMPLED, SEED).server
    leaves, structure = jax.tree.flatten(w)
    moments = [(np.zeros(leaf.shape), np.full(leaf.shape, v0)) for leaf in leaves]
    for t in range(4):
        w = jax.tree.unflatten(structure, leaves)
        after = jax.tree.leaves(run_rounds(plain, problem, SAMPLED, state=Federation(w, ()), seed=SEED, start=t).server)
        for i, (leaf, new) in enumerate(zip(leaves, after, strict=True)):
            m, v, direction = step(*moments[i], np.asarray(leaf) - np.asarray(new), t + 1)
            moments[i], leaves[i] = (m, v), leaf - rate * direction
        equal(states[t + 1].server.inner, jax.tree.unflatten(structure, leaves))


@pytest.mark.when_changed
@nightly.parametrize("make", [rv.fedadam, rv.fedavgm, rv.reptile, rv.fedyogi])
def test_model_at_rest_stays_at_rest(make):
    """All parties have the same minimiser, and the model is there: no bit of it changes."""
    minimiser = jnp.array([1.5, -2.25])
    problem = rv.problems.QuadraticProblem(jnp.stack([jnp.eye(2)] * 4), jnp.stack([minimiser] * 4))
    algorithm = make(rv.solvers.GD(0.1, steps=2))
    state = eqx.tree_at(lambda s: s.server.inner, initial_state(algorithm, problem), minimiser)
    after = run_rounds(algorithm, problem, state=state, rounds=20)
    np.testing.assert_array_equal(after.server.inner, minimiser)


@pytest.mark.parametrize(("make", "message"), [
    (lambda: rv.fedyogi(SOLVER, eps=0.0), r"fedyogi\(eps=0.0\) must lie in \(0, inf\)"),
    (lambda: rv.fedadam(SOLVER, b2=1.0), r"fedadam\(b2=1.0\) must lie in \[0, 1\)"),
    (lambda: rv.fedavgm(SOLVER, momentum=-0.1), r"fedavgm\(momentum=-0.1\) must lie in \[0, 1\)"),
    (lambda: rv.reptile(SOLVER, server_rate=0.0), r"reptile\(server_rate=0.0\) must lie in \(0, inf\)"),
])
def test_wrong_settings_are_refused(make, message):
    with pytest.raises(rv.InputError, match=message):
        make()


def test_a_server_optimizer_needs_a_server_that_stores_the_model():
    with pytest.raises(rv.InputError, match="ServerOptimizer"):
        rv.combinators.ServerOptimizer(rv.local(SOLVER), rv.solvers.traced_optimizer(optax.sgd, learning_rate=1.0))
