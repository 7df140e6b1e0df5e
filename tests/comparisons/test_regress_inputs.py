"""Regressions of unusual rows and formulas of other programs: the numbers of an independent fit, or a refusal."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf

import resolvent as rv
from resolvent.comparisons.regression.formula import parse_formula


@pytest.fixture(scope="module")
def visits():
    rng = np.random.default_rng(5)
    frame = pd.DataFrame({"site": np.repeat([*"ABCD"], 30), "age": rng.normal(50, 10, 120),
                          "crp.mg": rng.gamma(2, 2, 120)})
    frame["il.6"] = 0.3 * frame["crp.mg"] + 0.02 * frame["age"] + rng.normal(size=120)
    return frame


@pytest.mark.parametrize(("formula", "found", "advice"), [
    ("y ~ I(age^2)", "'^'", "I(age**2)"), ("y ~ (age + sex)^2", "'^'", "write **"),
    ("y ~ x + (1 | site)", "'|'", "random_intercept()"),
    ("y ~ .", "'.'", "name the columns"), ("y ~ offset(risk) + x", "'offset()'", "--offset risk"),
    ("y ~ factor(ward)", "'factor()'", "write C(ward)"), ("y ~ as.factor(ward)", "'as.factor()'", "write C(ward)"),
    ("y ~ relevel(ward, ref='B')", "'relevel()'", "--reference ward=B"),
    ("y ~ C(ward, Treatment(reference='B'))", "'Treatment()'", "reference: {ward: B}"),
    ("Surv(t, e) ~ x + strata(site)", "'strata()'", "for each site"),
    ("y ~ x + cluster(site)", "'cluster()'", "errors='clustered'"),
    ("y ~ np.log(x)", "'np.log()'", "the function alone"), ("y ~ Q('crp mg')", "'Q()'", "backticks"),
    ("y ~ poly(age, 2)", "'poly()'", "I(age**2)"), ("y ~ age + age**2", "outside I()", "I(age**2)"),
    ("y ~ log(age)**2", "outside I()", "I(age**2)"), ("y ~ x ~ z", "one right side", "outcome ~")])
def test_what_only_other_programs_write_is_answered_with_what_to_write(formula, found, advice):
    with pytest.raises(rv.InputError) as refused:
        parse_formula(formula)
    assert found in str(refused.value)
    assert advice in str(refused.value)


def test_products_of_categories_and_quoted_marks_are_formulas():
    assert parse_formula("y ~ (a + b)**2 + I((a + b)**2) + `a^b|c`").variables == ("a", "b", "a^b|c")
    assert parse_formula("Surv(t.days, `died ~`) ~ 1.5:crp.mg").response.columns == ["t.days", "died ~"]


def test_names_with_dots_are_columns_on_both_sides(visits):
    fit = rv.regress(visits, "il.6 ~ log(crp.mg) + age", party="site")
    renamed = visits.rename(columns={"crp.mg": "crp", "il.6": "il"})
    reference = smf.ols("il ~ np.log(crp) + age", renamed).fit()
    np.testing.assert_allclose(fit.estimates, reference.params, rtol=1e-8)
    label = rv.regress(visits, "crp.mg ~ il.6", party="site")
    np.testing.assert_allclose(label.estimates, smf.ols("crp ~ il", renamed).fit().params, rtol=1e-8)


def test_clustered_errors_have_t_statistics_with_one_degree_less_than_sites(visits):
    fit = rv.regress(visits, "il.6 ~ age", party="site", errors="clustered")
    groups = visits["site"].astype("category").cat.codes
    reference = smf.ols("il ~ age", visits.rename(columns={"il.6": "il"})).fit(
        cov_type="cluster", cov_kwds={"groups": groups}, use_t=True)
    np.testing.assert_allclose(fit.table["p"], reference.pvalues, rtol=1e-8)
    np.testing.assert_allclose(fit.table[["low", "high"]], reference.conf_int(), rtol=1e-8)
