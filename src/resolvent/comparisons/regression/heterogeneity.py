"""Whether, where and by how much coefficients differ between sites."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from resolvent.comparisons.regression.differences import Differences, sparse_differences
from resolvent.comparisons.regression.identification import directions
from resolvent.comparisons.regression.random_intercepts import RandomInterceptFit, fit_random_intercept
from resolvent.errors import InputError, alternatives, quote
from resolvent.math import tree
from resolvent.problem.regression.objective import FitSums, RegressionProblem
from resolvent.problem.solvers.newton import Newton
from resolvent.problem.subproblem import Subproblem

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from resolvent.comparisons.regression.regression import Regression

__all__ = ["Heterogeneity", "SiteFits", "heterogeneity"]


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


@dataclass(frozen=True, eq=False)
class Heterogeneity:
    """Differences between sites.

    Attributes:
        fit: the common fit.
        sites: the fits of the sites.

    Example:
        >>> differences = fit.heterogeneity()  # doctest: +SKIP
        >>> differences.test["p"], differences.table["I2"]  # doctest: +SKIP
    """

    fit: "Regression"
    sites: SiteFits

    @cached_property
    def test(self) -> dict[str, float]:
        """The test of common against site-wise coefficients: statistic, degrees of freedom, p.

        Twice the difference of the log-likelihoods is chi-squared with (sum of the sites' ranks) - P degrees of
        freedom. Families with a dispersion have the F test of the deviances, which for normal labels is that of Chow.
        """
        from scipy import stats

        family, sums = self.fit.rows.family, self.fit.sums.terms
        freedom = int(self.sites.ranks.sum()) - int(self.fit.identification.is_identified.sum())
        if freedom <= 0:
            return {"statistic": np.nan, "degrees of freedom": 0, "p": np.nan}
        if family is None or not family.has_dispersion:
            statistic = 2 * (self.sites.likelihood - float(sums.likelihood))
            p = float(stats.chi2.sf(statistic, freedom))
            return {"statistic": statistic, "degrees of freedom": freedom, "p": p}
        rest = self.fit.count - int(self.sites.ranks.sum())
        if rest <= 0:
            return {"statistic": np.nan, "degrees of freedom": freedom, "p": np.nan}
        statistic = (float(sums.deviance) - self.sites.deviance) / freedom / (self.sites.pearson / rest)
        return {"statistic": statistic, "degrees of freedom": freedom, "degrees of freedom of the rest": rest,
                "p": float(stats.f.sf(statistic, freedom, rest))}

    @property
    def table(self) -> "pd.DataFrame":
        """A row for each parameter: number of sites, Cochran's Q, its p, I2, and the deviation tau between sites.

        Q is the sum of the squared differences from the mean by inverse variance, I2 = max(0, 1 - (K-1)/Q), and tau^2
        is the moment estimate of DerSimonian and Laird.
        """
        import pandas as pd
        from scipy import stats

        rows = []
        for b, error in zip(self.sites.estimates.T, self.sites.errors.T, strict=True):
            known = np.isfinite(b) & np.isfinite(error) & (error > 0)
            b, weight = b[known], 1 / error[known]**2
            k = int(known.sum())
            if k < 2:
                rows.append((k, np.nan, np.nan, np.nan, np.nan))
                continue
            q = float(np.sum(weight * (b - np.sum(weight * b) / weight.sum())**2))
            spread = (q - (k - 1)) / (weight.sum() - np.sum(weight**2) / weight.sum())
            rows.append((k, q, float(stats.chi2.sf(q, k - 1)), max(0.0, 1 - (k - 1) / q) if q > 0 else 0.0,
                         float(np.sqrt(max(spread, 0.0)))))
        return pd.DataFrame(rows, columns=["sites", "Q", "p", "I2", "tau"],
                            index=pd.Index(self.fit.names, name="parameter"))

    @property
    def site_table(self) -> "pd.DataFrame":
        """A row for each site and parameter: estimate and standard error of the site's own fit."""
        import pandas as pd

        index = pd.MultiIndex.from_product([self.fit.rows.sites, self.fit.names], names=["site", "parameter"])
        return pd.DataFrame({"estimate": self.sites.estimates.ravel(), "standard error": self.sites.errors.ravel()},
                            index=index)

    @cached_property
    def differences(self) -> Differences:
        """Which coefficients differ where: Fed+ with the L1 norm around a common vector."""
        return sparse_differences(self.fit)

    def random_intercept(self) -> RandomInterceptFit:
        """The same regression with a random intercept for each site, by Laplace's approximation.

        Raises:
            InputError: the family has none.
        """
        return fit_random_intercept(self.fit)

    def forest(self, parameter: str) -> "Figure":
        """A forest plot: the sites' own estimates of a parameter with their intervals, and the common one.

        Raises:
            InputError: there is no such parameter.
        """
        from resolvent.comparisons.regression.figures import forest_figure

        if parameter not in self.fit.names:
            raise InputError(f"there is no parameter {quote(parameter)}{alternatives(parameter, self.fit.names)}")
        return forest_figure(self, parameter)

    def plot(self) -> "Figure":
        """The picture of ``differences``: parameters by sites."""
        from resolvent.comparisons.regression.figures import differences_figure

        return differences_figure(self)


def heterogeneity(fit: "Regression") -> Heterogeneity:
    """Fit every site on its own, beside the common fit.

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
    found = np.full(estimates.shape, np.nan)
    errors, ranks = found.copy(), np.zeros(len(sizes), int)
    for k in range(len(sizes)):
        parts = directions(totals.gram[k], totals.information[k])
        known, ranks[k] = parts.is_identified, parts.rank
        left = sizes[k] - ranks[k]
        dispersion = totals.terms.pearson[k] / left if has_dispersion and left > 0 else np.nan if has_dispersion else 1
        found[k] = np.where(known, np.asarray(estimates)[k], np.nan)
        errors[k] = np.where(known, np.sqrt(dispersion * np.diag(parts.inverse)), np.nan)
    terms = totals.terms
    return Heterogeneity(fit, SiteFits(found, errors, ranks, float(terms.likelihood.sum()), float(terms.deviance.sum()),
                                       float(terms.pearson.sum())))


@jax.jit
def _fit_sites(problem: RegressionProblem, start: jax.Array) -> tuple[jax.Array, FitSums]:
    """[N, P] the estimates of every party from its own rows, and the means of its fit."""
    def of_party(k: jax.Array) -> tuple[Any, FitSums]:
        oracle = problem.oracle(k)
        w, _ = Newton()(Subproblem(oracle, start, 0.0), start, jax.random.key(0), jnp.ones((), tree.dtype(start)))
        return w, oracle.fit_sums(w)
    fitted: tuple[jax.Array, FitSums] = jax.lax.map(of_party, jnp.arange(problem.sizes.shape[0]))
    return fitted
