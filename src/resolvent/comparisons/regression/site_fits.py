"""The fits of the sites, each to its own rows."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from resolvent.comparisons.regression.fit import Fit
from resolvent.comparisons.regression.identification import directions
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.problem.regression.objective import FitSums, RegressionProblem
from resolvent.problem.solvers.newton import Newton
from resolvent.problem.subproblem import Subproblem

__all__ = ["SiteFits", "fit_sites"]


class SiteFits(NamedTuple):
    """The fits of the sites, each to its own rows.

    Attributes:
        estimates: [N, P]; NaN where a site's rows cannot tell.
        errors: [N, P] standard errors; NaN there as well.
        ranks: [N] number of parameters that a site's rows determine.
        likelihood: the sum of the sites' log-likelihoods without the parts that need a dispersion.
        deviance: the sum of the sites' deviances.
        pearson: the sum of the sites' Pearson statistics.
    """

    estimates: NDArray[np.float64]
    errors: NDArray[np.float64]
    ranks: NDArray[np.int64]
    likelihood: float
    deviance: float
    pearson: float


def fit_sites(fit: Fit) -> SiteFits:
    """Fit every site on its own, from the common fit.

    Raises:
        InputError: the fit has a penalty, or there is one site.
    """
    if any(fit.penalties):
        raise InputError("heterogeneity is about fits without a penalty: leave l1 and l2 out")
    if len(fit.rows.sites) < 2:
        raise InputError("differences between sites need at least 2 sites")
    with jax.enable_x64(True):
        estimates, sums = _fit_sites(fit.rows.problem(), jnp.asarray(np.nan_to_num(fit.estimates)))
    sizes = fit.rows.sizes
    totals = jax.tree.map(lambda leaf: np.asarray(leaf) * sizes.reshape(-1, *[1] * (leaf.ndim - 1)), sums)
    has_dispersion = fit.rows.family is not None and fit.rows.family.has_dispersion
    determined = np.full(estimates.shape, np.nan)
    errors, ranks = determined.copy(), np.zeros(len(sizes), int)
    for k in range(len(sizes)):
        parts = directions(totals.gram[k], totals.information[k])
        known, ranks[k] = parts.is_identified, parts.rank
        left = sizes[k] - ranks[k]
        dispersion = totals.terms.pearson[k] / left if has_dispersion and left > 0 else np.nan if has_dispersion else 1
        determined[k] = np.where(known, np.asarray(estimates)[k], np.nan)
        errors[k] = np.where(known, np.sqrt(dispersion * np.diag(parts.inverse)), np.nan)
    terms = totals.terms
    return SiteFits(determined, errors, ranks, float(terms.likelihood.sum()), float(terms.deviance.sum()),
                    float(terms.pearson.sum()))


@jax.jit
def _fit_sites(problem: RegressionProblem, start: jax.Array) -> tuple[jax.Array, FitSums]:
    """[N, P] the estimates of every party from its own rows, and the means of its fit."""
    def of_party(k: jax.Array) -> tuple[Any, FitSums]:
        oracle = problem.oracle(k)
        w, _ = Newton()(Subproblem(oracle, start, 0.0), start, jax.random.key(0), jnp.ones((), tree.dtype(start)))
        return w, oracle.fit_sums(w)
    fitted: tuple[jax.Array, FitSums] = jax.lax.map(of_party, jnp.arange(problem.sizes.shape[0]))
    return fitted
