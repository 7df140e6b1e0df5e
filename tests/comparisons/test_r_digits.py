"""Regressions and survival beside the digits of R, which ``r_digits.R`` has computed on the same table.

The table is that of the page on coming from R, with centres whose labels differ. If it changes, write it with
``table().to_csv("TABLE.csv", index=False)`` and run the command in ``r_digits.R``.
"""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import nightly
import resolvent as rv
from resolvent.comparisons.regression.imputation import pooled_freedom

PAGE = Path(__file__).parents[2] / "docs" / "coming-from.md"


def table():
    """The visits of the page, and twelve centres with a relapse and a score."""
    block = next(code for code in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
                 if "visits = pd.DataFrame" in code)
    names = {}
    exec(block.partition("\nfit = ")[0], names)
    frame, rng = names["visits"], np.random.default_rng(1)
    centre = np.arange(len(frame)) % 12
    effect = rng.normal(0, 0.8, 12)[centre]
    frame["centre"] = [f"c{k:02d}" for k in centre]
    frame["relapse"] = (rng.random(len(frame)) < 1 / (1 + np.exp(-(0.03 * (frame["age"] - 50) + effect)))).astype(int)
    frame["score"] = 0.1 * frame["age"] + 2 * effect + rng.normal(0, 1.5, len(frame))
    return frame


R = json.loads(Path(__file__).with_name("r_digits.json").read_text())
NEW = pd.DataFrame({"age": [50, 60], "ward": ["A", "B"]})
PRECISE = 1e-8
LOOSE = 2e-6  # where R's own iteration ends earlier
NAMES = {"(Intercept)": "Intercept", "wardB": "ward[T.B]", "wardC": "ward[T.C]"}
SPLINES = {"ns": "ill ~ cr(age, knots=[40, 60], lower_bound=10, upper_bound=90)",
           "bs": "ill ~ bs(age, knots=[50], lower_bound=10, upper_bound=90)", "poly": "ill ~ poly(age, 2)"}
FITS = {  # name in R's digits -> formula and settings; in R's script their calls
    "logistic": ("ill ~ age + ward", {}),
    **{kind: ("ill ~ age + ward", {"errors": kind}) for kind in ("HC0", "HC1", "HC2", "HC3", "clustered")},
    "counts": ("ill ~ age", {"frequency_weights": "count"}),
    "survey": ("ill ~ age", {"sampling_weights": "w", "errors": "robust"}),
    "linear": ("cost ~ age + ward", {"family": "gaussian"}),
    "poisson": ("calls ~ age", {"family": "poisson", "exposure": "years"}),
    "quasi_poisson": ("calls ~ age", {"family": "quasi_poisson"}),
    "gamma": ("cost ~ age", {"family": "gamma"}),
    "negative_binomial": ("calls ~ age", {"family": "negative_binomial"}),
    "cox": ("Surv(days, died) ~ age", {}),
    "cox_weighted": ("Surv(days, died) ~ age", {"sampling_weights": "w", "errors": "robust"}),
    "cox_entry": ("Surv(start, days, died) ~ age", {"strata": "ward", "ties": "breslow"}),
}


@pytest.fixture(scope="module")
def visits():
    return table()


def close(ours, theirs, rtol=PRECISE):
    np.testing.assert_allclose(ours, theirs, rtol=rtol)


@nightly.parametrize("name", [*FITS], others=nightly.WHEN_CHANGED)
def test_estimates_and_errors_are_those_of_r(name, visits):
    formula, settings = FITS[name]
    fit, expected = rv.regress(visits, formula, party="hospital", **settings), R[name]
    for column, values in {"estimate": expected["estimate"], "standard error": expected.get("error", {})}.items():
        close([fit.table.loc[NAMES.get(term, term), column] for term in values], [*values.values()],
              LOOSE if name == "gamma" else PRECISE)
    for attribute, key in {"log_likelihood": "loglik", "aic": "aic", "deviance": "deviance"}.items():
        if key in expected:
            close(getattr(fit, attribute), expected[key])
    if name == "negative_binomial":
        close(np.exp(fit.table.loc["log_alpha", "estimate"]), expected["alpha"])


@pytest.mark.when_changed
def test_tests_intervals_and_predictions_are_those_of_r(visits):
    fit = rv.regress(visits, "ill ~ age + ward", party="hospital", profile=["age"])
    close(fit.likelihood_test("ward").statistic, R["likelihood_test"])
    close(fit.table.loc["age", ["low", "high"]].astype(float), [*R["profile"].values()], LOOSE)
    predicted = fit.predict(NEW, scale="link")
    close(predicted["prediction"], R["predict"]["link"])
    close(predicted["standard error"], R["predict"]["error"])


@pytest.mark.when_changed
@pytest.mark.parametrize("name", [*SPLINES])
def test_splines_and_polynomials_span_what_those_of_r_do(name, visits):
    fit = rv.regress(visits, SPLINES[name], party="hospital")
    close(fit.deviance, R[name]["deviance"])
    predicted = fit.predict(NEW, scale="link")
    close(predicted["prediction"], R[name]["link"])
    close(predicted["standard error"], R[name]["error"], 1e-7)  # R has the weights of the step before its last


@pytest.mark.when_changed
def test_classes_are_those_of_r(visits):
    """The optimisers of multinom and polr end before the last digits: the likelihood has them."""
    fit = rv.regress(visits, "grade ~ age", party="hospital", family="multinomial")
    close(fit.log_likelihood, R["multinomial"]["loglik"])
    close(fit.table["estimate"], np.ravel(R["multinomial"]["estimate"]), LOOSE)
    close(fit.table["standard error"], np.ravel(R["multinomial"]["error"]), LOOSE)
    fit = rv.regress(visits, "grade ~ age", party="hospital", family="ordinal")
    close(fit.log_likelihood, R["ordinal"]["loglik"])
    close(fit.table["estimate"], [R["ordinal"]["slope"], *R["ordinal"]["thresholds"]], LOOSE)


@pytest.mark.when_changed
def test_curves_and_their_tests_are_those_of_r(visits):
    fit = rv.regress(visits, "Surv(days, died) ~ age", party="hospital")
    curve = fit.survival(pd.DataFrame({"age": [50]}))
    of_bonn = curve[curve["site"] == "Bonn"].set_index("time")["survival"]
    close([of_bonn[of_bonn.index <= time].iloc[-1] for time in (100, 300)], R["cox_survival"])
    found = rv.survival(visits, time="days", event="died", by="ward", party="hospital")
    close(found.log_rank(stratified=True).statistic, R["log_rank"])


@pytest.mark.when_changed
@pytest.mark.parametrize(("name", "formula", "family"), [("random_logistic", "relapse ~ age", "binomial"),
                                                         ("random_linear", "score ~ age", "gaussian")])
def test_random_intercepts_are_those_of_lme4(name, formula, family, visits):
    """Laplace's approximation, exact for normal labels; lme4 ends before the last digits of its parameters."""
    random, expected = rv.regress(visits, formula, party="centre", family=family, site="random").random, R[name]
    close(random.log_likelihood, expected["loglik"])
    close(random.tau, expected["tau"], 1e-6)
    estimates = [random.table.loc[NAMES.get(term, term), "estimate"] for term in expected["estimate"]]
    close(estimates, [*expected["estimate"].values()], 1e-5)


def test_pooled_fits_are_those_of_mice():
    """Rubin's rules and the degrees of freedom of Barnard and Rubin, by pool.scalar."""
    estimates, variances, rubin = np.array([1.0, 1.3, 0.8, 1.1]), np.array([0.20, 0.25, 0.22, 0.18]), R["rubin"]
    within, between = variances.mean(), estimates.var(ddof=1)
    total = within + (1 + 1 / 4) * between
    close([estimates.mean(), within, between, total], [rubin[key] for key in ("qbar", "ubar", "b", "t")])
    close(pooled_freedom(np.array(total), np.array(within), 4, 120 - 3), rubin["df"])
