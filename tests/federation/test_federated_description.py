"""Descriptions between sites: the numbers of one process, the limits of a site, what a lead gets who asks again."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import resolvent as rv
from federation.hospitals import SITES, Hospitals, table
from resolvent.comparisons.description.description import Description
from resolvent.errors import InputError
from resolvent.federation.lead.lead import led_plan
from resolvent.federation.lead.rehearsal import compare_with_process, rehearsal_of_file
from resolvent.federation.protocol.events import PhaseReport
from resolvent.federation.protocol.limits import NO_LIMITS, Limits
from resolvent.federation.protocol.plan_files import plan_of_file
from resolvent.federation.protocol.policy import FEDERATION, REHEARSAL
from resolvent.federation.protocol.wire import decode, encode, head_of_message
from resolvent.federation.site.check import check_site

LIMITS = Limits(min_sites=3)
SETTINGS = {"columns": ["age", "ward", "ill"], "by": "sex"}


def described(folder, settings=SETTINGS, frame=None, **options):
    frame = table(90) if frame is None else frame
    frame["age"] = frame["age"].where(np.arange(len(frame)) % 40 > 0)
    frame["ward"] = frame["ward"].where(np.arange(len(frame)) % 50 > 0, "Zaphod")
    return Hospitals(folder, frame, settings, kind="describe", **{"limits": LIMITS, "policy": FEDERATION, **options})


def result(hospitals):
    return Description.read(hospitals.folder / "out")



@pytest.mark.when_changed
def test_sites_tell_what_one_process_tells(tmp_path):
    hospitals, events = described(tmp_path), []
    assert hospitals.serve(observe=events.append) == {"status": "complete"}
    found = result(hospitals)
    here = rv.describe(hospitals.frame, party="site", **SETTINGS)
    pd.testing.assert_frame_equal(found.table, here.table, rtol=1e-12)
    assert not found.table["is_exact"].all()
    assert sum(isinstance(event, PhaseReport) for event in events) == 1
    assert not any(b"Zaphod" in reply for _, reply in hospitals.sent)  # a level of few rows is not named


def test_a_rehearsal_compares_the_numbers(tmp_path):
    hospitals = described(tmp_path, {**SETTINGS, "min_cell": 1}, policy=REHEARSAL, limits=NO_LIMITS)
    hospitals.frame.to_csv(tmp_path / "all.csv", index=False)
    assert hospitals.serve() == {"status": "complete"}
    rehearsal = rehearsal_of_file(str(hospitals.file), [f"data.table={tmp_path / 'all.csv'}"])
    assert [*rehearsal.sites] == [*SITES]
    parity = compare_with_process(rehearsal, result(hospitals))
    assert parity.is_equal
    assert parity.difference == 0
    assert not parity._replace(difference=1.0).is_equal
    assert result(hospitals).table["is_exact"].all()


def test_with_secure_sums_the_server_has_the_sums_only(tmp_path):
    pytest.importorskip("Crypto")
    hospitals = described(tmp_path, privacy={"secure_sums": True, "min_sites": 3})
    assert hospitals.serve() == {"status": "complete"}
    found, here = result(hospitals), rv.describe(hospitals.frame, party="site", **SETTINGS)
    assert not found.of_sites
    assert "hidden in secure sums" in repr(found)
    of_all = here.table[here.table["site"] == "all sites"].reset_index(drop=True)
    pd.testing.assert_frame_equal(found.table, of_all, rtol=1e-12)


@pytest.mark.parametrize(("limits", "limit"), [
    ({"algorithms": ("fedavg",)}, "algorithms"), ({"min_rows": 100}, "min_rows"), ({"min_sites": 4}, "min_sites"),
    ({"secure_sums": True}, "secure_sums"), ({"labels": ("ward",)}, "labels"), ({"min_cell": 200}, "min_cell"),
    ({"max_total_rounds": 0}, "max_total_rounds"), ({"max_leverage": 0.01}, "max_leverage")])
def test_the_limits_of_a_site_hold_for_descriptions(tmp_path, limits, limit):
    hospitals = described(tmp_path, limits=replace(LIMITS, **limits))
    outcome = hospitals.serve()
    assert outcome["status"] == "refused"
    refusals = [head for _, reply in hospitals.sent if (head := head_of_message(reply)).kind == "refusal"]
    assert any(limit in refusal.facts["limits"] for refusal in refusals)


def test_a_server_that_leaves_a_level_out_gets_no_totals_without_it(tmp_path, caplog):
    def without_b(part):
        if isinstance(part, dict):
            return {name: without_b(value) for name, value in part.items()}
        return [without_b(value) for value in part if value != "B"] if isinstance(part, list) else part

    def leave_out(message):
        content = decode(message)
        return encode(replace(content, facts=without_b(dict(content.facts)))) if content.kind == "prepare" else message

    hospitals = described(tmp_path)
    # What the sites refuse is another message than the one whose answers the server waits for.
    assert hospitals.serve(change=leave_out)["status"] == "stopped"
    assert not {head_of_message(reply).kind for _, reply in hospitals.sent} & {"reply", "result"}
    assert "the agreement leaves out a level that the site has named" in caplog.text


def test_only_listed_columns_and_levels_are_described(tmp_path):
    hospitals = described(tmp_path, limits=replace(LIMITS, features=("ward", "ill")))
    assert "'age'" in hospitals.serve()["message"]
    hospitals = described(tmp_path / "text", limits=replace(LIMITS, max_levels=2))
    assert "'ward'" in hospitals.serve()["message"]
    hospitals = described(tmp_path / "levels", limits=replace(LIMITS, levels={"ward": ["A", "B"]}))
    assert hospitals.serve() == {"status": "complete"}
    assert result(hospitals).agreement.levels["ward"] == ["(not listed)", "A", "B"]


@pytest.mark.when_changed
def test_the_counts_of_a_histogram_are_told_in_one_grouping_only(tmp_path):
    """With those of all rows and those of one group, the difference would count few rows of the other group."""
    frame = table(90)
    frame.loc[frame["sex"] == "f", "sex"] = np.where(np.arange((frame["sex"] == "f").sum()) % 8 > 0, "m", "f")
    settings = {"columns": ["age"], "by": "sex"}
    limits = replace(LIMITS, max_leverage=None)
    hospitals = described(tmp_path, settings, frame=frame, limits=limits)
    assert hospitals.serve("first") == {"status": "complete"}
    of_groups = result(hospitals).table
    again = described(tmp_path, {"columns": ["age"]}, frame=frame, limits=limits)
    assert again.serve("second") == {"status": "complete"}
    of_all = result(again).table
    is_quantile = of_all["statistic"] == "50%"
    assert np.isinf(of_all[is_quantile][["low", "high"]]).all(axis=None)
    assert not of_all[is_quantile]["is_exact"].any()
    assert np.isfinite(of_groups[(of_groups["statistic"] == "50%") & (of_groups["group"] == "m")]["low"]).all()
    third = described(tmp_path, settings, frame=frame, limits=limits)
    assert third.serve("third") == {"status": "complete"}  # the same question has the same answer
    pd.testing.assert_frame_equal(result(third).table, of_groups)


def test_a_site_sees_before_what_a_description_sends(tmp_path):
    hospitals = described(tmp_path)
    text = "\n".join(check_site(hospitals.files["kiel"], "kiel", hospitals.file))
    assert "ward: the names of the 3 levels with at least 5 rows" in text
    assert "numbers: reply of phase 1" in text
    assert "independent columns; the largest leverage of a row is" in text
    assert "Counts below 5 stay at the site" in text


def test_a_wrong_file_or_order_is_refused(tmp_path):
    hospitals = described(tmp_path)
    assert hospitals.serve(quorum=2)["message"].startswith("a description needs all of its sites")
    for settings, words in (({}, "describe.columns: missing"), ({"columns": ["a", "a"]}, "named twice"),
                            ({"column": ["a"]}, "describe.column")):
        hospitals.file.write_text(json.dumps({"describe": settings}))
        with pytest.raises(InputError, match=words):
            plan_of_file(str(hospitals.file))
    hospitals.file.write_text(json.dumps({"describe": SETTINGS, "privacy": {"secure_sums": True, "delta": 1e-5}}))
    with pytest.raises(InputError, match="the sums of a description have no noise"):
        plan_of_file(str(hospitals.file))


def test_a_folder_with_another_description_is_refused(tmp_path):
    hospitals = described(tmp_path)
    assert hospitals.serve() == {"status": "complete"}
    led = led_plan(None, hospitals.plan)
    assert led.is_complete(tmp_path / "out")
    assert led.write(tmp_path / "out", None).groups == ["f", "m", "all"]
    assert (tmp_path / "out" / "report.html").is_file()
    hospitals.file.write_text(json.dumps({"describe": {"columns": ["ill"]}}))
    with pytest.raises(InputError, match="another description"):
        led_plan(None, plan_of_file(str(hospitals.file))).read(tmp_path / "out")
