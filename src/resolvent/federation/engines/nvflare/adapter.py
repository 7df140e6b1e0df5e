"""The adapter for NVIDIA FLARE: its controller and executor move bytes, and do not depend on algorithms.

This module needs the extra ``nvflare``. A job of NVIDIA FLARE runs one worker process at the server and one at each
site. At the server ``ServerProgram`` calls ``run`` with a transport to the sites; at a site ``SiteProgram`` answers
each message with ``handle``. Subclasses say what these do.
"""

import json
import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from nvflare.apis.controller_spec import SendOrder, Task
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from typing_extensions import override

from resolvent.errors import InputError
from resolvent.federation.engines.nvflare.jobs import OUTCOME_FILE, PROGRESS_TOPIC, RESULTS_FOLDER, TASK, read_job_text
from resolvent.federation.engines.nvflare.stream import LargeMessage
from resolvent.federation.engines.processes import end_without_parent
from resolvent.federation.protocol.transport import EngineTransport, PartyHandler, Transport, TransportError
from resolvent.federation.protocol.wire import Outgoing, digest_of_reply, parts_of

Prove: TypeAlias = Callable[[bytes], Any]
"""Signs bytes with the key of a site."""
Check: TypeAlias = Callable[[str, bytes, Any], None]
"""Checks a signature of a site: name, bytes, signature. It raises an ``InputError``."""

_MESSAGE, _PROOF = "message", "proof"
_TASK_CHECK_PERIOD = 0.05  # seconds between two checks of its tasks by the server; the engine's default is 0.2
# The engine copies a value up to nine times. A streamed message takes longer and needs less memory.
_MAX_VALUE = 2**27  # bytes
_log = logging.getLogger(__name__)


class JobStoppedError(TransportError):
    """The engine has stopped the job, because a person or a lost process has ended it."""


class NvflareTransport(EngineTransport):
    """Sends messages as tasks of NVIDIA FLARE.

    Args:
        check: checks that a site has signed its reply with a valid key; a reply without such a signature is dropped.

    Attributes:
        parties: names of the sites; the position of a name is the party's id.
    """

    def __init__(self, controller: Controller, context: FLContext, stop: Signal, parties: Sequence[str],
                 check: Check) -> None:
        super().__init__(parties)
        self._check, self._reasons = check, dict[str, str]()
        self._controller, self._context, self._stop = controller, context, stop

    @override
    def broadcast(self, messages: Mapping[str, Outgoing], *, deadline: float | None, quorum: int,
                  grace: float) -> dict[str, bytes | memoryview]:
        with self._arrival:
            self._reasons = {}
        return super().broadcast(messages, deadline=deadline, quorum=quorum, grace=grace)

    @override
    def reasons(self) -> dict[str, str]:
        with self._arrival:
            return dict(self._reasons)

    def add_late_reply(self, name: str, result: Shareable) -> None:
        """Store a reply whose task has ended, for ``late_replies``."""
        self._receive(name, self._checked(name, result), -1)

    def _checked(self, name: str, result: Any) -> bytes | memoryview | None:
        """The bytes of a site's reply; None if the site has failed, or has not signed them with a valid key."""
        proof = result.pop(_PROOF, None) if isinstance(result, Shareable) else None
        reply = _reply_of(result)
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

    @override
    def _send(self, name: str, message: Outgoing, number: int) -> Task:
        def receive(client_task: Any, fl_ctx: FLContext) -> None:
            reply, client_task.result = self._checked(name, client_task.result), None
            self._receive(name, reply, number)

        def end(task: Task, fl_ctx: FLContext) -> None:
            self._receive(name, None, number)

        task = Task(name=TASK, data=_shareable_of(message), result_received_cb=receive, task_done_cb=end)
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


def signed_reply(site: str, reply: bytes | memoryview) -> bytes:
    """The bytes that a site signs: its name, and the identity of its reply, which names the message that it answers."""
    return json.dumps({"site": site, "reply": digest_of_reply(reply)}).encode()


def _shareable_of(message: Outgoing) -> Shareable:
    """A message as the engine transfers it: one value, or a stream if it is large."""
    return Shareable({_MESSAGE: bytes(message) if len(message) <= _MAX_VALUE else LargeMessage(parts_of(message))})


def _message_of(shareable: Shareable) -> bytes | memoryview | None:
    content = shareable.pop(_MESSAGE, None)
    if isinstance(content, LargeMessage):
        return content.joined()
    return bytes(content) if isinstance(content, bytes | bytearray | memoryview) else None


def _reply_of(result: Any) -> bytes | memoryview | None:
    """The bytes of a site's reply; None if the site has failed."""
    if not isinstance(result, Shareable) or result.get_return_code(ReturnCode.OK) != ReturnCode.OK:
        return None
    return _message_of(result)


class ServerProgram(Controller):
    """Runs at the server, in the process of a job.

    Args:
        job: the text of ``job_text``.
    """

    def __init__(self, job: str) -> None:
        super().__init__(task_check_period=_TASK_CHECK_PERIOD)
        self.job = job
        self._events: list[dict[str, Any]] = []
        self._transport: NvflareTransport | None = None

    @abstractmethod
    def run(self, job: dict[str, Any], transport: Transport, kit: Path, results: Path) -> dict[str, Any]:
        """Do the work of the server.

        Args:
            job: the plain data that the lead has sent (``job_text``).
            transport: sends messages to the sites of the job.
            results: a folder whose content the lead downloads when the job has ended.

        Returns:
            The outcome, which is written to ``results`` for the lead.
        """

    def report(self, event: Mapping[str, Any]) -> None:
        """Tell the lead about progress; the event is plain data."""
        self._events.append(dict(event))

    def check(self, kit: Path, site: str, content: bytes, proof: Any) -> None:
        """Check the signature of a site with the server's kit; by default, no reply needs one.

        Raises:
            InputError: it is not valid.
        """

    def waiting(self) -> Mapping[str, Any]:
        """What the work of the server waits for at this moment, as plain data for the lead."""
        return {}

    @override
    def start_controller(self, fl_ctx: FLContext) -> None:
        end_without_parent()  # otherwise it would keep the lock of its store while the engine starts the job again
        self._engine.register_app_command(PROGRESS_TOPIC, self._answer_progress)

    def _answer_progress(self, topic: str, data: Any, fl_ctx: FLContext) -> dict[str, Any]:
        since = data.get("since") if isinstance(data, dict) else None
        since = since if type(since) is int and since >= 0 else 0
        events = self._events[since:since + 1000]
        return {"events": events, "next": since + len(events), "waiting": dict(self.waiting())}

    @override
    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        job = read_job_text(self.job)
        workspace = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
        results = Path(workspace.get_run_dir(fl_ctx.get_job_id())) / RESULTS_FOLDER
        results.mkdir(parents=True, exist_ok=True)
        self._transport = NvflareTransport(self, fl_ctx, abort_signal, job["sites"],
                                           partial(self.check, Path(workspace.get_root_dir())))
        try:
            outcome = self.run(job, self._transport, Path(workspace.get_root_dir()), results)
        except JobStoppedError:
            _log.warning("the job was stopped; the run can be resumed from its checkpoint")
            return
        (results / OUTCOME_FILE).write_text(json.dumps(outcome), encoding="utf-8")

    @override
    def stop_controller(self, fl_ctx: FLContext) -> None:
        """There is nothing to release: the stores write every state at once."""

    @override
    def process_result_of_unknown_task(self, client: Any, task_name: str, client_task_id: str, result: Shareable,
                                       fl_ctx: FLContext) -> None:
        if self._transport is not None:
            self._transport.add_late_reply(client.name, result)


class SiteProgram(Executor):
    """Runs at a site, in the process of a job: each message is answered by a handler."""

    def __init__(self) -> None:
        super().__init__()
        self._handler: PartyHandler | None = None

    @abstractmethod
    def open(self, site: str, kit: Path) -> PartyHandler:
        """Start the site's work.

        Returns:
            The function that answers a message with a reply.
        """

    def prove(self, kit: Path, content: bytes) -> Any:
        """Sign bytes with the key of the site, see ``ServerProgram.check``; by default, there is no signature."""
        return None

    def close(self) -> None:
        """Release the resources of ``open``, such as locks."""

    @override
    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.START_RUN:
            end_without_parent()
        elif event_type == EventType.END_RUN:
            self.close()

    @override
    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        try:
            site, kit = fl_ctx.get_identity_name(), Path(fl_ctx.get_prop(
                FLContextKey.WORKSPACE_OBJECT).get_root_dir())
            if self._handler is None:
                self._handler = self.open(site, kit)
            message = _message_of(shareable)
            if message is None:
                raise ValueError("the message has no bytes")
            reply = self._handler(message)
            result = _shareable_of(reply)
            result[_PROOF] = self.prove(kit, signed_reply(site, reply))
            return result
        except Exception:
            _log.exception("the site cannot answer a message")
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
