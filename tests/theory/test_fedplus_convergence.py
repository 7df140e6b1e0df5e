"""Convergence of Fed+ with gradient steps: sampled parties, a nonconvex loss, the limit and its rate, layers.

H_sigma(W, Theta, w~) is the mean of f_k(w_k) + Psi(theta_k) + sigma/2 |w_k - w~ - theta_k|^2, F_sigma(W) its minimum
over Theta and w~. Source: Kundu et al., Robustness and Personalization in Federated Learning, section 4.5; Yu et al.,
Fed+, section 7, where Proposition 2 is Proposition 4 and Theorem 1 is Theorem 2.
"""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from robust_regression import PARTIES, RobustRegression

import resolvent as rv
from resolvent.algorithms.aggregators.medians import MoreauCentre
from resolvent.algorithms.methods.fedplus import FedPlus, ProxAnchor
from resolvent.simulator.engine.rounds import run_rounds, trajectory

SIGMA, DELTA = 0.8, 0.3


def fedplus(penalty, solver, *, aggregate_all):
    """Fed+ with a centre to a tolerance of 1e-15, of the active parties or of all."""
    aggregator = MoreauCentre(penalty, DELTA, tolerance=1e-15, max_iterations=20_000)
    algorithm = FedPlus(solver=solver, anchor=ProxAnchor(penalty, DELTA), aggregator=aggregator, sigma=SIGMA)
    return rv.combinators.StaleReplies(algorithm) if aggregate_all else algorithm


def shrink(r):
    """prox of delta |.|_2."""
    return r * np.maximum(0, 1 - DELTA / np.maximum(np.linalg.norm(r, axis=-1, keepdims=True), 1e-300))


@pytest.mark.when_changed
def test_proposition_2_theorem_1_and_26_with_sampled_parties_and_a_nonconvex_loss():
    """Two of six parties take part, all models are aggregated, and each party makes another number of steps of 1/L_f.

    Every active party's subproblem falls by |grad F_k|^2 / (2 (L_f + sigma)), (27); Theta and w~ minimise H_sigma at
    every W, (26); F_sigma never grows, by the sum of the bounds of Proposition 2; and all gradients vanish.
    """
    robust = RobustRegression()
    problem = robust.problem()
    effort = jnp.asarray([1, 2, 3, 5, 8, 4]) / 8
    participation = rv.participation.FixedEffort(effort, rv.participation.Uniform(2, "uniform"))
    algorithm = fedplus(rv.penalties.L2Norm(), rv.solvers.GD(1 / robust.smooth, steps=8), aggregate_all=True)
    states = trajectory(algorithm, problem, 60, participation)
    rng = np.random.default_rng(0)

    def total(w, theta, centre):
        return np.mean(robust.values(w) + SIGMA * DELTA * np.linalg.norm(theta, axis=1)
                       + SIGMA / 2 * np.sum((w - centre - theta)**2, axis=1))

    absent = 0
    for before, after in pairwise(states):
        w, centre, new = before.parties.inner, before.server.inner, after.parties.inner
        theta = shrink(w - centre)
        objective = total(w, theta, centre)
        for _ in range(4):
            moved = total(w, theta + 0.1 * rng.normal(size=theta.shape), centre + 0.1 * rng.normal(size=3))
            assert objective <= moved
        gradients = robust.gradients(w) + SIGMA * (w - centre - theta)
        changed = np.abs(new - w).max(axis=1) > 0
        assert changed.sum() == 2
        absent += PARTIES - changed.sum()
        decreases = (robust.values(w) + SIGMA / 2 * np.sum((w - centre - theta)**2, axis=1)
                     - robust.values(new) - SIGMA / 2 * np.sum((new - centre - theta)**2, axis=1))
        bounds = np.sum(gradients**2, axis=1) / (2 * (robust.smooth + SIGMA))
        assert (decreases >= changed * bounds - 1e-14).all()
        after_theta = shrink(new - after.server.inner)
        assert total(new, after_theta, after.server.inner) <= objective - np.sum(bounds[changed]) / PARTIES + 1e-12
    assert absent > 0

    last = run_rounds(algorithm, problem, participation, rounds=4000)
    w, centre = np.asarray(last.parties.inner), np.asarray(last.server.inner)
    first, final = (np.abs(robust.gradients(a) + SIGMA * (a - c - shrink(a - c))).max()
                    for a, c in ((states[0].parties, states[0].server.inner), (w, centre)))
    assert final < 1e-6 < 0.1 < first


def convex_quadratic():
    """Convex quadratics of rank 1 in three dimensions, so that no gap of F_sigma falls at a linear rate."""
    rng = np.random.default_rng(7)
    a = rng.normal(size=(PARTIES, 1, 3))
    return np.einsum("kni,knj->kij", a, a), np.einsum("kni,kn->ki", a, 4 * rng.normal(size=(PARTIES, 1)))


@pytest.mark.nightly
def test_theorem_1_the_limit_is_the_minimum_and_the_rate_is_one_over_the_rounds():
    """With one step a round, Fed+ is gradient descent with step 1/(L_f + sigma) on F_sigma, by Danskin's theorem.

    So F(W_t) - F* <= (L_f + sigma) |W_0 - W*|^2 / (2 N t). F* by L-BFGS on the mean of f_k and Huber's functions.
    """
    h, g = convex_quadratic()
    smooth = np.linalg.eigvalsh(h).max()
    problem = rv.problems.QuadraticProblem(jnp.asarray(h), jnp.asarray(g))
    algorithm = fedplus(rv.penalties.L1(), rv.solvers.GD(1 / smooth), aggregate_all=False)
    participation = rv.participation.Full("uniform")

    def objective(flat):
        w, centre = flat[:-3].reshape(PARTIES, 3), flat[-3:]
        r = w - centre
        pull = np.clip(r, -DELTA, DELTA)
        huber = np.where(np.abs(r) <= DELTA, r**2 / (2 * DELTA), np.abs(r) - DELTA / 2)
        value = np.mean(np.einsum("ki,kij,kj->k", w, h, w) / 2 - np.sum(g * w, axis=1)
                        + SIGMA * DELTA * huber.sum(axis=1))
        slope = np.einsum("kij,kj->ki", h, w) - g + SIGMA * pull
        return value, np.concatenate([slope.ravel(), -SIGMA * pull.sum(axis=0)]) / PARTIES

    minimum = scipy.optimize.minimize(objective, np.zeros(3 * PARTIES + 3), jac=True, method="L-BFGS-B",
                                      options={"maxiter": 20_000, "ftol": 1e-16, "gtol": 1e-12}).fun
    states = trajectory(algorithm, problem, 40, participation)
    values = [objective(np.r_[s.parties.ravel(), s.server])[0] for s in states[1:]]
    last = run_rounds(algorithm, problem, participation, rounds=8000)
    limit = np.asarray(last.parties)
    assert objective(np.r_[limit.ravel(), np.asarray(last.server)])[0] == pytest.approx(minimum, abs=1e-7)
    squared = np.sum((states[0].parties - limit)**2)
    for t, value in enumerate(values, start=1):
        assert -1e-9 <= value - minimum <= (smooth + SIGMA) * squared / (2 * PARTIES * t)
    assert values[-1] - minimum < 0.1 * (values[0] - minimum)


@pytest.mark.nightly
def test_layers_of_a_network_have_their_own_penalty_and_smoothing():
    """Hybridization: FedAvg+ on the first layer, FedCoMed+ with another delta on the last, by hand.

    Each layer has its own anchor and its own centre: the mean, and a point at which the clipped differences cancel.
    """
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(4, 9, 3)), rng.integers(0, 2, (4, 9))
    data = rv.FederatedData.from_arrays([*x], [*y], validation=0, test=0, classes=["0", "1"])
    problem = rv.problems.LearningProblem(rv.models.mlp(3, 2, width=4, depth=1), data)
    delta, scale, rate, steps = 0.02, 3.0, 0.2, 3
    penalty = rv.penalties.PerLayer({"layer 0": rv.penalties.SquaredL2(),
                                     "layer 1": rv.penalties.Scaled(rv.penalties.L1(), scale)})
    aggregator = MoreauCentre(penalty, delta, tolerance=1e-13, max_iterations=20_000)
    algorithm = FedPlus(rv.solvers.GD(rate, steps=steps, proximal="explicit"), ProxAnchor(penalty, delta), aggregator,
                        sigma=SIGMA)
    states = trajectory(algorithm, problem, 3, rv.participation.Full("uniform"))
    gradient = jax.jit(lambda w, k: problem.oracle(k).grad(w))
    for before, after in pairwise(states):
        for k in range(4):
            w = jax.tree.map(lambda leaf, k=k: leaf[k], before.parties)
            r = jax.tree.map(np.subtract, w, before.server)
            theta = {"layer 0": jax.tree.map(lambda a: a / (1 + delta), r["layer 0"]),
                     "layer 1": jax.tree.map(lambda a: a - np.clip(a, -scale * delta, scale * delta), r["layer 1"])}
            anchor = jax.tree.map(np.add, before.server, theta)
            for _ in range(steps):
                w = jax.tree.map(lambda a, d, z: a - rate * (np.asarray(d) + SIGMA * (a - z)), w,
                                 gradient(w, jnp.array(k)), anchor)
            for layer in w:
                for part in w[layer]:
                    np.testing.assert_allclose(after.parties[layer][part][k], w[layer][part], atol=1e-10)
        for part in after.server["layer 0"]:
            np.testing.assert_allclose(after.server["layer 0"][part], after.parties["layer 0"][part].mean(axis=0),
                                       atol=1e-10)
            r = after.parties["layer 1"][part] - after.server["layer 1"][part]
            np.testing.assert_allclose(np.clip(r, -scale * delta, scale * delta).sum(axis=0), 0, atol=1e-9)
    assert np.abs(after.parties["layer 1"]["weight"] - after.server["layer 1"]["weight"]).max() > scale * delta
