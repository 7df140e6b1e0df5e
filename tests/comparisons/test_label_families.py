"""Ordered classes, counts with more zeros, and quasi-Poisson: against statsmodels on the pooled rows."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from statsmodels.discrete.count_model import ZeroInflatedPoisson
from statsmodels.miscmodels.ordinal_model import OrderedModel
from statsmodels.tools.numdiff import approx_fprime

import resolvent as rv
from resolvent.errors import InputError

LEVELS = ["low", "middle", "high"]


@pytest.fixture(scope="module")
def patients():
    rng = np.random.default_rng(5)
    n = 300
    frame = pd.DataFrame({"age": rng.normal(50, 10, n).round(), "dose": rng.normal(size=n).round(2),
                          "site": rng.choice(["Bonn", "Essen", "Ulm"], n)})
    eta = 0.04 * (frame["age"] - 50) + 0.5 * frame["dose"]
    frame["grade"] = np.array(LEVELS)[np.digitize(eta + rng.logistic(size=n), [-0.7, 0.9])]
    frame["visits"] = rng.poisson(np.exp(0.5 + eta)) * (rng.random(n) < 0.7)
    return frame


def test_ordered_classes_have_the_proportional_odds_of_statsmodels(patients):
    fit = rv.regress(patients, "grade ~ age + dose", party="site", family="ordinal", order=LEVELS)
    label = pd.Series(pd.Categorical(patients["grade"], categories=LEVELS, ordered=True))
    model = OrderedModel(label, patients[["age", "dose"]], distr="logit")
    expected = model.fit(method="newton", disp=0, tol=1e-12, maxiter=100)
    thresholds = model.transform_threshold_params(np.asarray(expected.params))[1:-1]
    np.testing.assert_allclose(fit.estimates, [*expected.params[:2], *thresholds], atol=1e-8)
    np.testing.assert_allclose(fit.table["standard error"][:2], expected.bse[:2], rtol=1e-6)
    assert fit.log_likelihood == pytest.approx(expected.llf, rel=1e-12)
    assert fit.names == ("age", "dose", "threshold 1", "threshold 2")
    new = patients[["age", "dose"]][:5]
    found = fit.predict(new)
    np.testing.assert_allclose(found[[f"prediction {level}" for level in LEVELS]], expected.predict(new), rtol=1e-7)
    assert (found["low high"] < found["prediction high"]).all()
    # The delta method, by differences: of the probability of the highest class.
    def highest(w):
        return 1 / (1 + np.exp(w[3] - new.to_numpy() @ w[:2]))

    steps = 1e-6 * np.eye(4)
    slopes = np.stack([(highest(fit.estimates + h) - highest(fit.estimates - h)) / 2e-6 for h in steps], axis=1)
    errors = np.sqrt(np.einsum("ni,ij,nj->n", slopes, fit.covariance, slopes))
    np.testing.assert_allclose(found["standard error high"], errors, rtol=1e-6)
    assert "the order 'low', 'middle', 'high'" in fit.summary()


@pytest.mark.when_changed
def test_numbers_as_ordered_classes_need_no_order(patients):
    frame = patients.assign(code=patients["grade"].map({"low": 2, "middle": 9, "high": 10}))
    fits = [rv.regress(frame, f"{label} ~ age + dose", party="site", family="ordinal", order=order)
            for label, order in (("grade", LEVELS), ("code", None))]
    np.testing.assert_allclose(fits[1].estimates, fits[0].estimates, atol=1e-10)
    np.testing.assert_allclose(fits[1].with_errors("robust").table["standard error"],
                               fits[0].with_errors("robust").table["standard error"], rtol=1e-8)


def test_counts_with_more_zeros_are_those_of_statsmodels(patients):
    fit = rv.regress(patients, "visits ~ age + dose", party="site", family="zero_inflated_poisson")
    model = ZeroInflatedPoisson(patients["visits"], sm.add_constant(patients[["age", "dose"]]))
    start = np.append(fit.estimates[-1], fit.estimates[:-1]) + 0.05
    expected = model.fit(start_params=start, method="newton", disp=0, tol=1e-12, maxiter=100)
    np.testing.assert_allclose(fit.estimates, [*expected.params[1:], expected.params.iloc[0]], atol=1e-8)
    # The Hessian of statsmodels has no mixed derivatives of the share of zeros, so we take those of its score.
    hessian = approx_fprime(np.asarray(expected.params), model.score, centered=True)
    errors = np.sqrt(np.diag(np.linalg.inv(-hessian)))
    np.testing.assert_allclose(fit.table["standard error"], [*errors[1:], errors[0]], rtol=1e-6)
    assert fit.log_likelihood == pytest.approx(expected.llf, rel=1e-12)
    new = patients[["age", "dose"]][:5]
    np.testing.assert_allclose(fit.predict(new)["prediction"], expected.predict(
        sm.add_constant(new), exog_infl=np.ones((5, 1))), rtol=1e-7)


def test_quasi_poisson_has_the_estimates_of_poisson_and_its_own_dispersion(patients):
    fit = rv.regress(patients, "visits ~ age + dose", party="site", family="quasi_poisson")
    expected = sm.GLM(patients["visits"], sm.add_constant(patients[["age", "dose"]]), family=sm.families.Poisson()).fit(
        scale="X2", tol=1e-14)
    np.testing.assert_allclose(fit.estimates, expected.params, atol=1e-8)
    np.testing.assert_allclose(fit.table["standard error"], expected.bse, rtol=1e-8)
    assert fit.dispersion == pytest.approx(expected.scale, rel=1e-8)
    assert "t" in fit.table
    assert "log_likelihood" not in fit.facts()
    assert "No likelihood" in fit.summary()


@pytest.mark.parametrize(("settings", "words"), [
    ({}, "the classes of 'grade' are 'high', 'low', 'middle', whose order is not certain: set order"),
    ({"order": ["low", "high"]}, "order has 'low', 'high', and 'grade' has the classes"),
    ({"order": LEVELS, "reference": {"grade": "low"}}, "an ordinal label has no base level, but an order"),
    ({"order": LEVELS, "site": "fixed"}, "the thresholds of an ordinal label are common to all sites"),
    ({"order": LEVELS, "family": "multinomial"}, "the family is multinomial: set family=ordinal")])
def test_what_an_ordinal_label_needs_is_said(patients, settings, words):
    with pytest.raises(InputError, match=words):
        rv.regress(patients, "grade ~ age", party="site", **({"family": "ordinal"} | settings))
