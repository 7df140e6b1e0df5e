"""Fits with a random intercept for each site."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from resolvent.comparisons.regression.fit import Fit, rows_of
from resolvent.comparisons.regression.rows import RegressionRows
from resolvent.errors import DivergedError, InputError
from resolvent.regression.families import Gaussian
from resolvent.regression.newton import FederatedNewton
from resolvent.regression.objective import RowRegression
from resolvent.regression.random_intercept import RandomIntercept, ScaledGaussian
from resolvent.simulator.run import simulate

if TYPE_CHECKING:
    import pandas as pd

_ROUNDS = 60
_SMALL = 1e-3  # a deviation tau below this one is zero: its logarithm has no maximum


@dataclass(frozen=True)
class RandomInterceptFit:
    """A regression with a random intercept.

    Attributes:
        names: the names of the parameters without tau.
        estimates: their estimates.
        errors: their standard errors.
        tau: standard deviation of the sites' intercepts; 0 if the sites do not differ.
        log_likelihood: the marginal log-likelihood.
        p: of the test of tau = 0; the statistic is 0 half of the time and chi-squared with 1 degree of freedom
            otherwise.
        rounds: number of rounds of the fit.
    """

    names: tuple[str, ...]
    estimates: NDArray[np.float64]
    errors: NDArray[np.float64]
    tau: float
    log_likelihood: float
    p: float
    rounds: int

    @property
    def table(self) -> "pd.DataFrame":
        """A row for each parameter: estimate and standard error."""
        import pandas as pd

        return pd.DataFrame({"estimate": self.estimates, "standard error": self.errors},
                            index=pd.Index(self.names, name="parameter"))


def fit_random_intercept(fit: Fit) -> RandomInterceptFit:
    """Fit the regression again with a random intercept for each site, by sums."""
    from scipy import stats

    rows, model = rows_of(fit), fit.model
    if model.family is None:
        raise InputError("a Cox model stratified by site has a baseline hazard for each site instead of an intercept")
    if model.weights is not None:
        raise InputError("a random intercept takes no weights: repeat the rows of a table with counts, or fit an "
                         "intercept for each site, site=fixed")
    if not model.has_intercept:
        raise InputError("a random intercept needs an intercept: leave -1 out of the formula; an ordinal label has "
                         "thresholds instead")
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
        shares = rows.sizes / fit.count
        terms = [problem.oracle(jnp.array(k)).second_order(result.server_model) for k in range(len(shares))]
        information = fit.count * sum(share * np.asarray(s.hessian) for share, s in zip(shares, terms, strict=True))
        constant = _label_part(fit.family, rows)
        likelihood = -fit.count * float(sum(share * float(s.value) for share, s in zip(shares, terms, strict=True)))
    if tau <= _SMALL:
        information, tau, likelihood = information[:-1, :-1], 0.0, fit.log_likelihood - constant
    covariance = np.linalg.inv(information)
    statistic = max(2 * (likelihood + constant - fit.log_likelihood), 0.0)
    return RandomInterceptFit(names, w[:len(names)], np.sqrt(np.diag(covariance))[:len(names)], tau,
                              likelihood + constant, float(stats.chi2.sf(statistic, 1)) / 2, int(search.evaluations))


def _has_ended(result: "object") -> bool:
    """Whether the fit has converged, or tau goes to zero."""
    server = result.state.server  # type: ignore[attr-defined]
    return bool(server.search.has_converged) or float(server.search.point[-1]) < np.log(_SMALL)


def _label_part(family: str, rows: RegressionRows) -> float:
    """The part of the log-likelihood that depends on the labels alone, which losses leave out."""
    from scipy.special import gammaln

    return -float(gammaln(rows.y + 1).sum()) if family in ("poisson", "negative_binomial") else 0.0
