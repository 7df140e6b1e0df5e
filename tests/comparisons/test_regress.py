"""Regressions over sites against statsmodels and scikit-learn on the pooled rows."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from sklearn.linear_model import ElasticNet
from statsmodels.discrete.discrete_model import MNLogit, NegativeBinomial
from statsmodels.duration.hazard_regression import PHReg

import resolvent as rv
from resolvent.errors import InputError
from resolvent.regression.cox import CoxRegression

FORMULA = "age + C(ward) + age:sex"


@pytest.fixture(scope="module")
def patients():
    rng = np.random.default_rng(1)
    n = 400
    frame = pd.DataFrame({"age": rng.normal(50, 10, n), "ward": rng.choice(list("ABC"), n),
                          "sex": rng.choice(["f", "m"], n), "site": rng.choice(["Bonn", "Essen", "Ulm"], n)})
    eta = -2 + 0.03 * frame["age"] + 0.5 * (frame["ward"] == "B") - 0.4 * (frame["sex"] == "m")
    frame["ill"] = np.where(rng.random(n) < 1 / (1 + np.exp(-eta)), "yes", "no")
    frame["y"] = (frame["ill"] == "yes").astype(float)
    frame["score"] = eta + rng.normal(size=n)
    frame["visits"] = rng.negative_binomial(2, 1 / (1 + np.exp(eta) / 2))
    frame["cost"] = rng.gamma(2, np.exp(eta) / 2)
    frame["years"] = rng.uniform(0.5, 3, n)
    frame["grade"] = rng.choice(["high", "low", "middle"], n)
    return frame


def _agree(fit, reference, *, errors=True):
    table = fit.table
    names = list(table.index)
    np.testing.assert_allclose(table["estimate"], np.asarray(reference.params[names]), atol=1e-8)
    if errors:
        np.testing.assert_allclose(table["standard error"], np.asarray(reference.bse[names]), rtol=1e-6)
        np.testing.assert_allclose(table["p"], np.asarray(reference.pvalues[names]), atol=1e-6)


@pytest.mark.parametrize(("label", "family", "law"), [
    ("y", "binomial", sm.families.Binomial()),
    pytest.param("visits", "poisson", sm.families.Poisson(), marks=pytest.mark.nightly),
    pytest.param("cost", "gamma", sm.families.Gamma(sm.families.links.Log()), marks=pytest.mark.nightly)])
def test_glm(patients, label, family, law):
    fit = rv.regress(patients, f"{label} ~ {FORMULA}", party="site", family=family)
    pooled = smf.glm(f"{label} ~ {FORMULA}", patients, family=law)
    reference = pooled.fit(tol=1e-14)
    assert fit.rounds <= 8
    assert fit.has_converged
    _agree(fit, reference, errors=family != "gamma")
    np.testing.assert_allclose(fit.table["standard error"], reference.bse[list(fit.names)], rtol=1e-6)
    np.testing.assert_allclose([fit.log_likelihood, fit.deviance, fit.aic],
                               [reference.llf, reference.deviance, reference.aic], rtol=1e-8)
    sites = patients["site"].map({"Bonn": 0, "Essen": 1, "Ulm": 2})
    clustered = pooled.fit(tol=1e-14, cov_type="cluster", cov_kwds={"groups": sites})
    np.testing.assert_allclose(fit.with_errors("clustered").table["standard error"], clustered.bse[list(fit.names)],
                               rtol=1e-6)
    white = pooled.fit(tol=1e-14, cov_type="HC0")  # for these models statsmodels has no HC1, which is HC0 n/(n-P)
    np.testing.assert_allclose(fit.with_errors("robust").table["standard error"],
                               white.bse[list(fit.names)] * np.sqrt(len(patients) / fit.degrees_of_freedom), rtol=1e-6)


@pytest.mark.when_changed
def test_linear_regression_has_t_and_hc0_to_hc3(patients):
    fit = rv.regress(patients, f"score ~ {FORMULA}", party="site")
    pooled = smf.ols(f"score ~ {FORMULA}", patients)
    _agree(fit, pooled.fit())
    np.testing.assert_allclose(fit.log_likelihood, pooled.fit().llf, rtol=1e-10)
    for errors in ("HC3", "HC0", "HC2", "HC1", "robust"):
        fit = fit.with_errors(errors)
        reference = pooled.fit(cov_type="HC1" if errors == "robust" else errors, use_t=True)
        np.testing.assert_allclose(fit.table["standard error"], reference.bse[list(fit.names)], rtol=1e-10)
        _agree(fit, reference)
    assert "t" in fit.table


def test_joint_tests_and_contrasts_are_those_of_statsmodels(patients):
    contrast = "C(ward)[T.B] - C(ward)[T.C] = 0.25"
    ward = "C(ward)[T.B] = 0, C(ward)[T.C] = 0"
    hypotheses = {"ward": ward, "age, C(ward)": f"age = 0, {ward}", contrast: contrast, "2*age = 1e-1": "2*age = 0.1"}
    fit = rv.regress(patients, f"score ~ {FORMULA}", party="site", tests=list(hypotheses))
    pooled = smf.ols(f"score ~ {FORMULA}", patients)
    for errors, reference in (("model", pooled.fit()), ("robust", pooled.fit(cov_type="HC1", use_t=True))):
        for ours, theirs in hypotheses.items():
            test, expected = fit.with_errors(errors).test(ours), reference.f_test(theirs)
            np.testing.assert_allclose([test.statistic, test.p, test.freedom, test.rest], [
                expected.fvalue, expected.pvalue, expected.df_num, expected.df_denom], rtol=1e-8)
    expected = pooled.fit().t_test(contrast)
    test = fit.test(contrast)
    np.testing.assert_allclose([test.estimate, test.error, test.low],
                               [expected.effect[0], expected.sd[0, 0], expected.conf_int()[0, 0]], rtol=1e-8)
    assert f"Wald test of ward: F {fit.test('ward').statistic:.2f} with 2 and 395 degrees" in fit.summary()
    assert [test["p"] for test in fit.facts()["tests"]] == [fit.test(text).p for text in hypotheses]

    fit = rv.regress(patients, f"y ~ {FORMULA}", party="site", family="binomial")
    expected = smf.glm(f"y ~ {FORMULA}", patients, family=sm.families.Binomial()).fit(tol=1e-14).wald_test(
        hypotheses["ward"], scalar=True)
    np.testing.assert_allclose([fit.test("ward").statistic, fit.test("ward").p],
                               [expected.statistic, expected.pvalue], rtol=1e-8)
    with pytest.raises(InputError, match="3 sites can tell"):
        fit.with_errors("clustered").test("age, ward")


@pytest.mark.parametrize(("hypothesis", "words"), [
    ("wage", "has 'wage'"), ("age =", "cannot be read"), ("sex - age", "has the term 'sex' in an equation"),
    ("age = 1 = 2", "has '= +='"), ("age**2", "has '\\*\\*'"), ("age / 0", "cannot be read"),
    ("3", "names no coefficient")])
def test_a_hypothesis_is_refused_before_the_fit(patients, hypothesis, words):
    with pytest.raises(InputError, match=words):
        rv.regress(patients, "score ~ age + sex", party="site", tests=[hypothesis])


def test_hc3_of_a_generalised_linear_model(patients):
    """As in R's package sandwich: leverages are those of the weighted least squares of the last step."""
    fit = rv.regress(patients, f"y ~ {FORMULA}", party="site", family="binomial", errors="HC3")
    reference = smf.glm(f"y ~ {FORMULA}", patients, family=sm.families.Binomial()).fit(tol=1e-14)
    x, p = reference.model.exog, np.asarray(reference.fittedvalues)
    inverse = np.linalg.inv(x.T @ (x * (p * (1 - p))[:, None]))
    leverages = p * (1 - p) * np.einsum("ij,jk,ik->i", x, inverse, x)
    scores = x * ((patients["y"] - p) / (1 - leverages)).to_numpy()[:, None]
    errors = pd.Series(np.sqrt(np.diag(inverse @ scores.T @ scores @ inverse)), reference.params.index)
    np.testing.assert_allclose(fit.table["standard error"], errors[list(fit.names)], rtol=1e-10)
    assert "(HC3)" in fit.summary()
    with pytest.raises(InputError, match="needs the leverages of a generalised linear model"):
        rv.regress(patients, "visits ~ age", party="site", family="negative_binomial", errors="HC2")


@pytest.mark.when_changed
@pytest.mark.parametrize(("label", "family"), [
    ("y", "binomial"), *(pytest.param(label, family, marks=pytest.mark.nightly) for label, family in (
        ("visits", "poisson"), ("score", "gaussian"), ("cost", "gamma"), ("visits", "negative_binomial")))])
def test_frequency_weights_are_repeated_rows(patients, label, family):
    frame = patients.assign(count=np.arange(len(patients)) % 4 + 1)
    repeated = frame.loc[frame.index.repeat(frame["count"])]
    for errors in ("model", "robust", "clustered", *(("HC3",) if family != "negative_binomial" else ())):
        fit, same = (rv.regress(rows, f"{label} ~ {FORMULA}", party="site", family=family, errors=errors, **weights)
                     for rows, weights in ((frame, {"frequency_weights": "count"}), (repeated, {})))
        pd.testing.assert_frame_equal(fit.table, same.table, rtol=1e-8)
        facts, expected = fit.facts(), same.facts()
        for name in ("deviance", "dispersion", "log_likelihood", "aic"):
            assert facts[name] == pytest.approx(expected[name], rel=1e-9)
    assert (facts["rows"], facts["sum_of_weights"]) == (len(frame), len(repeated))
    np.testing.assert_allclose(fit.heterogeneity().site_table, same.heterogeneity().site_table, rtol=1e-6)
    assert fit.heterogeneity().test["p"] == pytest.approx(same.heterogeneity().test["p"], rel=1e-6)


@pytest.mark.when_changed
@pytest.mark.parametrize(("label", "law"), [
    ("y", sm.families.Binomial()), pytest.param("visits", sm.families.Poisson(), marks=pytest.mark.nightly),
    pytest.param("score", sm.families.Gaussian(), marks=pytest.mark.nightly)])
def test_sampling_weights_have_the_errors_of_a_sample_with_replacement(patients, label, law):
    """As R's survey: n/(n-1) A^-1 (sum of w^2 s s') A^-1, and t with n - P; statsmodels has the same as var_weights."""
    n = len(patients)
    frame = patients.assign(weight=1 / np.linspace(0.1, 0.9, n))
    family = law.__class__.__name__.lower()
    fit = rv.regress(frame, f"{label} ~ {FORMULA}", party="site", family=family, errors="robust",
                     sampling_weights="weight")
    reference = smf.glm(f"{label} ~ {FORMULA}", frame, family=law, var_weights=frame["weight"]).fit(cov_type="HC0",
                                                                                               tol=1e-14)
    names = [*fit.names]
    np.testing.assert_allclose(fit.estimates, reference.params[names], atol=1e-8)
    np.testing.assert_allclose(fit.covariance, reference.cov_params().loc[names, names] * n / (n - 1), rtol=1e-6)
    assert fit.degrees_of_freedom_of_tests == n - len(names)
    assert "log_likelihood" not in fit.facts()
    assert "with sampling weights" in fit.summary()
    own = frame[frame["site"] == "Ulm"]
    alone = smf.glm(f"{label} ~ {FORMULA}", own, family=law, var_weights=own["weight"]).fit(cov_type="HC0", tol=1e-14)
    errors = fit.heterogeneity().site_table.loc["Ulm", "standard error"]
    np.testing.assert_allclose(errors[names], alone.bse[names] * np.sqrt(len(own) / (len(own) - 1)), rtol=1e-5)
    with pytest.raises(InputError, match="sampling_weights, which have no likelihood: set errors=robust"):
        fit.with_errors("model")


@pytest.mark.parametrize(("settings", "words"), [
    ({"sampling_weights": "age"}, "errors=model does not go with sampling_weights"),
    ({"frequency_weights": "years"}, "'years' has 400 values that are not counts 1, 2, ..."),
    ({"sampling_weights": "score", "errors": "robust"}, "values that are not positive numbers"),
    ({"frequency_weights": "weight"}, "no column 'weight' .offset, exposure, weights, strata or cluster."),
    ({"frequency_weights": "age", "sampling_weights": "years"}, "mean different things: set one of them")])
def test_weights_are_refused_with_the_reason(patients, settings, words):
    with pytest.raises(InputError, match=words):
        rv.regress(patients, "y ~ age", party="site", **settings)


def test_a_random_intercept_takes_no_weights(patients):
    for formula, settings, words in (("y ~ age", {"frequency_weights": "count"}, "a random intercept takes no weights"),
                                     ("y ~ age - 1", {}, "needs an intercept"), ("y ~ age", {"l2": 1.0}, "without a"),
                                     ("Surv(years, y) ~ age", {}, "baseline hazards instead")):
        with pytest.raises(InputError, match=words):
            rv.regress(patients.assign(count=2), formula, party="site", site="random", **settings)


@pytest.mark.when_changed
def test_intercepts_that_stay_at_the_sites_are_indicators_of_the_sites(patients):
    fit = rv.regress(patients, f"y ~ {FORMULA}", party="site", family="binomial", site="fixed")
    pooled = smf.glm(f"y ~ {FORMULA} + site", patients, family=sm.families.Binomial())
    reference, names = pooled.fit(tol=1e-14), list(fit.names)
    assert "Intercept" not in names
    _agree(fit, reference)
    np.testing.assert_allclose(fit.table["standard error"], reference.bse[names], rtol=1e-10)
    np.testing.assert_allclose([fit.log_likelihood, fit.deviance, fit.aic],
                               [reference.llf, reference.deviance, reference.aic], rtol=1e-10)
    np.testing.assert_allclose(fit.with_errors("HC0").table["standard error"],
                               pooled.fit(tol=1e-14, cov_type="HC0").bse[names], rtol=1e-8)
    assert "an intercept of its own for each site" in fit.summary()
    with pytest.raises(InputError, match="the intercepts are at the sites"):
        fit.predict(patients)
    assert fit.predict(patients, scale="link").notna().all(axis=None)
    one_class = patients.assign(y=patients["y"].where(patients["site"] != "Ulm", 1))  # Ulm then says nothing
    others = patients[patients["site"] != "Ulm"]
    _agree(rv.regress(one_class, f"y ~ {FORMULA}", party="site", family="binomial", site="fixed"),
           smf.glm(f"y ~ {FORMULA} + site", others, family=sm.families.Binomial()).fit(tol=1e-14))
    with pytest.raises(InputError, match="a baseline hazard of its own for each site already"):
        rv.regress(patients.assign(died=1), "Surv(years, died) ~ age", party="site", site="fixed")


@pytest.mark.nightly
def test_intercepts_that_stay_at_the_sites_of_normal_labels_and_counts(patients):
    fit = rv.regress(patients, f"score ~ {FORMULA}", party="site", site="fixed")
    pooled = smf.ols(f"score ~ {FORMULA} + site", patients)
    for errors, options in (("model", {}), ("HC3", {"cov_type": "HC3", "use_t": True})):
        _agree(fit.with_errors(errors), pooled.fit(**options))
    fit = rv.regress(patients, "visits ~ age", party="site", family="negative_binomial", site="fixed")
    pooled = rv.regress(patients.assign(place=patients["site"]), "visits ~ age + place", party="site",
                        family="negative_binomial")
    pd.testing.assert_frame_equal(fit.table, pooled.table.loc[["age", "log_alpha"]], rtol=1e-8)


@pytest.mark.nightly
def test_multinomial_and_negative_binomial(patients):
    fit = rv.regress(patients, "grade ~ age + sex", party="site")
    x = sm.add_constant(np.c_[patients["age"], patients["sex"] == "m"].astype(float))
    reference = MNLogit(patients["grade"].astype("category").cat.codes, x).fit(disp=0, method="newton", tol=1e-14)
    by_name = fit.table["estimate"].to_numpy().reshape(2, 3)[:, [fit.model.columns.index(n) for n in (
        "Intercept", "age", "sex[T.m]")]]
    np.testing.assert_allclose(by_name, np.asarray(reference.params).T, atol=1e-8)
    np.testing.assert_allclose(fit.log_likelihood, reference.llf, rtol=1e-10)

    fit = rv.regress(patients, "visits ~ age", party="site", family="negative_binomial", exposure="years")
    start = [*fit.estimates[:2], np.exp(fit.estimates[2])]
    reference = NegativeBinomial(patients["visits"], sm.add_constant(patients["age"]), exposure=patients["years"]).fit(
        disp=0, method="newton", start_params=start)
    np.testing.assert_allclose([*fit.estimates[:2], np.exp(fit.estimates[2])], reference.params, atol=1e-6)
    np.testing.assert_allclose(fit.table["standard error"].iloc[:2], reference.bse.iloc[:2], rtol=1e-6)
    np.testing.assert_allclose(fit.log_likelihood, reference.llf, rtol=1e-10)


@pytest.fixture(scope="module")
def arrests():
    rng = np.random.default_rng(4)
    frame = pd.DataFrame({"age": rng.normal(30, 8, 240), "fin": rng.integers(0, 2, 240),
                          "state": rng.choice(["A", "B", "C"], 240)})
    time = rng.exponential(30 * np.exp(0.03 * frame["age"] - 0.4 * frame["fin"]))
    return frame.assign(week=np.ceil(np.minimum(time, 52)).astype(int), arrest=(time < 52).astype(int))


@pytest.mark.when_changed
@pytest.mark.parametrize("has_ties", [True, False])
def test_cox_stratified_by_site_is_that_of_the_pooled_rows(arrests, has_ties):
    rng = np.random.default_rng(0)
    frame = arrests if has_ties else arrests.assign(week=arrests["week"] + rng.uniform(0, 0.5, len(arrests)))
    fit = rv.regress(frame, "Surv(week, arrest) ~ fin + age", party="state")
    model = PHReg(frame["week"], frame[["fin", "age"]].astype(float), status=frame["arrest"], strata=frame["state"],
                  ties="efron")
    reference = model.fit(disp=0)
    assert frame["week"].duplicated().any() == has_ties
    np.testing.assert_allclose(fit.estimates, reference.params, atol=1e-7)
    np.testing.assert_allclose(fit.table["standard error"], reference.bse, rtol=1e-6)
    np.testing.assert_allclose(fit.log_likelihood, model.loglike(np.asarray(fit.estimates)), rtol=1e-10)
    assert "hazard ratio" in fit.table


@pytest.mark.when_changed
def test_cox_residuals_add_up_to_the_gradient(arrests):
    """The rows' scores, from which robust errors come, sum to the derivative of the log-likelihood at any point."""
    with jax.enable_x64(True):
        rows = arrests.sort_values("state", kind="stable")
        problem = CoxRegression(rows[["fin", "age"]], rows["week"], rows["arrest"], [240])
        oracle = problem.oracle(jnp.array(0))
        scores, gradient, hessian, by_derivatives = jax.jit(lambda w: (
            oracle._row_scores(oracle.risks(w)), jax.grad(oracle.mean_value)(w), oracle.mean_second_order(w).hessian,
            jax.hessian(oracle.mean_value)(w)))(jnp.array([0.3, -0.02]))
        np.testing.assert_allclose(-scores.sum(0) / 240, gradient, atol=1e-12)
        np.testing.assert_allclose(hessian, by_derivatives, atol=1e-12)


@pytest.mark.when_changed
def test_elastic_net(patients):
    fit = rv.regress(patients, "score ~ age + years", party="site", l1=0.02, l2=0.1)
    reference = ElasticNet(alpha=0.12, l1_ratio=0.02 / 0.12, tol=1e-14, max_iter=100_000).fit(
        patients[["age", "years"]], patients["score"])
    np.testing.assert_allclose(fit.estimates, [reference.intercept_, *reference.coef_], atol=1e-8)
    assert fit.table["standard error"].isna().all()
    assert "no standard errors" in fit.findings[-1]


def test_what_cannot_be_estimated_is_named_and_has_no_number(patients):
    frame = pd.concat([patients.head(3).assign(age=np.nan), patients], ignore_index=True)
    collinear = rv.regress(frame.assign(months=12 * frame["age"] + 1), "ill ~ age + months + ward", party="site")
    assert collinear.table["estimate"].isna().tolist() == [True, True, True, False, False]
    assert "'age', 'months'" in collinear.findings[0]
    assert "3 rows with missing values left out" in collinear.findings[-1]
    without = smf.glm("y ~ age + ward", patients, family=sm.families.Binomial()).fit(tol=1e-14)
    wards = ["ward[T.B]", "ward[T.C]"]
    np.testing.assert_allclose(collinear.table.loc[wards, "standard error"], without.bse[wards], rtol=1e-6)


@pytest.mark.when_changed
def test_columns_that_depend_on_others_take_no_degree_of_freedom(patients):
    """Dispersion, errors of every kind, AIC and the test of the sites are those without such columns, as in R's lm."""
    frame = patients.assign(months=12 * patients["age"] + 1, one=2.0)
    fit, without = (rv.regress(frame, f"score ~ ward + age{more}", party="site") for more in (" + months + one", ""))
    wards = ["ward[T.B]", "ward[T.C]"]
    for errors in ("model", "robust", "clustered"):
        of_errors, expected = (f.with_errors(errors).table.loc[wards] for f in (fit, without))
        pd.testing.assert_frame_equal(of_errors, expected, rtol=1e-8)
    names = ("dispersion", "deviance", "log_likelihood", "aic")
    assert [fit.facts()[name] for name in names] == pytest.approx([without.facts()[name] for name in names], rel=1e-9)
    assert fit.heterogeneity().test == pytest.approx(without.heterogeneity().test, rel=1e-8)


@pytest.mark.when_changed
def test_separation_and_few_events_are_named(patients):
    frame = patients.assign(marker=np.where(patients["ill"] == "yes", patients["years"] > 1, 0))
    separated = rv.regress(frame, "ill ~ age + marker", party="site")
    assert separated.table["estimate"].isna().tolist() == [False, False, True]
    assert "'marker' divides the rows perfectly" in separated.findings[0]
    few = rv.regress(frame.head(30), "ill ~ age + C(ward) + sex + years", party="site")
    assert any("Few events" in sentence for sentence in few.findings)


@pytest.mark.parametrize(("formula", "words"), [
    ("ill ~ agee", "did you mean 'age'"), ("ill ~ __import__('os')", "contains '__import__'"),
    ("ill ~ age.sum()", "contains"), ("ill ~ minmax(age)", "would need the rows of all sites"),
    ("ill ~ age + site", "names the site"), ("~ age", "needs a label"), ("ill ~ age[0]", "contains"),
    ("ill ~ (lambda: 1)()", "does not have"), ("ill ~ log(age - 60)", "not finite"),
    ("ill ~ age + + *", "cannot be read"), ("visits ~ age", "set family="), ("log(cost) ~ age", "left side"),
    ("Surv(years, visits) ~ age", "must have 0 and 1")])
def test_a_formula_is_refused_with_the_reason(patients, formula, words):
    with pytest.raises(rv.InputError, match=words.replace("(", r"\(").replace(")", r"\)")):
        rv.regress(patients, formula, party="site")


def test_heterogeneity(patients):
    fit = rv.regress(patients, f"y ~ {FORMULA}", party="site")
    heterogeneity = fit.heterogeneity()
    own_fits = [smf.glm(f"y ~ {FORMULA}", rows, family=sm.families.Binomial()).fit(tol=1e-14)
                for _, rows in patients.groupby("site")]
    common = smf.glm(f"y ~ {FORMULA}", patients, family=sm.families.Binomial()).fit(tol=1e-14)
    gain = sum(f.llf for f in own_fits) - common.llf
    np.testing.assert_allclose(heterogeneity.test["statistic"], 2 * gain, rtol=1e-6)
    b, weight = (np.array([getattr(f, name)["age"] for f in own_fits]) for name in ("params", "bse"))
    weight = 1 / weight**2
    q = np.sum(weight * (b - np.sum(weight * b) / weight.sum())**2)
    np.testing.assert_allclose(heterogeneity.table.loc["age", ["Q", "I2"]], [q, max(0, 1 - 2 / q)], rtol=1e-6)


@pytest.mark.when_changed
def test_fedplus_finds_the_coefficients_that_differ(patients):
    frame = patients.assign(score=patients["score"] + (patients["site"] == "Ulm") * (2 + 0.1 * patients["age"]))
    heterogeneity = rv.regress(frame, "score ~ age + ward + years", party="site").heterogeneity()
    difference = heterogeneity.differences.differences
    cells = list(zip(*np.nonzero(difference.to_numpy()), strict=True))
    assert cells == [(2, 0), (2, difference.columns.get_loc("age"))]
    np.testing.assert_allclose(difference.loc["Ulm", ["Intercept", "age"]], [2, 0.1], atol=0.7)
    same = rv.regress(patients, "score ~ age + ward + years", party="site").heterogeneity()
    assert not same.differences.differences.to_numpy().any()
    assert heterogeneity.test["p"] < 1e-6 < same.test["p"]


@pytest.mark.nightly
def test_random_intercept_of_normal_labels_is_the_mixed_model(patients):
    rng = np.random.default_rng(3)
    frame = patients.assign(site=rng.integers(0, 12, len(patients)))
    frame["score"] += rng.normal(0, 0.7, 12)[frame["site"]]
    common = rv.regress(frame, "score ~ age", party="site", site="random")
    fit = common.random
    mixed = smf.mixedlm("score ~ age", frame, groups=frame["site"]).fit(reml=False, method="powell")
    np.testing.assert_allclose(fit.table["estimate"].loc[["Intercept", "age"]], mixed.fe_params, atol=1e-5)
    np.testing.assert_allclose(fit.tau**2, float(mixed.cov_re.iloc[0, 0]), rtol=1e-3)
    np.testing.assert_allclose(fit.log_likelihood, mixed.llf, rtol=1e-8)
    assert fit.p < 0.01
    assert f"a standard deviation of {fit.tau:.4f}"[:-1] in common.summary()
    assert common.facts()["random_intercept"]["tau"] == fit.tau


@pytest.mark.when_changed
def test_command_and_page(patients, tmp_path, call):
    patients.drop(columns="y").to_csv(tmp_path / "visits.csv", index=False)
    formula = ("--formula", "ill ~ age + ward")
    shown = call("regress", "visits.csv", "--party", "site", *formula, "--out", "out", cwd=tmp_path)
    assert shown.code == 0, shown.err
    assert "The odds are those of 'yes' against 'no'." in shown.out
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert page.count("<svg") == 1 + 3  # estimates, a forest plot of each coefficient
    assert "No coefficient differs." in page
    estimates = pd.read_csv(tmp_path / "out" / "estimates.csv", index_col=0)
    printed = call("regress", "visits.csv", "--party", "site", *formula, "--format", "json", cwd=tmp_path)
    values = [row["estimate"] for row in json.loads(printed.out)["estimates"]]
    np.testing.assert_allclose(values, estimates["estimate"])
    (tmp_path / "mine.yaml").write_text("data: {table: visits.csv, party: site, label: ill}\nmodel: logistic\n"
                                        "algorithms: [local]\nsolver: {name: SGD, learning_rate: 0.1, epochs: 1}\n")
    of_experiment = call("regress", "mine.yaml", *formula, "--format", "json", cwd=tmp_path)
    assert of_experiment.out == printed.out, of_experiment.err
    refused = call("regress", "visits.csv", "--party", "site", *formula, "--out", "out", cwd=tmp_path)
    assert refused.code == 2
    assert "overwrite" in refused.err


@pytest.mark.when_changed
def test_a_site_with_an_opposite_coefficient_is_named_first(tmp_path, call):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"site": np.repeat(["Bonn", "Essen", "Ulm"], 60), "age": rng.normal(size=180),
                          "dose": rng.normal(size=180)})
    sign = np.where(frame["site"] == "Ulm", -1.0, 1.0)
    frame["score"] = sign * frame["age"] + frame["dose"] + 0.5 * rng.normal(size=180)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    outcome = call("regress", "rows.csv", "--formula", "score ~ age + dose", "--party", "site", "--out", "report",
                   cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    first = " ".join(outcome.out.split())
    assert first.startswith("The coefficient of age differs between the sites (I\N{SUPERSCRIPT TWO} ")
    assert "; the coefficient has the opposite sign at Ulm. score ~ age + dose" in first
    page = (tmp_path / "report" / "report.html").read_text()
    assert page.index("the opposite sign at Ulm") < page.index("<h2>Estimates</h2>")
