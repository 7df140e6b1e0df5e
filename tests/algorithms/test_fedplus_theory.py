"""Fed+'s theorems, with exact local solves on quadratics and gradient steps on logistic regression."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import classification, limit, quadratic, trajectory

import nightly
import resolvent as rv
from resolvent.algorithms.aggregators.medians import MoreauCentre
from resolvent.algorithms.methods.fedplus import FedPlus, ProxAnchor

SIGMA, DELTA = 0.8, 0.3
Q = jnp.asarray(np.diag([1.0, 2, 0.5, 3]) + 0.2)
PENALTIES = {
    "L1": rv.penalties.L1(),
    "L2Norm": rv.penalties.L2Norm(),
    "SquaredL2": rv.penalties.SquaredL2(),
    "Zero": rv.penalties.Zero(),
    "OriginIndicator": rv.penalties.OriginIndicator(),
    "diagonal Q": rv.penalties.Quadratic(jnp.asarray([1.0, 2, 0.5, 3])),
    "full Q": rv.penalties.Quadratic(Q),
    "scaled L1": rv.penalties.Scaled(rv.penalties.L1(), 2.0),
}


def exact_fedplus(penalty, *, sigma=SIGMA, delta=DELTA, solver=None):
    """Fed+ with exact local solutions and a centre with a tolerance of 1e-15."""
    return FedPlus(solver=rv.solvers.ClosedForm() if solver is None else solver, anchor=ProxAnchor(penalty, delta),
                   aggregator=MoreauCentre(penalty, delta, tolerance=1e-15, max_iterations=20_000), sigma=sigma)


def envelope_grads(problem, z):
    """Gradient of each f_k's Moreau envelope of parameter 1/sigma at z_k: sigma*(z_k - prox(z_k)), by NumPy."""
    h, g = np.asarray(problem.hessians), np.asarray(problem.linears)
    proxes = [np.linalg.solve(h[k] + SIGMA * np.eye(len(z[k])), g[k] + SIGMA * z[k]) for k in range(len(z))]
    return SIGMA * (z - np.array(proxes))


@nightly.parametrize("name", PENALTIES)
def test_theorem_2(name):
    """At a fixed point the mean of the envelopes' gradients at z_k vanishes, and w_k = z_k - grad/sigma."""
    problem, penalty = quadratic(), PENALTIES[name]
    state = limit(exact_fedplus(penalty), problem)
    w, centre = np.asarray(state.parties), np.asarray(state.server)
    z = np.array([centre + np.asarray(penalty.prox(jnp.asarray(row - centre), DELTA)) for row in w])
    grads = envelope_grads(problem, z)
    np.testing.assert_allclose(w, z - grads / SIGMA, atol=1e-8)
    np.testing.assert_allclose(grads.mean(axis=0), 0, atol=1e-8)
    if name != "Zero":
        assert np.abs(grads).max() > 1e-3  # single gradients do not vanish


@pytest.mark.nightly
def test_theorem_2_with_weights():
    """If parties are weighted by size, the weighted mean vanishes."""
    problem = quadratic()
    state = limit(exact_fedplus(rv.penalties.L2Norm()), problem, participation=rv.participation.Full("size"))
    w, centre = np.asarray(state.parties), np.asarray(state.server)
    z = np.array([centre + np.asarray(rv.penalties.L2Norm().prox(jnp.asarray(row - centre), DELTA)) for row in w])
    shares = np.arange(1, 7) / 21
    np.testing.assert_allclose(shares @ envelope_grads(problem, z), 0, atol=1e-8)


@pytest.mark.nightly
def test_corollary_a_zero_penalty_is_local_training():
    problem = quadratic()
    w = np.asarray(limit(exact_fedplus(rv.penalties.Zero()), problem).parties)
    optima = np.linalg.solve(np.asarray(problem.hessians), np.asarray(problem.linears)[..., None])[..., 0]
    np.testing.assert_allclose(w, optima, atol=1e-8)


@pytest.mark.nightly
def test_corollary_b_indicator_is_fedprox():
    problem = quadratic()
    state = limit(exact_fedplus(rv.penalties.OriginIndicator()), problem)
    centre = np.asarray(state.server)
    grads = envelope_grads(problem, np.tile(centre, (6, 1)))
    np.testing.assert_allclose(grads.mean(axis=0), 0, atol=1e-8)
    np.testing.assert_allclose(np.asarray(state.parties), centre - grads / SIGMA, atol=1e-8)
    prox = limit(rv.fedprox(rv.solvers.ClosedForm(), mu=SIGMA), problem)
    np.testing.assert_allclose(np.asarray(prox.server), centre, atol=1e-8)


@pytest.mark.nightly
def test_corollary_c_square_is_fedavg_plus():
    problem = quadratic()
    preset = rv.fedavg_plus(rv.solvers.ClosedForm(), sigma=SIGMA, delta=DELTA)
    for algorithm in (exact_fedplus(rv.penalties.SquaredL2()), preset):
        state = limit(algorithm, problem)
        w, centre = np.asarray(state.parties), np.asarray(state.server)
        np.testing.assert_allclose(centre, w.mean(axis=0), atol=1e-8)
        grads = envelope_grads(problem, (w + DELTA * centre) / (1 + DELTA))
        np.testing.assert_allclose(w, centre - (1 + DELTA) / (SIGMA * DELTA) * grads, atol=1e-8)


@pytest.mark.when_changed
@nightly.parametrize("aggregator", [
    rv.aggregators.Mean(),
    rv.aggregators.CoordinateMedian(),
    rv.aggregators.GeometricMedian(1e-9, 1e-15, 20_000),
], ids=lambda a: type(a).__name__)
def test_proposition_3(aggregator):
    """(27) for any aggregator and any pull; by translation and sign invariance (29) the scaled gradients aggregate to
    zero."""
    problem = quadratic()
    gamma = np.array([0.15, 0.9, 0.4, 1.0, 0.3, 0.6])
    state = limit(rv.fedplus_pull(rv.solvers.ClosedForm(), aggregator, gamma=jnp.asarray(gamma), sigma=SIGMA), problem)
    w, centre = np.asarray(state.parties), np.asarray(state.server)
    z = (1 - gamma[:, None]) * w + gamma[:, None] * centre
    scaled = envelope_grads(problem, z) / (SIGMA * gamma[:, None])
    np.testing.assert_allclose(w, centre - scaled, atol=1e-8)

    def aggregate(points):
        ones = jnp.ones(6)
        return np.asarray(aggregator(rv.Replies(jnp.asarray(points), ones, jnp.arange(6), ones > 0, ones / 6))[0])

    np.testing.assert_allclose(aggregate(w), centre, atol=1e-8)
    np.testing.assert_allclose(aggregate(scaled), 0, atol=1e-7)


@jax.jit
def objective(problem, penalty, w, centre):
    """F_sigma(W): mean of f_k(w_k) + Psi(theta_k) + sigma/2 |w_k - centre - theta_k|^2 at the best theta."""
    def of_party(k, row):
        gap = jax.tree.map(lambda a, b: a - b, row, centre)
        # min over theta of Psi(theta) + sigma/2 |gap - theta|^2 = sigma*delta*env_delta(gap), as Psi = sigma*delta*phi
        return problem.oracle(k).value(row) + SIGMA * DELTA * penalty.envelope(gap, DELTA)

    return jnp.mean(jax.vmap(of_party)(jnp.arange(problem.parties), w))


@jax.jit
def gradients(problem, penalty, w, centre):
    """Gradients of the parties' subproblems F_k(.; theta_k, centre) at w_k."""
    def of_party(k, row):
        return rv.problems.Subproblem(problem.oracle(k), ProxAnchor(penalty, DELTA)(centre, row, ()), SIGMA).grad(row)

    return jax.vmap(of_party)(jnp.arange(problem.parties), w)


@nightly.parametrize("penalty", [rv.penalties.L2Norm(), rv.penalties.L1(), rv.penalties.SquaredL2()],
                     ids=lambda p: type(p).__name__, per_commit=0)
def test_theorem_1_the_objective_decreases_and_its_gradients_vanish(penalty):
    """With eta = 1/L_f; every party makes another number of local steps."""
    problem = classification()
    x = np.asarray(problem.x)
    smoothness = max(
        np.linalg.eigvalsh(np.cov(rows.T, bias=True) + np.outer(rows.mean(0), rows.mean(0))).max() + 1
        for rows in (x[int(o):int(o + n)] for o, n in zip(problem.offset[0], problem.length[0], strict=True))) / 2
    algorithm = exact_fedplus(penalty, solver=rv.solvers.GD(1 / smoothness, steps=8))
    effort = jnp.asarray([1, 2, 3, 5, 8, 4]) / 8
    states = trajectory(algorithm, problem, 400, rv.participation.FixedEffort(effort, rv.participation.Full("uniform")))
    values = [float(objective(problem, penalty, s.parties, s.server)) for s in states[1:]]
    assert np.all(np.diff(values) <= 1e-12)
    assert values[0] - values[-1] > 0.02

    sizes = [max(float(jnp.abs(g).max()) for g in jax.tree.leaves(gradients(problem, penalty, s.parties, s.server)))
             for s in (states[1], states[-1])]
    assert sizes[1] < 1e-3 < sizes[0]
