"""Sends bytes from the server to the parties and back: the only interface that an engine has to implement."""

import json
import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

from typing_extensions import override

from resolvent.errors import InputError
from resolvent.federation.protocol.wire import EncodedMessage, digest_of_reply

PartyHandler: TypeAlias = Callable[[bytes | memoryview], bytes]
"""The function that answers a message at a site, such as ``Party.handle``. An adapter calls it for each message."""

Check: TypeAlias = Callable[[str, bytes, Any], None]
"""Checks a signature of a site: name, bytes, signature. It raises an ``InputError``."""
_log = logging.getLogger(__name__)


class TransportError(RuntimeError):
    """The engine does not move messages any more: a process or the network has ended. The run can be resumed."""


class Transport(ABC):
    """Sends one message to each of several parties and collects their replies.

    An adapter for an engine derives from this class. It moves bytes and does not read them: messages may arrive twice,
    late, damaged or not at all, and the coordinator and the parties detect it.

    Attributes:
        parties: names of the sites; the position of a name is the party's id.
    """

    parties: tuple[str, ...]

    @abstractmethod
    def broadcast(self, messages: Mapping[str, EncodedMessage], *, deadline: float | None, quorum: int,
                  grace: float) -> Mapping[str, bytes | memoryview]:
        """Send a message to each named party, and wait for replies.

        The wait ends when all parties have replied, ``grace`` seconds after ``quorum`` parties have replied, or
        ``deadline`` seconds after the call, whichever is first. Times are durations of a monotonic clock.

        Args:
            messages: the message of each party, by name. ``bytes(message)`` are its bytes; it is a copy that an adapter
                makes for one party after the other, or avoids with ``message.parts``.
            deadline: longest wait in seconds; None: no limit.
            quorum: number of replies after which only ``grace`` seconds are left, at least 1.
            grace: seconds to wait after the quorum; ``math.inf`` waits for all parties.

        Returns:
            The replies that arrived in time, by name.

        Raises:
            TransportError: the engine does not move messages any more.
        """

    def missing(self) -> tuple[str, ...]:
        """The parties whose reply the current broadcast waits for, as far as the adapter knows them.

        It is for messages to a person, and another thread may call it.
        """
        return ()

    def reasons(self) -> Mapping[str, str]:
        """Why parties of the last broadcast have no reply, as far as the adapter knows more than that none arrived."""
        return {}

    @abstractmethod
    def late_replies(self) -> Sequence[tuple[str, bytes | memoryview]]:
        """The replies to earlier broadcasts that arrived after their wait, as (name, reply). Each is returned once."""


def signed_reply(site: str, reply: bytes | memoryview) -> bytes:
    """The bytes that a site signs: its name, and the identity of its reply, which names the message that it answers."""
    return json.dumps({"site": site, "reply": digest_of_reply(reply)}).encode()


class EngineTransport(Transport):
    """A transport over an engine that answers each message later: one waiting loop for all engines.

    Args:
        check: checks that a site has signed its reply with a valid key; a reply without such a signature is dropped.

    Attributes:
        pause: seconds between two looks at what has arrived.
    """

    pause: ClassVar[float] = 0.2

    def __init__(self, parties: Sequence[str], check: Check) -> None:
        self.parties = tuple(parties)
        self._check, self._reasons = check, dict[str, str]()
        self._arrival = threading.Condition()
        self._replies: dict[str, bytes | memoryview] = {}
        self._late: list[tuple[str, bytes | memoryview]] = []
        self._asked: tuple[str, ...] = ()
        self._number = 0

    @abstractmethod
    def _send(self, name: str, message: EncodedMessage, number: int) -> Any:
        """Send a message; its reply goes to ``_receive`` with the number of the broadcast. Returns what is sent."""

    @abstractmethod
    def _poll(self) -> None:
        """Look for replies, and raise a ``TransportError`` if the engine has stopped."""

    @abstractmethod
    def _is_open(self, sent: Any) -> bool:
        """Whether a reply may still arrive."""

    def _withdraw(self, sent: Any) -> None:
        """Do not wait for a reply any more."""

    def _checked(self, name: str, reply: bytes | memoryview | None, proof: Any) -> bytes | memoryview | None:
        """A site's reply; None if the site has failed, or has not signed its reply with a valid key."""
        if reply is None:
            return None
        try:
            self._check(name, signed_reply(name, reply), proof)
        except InputError as error:
            _log.warning("a reply of %s is dropped: %s", name, error)
            with self._arrival:
                self._reasons[name] = f"its reply does not count: {error}"
            return None
        return reply

    def _receive(self, name: str, reply: bytes | memoryview | None, number: int) -> None:
        """Take a reply, None if the party has failed; one to an earlier broadcast is late."""
        with self._arrival:
            if reply is not None and number == self._number:
                self._replies[name] = reply
            elif reply is not None:
                self._late.append((name, reply))
            self._arrival.notify_all()

    @override
    def broadcast(self, messages: Mapping[str, EncodedMessage], *, deadline: float | None, quorum: int,
                  grace: float) -> dict[str, bytes | memoryview]:
        end = math.inf if deadline is None else time.monotonic() + deadline
        with self._arrival:
            self._number += 1
            self._replies, self._reasons, self._asked, number = {}, {}, (*messages,), self._number
        sent = {name: self._send(name, message, number) for name, message in messages.items()}
        has_quorum = False
        while True:
            self._poll()
            with self._arrival:
                is_waiting = any(name not in self._replies and self._is_open(item) for name, item in sent.items())
                if not has_quorum and len(self._replies) >= quorum:
                    has_quorum, end = True, min(end, time.monotonic() + grace)
                left = end - time.monotonic()
                if not is_waiting or left <= 0:
                    replies, self._replies, self._asked = self._replies, {}, ()
                    self._number += 1  # what arrives from here on is late
                    break
                self._arrival.wait(min(left, self.pause))
        for name, item in sent.items():
            if name not in replies and self._is_open(item):
                self._withdraw(item)
        return replies

    @override
    def missing(self) -> tuple[str, ...]:
        with self._arrival:
            return tuple(name for name in self._asked if name not in self._replies)

    @override
    def reasons(self) -> dict[str, str]:
        with self._arrival:
            return dict(self._reasons)

    @override
    def late_replies(self) -> list[tuple[str, bytes | memoryview]]:
        with self._arrival:
            late, self._late = self._late, []
        return late
