"""Calibration and discrimination of regressions on new rows: against statsmodels, scikit-learn and all pairs."""

import json

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from sklearn.metrics import roc_auc_score
from statsmodels.duration.hazard_regression import PHReg

import resolvent as rv
from resolvent.errors import InputError
from resolvent.statistics import validate


@pytest.fixture(scope="module")
def visits():
    rng = np.random.default_rng(1)
    n = 300
    frame = pd.DataFrame({"age": rng.normal(50, 10, n).round(), "dose": rng.normal(size=n),
                          "hospital": rng.choice(["Bonn", "Essen", "Ulm"], n)})
    frame["ill"] = np.where(rng.random(n) < 1 / (1 + np.exp(2 - 0.05 * frame["age"])), "yes", "no")
    frame["cost"] = rng.gamma(2, np.exp(0.02 * frame["age"]) / 2)
    frame["days"] = np.ceil(rng.exponential(40, n) * np.exp(-0.4 * frame["dose"]))
    frame["died"] = (rng.random(n) < 0.7).astype(int)
    return frame


@pytest.fixture(scope="module")
def later(visits):
    return visits.sample(frac=1, replace=True, random_state=2).reset_index(drop=True).assign(
        dose=lambda frame: 1.5 * frame["dose"], age=lambda frame: frame["age"] + 3)


def all_pairs(time, event, risk):
    """The concordance of one site, and the jackknife's influences by the definition."""
    agree, compared = np.zeros(len(time)), np.zeros(len(time))
    for i in range(len(time)):
        for j in range(len(time)):
            if event[i] and (time[i] < time[j] or (time[i] == time[j] and not event[j])):
                for row in (i, j):
                    compared[row] += 1
                    agree[row] += 1.0 if risk[i] > risk[j] else 0.5 * (risk[i] == risk[j])
    return agree, compared


def test_two_classes_have_the_calibration_and_the_area_of_others(visits, later):
    fit = rv.regress(visits, "ill ~ age + dose", party="hospital")
    table = validate(fit.predictor, later, party="hospital")
    eta, y = fit.predict(later, scale="link")["prediction"], (later["ill"] == "yes").astype(float)
    assert [*table.index] == ["Bonn", "Essen", "Ulm", "all"]
    for site, line in table.iterrows():
        rows = (later["hospital"] == site) | (site == "all")
        reference = sm.GLM(y[rows], sm.add_constant(eta[rows]), family=sm.families.Binomial()).fit(tol=1e-14)
        np.testing.assert_allclose(line[["intercept", "slope"]].astype(float), reference.params, atol=1e-8)
        np.testing.assert_allclose(line[["intercept error", "slope error"]].astype(float), reference.bse, rtol=1e-6)
        assert line["observed"] == pytest.approx(y[rows].mean(), rel=1e-12)
        assert line["expected"] == pytest.approx((1 / (1 + np.exp(-eta[rows]))).mean(), rel=1e-12)
        if site != "all":  # together, only rows of one site are compared
            assert line["concordance"] == pytest.approx(roc_auc_score(y[rows], eta[rows]), rel=1e-12)


@pytest.mark.when_changed
def test_times_have_the_slope_of_a_cox_model_and_all_pairs(visits, later):
    fit = rv.regress(visits, "Surv(days, died) ~ age + dose", party="hospital")
    table = validate(fit.predictor, later, party="hospital")
    eta = fit.predict(later, scale="link")["prediction"]
    parts = []
    for site in ("Bonn", "Essen", "Ulm"):
        rows = later[later["hospital"] == site]
        reference = PHReg(rows["days"], eta[rows.index], status=rows["died"], ties="efron").fit(
            method="newton", disp=0, tol=1e-14)
        assert table.loc[site, "slope"] == pytest.approx(reference.params[0], abs=1e-8)
        parts.append(all_pairs(*(x.to_numpy() for x in (rows["days"], rows["died"], eta[rows.index]))))
        agree, compared = parts[-1]
        concordance = agree.sum() / compared.sum()
        assert table.loc[site, "concordance"] == pytest.approx(concordance, rel=1e-12)
        error = 2 * np.sqrt(np.sum((agree - concordance * compared)**2)) / compared.sum()
        assert table.loc[site, "concordance error"] == pytest.approx(error, rel=1e-12)
    agree, compared = np.concatenate(parts, axis=1)
    assert table.loc["all", "concordance"] == pytest.approx(agree.sum() / compared.sum(), rel=1e-12)
    assert "intercept" not in table


@pytest.mark.when_changed
def test_numbers_of_a_gamma_regression(visits, later):
    fit = rv.regress(visits, "cost ~ age", party="hospital", family="gamma")
    table = validate(fit.predictor, later)  # the rows of one site
    eta = fit.predict(later, scale="link")["prediction"]
    reference = sm.GLM(later["cost"], sm.add_constant(eta),
                       family=sm.families.Gamma(sm.families.links.Log())).fit(tol=1e-14)
    np.testing.assert_allclose(table.loc["all", ["intercept", "slope"]].astype(float), reference.params, atol=1e-7)


def test_small_cells_are_told_neither_alone_nor_by_the_total(visits, later):
    fit = rv.regress(visits, "ill ~ age + dose", party="hospital")
    few = (later["hospital"] == "Ulm") & (later["ill"] == "yes")
    rows = later.drop(index=later.index[few][4:])
    table = validate(fit.predictor, rows, party="hospital")
    assert table.loc["Ulm", "note"] == "fewer than 5 rows of each kind of 'ill'"
    assert table.loc["Ulm"].drop("note").isna().all()
    assert table.loc["all", "rows"] == (rows["hospital"] != "Ulm").sum()
    with pytest.raises(InputError, match="no site has enough rows"):
        validate(fit.predictor, rows[rows["hospital"] == "Ulm"], party="hospital")


def test_rows_that_do_not_fit_are_named(visits, later):
    fit = rv.regress(visits, "ill ~ age + dose", party="hospital")
    with pytest.raises(InputError, match="'perhaps', which is no class"):
        validate(fit.predictor, later.assign(ill=later["ill"].where(later.index > 0, "perhaps")), party="hospital")
    with pytest.raises(InputError, match="no column 'hospital'"):
        validate(fit.predictor, later.drop(columns="hospital"), party="hospital")


@pytest.mark.when_changed
def test_the_command_prints_a_line_for_each_site(visits, later, tmp_path, call):
    rv.regress(visits, "ill ~ age + dose", party="hospital").save(tmp_path / "regression")
    later.to_csv(tmp_path / "later.csv", index=False)
    shown = call("model", "evaluate", "regression", "later.csv", "--set", "party=hospital", cwd=tmp_path)
    assert shown.code == 0, shown.err
    assert [line.split()[0] for line in shown.out.splitlines()[-5:]] == ["site", "Bonn", "Essen", "Ulm", "all"]
    record = json.loads(call("model", "evaluate", "regression", "later.csv", "--set", "party=hospital", "--format",
                             "json", cwd=tmp_path).out)
    table = validate(rv.regress(visits, "ill ~ age + dose", party="hospital").predictor, later, party="hospital")
    assert record["Ulm"]["slope"] == pytest.approx(table.loc["Ulm", "slope"], rel=1e-9)
    refused = call("model", "evaluate", "regression", "later.csv", "--site", "Ulm", cwd=tmp_path)
    assert "calibration and concordance at each site" in refused.err
