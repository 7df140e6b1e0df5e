"""What a site has answered, over all experiments: a budget that survives kills, and a chain that shows a lost line."""

import json
import math
import re
import shutil
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

import nightly
import resolvent as rv
from federation.harness import EXPERIMENT, LIMITS, SOLVER, Consortium
from federation.parts import Federation, limits, quadratic
from resolvent.cli import site
from resolvent.comparisons.runs.summary import read_summary
from resolvent.data.files.digests import DamagedFileError
from resolvent.federation.engines.in_process import InProcess
from resolvent.federation.protocol.exchange import FederationStoppedError, RoundRules
from resolvent.federation.protocol.limits import Asked, Usage, reasons_to_refuse
from resolvent.federation.protocol.refusals import Refusal
from resolvent.federation.protocol.wire import decode
from resolvent.federation.site.ledger import Ledger
from torture.disk import Disk

GD = rv.solvers.GD(0.05, steps=3)
ONE_METHOD = EXPERIMENT.replace("alone: local, ", "")


def add(ledger, run, number):
    ledger.append("reply", run=run, round=number, phase=0, message="x", payload="p")


@pytest.mark.when_changed
def test_rounds_of_all_experiments_count_and_a_killed_run_counts_once(tmp_path):
    """The second run is refused before anything about the table leaves the site."""
    consortium = Consortium(tmp_path, {"berlin": {"limits": replace(LIMITS, max_total_rounds=5)}}, text=ONE_METHOD)

    def stop(event):
        if event["event"] == "round" and event["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        consortium.serve(observe=stop)
    assert consortium.serve() == {"status": "complete"}
    ledger = tmp_path / "berlin" / "ledger.jsonl"
    assert Ledger(ledger, consortium.files["berlin"].table).usage() == Usage(3, 3, 1, 2, math.inf)
    second = consortium.serve(consortium.job(run="mine-2"))
    assert second["status"] == "refused"
    assert "berlin: refused (limits): the site allows 5 rounds on its table in all experiments" in second["message"]
    last = json.loads((tmp_path / "berlin" / "sent.jsonl").read_text().splitlines()[-1])
    assert [*last["content"]] == ["refused"]
    assert Ledger(ledger, "another table").usage() == Usage()


def test_no_reply_leaves_beyond_the_budget_and_a_restart_gives_no_round_back(tmp_path):
    """The server asks whatever it wants: the site counts each answered round."""
    ledger = tmp_path / "ledger.jsonl"
    with Federation(rv.feddane(GD), quadratic(double=False), tmp_path, rules=RoundRules(retries=0)) as parts:
        allowed = limits(max_total_rounds=2)
        parts.start_party(0, ledger=Ledger(ledger, "t"), limits=allowed)
        for _ in range(2):
            with pytest.raises(FederationStoppedError, match=r"round 3: .* site 0: refused \(limits\): the site"):
                parts.run()
            parts.start_party(0, ledger=Ledger(ledger, "t"), limits=allowed)
        assert Ledger(ledger, "t").usage()[:2] == (2, 4)
        parts.start_party(0, ledger=Ledger(ledger, "t"), limits=limits(max_total_rounds=3))
        assert parts.run().record.round == 3


@nightly.parametrize("folder", ["older copy", "new"], others=nightly.WHEN_CHANGED)
def test_a_round_gets_no_second_reply_from_an_older_or_new_folder(folder, tmp_path):
    """Both replies would have other noise, their mean less of it, and epsilon counts one of them."""
    algorithm = rv.fedavg(rv.solvers.DPSGD(0.05, noise_multiplier=1.0, batch_size=4, steps=2))
    replies, site_folder, copy = [], tmp_path / "site 0", tmp_path / "copy"

    class Replaying(InProcess):
        first: ClassVar[dict] = {}

        def broadcast(self, messages, **times):
            heads = {name: decode(bytes(message)) for name, message in messages.items()}
            kind = heads["site 0"].kind
            if kind == "start":
                self.first["start"] = bytes(messages["site 0"])
            elif kind == "work":
                self.first.setdefault("work", bytes(messages["site 0"]))
            answers = super().broadcast(messages, **times)
            if kind == "start":
                shutil.copytree(site_folder, copy)
            elif kind == "work":
                replies.append(decode(answers["site 0"]))
            return answers

    with Federation(algorithm, quadratic(double=False), tmp_path, rehearsal=False, transport=Replaying) as parts:
        ledger = tmp_path / "ledger.jsonl"
        for k in range(5):
            parts.start_party(k, rehearsal=False, ledger=Ledger(ledger) if k == 0 else None)
        parts.run()
        parts.stores["site 0"].close()
        shutil.rmtree(site_folder)
        if folder == "older copy":
            shutil.copytree(copy, site_folder)
        parts.start_party(0, rehearsal=False, ledger=Ledger(ledger))
        party = parts.parties["site 0"]
        assert decode(party.handle(Replaying.first["start"])).kind == "ready"
        again = decode(party.handle(Replaying.first["work"]))
    assert [reply.kind for reply in replies] == ["reply"] * 3
    assert (again.kind, again.facts["code"]) == ("refusal", "old")


def test_a_line_that_was_not_completed_is_no_round(tmp_path):
    path = tmp_path / "ledger.jsonl"
    path.write_text('{"table": "t", "run": "a/0", "ro')
    ledger = Ledger(path, "t")
    add(ledger, "a/0", 0)
    add(ledger, "b/0", 0)
    again = Ledger(path, "t")
    assert (again.usage().rounds, again.usage(without="a").rounds) == (2, 1)
    facts = {"run": "a/0", "round": 0, "phase": 0, "payload": "p"}
    assert [again.has("reply", message=message, **facts) for message in "xy"] == [True, False]
    with pytest.raises(Refusal, match="another payload"):
        again.has("reply", message="x", **{**facts, "payload": "q"})


def test_a_changed_or_removed_line_is_noticed(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path, "t")
    for number in range(4):
        add(ledger, "a/0", number)
    lines = path.read_text().splitlines()
    copy = tmp_path / "copy.jsonl"
    copy.write_text("\n".join(lines[:3]) + "\n")
    assert ledger.compare(Ledger(copy, "t")) == "the ledger continues the copy: 1 lines are new"
    damages = [lines[1:], [lines[0], *lines[2:]], [lines[1], lines[0], *lines[2:]], [*lines[:2], lines[1], *lines[2:]],
               [lines[0].replace('"round": 0', '"round": 7'), *lines[1:]], ["{}", *lines],
               [*lines[:1], "garbage", *lines[2:]]]
    for damage in damages:
        path.write_text("\n".join(damage) + "\n")
        with pytest.raises(DamagedFileError, match="was changed or removed here"):
            Ledger(path, "t")
    path.write_text("\n".join(lines[:2]) + "\n")  # without its last lines it is a shorter ledger: the copy shows it
    assert "DOES NOT CONTINUE THE COPY" in Ledger(path, "t").compare(Ledger(copy, "t"))


def test_two_processes_write_one_chain(tmp_path):
    """The process of an earlier job may still be running."""
    first, second = (Ledger(tmp_path / "ledger.jsonl", "t") for _ in range(2))
    for number in range(3):
        add(first, "a/0", number)
        add(second, "b/0", number)
    assert Ledger(tmp_path / "ledger.jsonl", "t").usage().rounds == 6


def test_a_site_with_a_damaged_ledger_answers_nothing(tmp_path):
    consortium = Consortium(tmp_path, text=ONE_METHOD)
    assert consortium.serve() == {"status": "complete"}
    ledger = tmp_path / "berlin" / "ledger.jsonl"
    kinds = [json.loads(line)["kind"] for line in ledger.read_text().splitlines()]
    assert kinds == ["describe", "prepare", "scores", *["reply"] * 3, "scores", "finish"]
    summary = [*Ledger(ledger).summary()]
    used = "3 rounds, 3 replies, 1 jobs, 2 evaluations, epsilon without a bound"
    assert summary[0].endswith(f"berlin.csv: {used} in all experiments")
    assert summary[1] == f"  lead@example.org: {used}"
    assert Ledger(ledger).table().count("\n") == 9
    lines = ledger.read_text().splitlines()
    ledger.write_text("\n".join([*lines[:2], *lines[3:]]) + "\n")
    before = (tmp_path / "berlin" / "sent.jsonl").read_bytes()
    outcome = consortium.serve(consortium.job(run="mine-2"))
    assert outcome["status"] == "refused"
    assert "berlin: refused (failed)" in outcome["message"]
    assert (tmp_path / "berlin" / "sent.jsonl").read_bytes() == before


@nightly.parametrize(("name", "allowed"), [
    ("max_total_replies", 5), ("max_lead_jobs", 1), ("max_total_epsilon", 100.0), ("max_lead_rounds", 5),
    ("max_total_jobs", 1), ("max_total_scores", 3), ("max_lead_replies", 5), ("max_lead_scores", 3)],
    per_commit=2, others=nightly.WHEN_CHANGED)
def test_budgets_of_a_table_and_of_a_lead(name, allowed, tmp_path):
    """A second run of the same lead is beyond the budget; one of another lead is within that of a lead."""
    consortium = Consortium(tmp_path, text=ONE_METHOD)
    assert consortium.serve() == {"status": "complete"}
    consortium.files["berlin"] = replace(consortium.files["berlin"], limits=replace(LIMITS, **{name: allowed}))
    outcome = consortium.serve(consortium.job(run="mine-2"))
    assert outcome["status"] == "refused"
    assert re.search(rf"berlin: refused \(limits\): the site allows .*{allowed:g}.* on its table|about its table",
                     outcome["message"])
    log = Ledger(tmp_path / "berlin" / "ledger.jsonl").entries[-1]
    assert (log["kind"], log["lead"], log["run"]) == ("refusal", "lead@example.org", "mine-2")
    file = consortium.files["berlin"]
    ledger = Ledger(tmp_path / "berlin" / "ledger.jsonl", file.table)
    other = reasons_to_refuse(file.limits, Asked(needed=Usage(3, 3, 1, 2, 1), used=ledger.used("other@example.org")))
    assert [*other] == ([name] if name.startswith("max_total") else [])


@pytest.mark.when_changed
def test_the_epsilon_of_a_private_method_is_in_the_ledger(tmp_path):
    """A second run is refused before a reply; a method without a bound, before anything about the table leaves."""
    pytest.importorskip("dp_accounting")
    private = "{name: DPSGD, learning_rate: 0.1, batch_size: 10, steps: 2, noise_multiplier: 4.0}"
    text = ONE_METHOD.replace(SOLVER, private)
    consortium = Consortium(tmp_path, {"berlin": {"limits": replace(LIMITS, max_total_epsilon=2.5)}}, text=text)
    assert consortium.serve() == {"status": "complete"}
    ledger = Ledger(tmp_path / "berlin" / "ledger.jsonl", consortium.files["berlin"].table)
    solver = rv.solvers.DPSGD(0.1, batch_size=10, steps=2, noise_multiplier=4.0)
    rows = read_summary(tmp_path / "out")["data"]["train"][1]
    expected = rv.privacy.record_epsilons(rv.fedavg(solver), np.zeros(3), [rows], rounds=3, delta=1e-6)[0]
    assert ledger.usage().epsilon == pytest.approx(expected)
    assert expected < 2.5 < 2 * expected
    second = consortium.serve(consortium.job(run="mine-2"))
    assert "berlin: refused (limits): the site allows the epsilon 2.5" in second["message"]
    assert Ledger(ledger.path, ledger.name).usage()[:2] == (3, 3)
    (tmp_path / "sgd").mkdir()
    without = Consortium(tmp_path / "sgd", {"berlin": {"limits": replace(LIMITS, max_total_epsilon=1e9)}},
                         text=ONE_METHOD)
    assert "berlin: refused (limits): the site allows the epsilon" in without.serve()["message"]
    assert [e["kind"] for e in Ledger(tmp_path / "sgd" / "berlin" / "ledger.jsonl").entries] == ["refusal"]


def test_the_ledger_is_a_page_for_a_browser(tmp_path, capsys, monkeypatch):
    """One file, without scripts and outside resources; a name is text and no element."""
    table, lead = '"><script>alert(1)</script>.csv', "<b>lead@example.org"
    ledger = Ledger(tmp_path / "runs" / "ledger.jsonl", table, lead, "p")
    ledger.append("describe", run="mine-1", bytes=10)
    add(ledger, "mine-1/0/p", 0)
    note = type("Note", (), {"kit": tmp_path, "name": "<i>aachen"})()
    monkeypatch.setattr("resolvent.federation.protocol.kits.kit_note", lambda kit, kind: note)
    for name in ("ledger.html", "ledger.csv"):
        site.ledger(tmp_path, out=tmp_path / name)
    printed = " ".join(capsys.readouterr().out.split())
    assert "1 rounds, 1 replies, 1 jobs, 0 evaluations, epsilon without a bound" in printed
    page = (tmp_path / "ledger.html").read_text()
    assert "&lt;script&gt;alert(1)" in page
    assert not re.search(r"<script|<b>lead|<i>aachen|\bsrc=|href=|url\(|@import|https?://", page)
    assert ledger.head in page
    assert (tmp_path / "ledger.csv").read_text().startswith("time,kind,table,lead,plan,run,round,phase,message,payload")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The answers of a whole run in the ledger of a site, and its file operations."""
    folder = tmp_path_factory.mktemp("ledger")
    consortium = Consortium(folder, text=ONE_METHOD, is_rehearsal=True)
    with Disk(folder / "berlin").watched() as disk:
        assert consortium.serve() == {"status": "complete"}
    return answers_of(folder), len(disk.operations)


def answers_of(folder):
    return [tuple(entry.get(name) for name in ("kind", "run", "round", "phase", "payload"))
            for entry in Ledger(folder / "berlin" / "ledger.jsonl").entries if entry["kind"] in ("reply", "scores")]


@pytest.mark.when_changed
@nightly.parametrize("point", [0.45, 0.7, *(k / 24 for k in range(24))])
@pytest.mark.parametrize("is_torn", [False, True])
def test_a_kill_loses_no_answer_of_the_ledger_and_counts_none_twice(point, is_torn, uninterrupted, tmp_path):
    """A site is killed at one of its file operations, such as between the ledger and the reply, and starts again."""
    expected, operations = uninterrupted
    consortium = Consortium(tmp_path, text=ONE_METHOD, is_rehearsal=True)
    stop = int(point * operations) + is_torn
    with Disk(tmp_path / "berlin", stop_at=stop, is_torn=is_torn, copy=tmp_path / "killed").watched() as disk:
        consortium.serve()
    assert disk.has_stopped
    shutil.rmtree(tmp_path / "berlin", ignore_errors=True)
    (tmp_path / "killed").rename(tmp_path / "berlin")
    before = answers_of(tmp_path)
    sent = [json.loads(line) for path in (tmp_path / "berlin").glob("mine-1/stores/*/sent.jsonl")
            for line in path.read_text().splitlines() if line.endswith("}")]
    left = [(entry["kind"], entry["round"]) for entry in sent if entry["kind"] in ("reply", "scores")]
    assert {*left} <= {(kind, number) for kind, _, number, *_ in before}
    assert consortium.serve() == {"status": "complete"}
    assert answers_of(tmp_path) == expected
