"""The status of a run: what a run in one process writes, what monitoring reads, and what is never in it."""

import json
import threading
from types import SimpleNamespace

import pytest

from federation.harness import SITES, Consortium, limits
from resolvent.errors import InputError
from resolvent.federation.protocol.events import (
    Agreement,
    Completion,
    EvaluationReport,
    FinishReport,
    MembersReport,
    PhaseReport,
    Refusal,
    Revocation,
    SecondSession,
    StartReport,
    Waiting,
    read_event,
)
from resolvent.federation.protocol.names import JOURNAL
from resolvent.federation.protocol.run_status import STATUS_FILE, RunStatus, SiteStatus, newest_status, read_status
from resolvent.federation.protocol.wire import Message, encode, refusal_code
from resolvent.federation.server import watch as federation_watch
from resolvent.federation.server.watch import StatusFile, Watch
from resolvent.federation.site.journal import Journal


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
    rounds = [event for event, _ in statuses if isinstance(event, PhaseReport)]
    assert (status.run, status.state, status.waits_for) == ("mine-1", "complete", "")
    assert (status.method, status.round, status.rounds) == ("FedAvg", 3, 3)
    assert status.phases_done == len(rounds) == 6
    assert {name: (site.replies, site.absent, site.refusals) for name, site in status.sites.items()} == dict.fromkeys(
        SITES, (6, 0, {}))
    norms = {rounds[-1].names[k]: norm for k, norm in rounds[-1].norms.items()}
    assert {name: site.norm for name, site in status.sites.items()} == norms
    entries = [entry for site in SITES for entry in Journal(consortium.folder / site / JOURNAL).entries]
    assert status.bytes_up == sum(entry.get("bytes", 0) for entry in entries)
    assert status.started <= status.last_reply <= status.updated
    assert status.peak_memory >= status.memory > 0
    assert [(score.method, score.round) for score in status.scores] == [
        ("alone", 3), ("FedAvg", 3)]  # no model is scored before the first round


def test_the_status_is_that_of_the_event(served):
    """The file is written before the lead hears of an event, and no event is left out."""
    done = 0
    for event, status in served[1]:
        done += isinstance(event, PhaseReport)
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
        status.observe(Refusal("aachen", code), 1.0)
    assert status.sites["aachen"].refusals == {"unknown": 1, "limits": 1}


def test_a_site_that_is_no_longer_waited_for_has_replied():
    status = RunStatus("mine", sites={site: SiteStatus() for site in SITES})
    status.wait_for(Waiting("replies", SITES), 1.0)
    status.wait_for(Waiting("replies", ("berlin",)), 2.0)
    assert [(site.is_waited_for, site.last_reply) for site in status.sites.values()] == [(False, 2.0), (True, None)]
    status.wait_for(Waiting("server"), 3.0)  # its deadline is over
    assert status.sites["berlin"].last_reply is None
    assert status.last_reply == 2.0


def test_a_full_disk_does_not_stop_the_run_for_its_status(tmp_path):
    (tmp_path / f".{STATUS_FILE}.partial").mkdir()
    events = []
    watch = Watch(events.append)
    watch.status = status_file(tmp_path)
    watch.observe(StartReport("mine", SITES, (20, 20), method="FedAvg", planned=3))
    assert len(events) == 1
    assert read_status(tmp_path / STATUS_FILE) is None


def test_one_thread_writes_what_a_run_waits_for_and_reports_it(tmp_path, monkeypatch):
    """The file has it at once, the observer after a silence; after the end neither changes."""
    monkeypatch.setattr(federation_watch, "_CHECK", 0.001)
    monkeypatch.setattr(federation_watch, "_SILENCE", 0.01)
    reported = threading.Event()
    wait = Waiting("replies", ("berlin",), SITES, "work", 1, 1, method="FedAvg", planned=3)
    watch = Watch(lambda event: event == wait and reported.set())
    watch.status = file = status_file(tmp_path)
    watch.expect(wait)
    with watch:
        assert reported.wait(600)
        assert [name for name, site in read_status(tmp_path / STATUS_FILE).sites.items() if site.is_waited_for] == [
            "berlin"]
        file.end("complete")
        written = (tmp_path / STATUS_FILE).read_bytes()
        reported.clear()
        assert reported.wait(600)
    assert (tmp_path / STATUS_FILE).read_bytes() == written


def status_file(folder):
    return StatusFile(folder / STATUS_FILE, "mine", SITES, SimpleNamespace(bytes_down=0, bytes_up=0))


@pytest.mark.parametrize("event", [
    StartReport("mine", SITES, (20, 30), resumed=2, method="FedAvg", planned=3, names=SITES),
    MembersReport(1, ("baden",), (), (20, 30, 25)),
    PhaseReport(0, 1, 2, (0, 1), (1,), {0: "too long"}, {}, (0,), {1: 0.5, 0: None}, {1: 3}, (0,), 0.5, names=SITES),
    EvaluationReport(3, {0: {"accuracy": {"test": 0.5, "train": None}}}, {}, (1,), {}, (("loss", "test", 0.25),)),
    FinishReport(3, (0,), {1: "no reply"}), Agreement(2, {"aachen": 20}, ("berlin has no rows of a class",)),
    Refusal("aachen", "limits"), SecondSession("aachen"), Revocation("berlin"), Completion(),
    Waiting("replies", ("berlin",), SITES, "work", 1, 1, method="FedAvg", planned=3),
    Waiting("job", state="RUNNING", is_queued=True)], ids=lambda event: type(event).__name__)
def test_an_event_is_read_as_it_was_written(event):
    assert read_event(event.plain()) == read_event(json.loads(json.dumps(event.plain()))) == event


def test_the_lead_is_told_the_mean_of_a_score_and_no_score_of_a_site():
    scores = {0: {"accuracy": {"test": 0.5, "train": 1.0}}, 1: {"accuracy": {"test": 0.75}}, 2: {"accuracy": {}}}
    told = EvaluationReport(3, scores, scores, (3,), {4: "no reply"}).with_mean("accuracy")
    assert told == EvaluationReport(3, {}, {}, (3,), {4: "no reply"}, (("accuracy", "test", 0.625),))
    assert EvaluationReport(3, {}, {}, (), {}, (("mean_loss", "test", 1.0),)).with_mean("accuracy").means == (
        ("accuracy", "test", None),)


@pytest.mark.parametrize(("content", "words"), [
    ({"event": "Unknown"}, "another version"), ({}, "another version"),
    ({"event": "Refusal", "site": "aachen"}, "code"), ({"event": "PhaseReport", "round": "x"}, "round")])
def test_an_event_that_cannot_be_read_is_refused(content, words):
    with pytest.raises(InputError, match=words):
        read_event(content)


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
