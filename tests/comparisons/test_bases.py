"""Splines with stated knots and polynomials that are orthogonal by agreed moments: against patsy, statsmodels and R."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf

import resolvent as rv
from resolvent.comparisons.regression.bases import moments_of, pooled_moments
from resolvent.comparisons.regression.formula import design_of, parse_formula

SPLINES = {"bs": ("bs(age, knots=(40, 60), lower_bound=0, upper_bound=120)",) * 2,
           "linear bs": ("bs(age, knots=(40, 60), lower_bound=0, upper_bound=120, degree=1)",) * 2,
           "cr": ("cr(age, knots=(40, 60), lower_bound=20, upper_bound=80)",
                  "cr(age, knots=(40, 60), lower_bound=20, upper_bound=80, constraints=np.eye(1, 4))")}


@pytest.fixture(scope="module")
def patients():
    rng = np.random.default_rng(1)
    n = 400
    frame = pd.DataFrame({"age": rng.normal(50, 10, n), "sex": rng.choice(["f", "m"], n),
                          "site": rng.choice(["Bonn", "Essen", "Ulm"], n)})
    eta = np.sin(frame["age"] / 8) - 0.4 * (frame["sex"] == "m")
    frame["y"] = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(int)
    frame["score"] = eta + rng.normal(size=n)
    return frame


def of_length_one(x, degree):
    """The columns of R's ``poly``: those of QR with positive leading coefficients, without the constant."""
    q, r = np.linalg.qr((x - x.mean())[:, None]**np.arange(degree + 1))
    return (q * np.sign(np.diag(r)))[:, 1:]


@pytest.mark.parametrize("name", SPLINES)
def test_splines_are_those_of_patsy(patients, name):
    ours, theirs = SPLINES[name]
    fit = rv.regress(patients, f"y ~ {ours} + sex", party="site")
    reference = smf.glm(f"y ~ {theirs} + sex", patients, family=sm.families.Binomial()).fit(tol=1e-14)
    order = np.argsort(["sex" in column for column in fit.names], kind="stable")
    expected = np.argsort(["sex" in column for column in reference.params.index], kind="stable")
    np.testing.assert_allclose(fit.estimates[order], reference.params.to_numpy()[expected], atol=1e-8)
    np.testing.assert_allclose(fit.table["standard error"].to_numpy()[order], reference.bse.to_numpy()[expected],
                               rtol=1e-6)
    new = pd.DataFrame({"age": [35.0, 40.0, 71.5], "sex": ["f", "m", "f"]})
    np.testing.assert_allclose(fit.predict(new)["prediction"], reference.predict(new), atol=1e-8)
    names = [column for column in fit.names if column.startswith(f"{name[-2:]}(age)[")]
    joint = reference.wald_test(np.eye(len(fit.names))[[list(reference.params.index).index(column) for column in
                                                        reference.params.index if "age" in column]], scalar=True)
    test = fit.test(f"{name[-2:]}(age)")
    assert test.freedom == len(names) == parse_formula(f"y ~ {ours}").count_columns({}) - 1
    assert test.statistic == pytest.approx(float(joint.statistic), rel=1e-6)


def test_a_coefficient_of_a_natural_spline_is_the_rise_of_the_curve_to_its_knot():
    formula = parse_formula("y ~ cr(x, knots=[2, 5], lower_bound=0, upper_bound=9)")
    x = design_of(formula, pd.DataFrame({"x": [0.0, 2.0, 5.0, 9.0]})).x
    np.testing.assert_allclose(x[:, 1:], np.eye(4)[:, 1:], atol=1e-14)
    beyond = design_of(formula, pd.DataFrame({"x": [9.0, 10.0, 11.0, 0.0, -1.0, -2.0]})).x  # lines
    np.testing.assert_allclose(np.diff(beyond[:3], axis=0)[0], np.diff(beyond[:3], axis=0)[1], atol=1e-12)
    np.testing.assert_allclose(np.diff(beyond[3:], axis=0)[0], np.diff(beyond[3:], axis=0)[1], atol=1e-12)


def test_polynomials_have_the_printed_digits_of_r():
    """``poly(1:10, 2)``, from the moments of two sites that overlap nowhere."""
    x = np.arange(1.0, 11)
    moments = pooled_moments("x", [(3, moments_of(x[:3], 2)), (7, moments_of(x[3:], 2))], 2)
    design = design_of(parse_formula("y ~ poly(x, 2)"), pd.DataFrame({"x": x}), {"x": moments}).x[:, 1:]
    printed = [[-0.49543369, 0.52223297], [-0.38533732, 0.17407766], [-0.27524094, -0.08703883],
               [-0.16514456, -0.26111648], [-0.05504819, -0.34815531]]
    np.testing.assert_allclose(design[:5], printed, atol=5e-9)


@pytest.mark.parametrize("law", [lambda rng: rng.normal(2000, 5, 90), lambda rng: np.exp(rng.normal(size=90)),
                                 lambda rng: rng.integers(0, 4, 90).astype(float)])
def test_polynomials_of_moments_are_those_of_the_pooled_rows(law):
    x = np.sort(law(np.random.default_rng(2)))
    parts = np.split(x, [10, 40])  # sites with other means; one of them with a single value
    moments = pooled_moments("x", [(len(part), moments_of(part, 3)) for part in parts], 3)
    design = design_of(parse_formula("y ~ poly(x, 3)"), pd.DataFrame({"x": x}), {"x": moments}).x[:, 1:]
    np.testing.assert_allclose(design, of_length_one(x, 3), atol=1e-8)


@pytest.mark.when_changed
def test_a_regression_of_polynomials_is_that_of_the_pooled_rows(patients):
    frame = patients.assign(age=patients["age"] + 20 * (patients["site"] == "Ulm"))
    fit = rv.regress(frame, "score ~ poly(age, 3) + sex", party="site", family="gaussian")
    columns = [*of_length_one(frame["age"].to_numpy(), 3).T, (frame["sex"] == "m").astype(float)]
    reference = sm.OLS(frame["score"], np.stack([np.ones(len(frame)), *columns], axis=1)).fit()
    estimates = fit.table["estimate"][["Intercept", *(f"poly(age)[{k}]" for k in (1, 2, 3)), "sex[T.m]"]]
    np.testing.assert_allclose(estimates, reference.params, rtol=0, atol=1e-8)
    shown = fit.predict(frame.head(3))["prediction"]  # new rows have the polynomials of the rows of the fit
    np.testing.assert_allclose(shown, reference.fittedvalues[:3], atol=1e-8)


@pytest.mark.parametrize(("formula", "words"), [
    ("score ~ bs(age, knots=[50], lower_bound=40, upper_bound=60)", "beyond lower_bound or upper_bound"),
    ("score ~ poly(y, 2)", "'y' has too few different values for a polynomial of degree 2")])
def test_columns_that_a_basis_cannot_take_are_named(patients, formula, words):
    with pytest.raises(rv.InputError, match=words):
        rv.regress(patients, formula, party="site", family="gaussian")


def test_moments_of_another_degree_are_refused():
    with pytest.raises(rv.InputError, match="other moments of 'x'"):
        pooled_moments("x", [(5, (0.0, 1.0)), (5, (0.0, 1.0, 0.0, 3.0))], 2)
