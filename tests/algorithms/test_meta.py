"""Per-FedAvg and MAML, pFedMe, APFL and FedNova against closed forms, finite differences and plain loops."""

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import SEED, classification, equal, limit, quadratic, trajectory

import resolvent as rv
from resolvent.simulate.engine import initial, run_chunk

ALIKE = rv.participation.Full("uniform")
WHO = rv.participation.Stragglers(rv.participation.Uniform(cohort=4), share=0.5)
SOLVER = rv.SGD(0.2, batch_size=4, epochs=3)
ROUNDS = 4


def parts(problem):
    """The Hessians and linear terms, and the identity."""
    return np.asarray(problem.hessians), np.asarray(problem.linears), np.eye(problem.linears.shape[1])


def meta_optimum(problem, gamma, first_order):
    """Where sum_k M_k (H_k T_k(w) - g_k) = 0, T_k(w) = A_k w + gamma g_k, A_k = I - gamma H_k, M_k = I or A_k."""
    h, g, eye = parts(problem)
    a = eye - gamma * h
    m = np.broadcast_to(eye, a.shape) if first_order else a
    return np.linalg.solve((m @ h @ a).mean(0), np.einsum("kij,kj->i", m @ a, g) / len(g))


# Meta-learning


@jax.jit
def step_of(algorithm, k, w):
    """(w - w_k) / eta after one step of GD with eta = 0.1: the gradient that the party used."""
    _, reply, _ = algorithm.phases[0].party((), w, classification().oracle(k), jax.random.key(0), jnp.ones(()))
    return jax.flatten_util.ravel_pytree(jax.tree.map(lambda a, b: (a - b) / 0.1, w, reply))[0]


def test_perfedavgs_gradient_is_that_of_its_objective():
    """Exact to 1e-8 against differences of f_k(w - alpha grad f_k(w)); HF's error falls as delta^2; FO has none."""
    alpha, k, w = 0.8, 2, {"weight": jnp.cos(jnp.arange(9.0)).reshape(3, 3), "bias": jnp.array([0.3, -1.0, 0.5])}
    oracle = classification().oracle(jnp.array(k))
    flat, unravel = jax.flatten_util.ravel_pytree(w)

    def ahead(v):
        return jax.tree.map(lambda a, b: a - alpha * b, v, oracle.grad(v))

    objective = jax.jit(lambda v: oracle.value(ahead(unravel(v))))
    h = 1e-5 * jnp.eye(flat.size)
    numeric = jnp.array([(objective(flat + e) - objective(flat - e)) / 2e-5 for e in h])
    exact, second, first, *free = (step_of(algorithm, k, w) for algorithm in (
        rv.perfedavg(rv.solvers.GD(0.1), alpha=alpha, variant="exact"), rv.fomaml(rv.solvers.GD(0.1), gamma=alpha, order="second"),
        rv.perfedavg(rv.solvers.GD(0.1), alpha=alpha, variant="FO"),
        *(rv.perfedavg(rv.solvers.GD(0.1), alpha=alpha, variant="HF", delta=d) for d in (0.2, 0.1, 1e-4))))
    np.testing.assert_allclose(exact, numeric, atol=1e-8)
    np.testing.assert_allclose(second, exact, atol=1e-12)
    np.testing.assert_allclose(first, jax.flatten_util.ravel_pytree(oracle.grad(ahead(w)))[0], atol=1e-12)
    assert np.abs(first - exact).max() > 1e-2
    errors = [np.abs(f - exact).max() for f in free]
    assert 3.8 < errors[0] / errors[1] < 4.2
    assert errors[2] < 1e-9


@pytest.mark.parametrize("make", [rv.fomaml, lambda s, gamma: rv.perfedavg(s, alpha=gamma, variant="FO")],
                         ids=["fomaml", "FO"])
def test_first_order_finds_where_the_mean_gradient_after_the_step_vanishes(make):
    problem, gamma = quadratic(), 0.3
    found = np.asarray(limit(make(rv.solvers.GD(0.1), gamma=gamma), problem, 2000).server)
    np.testing.assert_allclose(found, meta_optimum(problem, gamma, first_order=True), atol=1e-10)


@pytest.mark.parametrize("variant", ["exact", "HF"])
def test_perfedavg_finds_the_optimum_of_the_meta_objective(variant):
    """And a party uses it after its own steps, in closed form. HF is exact on quadratics.

    With more local steps FedAvg's drift is back; Scaffold takes it away from the composed objectives too.
    """
    problem, gamma = quadratic(), 0.3
    best = meta_optimum(problem, gamma, first_order=False)
    algorithm = rv.perfedavg(rv.solvers.GD(0.1), alpha=gamma, variant=variant, delta=0.5, steps=2)
    state = limit(algorithm, problem, 2000)
    np.testing.assert_allclose(state.server, best, atol=1e-10)
    h, g, _ = parts(problem)
    for k in range(problem.parties):
        w = best
        for _ in range(2):
            w = w - gamma * (h[k] @ w - g[k])
        np.testing.assert_allclose(algorithm.personal_model((), state.server, problem.oracle(jnp.array(k))), w, atol=1e-10)
    if variant == "exact":
        step = rv.problems.GradientStep(gamma)
        drifting = limit(rv.combinators.MetaLearned(rv.fedavg(rv.solvers.GD(0.1, steps=5)), step=step), problem, 2000).server
        assert np.abs(np.asarray(drifting) - best).max() > 1e-3
        corrected = limit(rv.combinators.MetaLearned(rv.scaffold(rv.solvers.GD(0.1, steps=5)), step=step), problem, 2000).server[0]
        np.testing.assert_allclose(corrected, best, atol=1e-10)


@pytest.mark.parametrize("make", [rv.perfedavg, rv.apfl, rv.pfedme], ids=lambda f: f.__name__)
def test_the_model_after_the_work_is_what_a_party_alone_deploys(make):
    """With one party aggregation changes nothing: the party's model just before it is the one deployed after it."""
    problem, algorithm = quadratic(parties=1), make(rv.solvers.GD(0.1, steps=3))
    state = initial(algorithm, problem, ALIKE, SEED)
    record = run_chunk(algorithm, problem, ALIKE, state, SEED, jnp.array(0), jnp.array(3), capacity=3,
                       record=("model_change",), scheduler="sequential").record
    np.testing.assert_allclose(record.party["model_change"], 0, atol=1e-12)


def test_meta_learning_says_what_is_wrong():
    with pytest.raises(ValueError, match=r"perfedavg\(variant='SO'\) is not known: use 'FO', 'HF' or 'exact'"):
        rv.perfedavg(SOLVER, variant="SO")
    with pytest.raises(ValueError, match=r"fomaml\(order='third'\) is not known: use 'first' or 'second'"):
        rv.fomaml(SOLVER, order="third")
    with pytest.raises(ValueError, match=r"GradientStep\(rate=0.0\) must be positive"):
        rv.perfedavg(SOLVER, alpha=0.0)
    with pytest.raises(ValueError, match=r"MetaLearned\(steps=-1\) must lie in"):
        rv.fomaml(SOLVER, steps=-1)


# pFedMe


def test_pfedme_with_one_envelope_step_is_fedprox():
    """Whole trajectories with minibatches, samples and stragglers; the party's own model is FedProx's reply."""
    states = trajectory(rv.pfedme(SOLVER, lam=0.8, eta=1 / 0.8, steps=1), classification(), ROUNDS, WHO)
    proximal = trajectory(rv.fedprox(SOLVER, mu=0.8), classification(), ROUNDS, WHO)
    equal([s.server for s in states], [s.server for s in proximal])


def test_pfedme_by_numpy():
    problem, lam, eta, beta = quadratic(), 2.0, 0.2, 1.4
    h, g, eye = parts(problem)
    states = trajectory(rv.pfedme(rv.solvers.ClosedForm(), lam=lam, eta=eta, steps=3, beta=beta), problem, ROUNDS, ALIKE)
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


def test_pfedmes_limit_minimises_the_mean_moreau_envelope():
    """With one short step: sum_k lam (w - prox_k(w)) = 0, FedProx's fixed point, whatever eta and beta."""
    problem, lam = quadratic(), 2.0
    h, g, eye = parts(problem)
    inverse = np.linalg.inv(h + lam * eye)
    best = np.linalg.solve(eye - lam * inverse.mean(0), np.einsum("kij,kj->i", inverse, g) / 6)
    state = limit(rv.pfedme(rv.solvers.ClosedForm(), lam=lam, eta=0.2, steps=1, beta=1.3), problem, 2000)
    np.testing.assert_allclose(state.server, best, atol=1e-10)
    np.testing.assert_allclose(state.parties, np.einsum("kij,kj->ki", inverse, g + lam * best), atol=1e-10)


def test_pfedme_refuses_what_is_not_positive():
    with pytest.raises(ValueError, match=r"PFedMe\(lam=0\.0\) must lie in"):
        rv.pfedme(SOLVER, lam=0.0)


# APFL


def test_apfl_is_fedavg_and_with_alpha_one_local_training():
    """Alpha stays; the shared model is FedAvg's for any alpha, the own one is local training's for alpha = 1."""
    problem = classification()
    alone = trajectory(rv.local(SOLVER), problem, ROUNDS, WHO)
    together = trajectory(rv.fedavg(SOLVER, stragglers="keep"), problem, ROUNDS, WHO)
    for alpha in (0.0, 1.0):
        algorithm = rv.apfl(SOLVER, alpha=alpha, alpha_rate=0.0)
        states = trajectory(algorithm, problem, ROUNDS, WHO)
        equal([s.server for s in states], [s.server for s in together])
        if alpha == 1:
            equal([s.parties[0] for s in states], [s.parties for s in alone])
        for k in range(problem.parties):
            own = jax.tree.map(lambda leaf, k=k: leaf[k], states[-1].parties)
            expected = together[-1].server if alpha == 0 else jax.tree.map(lambda leaf, k=k: leaf[k], alone[-1].parties)
            equal(algorithm.personal_model(own, states[-1].server, problem.oracle(jnp.array(k))), expected)


def test_apfl_by_numpy():
    """Both models in step, alpha before them; a rate that drives some alphas to an end, where they are clipped."""
    problem, eta, rate = quadratic(), 0.1, 0.04
    h, g, _ = parts(problem)
    states = trajectory(rv.apfl(rv.solvers.GD(eta, steps=3), alpha=0.4, alpha_rate=rate), problem, 8, ALIKE)
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


def test_apfls_alpha_descends_on_the_loss_of_the_mixture():
    """Its change in the second round against a difference of f_k in alpha."""
    problem, rate, alpha, h = classification(), 0.05, 0.4, 1e-5
    _, first, second = trajectory(rv.apfl(SOLVER, alpha=alpha, alpha_rate=rate), problem, 2, ALIKE)
    np.testing.assert_array_equal(first.parties[1], alpha)  # both models began alike
    loss = jax.jit(lambda k, a, v: problem.oracle(k).value(jax.tree.map(lambda x, y: a * x + (1 - a) * y, v,
                                                                         first.server)))
    for k in range(problem.parties):
        v = jax.tree.map(lambda leaf, k=k: leaf[k], first.parties[0])
        slope = (loss(k, alpha + h, v) - loss(k, alpha - h, v)) / (2 * h)
        assert abs(slope) > 1e-3
        np.testing.assert_allclose(second.parties[1][k], alpha - rate * slope, atol=1e-9)


def test_apfl_says_what_is_wrong():
    with pytest.raises(TypeError, match=r"apfl needs plain gradient steps, .* got ClosedForm: use SGD or GD"):
        rv.apfl(rv.solvers.ClosedForm())
    with pytest.raises(ValueError, match=r"APFL\(alpha=1.5\) must lie in \[0, 1\]"):
        rv.apfl(SOLVER, alpha=1.5)
    with pytest.raises(ValueError, match=r"APFL\(alpha_rate=-1.0\) must lie in"):
        rv.apfl(SOLVER, alpha_rate=-1.0)


# FedNova


def test_fednova_with_as_many_steps_for_all_is_fedavg():
    solver = rv.SGD(0.2, batch_size=4, steps=5)
    who = rv.participation.Uniform(cohort=4)
    equal([s.server for s in trajectory(rv.fednova(solver), classification(), ROUNDS, who)],
          [s.server for s in trajectory(rv.fedavg(solver), classification(), ROUNDS, who)])


def test_fednova_is_consistent_where_fedavg_is_not():
    """Parties with 1 to 16 steps: the fixed points in closed form, and how far from the optimum as the step falls.

    tau steps of length eta take w by tau eta P_k (w_k* - w), P_k = (I - (I - eta H_k)^tau) / (tau eta) -> H_k: FedNova
    stops where sum_k P_k (w - w_k*) = 0, FedAvg where sum_k tau_k P_k (w - w_k*) = 0.
    """
    problem = quadratic()
    h, g, eye = parts(problem)
    best, taus = np.linalg.solve(h.mean(0), g.mean(0)), np.array([16, 8, 4, 2, 1, 1])
    alone = np.linalg.solve(h, g[..., None])[..., 0]
    who = rv.participation.FixedEffort(jnp.asarray(taus / 16), rv.participation.Full("uniform"))
    gap = {}
    for eta in (0.02, 0.002):
        p = np.stack([(eye - np.linalg.matrix_power(eye - eta * h[k], t)) / (t * eta) for k, t in enumerate(taus)])
        for make, share in ((rv.fednova, np.ones(6)), (rv.fedavg, taus)):
            weighed = share[:, None, None] * p
            expected = np.linalg.solve(weighed.sum(0), np.einsum("kij,kj->i", weighed, alone))
            found = np.asarray(limit(make(rv.solvers.GD(eta, steps=16)), problem, 20000, who).server)
            np.testing.assert_allclose(found, expected, atol=1e-9)
            gap[make, eta] = np.linalg.norm(found - best)
    assert 8 < gap[rv.fednova, 0.02] / gap[rv.fednova, 0.002] < 12
    assert gap[rv.fednova, 0.002] < 0.1 < gap[rv.fedavg, 0.002]


def test_fednova_refuses_other_solvers():
    with pytest.raises(TypeError, match=r"fednova divides by the number of .* got ClosedForm: use SGD or GD"):
        rv.fednova(rv.solvers.ClosedForm())
