"""The fits of the sites, each to its own rows."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from resolvent.comparisons.regression.identification import directions_of
from resolvent.comparisons.regression.model import RegressionModel
from resolvent.comparisons.regression.rows import RegressionRows
from resolvent.regression.objective import FitSums, RegressionProblem
from resolvent.regression.regression_fits import fit_of_party


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


def fit_sites(rows: RegressionRows, start: NDArray[np.float64]) -> SiteFits:
    """Fit every site on its own.

    Args:
        start: [P] the common fit.
    """
    with jax.enable_x64(True):
        estimates, sums = _fit_sites(rows.problem(), jnp.asarray(np.nan_to_num(start)))
    return join_site_fits(rows.model, np.asarray(estimates), sums)


def join_site_fits(model: RegressionModel, estimates: NDArray[np.float64], means: FitSums) -> SiteFits:
    """What the sites' own fits say.

    Args:
        estimates: [N, P] the sites' estimates.
        means: the means of their fits, leaves [N, ...].
    """
    sizes, family = model.sizes, model.family
    totals = jax.tree.map(lambda leaf: np.asarray(leaf) * sizes.reshape(-1, *[1] * (leaf.ndim - 1)), means)
    has_dispersion = family is not None and family.has_dispersion
    determined = np.full(estimates.shape, np.nan)
    errors, ranks = determined.copy(), np.zeros(len(sizes), int)
    for k in range(len(sizes)):
        parts = directions_of(jax.tree.map(lambda leaf, k=k: leaf[k], totals), int(sizes[k]))
        known, ranks[k] = parts.is_identified, parts.rank
        left = (totals.weight[k] if model.weights == "frequency" else sizes[k]) - ranks[k] - model.kept // len(sizes)
        dispersion = totals.terms.pearson[k] / left if has_dispersion and left > 0 else np.nan if has_dispersion else 1
        covariance = dispersion * parts.inverse
        if model.weights == "sampling":
            covariance = sizes[k] / max(sizes[k] - 1, 1) * parts.inverse @ totals.scores[k] @ parts.inverse
        determined[k] = np.where(known, estimates[k], np.nan)
        variances = np.maximum(np.diag(covariance), 0)  # of an exact fit they can be rounded to below zero
        errors[k] = np.where(known, np.sqrt(variances), np.nan)
    terms = totals.terms
    return SiteFits(determined, errors, ranks, float(terms.likelihood.sum()), float(terms.deviance.sum()),
                    float(terms.pearson.sum()))


@jax.jit
def _fit_sites(problem: RegressionProblem, start: jax.Array) -> tuple[jax.Array, FitSums]:
    fitted: tuple[jax.Array, FitSums] = jax.lax.map(lambda k: fit_of_party(problem.oracle(k), start),
                                                    jnp.arange(problem.sizes.shape[0]))
    return fitted
