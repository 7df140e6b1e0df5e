"""Survival over sites: equal to statsmodels on the same times, and no count of few rows follows from what is told."""

import itertools
import json

import numpy as np
import pandas as pd
import pytest
from statsmodels.duration.survfunc import SurvfuncRight, survdiff

import resolvent as rv
from resolvent.comparisons.survival.settings import SurvivalSettings
from resolvent.comparisons.survival.sums import ALL, OTHER, Cells, SiteTimes, Times, times_of_rows
from resolvent.comparisons.survival.survival import Survival
from resolvent.errors import InputError

COLUMNS = {"time": "days", "event": "died"}


def visits(rows=400, seed=0):
    """Patients of three hospitals with times in days, of which many are tied; half of them enter late."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"hospital": rng.choice(["Bonn", "Essen", "Ulm"], rows),
                          "arm": rng.choice(["control", "treated"], rows),
                          "stage": rng.choice(["I", "II", "III", "IV"], rows, p=[0.4, 0.3, 0.27, 0.03])})
    event = rng.exponential(300 * (1 + 0.5 * (frame["arm"] == "treated")))
    end = rng.uniform(100, 1000, rows)
    frame["days"], frame["died"] = np.ceil(np.minimum(event, end) / 7), (event <= end).astype(int)
    frame["start"] = np.floor(frame["days"] * rng.random(rows) / 2) * (rng.random(rows) < 0.5)
    return frame


def test_exact_curves_are_those_of_statsmodels():
    frame = visits()
    found = rv.survival(frame, **COLUMNS, by="arm")
    for arm, rows in frame.groupby("arm"):
        expected = SurvfuncRight(rows["days"], rows["died"])
        curve = found.at(expected.surv_times)
        curve = curve[curve["group"] == arm]
        np.testing.assert_allclose(curve["survival"], expected.surv_prob, rtol=0, atol=1e-12)
        np.testing.assert_allclose(curve["standard_error"], expected.surv_prob_se, rtol=0, atol=1e-12)
        np.testing.assert_allclose(curve["at_risk"], expected.n_risk, rtol=0, atol=0)
        # statsmodels has the same interval of the median, by log(-log).
        assert found.medians.loc[arm, "median"] == expected.quantile(0.5)
        assert found.medians.loc[arm, ["low", "high"]].tolist() == pytest.approx(
            expected.quantile_ci(0.5, method="cloglog"))
    assert found.medians["events"].sum() == frame["died"].sum()


def test_the_log_log_interval_is_that_of_lifelines():
    # KaplanMeierFitter().fit([5, 6, 6, 6, 7, 10, 13, 16, 22, 23], [0, 1, 1, 1, 1, 0, 1, 1, 1, 1]), lifelines 0.30.3
    frame = pd.DataFrame({"days": [5, 6, 6, 6, 7, 10, 13, 16, 22, 23], "died": [0, 1, 1, 1, 1, 0, 1, 1, 1, 1]})
    found = rv.survival(frame, **COLUMNS).at([6, 13, 22])
    assert found["low"].to_numpy() == pytest.approx([0.2816822422, 0.1089530689, 0.0074383143], abs=1e-8)
    assert found["high"].to_numpy() == pytest.approx([0.8783067576, 0.7076977659, 0.4515247919], abs=1e-8)


def test_late_entries_are_at_risk_after_their_entry():
    frame = visits()
    found = rv.survival(frame, **COLUMNS, entry="start")
    expected = SurvfuncRight(frame["days"], frame["died"], entry=frame["start"])
    curve = found.at(expected.surv_times)
    np.testing.assert_allclose(curve["at_risk"], expected.n_risk)
    np.testing.assert_allclose(curve["survival"], expected.surv_prob, rtol=0, atol=1e-12)


@pytest.mark.parametrize("by", ["arm", "stage"])
def test_log_rank_tests_are_those_of_statsmodels(by):
    frame = visits()
    found = rv.survival(frame, **COLUMNS, by=by, party="hospital")
    pooled, stratified = found.log_rank(), found.log_rank(stratified=True)
    assert [*pooled[:1], pooled.p] == pytest.approx(survdiff(frame["days"], frame["died"], frame[by]), rel=1e-9)
    expected = survdiff(frame["days"], frame["died"], frame[by], strata=frame["hospital"])
    assert [stratified.statistic, stratified.p] == pytest.approx(expected, rel=1e-9)
    assert pooled.degrees_of_freedom == frame[by].nunique() - 1
    assert pooled.statistic != pytest.approx(stratified.statistic, rel=1e-3)


def sites_of(frame, by, smallest=5, edges=None, entry=None):
    settings = SurvivalSettings(**COLUMNS, by=by, entry=entry)
    edges = np.arange(0.0, 140, 4) if edges is None else edges
    return {site: SiteTimes(times_of_rows(rows, settings), edges, smallest, 0)
            for site, rows in frame.groupby("hospital")}


@pytest.mark.parametrize("entry", [None, "start"])
def test_a_grid_gives_the_curve_of_the_coarsened_rows(entry):
    frame = visits()
    found = rv.survival(frame, **COLUMNS, by="arm", party="hospital", entry=entry, every=4, until=136)
    told = [of_site.told for of_site in sites_of(frame, "arm", entry=entry).values()]
    time, event, late, group = map(np.concatenate, zip(*told, strict=True))
    for arm in ("control", "treated"):
        rows = group == arm
        expected = SurvfuncRight(time[rows], event[rows], entry=np.maximum(late[rows], -1))
        curve = found.at(expected.surv_times)
        np.testing.assert_allclose(curve[curve["group"] == arm]["survival"], expected.surv_prob, rtol=0, atol=1e-12)
    exact = rv.survival(frame, **COLUMNS, by="arm", entry=entry)
    times = np.arange(4, 60, 4)
    difference = np.abs(found.at(times)["survival"] - exact.at(times)["survival"])
    assert 1e-6 < difference.max() < (0.05 if entry is None else 0.08)
    assert not any("inf" in fact or "nan" in fact for fact in found.facts())


def test_without_small_counts_to_hide_a_grid_only_rounds_the_times_up():
    frame = visits()
    found = rv.survival(frame, **COLUMNS, by="arm", party="hospital", every=4, until=144, min_cell=1)
    rounded = rv.survival(frame.assign(days=np.ceil(frame["days"] / 4) * 4), **COLUMNS, by="arm", party="hospital")
    pd.testing.assert_frame_equal(found.table, rounded.table, check_exact=False, rtol=1e-12)
    assert found.log_rank(stratified=True) == pytest.approx(rounded.log_rank(stratified=True))


@pytest.mark.parametrize(("seed", "entry"), itertools.product(range(4), [None, "start"]))
def test_no_count_of_few_rows_follows_from_several_groupings(seed, entry):
    frame, edges, small = visits(300, seed), np.arange(0.0, 140, 2), 0
    for site, rows in frame.groupby("hospital"):
        known = {kind: {0.0: 0} for kind in ("events", "censored", "entries")}  # rows of the site up to an edge
        for by in (None, "arm", "stage"):
            times = times_of_rows(rows, SurvivalSettings(**COLUMNS, by=by, entry=entry))
            of_site = SiteTimes(times, edges, 5, 0)
            hidden = ~np.isin(times.group, of_site.groups)
            small += hidden.any()
            groups = np.where(hidden, OTHER, times.group)
            assert not 0 < hidden.sum() <= 5
            cells = Cells(edges, edges, edges).joined(times._replace(group=np.full(len(rows), ALL, object)), 5).joined(
                times._replace(group=groups), 5)
            for kind, at, mark in (("events", times.time, times.event), ("censored", times.time, ~times.event),
                                   ("entries", times.entry, np.isfinite(times.entry))):
                told = getattr(cells, kind)
                side = "right" if kind == "entries" else "left"
                for group in np.unique(groups.astype(str)):
                    counts = np.bincount(np.searchsorted(told, at[mark & (groups == group)], side),
                                         minlength=len(told) + 1)[:-1]
                    assert not ((counts > 0) & (counts < 5)).any()
                known[kind] |= {float(edge): int((mark & (at < edge if kind == "entries" else at <= edge)).sum())
                                for edge in told}
            # What the sums say about the coarsened rows, at each time.
            sums = of_site.sums(of_site.groups, edges)
            left = sums.at_risk[:, -1:] - sums.events[:, -1:]
            assert not ((left > 0) & (left < 5)).any()
        for counts in known.values():
            steps = np.diff([counts[edge] for edge in sorted(counts)])
            assert not ((steps > 0) & (steps < 5)).any(), site
    assert small > 0


def test_cells_join_until_they_have_enough_rows():
    times = np.repeat([1.0, 2.0, 3.0, 4.0], [4, 2, 9, 3])
    rows = Times(times, times < 9, np.full(18, -np.inf), np.full(18, "all", object))
    cells = Cells(*[np.arange(6.0)] * 3).joined(rows, 5)
    assert cells.events.tolist() == [2, 3]  # not 0: nobody knows that the first rows are after it
    told = cells.coarsen(rows, 5, np.arange(6.0))
    # Three rows would be left after the time 3, so that all are censored at 2; six events are spread over 0 to 2.
    assert told.time.tolist() == [1] * 3 + [2] * 15
    assert told.event.sum() == 6
    assert not Cells(*[np.arange(6.0)] * 3).joined(rows, 50).coarsen(rows, 50, np.arange(6.0)).event.any()


def test_a_survival_in_every_form(tmp_path):
    frame = visits()
    frame.to_csv(tmp_path / "visits.csv", index=False)
    found = rv.survival(tmp_path / "visits.csv", **COLUMNS, by="arm", party="hospital", at=[20, 40])
    text = found.to_text()
    assert "at 20" in text
    assert "at 60" not in text
    assert r"\begin{tabular}{lcc}" in found.to_text("latex")
    report = found.save(tmp_path / "out").read_text("utf-8")
    assert "Survival curves" in report
    assert "<th>control</th>" in report
    again = Survival.read(tmp_path / "out")
    pd.testing.assert_frame_equal(again.table, found.table)
    assert again.log_rank(stratified=True) == found.log_rank(stratified=True)
    (tmp_path / "out" / "survival.json").write_text("{}")
    with pytest.raises(InputError, match="has no survival, or it is damaged"):
        Survival.read(tmp_path / "out")


def test_the_command_reads_a_table_and_a_file(tmp_path, call):
    visits().to_csv(tmp_path / "visits.csv", index=False)
    path = str(tmp_path / "visits.csv")
    printed = call("survival", path, "--time", "days", "--event", "died", "--by", "arm", "--party", "hospital",
                   "--out", "out", cwd=tmp_path).out
    assert "Log-rank test, stratified by site: chi-squared" in printed
    assert (tmp_path / "out" / "report.html").is_file()
    assert "1 site;" in call("survival", path, "--time", "days", "--event", "died", cwd=tmp_path).out
    (tmp_path / "mine.yaml").write_text(json.dumps({
        "data": {"table": path, "party": "hospital"}, "survival": {**COLUMNS, "every": 4, "until": 100}}))
    numbers = json.loads(call("survival", "mine.yaml", "--format", "json", cwd=tmp_path).out)["numbers"]
    assert numbers[-1]["survival"] == pytest.approx(
        rv.survival(visits(), **COLUMNS, party="hospital", every=4, until=100).table["survival"].iloc[-1])


def test_rows_with_missing_values_are_left_out_and_counted():
    frame = visits()
    frame.loc[:6, "days"] = np.nan
    found = rv.survival(frame, **COLUMNS, by="arm", party="hospital")
    assert "7 rows with a missing value left out." in found.facts()
    complete = frame.dropna().astype({"days": int})
    assert found.medians["rows"].sum() == len(complete)


@pytest.mark.parametrize(("change", "settings", "words"), [
    ({}, {"by": "arms"}, "no column 'arms'"), ({}, {"event": "days"}, "'days' is named twice"),
    ({"days": -1.0}, {}, "'days' has 1 values that are not times from zero on, such as '?-1.0"),
    ({"died": 2}, {}, "'died' says whether the event occurred, and must have 0 and 1.*not '2'"),
    ({"start": 900.0}, {"entry": "start"}, "'start' is not before 'days' in 1 rows, such as 900 and"),
    ({}, {"every": 4}, "every and until go together"), ({}, {"every": 0.01, "until": 100}, "more than 1000 cells"),
    ({}, {"level": 1.0}, "level"), ({"arm": "(not told)"}, {"by": "arm"}, "give the level another name"),
    ({"hospital": "Kiel"}, {"party": "hospital", "every": 4, "until": 100}, "'Kiel' has 1 row")])
def test_what_cannot_be_estimated_is_refused(tmp_path, change, settings, words):
    frame = visits()
    for name, value in change.items():
        frame.loc[3, name] = value
    with pytest.raises(InputError, match=words):
        rv.survival(frame, **{**COLUMNS, **settings})
    if change and "every" not in settings:
        frame.to_csv(tmp_path / "visits.csv", index=False)
        with pytest.raises(InputError, match=f"visits.csv: .*{words}"):
            rv.survival(tmp_path / "visits.csv", **{**COLUMNS, **settings})


def test_a_log_rank_test_needs_two_groups():
    with pytest.raises(InputError, match="compares groups: name the column"):
        rv.survival(visits(), **COLUMNS).log_rank()


def test_groups_of_few_rows_at_all_sites_are_refused():
    frame = visits(60)
    frame["arm"] = np.where(frame.groupby("hospital").cumcount() < 2, "rare", "common")
    with pytest.raises(InputError, match="no site has a group of enough rows"):
        rv.survival(frame, **COLUMNS, by="arm", party="hospital", every=4, until=100)


def test_a_curve_goes_on_after_its_last_event():
    frame = visits().assign(died=lambda rows: rows["died"] * (rows["days"] < 40))
    told = rv.survival(frame, **COLUMNS, party="hospital", every=4, until=60)
    assert (told.at([48, 60])["at_risk"] > 0).all()
    assert told.sums.events[:, -4:].sum() == 0
