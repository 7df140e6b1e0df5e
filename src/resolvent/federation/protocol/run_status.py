"""The status of a run, for people and for monitoring: counts, times and norms by site, and nothing of a table.

It is built from the events that a run reports to its lead (``server.serve``), so that the server and the lead have the
same. The server writes it to ``status.json`` in the folder of the run, whole or not at all. Messages of refusals are
not in it, because they can name a column or a class: a refusal is counted by its code.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from resolvent.federation.protocol.refusals import RefusalCode

STATUS_FILE = "status.json"
_MAX_SCORES = 200  # the last ones
_UNKNOWN_CODE = "unknown"
_MAX_SILENCE = 30.0  # seconds; the process of a run writes its status at least every 10 seconds


@dataclass
class SiteStatus:
    """What the process of a run has seen of a site since it started.

    Attributes:
        not_counted: number of replies that arrived in time and did not count.
        absent: number of phases without a reply of the site.
        late: number of replies that arrived after their phase.
        refusals: code -> number of refusals, see ``RefusalCode``.
        second_sessions: number of second processes that have connected as the site.
        norm: norm of the last update; None if there is none, or if it is not finite.
        last_reply: when its last reply arrived, in seconds since 1970; None before the first one.
        is_waited_for: whether the run waits for the site.
        is_member: whether the site takes part.
    """

    replies: int = 0
    not_counted: int = 0
    absent: int = 0
    late: int = 0
    refusals: dict[str, int] = field(default_factory=dict)
    second_sessions: int = 0
    norm: float | None = None
    last_reply: float | None = None
    is_waited_for: bool = False
    is_member: bool = True


@dataclass
class RunStatus:
    """The status of a run; counts begin at 0 when its process starts, also if the run continues.

    Attributes:
        state: ``running``, ``complete``, ``refused``, ``stopped``, or ``lost``: its process has ended.
        waits_for: what the run waits for: ``replies``, ``server``, ``sites``, ...
        bytes_down: bytes of all messages to sites.
        bytes_up: bytes of all replies.
        memory: memory of the process in bytes (resident set); 0 if unknown.
        peak_memory: largest memory of the process in bytes; 0 if unknown.
        started: when the process started the run, in seconds since 1970.
        updated: when this status was written.
        scores: the last mean scores of the sites that let theirs out: method, round, score, mean.
        sites: name -> status of the site.
    """

    run: str
    state: str = "running"
    method: str = ""
    round: int = 0
    rounds: int = 0
    phases_done: int = 0
    waits_for: str = ""
    bytes_down: int = 0
    bytes_up: int = 0
    memory: int = 0
    peak_memory: int = 0
    started: float = 0.0
    updated: float = 0.0
    scores: list[dict[str, Any]] = field(default_factory=list)
    sites: dict[str, SiteStatus] = field(default_factory=dict)

    def observe(self, event: Mapping[str, Any], moment: float) -> None:
        """Count an event of the run, see ``server.serve``; other events change nothing."""
        handler = _HANDLERS.get(str(event.get("event")))
        if handler is not None:
            handler(self, event, moment)

    def wait_for(self, wait: Mapping[str, Any], moment: float) -> None:
        """Set what the run waits for, as ``WatchedTransport.waiting`` returns it."""
        self.waits_for = str(wait.get("for", ""))
        missing = {*wait.get("missing", ())}
        for name, site in self.sites.items():
            if site.is_waited_for and name not in missing and self.waits_for == "replies":
                site.last_reply = moment
            site.is_waited_for = name in missing

    @property
    def last_reply(self) -> float | None:
        """When the last reply of any site arrived; None before the first one."""
        return max((site.last_reply for site in self.sites.values() if site.last_reply is not None), default=None)

    def plain(self) -> dict[str, Any]:
        """Plain values, which JSON can hold."""
        return asdict(self)

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> "RunStatus":
        """The status of ``plain``; fields of another version are left out."""
        def known(kind: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
            return {item.name: values[item.name] for item in fields(kind) if item.name in values}

        sites = {name: SiteStatus(**known(SiteStatus, site)) for name, site in content["sites"].items()}
        return cls(**{**known(cls, content), "sites": sites})

    def _site(self, name: str) -> SiteStatus:
        return self.sites.setdefault(name, SiteStatus())

    def _start(self, event: Mapping[str, Any], moment: float) -> None:
        self.method, self.round, self.rounds = str(event["method"]), event["resumed"], event["rounds"]

    def _round(self, event: Mapping[str, Any], moment: float) -> None:
        self.method, self.round, self.rounds = str(event["method"]), event["round"], event["rounds"]
        self.phases_done += 1
        for name in event["counted"]:
            self._site(name).replies += 1
        for name in event["refused"]:
            self._site(name).not_counted += 1
        for name in (*event["counted"], *event["refused"]):
            self._site(name).last_reply = moment
        for name in event["absent"]:
            self._site(name).absent += 1
        for name in event["late"]:
            self._site(name).late += 1
        for name, norm in event.get("norms", {}).items():
            self._site(name).norm = norm

    def _refusal(self, event: Mapping[str, Any], moment: float) -> None:
        code = event["code"] if event["code"] in [*RefusalCode] else _UNKNOWN_CODE
        refusals = self._site(event["site"]).refusals
        refusals[str(code)] = refusals.get(str(code), 0) + 1

    def _second_session(self, event: Mapping[str, Any], moment: float) -> None:
        self._site(event["site"]).second_sessions += 1

    def _revoked(self, event: Mapping[str, Any], moment: float) -> None:
        self._site(event["site"]).is_member = False

    def _members(self, event: Mapping[str, Any], moment: float) -> None:
        for names, is_member in ((event["joined"], True), (event["left"], False)):
            for name in names:
                self._site(name).is_member = is_member

    def _scores(self, event: Mapping[str, Any], moment: float) -> None:
        if event.get("mean") is not None:
            self.scores = [*self.scores, {name: event[name] for name in ("method", "round", "score", "mean")}]
            self.scores = self.scores[-_MAX_SCORES:]

    def _waiting(self, event: Mapping[str, Any], moment: float) -> None:
        self.wait_for(event, moment)


_HANDLERS: Mapping[str, Callable[[RunStatus, Mapping[str, Any], float], None]] = {
    "start": RunStatus._start, "round": RunStatus._round, "refusal": RunStatus._refusal,
    "second session": RunStatus._second_session, "revoked": RunStatus._revoked, "members": RunStatus._members,
    "scores": RunStatus._scores, "waiting": RunStatus._waiting}


def read_status(path: Path) -> RunStatus | None:
    """The status in a file; None if there is none, or it cannot be read. A run whose process has ended is ``lost``."""
    try:
        status = RunStatus.from_plain(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if status.state == "running" and time.time() - status.updated > _MAX_SILENCE:
        status.state = "lost"
    return status


def newest_status(runs: Path) -> RunStatus | None:
    """The status of the run that was written last, in the folder of all runs; None if there is none."""
    statuses = [status for path in runs.glob(f"*/{STATUS_FILE}") if (status := read_status(path)) is not None]
    return max(statuses, key=lambda status: status.updated, default=None)
