"""The gap at which DCGD stops, predicted exactly: on quadratics its second moments follow a linear recursion.

With e the error, g_i = H_i e + b_i the gradients, b_i those at the minimiser, and RandK's k of d entries:

    E[C(g)C(g)'] = (d/k) diag(E[gg']) + d(k-1)/(k(d-1)) (E[gg'] - diag(E[gg']))
    E[e e'] <- (I - rate H) E[e e'] (I - rate H) + (rate/n)^2 sum_i (E[C(g_i)C(g_i)'] - E[g_i g_i'])
"""

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import quadratic

import nightly
import resolvent as rv
from resolvent.problem.mixed import mixed

SHARES = jnp.full(6, 1 / 6)


def predicted(problem, rate, k, rounds):
    """The expected gap after each round, from the zero model."""
    h = np.asarray(problem.hessians)
    n, d = np.shape(problem.linears)
    optimum = np.asarray(problem.optimum(SHARES))
    b = h @ optimum - np.asarray(problem.linears)
    mean, step = h.mean(axis=0), np.eye(d) - rate * h.mean(axis=0)
    m, moment = -optimum, np.outer(optimum, optimum)
    gaps = [np.trace(mean @ moment) / 2]
    for _ in range(rounds):
        cross = np.einsum("kij,j,kl->kil", h, m, b)
        g = h @ moment @ h + cross + np.swapaxes(cross, 1, 2) + b[:, :, None] * b[:, None]
        single = g * np.eye(d)
        sent = d / k * single + d * (k - 1) / (k * (d - 1)) * (g - single)
        m, moment = step @ m, step @ moment @ step + (rate / n)**2 * np.sum(sent - g, axis=0)
        gaps.append(np.trace(mean @ moment) / 2)
    return np.array(gaps)


@nightly.parametrize(("alpha", "k"), [(0.5, 1), (1.0, 2)], per_commit=0)
def test_dcgd_stops_at_the_predicted_gap(alpha, k):
    problem, rate, rounds = mixed(quadratic(), alpha), 0.05 / alpha**2, 30_000
    expected = predicted(problem, rate, k, 2000)
    assert expected[-1] == pytest.approx(expected[-500], rel=1e-9)  # it is stationary
    run = rv.simulate(rv.dcgd(learning_rate=rate, codec=rv.codecs.RandK(k=k), alpha=1.0), problem,
                      participation=rv.participation.Full("uniform"), rounds=rounds, evaluate_every=rounds,
                      progress=False)
    gaps = run.metrics.query("metric == 'gap'")["value"].to_numpy()
    assert gaps[0] == pytest.approx(expected[0], rel=1e-9)
    assert gaps[2000:].mean() == pytest.approx(expected[-1], rel=0.06)
    np.testing.assert_allclose(expected, alpha**2 * predicted(quadratic(), 0.05, k, 2000), rtol=1e-9)
    omega = 4 / k - 1  # a bound of the poster's form, C2 alpha^2, is above the exact gap
    h, b = np.asarray(problem.hessians), np.asarray(problem.hessians @ problem.optimum(SHARES) - problem.linears)
    smooth, mu = np.linalg.eigvalsh(h).max(), np.linalg.eigvalsh(h.mean(axis=0)).min()
    assert rate <= 1 / (smooth * (1 + 2 * omega / 6))
    assert expected[-1] <= smooth / 2 * 2 * rate * omega / (mu * 36) * np.sum(b**2)
