"""What a lead learns from plans that are asked again with another detail: cells that are missing, numbers of a formula.

Each attack is of a lead alone, against honest sites with the default limits, and does not need a single round.
"""

import contextlib
import json

import numpy as np
import pytest

import nightly
from federation.hospitals import Hospitals, table
from resolvent.federation.protocol.events import Agreement, PhaseReport
from resolvent.federation.protocol.limits import Limits
from resolvent.federation.protocol.plan_files import table_plan_of_file
from resolvent.federation.protocol.policy import FEDERATION
from resolvent.federation.protocol.wire import decode
from resolvent.federation.site import read_rows

SECURE = nightly.parametrize("privacy", [None, {"secure_sums": True}], others=nightly.WHEN_CHANGED)


class Agreed(KeyboardInterrupt):
    """The run has reached the event for which the lead waits."""


class Lead:
    """A lead who knows the ages of patients of the first site, and asks one regression after another."""

    def __init__(self, folder, privacy, **limits):
        if privacy:
            pytest.importorskip("Crypto")
        frame = table(120, more=0).round({"age": 1})
        frame["hiv"] = np.random.default_rng(1).choice([0, 1], len(frame))
        self.rows, self.privacy, self.runs = frame[frame["site"] == "aachen"], privacy, 0
        self.known = self.rows.drop_duplicates("age", keep=False)
        self.hospitals = Hospitals(folder, frame, {"formula": "cost ~ age"}, policy=FEDERATION,
                                   limits=Limits(**limits), privacy=privacy)

    def ask(self, formula, until=Agreement, **missing):
        """The answers of the first site about a plan, up to an event."""
        hospitals, self.runs = self.hospitals, self.runs + 1
        hospitals.sent.clear()
        plan = {"regression": {"formula": formula, "heterogeneity": False},
                "data": {"missing": missing} if missing else {}}
        hospitals.file.write_text(json.dumps(plan | ({"privacy": self.privacy} if self.privacy else {})))
        hospitals.plan = table_plan_of_file(str(hospitals.file))

        def observe(event):
            if isinstance(event, until):
                raise Agreed

        with contextlib.suppress(Agreed):
            hospitals.serve(run=f"run-{self.runs}", observe=observe)
        return [decode(answer) for site, answer in hospitals.sent if site == "aachen"]


def costs_from_reports(lead):
    """The costs of 14 patients from the sums of the costs of all others, of which their ages are missing cells."""
    known, rng, sets, sums = lead.known.iloc[:14], np.random.default_rng(3), [], []
    for _ in range(24):
        left_out = rng.random(14) < 0.5
        answer = lead.ask("cost ~ age", age=known["age"][left_out].tolist())[0]
        if answer.kind == "answer":
            sets.append([1.0, *~left_out])
            sums.append(answer.facts["content"]["table"]["total"])
    guess, *_, = np.linalg.lstsq(np.array(sets), np.array(sums), rcond=None)
    return int((np.abs(guess[1:] - known["cost"]) < 1e-6).sum())


@pytest.mark.when_changed
def test_reports_about_other_rows_do_not_add_up_to_a_row(tmp_path, monkeypatch):
    """A report leaves before the columns of the features are judged; its own are judged before it leaves."""
    assert costs_from_reports(Lead(tmp_path / "rule", None)) == 0
    monkeypatch.setattr(read_rows, "_check_missing_cells", lambda *args: None)
    assert costs_from_reports(Lead(tmp_path / "span", None)) == 0
    assert costs_from_reports(Lead(tmp_path / "none", None, max_leverage=None, max_total_refusals=None)) == 14


@pytest.mark.when_changed
@SECURE
def test_whether_a_plan_is_refused_does_not_tell_who_is_ill(privacy, tmp_path, monkeypatch):
    """Patients with hiv are left out, and one more: it is a refusal unless she has hiv, and so is left out already."""
    def guesses(lead, count):
        lead.ask("cost ~ age + hiv", hiv=[1])
        answers = [lead.ask("cost ~ age + hiv", hiv=[1], age=[age])[0] for age in lead.known["age"].iloc[:count]]
        return [answer.kind == "answer" for answer in answers], {
            (answer.facts["code"], answer.facts["column"]) for answer in answers if answer.kind == "refusal"}

    lead = Lead(tmp_path / "rule", privacy)
    assert guesses(lead, 3) == ([False] * 3, {("other missing cells", "age")})
    monkeypatch.setattr(read_rows, "_check_missing_cells", lambda *args: None)
    lead = Lead(tmp_path / "none", privacy)
    truth = (lead.known["hiv"] == 1).tolist()
    assert truth.count(False) > 12
    told = guesses(lead, 24)[0]
    stop = np.flatnonzero(~np.array(truth))[9] + 1  # with the tenth refusal
    assert told[:stop] == truth[:stop]
    assert not any(told[stop:])


@pytest.mark.when_changed
@SECURE
def test_a_site_looks_at_no_plan_after_ten_refusals(privacy, tmp_path):
    """A bump at the age of a patient is a column if she has hiv, and nothing if not. Ten patients are told.

    The eleventh refusal would have another code, so that it does not tell her from one without hiv.
    """
    lead = Lead(tmp_path, privacy)
    ill = lead.known[lead.known["hiv"] == 1]["age"].tolist()
    assert len(ill) > 12
    assert lead.ask("cost ~ age", PhaseReport)[-1].kind == "reply"
    refusals = [lead.ask(f"cost ~ I(age + exp(-5000*(age - {age})**2)*hiv)", PhaseReport)[-1].facts for age in ill[:12]]
    assert [[*facts["limits"]] for facts in refusals[:10]] == [
        ["max_leverage" if privacy is None else "max_leverage_in_sums"]] * 10
    assert [facts["limits"] for facts in refusals[10:]] == [{"max_total_refusals": 10}] * 2
    assert lead.ask("cost ~ age")[0].facts["limits"] == {"max_total_refusals": 10}


def test_missing_cells_that_a_site_states_are_no_choice_of_the_lead(tmp_path):
    """A site whose file has the cells of a column answers plans with any part of them, and none with further ones."""
    lead = Lead(tmp_path, None)
    for site, file in lead.hospitals.files.items():
        lead.hospitals.files[site] = type(file)(table=file.table, limits=file.limits, missing={"age": [-9, -99]})
    assert [lead.ask("cost ~ age", **missing)[0].kind for missing in (
        {"age": [-9]}, {}, {"age": [-99, -9]}, {"age": [-9, 47.1]})] == ["answer"] * 3 + ["refusal"]
