"""Regressions over sites: without an engine, against the simulation; and what a lead would try to read a row.

Where it does not matter, a fit of 120 rows a site has four coefficients, so that fits of a family are one program.
"""

import contextlib
import json
import re
from dataclasses import replace

import jax
import numpy as np
import pandas as pd
import pytest
from scipy import stats

import nightly
import resolvent as rv
from federation.hospitals import SITES, Hospitals, table
from resolvent.comparisons.regression.regression_file import RegressionFile
from resolvent.comparisons.regression.rows import read_tables
from resolvent.comparisons.regression.settings import RegressionSettings
from resolvent.errors import InputError
from resolvent.federation.lead.rehearsal import Rehearsal, compare_with_process, prepare_table_plan, rehearse
from resolvent.federation.protocol.events import Agreement, PhaseReport
from resolvent.federation.protocol.fitted_regression import read_fit
from resolvent.federation.protocol.job import FederationJob
from resolvent.federation.protocol.limits import Limits
from resolvent.federation.protocol.plan_files import plan_of_file
from resolvent.federation.protocol.policy import FEDERATION, REHEARSAL
from resolvent.federation.protocol.refusals import Refusal
from resolvent.federation.protocol.regression import FederatedRegression
from resolvent.federation.protocol.wire import decode, encode
from resolvent.federation.site.check import check_site
from resolvent.federation.site.journal import Journal
from resolvent.regression.newton import FederatedNewton


def fit_of(hospitals):
    return read_fit(hospitals.folder / "out").result


REGRESSIONS = {
    "binomial": {"formula": "ill ~ age + C(grade) + ward:sex", "reference": {"ward": "B"}},
    "cox": {"formula": "Surv(weeks, died) ~ age + ward", "offset": "risk", "tests": ["ward"]},
    "cox, late entries": {"formula": "Surv(begin, weeks, died) ~ age", "strata": "sex", "ties": "breslow"},
    "cox, sampling weights": {"formula": "Surv(weeks, died) ~ age + ward", "sampling_weights": "cost",
                              "errors": "robust"},
    "cox, one baseline": {"formula": "Surv(weeks, died) ~ age + ward", "baseline_times": [10, 30]},
    "cox, one baseline, late entries": {"formula": "Surv(begin, weeks, died) ~ age", "baseline_times": [10, 30]},
    "splines": {"formula": "ill ~ cr(age, knots=[45, 55], lower_bound=20, upper_bound=80) + poly(cost, 2)"},
    "gamma": {"formula": "cost ~ log(age) + sex", "family": "gamma", "errors": "robust"},
    "elastic net": {"formula": "visits ~ age + ward + sex", "family": "poisson", "l1": 0.01, "l2": 0.1},
    "sampling weights": {"formula": "ill ~ age + sex", "sampling_weights": "weeks", "errors": "robust"},
    "sampling weights, clustered": {"formula": "ill ~ age + sex", "sampling_weights": "weeks", "errors": "clustered"},
    "frequency weights": {"formula": "ill ~ age + sex", "frequency_weights": "grade", "site": "fixed"},
    "clusters": {"formula": "ill ~ age + sex", "errors": "clustered", "cluster": "weeks"},
    "multinomial": {"formula": "grade ~ age", "family": "multinomial", "heterogeneity": False},
    "ordinal": {"formula": "grade ~ age", "family": "ordinal"},
    "zero inflated": {"formula": "visits ~ age", "family": "zero_inflated_poisson"},
}


@pytest.mark.when_changed
@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name == "cox" else pytest.mark.nightly)
                                  for name in REGRESSIONS])
def test_the_fit_of_a_federation_is_that_of_the_simulation_to_the_bit(tmp_path, name):
    hospitals, events = Hospitals(tmp_path, table(), REGRESSIONS[name]), []
    assert hospitals.serve(observe=events.append) == {"status": "complete"}
    settings = {key: value for key, value in REGRESSIONS[name].items() if key not in ("formula", "heterogeneity")}
    fit, simulated = fit_of(hospitals), rv.regress(hospitals.frame, REGRESSIONS[name]["formula"], party="site",
                                                 **settings)
    assert fit.names == simulated.names
    assert fit.rounds == simulated.rounds == sum(isinstance(e, PhaseReport) for e in events) - 1
    np.testing.assert_array_equal(fit.estimates, simulated.estimates)
    pd.testing.assert_frame_equal(fit.table, simulated.table, rtol=1e-9)
    assert fit.summary() == simulated.summary()
    rehearsal = Rehearsal(plan_of_file(str(hospitals.file)), hospitals.frame, {})
    assert compare_with_process(rehearsal, fit).difference == 0
    if fit.site_fits is not None:
        pd.testing.assert_frame_equal(fit.heterogeneity().table, simulated.heterogeneity().table, rtol=1e-7)


def unlike(frame):
    """The same rows at hospitals whose patients differ."""
    rng, shift = np.random.default_rng(1), frame["site"].map(dict(zip(SITES, (-0.8, 0.2, 0.9), strict=True)))
    return frame.assign(score=rng.normal(shift), visits=rng.poisson(np.exp(shift)),
                        ill=np.where(rng.random(len(frame)) < 1 / (1 + np.exp(-shift)), "yes", "no"))


def with_gaps(frame):
    rng = np.random.default_rng(2)
    return frame.assign(age=frame["age"].where(rng.random(len(frame)) > 0.3),
                        ward=frame["ward"].where(rng.random(len(frame)) > 0.1))


FURTHER = [("ill ~ age", {"site": "random"}, True), ("score ~ age", {"site": "random"}, False),
           ("visits ~ age", {"site": "random", "family": "poisson"}, True),
           ("ill ~ age", {"site": "random"}, False), ("visits ~ age", {"site": "random", "family": "poisson"}, False),
           ("score ~ age", {"site": "random"}, True), ("score ~ age + ward", {"imputations": 3, "seed": 5}, False),
           ("ill ~ age + sex", {"imputations": 2}, True), ("ill ~ age + ward", {"imputations": 2}, False)]


@pytest.mark.when_changed
@nightly.parametrize(("formula", "settings", "is_secure"), FURTHER, per_commit=2)
def test_random_intercepts_and_imputations_are_those_of_the_pooled_rows(tmp_path, formula, settings, is_secure):
    """Careful sites in secure sums, where rows are in other orders at the sites; sites without limits otherwise."""
    frame = unlike(table(120, more=0))
    if "imputations" in settings:
        frame = with_gaps(frame)
    careful_sites = {"policy": FEDERATION, "limits": Limits(), "privacy": {"secure_sums": True}}
    if is_secure:
        pytest.importorskip("Crypto")
    hospitals = Hospitals(tmp_path, frame, {"formula": formula, **settings}, **(careful_sites if is_secure else {}))
    assert hospitals.serve() == {"status": "complete"}
    fit, pooled = fit_of(hospitals), rv.regress(frame, formula, party="site", **settings)
    pd.testing.assert_frame_equal(fit.table, pooled.table, rtol=1e-8)
    assert fit.rounds == pooled.rounds
    assert fit.model.imputed == pooled.model.imputed
    assert bool(fit.model.imputed) == ("imputations" in settings)
    if settings.get("site") == "random":
        pd.testing.assert_frame_equal(fit.random.table, pooled.random.table, rtol=1e-8)
        for name in ("tau", "p", "log_likelihood", "rounds"):
            np.testing.assert_allclose(getattr(fit.random, name), getattr(pooled.random, name), rtol=1e-8)
    assert not is_secure or all({*reply.arrays} == {"masked"} for reply in messages(hospitals, "kiel", "reply"))


@pytest.mark.when_changed
@nightly.parametrize(("formula", "settings", "remedy"), [
    ("score ~ age", {"site": "random"}, "set site=fixed, leave columns out"),
    ("score ~ age + sex", {"imputations": 5}, "set fewer imputations, or leave them out (complete cases)")])
def test_small_sites_refuse_further_fits_and_say_what_they_would_answer(tmp_path, caplog, formula, settings, remedy):
    """The regression itself adds no column in its rounds; 24 rows are too few for what these fits add."""
    frame = unlike(table(24, more=0))
    plan = {"policy": FEDERATION, "limits": replace(Limits(), min_cell=3)}
    assert Hospitals(tmp_path / "plain", frame, {"formula": formula}, **plan).serve() == {"status": "complete"}
    frame = with_gaps(frame) if "imputations" in settings else frame
    hospitals = Hospitals(tmp_path / "further", frame, {"formula": formula, **settings}, **plan)
    outcome = hospitals.serve()
    assert outcome["status"] in ("refused", "stopped")
    assert "leave the column, random intercepts or imputations out" in outcome["message"]
    assert remedy in caplog.text  # at the site
    refusals = [message for site in SITES for message in messages(hospitals, site, "refusal")]
    assert {*refusals[0].facts["limits"]} == {"max_leverage"}


@pytest.mark.parametrize(("change", "formula", "words"), [
    (lambda f: f.assign(pregnant=np.where(f["age"] > 50, "x", None)), "cost ~ pregnant", "'pregnant' is 'x' in all"),
    (lambda f: f.assign(age=f["age"].where(f["site"] != "kiel")), "cost ~ age", "'age'"),
    (lambda f: f.assign(status=f["died"] + 1), "Surv(weeks, status) ~ age", "if it is '1', by reference="),
    (lambda f: f.assign(ill=f["ill"].where(f["site"] != "kiel", "YES")), "ill ~ age", "'YES' and 'yes' differ only")])
def test_a_federation_refuses_rows_in_the_words_of_the_simulation(tmp_path, change, formula, words):
    frame = change(table())
    with pytest.raises(InputError, match=words):
        rv.regress(frame, formula, party="site")
    outcome = Hospitals(tmp_path, frame, {"formula": formula}).serve()
    assert outcome["status"] == "refused"
    assert words in outcome["message"]


# What a lead, or a server that it controls, would do to read a row. The sites have the default limits.


def careful(tmp_path, formula="ill ~ age + ward", frame=None, privacy=None, **limits):
    return Hospitals(tmp_path, table(120, more=0) if frame is None else frame, {"formula": formula}, policy=FEDERATION,
                     limits=replace(Limits(), **limits), privacy=privacy)


class Reached(KeyboardInterrupt):
    """The run has reached the event for which a test waits."""


def serve_until(kind, hospitals, **settings):
    """Serve until an event of a kind; returns the outcome if the run ends before, otherwise None."""
    def stop(event):
        if isinstance(event, kind):
            raise Reached

    try:
        return hospitals.serve(observe=stop, **settings)
    except Reached:
        return None


def with_payload(w):
    """A server that sends other coefficients than Newton's method asks for."""
    def change(message):
        try:
            content = decode(message)
        except InputError:
            return message  # a request
        if content.kind != "work":
            return message
        return encode(replace(content, arrays={**content.arrays, "payload": np.array(w)}))
    return change


def messages(hospitals, site, kind):
    """The messages of a kind that a site has sent."""
    sent = []
    for name, data in hospitals.sent:
        with contextlib.suppress(InputError):
            sent += [message for message in (decode(data),) if name == site and message.kind == kind]
    return sent


@pytest.mark.when_changed
@pytest.mark.parametrize(("formula", "privacy"), [("cost ~ age + ward", None),
                                                  ("ill ~ age + ward", {"secure_sums": True})])
def test_a_regression_of_careful_sites(tmp_path, formula, privacy):
    """The default limits let an ordinary regression through, within its plan; one with rounds in secure sums."""
    if privacy:
        pytest.importorskip("Crypto")
    hospitals = careful(tmp_path, formula, privacy=privacy)
    assert hospitals.serve() == {"status": "complete"}
    simulated = rv.regress(hospitals.frame, formula, party="site")
    np.testing.assert_allclose(fit_of(hospitals).estimates, simulated.estimates, rtol=1e-10)
    search = read_fit(tmp_path / "out").fits[0].search  # the lead has nothing of the rounds' sums
    assert not any(np.any(part) for part in (search.direction, search.slope, search.value, search.size, search.step))
    rounds = Journal(tmp_path / "aachen" / "journal.sqlite").of("round")
    ranks = [entry["rank"] for entry in rounds]
    assert ranks == sorted({*ranks}) and len(ranks) >= 3 if privacy else not ranks
    sheet = json.loads((tmp_path / "aachen" / "mine-1" / "data-sheet.json").read_text())
    assert sheet["rows"] == {"complete": 120, "left out": 0}


def rare_level(frame):
    frame.loc[frame.index[:4], "ward"] = "D"
    return frame


def one_level_per_row(frame):
    return frame.assign(ward=[f"bed {k}" for k in range(len(frame))])


def crossed(frame):
    """Ward A has one woman and many men at the first site: each level alone has enough rows."""
    first = (frame["site"] == "aachen") & (frame["ward"] == "A")
    return frame.assign(sex=np.where(first, np.where(first.cumsum() == 1, "f", "m"), frame["sex"]))


def with_columns(frame):
    rng = np.random.default_rng(3)
    return frame.assign(**{f"x{j}": rng.normal(size=len(frame)) for j in range(40)})


@pytest.mark.when_changed
@pytest.mark.parametrize(("change", "formula", "limit"), [
    (rare_level, "ill ~ age + ward", "fewer rows than 5"), (one_level_per_row, "ill ~ age + ward", "fewer rows than 5"),
    (crossed, "ill ~ ward + sex", "fewer rows than 5"), (table, "ill ~ exp(age) + ward", "leverage 0.5"),
    (table, "ill ~ I(9**9**9*age)", "refused (experiment)"), (table, "ill ~ I(0**(age - 3))", "refused (experiment)"),
    (with_columns, "ill ~ " + " + ".join(f"x{j}" for j in range(40)), "0.333"),
    (lambda frame: frame.assign(number=np.arange(len(frame)) * 7), "ill ~ number", "column 'number'"),
    (table, "ill ~ bs(age, knots=[45, 80], lower_bound=0, upper_bound=120)", "fewer rows than 5"),
    (lambda frame: frame.assign(age=frame["age"].where(frame.index > 0, 400)), "ill ~ poly(age, 2)", "column 'age'"),
    (lambda frame: frame.drop(columns="sex"), "ill ~ age + sex", "column 'sex': the site's table does not have")])
def test_a_site_refuses_columns_whose_sums_are_of_few_rows(tmp_path, change, formula, limit):
    frame = table(120, more=0) if change is table else change(table(120, more=0))
    hospitals = careful(tmp_path, formula, frame)
    outcome = hospitals.serve()
    assert outcome["status"] == "refused"
    assert limit in outcome["message"]
    assert not messages(hospitals, "aachen", "reply")


@pytest.mark.when_changed
def test_a_site_refuses_an_interval_with_few_events(tmp_path, caplog):
    """With one baseline for all sites the number of events in each interval is told."""
    frame = table(120, more=0)
    few = (frame["site"] == "kiel") & (frame["died"] == 1) & (frame["weeks"] <= 10)
    frame.loc[frame.index[few][3:], "weeks"] = 11
    settings = {"formula": "Surv(weeks, died) ~ age", "baseline_times": [10, 30]}
    outcome = Hospitals(tmp_path, frame, settings, policy=FEDERATION, limits=Limits()).serve()
    assert "kiel: refused (limits): " in outcome["message"]
    assert "fewer rows than 5" in outcome["message"]
    assert "aachen: refused" not in outcome["message"]
    assert "the event up to 10 together have 3 rows" in caplog.text  # at the site alone


@pytest.mark.when_changed
def test_a_server_cannot_choose_coefficients_that_leave_one_row(tmp_path):
    """With a steep enough slope all probabilities but that of one patient are 0 or 1, and X'WX is her row."""
    frame = table(120, more=0)
    oldest = frame[frame["site"] == "aachen"]["age"].max()
    attack = with_payload([-200.0 * oldest, 200.0, 0.0, 0.0])
    open_sites = careful(tmp_path / "open", frame=frame, min_cell=1, max_parameters_per_row=None,
                         max_leverage=None)
    open_sites.serve(change=attack)
    hessian = messages(open_sites, "aachen", "reply")[0].arrays["evaluation.hessian"]
    np.testing.assert_allclose(hessian[0, 1] / hessian[0, 0], oldest, rtol=1e-6)
    sites = careful(tmp_path / "careful", frame=frame)
    assert sites.serve(change=attack)["status"] == "stopped"
    assert not messages(sites, "aachen", "reply")
    assert messages(sites, "aachen", "refusal")[0].facts["limits"] == {"min_cell": 5}


@pytest.mark.when_changed
def test_the_columns_that_rounds_add_are_counted(tmp_path):
    """X'W_r X and X's_r of several rounds, whose W_r and s_r differ, isolate rows that the columns of X do not.

    The first round adds few columns, and no reply leaves that would complete a combination about one row.
    """
    hospitals = careful(tmp_path)
    outcome = hospitals.serve()
    assert outcome["status"] == "stopped"
    assert "kiel: refused (limits): column 'ill': " in outcome["message"]
    assert "ask for secure sums" in outcome["message"]
    for site in SITES:
        assert len(messages(hospitals, site, "reply")) == 1
        assert messages(hospitals, site, "refusal")[0].facts["limits"] == {"max_leverage": 0.5}
    text = "\n".join(check_site(hospitals.files["kiel"], "kiel", hospitals.file))
    assert re.search("With the rounds of the fit.* they have 2[0-9]; the largest leverage is 1.00, of the allowed "
                     "0.50", text), text


@pytest.mark.when_changed
def test_a_site_with_most_of_the_rows_hides_behind_few_others(tmp_path):
    """In a sum its leverages count with its share of all rows: here 200 of 270."""
    pytest.importorskip("Crypto")
    frame = table(200, more=10).drop(index=range(230, 390)).drop(index=range(430, 610)).reset_index(drop=True)
    assert frame["site"].value_counts().to_dict() == {"aachen": 200, "berlin": 50, "kiel": 20}
    frame["cost"] = frame["cost"].clip(upper=frame["cost"].quantile(0.9))  # its sum is told: no row stands out in it
    outcome = Hospitals(tmp_path, frame, {"formula": "cost ~ age + grade", "family": "gamma"}, policy=FEDERATION,
                        limits=Limits(), privacy={"secure_sums": True}).serve()
    assert "aachen: refused (limits): column '" in outcome["message"]
    assert "berlin: refused" not in outcome["message"]


def test_the_server_cannot_lower_the_share_of_a_site_by_sizes_of_others(tmp_path):
    """With 10,000 rows at berlin, the leverages of a site with most of the rows would count a third only."""
    pytest.importorskip("Crypto")

    def enlarge(message):
        content = decode(message)
        if content.kind != "prepare":
            return message
        facts = json.loads(json.dumps(dict(content.facts)))
        facts["content"]["agreement"]["sites"]["berlin"] = 10_000
        return encode(replace(content, facts=facts))

    hospitals = careful(tmp_path, privacy={"secure_sums": True})
    assert hospitals.serve(change=enlarge)["status"] == "stopped"
    assert messages(hospitals, "aachen", "refusal")[0].facts["code"] == "sizes"
    assert not messages(hospitals, "aachen", "reply")


def test_what_is_told_before_secure_sums_is_not_in_a_sum(tmp_path):
    """The moments of poly() leave a site by themselves, here with a leverage of 0.73: more than 0.5, less than 0.8."""
    pytest.importorskip("Crypto")
    frame = table(120, more=0)
    frame.loc[0, "age"] = 95.0
    hospitals = careful(tmp_path / "default", "cost ~ poly(age, 1)", frame, {"secure_sums": True})
    assert hospitals.serve()["status"] == "refused"
    refusal, = messages(hospitals, "aachen", "refusal")
    assert (refusal.facts["column"], refusal.facts["limits"]) == ("age", {"max_leverage": 0.5})
    assert not messages(hospitals, "aachen", "answer")
    hospitals = careful(tmp_path / "raised", "cost ~ poly(age, 1)", frame, {"secure_sums": True}, max_leverage=0.8)
    hospitals.serve()
    assert "age" in messages(hospitals, "aachen", "answer")[0].facts["content"]["table"]["moments"]


@pytest.mark.when_changed
def test_errors_with_leverages_take_one_more_sum_whose_weights_a_site_judges(tmp_path):
    """HC3 weights the squared scores of rows by 1/(1 - leverage)^2, with the inverse of the information of all rows."""
    pytest.importorskip("Crypto")
    settings = {"formula": "cost ~ age + ward", "errors": "HC3"}
    plan, events = {"policy": FEDERATION, "limits": Limits(), "privacy": {"secure_sums": True}}, []
    hospitals = Hospitals(tmp_path, table(120, more=0), settings, **plan)
    assert hospitals.serve(observe=events.append) == {"status": "complete"}
    fit, simulated = fit_of(hospitals), rv.regress(hospitals.frame, settings["formula"], party="site", errors="HC3")
    assert sum(isinstance(event, PhaseReport) for event in events) == fit.rounds + 2
    pd.testing.assert_frame_equal(fit.table, simulated.table, rtol=1e-8)
    for errors in ("HC2", "model"):
        with pytest.raises(InputError, match=f"set errors={errors}, and fit again"):
            fit.with_errors(errors)

    def single_out(message):
        """With this inverse the leverage of one row is nearly 1, and its weight a million times that of others."""
        with contextlib.suppress(InputError):
            content = decode(message)
            if content.arrays.get("payload.inner.inverse", np.zeros(1)).any():
                aachen = hospitals.frame["age"][hospitals.frame["site"] == "aachen"]
                oldest, mean = aachen.max(), aachen.mean()
                direction = np.array([-mean, 1, 0, 0]) / (oldest - mean)
                inverse = (1 - 1e-3) * np.outer(direction, direction)
                return encode(replace(content, arrays={**content.arrays, "payload.inner.inverse": inverse}))
        return message

    hospitals = Hospitals(tmp_path / "attack", hospitals.frame, settings, **plan)
    outcome = hospitals.serve(change=single_out)
    assert outcome["status"] == "stopped"
    assert messages(hospitals, "aachen", "refusal")[0].facts["limits"] == {"max_leverage": 0.5}


def test_a_server_gets_no_objective_outside_the_sums(tmp_path):
    """A regression has no evaluations: the objective of one site at any coefficients would leave it without rules."""
    def change(message):
        with contextlib.suppress(InputError):
            content = decode(message)
            if content.kind == "work":
                return encode(replace(content, kind="evaluate", round=0))
        return message

    hospitals = careful(tmp_path)
    assert hospitals.serve(change=change)["status"] == "stopped"
    assert {message.facts["withheld"] for message in messages(hospitals, "kiel", "scores")} == {True}
    assert not messages(hospitals, "kiel", "reply")


def test_a_lead_cannot_subtract_two_regressions_about_nearly_the_same_rows(tmp_path):
    """A column with few gaps leaves few rows out: the sums without it minus those with it are of these rows."""
    frame = table(120, more=0)
    frame["gaps"], frame["holes"] = frame["age"], frame["age"]
    first = frame.index[frame["site"] == "aachen"]
    frame.loc[first[:3], "gaps"] = np.nan
    frame.loc[first[:8], "holes"] = np.nan
    for number, (formula, is_answered) in enumerate((
            ("ill ~ age", True), ("ill ~ gaps", False), ("ill ~ holes", True), ("ill ~ holes + gaps", True))):
        outcome = serve_until(Agreement, careful(tmp_path, formula, frame), run=f"run-{number}")
        assert (outcome is None) == is_answered, outcome


def oldest_of_aachen(frame):
    return frame[frame["site"] == "aachen"]["age"].max()


@pytest.mark.when_changed
@nightly.parametrize("privacy", [{"secure_sums": True}, None], others=nightly.WHEN_CHANGED)
def test_a_lead_cannot_compose_an_indicator_of_a_row_of_two_plans(tmp_path, privacy):
    """The second column is the first one and a bump at the age of one patient: their difference is her row.

    Each plan alone is answered. The second one is refused with the name of its column, also after other plans, and a
    plan that adds no column to what was answered is not.
    """
    if privacy:
        pytest.importorskip("Crypto")
    frame = table(120, more=0)
    bump = f"exp(-5000 * (age - {oldest_of_aachen(frame)})**2)"
    hidden, plain = f"cost ~ I(visits + {bump})", "cost ~ visits"
    assert serve_until(PhaseReport, careful(tmp_path / "alone", hidden, frame, privacy)) is None
    for number, (formula, is_answered) in enumerate((
            (plain, True), (hidden, False), ("cost ~ visits + age", True), (hidden, False), ("cost ~ age", True))):
        outcome = serve_until(PhaseReport, careful(tmp_path, formula, frame, privacy), run=f"run-{number}")
        assert (outcome is None) == is_answered, outcome
        if not is_answered:
            assert "aachen: refused (limits): column 'I(visits + " in outcome["message"]
    lines = Journal(tmp_path / "aachen" / "journal.sqlite").of("columns")
    assert [*dict.fromkeys(line["rank"] for line in lines)] == [2, 3, 4]  # the constant, cost; visits; age
    assert all(0 < line["leverage"] < 0.5 for line in lines)


@pytest.mark.when_changed
def test_weights_do_not_single_out_a_row(tmp_path):
    """Small weights of all rows but one would make every sum one of this row."""
    frame = table(120)
    frame = frame.assign(w=np.where(np.arange(len(frame)) == 7, 1.0, 1e-6))
    outcome = Hospitals(tmp_path, frame, {"formula": "ill ~ age + ward", "sampling_weights": "w", "errors": "robust"},
                        policy=FEDERATION, limits=Limits()).serve()
    assert outcome["status"] == "refused"
    assert "leverage" in outcome["message"]


@pytest.mark.when_changed
def test_a_lead_cannot_subtract_a_label_of_classes_from_one_of_numbers(tmp_path):
    """Two labels that differ in one row, once as classes and once as numbers, have one row as their difference.

    A part of another column hides that the numbers are two classes.
    """
    frame = table(120, more=0)
    other = (frame["ill"] == "yes") ^ (frame.index == frame.index[7])
    frame["severity"] = 2.5 * other + 0.01 * frame["age"]
    assert serve_until(PhaseReport, careful(tmp_path, "ill ~ age + ward", frame), run="run-0") is None
    outcome = serve_until(PhaseReport, careful(tmp_path, "severity ~ age + ward", frame), run="run-1")
    assert "aachen: refused (limits): column 'severity'" in outcome["message"]
    assert serve_until(PhaseReport, careful(tmp_path, "cost ~ age + ward", frame), run="run-2") is None


@pytest.mark.when_changed
@pytest.mark.parametrize(("formula", "is_answered"), [
    ("ill ~ I(age**2)", True), ("ill ~ I((age - 40) * (age - 50))", False)], ids=["none", "two"])
def test_numbers_in_a_formula_count_as_parameters(formula, is_answered, tmp_path, caplog):
    """Three parameters are allowed for 120 rows: two coefficients and two numbers that the lead has chosen are four."""
    outcome = serve_until(PhaseReport, careful(tmp_path, formula, max_parameters_per_row=0.025))
    assert (outcome is None) == is_answered, outcome
    if not is_answered:
        assert "aachen, berlin, kiel: refused (limits): the site allows at most 0.025 parameters" in outcome["message"]
        words = "the regression has 2 parameters and 2 numbers in the formulas of all plans"  # at the site alone
        assert words in caplog.text


# Secure sums


def with_units(frame):
    """Columns whose products are from 1e-20 to 1e22: a fixed point of 64 bits has no resolution for all of them."""
    return frame.assign(income=1e10 * frame["age"] + 1e9 * (frame["grade"] - 2), grams=1e-9 * frame["cost"])


SECURE = {
    "binomial, large and small units": ("ill ~ income + grams + sex", {"errors": "clustered"}),
    "cox": ("Surv(weeks, died) ~ age + ward", {}),
    "gaussian": ("income ~ grade + sex", {"errors": "robust"}),
    "clusters": ("ill ~ age + sex", {"errors": "clustered", "cluster": "weeks"}),
    "lasso": ("visits ~ age + ward + sex", {"family": "poisson", "l1": 0.01}),
    "gamma": ("cost ~ log(age) + sex", {"family": "gamma"}),
    "cox, one baseline": ("Surv(weeks, died) ~ age", {"baseline_times": [20, 40]}),
    "splines": ("cost ~ cr(age, knots=[45, 55], lower_bound=20, upper_bound=80) + poly(visits, 2)", {}),
}


@pytest.mark.when_changed
@nightly.parametrize("name", SECURE, per_commit=1)
def test_secure_sums_have_the_estimates_of_the_pooled_rows(tmp_path, name):
    """The server gets masked integers only, and the table is that of the simulation."""
    pytest.importorskip("Crypto")
    frame, (formula, settings) = with_units(table(120, more=0)), SECURE[name]
    hospitals = Hospitals(tmp_path, frame, {"formula": formula, **settings}, policy=FEDERATION,
                          limits=Limits(secure_sums=True), privacy={"secure_sums": True})
    assert hospitals.serve() == {"status": "complete"}
    simulated = rv.regress(frame, formula, party="site", **settings)
    pd.testing.assert_frame_equal(fit_of(hospitals).table, simulated.table, rtol=1e-8)
    assert fit_of(hospitals).rounds == simulated.rounds
    for site in SITES:
        replies = messages(hospitals, site, "reply")
        assert len(replies) == simulated.rounds + 1
        assert all({*reply.arrays} == {"masked"} for reply in replies)
    with pytest.raises(InputError, match="a penalty" if "l1" in settings else r"privacy\.secure_sums"):
        fit_of(hospitals).heterogeneity()


@pytest.mark.when_changed
def test_a_server_that_sends_one_site_other_coefficients_has_a_uniform_sum(tmp_path):
    """The masks of a regression, too, are bound to the coefficients that the sites are sent.

    Sites k < l add +F(s_kl, d_k) and -F(s_kl, d_l) to their integers modulo 2^64, with the digest d of what a site was
    sent, their secret s_kl and a pseudorandom function F. With one digest the terms cancel. With d_k != d_l their sum
    F(s_kl, d_k) - F(s_kl, d_l) is uniform for whoever has not s_kl, and so is the total, whatever the replies are. With
    the threshold 1 there are no other masks.
    """
    pytest.importorskip("Crypto")

    def change(message):
        with contextlib.suppress(InputError):
            content = decode(message)
            if content.kind == "work" and content.facts["party"] == "berlin":
                shifted = content.arrays["payload.inner"] + 1e-9
                return encode(replace(content, arrays={**content.arrays, "payload.inner": shifted}))
        return message

    p_values = {}
    for name, of_server in (("honest", lambda message: message), ("lying", change)):
        hospitals = careful(tmp_path / name, "cost ~ age + ward", privacy={"secure_sums": True, "threshold": 1})
        serve_until(PhaseReport, hospitals, change=of_server)
        masked = [messages(hospitals, site, "reply")[0].arrays["masked"] for site in SITES]
        for of_site in masked:
            assert stats.kstest(of_site / 2.0**64, "uniform").pvalue > 1e-6
        p_values[name] = stats.kstest(sum(masked) / 2.0**64, "uniform").pvalue
    assert p_values["honest"] < 1e-9
    assert p_values["lying"] > 1e-6


def test_what_secure_sums_of_a_regression_cannot_do_is_said_at_once(tmp_path):
    secure = {"secure_sums": True}
    with pytest.raises(InputError, match=r"yaml:1: regression\.heterogeneity: it compares the fits of"):
        Hospitals(tmp_path, table(), {"formula": "ill ~ age", "heterogeneity": True}, privacy=secure)
    with pytest.raises(InputError, match=r"poly\(\) has other columns in each completed table"):
        Hospitals(tmp_path, table(), {"formula": "ill ~ poly(age, 2)", "imputations": 20})
    with pytest.raises(InputError, match=r"regression\.profile: it needs further rounds"):
        Hospitals(tmp_path, table(), {"formula": "ill ~ age", "profile": ["age"]})
    with pytest.raises(InputError, match="have no noise"):
        Hospitals(tmp_path, table(), {"formula": "ill ~ age"}, privacy=secure | {"delta": 1e-5})
    hospitals = Hospitals(tmp_path, table(), {"formula": "ill ~ age"}, limits=Limits(secure_sums=True))
    outcome = hospitals.serve()
    assert outcome["status"] == "refused"
    assert "secure_sums" in outcome["message"]
    pytest.importorskip("Crypto")
    hospitals = Hospitals(tmp_path / "four", table(), {"formula": "ill ~ age"}, privacy=secure | {"min_sites": 4})
    assert "at least 4 sites" in hospitals.serve()["message"]


@pytest.mark.when_changed
def test_a_step_that_is_too_long_for_the_integers_is_halved(tmp_path):
    """Finite numbers beyond the range of the integers count as failed: exp(200) is finite and larger than 2^120."""
    newton = FederatedNewton(largest=2.0**120)
    with jax.enable_x64(True):
        rows = next(read_tables(table(), RegressionSettings(formula="visits ~ age", family="poisson"), party="site"))
        oracle = rows.problem().oracle(0)
        for slope, has_failed in ((0.1, 0), (4.0, 1)):
            w = np.array([0.0, slope])
            assert np.isfinite(oracle.value(w))
            reply = newton.party((), w, oracle, jax.random.key(0), 1.0)[1]
            assert reply.has_failed == has_failed


def test_a_site_sees_before_what_a_regression_sends(tmp_path):
    """``resolvent site check`` with an experiment: names and sizes, who sees them, and what the limits refuse."""
    pytest.importorskip("Crypto")
    frame = table(120, more=0)
    for privacy, line in ((None, "the server sees each reply"), ({"secure_sums": True}, "of at least 5 sites, and")):
        hospitals = careful(tmp_path, frame=frame, privacy=privacy, min_sites=5)
        text = "\n".join(check_site(hospitals.files["kiel"], "kiel", hospitals.file))
        assert "120 complete rows; 0 with missing values left out" in text
        assert "ward: the names of 3 levels with their numbers of rows" in text
        assert line in text
        assert re.search("the answers about these rows have 5 independent columns; the largest leverage of a row is "
                         f"0.1[0-9], of the allowed {'0.80' if privacy else '0.50'}", text), text
        assert ("leave it with heterogeneity: true" in text) == (privacy is None)
        assert "every evaluation" not in text
        numbers = 1 + 4 + 4 * 4 + 1  # value, gradient, Hessian, and whether a number is not finite
        size = 8 * (5 * numbers + 1 + 1) if privacy else 8 * numbers  # with the number of rows, and a check
        assert f"estimates: reply of phase 1, every round, {size} bytes: " in text
    hospitals = careful(tmp_path, "ill ~ exp(age)", frame)
    with pytest.raises(Refusal, match=r"column 'exp\(age\)': with it.*leave columns out.*secure sums.*max_leverage"):
        [*check_site(hospitals.files["kiel"], "kiel", hospitals.file)]


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["nvflare", "flower"])
def test_secure_sums_over_an_engine(tmp_path, engine):
    """Server, sites and lead are processes with certificates; the estimates are those of the pooled rows."""
    pytest.importorskip("nvflare" if engine == "nvflare" else "flwr")
    table(120, more=0).to_csv(tmp_path / "rows.csv", index=False)
    file = RegressionFile.parse(json.dumps({
        "data": {"table": str(tmp_path / "rows.csv"), "party": "site"},
        "regression": {"formula": "ill ~ age + ward"}, "privacy": {"secure_sums": True}}), "mine.yaml", "mine")
    rehearsal = prepare_table_plan(FederatedRegression(file, policy=REHEARSAL))
    job = FederationJob("", rehearsal.plan.text, tuple(rehearsal.sites))
    fit, (parity,) = rehearse(rehearsal, tmp_path / "out", job, print, folder=tmp_path / "work", notify=print,
                              engine=engine)
    assert fit.has_converged
    assert parity.difference < 1e-12


def test_a_stratum_of_few_rows_is_refused(tmp_path, caplog):
    frame = table(90)
    frame.loc[[3, 4], "sex"] = "x"
    settings = {"formula": "Surv(weeks, died) ~ age", "strata": "sex"}
    hospitals = Hospitals(tmp_path, frame, settings, limits=Limits(min_sites=3), policy=FEDERATION)
    outcome = hospitals.serve()
    assert outcome["status"] == "refused"
    assert "to which fewer rows than 5 contribute" in outcome["message"]
    assert "'sex' = 'x' has 2 rows" in caplog.text
    assert "'x'" not in outcome["message"]
