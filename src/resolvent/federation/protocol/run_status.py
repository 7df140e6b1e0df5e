"""The status of a run, for people and for monitoring: counts, times and norms by site, and nothing of a table.

It is built from the events that a run reports to its lead (``server.serve``), so that the server and the lead have the
same. The server writes it to ``status.json`` in the folder of the run, whole or not at all. Messages of refusals are
not in it, because they can name a column or a class: a refusal is counted by its code.
"""

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from resolvent.data.files.plain_values import read_plain
from resolvent.federation.protocol import events
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


@dataclass(frozen=True)
class MeanScore:
    """The mean of a score over the sites that let theirs out, after a round of a method."""

    method: str
    round: int
    score: str
    mean: float


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
        scores: the last mean scores.
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
    scores: list[MeanScore] = field(default_factory=list)
    sites: dict[str, SiteStatus] = field(default_factory=dict)

    def observe(self, event: events.Event, moment: float) -> None:
        """Count an event of the run; those that are not counted change nothing."""
        match event:
            case events.StartReport():
                self.method, self.round, self.rounds = event.method, event.resumed, event.planned
            case events.PhaseReport():
                self.method, self.round, self.rounds = event.method, event.round + 1, event.planned
                self.phases_done += 1
                for k, name in enumerate(event.names):
                    site = self._site(name)
                    site.replies += k in event.counted
                    site.not_counted += k in event.refused
                    site.absent += k in event.absent
                    site.late += k in event.late
                    site.norm = event.norms.get(k, site.norm)
                    if k in event.counted or k in event.refused:
                        site.last_reply = moment
            case events.EvaluationReport():
                means = [MeanScore(event.method, event.round, name, mean) for name, _, mean in event.means
                         if mean is not None]
                self.scores = [*self.scores, *means][-_MAX_SCORES:]
            case events.MembersReport():
                for name in (*event.joined, *event.left):
                    self._site(name).is_member = name in event.joined
            case events.Refusal():
                code = event.code if event.code in [*RefusalCode] else _UNKNOWN_CODE
                refusals = self._site(event.site).refusals
                refusals[code] = refusals.get(code, 0) + 1
            case events.SecondSession():
                self._site(event.site).second_sessions += 1
            case events.Revocation():
                self._site(event.site).is_member = False
            case events.Waiting():
                self.wait_for(event, moment)

    def wait_for(self, wait: events.Waiting | None, moment: float) -> bool:
        """Set what the run waits for (None: for nothing); returns whether that has changed."""
        before = self.waits_for, [site.is_waited_for for site in self.sites.values()]
        self.waits_for, missing = ("", ()) if wait is None else (wait.target, wait.missing)
        for name, site in self.sites.items():
            if site.is_waited_for and name not in missing and self.waits_for == "replies":
                site.last_reply = moment
            site.is_waited_for = name in missing
        return before != (self.waits_for, [site.is_waited_for for site in self.sites.values()])

    @property
    def last_reply(self) -> float | None:
        """When the last reply of any site arrived; None before the first one."""
        return max((site.last_reply for site in self.sites.values() if site.last_reply is not None), default=None)

    def plain(self) -> dict[str, Any]:
        """Plain values, which JSON can hold."""
        return asdict(self)

    def _site(self, name: str) -> SiteStatus:
        return self.sites.setdefault(name, SiteStatus())


def read_status(path: Path) -> RunStatus | None:
    """The status in a file; None if there is none, or it cannot be read. A run whose process has ended is ``lost``."""
    try:
        status = read_plain(RunStatus, json.loads(path.read_text("utf-8")), str(path))
    except (OSError, ValueError):
        return None
    if status.state == "running" and time.time() - status.updated > _MAX_SILENCE:
        status.state = "lost"
    return status


def newest_status(runs: Path) -> RunStatus | None:
    """The status of the run that was written last, in the folder of all runs; None if there is none."""
    statuses = [status for path in runs.glob(f"*/{STATUS_FILE}") if (status := read_status(path)) is not None]
    return max(statuses, key=lambda status: status.updated, default=None)
