"""Regressions of unusual rows and formulas of other programs: the numbers of an independent fit, or a refusal.

Where it does not matter, three sites have 40 rows each and a fit has three coefficients, so that fits of a family are
one program.
"""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from statsmodels.duration.hazard_regression import PHReg

import nightly
import resolvent as rv
from resolvent.comparisons.regression.agreement import agree_on_rows, describe_rows
from resolvent.comparisons.regression.formula import parse_formula
from resolvent.comparisons.regression.regression_file import RegressionFile
from resolvent.comparisons.regression.rows import read_tables
from resolvent.comparisons.regression.settings import RegressionSettings
from resolvent.errors import InputError


@pytest.fixture(scope="module")
def visits():
    rng = np.random.default_rng(5)
    frame = pd.DataFrame({"site": np.repeat([*"ABC"], 40), "age": rng.normal(50, 10, 120),
                          "crp.mg": rng.gamma(2, 2, 120)})
    frame["il.6"] = 0.3 * frame["crp.mg"] + 0.02 * frame["age"] + rng.normal(size=120)
    return frame


@pytest.mark.parametrize(("formula", "found", "advice"), [
    ("y ~ I(age^2)", "'^'", "I(age**2)"), ("y ~ (age + sex)^2", "'^'", "write **"),
    ("y ~ x + (1 | site)", "'|'", "site: random"),
    ("y ~ .", "'.'", "name the columns"), ("y ~ offset(risk) + x", "'offset()'", "--set regression.offset=risk"),
    ("y ~ offset(log(years))", "'offset()'", "exposure: years"), ("y ~ C(ward, Sum)", "'C(ward,'", "{ward: B}"),
    ("y ~ as.numeric(x)", "'as.numeric()'", "the column alone"), ("y ~ factor(ward)", "'factor()'", "write C(ward)"),
    ("y ~ as.factor(ward)", "'as.factor()'", "write C(ward)"),
    ("y ~ relevel(ward, ref='B')", "'relevel()'", "--set regression.reference.ward=B"),
    ("y ~ C(ward, Treatment(reference='B'))", "'Treatment()'", "reference: {ward: B}"),
    ("Surv(t, e) ~ x + strata(site)", "'strata()'", "for each site"),
    ("y ~ x + cluster(site)", "'cluster()'", "errors='clustered'"),
    ("y ~ np.log(x)", "'np.log()'", "the function alone"), ("y ~ Q('crp mg')", "'Q()'", "backticks"),
    ("y ~ age %in% ward", "'%in%'", "the product"), ("coxph(Surv(t, e) ~ x)", "'coxph()'", "the formula inside alone"),
    ("cbind(ill, well) ~ x", "'cbind()'", "a row of the table for each trial"), ("y ~ x > 60", "'>'", "into a column"),
    ("y ~ ifelse(x > 60, 1, 0)", "'ifelse()'", "into a column"), ("y ~ scale(x)", "'scale()'", "the column alone"),
    ("Surv(t, status == 2) ~ x", "'Surv(t, status == 2)'", "reference: {status: alive}"),
    ("y ~ ns(age, 3)", "'ns()'", "cr(age, knots=["), ("y ~ age + age**2", "outside I()", "I(age**2)"),
    ("y ~ log(age)**2", "outside I()", "I(age**2)"), ("y ~ x ~ z", "one right side", "outcome ~")])
def test_what_only_other_programs_write_is_answered_with_what_to_write(formula, found, advice):
    with pytest.raises(rv.InputError) as refused:
        parse_formula(formula)
    assert found in str(refused.value)
    assert advice in str(refused.value)


TERMS = " + ".join(f"x{i}" for i in range(22))


@pytest.mark.parametrize(("right", "found"), [
    ("I(9**9**9)", "'9 ** 9 ** 9' is a power of a number"), ("I(9**9*x)", "'9 ** 9' is a power of a number"),
    ("I(0**(age - 93.4))", "is a power of a number"), ("I(0**abs(age - 93.4))", "contains 'abs'"),
    ("abs(age)", "contains 'abs'"), ("I(x > 3)", "into a column"), ("I(x // 2)", "contains 'FloorDiv'"),
    ("I(x % 2)", "contains 'Mod'"), ("I(True * x)", "contains 'True'"), ("log(x, x)", "contains 'log(x, x)'"),
    ("log(x, out=x)", "contains"), ("I(x**y)", "an exponent that is not a written number"),
    ("I(x**4)", "from -3 to 3"), ("I(x**0)", "from -3 to 3"), ("I((x**2)**0.5)", "a power of a power"),
    ("sqrt((x - 3)**2)", "a root of a power"), ("sqrt((x - 3) * (x - 3))", "a root of a power"),
    ("exp(log(sqrt(x)))", "nested deeper than 2"), ("bs(log(bs(x, df=3)), df=3)", "bs() is of one column"),
    ("bs(x, df=3)", "knots, lower_bound, upper_bound, which are not learnt"), ("I(poly(x, 2))", "contains"),
    ("poly(x, 4)", "a whole number from 1 to 3"), ("poly(x, 2, raw=True)", "write such as poly(age, 2)"),
    ("cr(x, knots=[9**9**9], lower_bound=1, upper_bound=4)", "written numbers"),
    (f"cr(x, knots=[{10**400}], lower_bound=1, upper_bound=4)", "a list of numbers"),
    ("cr(x, knots=[3, 2], lower_bound=1, upper_bound=4)", "must rise"),
    (f"({TERMS})**11", "exponent is not a number from 1 to 3"), (f"({TERMS})**2", "more than 200 terms"),
    (TERMS.replace("+", "*"), "more than 200 terms"), ("(a + b)**c", "exponent"),
    ("I(" + "-" * 3000 + "x)", "cannot be read"), ("(" * 500 + "x" + ")" * 500, "cannot be read"),
    ("x" * 20_000, "20004 characters"), ("~" * 200_000, "200004 characters"), ("~" * 9000 + "x", "one right side"),
    ("x + " + "(" * 4000, "cannot be read"), ("a.a" * 3000 + "(x)", "")], ids=range(37))
def test_a_formula_is_judged_before_anything_is_computed(right, found):
    """What would compute without end, mark single rows or hide a comparison is refused by name, from its text."""
    with pytest.raises(rv.InputError) as refused:
        parse_formula(f"y ~ {right}")
    assert found in str(refused.value)


@pytest.mark.parametrize("left", ["Surv(" + " " * 9000 + "x", "Surv(" + "x " * 4000 + ")", "`" * 9001])
def test_a_long_left_side_is_read_in_one_pass(left):
    """A pattern that matches blanks in several ways would take hours."""
    with pytest.raises(rv.InputError, match="left side of a formula is a column"):
        parse_formula(f"{left} ~ age")
    assert parse_formula("Surv( `the days` ,  died  ) ~ age").response.columns == ["the days", "died"]


def test_numbers_and_columns_of_a_formula_are_counted():
    assert parse_formula(f"y ~ I(x * {10**400})").constants == {float("inf")}
    formula = parse_formula("y ~ log(x + 1) + I((x - 3)**2) + I((x - 3) * z) + exp(-0.5 * z) + C(`ward no`):sex + "
                            "I(x**-2):z")
    assert formula.constants == {1, 3, 0.5}  # 1, 3, 0.5; an exponent is none
    assert formula.count_columns({"ward no": [*"abc"], "sex": [*"fm"]}) == 6 + 6
    spline = parse_formula("y ~ bs(x, knots=[1, 2], lower_bound=0, upper_bound=9):ward + poly(x, 2)")
    assert spline.constants == {0, 1, 2, 9}  # a degree is none
    assert spline.count_columns({"ward": [*"abc"]}) == 1 + 5 * 3 + 2
    frame = pd.DataFrame({"site": np.repeat([*"AB"], 600), "ward": np.tile([f"w{i}" for i in range(60)], 20),
                          "bed": np.repeat([*"abcd"], 300), "y": np.arange(1200.0)})
    with pytest.raises(rv.InputError, match=r"up to 241 columns .*: it may have 200"):
        rv.regress(frame, "y ~ ward:bed", party="site", family="gaussian")


def test_products_of_categories_and_quoted_marks_are_formulas():
    assert parse_formula("y ~ (a + b)**2 + I((a + b)**2) + `a^b|c`").variables == ("a", "b", "a^b|c")
    pasted = parse_formula("y \u223c a \u2212\u00a01\n + b:c")  # from a text program, over two lines
    assert (pasted.variables, str(pasted.right)) == (("a", "b", "c"), "a + b:c")
    assert parse_formula("Surv(t.days, `died ~`) ~ 1.5:crp.mg").response.columns == ["t.days", "died ~"]


@pytest.mark.when_changed
def test_names_with_dots_are_columns_on_both_sides(visits):
    fit = rv.regress(visits, "il.6 ~ log(crp.mg) + age", party="site")
    renamed = visits.rename(columns={"crp.mg": "crp", "il.6": "il"})
    reference = smf.ols("il ~ np.log(crp) + age", renamed).fit()
    np.testing.assert_allclose(fit.estimates, reference.params, rtol=1e-8)
    label = rv.regress(visits, "crp.mg ~ il.6 + age", party="site")
    np.testing.assert_allclose(label.estimates, smf.ols("crp ~ il + age", renamed).fit().params, rtol=1e-8)


def test_clustered_errors_have_t_statistics_with_one_degree_less_than_sites(visits):
    fit = rv.regress(visits, "il.6 ~ age + crp.mg", party="site", errors="clustered")
    groups = visits["site"].astype("category").cat.codes
    reference = smf.ols("il ~ age + crp", visits.rename(columns={"il.6": "il", "crp.mg": "crp"})).fit(
        cov_type="cluster", cov_kwds={"groups": groups}, use_t=True)
    np.testing.assert_allclose(fit.table["p"], reference.pvalues, rtol=1e-8)
    np.testing.assert_allclose(fit.table[["low", "high"]], reference.conf_int(), rtol=1e-8)


@pytest.fixture(scope="module")
def survivors():
    rng = np.random.default_rng(8)
    frame = pd.DataFrame({"site": np.repeat([*"ABC"], 40), "age": rng.normal(60, 9, 120),
                          "treated": rng.integers(0, 2, 120), "risk": rng.normal(0, 0.7, 120)})
    time = np.ceil(rng.exponential(30 * np.exp(0.4 * frame["treated"] - frame["risk"])))
    return frame.assign(days=np.minimum(time, 60), died=(time < 60).astype(int), pressure=np.exp(frame["risk"]),
                        country=frame["site"].map({"A": "FR", "B": "DE", "C": "FR"}),
                        height=frame["site"].map({"A": 17.3, "B": 518.1, "C": 112.7}))


@pytest.mark.when_changed
@pytest.mark.parametrize("settings", [{"offset": "risk"}, {"exposure": "pressure"}])
def test_cox_with_an_offset_has_a_fixed_coefficient_of_one(survivors, settings):
    fit = rv.regress(survivors, "Surv(days, died) ~ age + treated", party="site", **settings)
    model = PHReg(survivors["days"], survivors[["age", "treated"]].astype(float), status=survivors["died"],
                  strata=survivors["site"], ties="efron", offset=survivors["risk"])
    assert np.abs(model.score(fit.estimates)).max() < 1e-8
    np.testing.assert_allclose(np.linalg.inv(-model.hessian(fit.estimates)), fit.covariance, rtol=1e-8)
    np.testing.assert_allclose(fit.log_likelihood, model.loglike(fit.estimates), rtol=1e-10)


@pytest.mark.when_changed
def test_columns_that_are_constant_within_sites_have_no_part_in_a_stratified_cox_model(survivors):
    fit = rv.regress(survivors, "Surv(days, died) ~ age + treated + country + height", party="site")
    without = rv.regress(survivors, "Surv(days, died) ~ age + treated", party="site")
    np.testing.assert_allclose(fit.table.loc["age", ["estimate", "standard error", "p"]],
                               without.table.loc["age", ["estimate", "standard error", "p"]], rtol=1e-10)
    assert fit.table["estimate"].isna().tolist() == [False, False, True, True]
    assert fit.findings[0].startswith("No estimate: 'country[T.FR]', 'height' are constant within every site")
    assert next(line for line in fit.summary().splitlines() if line.startswith("height")).split()[1:] == ["-"] * 7


def test_powers_of_years_are_not_collinear():
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({"year": np.repeat(np.arange(2002, 2022), 6), "site": [*"ABC"] * 40})
    frame["y"] = 0.1 * (frame["year"] - 2010.0)**2 + rng.normal(0, 0.05, len(frame))
    fit = rv.regress(frame, "y ~ year + I(year**2)", party="site")
    reference = smf.ols("y ~ year + I(year**2)", frame.assign(year=frame["year"] - 2011.0)).fit()
    np.testing.assert_allclose(fit.deviance, reference.ssr, rtol=1e-8)
    np.testing.assert_allclose(fit.estimates[2], reference.params.iloc[2], rtol=1e-8)
    np.testing.assert_allclose(fit.table["standard error"].iloc[2], reference.bse.iloc[2], rtol=1e-4)
    short = rv.regress(frame.assign(year=np.repeat([2001, 2002, 2003], 40)), "y ~ year + I(year**2)", party="site")
    assert "need a shift: I((year - 2000)**2)" in short.findings[0]


@pytest.mark.parametrize("unit", [1e7, 1e-9])
def test_labels_in_any_unit_converge(unit):
    rng = np.random.default_rng(6)
    frame = pd.DataFrame({"site": [*"ABC"] * 40, "x": np.arange(120.0), "z": rng.normal(size=120)})
    frame["y"] = unit * (3 + 0.01 * frame["x"] + frame["z"] + rng.normal(0, 1e-6, 120))
    fit = rv.regress(frame, "y ~ x + z", party="site", family="gaussian")
    assert fit.has_converged
    assert fit.rounds <= 3
    np.testing.assert_allclose(fit.estimates, smf.ols("y ~ x + z", frame).fit().params, rtol=1e-8)


@pytest.mark.when_changed
def test_fits_with_offsets_and_exposures_take_few_rounds():
    rng = np.random.default_rng(7)
    frame = pd.DataFrame({"site": [*"ABC"] * 40, "x": rng.normal(size=120), "years": rng.uniform(1e3, 1e5, 120),
                          "known": rng.normal(40, 3, 120), "z": rng.normal(size=120)})
    frame["deaths"] = rng.poisson(1e-3 * frame["years"] * np.exp(0.3 * frame["x"]))
    frame["ill"] = (rng.random(120) < 1 / (1 + np.exp(40 - frame["known"] - 0.5 * frame["x"]))).astype(int)
    for label, added, family, offset in (("deaths", {"exposure": "years"}, "poisson", np.log(frame["years"])),
                                         ("ill", {"offset": "known"}, "binomial", frame["known"])):
        fit = rv.regress(frame, f"{label} ~ x + z", party="site", family=family, **added)
        law = {"poisson": sm.families.Poisson(), "binomial": sm.families.Binomial()}[family]
        reference = sm.GLM(frame[label], sm.add_constant(frame[["x", "z"]]), family=law, offset=offset).fit(tol=1e-14)
        assert fit.rounds <= 5
        np.testing.assert_allclose(fit.estimates, reference.params, rtol=1e-8)


@pytest.mark.when_changed
def test_counts_without_overdispersion_have_the_estimates_of_poisson():
    frame = pd.DataFrame({"site": [*"AB"] * 15, "x": np.tile(np.arange(5), 6), "n": np.tile([2, 3, 3, 2, 3], 6)})
    fit = rv.regress(frame, "n ~ x", party="site", family="negative_binomial")
    poisson = rv.regress(frame, "n ~ x", party="site", family="poisson")
    assert fit.has_converged
    assert fit.findings[0].startswith("No overdispersion: ")
    assert "The Poisson family has the same estimates" in fit.findings[0]
    np.testing.assert_allclose(fit.table.iloc[:2], poisson.table, rtol=1e-8, atol=1e-9)
    assert fit.table.loc["log_alpha"].isna().all()
    np.testing.assert_allclose(fit.log_likelihood, poisson.log_likelihood, rtol=1e-10)
    with pytest.raises(rv.InputError, match="'n' is 0 in all complete rows: there is nothing to explain"):
        rv.regress(frame.assign(n=0), "n ~ x", party="site", family="poisson")


@pytest.fixture(scope="module")
def separated():
    rng = np.random.default_rng(9)
    frame = pd.DataFrame({"site": np.repeat([*"ABC"], 40), "age": rng.normal(50, 10, 120).round(1),
                          "sex": rng.choice(["f", "m"], 120), "ward": rng.choice([*"xyz"], 120)})
    frame["ill"] = np.where(frame["age"] > 55, "yes", "no")
    frame["visits"] = np.where(frame["ward"] == "z", 0, rng.poisson(2, 120))
    frame["died"] = np.where(frame["ward"] == "z", 0, rng.integers(0, 2, 120))
    return frame.assign(days=np.arange(120) % 17 + 1)


@pytest.mark.when_changed
@nightly.parametrize(("formula", "family", "separates", "finite"), [
    ("died ~ age + ward", "binomial", "'ward[T.z]' divide", ["Intercept", "age", "ward[T.y]"]),
    ("ill ~ age + sex", "binomial", "'age'", []),
    ("visits ~ age + ward", "poisson", "'ward[T.z]' divide", ["Intercept", "age", "ward[T.y]"]),
    ("Surv(days, died) ~ age + ward", "cox", "'ward[T.z]' divide", ["age", "ward[T.y]"])],
    others=nightly.WHEN_CHANGED)
def test_separation_is_named_beside_other_columns(separated, formula, family, separates, finite):
    fit = rv.regress(separated, formula, party="site", family=family)
    assert fit.findings[0].startswith("Separation: ")
    assert separates in fit.findings[0]
    for errors in ("clustered", "robust", "model"):
        table = fit.with_errors(errors).table
        assert table.index[table["p"].notna()].tolist() == finite
        assert table.index[table["estimate"].notna()].tolist() == finite
    if family in ("binomial", "poisson") and finite:  # the limit: fitted without these rows
        rows = separated[separated["ward"] != "z"]
        reference = smf.glm(formula, rows, family=getattr(sm.families, family.title())()).fit(tol=1e-14)
        np.testing.assert_allclose(table.loc[finite, "estimate"], reference.params[finite], rtol=1e-8)
        np.testing.assert_allclose(table.loc[finite, "standard error"], reference.bse[finite], rtol=1e-6)


@pytest.fixture(scope="module")
def births():
    rng = np.random.default_rng(10)
    frame = pd.DataFrame({"site": np.repeat([*"ABC"], 40), "age": rng.normal(30, 5, 120),
                          "smokes": rng.choice(["n", "y"], 120), "weight": rng.normal(3.3, 0.4, 120),
                          "weeks": rng.uniform(30, 41, 120), "twins": rng.integers(1, 3, 120),
                          "born": np.where(rng.random(120) < 0.8, "yes", "no")})
    return frame.assign(status=np.where(frame["born"] == "yes", 2, 1))


def without(frame, column, rows, value=np.nan):
    changed = frame.astype({column: object}) if isinstance(value, str) else frame.copy()
    changed.loc[rows, column] = value
    return changed


@pytest.mark.parametrize(("change", "formula", "words"), [
    (lambda f: f.assign(pregnant=np.where(f.index < 110, "x", None)), "weight ~ age + pregnant",
     r"'pregnant' is 'x' in all rows .*\(10 rows with missing values left out\)"),
    (lambda f: without(f, "age", f["site"] == "B"), "weight ~ age", "site 'B': 'age' has no value in any row"),
    (lambda f: without(f, "site", 3, None), "weight ~ age", "row 3, column 'site': the party is missing"),
    (lambda f: without(f, "born", 3, "Yes"), "born ~ age", "'Yes' and 'yes' differ only in upper and lower case"),
    (lambda f: without(f, "smokes", 3, "N "), "weight ~ smokes", "'N' and 'n' differ only in upper and lower"),
    (lambda f: f[f["born"] == "yes"], "born ~ age", "'born' is 'yes' in all rows .* nothing to explain"),
    (lambda f: f, "Surv(weeks, status) ~ age", r"not '1', '2': say .* if it is '1', by reference=\{'status': '1'\}"),
    (lambda f: f[f["born"] == "no"], "Surv(weeks, born) ~ age", "no event occurred: 'born' is 'no'"),
    (lambda f: without(f, "weeks", 0, 0.0), "Surv(weeks, born) ~ age", "1 values that are not positive numbers"),
    (lambda f: f.assign(age=pd.to_timedelta(f["age"], unit="D")), "weight ~ age", "'age' holds dates"),
    (lambda f: f.assign(age=f["age"] + 1j), "weight ~ age", "column 'age' holds complex values"),
    (lambda f: f.assign(smokes=pd.Series([True, 1, 0] * 40, dtype=object)), "weight ~ smokes",
     "column 'smokes' holds mixed-integer"),
    (lambda f: f.assign(smokes=[b"n", b"y"] * 60), "weight ~ smokes", "column 'smokes' holds bytes values"),
    (lambda f: f.assign(weight=f["weight"] + 1j), "weight ~ age", "the label 'weight' holds complex values"),
    (lambda f: f, "twins ~ age + C(born)", "odds are those of '2' against '1'")])
def test_rows_that_decide_what_is_fitted_are_named(births, change, formula, words):
    try:
        text = rv.regress(change(births), formula, party="site").summary()
    except rv.InputError as error:
        text = str(error)
    assert re.search(words, text), text


def test_labels_of_rows_may_repeat_and_columns_may_be_those_of_arrow(births):
    expected = rv.regress(births, "weight ~ age + smokes", party="site").estimates.tolist()
    for frame in (births.set_axis([0] * 120), births.convert_dtypes(dtype_backend="pyarrow")):
        assert rv.regress(frame, "weight ~ age + smokes", party="site").estimates.tolist() == expected


def test_rows_left_out_are_counted_by_site_and_events_are_said(births):
    frame = without(pd.concat([births.iloc[[0, 1, 119]], births], ignore_index=True), "age", [0, 1, 2])
    fit = rv.regress(frame, "Surv(weeks, born) ~ age + smokes", party="site")
    assert fit.findings[-1] == "3 rows with missing values left out: 2 of A, 1 of C."
    assert "events, coded 'yes'." in fit.summary()
    coded = rv.regress(frame, "Surv(weeks, status) ~ age + smokes", party="site", reference={"status": 1})
    assert coded.model.event == "2"
    np.testing.assert_array_equal(coded.estimates, fit.estimates)


@nightly.parametrize(("label", "family", "law"), [
    ("twins01", "binomial", sm.families.Binomial()), ("twins01", "poisson", sm.families.Poisson()),
    ("weight", "gaussian", sm.families.Gaussian()), ("weight", "gamma", sm.families.Gamma(sm.families.links.Log()))],
    others=nightly.WHEN_CHANGED)
def test_predictions_have_the_intervals_of_the_delta_method(births, label, family, law):
    """Those of families with a dispersion have t with n - P degrees of freedom."""
    frame = births.assign(twins01=births["twins"] - 1)
    settings = {"exposure": "weeks"} if family == "poisson" else {}
    fit = rv.regress(frame, f"{label} ~ age + smokes", party="site", family=family, **settings)
    offset = {"offset": np.log(frame["weeks"])} if settings else {}
    reference = smf.glm(f"{label} ~ age + smokes", frame, family=law, **offset).fit(
        tol=1e-14, use_t=family in ("gaussian", "gamma"))
    new = frame.head(9).drop(columns=["site", label])
    of_new = {name: values.iloc[:9] for name, values in offset.items()}
    expected = reference.get_prediction(new, **of_new).summary_frame()
    predicted = fit.predict(without(new, "age", 4))
    assert np.flatnonzero(predicted.isna().all(axis=1)).tolist() == [4]
    kept = predicted.index != 4
    np.testing.assert_allclose(predicted[kept], expected[["mean", "mean_se", "mean_ci_lower", "mean_ci_upper"]][kept],
                               rtol=1e-8)
    link = fit.predict(new, scale="link")
    np.testing.assert_allclose(link["prediction"], reference.get_prediction(new, **of_new).linpred.predicted, rtol=1e-8)
    with pytest.raises(rv.InputError, match="'smokes' has the level 'pipe', which the regression does not have"):
        fit.predict(new.assign(smokes="pipe"))
    with pytest.raises(rv.InputError, match="no column 'age'"):
        fit.predict(new.drop(columns="age"))


@pytest.mark.when_changed
def test_probabilities_of_several_classes_have_errors_of_the_delta_method(births):
    frame = births.assign(grade=np.random.default_rng(1).choice([*"abc"], 120))
    fit = rv.regress(frame, "grade ~ age", party="site")
    predicted, step = fit.predict(frame.head(2)), 1e-6
    np.testing.assert_allclose(predicted[[f"prediction {name}" for name in "abc"]].sum(axis=1), 1, rtol=1e-12)
    slopes = []
    for j in range(4):  # the derivative of each probability by each parameter, by differences
        ends = [replace(fit, estimates=fit.estimates + sign * step * np.eye(4)[j]).predict(frame.head(2))
                for sign in (1, -1)]
        slopes.append((ends[0] - ends[1])["prediction b"] / (2 * step))
    expected = np.sqrt(np.einsum("jn,jk,kn->n", np.array(slopes), fit.covariance, np.array(slopes)))
    np.testing.assert_allclose(predicted["standard error b"], expected, rtol=1e-5)


@pytest.mark.when_changed
def test_a_saved_regression_predicts_a_file(births, tmp_path, call):
    fit = rv.regress(births, "weight ~ age + smokes", party="site")
    fit.save(tmp_path / "fit")
    new = without(births.head(6), "age", 2)[["age", "smokes"]]
    new.to_csv(tmp_path / "new.csv", index=False)
    shown = call("model", "predict", "fit", "new.csv", "--set", "scale=link", cwd=tmp_path)
    assert shown.code == 0, shown.err
    assert "1 row with missing values: no prediction" in shown.err
    predicted = pd.read_csv(tmp_path / "predictions.csv")
    assert predicted["row"].tolist() == [2, 3, 4, 5, 6, 7]  # lines of the file
    np.testing.assert_allclose(predicted.drop(columns="row"), fit.predict(new, scale="link"), rtol=1e-12)
    collinear = replace(fit, estimates=fit.estimates * [1, np.nan, 1])
    with pytest.raises(rv.InputError, match="no estimate of 'age'"):
        collinear.predict(births)
    refused = call("model", "predict", "fit", "new.csv", "--method", "FedAvg", "--overwrite", cwd=tmp_path)
    assert "is a regression" in refused.err


def test_missing_codes_of_the_fit_are_missing_in_new_rows(births, tmp_path, call):
    codes = {"age": [-999], "*": ["?"]}
    frame = pd.concat([births.iloc[:2], births], ignore_index=True)
    frame = without(without(frame, "age", 0, -999.0), "smokes", 1, "?")
    fit = rv.regress(frame, "weight ~ age + smokes", party="site", missing=codes)
    complete = rv.regress(births, "weight ~ age + smokes", party="site")
    assert fit.estimates.tolist() == complete.estimates.tolist()
    assert fit.predict(frame)["prediction"].isna().tolist() == [True, True] + [False] * 120
    fit.save(tmp_path / "fit")
    frame.to_csv(tmp_path / "new.csv", index=False)
    shown = call("model", "predict", "fit", "new.csv", cwd=tmp_path)
    assert "2 rows with missing values: no prediction" in shown.err, shown.err
    with pytest.raises(rv.InputError, match=r"'smokes' has the level '\.', which the regression"):
        fit.predict(without(births, "smokes", 1, "."))


def test_with_a_ridge_every_coefficient_has_an_estimate(separated):
    frame = separated.assign(months=12 * separated["age"], one=2.0)
    fit = rv.regress(frame, "ill ~ age + months", party="site", l2=1e-3)
    assert fit.table["estimate"].notna().all()
    assert fit.findings == ("Estimates with a penalty are biased on purpose: there are no standard errors.",)
    constant = rv.regress(frame, "died ~ age + one", party="site", family="binomial")
    assert [*constant.table.index[constant.table["estimate"].isna()]] == ["Intercept", "one"]
    assert constant.findings == (
        "No estimate: 'one' is constant in all complete rows, as the intercept is. Leave it out.",)


def test_base_levels_of_a_file_may_be_numbers():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"site": ["a", "b"] * 30, "days": rng.integers(1, 50, 60), "status": rng.integers(1, 3, 60),
                          "icd": rng.choice(["0117", "117", "5"], 60), "age": rng.normal(50, 9, 60)})
    text = "regression: {formula: 'Surv(days, status) ~ age + icd', reference: {icd: 5}}"
    file = RegressionFile.parse(text, "mine.yaml", "mine", ["regression.reference.status=1"])
    rows = next(read_tables(frame, file.settings, party="site"))
    assert {*rows.model.columns} == {"age", "icd[T.117]", "icd[T.0117]"}
    np.testing.assert_array_equal(np.sort(rows.event), np.sort(frame["status"] == 2))
    assert RegressionFile.parse(file.text, "mine.yaml", "mine").settings.references == {"icd": "5", "status": "1"}


def test_sites_with_true_and_false_and_sites_with_numbers_do_not_share_a_column():
    frame, settings = pd.DataFrame({"y": np.arange(8.0), "x": [True, False] * 4}), RegressionSettings(formula="y ~ x")
    formula = parse_formula(settings.formula)
    reports = {site: describe_rows(rows, formula, settings, 0)
               for site, rows in {"a": frame, "b": frame.astype({"x": int})}.items()}
    with pytest.raises(InputError, match=r"'x' has true/false at a and numbers at b: set text: \[x\] in the data"):
        agree_on_rows(reports, formula, settings)
