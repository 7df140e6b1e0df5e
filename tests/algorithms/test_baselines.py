"""Scaffold, FedDANE, Ditto and the server optimizers against closed forms and plain loops."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import SEED, classification, equal, limit, quadratic, trajectory

import resolvent as rv
from resolvent.simulate.engine import Federation, initial, run_chunk

ALIKE = rv.participation.Full("uniform")
WHO = rv.participation.Stragglers(rv.participation.Uniform(cohort=4), share=0.5)
SOLVER = rv.SGD(0.2, batch_size=4, epochs=3)


def optimum(problem):
    return np.linalg.solve(np.mean(problem.hessians, axis=0), np.mean(problem.linears, axis=0))


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_finds_the_optimum_where_fedavg_does_not(option):
    problem, solver = quadratic(), rv.solvers.GD(0.05, steps=5)
    found = np.asarray(limit(rv.scaffold(solver, option=option), problem, 4000).server[0])
    np.testing.assert_allclose(found, optimum(problem), atol=1e-10)
    assert np.abs(np.asarray(limit(rv.fedavg(solver), problem, 4000).server) - optimum(problem)).max() > 1e-3


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("who", [WHO, rv.participation.BySize(3), rv.participation.Bernoulli(0.5), rv.participation.Uniform(2, "uniform")],
                         ids=lambda w: type(w).__name__)
def test_scaffolds_server_memory_is_the_weighted_mean_of_the_parties(option, who):
    """c = sum_k lambda_k c_k after every round, whoever took part and whoever was late."""
    problem = classification()
    shares = np.asarray(who.shares(problem.sizes))
    for state in trajectory(rv.scaffold(SOLVER, option=option, stragglers="drop"), problem, 5, who):
        equal(state.server[1], jax.tree.map(lambda c: np.tensordot(shares, c, 1), state.parties))


def test_scaffolds_second_option_is_the_mean_of_the_gradients_that_were_used():
    problem, eta, steps = quadratic(), 0.05, 4
    before, after = trajectory(rv.scaffold(rv.solvers.GD(eta, steps=steps)), problem, 1, ALIKE)
    for k in range(6):
        w, used = np.asarray(before.server[0]), []
        for _ in range(steps):
            used.append(np.asarray(problem.hessians[k]) @ w - np.asarray(problem.linears[k]))
            w = w - eta * used[-1]  # c = c_k = 0 in the first round
        np.testing.assert_allclose(after.parties[k], np.mean(used, axis=0), atol=1e-12)


def test_scaffold_needs_gradient_steps():
    with pytest.raises(TypeError, match="scaffold needs plain gradient steps, got ClosedForm: use SGD or GD"):
        rv.scaffold(rv.solvers.ClosedForm())
    with pytest.raises(ValueError, match=r"Scaffold\(option='III'\) is not known: use 'I' or 'II'"):
        rv.scaffold(SOLVER, option="III")


def test_feddane_with_exact_solves_finds_the_optimum():
    """At a fixed point w_k = w~ for all k, so that g = 0: the optimum of the average loss; FedProx stops elsewhere."""
    problem = quadratic()
    found = np.asarray(limit(rv.feddane(rv.solvers.ClosedForm(), mu=4.0), problem, 3000).server[0])
    np.testing.assert_allclose(found, optimum(problem), atol=1e-10)
    assert np.abs(np.asarray(limit(rv.fedprox(rv.solvers.ClosedForm(), mu=4.0), problem, 3000).server) - found).max() > 1e-3


def test_feddanes_phases_by_numpy():
    problem, mu = quadratic(), 0.7
    states = trajectory(rv.feddane(rv.solvers.ClosedForm(), mu=mu), problem, 3, ALIKE)
    h, g = np.asarray(problem.hessians), np.asarray(problem.linears)
    w = np.zeros(4)
    for state in states[1:]:
        gradients = h @ w - g
        mean = gradients.mean(axis=0)
        solved = [np.linalg.solve(h[k] + mu * np.eye(4), g[k] - (mean - gradients[k]) + mu * w) for k in range(6)]
        w = np.mean(solved, axis=0)
        np.testing.assert_allclose(state.server[1], mean, atol=1e-12)
        np.testing.assert_allclose(state.server[0], w, atol=1e-12)


def test_dittos_two_models():
    problem, lam = quadratic(), 0.6
    state = limit(rv.ditto(rv.solvers.ClosedForm(), lam=lam), problem, 3)
    h, g = np.asarray(problem.hessians), np.asarray(problem.linears)
    alone = np.linalg.solve(h, g[..., None])[..., 0]
    shared = alone.mean(axis=0)
    np.testing.assert_allclose(state.server, shared, atol=1e-12)
    personal = [np.linalg.solve(h[k] + lam * np.eye(4), g[k] + lam * shared) for k in range(6)]
    np.testing.assert_allclose(state.parties, personal, atol=1e-12)


def test_ditto_is_fedavg_and_without_lam_local_training():
    solver = rv.solvers.GD(0.2, steps=3)
    states = trajectory(rv.ditto(solver, lam=0.0), classification(), 4, WHO)
    equal([s.server for s in states],
          [s.server for s in trajectory(rv.fedavg(solver, stragglers="keep"), classification(), 4, WHO)])
    equal([s.parties for s in states], [s.parties for s in trajectory(rv.local(solver), classification(), 4, WHO)])


OPTIMIZERS = {
    "reptile": (rv.reptile(SOLVER, rate=0.3, stragglers="drop"), optax.sgd(0.3)),
    "plain": (rv.reptile(SOLVER, rate=1.0, stragglers="drop"), optax.sgd(1.0)),
    "fedavgm": (rv.fedavgm(SOLVER, rate=0.7, momentum=0.8), optax.sgd(0.7, momentum=0.8)),
    "fedadam": (rv.fedadam(SOLVER, rate=0.05), optax.adam(0.05, 0.9, 0.99, 1e-3)),
    "fedyogi": (rv.fedyogi(SOLVER, rate=0.05), optax.yogi(0.05, 0.9, 0.99, 1e-3)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_server_optimizers_step_along_fedavgs_pseudo_gradient(name):
    """A plain loop: one FedAvg round from w, the optimizer's step along w - w+."""
    algorithm, optimizer = OPTIMIZERS[name]
    problem, plain = classification(), rv.fedavg(SOLVER)
    states = trajectory(algorithm, problem, 4, WHO)
    w = initial(plain, problem, WHO, SEED).server
    memory = optimizer.init(w)
    for t in range(4):
        start = Federation(jax.tree.map(jnp.array, w), ())
        after = run_chunk(plain, problem, WHO, start, SEED, jnp.array(t), jnp.array(1), capacity=1, record=(),
                          scheduler="sequential").state.server
        update, memory = optimizer.update(jax.tree.map(jnp.subtract, w, after), memory, w)
        w = optax.apply_updates(w, update)
        equal(states[t + 1].server.inner, w)


def test_a_rate_of_one_is_fedavg():
    one = trajectory(rv.reptile(SOLVER, rate=1.0, stragglers="drop"), classification(), 4, WHO)
    equal([s.server.inner for s in one],
          [s.server for s in trajectory(rv.fedavg(SOLVER), classification(), 4, WHO)])


def test_server_optimizer_refuses_what_holds_no_iterate():
    with pytest.raises(TypeError, match=r"ServerOptimizer needs .* whose server holds the iterate"):
        rv.combinators.ServerOptimizer(rv.local(SOLVER), rv.solvers.traced_optimizer(optax.sgd, learning_rate=1.0))
