"""A fitted regression as statisticians read it."""

from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from resolvent.comparisons.regression.fit import Fit
from resolvent.comparisons.regression.heterogeneity import Heterogeneity, heterogeneity
from resolvent.comparisons.regression.wording import summary
from resolvent.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from resolvent.comparisons.regression.hazards import Clock
    from resolvent.comparisons.regression.hypotheses import HypothesisTest
    from resolvent.comparisons.regression.predictions import Predictor, Scale


# Its methods import what they compute with: few fits are asked for all of it.
class Regression(Fit):
    """A regression that was fitted over all sites by sums; its numbers are those of ``Fit``.

    Example:
        >>> fit = rv.regress(frame, "ill ~ age + C(ward)", party="hospital")  # doctest: +SKIP
        >>> fit.table.loc["age", "odds ratio"]  # doctest: +SKIP
        1.04
    """

    def heterogeneity(self) -> Heterogeneity:
        """Whether, where and by how much the coefficients differ between sites."""
        return heterogeneity(self)

    @cached_property
    def differences(self) -> Heterogeneity | None:
        """``heterogeneity``; None where it is not defined: one site, a penalty, or sites that keep their own fits."""
        can_differ = len(self.model.sites) > 1 and not any(self.penalties) and not self.firth and (
            self.rows is not None or self.site_fits is not None)
        return self.heterogeneity() if can_differ else None

    @property
    def predictor(self) -> "Predictor":
        """What predictions need, without the rows."""
        from resolvent.comparisons.regression.predictions import Predictor

        estimates = np.where(self.identification.is_identified, self.estimates, np.nan)
        if self.imputed is not None:
            return Predictor(self.model, estimates, self.covariance, self.imputed.freedom, self.level,
                             self.imputed.within, self.imputed.count)
        return Predictor(self.model, estimates, self.covariance, self.degrees_of_freedom_of_tests, self.level)

    def predict(self, rows: "pd.DataFrame", *, scale: "Scale" = "response") -> "pd.DataFrame":
        """Predict new rows: the mean of each with its standard error and interval.

        The linear predictor of a row is x'beta + offset, with the variance x' Cov(beta) x. On the scale of the response
        the standard error is by the delta method. The interval of the linear predictor is transformed, so that its ends
        are possible values; with several classes it is symmetric in the logit of a probability. For Cox the response is
        the hazard ratio to a row whose columns are zero, at the same site.

        Args:
            rows: a table with the columns of the formula's right side, of the offset and of the exposure.
            scale: ``response`` for means, probabilities (for two classes, of the second) and hazard ratios, or ``link``
                for linear predictors.

        Returns:
            The columns ``prediction``, ``standard error``, ``low`` and ``high``, with several classes followed by the
            name of the class; empty for rows with missing values.

        Raises:
            InputError: a column is missing or has another type, a level is new, or a coefficient has no estimate.

        Example:
            >>> fit.predict(pd.DataFrame({"age": [50, 60], "ward": ["A", "B"]}))  # doctest: +SKIP
        """
        return self.predictor.predict(rows, scale)

    def effects(self, column: str, rows: "pd.DataFrame") -> "pd.DataFrame":
        """Marginal effects of a column on the mean, at given values of all columns, with intervals by the delta method.

        Of a number it is the derivative of the mean, with all terms in which the column occurs, of a category the
        difference of each level from the base level. It follows from the estimates: no site sends anything. With the
        columns x and their derivatives x' (or their difference), the gradient by beta is
        mean''(eta) (x'beta) x + mean'(eta) x'.

        Args:
            column: a column of the formula.
            rows: as of ``predict``.

        Returns:
            A row for each row: ``effect``, ``standard error``, ``low`` and ``high``; of a category for each level.

        Raises:
            InputError: as of ``predict``; or there is no such column, several linear predictors, or no intercept.

        Example:
            >>> fit.effects("age", pd.DataFrame({"age": [50, 60], "ward": ["A", "B"]}))  # doctest: +SKIP
        """
        return self.predictor.effects(column, rows)

    def test(self, *hypotheses: str) -> "HypothesisTest":
        r"""Wald's test of hypotheses R beta = r, all together: of a factor, of several terms, or of a contrast.

        .. math:: W = (R\hat\beta - r)' (R \hat V R')^{-1} (R\hat\beta - r)

        V is the covariance of the estimates, of the kind ``errors``: nothing is fitted again, and no site sends
        anything. Where the table has z statistics, W is chi-squared with q degrees of freedom; where they are t with m
        degrees of freedom, W / q is F with q and m. Several hypotheses about a fit of imputations are tested as in Li,
        Raghunathan and Rubin, 1991.

        Args:
            hypotheses: each is a term of the formula, such as ``C(ward)`` (all its coefficients are zero), or an
                equation such as ``ward[T.B] = ward[T.C]``, or ``age - 2*dose`` (is zero); commas separate several.

        Raises:
            InputError: a name is not known, a coefficient has no estimate, or the hypotheses depend on each other.

        Example:
            >>> fit.test("C(ward)", "age:sex").p  # doctest: +SKIP
        """
        from resolvent.comparisons.regression.hypotheses import wald_test

        return wald_test(self, hypotheses)

    def likelihood_test(self, *hypotheses: str) -> "HypothesisTest":
        """The likelihood-ratio test of hypotheses, all together; families with a dispersion have the F test.

        It takes a fit under the hypotheses, by further rounds, where all rows are in one table.

        Args:
            hypotheses: as of ``test``.

        Raises:
            InputError: the rows are at the sites, or the fit has no likelihood.

        Example:
            >>> fit.likelihood_test("C(ward)").p  # doctest: +SKIP
        """
        from resolvent.comparisons.regression.likelihoods import check, ratio_test, search

        text = ", ".join(hypotheses)
        if self.likelihoods is not None and text in self.likelihood_tests:
            return ratio_test(self, text, float(self.likelihoods.rises[self.likelihood_tests.index(text)]))
        check(self)
        return ratio_test(self, text, float(search(self, (text,), ()).rises[0]))

    @property
    @override
    def tested(self) -> "Mapping[str, HypothesisTest | str]":
        tests: dict[str, HypothesisTest | str] = {}
        for texts, test in ((self.tests, self.test), (self.likelihood_tests, self.likelihood_test)):
            for text in texts:
                try:
                    found: HypothesisTest | str = test(text)
                except InputError as error:
                    found = str(error)
                tests[text if text not in tests else f"{text} (likelihood)"] = found
        return tests

    def baseline(self) -> "pd.DataFrame":
        r"""Of a Cox model, the baseline hazard of each site and stratum, where all rows are in one table.

        With ``baseline_times`` it is one of all sites, at the ends of the intervals, and needs no rows.

        The baseline is the hazard of a row whose columns and offset are zero. Breslow's estimate is

        .. math:: H(t) = \sum_{t_i \le t} \frac{w_i}{\sum_{j \in R_i} w_j e^{x_j'\beta}}, \qquad S(t) = e^{-H(t)}

        Returns:
            A row for each time of an event: ``site``, ``stratum``, ``time``, ``hazard`` (H) and ``survival``, exp(-H).

        Raises:
            InputError: it is no Cox model, or the rows are at the sites, whose times of events would be told.
        """
        from resolvent.comparisons.regression.hazards import baseline

        return baseline(self)

    def survival(self, rows: "pd.DataFrame") -> "pd.DataFrame":
        """Of a Cox model, the survival of new rows: exp(-H(t) exp(x'beta)) with each ``baseline``.

        Args:
            rows: as of ``predict``.

        Returns:
            A row for each new row, site, stratum and time of an event: ``row``, ``site``, ``stratum``, ``time`` and
            ``survival``.

        Example:
            >>> fit.survival(pd.DataFrame({"age": [50, 60]}))  # doctest: +SKIP
        """
        from resolvent.comparisons.regression.hazards import survival_curves

        return survival_curves(self, self.predictor, rows)

    def proportional_hazards(self, clock: "Clock" = "km") -> "pd.DataFrame":
        r"""Of a Cox model, the test whether coefficients change with the time, of each and of all together.

        With Schoenfeld's residuals r_i of the d events, the covariance V, and g_i the time of event i on a clock,
        centred,

        .. math:: T = d \frac{(V \sum g_i r_i)' V^{-1} (V \sum g_i r_i)}{\sum g_i^2}, \qquad
                  T_j = d \frac{(V \sum g_i r_i)_j^2}{V_{jj} \sum g_i^2}

        are chi-squared with P and 1 degrees of freedom if the hazards are proportional: the test of lifelines, and of
        ``cox.zph`` in R's survival before version 3.

        Source: Grambsch, Therneau, *Proportional hazards tests and diagnostics based on weighted residuals*, 1994.

        Args:
            clock: ``km`` (1 - S(t) of all rows just before t, R's default), ``rank`` of the times of events,
                ``identity`` or ``log``.

        Returns:
            A row for each coefficient, and for all together: ``statistic``, ``degrees of freedom`` and ``p``.
        """
        from resolvent.comparisons.regression.hazards import proportional_hazards

        return proportional_hazards(self, clock)

    @override
    def facts(self) -> Mapping[str, Any]:
        tests = [{"hypothesis": text, "problem": test} if isinstance(test, str) else
                 {name: None if value != value else value for name, value in asdict(test).items()}
                 for text, test in self.tested.items()]
        return {**super().facts(), **({"tests": tests} if tests else {})}

    def summary(self) -> str:
        """The fit as text."""
        return summary(self)

    def plot(self) -> "Figure":
        """The estimates with their intervals, as ratios where the family has them."""
        from resolvent.comparisons.regression.figures import estimates_figure

        return estimates_figure(self)

    def save(self, folder: Path | str, *, overwrite: bool = False) -> Path:
        """Write ``report.html``, ``estimates.csv``, ``covariance.csv`` and ``regression.json`` into a folder.

        ``resolvent model predict`` predicts rows from ``predictor.json`` there.

        Returns:
            The path of the report.

        Raises:
            InputError: the folder has files and ``overwrite`` is not set.
        """
        from resolvent.comparisons.regression.page import write_regression

        return write_regression(self, self.predictor, self.differences, Path(folder), overwrite=overwrite)

    @override
    def __repr__(self) -> str:
        return self.summary()
