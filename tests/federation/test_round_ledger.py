"""A site's budget of rounds over all experiments: it survives kills, and counts a repeated message once."""

import json
from dataclasses import replace

import pytest

import resolvent as rv
from federation.parts import Federation, limits, quadratic
from federation.test_federation_cli import EXPERIMENT, LIMITS, Consortium
from resolvent.federation.protocol.exchange import FederationStoppedError, RoundRules
from resolvent.federation.site.round_ledger import RoundLedger

GD = rv.solvers.GD(0.05, steps=3)
ONE_METHOD = EXPERIMENT.replace("alone: local, ", "")


def test_rounds_of_all_experiments_count_and_a_killed_run_counts_once(tmp_path):
    """The second run is refused before anything about the table leaves the site."""
    consortium = Consortium(tmp_path, {"berlin": {"limits": replace(LIMITS, max_total_rounds=5)}}, text=ONE_METHOD)

    def stop(event):
        if event["event"] == "round" and event["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        consortium.serve(observe=stop)
    assert consortium.serve() == {"status": "complete"}
    ledger = tmp_path / "berlin" / "rounds.jsonl"
    assert RoundLedger(ledger, consortium.files["berlin"].table).used == 3
    second = consortium.serve(consortium.job(run="mine-2"))
    assert second["status"] == "refused"
    assert "berlin: refused (limits): the site allows 5 rounds on its table in all experiments" in second["message"]
    last = json.loads((tmp_path / "berlin" / "sent.jsonl").read_text().splitlines()[-1])
    assert [*last["content"]] == ["refused"]
    assert RoundLedger(ledger, "another table").used == 0


def test_no_reply_leaves_beyond_the_budget_and_a_restart_gives_no_round_back(tmp_path):
    """The server asks whatever it wants: the site counts each answered round."""
    ledger = tmp_path / "ledger.jsonl"
    with Federation(rv.feddane(GD), quadratic(double=False), tmp_path, rules=RoundRules(retries=0)) as parts:
        allowed = limits(max_total_rounds=2)
        parts.start_party(0, ledger=RoundLedger(ledger, "t"), limits=allowed)
        for _ in range(2):
            with pytest.raises(FederationStoppedError, match=r"round 3: .* site 0: refused \(limits\): the site"):
                parts.run()
            parts.start_party(0, ledger=RoundLedger(ledger, "t"), limits=allowed)
        assert RoundLedger(ledger, "t").used == 2  # rounds, not phases
        parts.start_party(0, ledger=RoundLedger(ledger, "t"), limits=limits(max_total_rounds=3))
        assert parts.run().record.round == 3


def test_a_line_that_was_not_completed_is_no_round(tmp_path):
    path = tmp_path / "rounds.jsonl"
    path.write_text('{"table": "t", "run": "a/0", "ro')
    ledger = RoundLedger(path, "t")
    ledger.add("a/0", 0, "x")
    ledger.add("b/0", 0, "x")
    again = RoundLedger(path, "t")
    assert (again.used, again.used_by("a"), again.has("a/0", 0, "x"), again.has("a/0", 0, "y")) == (2, 1, True, False)
