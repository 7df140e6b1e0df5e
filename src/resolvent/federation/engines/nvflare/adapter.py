"""The adapter for NVIDIA FLARE: a transport over its tasks, and messages as the engine transfers them.

This module needs the extra ``nvflare``. It does not depend on algorithms.
"""

from collections.abc import Sequence
from typing import Any

from nvflare.apis.controller_spec import SendOrder, Task
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from typing_extensions import override

from resolvent.federation.engines.nvflare.jobs import TASK
from resolvent.federation.engines.nvflare.stream import LargeMessage
from resolvent.federation.protocol.transport import Check, EngineTransport, TransportError
from resolvent.federation.protocol.wire import EncodedMessage

_MESSAGE, PROOF = "message", "proof"
_TASK_CHECK_PERIOD = 0.05  # seconds between two checks of its tasks by the server; the engine's default is 0.2
# The engine copies a value up to nine times. A streamed message takes longer and needs less memory.
_MAX_VALUE = 2**27  # bytes


class JobStoppedError(TransportError):
    """The engine has stopped the job, because a person or a lost process has ended it."""


class NvflareTransport(EngineTransport):
    """Sends messages as tasks of NVIDIA FLARE.

    Args:
        check: see ``EngineTransport``.

    Attributes:
        parties: names of the sites; the position of a name is the party's id.
    """

    def __init__(self, controller: Controller, context: FLContext, stop: Signal, parties: Sequence[str],
                 check: Check) -> None:
        super().__init__(parties, check)
        self._controller, self._context, self._stop = controller, context, stop

    def add_late_reply(self, name: str, result: Shareable) -> None:
        """Store a reply whose task has ended, for ``late_replies``."""
        self._receive(name, self._reply(name, result), -1)

    def _reply(self, name: str, result: Any) -> bytes | memoryview | None:
        """The bytes of a site's reply; None if it has failed, or has not signed them with a valid key."""
        proof = result.pop(PROOF, None) if isinstance(result, Shareable) else None
        return self._checked(name, _reply_of(result), proof)

    @override
    def _send(self, name: str, message: EncodedMessage, number: int) -> Task:
        def receive(client_task: Any, fl_ctx: FLContext) -> None:
            reply, client_task.result = self._reply(name, client_task.result), None
            self._receive(name, reply, number)

        def end(task: Task, fl_ctx: FLContext) -> None:
            self._receive(name, None, number)

        task = Task(name=TASK, data=shareable_of(message.parts), result_received_cb=receive, task_done_cb=end)
        try:
            self._controller.send(task, self._context, targets=[name], send_order=SendOrder.ANY)
        except Exception as error:  # the engine accepts no task after the end of the job has begun
            raise JobStoppedError(f"NVIDIA FLARE does not accept a message: {error}") from error
        return task

    @override
    def _poll(self) -> None:
        if self._stop.triggered:
            raise JobStoppedError("NVIDIA FLARE has stopped the job")

    @override
    def _is_open(self, sent: Task) -> bool:
        return sent.completion_status is None

    @override
    def _withdraw(self, sent: Task) -> None:
        self._controller.cancel_task(sent, fl_ctx=self._context)


def shareable_of(parts: Sequence[bytes | memoryview]) -> Shareable:
    """The parts of a message as the engine transfers them: one value, or a stream if it is large."""
    return Shareable({_MESSAGE: b"".join(parts) if sum(map(len, parts)) <= _MAX_VALUE else LargeMessage(parts)})


def message_of(shareable: Shareable) -> bytes | memoryview | None:
    """The bytes of ``shareable_of``, which are removed from it; None without bytes."""
    content = shareable.pop(_MESSAGE, None)
    if isinstance(content, LargeMessage):
        return content.joined()
    return bytes(content) if isinstance(content, bytes | bytearray | memoryview) else None


def _reply_of(result: Any) -> bytes | memoryview | None:
    """The bytes of a site's reply; None if the site has failed."""
    if not isinstance(result, Shareable) or result.get_return_code(ReturnCode.OK) != ReturnCode.OK:
        return None
    return message_of(result)
