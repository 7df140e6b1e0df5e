"""The journal of a site: budgets of rows that survive kills and names, and a chain that shows what was changed."""

import hashlib
import math
import re
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest

import nightly
import resolvent as rv
from federation.harness import EXPERIMENT, LIMITS, SOLVER, Consortium, sent
from federation.parts import Federation, limits, quadratic
from resolvent.cli import site
from resolvent.comparisons.runs.record import read_record
from resolvent.data.files.digests import DamagedFileError
from resolvent.errors import InputError
from resolvent.federation.engines.in_process import InProcess
from resolvent.federation.protocol.events import PhaseReport
from resolvent.federation.protocol.exchange import FederationStoppedError, RoundRules
from resolvent.federation.protocol.limits import Asked, Usage, reasons_to_refuse
from resolvent.federation.protocol.names import JOURNAL, VERSIONS
from resolvent.federation.protocol.policy import FEDERATION, REHEARSAL
from resolvent.federation.protocol.refusals import Refusal
from resolvent.federation.protocol.wire import decode
from resolvent.federation.site.journal import Journal, head_of
from torture.disk import Disk

GD = rv.solvers.GD(0.05, steps=3)
ONE_METHOD = EXPERIMENT.replace("alone: local, ", "")


def add(journal, run, number):
    journal.append("reply", run=run, round=number, phase=0, message="x", payload="p")


def used(path):
    """The journal of a site that has answered about the rows of one table, for their usage."""
    (rows,) = Journal(path).tables
    return Journal(path, rows)


@pytest.mark.when_changed
def test_rounds_of_all_experiments_count_and_a_killed_run_counts_once(tmp_path):
    """The second run is refused before anything about the table leaves the site."""
    consortium = Consortium(tmp_path, {"berlin": {"limits": replace(LIMITS, max_total_rounds=5)}}, text=ONE_METHOD)

    def stop(event):
        if isinstance(event, PhaseReport) and event.round == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        consortium.serve(observe=stop)
    assert consortium.serve() == {"status": "complete"}
    ledger = tmp_path / "berlin" / JOURNAL
    assert used(ledger).usage() == Usage(3, 3, 1, 1, math.inf)
    second = consortium.serve(consortium.job(run="mine-2"))
    assert second["status"] == "refused"
    assert "berlin: refused (limits): the site allows 5 rounds on its table in all experiments" in second["message"]
    assert [*sent(tmp_path / "berlin")[-1]] == ["refused"]
    assert Journal(ledger, "other rows").usage() == Usage()


@pytest.mark.when_changed
def test_no_reply_leaves_beyond_the_budget_and_a_restart_gives_no_round_back(tmp_path):
    """The server asks whatever it wants: the site counts each answered round."""
    ledger = tmp_path / JOURNAL
    with Federation(rv.feddane(GD), quadratic(double=False), tmp_path, rules=RoundRules(retries=0)) as parts:
        allowed = limits(max_total_rounds=2)
        parts.start_party(0, journal=Journal(ledger, "t"), limits=allowed)
        for _ in range(2):
            with pytest.raises(FederationStoppedError, match=r"round 3: .* site 0: refused \(limits\): the site"):
                parts.run()
            parts.start_party(0, journal=Journal(ledger, "t"), limits=allowed)
        assert Journal(ledger, "t").usage()[:2] == (2, 4)
        parts.start_party(0, journal=Journal(ledger, "t"), limits=limits(max_total_rounds=3))
        assert parts.run().record.round == 3


@pytest.mark.when_changed
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

    with Federation(algorithm, quadratic(double=False), tmp_path, policy=FEDERATION, transport=Replaying) as parts:
        ledger = tmp_path / JOURNAL
        for k in range(5):
            parts.start_party(k, policy=FEDERATION, journal=Journal(ledger) if k == 0 else None)
        parts.run()
        parts.stores["site 0"].close()
        shutil.rmtree(site_folder)
        if folder == "older copy":
            shutil.copytree(copy, site_folder)
        parts.start_party(0, policy=FEDERATION, journal=Journal(ledger))
        party = parts.parties["site 0"]
        assert decode(party.handle(Replaying.first["start"])).kind == "ready"
        again = decode(party.handle(Replaying.first["work"]))
    assert [reply.kind for reply in replies] == ["reply"] * 3
    assert (again.kind, again.facts["code"]) == ("refusal", "old")


def test_a_message_that_arrives_again_is_found_and_another_payload_is_refused(tmp_path):
    path = tmp_path / JOURNAL
    for plan in ("a", "b"):
        add(Journal(path, "t", plan=plan), f"{plan}/0", 0)
    again = Journal(path, "t")
    assert (again.usage().rounds, again.usage(without="a").rounds) == (2, 1)
    facts = {"run": "a/0", "round": 0, "phase": 0, "payload": "p"}
    assert [again.has("reply", message=message, **facts) for message in "xy"] == [True, False]
    with pytest.raises(Refusal, match="another payload"):
        again.has("reply", message="x", **{**facts, "payload": "q"})


def written(path, rows=8):
    """A journal with entries, whose folder has a run that has seen the last one."""
    journal = Journal(path, "t")
    for number in range(rows):
        add(journal, "a/0", number)
    (path.parent / "a").mkdir()
    journal.mark(path.parent / "a")
    return journal


def opened(path):
    """The entries of a journal, or what is wrong with it."""
    try:
        journal = Journal(path, "t")
        journal.check_runs()
    except DamagedFileError as error:
        return str(error)
    return journal.entries


def test_what_was_changed_in_a_journal_is_noticed(tmp_path):
    """An entry changed, removed, swapped, added or repeated, the file cut off, replaced or rolled back."""
    path = tmp_path / "runs" / JOURNAL
    journal = written(path)
    (tmp_path / "other").mkdir()
    other, older, whole = written(tmp_path / "other" / JOURNAL), tmp_path / "older", path.read_bytes()
    with sqlite3.connect(path) as database:
        database.execute("DELETE FROM entries WHERE number > 5")
    database.close()
    shutil.copy(path, older)
    assert f"{path} is older than the run a, or another journal has replaced it" in opened(path)
    swap = "UPDATE entries SET number = CASE number WHEN 3 THEN -4 WHEN 4 THEN -3 END WHERE number IN (3, 4)"
    changes = {
        "changed": ["UPDATE entries SET content = replace(content, '\"round\": 2', '\"round\": 7')"],
        "removed": ["DELETE FROM entries WHERE number = 3"], "first removed": ["DELETE FROM entries WHERE number = 1"],
        "closed up": ["DELETE FROM entries WHERE number = 3",
                      "UPDATE entries SET number = number - 1 WHERE number > 3"],
        "swapped": [swap, "UPDATE entries SET number = -number WHERE number < 0"],
        "added": ["INSERT INTO entries SELECT 9, content, digest FROM entries WHERE number = 8"],
        "emptied": ["DELETE FROM entries"], "last removed": ["DELETE FROM entries WHERE number = 8"],
        "no table": ["DROP TABLE entries"],
    }
    unnoticed = []
    for name, statements in changes.items():
        path.write_bytes(whole)
        with sqlite3.connect(path) as database:
            for statement in statements:
                database.execute(statement)
        database.close()
        if not isinstance(opened(path), str):
            unnoticed.append(name)
    for name, content in {"cut": whole[:len(whole) // 2], "nothing": b"", "text": b"x" * 5000,
                          "older": older.read_bytes(), "of another site": other.path.read_bytes()}.items():
        path.write_bytes(content)
        if not isinstance(opened(path), str):
            unnoticed.append(name)
    assert unnoticed == []
    path.write_bytes(whole)
    assert opened(path) == journal.entries
    assert (journal.continues(head_of(older)), Journal(path).continues(journal.head)) == (True, True)
    assert not other.continues(journal.head)  # the lead has kept this digest
    shutil.copy(older, path)
    shutil.rmtree(path.parent / "a")  # without the run, a copy of the digest shows what is missing
    assert not Journal(path).continues(journal.head)


def test_a_bit_that_was_flipped_in_a_journal_is_noticed_or_changes_no_entry(tmp_path):
    """The file has some bytes in which nothing is stored; all others are in the chain, or SQLite cannot read them."""
    path = tmp_path / "runs" / JOURNAL
    entries, whole = written(path, rows=3).entries, path.read_bytes()
    unnoticed = []
    for position in np.random.default_rng(0).choice(len(whole), 300, replace=False):
        changed = bytearray(whole)
        changed[position] ^= 1 << int(position % 8)
        path.write_bytes(changed)
        if not isinstance(found := opened(path), str) and found != entries:
            unnoticed.append(int(position))
    assert unnoticed == []
    contents = [position for match in re.finditer(rb"payload|[0-9a-f]{64}", whole) for position in match.span()[:1]]
    assert len(contents) > 3
    for position in contents:  # what is stored is noticed
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1:])
        assert isinstance(opened(path), str)


def test_a_party_notices_a_journal_that_is_older_than_its_reply(tmp_path):
    """The run's folder has a reply that an older copy of the journal has not: its budgets would begin again."""
    path = tmp_path / JOURNAL
    with Federation(rv.fedavg(GD), quadratic(double=False), tmp_path, rules=RoundRules(retries=0)) as parts:
        parts.start_party(0, journal=Journal(path, "t"))
        copy = path.read_bytes() if path.exists() else b""
        parts.run()
        path.write_bytes(copy)
        with pytest.raises(DamagedFileError, match="older than round 3 of"):
            parts.start_party(0, journal=Journal(path, "t"))


def test_a_ledger_of_an_earlier_version_is_refused(tmp_path):
    (tmp_path / "ledger.jsonl").write_text("{}\n")
    with pytest.raises(InputError, match="is the ledger of an earlier version"):
        Journal(tmp_path / JOURNAL)


def test_a_run_that_an_earlier_version_has_prepared_is_refused(tmp_path):
    """The journal does not have the agreement, so that another one would not be noticed."""
    consortium = Consortium(tmp_path, text=ONE_METHOD)
    (tmp_path / "berlin" / "mine-1").mkdir(parents=True)
    (tmp_path / "berlin" / "mine-1" / "prepared.json").write_text("{}")
    assert "berlin: refused (not in the plan)" in consortium.serve()["message"]


def test_two_processes_write_one_chain(tmp_path):
    """The process of an earlier job may still be running."""
    first, second = (Journal(tmp_path / JOURNAL, "t") for _ in range(2))
    for number in range(3):
        add(first, "a/0", number)
        add(second, "b/0", number)
    assert Journal(tmp_path / JOURNAL, "t").usage().rounds == 6


def test_a_site_with_a_damaged_ledger_answers_nothing(tmp_path):
    consortium = Consortium(tmp_path, text=ONE_METHOD)
    assert consortium.serve() == {"status": "complete"}
    ledger = tmp_path / "berlin" / JOURNAL
    kinds = [entry["kind"] for entry in Journal(ledger).entries if entry["kind"] not in ("answer", "file")]
    assert kinds == ["plan", "describe", "sizes", "columns", "agreement", "prepare", "sent ready",
                     *["reply", "sent reply"] * 3, "scores", "sent scores", "sent stored", "finish"]
    summary = [*Journal(ledger).summary()]
    answered = "3 rounds, 3 replies, 1 jobs, 1 evaluations, epsilon without a bound"
    assert summary[0].endswith(f"berlin.csv: {answered} in all experiments")
    assert summary[1] == f"  lead@example.org: {answered}"
    assert Journal(ledger).csv_text().count("\n") == len(Journal(ledger).entries) + 1
    before = ledger.read_bytes().replace(b'"kind": "finish"', b'"kind": "nothing"'[:16])
    ledger.write_bytes(before)
    outcome = consortium.serve(consortium.job(run="mine-2"))
    assert outcome["status"] == "refused"
    assert "berlin: refused (failed)" in outcome["message"]
    assert ledger.read_bytes() == before


@nightly.parametrize(("name", "allowed"), [
    ("max_total_replies", 5), ("max_lead_jobs", 1), ("max_total_epsilon", 100.0), ("max_lead_rounds", 5),
    ("max_total_jobs", 1), ("max_scores", 0.2), ("max_lead_replies", 5), ("max_lead_scores", 1)],
    per_commit=2, others=nightly.WHEN_CHANGED)
def test_budgets_of_a_table_and_of_a_lead(name, allowed, tmp_path):
    """A second run of the same lead is beyond the budget; one of another lead is within that of a lead."""
    consortium = Consortium(tmp_path, text=ONE_METHOD)
    assert consortium.serve() == {"status": "complete"}
    consortium.files["berlin"] = replace(consortium.files["berlin"], limits=replace(LIMITS, **{name: allowed}))
    outcome = consortium.serve(consortium.job(run="mine-2"))
    assert outcome["status"] == "refused"
    assert re.search(rf"berlin: refused \(limits\): the site allows .*{allowed:g}.* on its table|about its table|"
                     "for each scored row", outcome["message"])
    log = Journal(tmp_path / "berlin" / JOURNAL).entries[-1]
    assert (log["kind"], log["lead"], log["run"]) == ("refusal", "lead@example.org", "mine-2")
    file = consortium.files["berlin"]
    ledger = used(tmp_path / "berlin" / JOURNAL)
    other = reasons_to_refuse(file.limits, Asked(needed=Usage(3, 3, 1, 1, 1), scored_rows=8,
                                                  used=ledger.used("other@example.org")))
    assert [*other] == ([name] if name.startswith(("max_total", "max_scores")) else [])


@pytest.mark.when_changed
def test_the_epsilon_of_a_private_method_is_in_the_ledger(tmp_path):
    """A second run is refused before a reply; a method without a bound, before anything about the table leaves."""
    pytest.importorskip("dp_accounting")
    private = "{name: DPSGD, learning_rate: 0.1, batch_size: 10, steps: 2, noise_multiplier: 4.0}"
    text = ONE_METHOD.replace(SOLVER, private)
    consortium = Consortium(tmp_path, {"berlin": {"limits": replace(LIMITS, max_total_epsilon=2.5)}}, text=text)
    assert consortium.serve() == {"status": "complete"}
    ledger = used(tmp_path / "berlin" / JOURNAL)
    solver = rv.solvers.DPSGD(0.1, batch_size=10, steps=2, noise_multiplier=4.0)
    rows = read_record(tmp_path / "out").data.train[1]
    expected = rv.privacy.record_epsilons(rv.fedavg(solver), np.zeros(3), [rows], rounds=3, delta=1e-6)[0]
    assert ledger.usage().epsilon == pytest.approx(expected)
    records = rv.privacy.PrivacyAccount("records", ())
    assert {entry["adjacency"] for entry in ledger.of("epsilon")} == {records.adjacency}
    assert expected < 2.5 < 2 * expected
    second = consortium.serve(consortium.job(run="mine-2"))
    assert "berlin: refused (limits): the site allows the epsilon 2.5" in second["message"]
    assert used(ledger.path).usage()[:2] == (3, 3)
    (tmp_path / "sgd").mkdir()
    without = Consortium(tmp_path / "sgd", {"berlin": {"limits": replace(LIMITS, max_total_epsilon=1e9)}},
                         text=ONE_METHOD)
    assert "berlin: refused (limits): the site allows the epsilon" in without.serve()["message"]
    kinds = [entry["kind"] for entry in Journal(tmp_path / "sgd" / "berlin" / JOURNAL).entries]
    assert [kind for kind in kinds if kind != "file"] == ["plan", "refusal"]


def test_the_ledger_is_a_page_for_a_browser(tmp_path, capsys, monkeypatch):
    """One file, without scripts and outside resources; a name is text and no element."""
    table, lead = '"><script>alert(1)</script>.csv', "<b>lead@example.org"
    ledger = Journal(tmp_path / "runs" / JOURNAL, "rows", lead, "p", table)
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
    heads = "time,kind,table,rows,lead,plan,run,round,phase,message,payload"
    assert (tmp_path / "ledger.csv").read_text().startswith(heads)


def renamed(frame, path):
    path = path.with_name("other.csv")
    frame.to_csv(path, index=False)
    return path


def reordered(frame, path):
    frame.sample(frac=1, random_state=1)[[*frame.columns[::-1]]].to_csv(renamed(frame, path), index=False)
    return path.with_name("other.csv")


def extended(frame, path):
    more = frame.sample(12, random_state=2)
    return renamed(pd.concat([frame, more.assign(age=more["age"] + 0.37)]), path)


def slightly_changed(frame, path):
    frame = frame.reset_index(drop=True)
    frame.loc[:6, "age"] += 0.01
    return renamed(frame, path)


def with_another_column(frame, path):
    return renamed(frame.assign(day=np.arange(len(frame)) % 7), path)


@pytest.mark.parametrize("change", [renamed, reordered, extended, slightly_changed, with_another_column])
def test_the_budgets_belong_to_the_rows(change, tmp_path):
    """The file has another name, other rows in addition or an order of its own, and the run another name."""
    consortium = Consortium(tmp_path, {"berlin": {"limits": replace(LIMITS, max_total_rounds=5)}}, text=ONE_METHOD)
    assert consortium.serve() == {"status": "complete"}
    file = consortium.files["berlin"]
    consortium.files["berlin"] = replace(file, table=str(change(pd.read_csv(file.table), Path(file.table))))
    outcome = consortium.serve(consortium.job(run="other-name"))
    assert "berlin: refused (limits): the site allows 5 rounds on its table" in outcome["message"]
    assert len(Journal(tmp_path / "berlin" / JOURNAL).tables) == 1


def test_other_rows_have_a_budget_of_their_own(tmp_path):
    consortium = Consortium(tmp_path, {"berlin": {"limits": replace(LIMITS, max_total_rounds=5)}}, text=ONE_METHOD)
    assert consortium.serve() == {"status": "complete"}
    file = consortium.files["berlin"]
    frame = pd.read_csv(file.table)
    Path(file.table).write_text(frame.assign(age=frame["age"] + 0.5).to_csv(index=False))
    shutil.rmtree(tmp_path / "server")  # with the other table, which the server knows
    assert consortium.serve(consortium.job(run="mine-2"), results="out-2") == {"status": "complete"}
    journal = Journal(tmp_path / "berlin" / JOURNAL)
    assert [journal.about(rows).usage().rounds for rows in journal.tables] == [3, 3]


def test_plans_under_one_name_of_a_run_are_several_jobs(tmp_path):
    """A job is a plan, whatever its run is called; the same plan again, after a kill, is the same job."""
    journal = Journal(tmp_path / JOURNAL, "t", plan="a")
    for plan in ("a", "b", "b", "c"):
        Journal(journal.path, "t", plan=plan).append("describe", run="mine")
    counted = Journal(journal.path, "t")
    assert (counted.usage().jobs, counted.usage(without="b").jobs) == (3, 2)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The answers of a whole run in the ledger of a site, and its file operations."""
    folder = tmp_path_factory.mktemp("ledger")
    consortium = Consortium(folder, text=ONE_METHOD, policy=REHEARSAL)
    with Disk(folder / "berlin").watched() as disk:
        assert consortium.serve() == {"status": "complete"}
    return answers_of(folder), len(disk.operations)


def answers_of(folder):
    return [tuple(entry.get(name) for name in ("kind", "run", "round", "phase", "payload"))
            for entry in Journal(folder / "berlin" / JOURNAL).entries if entry["kind"] in ("reply", "scores")]


@pytest.mark.when_changed
@nightly.parametrize("point", [0.45, 0.7, *(k / 24 for k in range(24))])
@pytest.mark.parametrize("is_torn", [False, True])
def test_a_kill_loses_no_answer_of_the_ledger_and_counts_none_twice(point, is_torn, uninterrupted, tmp_path):
    """A site is killed at one of its file operations, such as between the ledger and the reply, and starts again."""
    expected, operations = uninterrupted
    consortium = Consortium(tmp_path, text=ONE_METHOD, policy=REHEARSAL)
    stop = max(int(point * operations) + is_torn, 1)  # before its first operation the site has no folder
    with Disk(tmp_path / "berlin", stop_at=stop, is_torn=is_torn, copy=tmp_path / "killed").watched() as disk:
        consortium.serve()
    assert disk.has_stopped
    shutil.rmtree(tmp_path / "berlin", ignore_errors=True)
    (tmp_path / "killed").rename(tmp_path / "berlin")
    before = answers_of(tmp_path)
    journal = Journal(tmp_path / "berlin" / JOURNAL)
    left = [(kind, entry["round"]) for kind in ("reply", "scores") for entry in journal.of(f"sent {kind}")]
    assert {*left} <= {(kind, number) for kind, _, number, *_ in before}
    assert consortium.serve() == {"status": "complete"}
    assert answers_of(tmp_path) == expected


@pytest.mark.when_changed
@pytest.mark.parametrize("file", ["row-sets.json", "version-0000.npz", "columns-0.npy", "table.key"])
@pytest.mark.parametrize("change", ["bit", "removed", "older"])
def test_what_a_guard_remembers_of_the_rows_is_noticed_when_it_changes(file, change, tmp_path):
    """The rows of a version, sets of rows and spans are files beside the journal, which has their digests."""
    consortium = Consortium(tmp_path)
    assert consortium.serve() == {"status": "complete"}
    path = tmp_path / "aachen" / VERSIONS / file
    if change == "older":
        journal, before = Journal(tmp_path / "aachen" / JOURNAL), path.read_bytes()
        journal.write_file(path, lambda new: new.write_bytes(before + b" "))
        path.write_bytes(before)
    elif change == "bit":
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    else:
        path.unlink()
    outcome = consortium.serve(consortium.job(run="mine-2"), results="again")
    assert outcome["status"] == "refused"
    assert "aachen: refused (failed)" in outcome["message"]


def test_a_kill_between_the_journal_and_the_name_of_a_file_leaves_the_new_file(tmp_path, monkeypatch):
    journal, path = Journal(tmp_path / JOURNAL), tmp_path / "rows.json"
    assert not journal.has_file(path)
    journal.write_file(path, lambda new: new.write_text("first"))
    replace_file = type(path).replace

    def killed(self, target):
        if target == path:
            raise KeyboardInterrupt
        return replace_file(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(type(path), "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            journal.write_file(path, lambda new: new.write_text("second"))
    assert path.read_text() == "first"
    assert journal.has_file(path)
    assert path.read_text() == "second"


@pytest.mark.when_changed
def test_all_that_leaves_a_site_is_an_entry_of_its_journal(tmp_path):
    """Kind, round, phase, bytes and SHA-256 of what the transport had, in its order; a changed one is noticed."""
    received = []

    class Recording(InProcess):
        def broadcast(self, messages, **settings):
            replies = super().broadcast(messages, **settings)
            received.append(replies["berlin"])
            return replies

    consortium = Consortium(tmp_path, text=ONE_METHOD)
    assert consortium.serve(transport=Recording) == {"status": "complete"}
    journal = Journal(tmp_path / "berlin" / JOURNAL)
    entries = [entry for entry in journal.entries if "sha256" in entry and "bytes" in entry]
    assert [(entry["bytes"], entry["sha256"]) for entry in entries] == [
        (len(data), hashlib.sha256(data[40:]).hexdigest()) for data in received]
    rounds = [(f"sent {reply.kind}", reply.round, reply.phase) for reply in map(decode, received)
              if reply.kind != "answer"]
    assert [(entry["kind"], entry["round"], entry["phase"]) for entry in entries if "phase" in entry] == rounds
    assert [kind for kind, *_ in rounds].count("sent reply") == 3
    assert not [*tmp_path.rglob("sent.jsonl")]
    (line,) = [line for line in journal.summary() if "mine-1: " in line]
    assert line.endswith(f"; {sum(map(len, received))} bytes have left the site")
    assert all(entry["sha256"] in journal.csv_text() for entry in entries)
    path = tmp_path / "berlin" / JOURNAL
    old, new = entries[-2]["sha256"].encode(), entries[-2]["sha256"][::-1].encode()
    path.write_bytes(path.read_bytes().replace(old, new))
    with pytest.raises(DamagedFileError, match="was changed or removed"):
        Journal(path)
