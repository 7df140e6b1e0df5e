"""The motivations of FedMix: MAML's local steps as a weighted average, and the limits of the implicit formulation.

Source: Gasanov, Khaled, Horvath, Richtarik, FedMix (poster), Motivations 1 and 2.
"""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from robust_regression import RobustRegression

import nightly
import resolvent as rv
from resolvent.simulator.engine.rounds import initial_state, run_rounds, trajectory

PARTIES, DIMENSION = 4, 3


def quadratic():
    rng = np.random.default_rng(6)
    a = rng.normal(size=(PARTIES, 6, DIMENSION))
    return np.einsum("kni,knj->kij", a, a) / 6 + 0.1 * np.eye(DIMENSION), rng.normal(size=(PARTIES, DIMENSION))


@pytest.mark.when_changed
def test_h_gradient_steps_end_at_a_matrix_average_of_the_start_and_the_own_optimum():
    """x_i^H = (I - J^H) x_i + J^H x_0 with J = I - gamma A_i, whose eigenvalues are in [0, 1) for gamma <= 1/L_i."""
    h, g = quadratic()
    problem = rv.problems.QuadraticProblem(jnp.asarray(h), jnp.asarray(g))
    gamma, start = 1 / np.linalg.eigvalsh(h).max(), np.array([3.0, -1.0, 2.0])
    optima = np.linalg.solve(h, g[..., None])[..., 0]
    j = np.eye(DIMENSION) - gamma * h
    assert np.linalg.eigvalsh(j).min() >= -1e-12
    assert np.linalg.eigvalsh(j).max() < 1
    for steps in (1, 4, 9):
        algorithm = rv.local(rv.solvers.GD(gamma, steps=steps))
        state = replace(initial_state(algorithm, problem), parties=jnp.tile(jnp.asarray(start), (PARTIES, 1)))
        power = np.linalg.matrix_power(j, steps)
        expected = [x - p @ x + p @ start for p, x in zip(power, optima, strict=True)]
        np.testing.assert_allclose(run_rounds(algorithm, problem, state=state).parties, expected, atol=1e-12)


@pytest.mark.when_changed
@nightly.parametrize(("lam", "limit"), [(1e-3, "own optima"), (500.0, "one minimiser")])
def test_implicit_mixing_lies_between_the_own_optima_and_the_minimiser_of_the_average(lam, limit):
    """(IPFL) for lambda to 0 and to infinity: the mean of L2GD's models over a long run, with a small step."""
    h, g = quadratic()
    problem = rv.problems.QuadraticProblem(jnp.asarray(h), jnp.asarray(g))
    optima = np.linalg.solve(h, g[..., None])[..., 0]
    minimiser = np.linalg.solve(h.mean(axis=0), g.mean(axis=0))
    algorithm = rv.l2gd(rv.solvers.GD(1e-3), lam=lam, p=0.6)
    models = np.asarray(run_rounds(algorithm, problem, rv.participation.Full("uniform"), rounds=30_000).parties)
    expected = optima if limit == "own optima" else np.tile(minimiser, (PARTIES, 1))
    scale = np.abs(optima - minimiser).max()
    assert np.abs(models - expected).max() < 0.02 * scale


@nightly.parametrize("preset", [rv.diana, rv.dcgd], ids=lambda preset: preset.__name__, per_commit=0)
def test_nonconvex_losses_the_mean_squared_gradient_is_of_order_alpha_squared_over_the_rounds(preset):
    """Rows 5 and 6 of the table: (1/k) sum_t |grad f~(x_t)|^2 <= C alpha^2 / k, with one C for all alpha.

    Steps are gamma_0/alpha^2, natural compression. The losses lie between 0 and 1, so that without compression
    C = 2/gamma_0 for gamma_0 <= 1/L.
    """
    regression = RobustRegression()
    problem, step = regression.problem(), 0.5 / regression.smooth
    solver = rv.solvers.GD(1 / regression.smooth, steps=200)
    for alpha in (0.1, 0.4, 0.99):
        algorithm = preset(solver, learning_rate=step / alpha**2, codec=rv.codecs.NaturalCompression(), alpha=alpha,
                           repeats=1)
        states = trajectory(algorithm, problem, 60, rv.participation.Full("uniform"))
        optima = np.asarray(states[-1].parties.inner.extra)
        total = 0.0
        for state in states[:-1]:
            mixed = alpha * np.asarray(algorithm.server_model(state.server)) + (1 - alpha) * optima
            total += np.sum((alpha * regression.gradients(mixed).mean(axis=0))**2)
            assert total <= 4 / step * alpha**2
        assert total > 0
