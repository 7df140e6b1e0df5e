"""Splitting without a server on rings and random graphs, against NumPy and closed forms."""

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import limit, trajectory

import nightly
import resolvent as rv
from resolvent.algorithms.methods.graph import metropolis_weights
from resolvent.errors import InputError

PARTIES, FEATURES, STEP = 7, 3, 0.15
UNIFORM = rv.participation.Full("uniform")
RING = tuple((k, (k + 1) % PARTIES) for k in range(PARTIES))


def random_graph(seed=3):
    """A path with some more edges, which is connected."""
    rng = np.random.default_rng(seed)
    return tuple((i, j) for i in range(PARTIES) for j in range(i + 1, PARTIES) if j == i + 1 or rng.random() < 0.3)


GRAPHS = nightly.parametrize("edges", [random_graph(), RING], ids=["random", "ring"])


@pytest.fixture(autouse=True)
def float64_only(float64):
    """All oracles are exact."""


def quadratics(*, alike=False):
    """H_k, g_k and the problem of f_k(w) = w'H_k w/2 - g_k'w; alike: H_k = I."""
    rng = np.random.default_rng(0)
    roots = rng.normal(size=(PARTIES, FEATURES, FEATURES)) / 2
    h = np.tile(np.eye(FEATURES), (PARTIES, 1, 1)) if alike else np.einsum("kij,klj->kil", roots, roots) + np.eye(3) / 4
    g = rng.normal(size=(PARTIES, FEATURES))
    problem = rv.problems.QuadraticProblem(*map(jnp.asarray, (h, g, np.zeros(PARTIES), np.ones(PARTIES, int))))
    return h, g, problem


def on_graph(edges, **settings):
    return rv.splitting(rv.solvers.GD(STEP, steps=1), local_step="gradient", edges=edges, **settings)


def models(algorithm, problem, rounds):
    return [np.asarray(s.server.u) for s in trajectory(algorithm, problem, rounds, UNIFORM)]


@GRAPHS
def test_metropolis_weights_are_symmetric_and_mix(edges):
    w = metropolis_weights(edges, PARTIES)
    np.testing.assert_allclose(w, w.T)
    np.testing.assert_allclose(w.sum(axis=0), 1)
    assert w.min() >= 0
    neighbours = {(i, j) for i, j in edges} | {(j, i) for i, j in edges} | {(i, i) for i in range(PARTIES)}
    assert {(int(i), int(j)) for i, j in zip(*np.nonzero(w), strict=True)} <= neighbours
    assert np.sort(np.abs(np.linalg.eigvalsh(w)))[-2] < 1 - 1e-3


@pytest.mark.when_changed
@GRAPHS
def test_disagreement_falls_by_the_second_eigenvalue(edges):
    """With f_k = |w|^2/2 - g_k'w, U = W ((1 - s) U + s G): along each eigenvector of W a geometric series."""
    _, g, problem = quadratics(alike=True)
    values, vectors = np.linalg.eigh(metropolis_weights(edges, PARTIES))
    for t, u in enumerate(models(on_graph(edges), problem, 30)):
        factor = values * (1 - STEP)
        series = values * STEP * (1 - factor**t) / (1 - factor)
        np.testing.assert_allclose(u, vectors @ (series[:, None] * (vectors.T @ g)), atol=1e-12)


@pytest.mark.nightly
@GRAPHS
def test_disagreement_reaches_its_limit_at_the_same_rate(edges):
    problem, values = quadratics(alike=True)[2], np.linalg.eigvalsh(metropolis_weights(edges, PARTIES))
    second = np.sort(np.abs(values))[-2] * (1 - STEP)
    fixed = np.asarray(limit(on_graph(edges), problem, 3000, UNIFORM).server.u)
    gaps = [np.linalg.norm((u - u.mean(0)) - (fixed - fixed.mean(0))) for u in models(on_graph(edges), problem, 60)]
    assert (gaps[60] / gaps[40]) ** (1 / 20) == pytest.approx(second, rel=0.02)


@pytest.mark.when_changed
@GRAPHS
def test_gradient_descent_on_a_graph_ends_at_its_biased_point(edges):
    """u = W (u - s (H u - g)), a linear system; it is not the optimum, and its mean is not either."""
    h, g, problem = quadratics()
    w = metropolis_weights(edges, PARTIES)
    mix, blocks = np.kron(w, np.eye(FEATURES)), np.zeros((PARTIES * FEATURES,) * 2)
    for k in range(PARTIES):
        blocks[k * FEATURES:(k + 1) * FEATURES, k * FEATURES:(k + 1) * FEATURES] = h[k]
    fixed = np.linalg.solve(np.eye(len(mix)) - mix @ (np.eye(len(mix)) - STEP * blocks), STEP * mix @ g.ravel())
    u = np.asarray(limit(on_graph(edges), problem, 3000, UNIFORM).server.u)
    np.testing.assert_allclose(u.ravel(), fixed, atol=1e-10)
    optimum = np.linalg.solve(h.sum(0), g.sum(0))
    assert np.abs(u.mean(0) - optimum).max() > 1e-3
    assert np.abs(u - u.mean(0)).max() > 1e-2


@pytest.mark.when_changed
@GRAPHS
def test_extra_by_numpy_and_at_the_exact_optimum(edges):
    h, g, problem = quadratics()
    w = metropolis_weights(edges, PARTIES)

    def gradient(u):
        return np.einsum("kij,kj->ki", h, u) - g

    u = [np.zeros((PARTIES, FEATURES))]
    u.append(w @ u[0] - STEP * gradient(u[0]))
    for _ in range(18):
        u.append(u[-1] + w @ u[-1] - (u[-2] + w @ u[-2]) / 2 - STEP * (gradient(u[-1]) - gradient(u[-2])))
    algorithm = on_graph(edges, extra=True)
    np.testing.assert_allclose(models(algorithm, problem, 19), u, atol=1e-12)
    final = np.asarray(limit(algorithm, problem, 3000, UNIFORM).server.u)
    np.testing.assert_allclose(final, np.tile(np.linalg.solve(h.sum(0), g.sum(0)), (PARTIES, 1)), atol=1e-10)


@GRAPHS
def test_proximal_steps_on_a_graph_minimise_a_penalised_sum(edges):
    """u = W P_f(u): with z = P_f(u), (I - W) z + eta grad f(z) = 0."""
    h, g, problem = quadratics()
    w, eta = metropolis_weights(edges, PARTIES), 0.7
    state = limit(rv.splitting(rv.solvers.ClosedForm(), eta=eta, edges=edges), problem, 3000, UNIFORM).server
    z = np.asarray(state.z)
    np.testing.assert_allclose(z - w @ z + eta * (np.einsum("kij,kj->ki", h, z) - g), 0, atol=1e-10)


@pytest.mark.nightly
def test_a_complete_graph_is_the_mean():
    _, _, problem = quadratics()
    complete = tuple((i, j) for i in range(PARTIES) for j in range(i))
    exact = rv.solvers.ClosedForm()
    for settings in ({}, {"alpha": 2.0, "beta": 2.0, "gamma": 0.5}):
        with_server, without = ([np.asarray(s.server.u) for s in trajectory(
            rv.splitting(exact, eta=0.5, edges=edges, **settings), problem, 5, UNIFORM)] for edges in ((), complete))
        np.testing.assert_allclose(with_server, without, atol=1e-12)


def test_what_a_graph_cannot_do_is_refused():
    _, _, problem = quadratics()
    for edges, message in (((*RING[:2], (4, 5)), "not connected"), (((0, 9),), "must name two of the 7 parties"),
                           (((0, 0), *RING), "must name two")):
        with pytest.raises(InputError, match=message):
            rv.simulate(on_graph(edges), problem, rounds=1)
    with pytest.raises(InputError, match="EXTRA needs all 7 parties"):
        rv.simulate(on_graph(RING, extra=True), problem, rounds=1, participation=rv.participation.Uniform(3))
    with pytest.raises(InputError, match="set edges and local_step"):
        rv.splitting(rv.solvers.ClosedForm(), extra=True)
    with pytest.raises(InputError, match="no server on a graph"):
        rv.splitting(rv.solvers.ClosedForm(), edges=RING, decentralised=True)
