"""The adapter for Flower: a transport over its Grid, and a ClientApp that answers with a handler.

This module needs the extra ``flower``. It does not depend on algorithms: messages are bytes in both directions. The
state of a party is in its store, and not in the context of Flower.
"""

import contextlib
import logging
import math
import time
from collections.abc import Iterator, Mapping

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from typing_extensions import override

from resolvent.errors import shorten
from resolvent.federation.protocol.transport import PartyHandler, Transport, TransportError
from resolvent.federation.protocol.wire import Outgoing

_MESSAGE_TYPE, _RECORD, _FORMAT = "query", "message", "resolvent"
_SMALL = 2**20  # bytes
_PAUSE = 0.1  # seconds between two requests for replies
_FAILED = 1  # error code
_log = logging.getLogger(__name__)


class FlowerTransport(Transport):
    """Sends messages with ``push_messages`` of a Grid, and collects the replies with ``pull_messages``.

    Args:
        nodes: name of a site -> id of its node.

    Attributes:
        failed: sites whose last answer was an error: the site's process has failed, or was started again.
    """

    def __init__(self, grid: Grid, nodes: Mapping[str, int]) -> None:
        self.parties = tuple(nodes)
        self._grid, self._nodes = grid, dict(nodes)
        self._pending: dict[str, str] = {}  # id of a message of the current broadcast -> site
        self._unanswered: dict[str, str] = {}  # id of a message whose wait has ended -> site
        self.failed: set[str] = set()

    @override
    def broadcast(self, messages: Mapping[str, Outgoing], *, deadline: float | None, quorum: int,
                  grace: float) -> dict[str, bytes]:
        start = time.monotonic()
        end = math.inf if deadline is None else start + deadline
        self._pending = pending = self._push(messages)
        replies: dict[str, bytes] = {}
        has_quorum = False
        while True:
            replies |= self._pull(pending)
            if not has_quorum and len(replies) >= quorum:
                has_quorum, end = True, min(end, time.monotonic() + grace)
            left = end - time.monotonic()
            if not pending or left <= 0:
                break
            time.sleep(min(left, _PAUSE))
        self._unanswered |= pending
        self._pending = {}
        return replies

    @override
    def missing(self) -> tuple[str, ...]:
        return tuple(self._pending.values())

    @override
    def late_replies(self) -> list[tuple[str, bytes]]:
        return [*self._pull(self._unanswered).items()] if self._unanswered else []

    def _push(self, messages: Mapping[str, Outgoing]) -> dict[str, str]:
        """Send messages; returns the id of each message -> site."""
        pending = {}
        for site, content in messages.items():  # one by one: the size of a request is limited
            message = Message(content=_record_of(bytes(content)), dst_node_id=self._nodes[site],
                              message_type=_MESSAGE_TYPE)
            with _named_errors():
                (number,) = self._grid.push_messages([message])
            if number:
                pending[number] = site
        return pending

    def _pull(self, pending: dict[str, str]) -> dict[str, bytes]:
        """The replies to pending messages. An answered message is removed from ``pending``, a failed one too."""
        replies = {}
        with _named_errors():
            for message in self._grid.pull_messages([*pending]):
                site = pending.pop(message.metadata.reply_to_message_id, None)
                reply = None if message.has_error() else _bytes_of(message)
                if site is None:
                    continue
                if reply is None:
                    self.failed.add(site)
                else:
                    self.failed.discard(site)
                    replies[site] = reply
        return replies


@contextlib.contextmanager
def _named_errors() -> Iterator[None]:
    """Errors of the Grid, which has exceptions of several libraries, as those of a transport."""
    try:
        yield
    except Exception as error:
        raise TransportError(shorten(error) or type(error).__name__) from error


def client_app(handle: PartyHandler) -> ClientApp:
    """A ClientApp that answers each message of ``FlowerTransport`` with a handler.

    Args:
        handle: the function that answers a message, such as ``Party.handle``.
    """
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        try:
            content = _bytes_of(message)
            if content is None:
                raise ValueError("the message has no bytes")
            return Message(content=_record_of(handle(content)), reply_to=message)
        except Exception:
            _log.exception("the site cannot answer a message")
            return Message(Error(_FAILED, "the site cannot answer; its log says why"), reply_to=message)

    app.query()(answer)
    return app


def _record_of(content: bytes) -> RecordDict:
    # Flower moves each object of a message in a request of its own. A configuration is one object. An array is three,
    # and Flower divides it into chunks, so that its size is not limited.
    if len(content) <= _SMALL:
        return RecordDict({_RECORD: ConfigRecord({_RECORD: content})})
    return RecordDict({_RECORD: ArrayRecord({_RECORD: Array("uint8", (len(content),), _FORMAT, content)})})


def _bytes_of(message: Message) -> bytes | None:
    record = message.content.get(_RECORD)
    if isinstance(record, ConfigRecord):
        value = record.get(_RECORD)
        return value if isinstance(value, bytes) else None
    array = record.get(_RECORD) if isinstance(record, ArrayRecord) else None
    return None if array is None else array.data
