"""Fits with a random intercept for each site."""

import jax
import jax.numpy as jnp
import numpy as np

from resolvent.comparisons.regression.fit import Fit, RandomInterceptFit, rows_of
from resolvent.comparisons.regression.laws import beyond
from resolvent.comparisons.regression.model import RegressionModel
from resolvent.comparisons.regression.rows import RegressionRows
from resolvent.errors import DivergedError, InputError
from resolvent.math.newton import SecondOrder
from resolvent.problem.problem import shares_by_size
from resolvent.regression.families import Gaussian
from resolvent.regression.newton import FederatedNewton
from resolvent.regression.objective import RowRegression
from resolvent.regression.random_intercept import RandomIntercept, ScaledGaussian
from resolvent.simulator.run import simulate

_ROUNDS = 60
_SMALL = 1e-3  # a deviation tau below this one is zero: its logarithm has no maximum


def check_random_intercept(model: RegressionModel) -> None:
    """Refuse a model that has no random intercept."""
    family = model.family
    if family is None or model.family_name == "cox":
        raise InputError("a Cox model has baseline hazards instead of an intercept: leave site=random out")
    if model.weights is not None:
        raise InputError("a random intercept takes no weights: repeat the rows of a table with counts, or fit an "
                         "intercept for each site, site=fixed")
    if not model.has_intercept:
        raise InputError("a random intercept needs an intercept: leave -1 out of the formula; an ordinal label has "
                         "thresholds instead, and site=fixed intercepts at the sites")
    if len(model.sites) < 2:
        raise InputError("a random intercept needs at least 2 sites: leave site=random out")


def fit_random_intercept(fit: Fit) -> RandomInterceptFit:
    """Fit the regression again with a random intercept for each site, by sums."""
    rows, model = rows_of(fit), fit.model
    assert model.family is not None
    with jax.enable_x64(True):
        family, start, names = model.family, np.nan_to_num(fit.estimates), model.names
        if isinstance(family, Gaussian):
            family, names = ScaledGaussian(), (*names, "log_sigma")
            start = np.append(start, np.log(fit.deviance / fit.count) / 2)
        plain = RowRegression(family, rows.x, rows.y, rows.sizes, offsets=rows.offsets, block=model.block)
        problem = RandomIntercept(plain, np.append(start, np.log(0.3)))
        result = simulate(FederatedNewton(), problem, rounds=_ROUNDS, evaluate_every=4, progress=False, name="Newton",
                          on_evaluation=lambda e: e.stop("converged") if _has_ended(e.result()) else None)
        search = result.state.server.search
        w = np.asarray(result.server_model)
        tau = float(np.exp(w[-1]))
        if not bool(search.has_converged) and tau > _SMALL:
            raise DivergedError(f"the random intercept has not converged after {_ROUNDS} rounds: the common fit has "
                                "coefficients that the rows cannot tell, or there are too few sites")
        value, _, hessian = _mean(problem, result.server_model)
        information, likelihood = fit.count * np.asarray(hessian), -fit.count * float(value)
        constant = _label_part(fit.family, rows)
    if tau <= _SMALL:
        information, tau, likelihood = information[:-1, :-1], 0.0, fit.log_likelihood - constant
    covariance = np.linalg.inv(information)
    statistic = 2 * (likelihood + constant - fit.log_likelihood)
    return RandomInterceptFit(names, w[:len(names)], np.sqrt(np.diag(covariance))[:len(names)], tau,
                              likelihood + constant, beyond(statistic, 1) / 2, int(search.evaluations))


@jax.jit
def _mean(problem: RandomIntercept, w: jax.Array) -> SecondOrder:
    """The mean objective over all rows, with its derivatives."""
    shares = shares_by_size(problem.sizes)
    terms: SecondOrder = jax.lax.map(lambda k: problem.oracle(k).second_order(w), jnp.arange(len(shares)))
    mean: SecondOrder = jax.tree.map(lambda leaf: jnp.tensordot(shares, leaf, 1), terms)
    return mean


def _has_ended(result: "object") -> bool:
    """Whether the fit has converged, or tau goes to zero."""
    server = result.state.server  # type: ignore[attr-defined]
    return bool(server.search.has_converged) or float(server.search.point[-1]) < np.log(_SMALL)


def _label_part(family: str, rows: RegressionRows) -> float:
    """The part of the log-likelihood that depends on the labels alone, which losses leave out."""
    from scipy.special import gammaln

    return -float(gammaln(rows.y + 1).sum()) if family in ("poisson", "negative_binomial") else 0.0
