"""``regress``: fit a regression over sites by sums."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from resolvent.arguments import with_options
from resolvent.comparisons.plan_file import CellOptions, settings_of
from resolvent.comparisons.regression.imputation import Imputations
from resolvent.comparisons.regression.model import RegressionModel
from resolvent.comparisons.regression.regression import Regression
from resolvent.comparisons.regression.rows import RegressionRows, read_tables
from resolvent.comparisons.regression.settings import LEVERAGE_POWERS, RegressionOptions, RegressionSettings
from resolvent.comparisons.regression.sums import check_errors, mean_fit_sums, rounds_of
from resolvent.errors import InputError, alternatives, quote
from resolvent.math.newton import NewtonState
from resolvent.regression.newton import FederatedNewton
from resolvent.regression.objective import FitSums
from resolvent.regression.regression_fits import SumsOfFit
from resolvent.tables.table_options import cell_rules


@dataclass(frozen=True, kw_only=True)
class _Regressing(CellOptions, RegressionOptions):
    """What ``regress`` gets beside the table.

    Attributes:
        party: the column that names the site.
    """

    party: str


@with_options(_Regressing)
def regress(data: Any, options: _Regressing) -> Regression:
    """Fit a regression over sites, exactly as from the pooled rows, by sums that the sites send.

    Every round the sites send the value, the gradient and the Hessian of their log-likelihood, and the server makes a
    step of Newton's method; 4 to 8 rounds are usual. No row leaves a site. Cox regressions are stratified by site: each
    site has a baseline hazard of its own, and no event time leaves it.

    Args:
        data: a table with a row for each subject (a frame of pandas, or the path of a CSV or Parquet file). Rows with a
            missing value in a column that is used are left out, or completed by ``imputations``.

    Raises:
        InputError: the formula, a column or a value is wrong, or there are not more rows than parameters.

    Example:
        >>> fit = rv.regress(frame, "ill ~ age + C(ward)", party="hospital")  # doctest: +SKIP
        >>> print(fit.summary())  # doctest: +SKIP
    """
    settings = settings_of(RegressionSettings, options)
    return fit_tables(read_tables(data, settings, party=options.party, format=options.text_format,
                                  cells=cell_rules(options.missing, options.text)), settings)


def fit_tables(tables: Iterable[RegressionRows], settings: RegressionSettings) -> Regression:
    """Fit a regression to the rows of one table, or to those of each imputation, pooled by Rubin's rules."""
    if settings.imputations is None:
        return fit_rows(next(iter(tables)), settings)
    # The completed tables are not kept.
    return pooled_fits([replace(fit_rows(rows, settings), rows=None) for rows in tables])


def fit_rows(rows: RegressionRows, settings: RegressionSettings) -> Regression:
    """Fit a regression to rows that have been read."""
    check_rows(rows.model, settings)
    with jax.enable_x64(True):
        problem = rows.problem(l2=settings.l2)
        result = rounds_of(newton_of(rows.model, settings), problem, settings.rounds, 2,
                           lambda state: bool(state.search.has_converged))
        means = mean_fit_sums(problem, np.asarray(result.server_model), settings.errors)
    fit = regression_of(rows.model, settings, result.state.server.search, means, rows=rows)
    if settings.site == "random":
        from resolvent.comparisons.regression.random_intercepts import fit_random_intercept  # few fits have one

        fit = replace(fit, random=fit_random_intercept(fit, settings.rounds))
    if not fit.asks_likelihoods:
        return fit
    from resolvent.comparisons.regression.likelihoods import search  # few fits ask for further ones

    return replace(fit, likelihoods=search(fit, fit.likelihood_tests, fit.profile, settings.rounds))


def check_rows(model: RegressionModel, settings: RegressionSettings) -> None:
    """Refuse a model that the rows cannot determine, and hypotheses about coefficients that it does not have."""
    rows, parameters = sum(model.site_rows), len(model.names) + model.kept
    if settings.baseline_times is not None and model.family_name != "cox":
        raise InputError("baseline_times are of a Cox model, whose label is Surv(time, event): leave them out")
    if settings.site == "random":
        from resolvent.comparisons.regression.random_intercepts import check_random_intercept

        check_random_intercept(model)
        if settings.has_penalty or settings.firth:
            raise InputError("a random intercept is fitted without a penalty: leave l1, l2 and firth out")
    if model.keeps_intercepts and model.family is None:
        raise InputError("a Cox model has a baseline hazard of its own for each site already: leave site out")
    if settings.order is not None and model.family_name != "ordinal":
        raise InputError(f"order is of the classes of an ordinal label, and the family is {model.family_name}: set "
                         "family=ordinal, or leave order out")
    if model.keeps_intercepts and model.family is not None and model.family.has_thresholds:
        raise InputError("the thresholds of an ordinal label are common to all sites, and site=fixed is not offered: "
                         "leave site out")
    if model.strata is not None and model.family is not None:
        raise InputError("strata are of a Cox model, whose label is Surv(time, event): for other families write "
                         f"C({model.strata}) in the formula")
    if rows <= parameters:
        raise InputError(f"{rows} complete rows cannot determine {parameters} parameters: leave columns out, or join "
                         "levels")
    check_errors(model, settings.errors)
    if settings.tests or settings.likelihood_tests:
        from resolvent.comparisons.regression.hypotheses import constraints_of, coordinates_of

        for text in settings.tests or ():
            constraints_of(text, model)
        for text in settings.likelihood_tests or ():
            coordinates_of(text, model)
    for name in settings.profile or ():
        if name not in model.names:
            raise InputError(f"profile: there is no coefficient {quote(name)}{alternatives(name, model.names)}")
    if settings.firth and (model.family_name not in ("binomial", "poisson") or model.keeps_intercepts):
        raise InputError("firth is for the families binomial and poisson with one intercept: for others set l2, and "
                         "leave site out or write the column of the region in the formula")


def newton_of(model: RegressionModel, settings: RegressionSettings) -> FederatedNewton:
    """The algorithm that fits a regression."""
    return FederatedNewton(jnp.asarray(settings.l1 * model.is_penalised) if settings.l1 else None,
                           firth=sum(model.site_rows) if settings.firth else None)


def sums_of(model: RegressionModel, settings: RegressionSettings, *, with_local_fits: bool) -> SumsOfFit:
    """The algorithm of the sums from which a regression is reported."""
    # The errors of a site's own fit are robust if its weights are those of a sample.
    needs_scores = settings.errors not in ("model", "clustered") or (with_local_fits and model.weights == "sampling")
    return SumsOfFit(with_local_fits, LEVERAGE_POWERS.get(settings.errors, 0.0), sum(model.site_rows), needs_scores)


def regression_of(model: RegressionModel, settings: RegressionSettings, search: NewtonState, means: FitSums,
                  **further: Any) -> Regression:
    """The fit as statisticians read it.

    Args:
        model: what was fitted.
        search: the last state of Newton's method.
        further: further attributes of ``Fit``.
    """
    sums = jax.tree.map(lambda leaf: np.asarray(leaf) * sum(model.site_rows), means)
    return Regression(model, np.asarray(search.point), sums, int(search.evaluations), bool(search.has_converged),
                      (settings.l1, settings.l2), settings.errors, settings.level,
                      tests=tuple(settings.tests or ()), likelihood_tests=tuple(settings.likelihood_tests or ()),
                      profile=tuple(settings.profile or ()), firth=settings.firth, **further)


def pooled_fits(fits: Sequence[Regression]) -> Regression:
    """The fits of completed tables as one, by Rubin's rules; its sums are the means of theirs."""
    first, count = fits[0], len(fits)
    known = np.all([fit.identification.is_identified for fit in fits], axis=0)
    sentences = dict.fromkeys(sentence for fit in fits for sentence in fit.identification.sentences)
    rank = min(fit.identification.rank for fit in fits)
    estimates = np.where(known, [fit.estimates for fit in fits], np.nan)
    freedom: float | None = first.degrees_of_freedom_of_tests
    if freedom is None:
        freedom = (first.model.counts[1] if first.family == "cox" else first.count) - rank - first.model.kept
    return replace(
        first, estimates=estimates.mean(axis=0), rounds=sum(fit.rounds for fit in fits),
        sums=jax.tree.map(lambda *leaves: np.mean(leaves, axis=0), *(fit.sums for fit in fits)),
        has_converged=all(fit.has_converged for fit in fits),
        imputed=Imputations(count, np.mean([fit.covariance for fit in fits], axis=0),
                            np.cov(estimates.T, ddof=1).reshape(len(known), len(known)), max(freedom, 1),
                            first.model.imputed,
                            replace(first.identification, is_identified=known, sentences=(*sentences,), rank=rank)))
