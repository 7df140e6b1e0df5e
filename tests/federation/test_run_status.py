"""The status of a run: what a run in one process writes, what monitoring reads, and what is never in it."""

import json

import pytest

from federation.harness import SITES, Consortium, left, limits
from resolvent.federation.protocol.run_status import STATUS_FILE, RunStatus, SiteStatus, newest_status, read_status
from resolvent.federation.protocol.wire import Message, encode, refusal_code
from resolvent.federation.server.status_file import StatusFile


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A complete run, and the status of the server at every event."""
    folder = tmp_path_factory.mktemp("status")
    consortium, statuses = Consortium(folder), []
    assert consortium.serve(observe=lambda event: statuses.append(
        (event, read_status(folder / "server" / STATUS_FILE)))) == {"status": "complete"}
    return consortium, statuses


@pytest.mark.when_changed
def test_the_status_counts_what_the_run_has_reported(served):
    consortium, statuses = served
    status = read_status(consortium.folder / "server" / STATUS_FILE)
    rounds = [event for event, _ in statuses if event["event"] == "round"]
    sent = [json.loads(line) for site in SITES for path in (consortium.folder / site).rglob("sent.jsonl")
            for line in path.read_text().splitlines()]
    assert (status.run, status.state, status.waits_for) == ("mine-1", "complete", "")
    assert (status.method, status.round, status.rounds) == ("FedAvg", 3, 3)
    assert status.phases_done == len(rounds) == 6
    assert {name: (site.replies, site.absent, site.refusals) for name, site in status.sites.items()} == dict.fromkeys(
        SITES, (6, 0, {}))
    assert [site.norm for site in status.sites.values()] == [rounds[-1]["norms"][name] for name in SITES]
    sent += [entry for site in SITES for entry in left(consortium.folder / site)]
    assert status.bytes_up == sum(entry["bytes"] for entry in sent)
    assert status.started <= status.last_reply <= status.updated
    assert status.peak_memory >= status.memory > 0
    assert [(score["method"], score["round"]) for score in status.scores] == [
        ("alone", 3), ("FedAvg", 3)]  # no model is scored before the first round


def test_the_status_is_that_of_the_event(served):
    """The file is written before the lead hears of an event, and no event is left out."""
    done = 0
    for event, status in served[1]:
        done += event["event"] == "round"
        assert (status.phases_done, status.state) == (done, "running")


def test_the_status_has_no_cell_and_no_level_of_a_table(served):
    text = (served[0].folder / "server" / STATUS_FILE).read_text()
    for word in ("east", "west", "ward", "age", '"yes"', '"no"', "ill"):
        assert word not in text


def test_refusals_are_counted_by_code_without_their_text(tmp_path):
    """The lead reads the reason, which names a column; the status has the code alone."""
    consortium = Consortium(tmp_path, {"berlin": {"limits": limits(features=("ward",), labels=("other",))}})
    outcome = consortium.serve()
    status = read_status(tmp_path / "server" / STATUS_FILE)
    assert outcome["status"] == status.state == "refused"
    assert "other" in outcome["message"]
    assert status.sites["berlin"].refusals == {"limits": 1}
    assert "other" not in (tmp_path / "server" / STATUS_FILE).read_text()


@pytest.mark.parametrize(("reply", "code"), [
    (encode(Message("refusal", "run", facts={"code": "limits"})), "limits"),
    (encode(Message("refusal", "run", facts={"code": "storage"})), "storage"),
    (encode(Message("answer", "run", facts={"code": "limits"})), None), (encode(Message("reply", "run")), None),
    (encode(Message("refusal", "run"))[:60], None), (encode(Message("refusal", "run")), None),
    (encode(Message("refusal", "run", facts={"code": {}})), None), (b"", None)])
def test_the_code_of_a_refusal_is_read_without_trust(reply, code):
    assert refusal_code(reply) == refusal_code(memoryview(reply)) == code


def test_a_code_that_no_site_of_this_version_sends_is_unknown():
    status = RunStatus("mine")
    for code in ("</b><script>", "limits"):
        status.observe({"event": "refusal", "site": "aachen", "code": code}, 1.0)
    assert status.sites["aachen"].refusals == {"unknown": 1, "limits": 1}


def test_a_site_that_is_no_longer_waited_for_has_replied():
    status = RunStatus("mine", sites={site: SiteStatus() for site in SITES})
    status.wait_for({"for": "replies", "missing": SITES}, 1.0)
    status.wait_for({"for": "replies", "missing": ["berlin"]}, 2.0)
    assert [(site.is_waited_for, site.last_reply) for site in status.sites.values()] == [(False, 2.0), (True, None)]
    status.wait_for({"for": "server"}, 3.0)  # its deadline is over
    assert status.sites["berlin"].last_reply is None
    assert status.last_reply == 2.0


def test_a_full_disk_does_not_stop_the_run_for_its_status(tmp_path):
    (tmp_path / f".{STATUS_FILE}.partial").mkdir()
    events = []
    with StatusFile(tmp_path / STATUS_FILE, "mine", SITES, events.append) as file:
        file.observe({"event": "start", "method": "FedAvg", "resumed": 0, "rounds": 3})
    assert len(events) == 1
    assert read_status(tmp_path / STATUS_FILE) is None


def test_the_newest_run_counts_and_a_silent_one_is_lost(tmp_path):
    for name, updated in (("old", 1.0), ("new", 2.0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / STATUS_FILE).write_text(json.dumps(RunStatus(name, updated=updated).plain()))
    (tmp_path / "new" / "x").mkdir()
    status = newest_status(tmp_path)
    assert (status.run, status.state) == ("new", "lost")
    (tmp_path / "new" / STATUS_FILE).write_text('{"sites": 3}')
    assert newest_status(tmp_path).run == "old"
    assert newest_status(tmp_path / "none") is None
