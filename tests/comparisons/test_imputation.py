"""Multiple imputation: the pooling against statsmodels and NumPy, and the draws on tables whose truth is known."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy import stats
from statsmodels.duration.hazard_regression import PHReg

import resolvent as rv
from resolvent.comparisons.regression.formula import parse_formula
from resolvent.comparisons.regression.imputation import _draw_classes, _draw_numbers, impute
from resolvent.comparisons.regression.predictions import Predictor
from resolvent.comparisons.regression.rows import read_tables
from resolvent.comparisons.regression.settings import RegressionSettings
from resolvent.errors import InputError

FORMULA, COUNT = "ill ~ age + ward + smoker", 4


@pytest.fixture(scope="module")
def visits():
    rng = np.random.default_rng(1)
    n = 360
    frame = pd.DataFrame({"site": np.repeat(["Bonn", "Essen", "Ulm"], n // 3), "age": rng.normal(50, 10, n).round(),
                          "ward": rng.choice(list("ABC"), n), "smoker": rng.random(n) < 0.4})
    eta = 0.05 * frame["age"] + 0.6 * (frame["ward"] == "B") + 0.5 * frame["smoker"] - 3
    frame["ill"] = np.where(rng.random(n) < 1 / (1 + np.exp(-eta)), "yes", "no")
    frame["days"], frame["died"] = np.ceil(rng.exponential(100 * np.exp(-eta / 2))), rng.integers(0, 2, n)
    for name, share in (("age", 0.2), ("ward", 0.15), ("smoker", 0.1), ("ill", 0.02)):
        frame[name] = frame[name].where(rng.random(n) > share)
    return frame


@pytest.fixture(scope="module")
def fit(visits):
    return rv.regress(visits, FORMULA, party="site", imputations=COUNT, seed=7, tests=["ward"])


@pytest.fixture(scope="module")
def pooled(visits):
    """The fits of statsmodels to the completed tables: [m, P] estimates, [m, P, P] covariances, and their mean."""
    settings = RegressionSettings(formula=FORMULA, imputations=COUNT, seed=7)
    fits = [sm.GLM(rows.y, rows.x, family=sm.families.Binomial()).fit(tol=1e-15)
            for rows in read_tables(visits, settings, party="site")]
    return np.array([f.params for f in fits]), np.array([f.cov_params() for f in fits]), fits[0].df_resid


def rubin(estimates, variances, rest):
    """Rubin's rules and the degrees of freedom of Barnard and Rubin, for a number."""
    m = len(estimates)
    within, between = np.mean(variances), np.var(estimates, ddof=1)
    total = within + (m + 1) / m * between
    share = (m + 1) / m * between / total
    observed = (1 - share) * rest * (rest + 1) / (rest + 3)
    return np.mean(estimates), total, 1 / (1 / ((m - 1) / share**2) + 1 / observed)


def test_the_fits_of_the_completed_tables_are_pooled_by_rubins_rules(fit, pooled):
    estimates, covariances, rest = pooled
    expected = np.array([rubin(estimates[:, j], covariances[:, j, j], rest) for j in range(estimates.shape[1])])
    mean, error, freedom = expected[:, 0], np.sqrt(expected[:, 1]), expected[:, 2]
    table = fit.table
    np.testing.assert_allclose(table["estimate"], mean, rtol=1e-8)
    np.testing.assert_allclose(table["standard error"], error, rtol=1e-8)
    np.testing.assert_allclose(table["degrees of freedom"], freedom, rtol=1e-7)
    np.testing.assert_allclose(table["p"], 2 * stats.t.sf(np.abs(mean / error), freedom), rtol=1e-6)
    np.testing.assert_allclose(table["high"], mean + stats.t.ppf(0.975, freedom) * error, rtol=1e-8)
    total = covariances.mean(axis=0) + (1 + 1 / COUNT) * np.cov(estimates.T)
    np.testing.assert_allclose(fit.covariance, total, rtol=1e-8)


def test_a_factor_is_tested_as_in_li_raghunathan_and_rubin(fit, pooled):
    estimates, covariances, _ = pooled
    b, within = estimates[:, 1 + 1:4].mean(axis=0), covariances[:, 2:4, 2:4].mean(axis=0)
    assert [*fit.names[2:4]] == ["ward[T.B]", "ward[T.C]"]
    rise = (1 + 1 / COUNT) * np.trace(np.cov(estimates[:, 2:4].T) @ np.linalg.inv(within)) / 2
    t = 2 * (COUNT - 1)
    rest = 4 + (t - 4) * (1 + (1 - 2 / t) / rise)**2
    statistic = b @ np.linalg.inv(within) @ b / (2 * (1 + rise))
    test = fit.test("ward")
    np.testing.assert_allclose([test.statistic, test.rest], [statistic, rest], rtol=1e-7)
    np.testing.assert_allclose(test.p, stats.f.sf(statistic, 2, rest), rtol=1e-7)
    assert f"degrees of freedom, p {test.p:.3f}" in fit.summary()
    alone = fit.test("age = 0.05")
    line = fit.table.loc["age"]
    np.testing.assert_allclose([alone.rest, alone.low], [line["degrees of freedom"], line["low"]], rtol=1e-10)


def test_predictions_and_effects_have_the_degrees_of_freedom_of_their_rows(fit, pooled, tmp_path):
    estimates, covariances, rest = pooled
    new = pd.DataFrame({"age": [40, 70], "ward": ["A", "C"], "smoker": [True, False]})
    x = np.array([[1, 40, 0, 0, 1], [1, 70, 0, 1, 0]])
    expected = [rubin(estimates @ row, [row @ v @ row for v in covariances], rest) for row in x]
    told = fit.predict(new, scale="link")
    np.testing.assert_allclose(told["prediction"], [mean for mean, *_ in expected], rtol=1e-8)
    reach = [stats.t.ppf(0.975, freedom) * total**0.5 for _, total, freedom in expected]
    np.testing.assert_allclose(told["high"] - told["prediction"], reach, rtol=1e-7)
    effects = fit.effects("age", new)
    p = 1 / (1 + np.exp(-told["prediction"].to_numpy()))
    np.testing.assert_allclose(effects["effect"], p * (1 - p) * fit.table.loc["age", "estimate"], rtol=1e-7)
    fit.save(tmp_path / "saved")
    again = Predictor.load(tmp_path / "saved")
    pd.testing.assert_frame_equal(again.predict(new), fit.predict(new))
    pd.testing.assert_frame_equal(again.effects("age", new), effects)


def completed(frame, number=0, **settings):
    formula = settings.pop("formula", FORMULA)
    chosen = RegressionSettings(formula=formula, imputations=2, **settings)
    used = frame[["site", *parse_formula(formula).response.columns, *parse_formula(formula).variables]]
    return impute(used, parse_formula(formula), chosen, frame["site"].to_numpy(), number)


def test_a_site_draws_from_its_own_rows_values_that_occur(visits):
    first, label = completed(visits), visits["ill"].notna()
    for name in ("age", "ward", "smoker"):
        known = visits[name].notna()
        assert (first.loc[known, name] == visits.loc[known, name]).all()
        assert first.loc[label, name].notna().all()
        assert first.loc[~label & ~known, name].isna().all()
        for site in ("Bonn", "Essen", "Ulm"):
            own = visits["site"] == site
            assert {*first.loc[own & label, name]} <= {*visits.loc[own & known, name]}
    others = completed(visits[visits["site"] != "Ulm"])
    pd.testing.assert_frame_equal(others, first[visits["site"] != "Ulm"], check_dtype=False)
    assert completed(visits).equals(first)
    assert not completed(visits, number=1).equals(first)
    assert not completed(visits, seed=1).equals(first)


def test_rows_are_counted_and_complete_cases_stay_the_default(visits, fit):
    label, gaps = visits["ill"].notna(), visits.isna().any(axis=1)
    of_sites = visits[label & gaps].groupby("site").size().to_dict()
    assert fit.facts()["rows_imputed"] == of_sites
    assert fit.count == label.sum()
    summary = fit.summary()
    assert f"{sum(of_sites.values())} rows with missing values completed {COUNT} times" in summary
    assert f"{(~label).sum()} rows with missing values left out" in summary
    assert "Mean of 4 completed tables, by Rubin's rules" in summary
    assert np.isnan(fit.aic)
    plain = rv.regress(visits, FORMULA, party="site")
    assert plain.count == (~gaps).sum()
    same = rv.regress(visits[~gaps], FORMULA, party="site", imputations=2)
    np.testing.assert_allclose(same.covariance, plain.covariance, rtol=1e-10)
    assert same.test("ward").rest is None
    assert (same.table["variance between imputations"].abs() < 1e-10).all()


def test_draws_of_numbers_have_the_spread_of_the_coefficients_and_of_the_rows():
    """One draw of the coefficients is common to all gaps, as a proper imputation has it."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 1))
    y = 2 * x[:, 0] + rng.normal(size=400)
    new = rng.normal(size=(300, 1))
    lines = np.array([np.polyfit(new[:, 0], _draw_numbers(x, y, new, rng), 1) for _ in range(200)])
    np.testing.assert_allclose(lines.mean(axis=0), np.polyfit(x[:, 0], y, 1), atol=0.05)
    # A line through 300 draws varies by 1/sqrt(300) from the rows and by 1/sqrt(400) from the coefficients: by 0.076.
    np.testing.assert_allclose(lines.std(axis=0), 0.076, rtol=0.25)


def test_rows_with_equal_predictions_are_equally_likely_donors():
    x = np.repeat([[0.0], [1.0]], 100, axis=0)
    draws = _draw_numbers(x, np.arange(200.0), np.zeros((400, 1)), np.random.default_rng(0))
    assert draws.max() < 100
    assert len(np.unique(draws)) > 90


@pytest.mark.parametrize("levels", [2, 3])
def test_draws_of_classes_have_the_posterior_of_statsmodels(levels):
    rng = np.random.default_rng(levels)
    x = rng.normal(size=(500, 1))
    logits = np.column_stack([np.zeros(500), x[:, 0], -x[:, 0] - 0.5])[:, :levels]
    y = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    new = np.repeat([[0.0], [1.0]], 400, axis=0)
    draws = np.array([_draw_classes(x, y, new, rng) for _ in range(150)]).reshape(150, 2, 400)
    model = sm.MNLogit(y, sm.add_constant(x)).fit(disp=False)
    expected = model.predict(np.array([[1.0, 0.0], [1.0, 1.0]]))
    shares = np.stack([(draws == k).mean(axis=2) for k in range(levels)], axis=2)  # [draws, 2, K]
    np.testing.assert_allclose(shares.mean(axis=0), expected, atol=0.02)
    of_rows = np.sqrt(expected * (1 - expected) / 400)
    assert (shares.std(axis=0) > 1.1 * of_rows)[1].all()  # the coefficients are drawn, too


def test_classes_that_a_column_separates_have_finite_draws():
    x = np.linspace(-1, 1, 60)[:, None]
    y = (x[:, 0] > 0).astype(int)
    draws = _draw_classes(x, y, np.array([[-1.0], [1.0]] * 50), np.random.default_rng(0)).reshape(50, 2)
    assert draws[:, 0].mean() < 0.2
    assert draws[:, 1].mean() > 0.8
    assert (_draw_classes(x, np.full(60, 3), x[:4], np.random.default_rng(0)) == 3).all()


def test_missing_at_random_is_biased_for_complete_cases_and_not_when_imputed():
    rng = np.random.default_rng(2)
    n = 6000
    frame = pd.DataFrame({"site": np.repeat(["a", "b", "c"], n // 3), "x": rng.normal(size=n)})
    frame["y"] = frame["x"] + 0.5 + rng.normal(size=n)
    frame["x"] = frame["x"].where(rng.random(n) > np.where(frame["y"] > 1, 0.7, 0.05))
    rows = frame.dropna()
    complete = sm.OLS(rows["y"], sm.add_constant(rows["x"])).fit()
    fit = rv.regress(frame, "y ~ x", party="site", family="gaussian", imputations=5).table.loc["x"]
    assert abs(fit["estimate"] - 1) < 3 * fit["standard error"] < 0.1
    assert abs(complete.params["x"] - 1) > 5 * complete.bse["x"]


@pytest.mark.when_changed
@pytest.mark.parametrize("label", ["Surv(days, died)", "Surv(start, days, died)"])
def test_times_enter_by_the_event_and_the_cumulative_hazard(label):
    rng = np.random.default_rng(3)
    n = 4000
    x = rng.normal(size=n)
    time, end = rng.exponential(np.exp(-0.7 * x)), rng.exponential(1.5, n)
    start = np.where(rng.random(n) < 0.5, 0.0, rng.uniform(0, 0.5, n)) if "start" in label else np.zeros(n)
    frame = pd.DataFrame({"site": np.repeat(["a", "b"], n // 2), "x": x, "start": start,
                          "days": np.minimum(time, end), "died": (time <= end).astype(int)})
    frame = frame[frame["days"] > frame["start"]]
    # By the event and by the end of observation, so that complete cases are not a random part.
    missing = np.where((frame["died"] == 1) & (frame["days"] < 0.5), 0.7, 0.1)
    frame["x"] = frame["x"].where(rng.random(len(frame)) > missing)
    rows = frame.dropna()
    complete = PHReg(rows["days"], rows[["x"]], rows["died"], entry=rows["start"]).fit().params[0]
    fit = rv.regress(frame, f"{label} ~ x", party="site", imputations=4).table.loc["x"]
    assert abs(fit["estimate"] - 0.7) < 2 * fit["standard error"]
    assert abs(complete - 0.7) > 2 * abs(fit["estimate"] - 0.7)


@pytest.mark.parametrize(("settings", "words"), [
    ({"imputations": 1}, "set 20, or at least 2"), ({"imputations": 3, "l2": 0.1}, "imputations and l2"),
    ({"imputations": 3, "profile": ["age"]}, "imputations and profile"),
    ({"imputations": 3, "site": "random"}, "imputations and site=random"),
    ({"imputations": 3, "frequency_weights": "count"}, "repeat the rows"), ({"seed": -1}, "seed")])
def test_what_does_not_go_with_imputations_is_refused(visits, settings, words):
    with pytest.raises(InputError, match=words):
        rv.regress(visits, FORMULA, party="site", **settings)


def test_polynomials_and_a_column_without_values_at_a_site_are_refused(visits, fit):
    with pytest.raises(InputError, match="poly"):
        rv.regress(visits, "ill ~ poly(age, 2)", party="site", imputations=2)
    empty = visits.assign(age=visits["age"].where(visits["site"] != "Ulm"))
    with pytest.raises(InputError, match="site 'Ulm': 'age' has no value in any row"):
        rv.regress(empty, FORMULA, party="site", imputations=2)
    for further in (fit.heterogeneity, lambda: fit.likelihood_test("age"), lambda: fit.with_errors("robust")):
        with pytest.raises(InputError):
            further()
    assert fit.with_errors("model", level=0.9).table.loc["age", "high"] < fit.table.loc["age", "high"]
