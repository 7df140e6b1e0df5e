"""L2GD against single coin flips, the minimiser of (IPFL), and its limits."""

from functools import cache

import numpy as np
import pytest
from helpers import SEED, equal, quadratic, trajectory

import resolvent as rv
from resolvent.simulator.engine.rounds import record_rounds

ETA, LAM, P, ROUNDS = 0.01, 0.8, 0.4, 4000


@cache
def l2gd_run():
    """The last models of a long run, their mean, and the numbers of pulls and steps in each round."""
    chunk = record_rounds(rv.l2gd(rv.solvers.GD(ETA), lam=LAM, p=P), quadratic(), seed=SEED, rounds=ROUNDS)
    counts = [np.asarray(chunk.record.server[name]) for name in ("pulls", "local_steps")]
    return np.asarray(chunk.state.parties), np.asarray(chunk.state.server.mean), *counts


def ipfl(shares, lam=LAM):
    """Local gradients + lam (y_k - y_bar) = 0, solved as one linear system."""
    problem = quadratic()
    h, g = np.asarray(problem.hessians), np.asarray(problem.linears)
    system = np.zeros((6, 4, 6, 4))
    for k in range(6):
        system[k, :, k, :] += h[k] + lam * np.eye(4)
        for j in range(6):
            system[k, :, j, :] -= lam * shares[j] * np.eye(4)
    return np.linalg.solve(system.reshape(24, 24), g.ravel()).reshape(6, 4)


@pytest.mark.when_changed
def test_l2gd_is_a_sequence_of_coin_flips_whose_mean_solves_ipfl():
    """Every pull and every step of 4000 rounds, one by one, and the mean over all flips from round 500 on."""
    problem = quadratic()
    h, g, shares = np.asarray(problem.hessians), np.asarray(problem.linears), np.arange(1, 7) / 21
    models, mean, pulls, steps = l2gd_run()
    optimum = ipfl(shares)
    y, total, flips = np.zeros((6, 4)), np.zeros((6, 4)), 0
    for t in range(ROUNDS):
        for _ in range(pulls[t]):
            y = y - ETA * LAM / P * (y - shares @ y)
            total, flips = total + (t >= 500) * y, flips + (t >= 500)
        for _ in range(steps[t]):
            y = y - ETA / (1 - P) * (np.einsum("kij,kj->ki", h, y) - g)
            total, flips = total + (t >= 500) * y, flips + (t >= 500)
    np.testing.assert_allclose(models, y, atol=1e-10)
    np.testing.assert_allclose(mean, shares @ y, atol=1e-10)
    local_optima, scale = np.linalg.solve(h, g[..., None])[..., 0], np.abs(optimum).max()
    assert np.abs(total / flips - optimum).max() < 0.01 * scale < 0.1 * np.abs(local_optima - optimum).max()


def test_the_expected_flip_is_zero_at_the_minimiser_of_ipfl():
    problem, shares = quadratic(), np.arange(1, 7) / 21
    y = ipfl(shares)
    gradient = np.einsum("kij,kj->ki", problem.hessians, y) - problem.linears
    expected = P * (-ETA * LAM / P * (y - shares @ y)) + (1 - P) * (-ETA / (1 - P) * gradient)
    np.testing.assert_allclose(expected, 0, atol=1e-14)


def test_runs_of_pulls_and_steps_are_geometric():
    _, _, pulls, steps = l2gd_run()
    assert (pulls[0], steps[0]) == (0, 1)
    for counts, stop in ((pulls[1:], 1 - P), (steps[1:], P)):
        assert counts.min() == 1
        error = np.sqrt((1 - stop) / stop**2 / len(counts))
        assert abs(counts.mean() - 1 / stop) < 4 * error
        for length in (1, 2, 3):
            share = stop * (1 - stop)**(length - 1)
            assert abs(np.mean(counts == length) - share) < 4 * np.sqrt(share * (1 - share) / len(counts))
    assert abs(np.corrcoef(pulls[1:], steps[1:])[0, 1]) < 4 / np.sqrt(len(pulls))


@pytest.mark.when_changed
def test_l2gd_without_pulls_is_local_descent():
    """As p -> 0: few exchanges, and in the limit every party is at its own optimum."""
    p, problem = 1e-3, quadratic()
    algorithm = rv.l2gd(rv.solvers.GD(0.05), lam=0.0, p=p)
    states = trajectory(algorithm, problem, 6, rv.participation.Full())
    first = states[1]  # the first round is a single step
    np.testing.assert_allclose(first.parties, 0.05 / (1 - p) * problem.linears, atol=1e-12)
    assert np.mean([int(s.server.steps) for s in states[1:]]) > 0.3 / p
    local_optima = np.linalg.solve(problem.hessians, problem.linears[..., None])[..., 0]
    np.testing.assert_allclose(states[-1].parties, local_optima, atol=1e-8)


@pytest.mark.when_changed
def test_l2gd_with_many_pulls_is_gradient_descent():
    """As p -> 1: between two steps all models move to the mean, so that a round is one of DGD."""
    p = 1 - 1e-6
    algorithm = rv.l2gd(rv.solvers.GD(0.2 * (1 - p)), lam=0.4 * p / (0.2 * (1 - p)), p=p)
    l2gd, dgd = (trajectory(a, quadratic(), 10) for a in (algorithm, rv.dgd(learning_rate=0.2, alpha=1.0)))
    equal([s.server.mean for s in l2gd], [s.server for s in dgd], 1e-9)


@pytest.mark.nightly
def test_the_exchanges_to_a_precision_fall_to_none_with_lambda():
    """With p = lam/(L + lam), as the rounds are the exchanges. Source: FedMix, key result of its reference 2."""
    problem, shares, rounds = quadratic(), np.arange(1, 7) / 21, {}
    smoothness = np.linalg.eigvalsh(problem.hessians).max()
    for lam in (1.0, 0.1, 0.01):
        optimum, p = ipfl(shares, lam), lam / (smoothness + lam)
        states = trajectory(rv.l2gd(rv.solvers.GD(0.02), lam=lam, p=p), problem, 200)
        distances = [np.linalg.norm(s.parties - optimum) for s in states]
        rounds[lam] = int(np.argmax(np.array(distances) < 0.05 * distances[0]))
    assert rounds[1.0] > 2 * rounds[0.1] > 4 * rounds[0.01] > 0
