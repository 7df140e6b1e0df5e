"""Whether, where and by how much coefficients differ between sites."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from resolvent.comparisons.regression.fit import Fit, rows_of
from resolvent.comparisons.regression.laws import beyond
from resolvent.comparisons.regression.site_fits import SiteFits, fit_sites
from resolvent.comparisons.regression.wording import probability
from resolvent.errors import InputError, alternatives, quote

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from resolvent.comparisons.regression.differences import Differences

_LARGE_SHARE, _SMALL_P = 0.75, 0.01  # of I2 and of Cochran's test
_Z = 1.959963984540054


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

    fit: Fit
    sites: SiteFits

    @cached_property
    def test(self) -> dict[str, float]:
        """The test of common against site-wise coefficients: statistic, degrees of freedom, p.

        Twice the difference of the log-likelihoods is chi-squared with (sum of the sites' ranks) - P degrees of
        freedom. Families with a dispersion have the F test of the deviances, which for normal labels is that of Chow.
        """
        family, sums = self.fit.model.family, self.fit.sums.terms
        freedom = int(self.sites.ranks.sum()) - self.fit.identification.rank
        if freedom <= 0 or self.fit.model.weights == "sampling":  # such weights have no likelihood
            return {"statistic": np.nan, "degrees of freedom": 0, "p": np.nan}
        if family is None or not family.has_dispersion:
            statistic = 2 * (self.sites.likelihood - float(sums.likelihood))
            p = beyond(statistic, freedom)
            return {"statistic": statistic, "degrees of freedom": freedom, "p": p}
        residual = round(self.fit.observations) - int(self.sites.ranks.sum()) - self.fit.model.kept
        if residual <= 0 or self.sites.pearson <= 0:
            return {"statistic": np.nan, "degrees of freedom": freedom, "p": np.nan}
        statistic = (float(sums.deviance) - self.sites.deviance) / freedom / (self.sites.pearson / residual)
        return {"statistic": statistic, "degrees of freedom": freedom, "degrees of freedom of the rest": residual,
                "p": beyond(statistic, freedom, residual)}

    @property
    def table(self) -> "pd.DataFrame":
        """A row for each parameter: number of sites, Cochran's Q, its p, I2, and the deviation tau between sites.

        Q is the sum of the squared differences from the mean by inverse variance, I2 = max(0, 1 - (K-1)/Q), and tau^2
        is the moment estimate of DerSimonian and Laird.
        """
        import pandas as pd

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
            rows.append((k, q, beyond(q, k - 1), max(0.0, 1 - (k - 1) / q) if q > 0 else 0.0,
                         float(np.sqrt(max(spread, 0.0)))))
        return pd.DataFrame(rows, columns=["sites", "Q", "p", "I2", "tau"],
                            index=pd.Index(self.fit.names, name="parameter"))

    @cached_property
    def findings(self) -> tuple[str, ...]:
        """A sentence for each coefficient that differs between the sites: I2 above 75 %, or p of its Q below 0.01.

        A site is named if the interval of its own estimate, of level 95 %, excludes zero on the other side than the
        common estimate. Differences of the intercept, thresholds and baseline are other base rates, and are left out.
        """
        sentences = []
        for j, (name, line) in enumerate(self.table.iterrows()):
            is_base_rate = str(name).endswith("Intercept") or (
                self.fit.model.has_baseline and name in self.fit.model.extra)
            if is_base_rate or not (line["I2"] > _LARGE_SHARE or line["p"] < _SMALL_P):
                continue
            own, error, common = self.sites.estimates[:, j], self.sites.errors[:, j], self.fit.estimates[j]
            with np.errstate(invalid="ignore"):
                is_opposite = -np.sign(common) * own > _Z * error
            sites = [str(site) for site, is_named in zip(self.fit.model.sites, is_opposite, strict=True) if is_named]
            opposite = ""
            if sites:
                from resolvent.comparisons.judgement.wording import enumerate_names  # a fit needs no comparisons

                opposite = f"; the coefficient has the opposite sign at {enumerate_names(sites)}"
            sentences.append(f"The coefficient of {name} differs between the sites (I\N{SUPERSCRIPT TWO} "
                             f"{line['I2']:.0%}, p {probability(line['p'])}){opposite}.")
        return tuple(sentences)

    @property
    def site_table(self) -> "pd.DataFrame":
        """A row for each site and parameter: estimate and standard error of the site's own fit."""
        import pandas as pd

        index = pd.MultiIndex.from_product([self.fit.model.sites, self.fit.names], names=["site", "parameter"])
        return pd.DataFrame({"estimate": self.sites.estimates.ravel(), "standard error": self.sites.errors.ravel()},
                            index=index)

    @cached_property
    def differences(self) -> "Differences":
        """Which coefficients differ where: Fed+ with the L1 norm around a common vector."""
        from resolvent.comparisons.regression.differences import sparse_differences  # it takes fits of its own

        return sparse_differences(self.fit)

    def forest(self, parameter: str) -> "Figure":
        """A forest plot: the sites' own estimates of a parameter with their intervals, and the common one.

        Raises:
            InputError: there is no such parameter.
        """
        if parameter not in self.fit.names:
            raise InputError(f"there is no parameter {quote(parameter)}{alternatives(parameter, self.fit.names)}")
        from resolvent.comparisons.regression.figures import forest_figure  # few fits are drawn

        return forest_figure(self.fit, self.sites, self.table.to_dict("index")[parameter], parameter)

    def plot(self) -> "Figure":
        """The picture of ``differences``: parameters by sites."""
        from resolvent.comparisons.regression.figures import differences_figure  # few fits are drawn

        return differences_figure(self.differences)


def heterogeneity(fit: Fit) -> Heterogeneity:
    """Every site's own fit, next to the common fit."""
    if any(fit.penalties) or fit.firth:
        raise InputError("heterogeneity is about fits without a penalty: leave l1, l2 and firth out")
    if len(fit.model.sites) < 2:
        raise InputError("differences between sites need at least 2 sites")
    if fit.site_fits is None and fit.rows is None and fit.imputed is None:
        raise InputError("the sites have not sent their own fits (heterogeneity: false, or privacy.secure_sums, which "
                         "hides them): fit without these settings, or test a difference that you expect as a term, "
                         "such as age:region")
    return Heterogeneity(fit, fit_sites(rows_of(fit), fit.estimates) if fit.site_fits is None else fit.site_fits)
