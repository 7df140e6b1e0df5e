"""What follows the estimates of a regression, against statsmodels on the pooled rows and plain NumPy."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from scipy import optimize, stats
from statsmodels.duration.hazard_regression import PHReg

import resolvent as rv
from nightly import parametrize
from resolvent.errors import InputError


@pytest.fixture(scope="module")
def visits():
    """Visits of patients, who have one hospital each; the numbers of patients begin again at every hospital."""
    rng = np.random.default_rng(4)
    patients = 120
    frame = pd.DataFrame({"patient": np.arange(patients) % 40, "site": np.repeat(["Bonn", "Essen", "Ulm"], 40),
                          "age": rng.normal(50, 10, patients), "own": rng.normal(0, 1, patients)})
    frame = frame.loc[frame.index.repeat(rng.integers(1, 6, patients))].reset_index(drop=True)
    n = len(frame)
    frame["ward"], frame["dose"] = rng.choice(list("ABC"), n), rng.normal(size=n)
    eta = -2 + 0.03 * frame["age"] + 0.5 * (frame["ward"] == "B") + 0.3 * frame["dose"] + frame.pop("own")
    frame["y"] = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(int)
    frame["score"], frame["calls"] = eta + rng.normal(size=n), rng.poisson(np.exp(eta / 2))
    frame["cost"] = rng.gamma(2, np.exp(eta / 2))
    frame["days"], frame["died"] = np.ceil(rng.exponential(50 * np.exp(-eta / 2))), rng.integers(0, 2, n)
    return frame


def clusters_of(frame):
    return (frame["site"] + frame["patient"].astype(str)).astype("category").cat.codes


FAMILIES = {"binomial": ("y", sm.families.Binomial()), "poisson": ("calls", sm.families.Poisson()),
            "gaussian": ("score", sm.families.Gaussian()),
            "gamma": ("cost", sm.families.Gamma(sm.families.links.Log()))}


@parametrize("family", FAMILIES, per_commit=1)
def test_errors_clustered_by_a_column_within_the_sites(visits, family):
    label, law = FAMILIES[family]
    fit = rv.regress(visits, f"{label} ~ age + ward + dose", party="site", family=family, errors="clustered",
                     cluster="patient")
    groups, names = clusters_of(visits), [*fit.names]
    expected = smf.glm(f"{label} ~ age + ward + dose", visits, family=law).fit(
        tol=1e-15, maxiter=200, cov_type="cluster", cov_kwds={"groups": groups}).cov_params().loc[names, names]
    np.testing.assert_allclose(fit.covariance, expected, rtol=1e-6 if family == "gamma" else 1e-8)
    assert fit.degrees_of_freedom_of_tests == fit.clusters - 1 == 119
    assert "clustered by patient within the sites (120 clusters)" in " ".join(fit.summary().split())


@pytest.mark.when_changed
def test_clusters_with_intercepts_at_the_sites_and_of_a_cox_model(visits):
    settings = {"party": "site", "errors": "clustered", "cluster": "patient"}
    fit = rv.regress(visits, "y ~ age + dose", family="binomial", site="fixed", **settings)
    expected = smf.glm("y ~ age + dose + site", visits, family=sm.families.Binomial()).fit(
        tol=1e-15, cov_type="cluster", cov_kwds={"groups": clusters_of(visits)}).bse[[*fit.names]]
    np.testing.assert_allclose(fit.table["standard error"], expected, rtol=1e-8)
    fit = rv.regress(visits, "Surv(days, died) ~ age + dose", ties="breslow", **settings)
    cox = PHReg(visits["days"], visits[[*fit.names]], visits["died"], strata=visits["site"], ties="breslow").fit()
    scores = pd.DataFrame(cox.score_residuals).groupby(clusters_of(visits)).sum().to_numpy()
    inverse = cox.cov_params()
    np.testing.assert_allclose(fit.covariance, inverse @ scores.T @ scores @ inverse, rtol=1e-6)
    with pytest.raises(InputError, match="set errors=clustered"):
        rv.regress(visits, "y ~ age", party="site", cluster="patient")


def restricted(frame, formula, law, name, value):
    """The deviance of the fit with one coefficient at a value, and the others free."""
    full = smf.glm(formula, frame, family=law)
    j = full.exog_names.index(name)
    return sm.GLM(full.endog, np.delete(full.exog, j, axis=1), family=law, offset=value * full.exog[:, j]).fit(
        tol=1e-15, maxiter=200).deviance


@parametrize("family", FAMILIES, per_commit=1)
def test_likelihood_ratios_and_profile_intervals_are_those_of_restricted_fits(visits, family):
    """The fits of statsmodels under each hypothesis; the deviance at an end is the quantile, times the dispersion."""
    label, law = FAMILIES[family]
    formula, profile = f"{label} ~ age + ward + dose", ["age", "ward[T.B]"]
    hypotheses = {"ward": "age + dose", "age, dose": "ward", "ward[T.B] = ward[T.C]": "age + dose + I(ward != 'A')"}
    fit = rv.regress(visits, formula, party="site", family=family, likelihood_tests=[*hypotheses], profile=profile)
    full = smf.glm(formula, visits, family=law).fit(tol=1e-15, maxiter=200)
    has_t = family in ("gaussian", "gamma")
    for text, right in hypotheses.items():
        test = fit.likelihood_test(text)
        other = smf.glm(f"{label} ~ {right}", visits, family=law).fit(tol=1e-15, maxiter=200)
        statistic = (other.deviance - full.deviance) / full.scale
        q = test.freedom if has_t else 1
        np.testing.assert_allclose(test.statistic, statistic / q, rtol=1e-8)
        expected = stats.f.sf(statistic / q, q, test.rest) if has_t else stats.chi2.sf(statistic, test.freedom)
        assert test.p == pytest.approx(expected, rel=1e-7)
        assert f"Likelihood-ratio test of {text}: " in fit.summary()
    quantile = (stats.t(fit.degrees_of_freedom) if has_t else stats.norm()).ppf(0.975)
    for name in profile:
        for end in ("low", "high"):
            sides = [fit.table.loc[name, "estimate"], fit.table.loc[name, end]]
            found = optimize.brentq(lambda b, name=name: (restricted(visits, formula, law, name, b) - full.deviance)
                                    / full.scale - quantile**2, sides[0], 2 * sides[1] - sides[0], xtol=1e-12)
            assert sides[1] == pytest.approx(found, abs=1e-8)
    assert "of the profile likelihood for age, ward[T.B]" in " ".join(fit.summary().split())


def test_a_likelihood_that_there_is_not_is_refused(visits):
    for settings in ({"errors": "robust"}, {"l2": 0.1}):
        with pytest.raises(InputError, match="profile is of the likelihood"):
            rv.regress(visits, "y ~ age + ward", party="site", profile=["age"], **settings)
    with pytest.raises(InputError, match="no coefficient 'wage'"):
        rv.regress(visits, "y ~ age + ward", party="site", profile=["wage"])
    with pytest.raises(InputError, match="depend on each other"):
        rv.regress(visits, "y ~ age + ward", party="site", likelihood_tests=["age, 2*age"])
    with pytest.raises(InputError, match="families binomial and poisson"):
        rv.regress(visits, "score ~ age", party="site", firth=True)


def firth(x, y, free=None, at=None):
    """Firth's logistic regression in plain NumPy: its estimate, and its penalised log-likelihood."""
    b, free = np.zeros(x.shape[1]) if at is None else np.array(at, float), slice(None) if free is None else free
    for _ in range(2000):
        p = 1 / (1 + np.exp(-x @ b))
        inverse = np.linalg.inv(x.T @ (x * (p * (1 - p))[:, None]))
        h = p * (1 - p) * np.einsum("ij,jk,ik->i", x, inverse, x)
        score = (x.T @ (y - p + h * (0.5 - p)))[free]
        step = np.linalg.solve(np.linalg.inv(inverse)[free][:, free], score)
        b[free] += step / max(1, np.abs(step).max())
        if np.abs(step).max() < 1e-14:
            break
    p = 1 / (1 + np.exp(-x @ b))
    value = np.sum(np.where(y == 1, np.log(p), np.log1p(-p))) - np.linalg.slogdet(inverse)[1] / 2
    return b, value, np.sqrt(np.diag(inverse))


def test_firths_penalty_where_a_column_divides_the_rows(visits):
    """Against plain NumPy: the estimates, their errors, the ratio test, and the ends of the profile."""
    frame = visits.assign(rare=((visits["dose"] > 0.9) & (visits["y"] == 1)).astype(int))
    plain = rv.regress(frame, "y ~ age + rare", party="site")
    assert np.isnan(plain.table.loc["rare", "estimate"])
    assert "set firth (binomial, poisson)" in plain.summary()
    fit = rv.regress(frame, "y ~ age + rare", party="site", firth=True, profile=["rare"], likelihood_tests=["rare"])
    x, y = np.column_stack([np.ones(len(frame)), frame["age"], frame["rare"]]), frame["y"].to_numpy()
    b, value, errors = firth(x, y)
    np.testing.assert_allclose(fit.estimates, b, rtol=1e-8)
    np.testing.assert_allclose(fit.table["standard error"], errors, rtol=1e-8)
    assert fit.log_likelihood == pytest.approx(value, rel=1e-10)
    _, at_zero, _ = firth(x, y, free=[0, 1])
    assert fit.likelihood_test("rare").statistic == pytest.approx(2 * (value - at_zero), rel=1e-8)
    for end in fit.table.loc["rare", ["low", "high"]]:
        _, at_end, _ = firth(x, y, free=[0, 1], at=[*b[:2], end])
        assert 2 * (value - at_end) == pytest.approx(stats.chi2.ppf(0.95, 1), rel=1e-8)
    assert fit.differences is None
    assert "with Firth's penalty" in fit.summary()


@pytest.mark.when_changed
def test_firths_penalty_of_groups_is_half_a_row_in_each_cell():
    """The closed forms of saturated models: 1/2 added to each cell of two by two, and to each group's sum of counts."""
    frame = pd.DataFrame({"site": ["a", "b"] * 20, "x": [0] * 17 + [1] * 23, "y": [0] * 17 + [1] * 16 + [0] * 7})
    table = pd.crosstab(frame["x"], frame["y"]).to_numpy() + 0.5
    fit = rv.regress(frame, "y ~ x", party="site", firth=True)
    np.testing.assert_allclose(fit.estimates, [np.log(table[0, 1] / table[0, 0]), np.log(
        table[1, 1] * table[0, 0] / table[1, 0] / table[0, 1])], rtol=1e-8)
    fit = rv.regress(frame, "y ~ x", party="site", family="poisson", firth=True)
    means = (frame.groupby("x")["y"].sum() + 0.5) / frame.groupby("x")["y"].count()
    np.testing.assert_allclose(fit.estimates, [np.log(means[0]), np.log(means[1] / means[0])], rtol=1e-8)


def test_marginal_effects_at_given_values_are_those_of_statsmodels(visits):
    fit = rv.regress(visits, "y ~ age + ward + dose", party="site", family="binomial")
    logit = smf.logit("y ~ age + ward + dose", visits).fit(disp=0, method="newton", tol=1e-14)
    rows = pd.DataFrame({"age": [40.0, 62.0], "ward": ["A", "A"], "dose": [0.0, 1.5]})
    for i, (age, dose) in enumerate(zip(rows["age"], rows["dose"], strict=True)):
        at = {logit.model.exog_names.index(name): value for name, value in (
            ("age", age), ("dose", dose), ("ward[T.B]", 0), ("ward[T.C]", 0))}
        expected = logit.get_margeff(at="overall", atexog=at).summary_frame()
        for name in ("age", "dose"):
            found = fit.effects(name, rows).iloc[i]
            np.testing.assert_allclose(found[["effect", "standard error", "low", "high"]],
                                       expected.loc[name].iloc[[0, 1, 4, 5]], rtol=1e-7)
    wards = fit.effects("ward", rows)
    means = {ward: fit.predict(rows.assign(ward=ward))["prediction"] for ward in "AB"}
    np.testing.assert_allclose(wards["effect B"], means["B"] - means["A"], rtol=1e-12)
    with pytest.raises(InputError, match="'wage' is no column of the formula"):
        fit.effects("wage", rows)


def test_a_marginal_effect_has_all_terms_of_its_column(visits):
    """The derivative of a + b age + c age^2 + e log(age) is b + 2 c age + e/age; its variance is that of this sum."""
    fit = rv.regress(visits, "score ~ age + I(age**2) + log(age)", party="site")
    rows = pd.DataFrame({"age": [35.0, 61.0]})
    gradient = np.column_stack([[0, 0], [1, 1], 2 * rows["age"], 1 / rows["age"]])
    gradient = gradient[:, [["Intercept", "age", "I(age ** 2)", "log(age)"].index(
        name.replace("age**2", "age ** 2")) for name in fit.names]]
    effects = fit.effects("age", rows)
    np.testing.assert_allclose(effects["effect"], gradient @ fit.estimates, rtol=1e-8)
    np.testing.assert_allclose(effects["standard error"], np.sqrt(np.diag(gradient @ fit.covariance @ gradient.T)),
                               rtol=1e-7)
