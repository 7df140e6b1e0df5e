"""What a participant shows of itself: a page, plain values, and metrics in the text format of Prometheus.

A view is made from the files of a kit, when somebody asks for it. The views of the server and of the lead have counts,
times and norms. That of a site also has its ledger and its plans, which are for the site alone.
"""

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from resolvent.data.files.digests import DamagedFileError
from resolvent.federation.protocol.connections import read_connections
from resolvent.federation.protocol.kits import KitNote, is_started
from resolvent.federation.protocol.names import JOURNAL, runs_of
from resolvent.federation.protocol.run_status import RunStatus, SiteStatus, newest_status
from resolvent.federation.site.journal import Journal
from resolvent.federation.site.plans import Plans

_SHOWN_ANSWERS, _SHOWN_PLANS = 20, 20


class View(NamedTuple):
    """What a participant shows.

    Attributes:
        kind: ``server``, ``site`` or ``lead``.
        address: host and port of the server.
        is_started: whether the participant's command runs.
        connections: name -> whether it is connected.
        status: the status of the newest run; None if there is none.
        moment: the time of the view, in seconds since 1970.
        ledger: of a site: (table, run) -> kind of an answer -> number of answers.
        answers: of a site: the last answers, the newest first.
        plans: of a site: the last plans with their decisions.
        problem: what is wrong; empty if nothing is.
    """

    kind: str
    name: str
    address: str
    is_started: bool
    connections: Mapping[str, bool]
    status: RunStatus | None
    moment: float
    ledger: Mapping[tuple[str, str], Mapping[str, int]] = {}
    answers: tuple[Mapping[str, Any], ...] = ()
    plans: tuple[Mapping[str, str], ...] = ()
    problem: str = ""

    def sites(self) -> Mapping[str, SiteStatus]:
        """The sites of the newest run, and those that are connected without being in it."""
        of_run = self.status.sites if self.status is not None else {}
        return {**of_run, **{name: SiteStatus(is_member=False) for name in self.connections if name not in of_run}}

    def plain(self) -> dict[str, Any]:
        """Plain values, which JSON can hold."""
        status = None if self.status is None else {
            **self.status.plain(), "seconds_since_last_reply": self.seconds_since(self.status.last_reply)}
        ledger = [{"table": table, "run": run, "answers": dict(kinds)} for (table, run), kinds in self.ledger.items()]
        return {"kind": self.kind, "name": self.name, "address": self.address, "is_started": self.is_started,
                "connections": dict(self.connections), "run": status, "problem": self.problem,
                **({"ledger": ledger, "plans": [*self.plans]} if self.kind == "site" else {})}

    def seconds_since(self, earlier: float | None) -> float | None:
        """Seconds from an earlier moment to this view; None without one."""
        return None if earlier is None else max(self.moment - earlier, 0.0)


def server_view(note: KitNote) -> View:
    """The view of a server's kit."""
    return View("server", note.name, note.address, is_started(note), read_connections(note.kit),
                newest_status(runs_of(note.kit)), time.time())


def lead_view(note: KitNote, status: RunStatus | None) -> View:
    """The view of a lead's command, with the status of its run."""
    return View("lead", note.name, note.address, True, {}, status, time.time())


def site_view(note: KitNote) -> View:
    """The view of a site's kit."""
    view = View("site", note.name, note.address, is_started(note), read_connections(note.kit), None, time.time())
    try:
        journal = Journal(runs_of(note.kit) / JOURNAL)
        journal.check_runs()
    except DamagedFileError as error:
        return view._replace(problem=str(error))
    plans = tuple({"name": plan.name, "run": plan.run, "lead": plan.lead, "decision": plan.decision,
                   "received": plan.received} for plan in Plans(journal).all()[-_SHOWN_PLANS:])
    entries = [entry for entry in journal.entries if entry["kind"] not in ("plan", "decision", "answer")]
    counts: dict[tuple[str, str], Counter[str]] = {}
    for entry in entries:
        key = str(entry["table"]), str(entry.get("run", "")).partition("/")[0]
        counts.setdefault(key, Counter())[str(entry["kind"])] += 1
    return view._replace(ledger=counts, answers=tuple(reversed(entries[-_SHOWN_ANSWERS:])), plans=plans)


def metrics_text(view: View) -> str:
    """A view as metrics of Prometheus, in its text format 0.0.4. No label is from a table.

    Example:
        >>> view = View("server", "server", "localhost:8002", True, {"aachen": True}, None, 0.0)
        >>> 'resolvent_site_connected{site="aachen"} 1' in metrics_text(view)
        True
    """
    return "".join(f"{line}\n" for line in _lines(view))


def _lines(view: View) -> Iterator[str]:
    yield from _metric("resolvent_started", "gauge", "Whether the participant's command runs.", [({}, view.is_started)])
    yield from _metric("resolvent_site_connected", "gauge", "Whether the site is connected.",
                       [({"site": name}, value) for name, value in view.connections.items()])
    answers = sum((Counter(kinds) for kinds in view.ledger.values()), Counter[str]())
    yield from _metric("resolvent_ledger_answers_total", "counter", "Answers in the site's ledger by kind.",
                       [({"kind": kind}, number) for kind, number in sorted(answers.items())])
    if (status := view.status) is None:
        return
    run = {"run": status.run, "method": status.method, "state": status.state}
    yield from _metric("resolvent_run_info", "gauge", "The newest run.", [(run, 1)])
    for name, kind, text, value in (
            ("round", "gauge", "Rounds of the method that are done.", status.round),
            ("rounds", "gauge", "Rounds of the method in all.", status.rounds),
            ("phases_total", "counter", "Phases of rounds that this process has done.", status.phases_done),
            ("sent_bytes_total", "counter", "Bytes of all messages to sites.", status.bytes_down),
            ("received_bytes_total", "counter", "Bytes of all replies.", status.bytes_up),
            ("memory_bytes", "gauge", "Memory of the run's process.", status.memory),
            ("memory_peak_bytes", "gauge", "Largest memory of the run's process.", status.peak_memory),
            ("seconds_since_last_reply", "gauge", "Seconds since the last reply of any site.",
             view.seconds_since(status.last_reply))):
        yield from _metric(f"resolvent_{name}", kind, text, [({}, value)])
    sites = status.sites.items()
    for name, kind, text, attribute in (
            ("replies_total", "counter", "Replies that counted.", "replies"),
            ("replies_not_counted_total", "counter", "Replies that arrived in time and did not count.", "not_counted"),
            ("replies_absent_total", "counter", "Phases without a reply.", "absent"),
            ("replies_late_total", "counter", "Replies after their phase.", "late"),
            ("second_sessions_total", "counter", "Second processes that connected as the site.", "second_sessions"),
            ("waited_for", "gauge", "Whether the run waits for the site.", "is_waited_for"),
            ("update_norm", "gauge", "Norm of the last update.", "norm")):
        yield from _metric(f"resolvent_{name}", kind, text,
                           [({"site": site}, getattr(values, attribute)) for site, values in sites])
    yield from _metric("resolvent_refusals_total", "counter", "Refusals of sites by code.",
                       [({"site": site, "code": code}, number)
                        for site, values in sites for code, number in values.refusals.items()])


def _metric(name: str, kind: str, text: str,
            samples: list[tuple[Mapping[str, str], float | None]]) -> Iterator[str]:
    """The lines of a metric; samples without a finite value are left out."""
    finite = [(labels, value) for labels, value in samples if value is not None and math.isfinite(value)]
    if finite:
        yield f"# HELP {name} {text}"
        yield f"# TYPE {name} {kind}"
    for labels, value in finite:
        pairs = ",".join(f'{label}="{_escaped(content)}"' for label, content in labels.items())
        yield f"{name}{{{pairs}}} {float(value):.17g}" if pairs else f"{name} {float(value):.17g}"


def _escaped(content: str) -> str:
    return content.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
