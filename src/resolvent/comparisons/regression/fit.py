"""The numbers of a fitted regression: estimates, standard errors, tests, and what could not be estimated."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Self, get_args

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from resolvent.comparisons.regression.identification import (
    Identification,
    directions_of,
    few_events,
    identify,
    rows_imputed,
    rows_left_out,
)
from resolvent.comparisons.regression.imputation import Imputations, pooled_freedom
from resolvent.comparisons.regression.laws import quantile, two_sided
from resolvent.comparisons.regression.model import RegressionModel
from resolvent.comparisons.regression.rows import RegressionRows
from resolvent.comparisons.regression.settings import LEVERAGE_POWERS, Errors, check_errors_of_weights
from resolvent.comparisons.regression.site_fits import SiteFits
from resolvent.comparisons.regression.sums import check_errors, mean_fit_sums
from resolvent.errors import InputError, alternatives, check_range, quote
from resolvent.regression.objective import FitSums, log_determinant

if TYPE_CHECKING:
    import pandas as pd


class Likelihoods(NamedTuple):
    """What the rounds under constraints have found.

    Attributes:
        rises: [K] how much the mean loss rises under each hypothesis; NaN if its fit has not converged.
        ends: [E, 2] the ends of the profile intervals; NaN if there is none.
    """

    rises: NDArray[np.float64]
    ends: NDArray[np.float64]


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

    def facts(self) -> dict[str, Any]:
        """The numbers as plain values."""
        return {"tau": self.tau, "p": self.p, "log_likelihood": self.log_likelihood, "rounds": self.rounds,
                "estimates": dict(zip(self.names, self.estimates.tolist(), strict=True)),
                "errors": dict(zip(self.names, self.errors.tolist(), strict=True))}

    @property
    def table(self) -> "pd.DataFrame":
        """A row for each parameter: estimate and standard error."""
        import pandas as pd

        return pd.DataFrame({"estimate": self.estimates, "standard error": self.errors},
                            index=pd.Index(self.names, name="parameter"))


@dataclass(frozen=True, eq=False)
class Fit:
    """A regression that was fitted over all sites by sums.

    Attributes:
        model: what was fitted.
        estimates: [P] the estimates, in the order of ``names``; NaN for what the rows cannot tell.
        sums: totals over all rows at the estimates.
        rounds: number of rounds that the fit took.
        has_converged: whether the fit has converged.
        penalties: the weights (l1, l2) of the penalty.
        errors: kind of the standard errors: ``model`` from the information, ``robust`` to a wrong variance (HC1; also
            ``HC0``, ``HC2``, ``HC3``), or ``clustered`` by site.
        level: level of the intervals.
        rows: the rows, for further fits; None in a federation, whose rows are at the sites.
        site_fits: the sites' own fits, if they are known.
        tests: the hypotheses that are tested beside the table.
        likelihood_tests: those that are tested by the ratio of likelihoods.
        profile: the coefficients whose interval is that of the profile likelihood.
        likelihoods: what the rounds for these have found.
        firth: whether the likelihood has Firth's penalty.
        random: the same regression with a random intercept for each site, if it was asked for.
        imputed: what the fits of completed tables say, whose mean this fit is; None: it is the fit of one table.
    """

    model: RegressionModel
    estimates: NDArray[np.float64]
    sums: FitSums
    rounds: int
    has_converged: bool
    penalties: tuple[float, float] = (0.0, 0.0)
    errors: Errors = "model"
    level: float = 0.95
    rows: RegressionRows | None = None
    site_fits: SiteFits | None = None
    tests: tuple[str, ...] = ()
    likelihood_tests: tuple[str, ...] = ()
    profile: tuple[str, ...] = ()
    likelihoods: Likelihoods | None = None
    firth: bool = False
    random: RandomInterceptFit | None = None
    imputed: Imputations | None = None

    def __post_init__(self) -> None:
        if self.errors not in get_args(Errors):
            raise InputError(f"errors={quote(self.errors)} is not known{alternatives(self.errors, get_args(Errors))}")
        check_range("regress", "(0, 1)", level=self.level)
        check_errors_of_weights(self.errors, self.model.weights)

    @property
    def asks_likelihoods(self) -> bool:
        """Whether there are further rounds, for likelihood-ratio tests and profile intervals."""
        return bool(self.likelihood_tests or self.profile)

    @property
    def tested(self) -> Mapping[str, Any]:
        """Hypothesis -> its test, or why there is none, for those that the fit was asked to test."""
        return {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the P parameters."""
        return self.model.names

    @property
    def count(self) -> int:
        """n, the number of rows."""
        return sum(self.model.site_rows)

    @property
    def observations(self) -> float:
        """The number of independent observations: of the rows, or, with frequency weights, the sum of the weights."""
        return float(self.sums.weight) if self.model.weights == "frequency" else self.count

    @property
    def family(self) -> str:
        """The name of the family."""
        return self.model.family_name

    @property
    def effect(self) -> str | None:
        """What the exponential of a coefficient is."""
        return "hazard ratio" if self.model.family is None else self.model.family.effect

    @property
    def deviance(self) -> float:
        """Twice the log-likelihood of the saturated model minus that of this one; for Cox -2 log-likelihood."""
        return float(self.sums.terms.deviance)

    @property
    def dispersion(self) -> float:
        """Pearson's statistic over the degrees of freedom, for families that have a dispersion; otherwise 1."""
        if self.model.family is None or not self.model.family.has_dispersion:
            return 1.0
        scale = self.count / float(self.sums.weight) if self.model.weights == "sampling" else 1.0
        return scale * float(self.sums.terms.pearson) / self.degrees_of_freedom

    @property
    def degrees_of_freedom(self) -> int:
        """n - P, without the intercepts that stay at the sites; columns that depend on others do not count in P."""
        return round(self.observations) - self.identification.rank - self.model.kept

    @property
    def clusters(self) -> int:
        """G, the number of clusters: of the sites, or of those within them."""
        return round(float(self.sums.groups))

    @property
    def degrees_of_freedom_of_tests(self) -> int | None:
        """Of the t statistics: G - 1 with errors of G clusters; n - P with a dispersion or sampling weights.

        None: z statistics, which a Cox model has with sampling weights as well. With imputations see ``freedom_of``.
        """
        if self.errors == "clustered":
            return self.clusters - 1
        family = self.model.family
        has_t = family is not None and self.family != "cox" and (
            self.model.weights == "sampling" or family.has_dispersion)
        return self.degrees_of_freedom if has_t else None

    def freedom_of(self, combinations: NDArray[np.float64]) -> NDArray[np.float64] | int | None:
        """Degrees of freedom of the t statistics of linear combinations, [q, P], of the parameters; None: z statistics.

        Those of imputations depend on how much of the variance is between them.
        """
        if self.imputed is None:
            return self.degrees_of_freedom_of_tests
        total, within = (np.einsum("qj,jk,qk->q", combinations, covariance, combinations)
                         for covariance in (self.covariance, self.imputed.within))
        return pooled_freedom(total, within, self.imputed.count, self.imputed.freedom)

    @property
    def has_likelihood(self) -> bool:
        """Whether there is a likelihood: not with imputations, sampling weights, or a family with a variance only."""
        return self.imputed is None and self.model.weights != "sampling" and (
            self.model.family is None or self.model.family.has_likelihood)

    @property
    def log_likelihood(self) -> float:
        """The log-likelihood; for Cox the partial one, with Firth's penalty the penalised one.

        NaN with imputations, sampling weights and ``quasi_poisson``, without one.
        """
        if not self.has_likelihood:
            return float("nan")
        if self.model.family is None:
            return float(self.sums.terms.likelihood)
        likelihood = self.model.family.log_likelihood(self.observations, self.dispersion, self.sums.terms)
        if not self.firth:
            return likelihood
        with jax.enable_x64(True):
            return likelihood + float(log_determinant(jnp.asarray(self.sums.information))) / 2

    @property
    def aic(self) -> float:
        """Akaike's criterion, 2 P - 2 log-likelihood. A dispersion is not counted, as in statsmodels."""
        return 2 * (self.identification.rank + self.model.kept) - 2 * self.log_likelihood

    @cached_property
    def identification(self) -> Identification:
        """What the rows cannot tell."""
        if self.imputed is not None:
            return self.imputed.identification
        # With Firth's penalty the maximum is where the gradient of the likelihood itself is not zero.
        sums = self.sums._replace(gradient=0 * self.sums.gradient) if self.firth else self.sums
        return identify(self.model, sums, self.penalties[1])

    @cached_property
    def covariance(self) -> NDArray[np.float64]:
        """[P, P] covariance of the estimates; NaN with a penalty, which has no standard errors."""
        if any(self.penalties):
            return np.full((len(self.names),) * 2, np.nan)
        if self.imputed is not None:
            return self.imputed.covariance
        inverse = self.identification.inverse
        if self.errors == "model":
            return self.dispersion * inverse
        n, clusters = self.observations, self.clusters
        is_sampling = self.model.weights == "sampling"
        inverse = directions_of(self.sums, self.count, np.asarray(self.sums.hessian)).inverse
        if self.errors != "clustered":
            is_hc1 = self.errors in ("robust", "HC1") and self.family != "cox"
            factor = n / (n - 1 if is_sampling else self.degrees_of_freedom) if is_hc1 else 1.0
            return np.asarray(factor * inverse @ np.asarray(self.sums.scores) @ inverse)
        if clusters < 2:
            raise InputError("standard errors clustered by site need at least 2 sites: use errors=robust")
        factor = 1.0
        if self.family != "cox":
            factor = clusters / (clusters - 1) * (1.0 if is_sampling else (n - 1) / self.degrees_of_freedom)
        return np.asarray(factor * inverse @ np.asarray(self.sums.clusters) @ inverse)

    @property
    def table(self) -> "pd.DataFrame":
        """A row for each parameter: estimate, standard error, z or t, p, interval, and ratio with interval.

        Errors of G clusters have t with G - 1 degrees of freedom, as there are G independent parts; families with a
        dispersion have t with n - P, the others z. Imputations have t with degrees of freedom of each parameter, in a
        column of their own, beside the share of the variance that is between them.
        """
        import pandas as pd

        error = np.sqrt(np.diag(self.covariance))
        estimates = np.where(self.identification.is_identified, self.estimates, np.nan)
        error = np.where(self.identification.is_identified, error, np.nan)
        freedom = self.freedom_of(np.eye(len(self.names)))
        has_t = freedom is not None
        half = quantile(self.level, freedom) * error
        low, high = estimates - half, estimates + half
        if self.likelihoods is not None and self.errors == "model":
            for name, ends in zip(self.profile, self.likelihoods.ends, strict=True):
                low[self.names.index(name)], high[self.names.index(name)] = ends
        with np.errstate(divide="ignore", invalid="ignore"):
            statistic = estimates / error
        columns = {"estimate": estimates, "standard error": error, "t" if has_t else "z": statistic,
                   "p": two_sided(statistic, freedom), "low": low, "high": high}
        if self.imputed is not None:
            with np.errstate(invalid="ignore"):
                between = 1 - np.diag(self.imputed.within) / np.diag(self.covariance)
            columns |= {"degrees of freedom": freedom, "variance between imputations": between}
        if self.effect is not None:
            is_ratio = [name not in self.model.extra for name in self.names]
            with np.errstate(over="ignore"):
                columns |= {self.effect: np.where(is_ratio, np.exp(estimates), np.nan),
                            f"{self.effect} low": np.where(is_ratio, np.exp(low), np.nan),
                            f"{self.effect} high": np.where(is_ratio, np.exp(high), np.nan)}
        return pd.DataFrame(columns, index=pd.Index(self.names, name="parameter"))

    @property
    def findings(self) -> tuple[str, ...]:
        """What a reader must know before the table: separation, collinearity, few events, rows left out."""
        sentences = [*self.identification.sentences, *few_events(self.model)]
        if not self.has_converged:
            sentences.append(f"The fit has not converged after {self.rounds} rounds: its numbers are not final.")
        if any(self.penalties):
            sentences.append("Estimates with a penalty are biased on purpose: there are no standard errors.")
        if self.likelihoods is not None and (endless := [name for name, ends in zip(
                self.profile, self.likelihoods.ends, strict=True) if np.isnan(ends).any()]):
            sentences.append(f"The profile likelihood of {', '.join(map(quote, endless))} has no end on one side, or "
                             "the rounds were too few to find it.")
        if self.imputed is not None:
            sentences += rows_imputed(self.imputed.rows, self.imputed.count)
        return (*sentences, *rows_left_out(self.model))

    def with_errors(self, errors: Errors, *, level: float | None = None) -> Self:
        """The same fit with another kind of standard errors, or another level. Nothing is fitted again.

        Raises:
            InputError: the rows are at the sites, which have sent the sums for these errors only.
        """
        if errors == "model" and self.profile and level not in (None, self.level):
            raise InputError(f"the profile intervals are of level {self.level:g}: fit with level={level:g}")
        fit = replace(self, errors=errors, level=self.level if level is None else level)
        if errors == self.errors or (self.rows is not None
                                     and LEVERAGE_POWERS.get(errors) == LEVERAGE_POWERS.get(self.errors)):
            return fit
        check_errors(self.model, errors)
        if self.rows is None:
            raise InputError(f"errors={errors} needs another sum over the rows of all sites than {self.errors}: set "
                             f"errors={errors}, and fit again")
        with jax.enable_x64(True):
            means = mean_fit_sums(self.rows.problem(l2=self.penalties[1]), self.estimates, errors)
        return replace(fit, sums=jax.tree.map(lambda leaf: np.asarray(leaf) * self.count, means))

    def facts(self) -> Mapping[str, Any]:
        """The numbers about the whole fit, by name."""
        weights = {} if self.model.weights is None else {
            "weights": self.model.weights, "sum_of_weights": float(self.sums.weight)}
        likelihood = {"log_likelihood": self.log_likelihood, "aic": self.aic}
        return {"formula": self.model.formula, "family": self.family, "rows": self.count, **weights,
                "sites": len(self.model.sites), "rounds": self.rounds, "converged": self.has_converged,
                "errors": self.errors, "level": self.level, "deviance": self.deviance, "dispersion": self.dispersion,
                **(likelihood if self.has_likelihood else {}), "findings": list(self.findings),
                **({} if self.imputed is None else {"imputations": self.imputed.count,
                                                    "rows_imputed": dict(self.imputed.rows)}),
                **({} if self.random is None else {"random_intercept": self.random.facts()})}


def rows_of(fit: Fit) -> RegressionRows:
    """The rows of a fit."""
    if fit.imputed is not None:
        raise InputError("this needs the rows of one table, and the fit is the mean over completed ones: fit without "
                         "imputations")
    if fit.rows is None:
        raise InputError("this needs further rounds over the rows of all sites, which a federation has not made: it is "
                         "computed where all rows are in one table")
    return fit.rows
