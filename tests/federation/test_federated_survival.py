"""Survival between sites: the numbers of one process, the limits of a site, what a lead gets who asks again."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import resolvent as rv
from federation.hospitals import Hospitals, table
from resolvent.comparisons.description.description import Description
from resolvent.comparisons.survival.survival import Survival
from resolvent.errors import InputError
from resolvent.federation.lead.lead import led_plan
from resolvent.federation.lead.rehearsal import compare_with_process, rehearsal_of_file
from resolvent.federation.protocol.limits import NO_LIMITS, Limits
from resolvent.federation.protocol.plan_files import plan_of_file
from resolvent.federation.protocol.policy import FEDERATION, REHEARSAL
from resolvent.federation.protocol.wire import decode, encode, head_of_message
from resolvent.federation.site.check import check_site

LIMITS = Limits(min_sites=3)
SETTINGS = {"time": "weeks", "event": "died", "by": "sex", "every": 4, "until": 200}


def analysed(folder, settings=SETTINGS, frame=None, **options):
    frame = table(90) if frame is None else frame
    return Hospitals(folder, frame, settings, kind="survival", **{"limits": LIMITS, "policy": FEDERATION, **options})


def result(hospitals):
    return Survival.read(hospitals.folder / "out")


def refused(hospitals, run="mine-1"):
    assert hospitals.serve(run)["status"] == "refused"
    heads = [head for _, reply in hospitals.sent if (head := head_of_message(reply)).kind == "refusal"]
    return {limit for head in heads for limit in head.facts["limits"]}


@pytest.mark.parametrize("privacy", [None, {"secure_sums": True, "min_sites": 3}])
def test_sites_tell_what_one_process_tells(tmp_path, privacy):
    if privacy:
        pytest.importorskip("Crypto")
    frame = table(90)
    frame["weeks"] = frame["weeks"].where(np.arange(len(frame)) % 15 > 0)
    frame["begin"] = np.floor(frame["weeks"] / 3)
    settings = {**SETTINGS, "entry": "begin"}
    hospitals = analysed(tmp_path, settings, frame=frame, privacy=privacy)
    assert hospitals.serve() == {"status": "complete"}
    found, here = result(hospitals), rv.survival(frame, party="site", **settings)
    assert {*found.agreement.left_out.values()} == {6, 7}
    pd.testing.assert_frame_equal(found.table, here.table, rtol=1e-12)
    assert found.log_rank(stratified=True) == pytest.approx(here.log_rank(stratified=True), rel=1e-9)
    assert here.sums.events.sum() > 50


def test_a_rehearsal_compares_the_numbers(tmp_path):
    hospitals = analysed(tmp_path, {**SETTINGS, "min_cell": 1}, policy=REHEARSAL, limits=NO_LIMITS)
    hospitals.frame.to_csv(tmp_path / "all.csv", index=False)
    assert hospitals.serve() == {"status": "complete"}
    rehearsal = rehearsal_of_file(str(hospitals.file), [f"data.table={tmp_path / 'all.csv'}"])
    parity = compare_with_process(rehearsal, result(hospitals))
    assert parity.is_equal
    assert parity.difference < 1e-12
    assert result(hospitals).sums.events.sum() == hospitals.frame["died"].sum()


@pytest.mark.parametrize(("limits", "limit"), [
    ({"algorithms": ("fedavg",)}, "algorithms"), ({"min_rows": 100}, "min_rows"),
    ({"secure_sums": True}, "secure_sums"), ({"labels": ("ward",)}, "labels"),
    ({"min_cell": 200}, "min_cell"), ({"max_leverage": 0.01}, "max_leverage")])
def test_the_limits_of_a_site_hold_for_survival(tmp_path, limits, limit):
    assert limit in refused(analysed(tmp_path, limits=replace(LIMITS, **limits)))


def test_a_site_with_a_larger_limit_tells_less(tmp_path):
    hospitals = analysed(tmp_path, limits=replace(LIMITS, min_cell=12))
    assert hospitals.serve() == {"status": "complete"}
    here = rv.survival(hospitals.frame, party="site", **SETTINGS, min_cell=12)
    np.testing.assert_allclose(result(hospitals).sums.events, here.sums.events)


@pytest.mark.when_changed
def test_another_grid_is_refused_and_another_grouping_is_not(tmp_path):
    """Of two grids, the difference of the counts up to two edges counts the few rows between them."""
    frame = table(90)
    limits = replace(LIMITS, max_leverage=None)
    assert analysed(tmp_path, frame=frame, limits=limits).serve("first") == {"status": "complete"}
    for number, change in enumerate(({"every": 5}, {"until": 100}, {"min_cell": 7})):
        assert "min_cell" in refused(analysed(tmp_path, {**SETTINGS, **change}, frame=frame, limits=limits),
                                     f"other-{number}")
    ward = analysed(tmp_path, {**SETTINGS, "by": "ward"}, frame=frame, limits=limits)
    assert ward.serve("wards") == {"status": "complete"}
    assert result(ward).agreement.groups == ["A", "B", "C"]
    # Groups that differ from those of an earlier plan in two rows of a site would tell these two.
    frame["near"] = frame["sex"].where(np.arange(len(frame)) % 90 > 1, "f")
    near = analysed(tmp_path / "near", frame=frame, limits=limits)
    assert near.serve("first") == {"status": "complete"}
    near.file.write_text(json.dumps({"survival": {**SETTINGS, "by": "near"}}))
    again = analysed(tmp_path / "near", {**SETTINGS, "by": "near"}, frame=frame, limits=limits)
    assert "min_cell" in refused(again, "second")


@pytest.mark.when_changed
@pytest.mark.parametrize("first", ["describe", "survival"])
def test_a_histogram_and_a_grid_of_one_column_are_not_both_told(tmp_path, first):
    """Their edges differ, so that the difference of the counts up to two of them counts the few rows between."""
    frame, limits = table(90), replace(LIMITS, max_leverage=None)

    def describe(run):
        hospitals = Hospitals(tmp_path, frame, {"columns": ["weeks"]}, kind="describe", limits=limits,
                              policy=FEDERATION)
        assert hospitals.serve(run) == {"status": "complete"}
        told = Description.read(tmp_path / "out").table
        return np.isfinite(told[told["statistic"] == "50%"]["low"]).all()

    if first == "describe":
        assert describe("first")
        assert "min_cell" in refused(analysed(tmp_path, frame=frame, limits=limits), "second")
    else:
        assert analysed(tmp_path, frame=frame, limits=limits).serve("first") == {"status": "complete"}
        assert not describe("second")


def test_the_names_of_small_groups_stay_at_the_site(tmp_path):
    frame = table(90)
    frame.loc[[3, 4], "sex"] = "Zaphod"
    hospitals = analysed(tmp_path, frame=frame)
    assert hospitals.serve() == {"status": "complete"}
    assert not any(b"Zaphod" in reply for _, reply in hospitals.sent)
    listed = analysed(tmp_path / "listed", frame=frame, limits=replace(LIMITS, levels={"sex": ["f", "m"]}))
    assert "'sex'" in listed.serve()["message"]


def test_a_server_that_leaves_a_group_out_gets_nothing(tmp_path, caplog):
    def without_men(part):
        if isinstance(part, dict):
            return {name: without_men(value) for name, value in part.items()}
        return [without_men(value) for value in part if value != "m"] if isinstance(part, list) else part

    def leave_out(message):
        content = decode(message)
        if content.kind != "prepare":
            return message
        return encode(replace(content, facts=without_men(dict(content.facts))))

    hospitals = analysed(tmp_path)
    assert hospitals.serve(change=leave_out)["status"] == "stopped"
    assert not {head_of_message(reply).kind for _, reply in hospitals.sent} & {"reply", "result"}
    assert "the agreement leaves out a group that the site has named" in caplog.text


@pytest.mark.parametrize(("change", "code"), [
    ({"weeks": -3.0}, "values"), ({"died": 4}, "values"), ({"begin": 1e6}, "values")])
def test_a_table_with_impossible_times_is_refused_without_its_values(tmp_path, change, code):
    frame = table(90).assign(begin=0.0)
    for name, value in change.items():
        frame.loc[3, name] = value
    hospitals = analysed(tmp_path, {**SETTINGS, "entry": "begin"}, frame=frame)
    assert hospitals.serve()["status"] == "refused"
    heads = [head for _, reply in hospitals.sent if (head := head_of_message(reply)).kind == "refusal"]
    assert heads
    assert all("1e+06" not in str(head.facts) and "-3" not in str(head.facts) for head in heads)


def test_a_site_sees_before_what_leaves_it(tmp_path):
    hospitals = analysed(tmp_path)
    text = "\n".join(check_site(hospitals.files["kiel"], "kiel", hospitals.file))
    assert "the names of the 2 groups with at least 5 rows" in text
    assert "numbers: reply of phase 1" in text
    assert "independent columns; the largest leverage of a row is" in text
    assert "Counts below 5 stay at the site" in text


def test_a_wrong_file_is_refused_and_a_folder_has_one_plan(tmp_path):
    hospitals = analysed(tmp_path)
    assert hospitals.serve(quorum=2)["message"].startswith("a survival analysis needs all of its sites")
    without = {name: value for name, value in SETTINGS.items() if name not in ("every", "until")}
    for settings, words in ((without, "survival.every: missing"), ({"time": "weeks"}, "event"),
                            ({**SETTINGS, "column": "a"}, "survival.column")):
        hospitals.file.write_text(json.dumps({"survival": settings}))
        with pytest.raises(InputError, match=words):
            plan_of_file(str(hospitals.file))
    assert hospitals.serve("again") == {"status": "complete"}
    led = led_plan(None, hospitals.plan)
    assert led.is_complete(tmp_path / "out")
    assert led.write(tmp_path / "out", None).agreement.groups == ["f", "m"]
    hospitals.file.write_text(json.dumps({"survival": {**SETTINGS, "by": "ward"}}))
    with pytest.raises(InputError, match="another survival analysis"):
        led_plan(None, plan_of_file(str(hospitals.file))).read(tmp_path / "out")
