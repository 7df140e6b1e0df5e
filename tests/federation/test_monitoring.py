"""The status of a participant for people and for monitoring: command, page, JSON and metrics, over real connections."""

import contextlib
import dataclasses
import http.client
import json
import re
import shutil
import socket
import threading
import time
from contextlib import contextmanager

import pytest

import nightly
from resolvent.cli import supervision
from resolvent.data.files.folder_lock import locked
from resolvent.errors import InputError
from resolvent.federation.lead.live import live_page, parse_address, serving
from resolvent.federation.lead.monitoring import View, lead_view, metrics_text, server_view, site_view
from resolvent.federation.protocol.connections import (
    forget_signs,
    read_connections,
    report_second_session,
    write_signs,
)
from resolvent.federation.protocol.events import PhaseReport
from resolvent.federation.protocol.kits import KitNote, write_kit_note
from resolvent.federation.protocol.names import JOURNAL, runs_of
from resolvent.federation.protocol.run_status import STATUS_FILE, MeanScore, RunStatus, SiteStatus
from resolvent.federation.site.journal import Journal
from resolvent.federation.site.plans import Plans

HOSTILE = '"><script>document.title="hacked"</script><b>\\\n'


def a_run(**changes):
    status = RunStatus("mine-1", method="FedAvg", round=3, rounds=10, phases_done=4, waits_for="replies",
                       bytes_down=2_000_000, bytes_up=1_500, memory=3 * 10**8, peak_memory=4 * 10**8, updated=2e9,
                       sites={
                           "aachen": SiteStatus(replies=4, norm=0.25, last_reply=90.0),
                           "berlin": SiteStatus(replies=2, not_counted=1, absent=1, late=1, refusals={"storage": 2},
                                                second_sessions=1, is_waited_for=True, last_reply=70.0)})
    status.scores = [MeanScore("FedAvg", 3, "accuracy", 0.75)]
    for name, value in changes.items():
        setattr(status, name, value)
    return status


def view_of(status, kind="server", **facts):
    return View(kind, "server", "fed.example.org:8002", True, {"aachen": True, "berlin": False}, status, 100.0, **facts)


@pytest.fixture
def kit(tmp_path):
    """A server's kit with a run."""
    write_kit_note_in(tmp_path / "server", "server", "server")
    folder = runs_of(tmp_path / "server") / "mine-1"
    folder.mkdir(parents=True)
    (folder / STATUS_FILE).write_text(json.dumps(a_run(updated=4e9).plain()))
    return KitNote(tmp_path / "server")


def write_kit_note_in(kit, kind, name):
    (kit / "startup").mkdir(parents=True)
    write_kit_note(kit, kind=kind, name=name, address="fed.example.org:8002")


# Metrics

LINE = re.compile(r'(?:# (?:HELP|TYPE) [a-z_]+ .+|[a-z_]+(?:\{(?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)+\})? [0-9.e+-]+)')


def samples(text):
    assert text.endswith("\n")
    assert [line for line in text.splitlines() if not LINE.fullmatch(line)] == []
    return {name: float(value) for name, value in (
        line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))}


def test_metrics_have_every_count_of_the_status():
    values = samples(metrics_text(view_of(a_run())))
    assert values == {
        "resolvent_started": 1, 'resolvent_site_connected{site="aachen"}': 1,
        'resolvent_site_connected{site="berlin"}': 0,
        'resolvent_run_info{run="mine-1",method="FedAvg",state="running"}': 1, "resolvent_round": 3,
        "resolvent_rounds": 10, "resolvent_phases_total": 4, "resolvent_sent_bytes_total": 2e6,
        "resolvent_received_bytes_total": 1500, "resolvent_memory_bytes": 3e8, "resolvent_memory_peak_bytes": 4e8,
        "resolvent_seconds_since_last_reply": 10, 'resolvent_replies_total{site="aachen"}': 4,
        'resolvent_replies_total{site="berlin"}': 2, 'resolvent_replies_not_counted_total{site="aachen"}': 0,
        'resolvent_replies_not_counted_total{site="berlin"}': 1, 'resolvent_replies_absent_total{site="aachen"}': 0,
        'resolvent_replies_absent_total{site="berlin"}': 1, 'resolvent_replies_late_total{site="aachen"}': 0,
        'resolvent_replies_late_total{site="berlin"}': 1, 'resolvent_second_sessions_total{site="aachen"}': 0,
        'resolvent_second_sessions_total{site="berlin"}': 1, 'resolvent_waited_for{site="aachen"}': 0,
        'resolvent_waited_for{site="berlin"}': 1, 'resolvent_update_norm{site="aachen"}': 0.25,
        'resolvent_refusals_total{site="berlin",code="storage"}': 2}


def test_hostile_names_stay_within_their_label():
    text = metrics_text(view_of(a_run(sites={HOSTILE: SiteStatus(refusals={"limits": 1})}, method=HOSTILE)))
    assert len(samples(text)) > 10
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is not installed")
    families = [*parser.text_string_to_metric_families(text)]
    assert {sample.labels["site"] for family in families for sample in family.samples
            if family.name == "resolvent_replies"} == {HOSTILE}


def test_each_metric_has_one_description():
    ledger = {("a.csv", "one"): {"round": 2, "describe": 1}, ("a.csv", "two"): {"round": 3}}
    text = metrics_text(view_of(a_run(), kind="site", ledger=ledger))
    names = re.findall(r"# TYPE (\S+)", text)
    assert len(names) == len({*names}) == text.count("# HELP")
    assert samples(text)['resolvent_ledger_answers_total{kind="round"}'] == 5


# The page and its server


@contextmanager
def fetching(view):
    with serving(("127.0.0.1", 0), lambda: view) as address:
        port = int(address.rstrip("/").rpartition(":")[2])

        def fetch(path="/", host=f"127.0.0.1:{port}", method="GET"):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
            connection.request(method, path, headers={"Host": host})
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read().decode()

        yield fetch


def test_page_json_and_metrics_are_served_to_this_machine():
    view = view_of(a_run())
    with fetching(view) as fetch:
        status, headers, page = fetch()
        assert (status, page) == (200, live_page(view))
        assert ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
                ) in headers
        assert not [name for name, _ in headers if name.startswith("Access-Control")]
        assert json.loads(fetch("/status.json")[2])["run"]["sites"]["berlin"]["refusals"] == {"storage": 2}
        assert fetch("/metrics")[2] == metrics_text(view)
        assert fetch("/../etc/passwd")[0] == 404
        assert fetch(method="POST")[0] == 501


@pytest.mark.parametrize("host", ["evil.example.org", "evil.example.org:8010", "127.0.0.1.example.org:8010", ""])
def test_a_page_of_another_name_cannot_read_the_status(host):
    """A name that resolves to the loopback address: the browser sends the name of the other page (DNS rebinding)."""
    with fetching(view_of(a_run())) as fetch:
        for path in ("/", "/status.json", "/metrics"):
            status, _, text = fetch(path, host=host)
            assert (status, "mine-1" in text) == (403, False)


def test_the_server_listens_on_the_loopback_address_and_ends():
    assert parse_address("8010") == ("127.0.0.1", 8010)
    assert parse_address("0.0.0.0:8010") == ("0.0.0.0", 8010)
    assert parse_address("[::1]:8010") == ("::1", 8010)
    for text in ("", "x", "8010x", "host:", "127.0.0.1:70000"):
        with pytest.raises(InputError, match=r"--live .*give a port"):
            parse_address(text)
    threads = threading.active_count()
    with serving(("127.0.0.1", 0), lambda: view_of(None)) as address:
        port = int(address.rstrip("/").rpartition(":")[2])
        with pytest.raises(InputError, match="choose another port"), serving(("127.0.0.1", port), lambda: None):
            pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=600)
    assert threading.active_count() == threads


def test_a_page_has_no_script_and_nothing_from_outside():
    hostile = a_run(run=HOSTILE, method=HOSTILE, sites={HOSTILE: SiteStatus(refusals={HOSTILE: 1})},
                    scores=[{"method": HOSTILE, "round": 1, "score": HOSTILE, "mean": 0.5}])
    answers = ({"time": HOSTILE, "kind": HOSTILE, "run": HOSTILE},)
    plan = dict.fromkeys(("name", "run", "lead", "received", "decision"), HOSTILE)
    for view in (view_of(hostile), view_of(None), view_of(hostile, kind="lead"),
                 view_of(None, kind="site", ledger={(HOSTILE, HOSTILE): {HOSTILE: 1}}, answers=answers, plans=(plan,),
                         problem=HOSTILE)):
        page = live_page(view)
        assert not re.search(r"<script|<b>|<link|<img|https?:|url\(|@import|\bon\w+=", page)
        assert len(page) > 1000


# The views


def test_the_status_command_says_who_is_connected_and_who_is_waited_for(kit, capsys):
    write_signs(kit.kit, {"aachen": time.time(), "berlin": time.time() - 60})  # a frozen process keeps its connection
    assert supervision.show_status(kit, "text") == 1  # the server is not started
    text = capsys.readouterr().out
    for line in ("not started", "connected: aachen\n", "frozen or cut off: berlin", "FedAvg, round 3 of 10",
                 "waiting for: berlin", "refusals: storage 2"):
        assert line in text
    with locked(kit.kit / "running"):
        assert supervision.show_status(kit, "json") == 0
    content = json.loads(capsys.readouterr().out)
    assert content == json.loads(json.dumps(server_view(kit)._replace(is_started=True).plain())) | {
        "run": content["run"]}
    assert content["connections"] == {"aachen": True, "berlin": False}
    forget_signs(kit.kit)
    assert read_connections(kit.kit) == {}
    (path,) = runs_of(kit.kit).glob(f"*/{STATUS_FILE}")
    path.write_text(json.dumps(RunStatus("plan-1", state="stopped").plain()))
    supervision.show_status(kit, "text")
    assert "run plan-1: stopped\n" in capsys.readouterr().out
    shutil.rmtree(runs_of(kit.kit))
    supervision.show_status(kit, "text")
    assert "no run has begun" in capsys.readouterr().out


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_status_is_followed_until_the_server_ends(kit, capsys, monkeypatch, form):
    """Each change is printed once, and a clock alone prints nothing."""
    (path,) = runs_of(kit.kit).glob(f"*/{STATUS_FILE}")
    status = RunStatus("plan-1", method="FedAvg", rounds=10, round=3, updated=time.time())
    changes = iter([{"updated": time.time() + 1, "memory": 10**9}, {"round": 4}, {"round": 4, "peak_memory": 10**9},
                    {"waits_for": "the table"}])
    path.write_text(json.dumps(status.plain()))

    def go_on(seconds):
        change = next(changes, None)
        if change is None:
            running.close()
        else:
            path.write_text(json.dumps(dataclasses.replace(status, **change).plain()))

    with contextlib.ExitStack() as running:
        running.enter_context(locked(kit.kit / "running"))
        monkeypatch.setattr(supervision.time, "sleep", go_on)
        assert supervision.follow_status(kit, form) == 1
    lines = capsys.readouterr().out.splitlines()
    if form == "json":
        rows = [json.loads(line) for line in lines]
        assert [(row["run"]["round"], row["run"]["waits_for"], row["is_started"]) for row in rows] == [
            (3, "", True), (4, "", True), (3, "the table", True), (3, "the table", False)]
    else:
        assert [line for line in lines if line.startswith("run ")] == [
            f"run plan-1: running; FedAvg, round {t} of 10" for t in (3, 4, 3)]
        assert lines[-1].endswith("not started")


def test_the_page_of_a_site_has_its_ledger_and_its_plans(tmp_path):
    write_kit_note_in(tmp_path / "aachen", "site", "aachen")
    note = KitNote(tmp_path / "aachen")
    assert "The site has answered nothing" in live_page(site_view(note))
    ledger = Journal(runs_of(note.kit) / JOURNAL, "rows", table="table.csv")
    ledger.append("describe", run="mine-1")
    for t in range(3):
        ledger.append("reply", run="mine-1/0/abc", round=t, phase=0, message=f"message {t}")
    Plans(ledger).receive("ab" * 32, "lead@example.org", "mine-1", "rounds: 3", "its lead is not in the rule", {})
    view = site_view(note)
    assert view.ledger == {("table.csv", "mine-1"): {"describe": 1, "reply": 3}}
    page = live_page(view)
    assert "describe 1" in page
    assert "waiting" in page
    assert view.plain()["ledger"][0]["answers"]["reply"] == 3
    path = runs_of(note.kit) / JOURNAL
    path.write_bytes(path.read_bytes().replace(b"message 1", b"message 9"))
    assert "was changed or removed" in live_page(site_view(note))


def test_the_page_of_the_lead_follows_the_events_of_its_command(tmp_path, capsys):
    write_kit_note_in(tmp_path / "server", "server", "server")
    note, events = KitNote(tmp_path / "server"), []
    with supervision.lead_page("127.0.0.1:0", note, "mine", ("aachen", "berlin"), events.append) as observe:
        port = int(re.search(r"127\.0\.0\.1:(\d+)", capsys.readouterr().out)[1])
        observe(PhaseReport(0, 0, 1, (0, 1), (0,), {}, {1: "no reply"}, (), {0: 0.5}, method="FedAvg", planned=3,
                            names=("aachen", "berlin")))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        connection.request("GET", "/status.json")
        run = json.loads(connection.getresponse().read())["run"]
        connection.close()
    assert (run["method"], run["round"], run["sites"]["aachen"]["norm"], run["sites"]["berlin"]["absent"]) == (
        "FedAvg", 1, 0.5, 1)
    assert len(events) == 1
    assert lead_view(note, None).status is None


def test_without_the_option_nothing_is_served(monkeypatch):
    monkeypatch.setattr(supervision, "serving", None)
    with supervision._live(None, lambda: None):
        pass


class Process:
    """A process during which things happen one after the other, and which then ends."""

    def __init__(self, *happenings):
        self.happenings = [*happenings]
        self.is_running = True

    def bound_log(self):
        """There is no log."""

    def wait(self, seconds):
        self.happenings.pop(0)()
        self.is_running = bool(self.happenings)


def test_a_command_says_who_connects_and_who_is_lost(kit, capsys):
    """The engine's process has written it into the kit; no text of its log is read."""
    now = time.time()
    process = Process(lambda: write_signs(kit.kit, {"aachen": now, "berlin": now}),
                      lambda: write_signs(kit.kit, {"aachen": now, "berlin": now - 60}),
                      lambda: report_second_session(kit.kit, "aachen"), lambda: None)
    supervision._report_news(process, kit, lambda: None)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["joined: aachen", "joined: berlin", "lost: berlin"]
    assert "a second process that connects as aachen" in " ".join(lines[3:])


def test_the_command_of_a_site_says_that_it_is_connected_or_refused(tmp_path, capsys):
    write_kit_note_in(tmp_path / "aachen", "site", "aachen")
    note = KitNote(tmp_path / "aachen")
    process = Process(lambda: write_signs(note.kit, {"aachen": time.time()}), lambda: forget_signs(note.kit),
                      lambda: report_second_session(note.kit, "aachen", is_refused_here=True), lambda: None)
    supervision._report_news(process, note, lambda: None)
    first, second, *rest = capsys.readouterr().out.splitlines()
    assert (first, second) == ("connected to the server", "the connection to the server is lost")
    assert "the server refuses this process" in " ".join(rest)


# In a browser


@pytest.mark.when_changed
@pytest.mark.browser
@pytest.mark.slow
@nightly.diagonal(("kind", "width"), ["server", "site"], [390, 1280])
def test_the_page_fits_the_window_runs_nothing_and_loads_again(kind, width):
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("no Chromium on this machine: neither chromium nor chromium-browser is on the PATH")
    name = HOSTILE + "a" * 40
    status = a_run(sites={name: SiteStatus(replies=1, refusals={"limits": 3}), "berlin": SiteStatus(norm=1e-9)})
    views = [view_of(status, kind=kind, ledger={("/srv/" + "t" * 60, "mine-1"): {"reply": 4, "describe": 1}},
                     answers=({"time": "2026", "kind": "round", "round": 0},))]
    with (serving(("127.0.0.1", 0), lambda: views[-1]) as address, sync_api.sync_playwright() as playwright):
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_context(viewport={"width": width, "height": 800}, color_scheme="dark").new_page()
        errors, requests = [], []
        page.on("console", lambda message: errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(address)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("document.scripts.length") == 0
        assert page.title() == "server: federation"
        if kind == "server":
            shown = page.locator("#sites tbody tr td").first.inner_text()
            assert "<script>" in shown
            views.append(view_of(a_run(round=7)))
            page.get_by_text("round 7 of 10").wait_for()  # the page loads again
        else:
            assert page.locator("#ledger tbody td").nth(2).inner_text() == "4"
        browser.close()
    assert errors == []
    assert [url for url in requests if not url.startswith((address, "data:"))] == []


def test_connections_that_send_nothing_do_not_keep_others_from_the_page(tmp_path):
    """100 connections are open, half of them with a part of a request: the page answers."""
    write_kit_note_in(tmp_path / "aachen", "site", "aachen")
    note, idle = KitNote(tmp_path / "aachen"), []
    with serving(("127.0.0.1", 0), lambda: site_view(note)) as url:
        port = int(url.rstrip("/").rpartition(":")[2])
        try:
            for number in range(100):
                idle.append(socket.create_connection(("127.0.0.1", port), timeout=600))
                if number % 2:
                    idle[-1].sendall(b"GET /status.json HTT")
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
            connection.request("GET", "/status.json")
            assert json.loads(connection.getresponse().read())["name"] == "aachen"
            connection.close()
        finally:
            for one in idle:
                one.close()
