"""Follows a run while it is served: its events, what it waits for, and the file of its status."""

import contextlib
import json
import os
import resource
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

from typing_extensions import override

from resolvent.data.files.atomic_files import write_text
from resolvent.errors import InputError, shorten
from resolvent.federation.protocol.connections import SecondSessions
from resolvent.federation.protocol.events import Event, Observer, Refusal, Revocation, SecondSession, Waiting
from resolvent.federation.protocol.revocation import REVOKED, RevokedKeys
from resolvent.federation.protocol.run_status import RunStatus, SiteStatus
from resolvent.federation.protocol.transport import Transport
from resolvent.federation.protocol.wire import EncodedMessage, messages_to, refusal_code

_SILENCE, _CHECK = 8.0, 1.0  # seconds without an event before a report, and between two checks: together below 10
_RECONNECT = 2.0  # seconds between two attempts to connect
_PATIENCE, _POLL = 600.0, 0.5  # seconds until a command gives up, and between two queries for the sites
_HEARTBEAT = 10.0  # seconds between two writes of a status without a change
_WARNING = 10.0  # seconds for which a warning to a site waits for its answer


class FederationEndedError(InputError):
    """The run has not been completed; the message says why, and how to continue."""


class WatchedTransport(Transport):
    """A transport that knows which replies it waits for, counts bytes, and reports refusals and second sessions.

    Args:
        titles: name of a method in its messages, see ``run_of_method`` -> its title.
        kit: the server's kit, with the second sessions that its engine has noticed and the keys that are revoked; None
            without an engine.

    Attributes:
        bytes_down: bytes of all messages.
        bytes_up: bytes of all replies that arrived in time.
    """

    def __init__(self, inner: Transport, run: str, titles: Mapping[str, str], rounds: int,
                 kit: Path | None, observe: Observer) -> None:
        self.bytes_down = self.bytes_up = 0
        self.parties = inner.parties
        self._inner, self._run, self._titles, self._rounds = inner, run, titles, rounds
        self._sessions = None if kit is None else SecondSessions(kit)
        self._revoked = None if kit is None else RevokedKeys(kit)
        self._reasons: dict[str, str] = {}
        self._observe, self._unwarned, self._excluded = observe, set[str](), set[str]()
        self._wait = Waiting("server")

    @override
    def broadcast(self, messages: Mapping[str, EncodedMessage], *, deadline: float | None, quorum: int,
                  grace: float) -> Mapping[str, bytes | memoryview]:
        self._report_second_sessions()
        messages = self._without_excluded(messages)
        if not messages:
            return {}
        if warned := self._unwarned & {*messages}:
            self._unwarned -= warned
            warnings = messages_to({site: {"content": {}} for site in warned}, "second session", self._run)
            self._inner.broadcast(warnings, deadline=_WARNING, quorum=len(warned), grace=0.0)
        self._wait = self._wait_for(messages)
        self.bytes_down += sum(message.size for message in messages.values())
        try:
            replies = self._inner.broadcast(messages, deadline=deadline, quorum=min(quorum, len(messages)), grace=grace)
        finally:
            self._wait = Waiting("server")
        self._reasons |= self._inner.reasons()
        for site, reply in replies.items():
            self.bytes_up += len(reply)
            if (code := refusal_code(reply)) is not None:
                self._observe(Refusal(site, code))
        return replies

    @override
    def late_replies(self) -> Sequence[tuple[str, bytes | memoryview]]:
        return [(site, reply) for site, reply in self._inner.late_replies() if site not in self._excluded]

    def choose_parties(self, *, without_excluded: bool) -> None:
        """Set the parties of the next method: all sites, or those whose key is not revoked."""
        excluded = {*self._revoked.current().excluded} if without_excluded and self._revoked is not None else set()
        self.parties = tuple(site for site in self._inner.parties if site not in excluded)

    @override
    def reasons(self) -> Mapping[str, str]:
        return self._reasons

    def _without_excluded(self, messages: Mapping[str, EncodedMessage]) -> Mapping[str, EncodedMessage]:
        """The messages without those to participants that have no valid key: nothing leaves for them."""
        excluded = {*messages} & {*(() if self._revoked is None else self._revoked.current().excluded)}
        self._reasons = dict.fromkeys(excluded, REVOKED)
        for site in sorted(excluded - self._excluded):
            self._observe(Revocation(site))
        self._excluded |= excluded
        return {site: message for site, message in messages.items() if site not in excluded}

    @override
    def missing(self) -> tuple[str, ...]:
        return self._inner.missing()

    def waiting(self) -> Waiting:
        """What the run waits for at this moment; another thread may call it."""
        self._report_second_sessions()
        wait = self._wait
        return replace(wait, missing=tuple(sorted(self.missing()))) if wait.asked else wait

    def _report_second_sessions(self) -> None:
        for site, _ in self._sessions.new() if self._sessions is not None else ():
            self._unwarned.add(site)
            self._observe(SecondSession(site))

    def _wait_for(self, messages: Mapping[str, EncodedMessage]) -> Waiting:
        """The wait for the answers to a broadcast, which has messages of one kind."""
        head = next(iter(messages.values())).head
        wait = Waiting("replies", asked=tuple(messages), message=head.kind)
        if head.run == self._run:
            return wait
        return replace(wait, method=self._titles.get(head.run, head.run), planned=self._rounds,
                       round=head.round + (head.kind == "work"), phase=head.phase + 1)


class StatusFile:
    """The status file of a run. It is written at every event, and when the sites change for which the run waits.

    A status that cannot be written, such as on a full disk, does not stop a run.

    Args:
        transport: the transport of the run, which counts the bytes of its messages.
    """

    def __init__(self, path: Path, run: str, sites: tuple[str, ...], transport: WatchedTransport) -> None:
        self._path, self._transport, self._lock = path, transport, threading.Lock()
        self._status = RunStatus(run, started=time.time(), sites={site: SiteStatus() for site in sites})

    def observe(self, event: Event) -> None:
        """Count an event, and write the status."""
        with self._lock:
            self._status.observe(event, time.time())
            self._write()

    def refresh(self, wait: Waiting | None) -> None:
        """Write what the run waits for, if the sites have changed for which it waits, or after some seconds."""
        with self._lock:
            if self._status.state == "running":
                has_changed = self._status.wait_for(wait, time.time())
                if has_changed or time.time() - self._status.updated >= _HEARTBEAT:
                    self._write()

    def end(self, state: str) -> None:
        """Write that the run has ended: ``complete``, ``refused`` or ``stopped``."""
        with self._lock:
            self._status.state = state
            self._status.wait_for(None, time.time())
            self._write()

    def _write(self) -> None:
        status = self._status
        status.bytes_down, status.bytes_up = self._transport.bytes_down, self._transport.bytes_up
        status.memory, status.peak_memory = memory_of_process()
        status.updated = time.time()
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_text(self._path, json.dumps(status.plain()))


def memory_of_process() -> tuple[int, int]:
    """The memory of this process (resident set) now and its largest value, in bytes; 0 where it is unknown."""
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except (OSError, ValueError, IndexError):  # not Linux
        return 0, peak
    size = pages * os.sysconf("SC_PAGE_SIZE")
    return size, max(size, peak)


class Watch:
    """Follows a run: passes its events on, and writes its status where it is served.

    While a block runs with it, a thread looks every second what the run waits for. It passes that on when nothing else
    has happened for some seconds.

    Args:
        observe: a function that is called with events; these calls never overlap, and come from two threads.

    Attributes:
        waiting: returns what the run waits for at the moment; None if that is not known.
        status: the file into which the status is written; None: into none.
    """

    def __init__(self, observe: Observer) -> None:
        self._observe, self._last = observe, time.monotonic()
        self.waiting: Callable[[], Waiting | None] = lambda: None
        self.status: StatusFile | None = None
        self._lock, self._end = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def observe(self, event: Event) -> None:
        """Count an event, and pass it on."""
        if self.status is not None:
            self.status.observe(event)
        self._pass_on(event)

    def _pass_on(self, event: Event) -> None:
        with self._lock:
            self._last = time.monotonic()
            self._observe(event)

    def expect(self, wait: Waiting | Callable[[], Waiting | None]) -> None:
        """From now on, the run waits for this, or for what the function returns at the moment."""
        self.waiting = (lambda: wait) if isinstance(wait, Waiting) else wait

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._end.wait(_CHECK):
            wait = self.waiting()
            if (status := self.status) is not None:
                status.refresh(wait)
            if time.monotonic() - self._last >= _SILENCE and wait is not None:
                try:
                    self._pass_on(wait)
                except OSError:  # the terminal is closed: the command itself notices it
                    return


class Follower(ABC):
    """Follows a run of an engine from the lead's command, which connects again when the connection is lost.

    Attributes:
        final: errors after which it does not try again.
    """

    final: ClassVar[type[Exception]] = FederationEndedError

    def __init__(self, observe: Observer, notify: Callable[[str], None]) -> None:
        self._notify, self._watch = notify, Watch(observe)
        self._since = time.monotonic()  # when the server or the sites were connected last

    @abstractmethod
    def _connect(self) -> contextlib.AbstractContextManager[Any]:
        """A connection to the server."""

    @abstractmethod
    def _follow(self, connection: Any) -> Mapping[str, Any] | None:
        """Follow the run once; returns its outcome, or None if it is followed again."""

    def run(self) -> Mapping[str, Any]:
        """The outcome of the run, see ``serve_federation``."""
        with self._watch:
            while True:
                self._watch.expect(Waiting("connection"))
                try:
                    with self._connect() as connection:
                        self._since = time.monotonic()
                        while True:
                            outcome = self._follow(connection)
                            if outcome is not None:
                                return outcome
                except self.final:
                    raise
                except Exception as error:  # the server has ended, or the network
                    self._check_patience(reason := f"the connection to the server is lost ({shorten(error)})")
                    self._notify(f"{reason}: trying again")
                    time.sleep(_RECONNECT)

    def _check_patience(self, reason: str) -> None:
        """Raise a ``FederationEndedError`` with this reason if there has been no connection for some minutes."""
        if time.monotonic() - self._since > _PATIENCE:
            raise FederationEndedError(f"{reason}, for {_PATIENCE:.0f} s: start the participants with resolvent lead "
                                       "serve and resolvent site start, then run the command again to continue")

    def _await_sites(self, sites: Sequence[str], connected: Callable[[], Collection[str]]) -> None:
        """Wait until all sites are connected."""
        reported: set[str] = set()
        while missing := {*sites} - {*connected()}:
            if missing != reported:
                wait, reported = Waiting("sites", tuple(sorted(missing))), missing
                self._watch.expect(wait)
                self._watch.observe(wait)
            self._check_patience(f"{', '.join(sorted(missing))} did not join")
            time.sleep(_POLL)
        self._since = time.monotonic()
