"""Per-FedAvg, MAML, pFedMe, APFL and FedNova against closed forms, finite differences and plain loops."""

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import classification, equal, limit, quadratic, trajectory

import nightly
import resolvent as rv
from resolvent.algorithms.combinators.combinator import Wrapped
from resolvent.simulator.engine.rounds import record_rounds

EQUAL_WEIGHTS = rv.participation.Full("uniform")
SAMPLED = rv.participation.Stragglers(rv.participation.Uniform(cohort=4), share=0.5)
SOLVER = rv.SGD(0.2, batch_size=4, epochs=3)
ROUNDS = 4


def arrays(problem):
    """The Hessians, the linear terms, and the identity matrix."""
    return np.asarray(problem.hessians), np.asarray(problem.linears), np.eye(problem.linears.shape[1])


def meta_optimum(problem, gamma, first_order):
    """Where sum_k M_k (H_k T_k(w) - g_k) = 0, T_k(w) = A_k w + gamma g_k, A_k = I - gamma H_k, M_k = I or A_k."""
    h, g, eye = arrays(problem)
    a = eye - gamma * h
    m = np.broadcast_to(eye, a.shape) if first_order else a
    return np.linalg.solve((m @ h @ a).mean(0), np.einsum("kij,kj->i", m @ a, g) / len(g))


# Meta-learning.


@jax.jit
def local_gradient(algorithm, k, w):
    """(w - w_k) / eta after one step of GD with eta = 0.1: the direction of the party's step."""
    state, message, key = Wrapped((), ()), Wrapped(w, ()), jax.random.key(0)
    _, reply, _ = algorithm.phases[0].party(state, message, classification().oracle(k), key, jnp.ones(()))
    return jax.flatten_util.ravel_pytree(jax.tree.map(lambda a, b: (a - b) / 0.1, w, reply))[0]


@pytest.mark.when_changed
def test_perfedavgs_direction_is_the_gradient_of_its_objective():
    """Against differences of f_k(w - alpha grad f_k(w)); HF's error is of order delta^2; FO has no Hessian term."""
    alpha, k, w = 0.8, 2, {"weight": jnp.cos(jnp.arange(9.0)).reshape(3, 3), "bias": jnp.array([0.3, -1.0, 0.5])}
    oracle, solver = classification().oracle(jnp.array(k)), rv.solvers.GD(0.1)
    flat, unravel = jax.flatten_util.ravel_pytree(w)

    def ahead(v):
        return jax.tree.map(lambda a, b: a - alpha * b, v, oracle.grad(v))

    objective = jax.jit(lambda v: oracle.value(ahead(unravel(v))))
    h = 1e-5 * jnp.eye(flat.size)
    numeric = jnp.array([(objective(flat + e) - objective(flat - e)) / 2e-5 for e in h])
    exact, second, first, *free = (local_gradient(algorithm, k, w) for algorithm in (
        rv.perfedavg(solver, alpha=alpha, variant="exact"), rv.fomaml(solver, gamma=alpha, order="second"),
        rv.perfedavg(solver, alpha=alpha, variant="FO"),
        *(rv.perfedavg(solver, alpha=alpha, variant="HF", delta=d) for d in (0.2, 0.1, 1e-4))))
    np.testing.assert_allclose(exact, numeric, atol=1e-8)
    np.testing.assert_allclose(second, exact, atol=1e-12)
    np.testing.assert_allclose(first, jax.flatten_util.ravel_pytree(oracle.grad(ahead(w)))[0], atol=1e-12)
    assert np.abs(first - exact).max() > 1e-2
    errors = [np.abs(f - exact).max() for f in free]
    assert 3.8 < errors[0] / errors[1] < 4.2
    assert errors[2] < 1e-9


@pytest.mark.when_changed
@nightly.parametrize("make", [rv.fomaml, lambda s, gamma: rv.perfedavg(s, alpha=gamma, variant="FO")],
                         ids=["fomaml", "FO"])
def test_first_order_converges_to_where_the_mean_gradient_after_the_step_vanishes(make):
    problem, gamma = quadratic(), 0.3
    model = limit(make(rv.solvers.GD(0.1), gamma=gamma), problem, 2000).server.inner
    np.testing.assert_allclose(model, meta_optimum(problem, gamma, first_order=True), atol=1e-10)


@pytest.mark.nightly
@pytest.mark.parametrize(("variant", "delta"), [("exact", None), ("HF", 0.5)])
def test_perfedavg_converges_to_the_optimum_of_the_meta_objective(variant, delta):
    """A party uses it after its own steps, here in closed form. HF is exact on quadratics."""
    problem, gamma = quadratic(), 0.3
    best = meta_optimum(problem, gamma, first_order=False)
    algorithm = rv.perfedavg(rv.solvers.GD(0.1), alpha=gamma, variant=variant, delta=delta, steps=2)
    state = limit(algorithm, problem, 2000)
    np.testing.assert_allclose(state.server.inner, best, atol=1e-10)
    h, g, _ = arrays(problem)
    for k in range(problem.parties):
        w = best
        for _ in range(2):
            w = w - gamma * (h[k] @ w - g[k])
        message = algorithm.model_message(state.server, k)
        model = algorithm.personal_model(Wrapped((), ()), message, problem.oracle(jnp.array(k)))
        np.testing.assert_allclose(model, w, atol=1e-10)


@pytest.mark.nightly
def test_scaffold_removes_the_drift_of_several_local_steps_on_the_meta_objective():
    problem, gamma, solver = quadratic(), 0.3, rv.solvers.GD(0.1, steps=5)
    best, step = meta_optimum(problem, gamma, first_order=False), rv.problems.GradientStep(gamma)
    fedavg, scaffold = (limit(rv.combinators.MetaLearned(inner, step=step), problem, 2000).server.inner
                        for inner in (rv.fedavg(solver), rv.scaffold(solver)))
    assert np.abs(fedavg - best).max() > 1e-3
    np.testing.assert_allclose(scaffold.model, best, atol=1e-10)


@nightly.parametrize("make", [rv.perfedavg, rv.apfl, rv.pfedme], ids=lambda f: f.__name__, per_commit=0)
def test_the_model_after_local_work_is_the_personal_model_of_a_single_party(make):
    """With one party the aggregation does not change the party's model."""
    problem, algorithm = quadratic(parties=1), make(rv.solvers.GD(0.1, steps=3))
    record = record_rounds(algorithm, problem, EQUAL_WEIGHTS, rounds=3, record=("model_change",)).record
    np.testing.assert_allclose(record.party["model_change"], 0, atol=1e-12)


def test_wrong_settings_of_meta_learning_are_refused():
    with pytest.raises(ValueError, match="variant='SO'"):
        rv.perfedavg(SOLVER, variant="SO")
    with pytest.raises(ValueError, match="order='third'"):
        rv.fomaml(SOLVER, order="third")
    with pytest.raises(ValueError, match=r"perfedavg\(alpha=0.0\) must lie in"):
        rv.perfedavg(SOLVER, alpha=0.0)
    with pytest.raises(ValueError, match="steps"):
        rv.fomaml(SOLVER, steps=-1)


# pFedMe.


@pytest.mark.nightly
def test_pfedme_with_one_envelope_step_is_fedprox():
    """Whole trajectories with minibatches, sampled parties and stragglers; a personal model is FedProx's reply."""
    states = trajectory(rv.pfedme(SOLVER, lam=0.8, eta=1 / 0.8, steps=1), classification(), ROUNDS, SAMPLED)
    proximal = trajectory(rv.fedprox(SOLVER, mu=0.8), classification(), ROUNDS, SAMPLED)
    equal([s.server for s in states], [s.server for s in proximal])


def test_pfedme_by_numpy():
    problem, lam, eta, beta = quadratic(), 2.0, 0.2, 1.4
    h, g, eye = arrays(problem)
    algorithm = rv.pfedme(rv.solvers.ClosedForm(), lam=lam, eta=eta, steps=3, beta=beta)
    states = trajectory(algorithm, problem, ROUNDS, EQUAL_WEIGHTS)
    shared = np.zeros(4)
    for state in states[1:]:
        w, theta = np.tile(shared, (6, 1)), np.zeros((6, 4))
        for k in range(6):
            for _ in range(3):
                theta[k] = np.linalg.solve(h[k] + lam * eye, g[k] + lam * w[k])
                w[k] -= eta * lam * (w[k] - theta[k])
        shared = (1 - beta) * shared + beta * w.mean(0)
        np.testing.assert_allclose(state.server, shared, atol=1e-12)
        np.testing.assert_allclose(state.parties, theta, atol=1e-12)


@pytest.mark.when_changed
def test_pfedmes_limit_minimises_the_mean_moreau_envelope():
    """With one short step: sum_k lam (w - prox_k(w)) = 0, FedProx's fixed point, whatever eta and beta."""
    problem, lam = quadratic(), 2.0
    h, g, eye = arrays(problem)
    inverse = np.linalg.inv(h + lam * eye)
    best = np.linalg.solve(eye - lam * inverse.mean(0), np.einsum("kij,kj->i", inverse, g) / 6)
    state = limit(rv.pfedme(rv.solvers.ClosedForm(), lam=lam, eta=0.2, steps=1, beta=1.3), problem, 2000)
    np.testing.assert_allclose(state.server, best, atol=1e-10)
    np.testing.assert_allclose(state.parties, np.einsum("kij,kj->ki", inverse, g + lam * best), atol=1e-10)


def test_pfedme_refuses_what_is_not_positive():
    with pytest.raises(ValueError, match="lam"):
        rv.pfedme(SOLVER, lam=0.0)


# APFL.


@pytest.mark.nightly
def test_apfl_with_constant_alpha_is_fedavg_and_local_training():
    """The shared model is FedAvg's for every alpha; for alpha = 1 the party's own model is that of local training."""
    problem = classification()
    local = trajectory(rv.local(SOLVER), problem, ROUNDS, SAMPLED)
    fedavg = trajectory(rv.fedavg(SOLVER), problem, ROUNDS, SAMPLED)
    for alpha in (0.0, 1.0):
        algorithm = rv.apfl(SOLVER, alpha=alpha, alpha_rate=0.0)
        states = trajectory(algorithm, problem, ROUNDS, SAMPLED)
        equal([s.server for s in states], [s.server for s in fedavg])
        if alpha == 1:
            equal([s.parties.model for s in states], [s.parties for s in local])
        for k in range(problem.parties):
            state = jax.tree.map(lambda leaf, k=k: leaf[k], states[-1].parties)
            expected = fedavg[-1].server if alpha == 0 else jax.tree.map(lambda leaf, k=k: leaf[k], local[-1].parties)
            equal(algorithm.personal_model(state, states[-1].server, problem.oracle(jnp.array(k))), expected)


def test_apfl_by_numpy():
    """alpha_k changes before the models do; some alphas reach 0 or 1, where they are clipped."""
    problem, eta, rate = quadratic(), 0.1, 0.04
    h, g, _ = arrays(problem)
    states = trajectory(rv.apfl(rv.solvers.GD(eta, steps=3), alpha=0.4, alpha_rate=rate), problem, 8, EQUAL_WEIGHTS)
    shared, v, alpha = np.zeros(4), np.zeros((6, 4)), np.full(6, 0.4)
    for state in states[1:]:
        w = np.tile(shared, (6, 1))
        for k in range(6):
            def gradient(x, k=k):
                return h[k] @ x - g[k]

            slope = (v[k] - w[k]) @ gradient(alpha[k] * v[k] + (1 - alpha[k]) * w[k])
            a = alpha[k] = np.clip(alpha[k] - rate * slope, 0, 1)
            for _ in range(3):
                mixed = a * v[k] + (1 - a) * w[k]
                w[k], v[k] = w[k] - eta * gradient(w[k]), v[k] - eta * a * gradient(mixed)
        shared = w.mean(0)
        equal((state.server, *state.parties), (shared, v, alpha))
    assert alpha.max() == 1 > alpha.min()


@pytest.mark.nightly
def test_apfls_alpha_descends_on_the_loss_of_the_mixture():
    """The change of alpha in the second round against a difference quotient of f_k."""
    problem, rate, alpha, h = classification(), 0.05, 0.4, 1e-5
    _, first, second = trajectory(rv.apfl(SOLVER, alpha=alpha, alpha_rate=rate), problem, 2, EQUAL_WEIGHTS)
    np.testing.assert_array_equal(first.parties.alpha, alpha)  # both models were equal before the round
    loss = jax.jit(lambda k, a, v: problem.oracle(k).value(jax.tree.map(lambda x, y: a * x + (1 - a) * y, v,
                                                                         first.server)))
    for k in range(problem.parties):
        v = jax.tree.map(lambda leaf, k=k: leaf[k], first.parties.model)
        slope = (loss(k, alpha + h, v) - loss(k, alpha - h, v)) / (2 * h)
        assert abs(slope) > 1e-3
        np.testing.assert_allclose(second.parties.alpha[k], alpha - rate * slope, atol=1e-9)


def test_wrong_settings_of_apfl_are_refused():
    with pytest.raises(rv.InputError, match="plain gradient steps, got ClosedForm"):
        rv.apfl(rv.solvers.ClosedForm())
    with pytest.raises(ValueError, match=r"alpha=1\.5"):
        rv.apfl(SOLVER, alpha=1.5)
    with pytest.raises(ValueError, match="alpha_rate"):
        rv.apfl(SOLVER, alpha_rate=-1.0)


# FedNova.


@pytest.mark.nightly
def test_fednova_with_equal_numbers_of_steps_is_fedavg():
    solver = rv.SGD(0.2, batch_size=4, steps=5)
    participation = rv.participation.Uniform(cohort=4)
    equal([s.server for s in trajectory(rv.fednova(solver), classification(), ROUNDS, participation)],
          [s.server for s in trajectory(rv.fedavg(solver), classification(), ROUNDS, participation)])


@pytest.mark.nightly
def test_fednova_is_consistent_and_fedavg_is_not():
    """Parties make 1 to 16 steps: the fixed points in closed form, and their distance from the optimum.

    tau steps of length eta move w by tau eta P_k (w_k* - w), P_k = (I - (I - eta H_k)^tau) / (tau eta) -> H_k. FedNova
    converges to the solution of sum_k P_k (w - w_k*) = 0, FedAvg to that of sum_k tau_k P_k (w - w_k*) = 0.
    """
    problem = quadratic()
    h, g, eye = arrays(problem)
    best, taus = np.linalg.solve(h.mean(0), g.mean(0)), np.array([16, 8, 4, 2, 1, 1])
    optima = np.linalg.solve(h, g[..., None])[..., 0]
    participation = rv.participation.FixedEffort(jnp.asarray(taus / 16), rv.participation.Full("uniform"))
    distance = {}
    for eta in (0.02, 0.002):
        p = np.stack([(eye - np.linalg.matrix_power(eye - eta * h[k], t)) / (t * eta) for k, t in enumerate(taus)])
        for preset, weights in ((rv.fednova, np.ones(6)), (rv.fedavg, taus)):
            weighted = weights[:, None, None] * p
            expected = np.linalg.solve(weighted.sum(0), np.einsum("kij,kj->i", weighted, optima))
            model = limit(preset(rv.solvers.GD(eta, steps=16)), problem, 20000, participation).server
            np.testing.assert_allclose(model, expected, atol=1e-9)
            distance[preset, eta] = np.linalg.norm(model - best)
    assert 8 < distance[rv.fednova, 0.02] / distance[rv.fednova, 0.002] < 12
    assert distance[rv.fednova, 0.002] < 0.1 < distance[rv.fedavg, 0.002]


@nightly.parametrize(("solver", "rho"), [
    (rv.solvers.GD(0.05, steps=4), 0.0), (rv.solvers.momentum(0.05, decay=0.6, steps=4), 0.6)],
    ids=["gradient steps", "momentum"])
def test_fednova_by_numpy(solver, rho):
    """|a_k| is the sum of the weights of the gradients, here counted step by step."""
    problem, eta, taus = quadratic(), 0.05, np.array([4, 4, 2, 1, 3, 1])
    participation = rv.participation.FixedEffort(jnp.asarray(taus / 4), rv.participation.Full("uniform"))
    h, g, _ = arrays(problem)
    shared = np.zeros(4)
    for state in trajectory(rv.fednova(solver), problem, ROUNDS, participation)[1:]:
        changes, totals = [], []
        for k, tau in enumerate(taus):
            w, average, weights = shared, np.zeros(4), np.zeros(tau)
            for step in range(tau):
                average = rho * average + h[k] @ w - g[k]
                w = w - eta * average
                weights[:step + 1] += rho ** np.arange(step, -1, -1)
            changes.append(w - shared)
            totals.append(weights.sum())
        directions = np.array(changes) / np.array(totals)[:, None]
        shared = shared + np.mean(totals) * directions.mean(axis=0)
        np.testing.assert_allclose(state.server, shared, atol=1e-12)


@pytest.mark.nightly
def test_fednova_with_momentum_and_equal_numbers_of_steps_is_fedavg():
    problem, solver = quadratic(), rv.solvers.momentum(0.05, decay=0.6, steps=4)
    everyone = rv.participation.Full("uniform")
    equal([s.server for s in trajectory(rv.fednova(solver), problem, 3, everyone)],
          [s.server for s in trajectory(rv.fedavg(solver), problem, 3, everyone)])


@pytest.mark.nightly
def test_fednova_needs_plain_gradient_steps():
    with pytest.raises(rv.InputError, match="plain gradient steps, got ClosedForm"):
        rv.fednova(rv.solvers.ClosedForm())
    with pytest.raises(rv.InputError, match="plain gradient steps, got OptaxSolver"):
        rv.fednova(rv.solvers.momentum(0.1, keep=True))
