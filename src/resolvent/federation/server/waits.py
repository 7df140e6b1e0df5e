"""What a run of a federation waits for: read at the server's transport, and shown while nothing else happens."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from typing_extensions import override

from resolvent.errors import InputError, shorten
from resolvent.federation.protocol.connections import SecondSessions
from resolvent.federation.protocol.revocation import REVOKED, RevokedKeys
from resolvent.federation.protocol.transport import Transport
from resolvent.federation.protocol.wire import (
    EncodedMessage,
    Message,
    Outgoing,
    head_of_message,
    parts_of,
    refusal_code,
)

_SILENCE, _CHECK = 8.0, 1.0  # seconds without an event before a report, and between two checks: together below 10
_RECONNECT = 2.0  # seconds between two attempts to connect
_PATIENCE, _POLL = 600.0, 0.5  # seconds until a command gives up, and between two queries for the sites
_WARNING = 10.0  # seconds for which a warning to a site waits for its answer
# What a site that has not answered is asked for, by the kind of the message: about the plan, and about a method.
_OF_PLAN = {"describe": "the description of its table", "prepare": "the encoding of its rows",
            "finish": "its models and its judgement"}
_REQUESTS = {"start": "the start of {method}",
             "work": "its reply of {method}, round {round} of {rounds}, phase {phase}",
             "evaluate": "its scores of {method} after round {round}", "finish": "storing its models of {method}"}


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
                 kit: Path | None, observe: Callable[[Mapping[str, Any]], None]) -> None:
        self.bytes_down = self.bytes_up = 0
        self.parties = inner.parties
        self._inner, self._run, self._titles, self._rounds = inner, run, titles, rounds
        self._sessions = None if kit is None else SecondSessions(kit)
        self._revoked = None if kit is None else RevokedKeys(kit)
        self._reasons: dict[str, str] = {}
        self._observe, self._unwarned, self._excluded = observe, set[str](), set[str]()
        self._wait: dict[str, Any] = {"for": "server"}

    @override
    def broadcast(self, messages: Mapping[str, Outgoing], *, deadline: float | None, quorum: int,
                  grace: float) -> Mapping[str, bytes | memoryview]:
        self._report_second_sessions()
        messages = self._without_excluded(messages)
        if not messages:
            return {}
        if warned := self._unwarned & {*messages}:
            self._unwarned -= warned
            warnings = {site: EncodedMessage(Message("second session", self._run, facts={"party": site, "content": {}}))
                        for site in warned}
            self._inner.broadcast(warnings, deadline=_WARNING, quorum=len(warned), grace=0.0)
        self._wait = {"for": "replies", **self._contents(messages), "asked": [*messages]}
        self.bytes_down += sum(map(len, messages.values()))
        try:
            replies = self._inner.broadcast(messages, deadline=deadline, quorum=min(quorum, len(messages)), grace=grace)
        finally:
            self._wait = {"for": "server"}
        self._reasons |= self._inner.reasons()
        for site, reply in replies.items():
            self.bytes_up += len(reply)
            if (code := refusal_code(reply)) is not None:
                self._observe({"event": "refusal", "site": site, "code": code})
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

    def _without_excluded(self, messages: Mapping[str, Outgoing]) -> Mapping[str, Outgoing]:
        """The messages without those to participants that have no valid key: nothing leaves for them."""
        excluded = {*messages} & {*(() if self._revoked is None else self._revoked.current().excluded)}
        self._reasons = dict.fromkeys(excluded, REVOKED)
        for site in sorted(excluded - self._excluded):
            self._observe({"event": "revoked", "site": site})
        self._excluded |= excluded
        return {site: message for site, message in messages.items() if site not in excluded}

    @override
    def missing(self) -> tuple[str, ...]:
        return self._inner.missing()

    def waiting(self) -> dict[str, Any]:
        """What the run waits for at this moment, for ``wait_text``; another thread may call it."""
        self._report_second_sessions()
        wait = self._wait
        return {**wait, "missing": sorted(self.missing())} if "asked" in wait else wait

    def _report_second_sessions(self) -> None:
        for site, _ in self._sessions.new() if self._sessions is not None else ():
            self._unwarned.add(site)
            self._observe({"event": "second session", "site": site})

    def _contents(self, messages: Mapping[str, Outgoing]) -> dict[str, Any]:
        """The kind of the messages, and their method, round and phase from 1; a broadcast has messages of one kind."""
        message = b"".join(parts_of(next(iter(messages.values())))[:2])
        head = head_of_message(message)
        if head.run == self._run:
            return {"message": head.kind}
        return {"message": head.kind, "method": self._titles.get(head.run, head.run), "rounds": self._rounds,
                "round": head.round + (head.kind == "work"), "phase": head.phase + 1}


class Watch(ABC):
    """Looks at a run every second, in a thread of its own, while a block runs."""

    def __init__(self) -> None:
        self._lock, self._end = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @abstractmethod
    def _look(self) -> None:
        """What is done every second; it sets ``_end`` to be called no more."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(_CHECK):
            self._look()


class WaitReporter(Watch):
    """Calls an observer with an event ``waiting`` whenever nothing else has happened for some seconds.

    Args:
        observe: a function that is called with events; these calls never overlap, and come from two threads.
    """

    def __init__(self, observe: Callable[[Mapping[str, Any]], None]) -> None:
        super().__init__()
        self._observe, self._last = observe, time.monotonic()
        self._waiting: Callable[[], Mapping[str, Any]] = dict

    def observe(self, event: Mapping[str, Any]) -> None:
        """Pass an event on."""
        with self._lock:
            self._last = time.monotonic()
            self._observe(event)

    def expect(self, waiting: Callable[[], Mapping[str, Any]]) -> None:
        """From now on, the run waits for what this function returns."""
        self._waiting = waiting

    def report(self, wait: Mapping[str, Any]) -> None:
        """Report at once what the run waits for from now on."""
        self.expect(lambda: wait)
        self.observe({"event": "waiting", **wait})

    @override
    def _look(self) -> None:
        if time.monotonic() - self._last >= _SILENCE and (wait := self._waiting()):
            try:
                self.observe({"event": "waiting", **wait})
            except OSError:  # the terminal is closed: the command itself notices it
                self._end.set()


class Patience:
    """Ends a command if neither the server nor a missing site has connected again for some minutes."""

    def __init__(self, waits: WaitReporter) -> None:
        self._waits = waits
        self.restart()

    def restart(self) -> None:
        """Count from now on: the server or the sites are connected."""
        self._since = time.monotonic()

    def check(self, reason: str) -> None:
        """Raise a ``FederationEndedError`` with this reason if the time is over."""
        if time.monotonic() - self._since > _PATIENCE:
            raise FederationEndedError(f"{reason}, for {_PATIENCE:.0f} s: start the participants with resolvent lead "
                                       "serve and resolvent site start, then run the command again to continue")

    def await_sites(self, sites: Sequence[str], connected: Callable[[], Collection[str]]) -> None:
        """Wait until all sites are connected."""
        reported: set[str] = set()
        while missing := {*sites} - {*connected()}:
            if missing != reported:
                self._waits.report({"for": "sites", "missing": sorted(missing)})
                reported = missing
            self.check(f"{', '.join(sorted(missing))} did not join")
            time.sleep(_POLL)
        self.restart()


class Follower(ABC):
    """Follows a run of an engine from the lead's command, which connects again when the connection is lost.

    Attributes:
        final: errors after which it does not try again.
    """

    final: ClassVar[type[Exception]] = FederationEndedError

    def __init__(self, observe: Callable[[Mapping[str, Any]], None], notify: Callable[[str], None]) -> None:
        self._notify, self._waits = notify, WaitReporter(observe)
        self._patience = Patience(self._waits)

    @abstractmethod
    def _connect(self) -> AbstractContextManager[Any]:
        """A connection to the server."""

    @abstractmethod
    def _follow(self, connection: Any) -> Mapping[str, Any] | None:
        """Follow the run once; returns its outcome, or None if it is followed again."""

    def run(self) -> Mapping[str, Any]:
        """The outcome of the run, see ``serve_federation``."""
        with self._waits:
            while True:
                self._waits.expect(lambda: {"for": "connection"})
                try:
                    with self._connect() as connection:
                        self._patience.restart()
                        while True:
                            outcome = self._follow(connection)
                            if outcome is not None:
                                return outcome
                except self.final:
                    raise
                except Exception as error:  # the server has ended, or the network
                    self._patience.check(reason := f"the connection to the server is lost ({shorten(error)})")
                    self._notify(f"{reason}: trying again")
                    time.sleep(_RECONNECT)


def wait_text(event: Mapping[str, Any]) -> str:
    """A line about an event ``waiting``."""
    kind, missing = event["for"], ", ".join(event.get("missing", ()))
    if kind == "replies":
        request = (_REQUESTS if "method" in event else _OF_PLAN).get(event["message"], "a reply").format_map(event)
        answered = len(event["asked"]) - len(event["missing"])
        return f"waiting for {missing or 'the server'}: {request} ({answered} of {len(event['asked'])} have answered)"
    if kind == "job" and missing:
        return f"waiting for {missing}, without a sign for some time: stopped or cut off (the job is {event['state']})"
    if kind == "job" and event.get("is_queued"):
        return f"waiting for the end of another run at the server, then this one begins (it is {event['state']})"
    return {"sites": f"waiting for {missing} to connect: resolvent site start",
            "server": "waiting for the server, which computes",
            "job": f"waiting for the server to run the job ({event.get('state')})",
            "end": "waiting for the end of the job",
            "results": "waiting for the results of the job",
            "connection": "waiting for the connection to the server"}[kind]
