"""A random intercept for each site: the objective of a site, its derivatives, and the columns of its replies."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize, special

import nightly
from resolvent.regression.families import Binomial, Poisson
from resolvent.regression.objective import RowRegression
from resolvent.regression.random_intercept import RandomIntercept, ScaledGaussian

# The losses of a row, without parts of the label, and their first and second derivatives in eta.
LOSSES = {
    "binomial": (Binomial(), lambda eta, e, y: np.logaddexp(0, eta) - y * eta,
                 lambda eta, e, y: special.expit(eta) - y,
                 lambda eta, e, y: special.expit(eta) * special.expit(-eta)),
    "gaussian": (ScaledGaussian(), lambda eta, e, y: ((y - eta) * np.exp(-e))**2 / 2 + e + np.log(2 * np.pi) / 2,
                 lambda eta, e, y: (eta - y) * np.exp(-2 * e), lambda eta, e, y: np.full_like(eta, np.exp(-2 * e))),
    "poisson": (Poisson(), lambda eta, e, y: np.exp(eta) - y * eta, lambda eta, e, y: np.exp(eta) - y,
                lambda eta, e, y: np.exp(eta)),
}


def rows_of(family, n=40, seed=0):
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(n), rng.normal(size=n)])
    y = {"gaussian": rng.normal(size=n), "binomial": rng.integers(0, 2, n)}.get(family.name, rng.poisson(1.5, n))
    return x, np.asarray(y, float), rng.normal(size=n) / 4


def problem_of(family, x, y, offsets):
    parameters = x.shape[1] + len(family.extra) + 1
    return RandomIntercept(RowRegression(family, x, y, [len(y)], offsets=offsets, block=64), np.zeros(parameters))


@nightly.parametrize("name", LOSSES, others=nightly.WHEN_CHANGED)
def test_the_objective_is_laplaces_approximation(name):
    """Against its formula in NumPy at the root that SciPy finds, and against differences of its own derivatives."""
    family, loss, slope, curvature = LOSSES[name]
    x, y, offsets = rows_of(family)
    w = np.array([0.3, -0.4, *[0.2] * len(family.extra), -0.5])

    def value(w):
        eta, tau = x @ w[:2] + offsets, np.exp(w[-1])
        v = optimize.brentq(lambda v: tau * slope(eta + tau * v, w[2], y).sum() + v, -9, 9, xtol=1e-14)
        inside = 1 + tau**2 * curvature(eta + tau * v, w[2], y).sum()
        return (loss(eta + tau * v, w[2], y).sum() + v**2 / 2 + np.log(inside) / 2) / len(y)

    def differences(f, h=1e-4):
        return np.array([(f(w + step) - f(w - step)) / (2 * h) for step in h * np.eye(w.size)])

    with jax.enable_x64(True):
        oracle = problem_of(family, x, y, offsets).oracle(jnp.array(0))
        evaluate = jax.jit(lambda w: (oracle.second_order(w), oracle.value(w), oracle.fit_sums(w)))
        found, alone, sums = evaluate(w)
        np.testing.assert_allclose([found.value, alone], value(w), rtol=1e-12)
        np.testing.assert_allclose(found.gradient, differences(value), atol=1e-7)
        np.testing.assert_allclose(sums.gradient, found.gradient, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(sums.hessian, differences(lambda w: np.array(evaluate(w)[0].gradient)),
                                   atol=1e-7)
        # Without the columns of higher derivatives, the Hessian of a round is nearly that.
        np.testing.assert_allclose(found.hessian, sums.hessian, atol=3 / len(y))
        label = -special.gammaln(y + 1).mean() if name == "poisson" else 0.0
        np.testing.assert_allclose(sums.terms.likelihood, label - value(w), rtol=1e-12)
