"""``regress``: fit a regression over sites by sums."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from resolvent.arguments import checked
from resolvent.comparisons.regression.imputation import Imputations
from resolvent.comparisons.regression.model import RegressionModel
from resolvent.comparisons.regression.regression import Regression
from resolvent.comparisons.regression.rows import RegressionRows, read_tables
from resolvent.comparisons.regression.settings import LEVERAGE_POWERS, Errors, FamilyName, RegressionSettings, Site
from resolvent.comparisons.regression.sums import check_errors, mean_fit_sums
from resolvent.errors import InputError, alternatives, quote
from resolvent.math.newton import NewtonState
from resolvent.regression.cox import Ties
from resolvent.regression.newton import FederatedNewton
from resolvent.regression.objective import FitSums
from resolvent.regression.regression_fits import SumsOfFit
from resolvent.simulator.record.events import EvaluationEvent
from resolvent.simulator.run import simulate
from resolvent.tables.cells import text_of_value
from resolvent.tables.table_options import cell_rules
from resolvent.tables.text_formats import TextFormat


@checked
def regress(data: Any, formula: str, *, party: str, family: FamilyName = "auto", errors: Errors = "model",
            level: float = 0.95, l1: float = 0.0, l2: float = 0.0, offset: str | None = None,
            exposure: str | None = None, frequency_weights: str | None = None, sampling_weights: str | None = None,
            cluster: str | None = None, strata: str | None = None, ties: Ties = "efron",
            baseline_times: Sequence[float] = (), reference: Mapping[str, Any] | None = None,
            order: Sequence[Any] | None = None, site: Site | None = None, tests: Sequence[str] = (),
            likelihood_tests: Sequence[str] = (), profile: Sequence[str] = (), firth: bool = False,
            imputations: int | None = None, seed: int = 0,
            missing: list[Any] | Mapping[str, list[Any]] | None = None, text: Sequence[str] = (),
            text_format: TextFormat = TextFormat()) -> Regression:  # noqa: B008 - it is frozen
    """Fit a regression over sites, exactly as from the pooled rows, by sums that the sites send.

    Every round the sites send the value, the gradient and the Hessian of their log-likelihood, and the server makes a
    step of Newton's method; 4 to 8 rounds are usual. No row leaves a site. Cox regressions are stratified by site: each
    site has a baseline hazard of its own, and no event time leaves it.

    Args:
        data: a table with a row for each subject (a frame of pandas, or the path of a CSV or Parquet file). Rows with a
            missing value in a column that is used are left out, or completed by ``imputations``.
        formula: ``label ~ columns``, such as ``ill ~ age + C(ward) + age:sex`` or ``Surv(days, died) ~ age``, with
            ``Surv(start, stop, died)`` for rows that are at risk after start, until stop (left truncation, columns that
            change with time). Text columns are categories; ``C(column)`` makes a number one; ``a:b`` is a product,
            ``a*b`` is ``a + b + a:b``.
        party: the column that names the site.
        family: distribution of the label: ``gaussian`` (identity), ``binomial`` (logit), ``multinomial`` (logit against
            the first class), ``ordinal`` (proportional odds), ``poisson``, ``quasi_poisson``,
            ``zero_inflated_poisson``, ``negative_binomial`` and ``gamma`` (logarithm), or ``cox``. Default: from the
            label, where it is certain.
        errors: standard errors from the ``model``, ``robust`` to a wrong variance (HC1; also ``HC0``, and with
            leverages ``HC2`` and ``HC3``), or ``clustered`` by site, or by ``cluster``.
        level: level of the intervals.
        l1: weight of the absolute values of the coefficients (lasso), next to the mean loss of a row.
        l2: weight of half their squares (ridge). The intercept has no penalty. Columns are penalised in their units.
        offset: a column that is added to the linear predictor.
        exposure: a column whose logarithm is added, such as person-years.
        frequency_weights: a column that says for how many equal rows a row stands: the fit is the same as with a table
            in which each row is repeated.
        sampling_weights: a column with the inverse of the probability that a row was sampled, treated, or observed:
            estimates solve the weighted score equations, with ``errors="robust"`` (of Binder, 1983, as R's ``survey``
            has them for a sample with replacement; t statistics with n - P) or ``clustered``. There is no likelihood.
        cluster: a column whose values are clusters within each site, such as patients with several rows, for
            ``errors="clustered"``; default: a site is a cluster. The same value at two sites is two clusters.
        strata: of a Cox model, a column for whose values each site has baseline hazards of their own.
        ties: of a Cox model with equal times of events: ``efron`` or ``breslow``.
        baseline_times: of a Cox model, the ends of intervals of time in which all sites have the same baseline hazard,
            such as ``[90, 180, 365]``; the last interval has no end. It is the Cox model of times that are coarsened to
            the intervals, with ties by Breslow. Default: each site has a baseline of its own.
        reference: the base level of categories, and of the label: ``{"ward": "A"}``.
        order: with ``family="ordinal"``, the classes of the label from the lowest; default: they are numbers.
        site: ``fixed`` fits an intercept of its own for each site, which stays there; ``random`` adds a fit with a
            normal intercept for each site, whose deviation is estimated: ``fit.random``. Default: one for all.
        tests: hypotheses to test beside the table, such as ``["C(ward)", "age = 0.05"]``; see ``Regression.test``.
        likelihood_tests: the same by the ratio of likelihoods; see ``Regression.likelihood_test``.
        profile: coefficients whose interval is that of the profile likelihood, such as ``["age"]``.
        firth: use Firth's penalty, with which estimates are finite where columns divide the rows perfectly, and nearly
            unbiased with few events; of families ``binomial`` and ``poisson``.
        imputations: number of completed tables, such as 20: missing values of the formula's columns are drawn at each
            site by chained equations of its own rows, and the fits of the tables are pooled by Rubin's rules.
        seed: of the draws of ``imputations``.
        missing: cells that stand for a missing value, such as ``['?', -999]``, beside empty ones and words such as NA;
            or column -> such a list. Predictions leave the same cells out.
        text: columns that are categories whatever their values look like, such as codes.
        text_format: how a text file is written; default: recognised from the file.

    Raises:
        InputError: the formula, a column or a value is wrong, or there are not more rows than parameters.

    Example:
        >>> fit = rv.regress(frame, "ill ~ age + C(ward)", party="hospital")  # doctest: +SKIP
        >>> print(fit.summary())  # doctest: +SKIP
    """
    settings = RegressionSettings(
        formula=formula, family=family, errors=errors, level=level, l1=l1, l2=l2, offset=offset, exposure=exposure,
        frequency_weights=frequency_weights, sampling_weights=sampling_weights, cluster=cluster, strata=strata,
        ties=ties, baseline_times=tuple(map(float, baseline_times)) or None, site=site,
        reference=None if reference is None else {name: text_of_value(base) for name, base in reference.items()},
        order=None if order is None else tuple(map(text_of_value, order)), tests=tuple(tests) or None,
        likelihood_tests=tuple(likelihood_tests) or None, profile=tuple(profile) or None, firth=firth,
        imputations=imputations, seed=seed)
    cells = cell_rules(missing, text)
    return fit_tables(read_tables(data, settings, party=party, format=text_format, cells=cells), settings)


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
        result = simulate(newton_of(rows.model, settings), problem, rounds=settings.rounds, evaluate_every=2,
                          on_evaluation=_stop_when_converged, progress=False, name="Newton")
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


def _stop_when_converged(event: EvaluationEvent) -> None:
    if bool(event.result().state.server.search.has_converged):
        event.stop("converged")
