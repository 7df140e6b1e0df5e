"""Fits with a random intercept for each site."""

import jax
import numpy as np
from numpy.typing import NDArray

from resolvent.comparisons.regression.fit import Fit, RandomInterceptFit, rows_of
from resolvent.comparisons.regression.laws import beyond
from resolvent.comparisons.regression.model import RegressionModel
from resolvent.comparisons.regression.rows import RegressionRows
from resolvent.comparisons.regression.sums import mean_fit_sums, rounds_of
from resolvent.errors import DivergedError, InputError
from resolvent.math.newton import NewtonState
from resolvent.regression.families import Gaussian
from resolvent.regression.newton import INEXACT_POWER, FederatedNewton
from resolvent.regression.objective import FitSums, RowRegression
from resolvent.regression.random_intercept import RandomIntercept, ScaledGaussian

_START = 0.3  # the deviation tau with which the fit begins
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


def random_problem(rows: RegressionRows, start: NDArray[np.float64] | None = None) -> RandomIntercept:
    """The objectives of the sites with a random intercept for each.

    Args:
        start: see ``random_start``; None: from the mean label, for a site that is sent the parameters.
    """
    family = rows.model.family
    assert family is not None
    family = ScaledGaussian() if isinstance(family, Gaussian) else family
    if start is None:
        start = np.array([*rows.model.start, *[0.0] * len(family.extra[len(rows.model.extra):]), np.log(_START)])
    plain = RowRegression(family, rows.x, rows.y, rows.sizes, offsets=rows.offsets, block=rows.model.block)
    return RandomIntercept(plain, start)


def random_start(fit: Fit) -> NDArray[np.float64]:
    """[P + 1] the estimates of the common fit, that of log(sigma) with normal labels, and log(tau)."""
    log_sigma = [np.log(fit.deviance / fit.count) / 2] if fit.family == "gaussian" else []
    return np.array([*np.nan_to_num(fit.estimates), *log_sigma, np.log(_START)])


def random_newton() -> FederatedNewton:
    """The algorithm of the rounds, whose Hessians lack small terms."""
    return FederatedNewton(tolerance=float(np.finfo(np.float64).eps)**INEXACT_POWER)


def has_ended(search: NewtonState) -> bool:
    """Whether the fit has converged, or tau goes to zero."""
    return bool(search.has_converged) or float(search.point[-1]) < np.log(_SMALL)


def fit_random_intercept(fit: Fit, rounds: int) -> RandomInterceptFit:
    """Fit the regression again with a random intercept for each site, by sums."""
    with jax.enable_x64(True):
        problem = random_problem(rows_of(fit), random_start(fit))
        result = rounds_of(random_newton(), problem, rounds, 4, lambda state: has_ended(state.search))
        search = result.state.server.search
        return random_fit(fit, search, mean_fit_sums(problem, np.asarray(search.point), "model"))


def random_fit(fit: Fit, search: NewtonState, means: FitSums) -> RandomInterceptFit:
    """The fit with random intercepts as statisticians read it.

    Args:
        fit: the common fit.
        search: the last state of Newton's method.
        means: over all rows at its point.
    """
    w, names = np.asarray(search.point), (*fit.names, *(["log_sigma"] if fit.family == "gaussian" else []))
    tau, information = float(np.exp(w[-1])), fit.count * np.asarray(means.hessian)
    likelihood = fit.count * float(means.terms.likelihood)
    if tau <= _SMALL:
        information, tau, likelihood = information[:-1, :-1], 0.0, fit.log_likelihood
    elif not bool(search.has_converged):
        raise DivergedError(f"the random intercept has not converged after {int(search.evaluations)} rounds: the "
                            "common fit has coefficients that the rows cannot tell, or there are too few sites. Leave "
                            "site=random out")
    covariance = np.linalg.inv(information)
    return RandomInterceptFit(names, w[:len(names)], np.sqrt(np.diag(covariance))[:len(names)], tau, likelihood,
                              beyond(2 * (likelihood - fit.log_likelihood), 1) / 2, int(search.evaluations))
