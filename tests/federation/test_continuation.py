"""A run that has stopped, for whatever reason, continues with the same command: over both engines, without a network.

The engines are replaced at their boundary: the lead's session of NVIDIA FLARE, and the Grid of Flower's ServerApp.
"""

import contextlib
import errno
import re
import shutil
import threading
from dataclasses import replace

import pytest

import nightly
from federation.harness import EXPERIMENT, SITES, Consortium, lead_note, left, limits, read_request, signed
from resolvent.cli.federation_events import federation_observer
from resolvent.comparisons.runs.record import read_record
from resolvent.errors import InputError
from resolvent.federation.engines.flower import programs as flower_programs
from resolvent.federation.engines.in_process import InProcess
from resolvent.federation.engines.nvflare.lead import JobState
from resolvent.federation.lead import watchdog as federation_watchdog
from resolvent.federation.lead.lead import FederationEndedError, federate
from resolvent.federation.protocol.connections import folder_id, report_second_session
from resolvent.federation.protocol.events import PhaseReport, SecondSession, Waiting
from resolvent.federation.protocol.experiment import experiment_from_text
from resolvent.federation.protocol.job import FederationJob
from resolvent.federation.protocol.policy import REHEARSAL
from resolvent.federation.protocol.stores import PartyStore, ServerStore
from resolvent.federation.protocol.wire import decode
from resolvent.federation.server import watch as federation_waits
from resolvent.federation.server.serve import serve_federation
from resolvent.federation.server.watch import Watch

TEXT = EXPERIMENT.replace("{alone: local, FedAvg: fedavg}", "{Scaffold: scaffold}").replace("3\n", "2\n")


class Disturbed(InProcess):
    """A transport on which messages to berlin are lost as long as ``is_lost(message)``."""

    is_lost = staticmethod(lambda message: False)
    failed = ()

    def broadcast(self, messages, *, deadline, quorum, grace):
        self.before(messages)
        return super().broadcast({name: message for name, message in messages.items()
                                  if not (name == "berlin" and self.is_lost(bytes(message)))},
                                 deadline=deadline, quorum=quorum, grace=grace)


class Federation(Consortium):
    """A server and two sites that are started for each job; ``is_lost`` says which messages to berlin are lost."""

    def __init__(self, folder):
        folder.mkdir()
        super().__init__(folder, text=TEXT, policy=REHEARSAL)  # two federations have the same split
        self.is_lost, self.served = Disturbed.is_lost, 0
        self.observe = lambda event: None

    @contextlib.contextmanager
    def transport(self):
        self.served += 1
        with contextlib.ExitStack() as stack:
            sites = {name: self.site(name) for name in SITES}
            for site in sites.values():
                stack.callback(site.close)
            transport = Disturbed({name: site.handle for name, site in sites.items()})
            transport.is_lost, transport.before = self.is_lost, self.before
            yield transport

    def before(self, messages):
        """Called before messages are sent."""

    def serve(self, job, results, observe=lambda event: None):
        def observe_all(event):
            observe(event)
            self.observe(event)

        with self.transport() as transport:
            experiment = experiment_from_text(job.experiment, job.run)
            return serve_federation(job, experiment, transport, self.folder / "runs" / job.run, results,
                                    Watch(observe_all), kit=self.folder)

    def serve_in_lead(self, job, plan, transport, *arguments, **settings):
        """The server's steps over Flower, which are made in the process of the lead."""
        with self.transport() as disturbed:
            return serve_federation(job, plan, disturbed, *arguments, **settings)

    def federate(self, engine, notify=lambda note: None, observe=lambda event: None, **rules):
        def observe_all(event):
            observe(event)
            if engine == "flower":  # the server's steps are made in the process of the lead
                self.observe(event)

        note = lead_note(engine=engine, kit=self.folder, verify_site=None)
        job = FederationJob("", self.experiment.text, SITES, **{"retries": 0, **rules})
        return federate(note, self.experiment, self.folder / "out", job, observe_all, notify=notify)


class Session:
    """The lead's session of NVIDIA FLARE: a job runs to its end at the first query of its state, and its outcome stays.

    ``running`` are the jobs that run until they are aborted; ``damaged`` those whose results cannot be downloaded;
    ``waiting`` is what a running job waits for.
    """

    def __init__(self, federation):
        self.federation, self.orders, self.outcomes = federation, {}, {}
        self.running, self.damaged, self.waiting = set(), set(), None

    @contextlib.contextmanager
    def open(self, note):
        yield self

    def connected_sites(self):
        return {*SITES}

    def running_jobs(self):
        return self.running

    def idle_sites(self):
        return set()

    def abort(self, job):
        self.running.discard(job)
        self.outcomes[job] = None

    def submit(self, name, job, *classes):
        number = f"job {len(self.orders) + 1}"
        self.orders[number] = FederationJob.from_plain(job)
        return number

    def state(self, job):
        if job in self.running:
            return JobState("RUNNING", is_done=False)
        if job not in self.outcomes:
            self.outcomes[job], events = None, []
            outcome = self.federation.serve(self.orders[job], self.federation.folder / job, events.append)
            self.outcomes[job] = {**outcome, "events": [event.plain() for event in events]}
        return JobState("FINISHED:ABORTED" if self.outcomes[job] is None else "FINISHED:COMPLETED", is_done=True)

    def progress(self, job, since):
        return [], self.waiting

    def fetch(self, job, target):
        if job in self.damaged:
            raise InputError(f"the results of {job} cannot be downloaded")
        if (results := self.federation.folder / job).is_dir():
            shutil.copytree(results, target, dirs_exist_ok=True)
        return self.outcomes[job]


class Grid:
    """The Grid of a ServerApp with two nodes."""

    def nodes(self):
        return {name: k for k, name in enumerate(SITES)}

    def connected_sites(self):
        return {*SITES}


@pytest.fixture
def federation(tmp_path, monkeypatch):
    """A federation over both engines."""
    made = Federation(tmp_path / "federation")
    made.session = Session(made)
    monkeypatch.setattr(federation_watchdog, "open_session", made.session.open)
    monkeypatch.setattr(federation_watchdog, "_POLL", 0.0)
    monkeypatch.setattr(federation_waits, "_RECONNECT", 0.0)
    monkeypatch.setattr(flower_programs.FlowerServer, "_connect", lambda self: contextlib.nullcontext(Grid()))
    monkeypatch.setattr(flower_programs, "serve_federation", made.serve_in_lead)
    monkeypatch.setattr(flower_programs, "FlowerTransport", lambda *arguments: Disturbed)
    return made


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The digests of the server's states after a run without a fault."""
    consortium = Federation(tmp_path_factory.mktemp("undisturbed") / "federation")
    job = signed(FederationJob("mine", consortium.experiment.text, SITES))
    assert consortium.serve(job, consortium.folder / "out") == {"status": "complete"}
    return read_record(consortium.folder / "out").plain()["methods"]["Scaffold"]["digests"]


def is_work(message, first=0):
    return read_request(message) is None and decode(message).kind == "work" and decode(message).round >= first


def full_disk(*args):
    raise OSError(errno.ENOSPC, "No space left on device")


@contextlib.contextmanager
def absent_at_the_start(federation):
    federation.is_lost = lambda message: True
    yield "berlin: no answer"


@contextlib.contextmanager
def absent_in_a_round(federation):
    federation.is_lost = lambda message: is_work(message, first=1)
    yield "round 2: 1 parties have answered after 1 attempt"


@contextlib.contextmanager
def lost_disk(federation):
    """The disk comes back."""
    def lose(event):
        if isinstance(event, PhaseReport):
            (federation.folder / "berlin").rename(federation.folder / "away")
            raise KeyboardInterrupt

    with run_until(federation, lose):
        yield "refused [(]lost state[)]"
        shutil.rmtree(federation.folder / "berlin")
        (federation.folder / "away").rename(federation.folder / "berlin")


@contextlib.contextmanager
def run_until(federation, stop):
    """The lead's command and the job end at an event; the following block is in the state that remains."""
    federation.observe = stop
    with contextlib.suppress(KeyboardInterrupt):
        federation.federate(federation.engine)
    federation.observe = lambda event: None
    yield


def after_a_round(event):
    if isinstance(event, PhaseReport):
        raise KeyboardInterrupt


@contextlib.contextmanager
def full_disk_of_a_site_at_the_end(federation):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartyStore, "write_models", full_disk)
        yield "has not stored its models of Scaffold: refused [(]storage[)]"


@contextlib.contextmanager
def full_disk_of_the_server(federation):
    with run_until(federation, after_a_round), pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServerStore, "write", full_disk)
        yield "the server's disk cannot be used"


@contextlib.contextmanager
def refused_after_a_round(federation):
    """The owner of a site changes the limits, and changes them back."""
    with run_until(federation, after_a_round):
        files = dict(federation.files)
        federation.files["berlin"] = replace(files["berlin"], limits=limits(max_rounds=1))
        yield "berlin: refused [(]limits[)]: the site allows at most 1 rounds"
        federation.files = files


@contextlib.contextmanager
def refused_at_the_start(federation):
    files = dict(federation.files)
    federation.files["berlin"] = replace(files["berlin"], limits=limits(max_rounds=1))
    yield "berlin: refused [(]limits[)]: the site allows at most 1 rounds"
    federation.files = files


@contextlib.contextmanager
def mistake_of_the_server(federation):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("resolvent.federation.server.served_plan.ServedPlan._ask_to_finish", lambda *args: 1 / 0)
        yield "the server failed with ZeroDivisionError"


WAYS = (absent_in_a_round, refused_after_a_round, lost_disk, absent_at_the_start, full_disk_of_a_site_at_the_end,
        full_disk_of_the_server, refused_at_the_start, mistake_of_the_server)
# Flower shares all code with NVIDIA FLARE but the link. All ways end a job and start another one: a commit has one of
# them, and one of the other engine and at the end of a run if something has changed.
CHANGED = {(absent_in_a_round, "flower"), (full_disk_of_a_site_at_the_end, "nvflare")}
CASES = [pytest.param(engine, stop, id=f"{stop.__name__}-{engine}",
                      marks=[] if (stop, engine) == (absent_in_a_round, "nvflare") else
                      [pytest.mark.when_changed if (stop, engine) in CHANGED else pytest.mark.nightly])
         for engine in ("nvflare", "flower") for stop in WAYS]


@pytest.mark.when_changed
@pytest.mark.parametrize(("engine", "stop"), CASES)
def test_a_run_that_has_stopped_continues(engine, stop, federation, undisturbed):
    """The same command completes it, also after it has stopped twice; the result is that of a run without a fault."""
    federation.engine = engine
    with stop(federation) as reason:
        for _ in range(2):
            with pytest.raises(FederationEndedError, match=reason):
                federation.federate(engine)
    federation.is_lost = Disturbed.is_lost
    record = federation.federate(engine)
    assert record.methods["Scaffold"].digests == undisturbed
    assert (federation.folder / "out" / "report.html").is_file()


@pytest.mark.when_changed
def test_a_run_with_a_lost_disk_continues_with_a_first_state(federation):
    """The rules are those of the last command."""
    with lost_disk_for_good(federation):
        with pytest.raises(FederationEndedError, match=r"refused \(lost state\).*lost_state=restart"):
            federation.federate("nvflare")
        federation.federate("nvflare", lost_state="restart")
    assert [job.lost_state for job in federation.session.orders.values()] == ["refuse", "refuse", "restart"]


@contextlib.contextmanager
def lost_disk_for_good(federation):
    def lose(event):
        if isinstance(event, PhaseReport):
            shutil.rmtree(federation.folder / "berlin")
            raise KeyboardInterrupt

    federation.engine = "nvflare"
    with run_until(federation, lose):
        yield


@pytest.mark.when_changed
def test_a_running_job_with_other_rules_is_replaced(federation):
    """A command with the same rules follows the job; one with other rules ends it, and the next job has its rules."""
    federation.session.running.add("job 1")
    for number, rules in enumerate(({}, {}, {"quorum": 1, "deadline": 5.0})):
        notes = []
        with pytest.MonkeyPatch.context() as patch:
            if number < 2:
                patch.setattr(federation_watchdog.time, "sleep", interrupt)
                with pytest.raises(KeyboardInterrupt):
                    federation.federate("nvflare", notes.append, **rules)
            else:
                federation.federate("nvflare", notes.append, **rules)
    assert [job.quorum for job in federation.session.orders.values()] == [None, 1]
    assert notes[:2] == ["quorum is 1 instead of None: from the next round on",
                         "deadline is 5.0 instead of 600.0: from the next round on"]


def interrupt(*args):
    raise KeyboardInterrupt


@pytest.mark.when_changed
def test_a_run_whose_results_cannot_be_downloaded_continues(federation):
    """The first command ends after five attempts; the next one starts a job, which has nothing left to do."""
    federation.session.damaged.add("job 1")
    with pytest.raises(FederationEndedError, match="the results of job 1 cannot be downloaded"):
        federation.federate("nvflare")
    federation.federate("nvflare")
    assert [*federation.session.orders] == ["job 1", "job 2"]


@pytest.mark.when_changed
def test_a_run_whose_jobs_were_stopped_often_continues(federation, monkeypatch):
    """The number of jobs that a command starts is limited, that of a run is not."""
    monkeypatch.setattr(federation_watchdog, "_MAX_JOBS", 2)
    federation.session.outcomes.update({"job 1": None, "job 2": None})
    with pytest.raises(FederationEndedError, match="the job was stopped 2 times"):
        federation.federate("nvflare")
    assert federation.federate("nvflare").rounds == 2


@pytest.mark.when_changed
def test_a_complete_run_is_not_run_again(federation):
    """The command says so, and how to start another run; other settings are refused."""
    notes = []
    first = federation.federate("nvflare")
    files = {path: path.stat().st_mtime_ns for path in (federation.folder / "out").rglob("*")}
    assert federation.federate("nvflare", notes.append) == first
    assert federation.federate("flower", notes.append) == first
    assert federation.served == 1
    assert files == {path: path.stat().st_mtime_ns for path in (federation.folder / "out").rglob("*")}
    assert "is a complete run of this experiment, and nothing is started: give --out another folder" in notes[0]
    assert "cannot be extended" in notes[0]
    federation.experiment = experiment_from_text(federation.experiment.text.replace("rounds: 2", "rounds: 3"), "mine")
    with pytest.raises(InputError, match=r"another value of .*rounds.*give --out another folder for another run$"):
        federation.federate("nvflare")


# What a run waits for


@pytest.fixture
def often(monkeypatch):
    """What the run waits for is reported all the time, and not after seconds without an event."""
    monkeypatch.setattr(federation_waits, "_SILENCE", 0.0)
    monkeypatch.setattr(federation_waits, "_CHECK", 0.001)


@pytest.mark.when_changed
@pytest.mark.usefixtures("often")
def test_the_lead_is_informed_for_whom_a_job_waits(federation):
    """The job waits until the lead has heard of it: there is no other event."""
    federation.session.running.add("job 1")
    federation.session.waiting = Waiting("replies", ("berlin",), SITES, "work", 1, 1, method="Scaffold", planned=2)
    reports = []

    def observe(event):
        if isinstance(event, Waiting) and event.target == "replies":
            reports.append(event)
            federation.session.running.clear()

    federation.federate("nvflare", observe=observe)
    assert reports[0] == federation.session.waiting
    assert reports[0].text == "waiting for berlin: the reply of Scaffold, round 1 of 2, phase 1 (1 of 2 have answered)"


@pytest.mark.when_changed
@pytest.mark.usefixtures("often")
def test_the_lead_on_the_servers_machine_is_informed_for_whom_it_waits(federation, monkeypatch):
    """Over Flower the server's steps are made by the lead: nothing is sent before its observer is called."""
    waits, reports = [], threading.Event()
    monkeypatch.setattr(Disturbed, "missing", lambda transport: ("berlin",))

    def observe(event):
        if isinstance(event, Waiting) and event.target == "replies":
            waits.append(event)
            reports.set()

    def before(messages):
        reports.clear()
        assert reports.wait(600)

    federation.before = before
    federation.federate("flower", observe=observe)
    texts = [*dict.fromkeys(wait.text for wait in waits)]
    assert texts == [f"waiting for berlin: {text} (1 of 2 have answered)" for text in (
        "the description of the table", "the encoding of the rows", "the start of Scaffold",
        "the reply of Scaffold, round 1 of 2, phase 1", "the reply of Scaffold, round 2 of 2, phase 1",
        "the scores of Scaffold after round 2", "storing the models of Scaffold", "models and judgement")]


@pytest.mark.when_changed
@pytest.mark.usefixtures("often")
@nightly.parametrize("engine", ["nvflare", "flower"])
def test_the_lead_is_informed_which_sites_are_missing(engine, federation, monkeypatch, capsys):
    """At once, and again as long as they are missing; the command prints it."""
    reports = []

    def observe(event):
        if isinstance(event, Waiting) and event.target == "sites":
            reports.append(event)
            show(event)

    def nodes(*args):
        return {name: k for k, name in enumerate(SITES[:1] if len(reports) < 3 else SITES)}

    monkeypatch.setattr(federation.session, "connected_sites", lambda: {*nodes()})
    monkeypatch.setattr(Grid, "nodes", nodes)
    with federation_observer() as show:
        federation.federate(engine, observe=observe)
    assert reports[:3] == [Waiting("sites", ("berlin",))] * 3
    assert capsys.readouterr().err.count("waiting for berlin to connect: resolvent site start") >= 3


@pytest.mark.parametrize(("wait", "text"), [
    (Waiting("server"), "waiting for the server, which computes"),
    (Waiting("job", state="SUBMITTED"), "waiting for the server to run the job (SUBMITTED)"),
    (Waiting("end"), "waiting for the end of the job"),
    (Waiting("results"), "waiting for the results of the job"),
    (Waiting("connection"), "waiting for the connection to the server")])
def test_what_a_run_waits_for_is_said_in_words(wait, text):
    assert wait.text == text


def test_a_silence_is_shorter_than_ten_seconds():
    assert federation_waits._SILENCE + federation_waits._CHECK < 10


@pytest.mark.when_changed
@nightly.parametrize("engine", ["nvflare", "flower"])
def test_a_second_session_is_reported_to_the_lead_and_to_its_site(engine, federation):
    """The server's engine has refused a process that connects as aachen, between two rounds."""
    events = []

    def refuse(event):
        if isinstance(event, PhaseReport) and event.round == 0:
            report_second_session(federation.folder, "aachen")

    federation.observe = refuse
    with federation_observer() as show:
        federation.federate(engine, observe=lambda event: [events.append(event), show(event)])
    assert events.count(SecondSession("aachen")) == 1
    kinds = ["describe", "prepare", "second session", "finish"]
    assert [entry["kind"] for entry in left(federation.folder / "aachen")] == kinds
    assert "second session" not in [entry["kind"] for entry in left(federation.folder / "berlin")]


def test_the_id_of_a_folder_names_neither_the_machine_nor_the_folder(tmp_path):
    assert folder_id(tmp_path) == folder_id(tmp_path / "x" / "..") != folder_id(tmp_path / "x")
    assert re.fullmatch("[0-9a-f]{16}", folder_id(tmp_path))
