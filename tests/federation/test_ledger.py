"""What a site has answered, over all experiments: a budget that survives kills, and a chain that shows a lost line."""

import json
import math
from dataclasses import replace

import pytest

import resolvent as rv
from federation.parts import Federation, limits, quadratic
from federation.test_federation_cli import EXPERIMENT, LIMITS, Consortium
from resolvent.data.files.digests import DamagedFileError
from resolvent.federation.protocol.exchange import FederationStoppedError, RoundRules
from resolvent.federation.protocol.refusals import Refusal
from resolvent.federation.site.ledger import Ledger, Usage

GD = rv.solvers.GD(0.05, steps=3)
ONE_METHOD = EXPERIMENT.replace("alone: local, ", "")


def add(ledger, run, number):
    ledger.append("reply", run=run, round=number, phase=0, message="x", payload="p")


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


def test_a_line_that_was_not_completed_is_no_round(tmp_path):
    path = tmp_path / "ledger.jsonl"
    path.write_text('{"table": "t", "run": "a/0", "ro')
    ledger = Ledger(path, "t")
    add(ledger, "a/0", 0)
    add(ledger, "b/0", 0)
    again = Ledger(path, "t")
    assert (again.usage().rounds, again.usage(besides="a").rounds) == (2, 1)
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
