"""The adapter for Flower: a transport over its Grid, and a ClientApp that answers with a handler.

This module needs the extra ``flower``. It does not depend on algorithms: messages are bytes in both directions. The
state of a party is in its store, and not in the context of Flower.
"""

import contextlib
import logging
from collections.abc import Iterator, Mapping

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from typing_extensions import override

from resolvent.errors import shorten
from resolvent.federation.protocol.transport import EngineTransport, PartyHandler, TransportError
from resolvent.federation.protocol.wire import Outgoing

_MESSAGE_TYPE, _RECORD, _FORMAT = "query", "message", "resolvent"
_SMALL = 2**20  # bytes
_FAILED = 1  # error code
_log = logging.getLogger(__name__)


class FlowerTransport(EngineTransport):
    """Sends messages with ``push_messages`` of a Grid, and collects the replies with ``pull_messages``.

    Args:
        nodes: name of a site -> id of its node.

    Attributes:
        failed: sites whose last answer was an error: the site's process has failed, or was started again.
    """

    pause = 0.1

    def __init__(self, grid: Grid, nodes: Mapping[str, int]) -> None:
        super().__init__((*nodes,))
        self._grid, self._nodes = grid, dict(nodes)
        self._unanswered: dict[str, tuple[str, int]] = {}  # id of a message -> site, number of the broadcast
        self.failed: set[str] = set()

    @override
    def late_replies(self) -> list[tuple[str, bytes | memoryview]]:
        self._poll()
        return super().late_replies()

    @override
    def _send(self, name: str, message: Outgoing, number: int) -> str:
        # One by one: the size of a request is limited.
        sent = Message(content=_record_of(bytes(message)), dst_node_id=self._nodes[name], message_type=_MESSAGE_TYPE)
        with _named_errors():
            (of_message,) = self._grid.push_messages([sent])
        if of_message:
            self._unanswered[of_message] = name, number
        return of_message or ""

    @override
    def _is_open(self, sent: str) -> bool:
        return sent in self._unanswered

    @override
    def _poll(self) -> None:
        """Collect replies. An answered message is removed, a failed one too."""
        if not self._unanswered:
            return
        with _named_errors():
            for message in self._grid.pull_messages([*self._unanswered]):
                site, number = self._unanswered.pop(message.metadata.reply_to_message_id, ("", 0))
                if not site:
                    continue
                reply = None if message.has_error() else _bytes_of(message)
                (self.failed.add if reply is None else self.failed.discard)(site)
                self._receive(site, reply, number)


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
