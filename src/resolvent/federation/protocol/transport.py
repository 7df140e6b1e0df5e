"""Sends bytes from the server to the parties and back: the only interface that an engine has to implement."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from resolvent.federation.protocol.wire import Outgoing

PartyHandler: TypeAlias = Callable[[bytes | memoryview], bytes]
"""The function that answers a message at a site, such as ``Party.handle``. An adapter calls it for each message."""


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
    def broadcast(self, messages: Mapping[str, Outgoing], *, deadline: float | None, quorum: int,
                  grace: float) -> Mapping[str, bytes | memoryview]:
        """Send a message to each named party, and wait for replies.

        The wait ends when all parties have replied, ``grace`` seconds after ``quorum`` parties have replied, or
        ``deadline`` seconds after the call, whichever is first. Times are durations of a monotonic clock.

        Args:
            messages: the message of each party, by name. ``bytes(message)`` are its bytes; it is a copy that an adapter
                makes for one party after the other, or avoids with ``parts_of``.
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
