"""What the commands of a participant share: they run its process, say what happens, and serve its view."""

import contextlib
import copy
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from resolvent.cli import terminal
from resolvent.cli.exit_codes import FAILURE
from resolvent.errors import check_range
from resolvent.federation.engines.processes import EngineProcess, clean_jobs, running
from resolvent.federation.lead.engines import start_participant
from resolvent.federation.lead.live import parse_address, serving
from resolvent.federation.lead.monitoring import View, lead_view, server_view, site_view
from resolvent.federation.protocol.connections import (
    SecondSessions,
    connection_problem,
    forget_signs,
    read_connections,
)
from resolvent.federation.protocol.events import Event, Observer
from resolvent.federation.protocol.kits import KitNote, started_once
from resolvent.federation.protocol.run_status import RunStatus, SiteStatus

_POLL = 0.5  # seconds between two checks of a process
_RESTART_PAUSES = (1.0, 2.0, 5.0, 10.0, 30.0)  # seconds before a process that has ended is started again
_CLOCKS = ("updated", "memory", "peak_memory", "seconds_since_last_reply")  # of the status of a run
_LONG_LIFE = 60.0  # seconds; a process that ran longer had started properly
_REFUSED = ("the server refuses this process: another one is connected as this site, or was until a minute ago; or the "
            "key of this kit is revoked")
SECOND_PROCESS = "the server has refused a second process that connects as {}: it has a copy of the kit"


def supervise(note: KitNote, environment: Mapping[str, str], live: str | None,
              look: Callable[[], None] = lambda: None) -> None:
    """Run a participant's process until an interruption; start it again if it ends.

    Args:
        live: ``[HOST:]PORT`` at which the view of the participant is served; None: nowhere.
        look: a function that is called twice a second while the process runs.
    """
    failures = 0
    with _live(live, partial(server_view if note.kind == "server" else site_view, note)):
        while True:
            start = time.monotonic()
            forget_signs(note.kit)
            if (note.engine, note.kind) == ("nvflare", "site") and (problem := connection_problem(note)):
                terminal.print_note(f"no connection yet: {problem}")
            with running(start_participant(note, environment)) as process:
                _report_news(process, note, look)
            failures = 0 if time.monotonic() - start > _LONG_LIFE else failures + 1
            pause = _RESTART_PAUSES[min(failures, len(_RESTART_PAUSES) - 1)]
            terminal.print_note(f"the process has ended ({process.last_lines(1)}); it is started again in "
                                f"{pause:.0f} s; its log: {process.log}")
            time.sleep(pause)


def _report_news(process: EngineProcess, note: KitNote, look: Callable[[], None]) -> None:
    """Print who connects and who is lost, and second sessions, until the process ends."""
    before, sessions = set[str](), SecondSessions(note.kit)
    while process.is_running:
        look()
        process.bound_log()
        now = {name for name, is_connected in read_connections(note.kit).items() if is_connected}
        for names, of_site, of_server in ((now - before, "connected to the server", "joined: {}"),
                                          (before - now, "the connection to the server is lost", "lost: {}")):
            for name in sorted(names):
                terminal.print_line(of_site if note.kind == "site" else of_server.format(name))
        before = now
        for site, is_refused_here in sessions.new():
            terminal.print_line(_REFUSED if is_refused_here else SECOND_PROCESS.format(site))
        process.wait(_POLL)


@contextlib.contextmanager
def _live(live: str | None, view: Callable[[], View]) -> Iterator[None]:
    """Serve a view, and print its address."""
    if live is None:
        yield
        return
    with serving(parse_address(live), view) as address:
        terminal.print_line(f"live page: {address}; for Prometheus: {address}metrics")
        yield


@contextlib.contextmanager
def lead_page(live: str | None, note: KitNote, name: str, sites: Sequence[str],
              observe: Observer) -> Iterator[Observer]:
    """Serve the view of a lead's command; yields the function that it observes events with."""
    status, lock = RunStatus(name, sites={site: SiteStatus() for site in sites}), threading.Lock()

    def follow(event: Event) -> None:
        with lock:
            status.observe(event, time.time())
        observe(event)

    def view() -> View:
        with lock:
            return lead_view(note, copy.deepcopy(status))

    with _live(live, view):
        yield follow


def show_status(note: KitNote, form: Literal["text", "json"]) -> int:
    """Print the view of a server; returns the exit code: 0 if the server runs."""
    view = server_view(note)
    for line in [json.dumps(view.plain(), indent=2)] if form == "json" else _status_lines(view):
        print(line)  # programs read it: lines are not wrapped
    return 0 if view.is_started else FAILURE


def follow_status(note: KitNote, form: Literal["text", "json"]) -> int:
    """Print the view of a server, and what is new in it, until the server ends: lines, or an object of JSON each."""
    facts: Mapping[str, object] = {}
    shown: list[str] = []
    while True:
        view = server_view(note)
        former, facts = facts, _without_clocks(view.plain())
        if facts != former:
            lines = [json.dumps(view.plain())] if form == "json" else [*_status_lines(view)]
            for line in lines:
                if line not in shown:
                    print(line, flush=True)
            shown = lines
        if not view.is_started:
            return FAILURE
        time.sleep(_POLL)


def _without_clocks(plain: Mapping[str, Any]) -> dict[str, Any]:
    """A view without what changes although nothing happens."""
    run = {name: value for name, value in (plain["run"] or {}).items() if name not in _CLOCKS}
    return {**plain, "run": run}


def _status_lines(view: View) -> Iterator[str]:
    connected, silent = ([name for name, is_connected in view.connections.items() if is_connected == wanted]
                         for wanted in (True, False))
    yield f"server of {view.address}: {'running' if view.is_started else 'not started'}"
    yield f"connected: {', '.join(connected) or 'no site'}"
    if silent:
        yield f"no sign for some time, frozen or cut off: {', '.join(silent)}"
    status = view.status
    if status is None:
        yield "no run has begun"
        return
    progress = f"; {status.method}, round {status.round} of {status.rounds}" if status.method else ""
    yield f"run {status.run}: {status.state}{progress}"
    missing = [name for name, site in status.sites.items() if site.is_waited_for]
    since = view.seconds_since(status.last_reply)
    yield (f"waiting for: {', '.join(missing) or status.waits_for or 'nothing'}; last reply: "
           f"{'none' if since is None else f'{since:.0f} s ago'}")
    yield (f"{status.bytes_down / 1e6:.2f} MB sent, {status.bytes_up / 1e6:.2f} MB received; memory "
           f"{status.memory / 1e6:.0f} MB, at most {status.peak_memory / 1e6:.0f} MB")
    for name, site in status.sites.items():
        refusals = ", ".join(f"{code} {number}" for code, number in site.refusals.items())
        norm = "none" if site.norm is None else f"{site.norm:.4g}"
        yield (f"  {name}: replies {site.replies}, not counted {site.not_counted}, absent {site.absent}, late "
               f"{site.late}, last norm {norm}, refusals: {refusals or 'none'}")


def clean(note: KitNote, days: float) -> None:
    """Remove the folders of old jobs of a kit that is not started."""
    check_range("clean", "[0, inf)", days=days)
    with started_once(note):
        cleaned = clean_jobs(note.kit, days)
    terminal.print_line(f"removed {cleaned.folders} folders of jobs, {cleaned.bytes / 1e6:.1f} MB; runs, models and "
                        "records are unchanged")
