"""A random intercept for each site: the objective of a site, its derivatives, and the columns of its replies."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
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


@nightly.parametrize("name", LOSSES, others=nightly.WHEN_CHANGED)
def test_a_reply_is_a_function_of_the_products_of_the_counted_columns(name):
    """Rows that count a little more or less, so that all these products stay, leave the reply what it is.

    The products are those of the columns with the features, as the guard of a site counts them. A third derivative that
    is left out of them would change the reply, and so would the columns that only the last sums have.
    """
    family = LOSSES[name][0]
    x, y, offsets = rows_of(family, n=60)
    w = np.array([0.3, -0.4, *[0.2] * len(family.extra), -0.5])

    def unchanged(columns):
        """[rows] a direction for the weights that changes no product of the columns with the features."""
        products = (np.asarray(columns)[:, :, None] * x[:, None]).reshape(len(y), -1)
        basis = np.linalg.svd(products / (np.abs(products).max(0) + 1e-300), full_matrices=False)
        basis = basis[0][:, basis[1] > 1e-12]
        direction = np.random.default_rng(5).normal(size=len(y))
        direction -= basis @ (basis.T @ direction)
        return direction / np.abs(direction).max()

    with jax.enable_x64(True):
        problem = problem_of(family, x, y, offsets)
        in_round, in_sums = jax.jit(lambda w: [problem.answered_columns(w, sums) for sums in (False, True)])(w)

        @jax.jit
        def replies(weights):
            oracle = eqx.tree_at(lambda p: p.rows.weights, problem, jnp.pad(weights, (0, 64))).oracle(jnp.array(0))
            return oracle.second_order(w)[1:], oracle.fit_sums(w)[:2]

        def change(direction, number):
            """How much the reply of a round, or of the last sums, changes."""
            before, after = (ravel_pytree(replies(1 + size * direction)[number])[0] for size in (0.0, 0.5))
            return float(jnp.abs(after - before).max())

        assert change(unchanged(in_round), 0) < 1e-12
        assert change(unchanged(in_sums), 1) < 1e-12
        third = len(family.extra) + 1
        if name == "binomial":  # the others' further derivatives are 0, or the second one
            assert change(unchanged(in_round[:, :-third]), 0) > 1e-8
            assert change(unchanged(in_round), 1) > 1e-8
