"""Cox models with late entries, strata and both kinds of ties: against statsmodels and lifelines."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy.stats import rankdata
from statsmodels.duration.hazard_regression import PHReg
from statsmodels.duration.survfunc import SurvfuncRight

import resolvent as rv
from nightly import parametrize
from resolvent.comparisons.regression.formula import parse_formula
from resolvent.errors import InputError
from resolvent.regression.cox import CoxRegression


@pytest.fixture(scope="module")
def patients():
    """Times with many ties."""
    rng = np.random.default_rng(3)
    n = 240
    frame = pd.DataFrame({"age": rng.normal(50, 10, n).round(), "dose": rng.normal(size=n).round(2),
                          "ward": rng.choice(["A", "B"], n), "site": rng.choice(["Bonn", "Essen", "Ulm"], n)})
    times = rng.exponential(40, n) * np.exp(-0.03 * (frame["age"] - 50) - 0.4 * frame["dose"])
    frame["days"], frame["died"] = np.ceil(times), (rng.random(n) < 0.75).astype(int)
    frame["start"] = np.floor((frame["days"] - 1) * rng.random(n) * 0.5)
    return frame


def reference(frame, *, entry=None, strata=("site",), ties="efron"):
    """Without a gradient of zero, statsmodels would stop before 1e-8."""
    of_rows = frame[[*strata]].agg("".join, axis=1)
    model = PHReg(frame["days"], frame[["age", "dose"]], status=frame["died"], strata=of_rows, ties=ties, entry=entry)
    return model, model.fit(method="newton", disp=0, tol=1e-14)


@pytest.mark.when_changed
@parametrize(("entry", "strata", "ties"), [
    (True, "ward", "breslow"), (True, None, "efron"), (False, "ward", "efron"), (False, None, "breslow")])
def test_late_entries_strata_and_ties_are_those_of_statsmodels(patients, entry, strata, ties):
    # statsmodels lets rows enter at the time of an event; with halves, no row does.
    frame = patients.assign(start=patients["start"] + 0.5)
    label = "Surv(start, days, died)" if entry else "Surv(days, died)"
    fit = rv.regress(frame, f"{label} ~ age + dose", party="site", strata=strata, ties=ties)
    _, expected = reference(frame, entry=frame["start"] if entry else None, ties=ties,
                            strata=["site", *([strata] if strata else [])])
    np.testing.assert_allclose(fit.table["estimate"], expected.params, rtol=0, atol=1e-8)
    np.testing.assert_allclose(fit.table["standard error"], expected.bse, rtol=1e-6)
    assert fit.log_likelihood == pytest.approx(expected.llf, rel=1e-12)
    assert f"ties by {ties.capitalize()}" in fit.summary()
    assert ("stratified by site and ward" in fit.summary()) == (strata is not None)


@pytest.mark.when_changed
@parametrize("ties", ["efron", "breslow"])
def test_a_row_in_two_parts_has_the_likelihood_of_the_whole(patients, ties):
    """A row is at risk in (start, stop]: also if it is divided at the time of an event of others."""
    whole = patients.assign(start=0.0)
    cut = np.floor(patients["days"] / 2)
    has_two = cut > 0
    first = whole[has_two].assign(days=cut[has_two], died=0)
    parts = pd.concat([first, whole.assign(start=cut)], ignore_index=True)
    fits = [rv.regress(frame, "Surv(start, days, died) ~ age + dose", party="site", ties=ties)
            for frame in (whole, parts)]
    np.testing.assert_allclose(fits[1].estimates, fits[0].estimates, atol=1e-10)
    assert fits[1].log_likelihood == pytest.approx(fits[0].log_likelihood, rel=1e-12)
    with pytest.raises(AssertionError):  # the later part alone, at risk from the beginning, is another model
        np.testing.assert_allclose(rv.regress(parts, "Surv(days, died) ~ age + dose", party="site").estimates,
                                   fits[0].estimates, atol=1e-3)


@pytest.mark.when_changed
def test_residuals_of_all_kinds_add_up(patients):
    """With late entries and strata: scores and Schoenfeld's residuals have the sum of the gradient."""
    frame = patients.sort_values("site")
    strata = (frame["ward"] == "A").astype(int)
    sizes = frame["site"].value_counts(sort=False)
    with jax.enable_x64(True):
        problem = CoxRegression(frame[["age", "dose"]], frame["days"], frame["died"], sizes, entry=frame["start"],
                                strata=strata)
        w = jnp.array([0.02, 0.3])
        gradient = sum(np.asarray(problem.oracle(jnp.array(k)).mean_second_order(w)[1]) * n
                       for k, n in enumerate(sizes))
        residuals = np.asarray(problem.event_residuals(w))
        np.testing.assert_allclose(residuals.sum(axis=0), -gradient, rtol=1e-9)
        assert not residuals[(frame["died"] == 0).to_numpy()].any()
        one = CoxRegression(frame[["age", "dose"]], frame["days"], frame["died"], [len(frame)], entry=frame["start"],
                            strata=strata, weights=1 + frame["age"] % 4, power=2)
        answered = np.asarray(one.answered_columns(w, scores=True))
        _, gradient, _ = one.oracle(jnp.array(0)).mean_second_order(w)
        np.testing.assert_allclose(answered[:, -2:].sum(axis=0), -np.asarray(gradient) * len(frame), rtol=1e-9)


@pytest.mark.when_changed
def test_frequency_weights_with_ties_by_breslow_are_repeated_rows(patients):
    frame = patients.assign(count=1 + np.arange(len(patients)) % 3)
    repeated = frame.loc[frame.index.repeat(frame["count"])].reset_index(drop=True)
    fits = [rv.regress(rows, "Surv(start, days, died) ~ age + dose", party="site", strata="ward", ties="breslow",
                       frequency_weights=weights) for rows, weights in ((frame, "count"), (repeated, None))]
    for errors in ("model", "robust", "clustered"):
        weighted, expected = (fit.with_errors(errors) for fit in fits)
        np.testing.assert_allclose(weighted.table, expected.table, rtol=1e-8)
    assert fits[0].log_likelihood == pytest.approx(fits[1].log_likelihood, rel=1e-12)
    assert fits[0].observations == len(repeated)
    np.testing.assert_allclose(fits[0].baseline()["hazard"], fits[1].baseline()["hazard"], rtol=1e-8)
    with pytest.raises(InputError, match="takes no weights"):
        fits[0].proportional_hazards()


def test_weights_are_those_of_lifelines(patients):
    """CoxPHFitter of lifelines 0.30.3, strata=["site"], weights_col="w"; robust=True where no two times are equal."""
    frame = patients.assign(w=1 + np.arange(len(patients)) % 5 / 2)
    with_ties = rv.regress(frame, "Surv(days, died) ~ age + dose", party="site", sampling_weights="w", errors="robust")
    np.testing.assert_allclose(with_ties.estimates, [0.030445066272195932, 0.4400018989038421], atol=1e-8)
    frame["days"] += np.arange(len(frame)) / 1000
    fit = rv.regress(frame, "Surv(days, died) ~ age + dose", party="site", sampling_weights="w", errors="robust")
    np.testing.assert_allclose(fit.estimates, [0.03066421946228589, 0.44313398036100776], atol=1e-8)
    np.testing.assert_allclose(fit.table["standard error"], [0.009490903035984094, 0.08618200306591219], rtol=1e-7)
    assert "z" in fit.table
    assert np.isnan(fit.log_likelihood)
    with pytest.raises(InputError, match="errors=model does not go with sampling_weights"):
        rv.regress(frame, "Surv(days, died) ~ age", party="site", sampling_weights="w")


@pytest.mark.when_changed
def test_baselines_are_those_of_statsmodels(patients):
    frame = patients.assign(start=patients["start"] + 0.5)
    for entry, label in ((None, "Surv(days, died)"), (frame["start"], "Surv(start, days, died)")):
        fit = rv.regress(frame, f"{label} ~ age + dose", party="site", strata="ward")
        _, expected = reference(frame, entry=entry, strata=["site", "ward"])
        known = fit.baseline()
        assert len(expected.baseline_cumulative_hazard) == 6
        for (_, of_stratum), (times, before, _) in zip(known.groupby(["site", "stratum"]),
                                                       expected.baseline_cumulative_hazard, strict=True):
            np.testing.assert_allclose(of_stratum["time"], times)
            # theirs is the hazard before each time
            np.testing.assert_allclose(np.append(0, of_stratum["hazard"][:-1]), before, rtol=1e-6)
        new = pd.DataFrame({"age": [40.0, 60.0], "dose": [0.5, -1.0]}, index=["a", "b"])
        curves = fit.survival(new)
        ratio = np.exp(new.to_numpy() @ fit.estimates)
        np.testing.assert_allclose(curves[curves["row"] == "b"]["survival"], np.exp(-known["hazard"] * ratio[1]))


def test_predicted_curves_and_tests_of_proportional_hazards_are_those_of_lifelines(patients):
    """CoxPHFitter and proportional_hazard_test of lifelines 0.30.3 on these rows, with strata=["site"]."""
    fit = rv.regress(patients, "Surv(days, died) ~ age + dose", party="site")
    np.testing.assert_allclose(fit.estimates, [0.034332330455338546, 0.4550456279414408], atol=1e-10)
    for clock, expected in (("identity", [0.8398514001471484, 0.1628354133937491]),
                            ("log", [0.556594999824855, 0.5180334653578066])):
        found = fit.proportional_hazards(clock)
        np.testing.assert_allclose(found["statistic"][["age", "dose"]], expected, atol=1e-8)
    curve = fit.survival(pd.DataFrame({"age": [50.0], "dose": [0.5]}))
    curve = curve[curve["site"] == "Ulm"].set_index("time")["survival"]
    np.testing.assert_allclose(curve[[6.0, 22.0]], [0.813917, 0.580608], atol=1e-6)


@pytest.mark.when_changed
@parametrize("clock", ["km", "rank", "identity"])
def test_the_test_of_proportional_hazards_from_residuals_of_statsmodels(patients, clock):
    fit = rv.regress(patients, "Surv(days, died) ~ age + dose", party="site", ties="breslow")
    _, expected = reference(patients, ties="breslow")
    died = (patients["died"] == 1).to_numpy()
    days = patients["days"].to_numpy()
    km = SurvfuncRight(days, patients["died"])
    clocks = {"identity": days[died], "rank": rankdata(days[died]),
              "km": 1 - np.append(1, km.surv_prob)[np.searchsorted(km.surv_times, days[died])]}
    g = clocks[clock] - clocks[clock].mean()
    score = g @ np.asarray(expected.schoenfeld_residuals)[died]
    covariance, scale = expected.cov_params(), g @ g / died.sum()
    each = (covariance @ score)**2 / np.diag(covariance) / scale
    found = fit.proportional_hazards(clock)
    np.testing.assert_allclose(found["statistic"], [*each, score @ covariance @ score / scale], rtol=1e-6)
    assert found.index.tolist() == ["age", "dose", "all"]
    assert found["degrees of freedom"].tolist() == [1, 1, 2]


@pytest.mark.when_changed
def test_hazards_that_are_not_proportional_are_found():
    rng = np.random.default_rng(0)
    n = 600
    treated = rng.integers(0, 2, n)
    frame = pd.DataFrame({"treated": treated, "site": rng.choice(["a", "b"], n), "died": 1,
                          "days": np.where(treated == 1, rng.weibull(3, n), rng.weibull(0.8, n)) + 1e-3})
    assert rv.regress(frame, "Surv(days, died) ~ treated", party="site").proportional_hazards().loc["all", "p"] < 1e-6


EDGES = [10, 20, 40, 80]


def coarse(frame):
    """Times as intervals, each of which ends with its edge; the last one has no end. A late entry is at its begin."""
    return frame.assign(days=np.searchsorted(EDGES, frame["days"]) + 1.0,
                        start=np.searchsorted(EDGES, frame["start"], side="right"))


@parametrize("label", ["Surv(days, died)", "Surv(start, days, died)"])
def test_one_baseline_for_all_sites_is_the_cox_model_of_coarse_times(label, patients):
    fit = rv.regress(patients, f"{label} ~ age + dose", party="site", baseline_times=EDGES)
    frame = coarse(patients).assign(one="one")
    first = frame["start"] if "start" in label else 0 * frame["start"]
    # statsmodels lets rows enter at the time of an event; with halves, no row does.
    _, expected = reference(frame, strata=("one",), ties="breslow", entry=first + 0.5)
    table = fit.table.loc[["age", "dose"]]
    np.testing.assert_allclose(table["estimate"], expected.params, rtol=0, atol=1e-8)
    np.testing.assert_allclose(table["standard error"], expected.bse, rtol=1e-8)
    events = np.bincount(frame["days"][frame["died"] == 1].astype(int))[1:]
    constant = np.sum(events * np.log(events) - events)
    assert fit.log_likelihood - constant == pytest.approx(expected.llf, rel=1e-12)
    baseline = fit.baseline()
    assert [*baseline["time"]] == [*EDGES, np.inf]
    risk = np.exp(frame[["age", "dose"]].to_numpy() @ expected.params)
    at_risk = [risk[(frame["days"] >= interval) & (first < interval)].sum() for interval in range(1, 6)]
    np.testing.assert_allclose(baseline["hazard"], np.cumsum(events / at_risk), rtol=1e-7)  # Breslow's
    assert "one baseline for all sites, in 5 intervals of time" in fit.summary()
    curve = fit.survival(pd.DataFrame({"age": [50], "dose": [0.5]}))
    ratio = np.exp(50 * expected.params[0] + 0.5 * expected.params[1])
    np.testing.assert_allclose(curve["survival"], np.exp(-baseline["hazard"] * ratio), rtol=1e-7)


@pytest.mark.when_changed
@parametrize("settings", [{"errors": "robust"}, {"errors": "robust", "sampling_weights": "w"},
                          {"errors": "clustered", "cluster": "group"}, {"frequency_weights": "f"}, {"offset": "dose"}])
def test_one_baseline_is_that_of_one_site_with_ties_by_breslow(patients, settings):
    """The model of a site's own baseline, which is tested above, with all rows at one site."""
    rng = np.random.default_rng(0)
    frame = patients.assign(w=rng.uniform(1, 3, len(patients)), f=rng.integers(1, 4, len(patients)), one="one",
                            group=patients["site"] + patients["ward"])
    fit = rv.regress(frame, "Surv(days, died) ~ age + dose" if "offset" not in settings else "Surv(days, died) ~ age",
                     party="site", baseline_times=EDGES, **settings)
    whole = rv.regress(coarse(frame), fit.model.formula, party="one", ties="breslow", **settings)
    pd.testing.assert_frame_equal(fit.table.loc[[*whole.names]], whole.table, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(("formula", "settings", "words"), [
    ("Surv(days, died) ~ age", {"baseline_times": EDGES, "strata": "ward"}, r"or write C\(\) of the column"),
    ("Surv(days, died) ~ age", {"baseline_times": [20, 10]}, "times after zero that rise"),
    ("dose ~ age", {"baseline_times": EDGES}, "of a Cox model")])
def test_what_one_baseline_cannot_do_is_said(patients, formula, settings, words):
    with pytest.raises(InputError, match=words):
        rv.regress(patients, formula, party="site", **settings)


@pytest.mark.when_changed
def test_one_baseline_has_no_residuals_at_the_times_of_events(patients):
    fit = rv.regress(patients, "Surv(days, died) ~ age + dose", party="site", baseline_times=EDGES)
    with pytest.raises(InputError, match="without baseline_times"):
        fit.proportional_hazards()


@pytest.mark.parametrize(("change", "formula", "settings", "words"), [
    ({"start": 5.0}, "Surv(days, start, died) ~ age", {}, "'days' is not before 'start' in"),
    ({"start": -1.0}, "Surv(start, days, died) ~ age", {}, "'start' has 240 values that are not times from zero on"),
    ({"ward": "C", "died": 0}, "Surv(days, died) ~ age", {"strata": "ward"}, "no event occurred"),
    ({}, "Surv(days, died) ~ age", {"strata": "wards"}, "no column 'wards'"),
    ({}, "Surv(days, died) ~ age", {"ties": "exact"}, "ties='exact'.* must be 'efron' or 'breslow'"),
    ({}, "died ~ age", {"strata": "ward"}, "strata are of a Cox model"),
    ({}, "Surv(a, b, c, d) ~ age", {}, r"Surv\(start, stop, event\)"),
    ({}, "Surv(days, died) ~ age + strata(ward)", {}, "strata='ward'")])
def test_what_a_cox_model_cannot_do_is_said(patients, change, formula, settings, words):
    with pytest.raises(InputError, match=words):
        rv.regress(patients.assign(**change), formula, party="site", **settings)


def test_a_stratum_without_events_is_named(patients):
    frame = patients.assign(ward=patients["ward"].where(patients["died"] == 1, "C"))
    with pytest.raises(InputError, match="no event occurred where 'ward' is 'C'"):
        rv.regress(frame, "Surv(days, died) ~ age", party="site", strata="ward")


@pytest.mark.when_changed
def test_other_models_have_no_hazards(patients):
    fit = rv.regress(patients, "died ~ age", party="site")
    ridge = rv.regress(patients, "Surv(days, died) ~ age", party="site", l2=0.1)
    for call in (fit.baseline, fit.proportional_hazards, lambda: fit.survival(patients)):
        with pytest.raises(InputError, match="family binomial has no hazards"):
            call()
    with pytest.raises(InputError, match="leave l1 and l2 out"):
        ridge.baseline()
    with pytest.raises(InputError, match="clock='days' is not known"):
        rv.regress(patients, "Surv(days, died) ~ age", party="site").proportional_hazards("days")


def test_a_formula_has_the_entry_between_label_and_event():
    response = parse_formula("Surv(`the start`, days, died) ~ age").response
    assert (response.entry, response.label, response.event) == ("the start", "days", "died")
    assert response.columns == ["days", "the start", "died"]
