"""The programs of a federation that NVIDIA FLARE runs: the only classes that a job may name.

A job runs one worker process at the server, with ``FederationServer``, and one at each site, with ``FederationSite``.
"""

import json
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from typing_extensions import override

from resolvent.errors import InputError
from resolvent.federation.engines.nvflare.adapter import (
    PROOF,
    JobStoppedError,
    NvflareTransport,
    message_of,
    shareable_of,
)
from resolvent.federation.engines.nvflare.jobs import OUTCOME_FILE, PROGRESS_TOPIC, RESULTS_FOLDER, read_job_text
from resolvent.federation.engines.processes import end_without_parent
from resolvent.federation.protocol.events import Event, Waiting
from resolvent.federation.protocol.job import FederationJob
from resolvent.federation.protocol.kits import KitNote
from resolvent.federation.protocol.names import MODELS, check_run_name, code_folder, runs_of
from resolvent.federation.protocol.plan_files import plan_from_text
from resolvent.federation.protocol.policy import policy_of_process
from resolvent.federation.protocol.transport import PartyHandler, Transport, signed_reply
from resolvent.federation.server.serve import serve_federation
from resolvent.federation.server.watch import Watch
from resolvent.federation.site.site import site_of_process
from resolvent.xla.compiled_programs import enable_compilation_cache

_TASK_CHECK_PERIOD = 0.05  # seconds between two checks of its tasks by the server; the engine's default is 0.2
_log = logging.getLogger(__name__)


class FederationServer(Controller):
    """Runs the rounds of an experiment at the server, see ``serve_federation``.

    Args:
        job: the text of ``job_text``.
    """

    def __init__(self, job: str) -> None:
        super().__init__(task_check_period=_TASK_CHECK_PERIOD)
        self.job = job
        self._events: list[dict[str, Any]] = []
        self._watch = Watch(self.report)
        self._transport: NvflareTransport | None = None

    def run(self, job: dict[str, Any], transport: Transport, kit: Path, results: Path) -> dict[str, Any]:
        """Do the work of the server.

        Args:
            job: the plain data that the lead has sent (``job_text``).
            transport: sends messages to the sites of the job.
            results: a folder whose content the lead downloads when the job has ended.

        Returns:
            The outcome, which is written to ``results`` for the lead.
        """
        enable_compilation_cache()
        try:
            order = FederationJob.from_plain(job)
            plan = plan_from_text(order.experiment, order.run, policy=policy_of_process(),
                                  models=json.loads(os.environ.get(MODELS, "[]")), folder=code_folder())
            plan = plan.with_refit(order.refit, order.keeps_validation)
            with self._watch:
                outcome = serve_federation(order, plan, transport, runs_of(kit) / check_run_name(order.run), results,
                                           self._watch, kit=kit)
        except InputError as error:
            outcome = {"status": "refused", "message": f"server: {error}"}
        return {**outcome, "events": self._events}

    def report(self, event: Event) -> None:
        """Keep an event for the lead, which asks what the run waits for when it wants to know."""
        if not isinstance(event, Waiting):
            self._events.append(event.plain())

    def check(self, kit: Path, site: str, content: bytes, proof: Any) -> None:
        """Check the signature of a site with the server's kit.

        Raises:
            InputError: it is not valid.
        """
        KitNote(kit).verify_site(site, content, proof)

    @override
    def start_controller(self, fl_ctx: FLContext) -> None:
        end_without_parent()  # otherwise it would keep the lock of its store while the engine starts the job again
        self._engine.register_app_command(PROGRESS_TOPIC, self._answer_progress)

    def _answer_progress(self, topic: str, data: Any, fl_ctx: FLContext) -> dict[str, Any]:
        since = data.get("since") if isinstance(data, dict) else None
        since = since if type(since) is int and since >= 0 else 0
        wait = self._watch.waiting()
        return {"events": self._events[since:since + 1000], "waiting": [wait.plain()] if wait is not None else []}

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


class FederationSite(Executor):
    """Answers the server's messages at a site, see ``Site``."""

    def __init__(self) -> None:
        super().__init__()
        self._handler: PartyHandler | None = None
        self._close: Callable[[], None] = lambda: None

    def open(self, site: str, kit: Path) -> PartyHandler:
        """Start the site's work; returns the function that answers a message with a reply."""
        enable_compilation_cache()
        opened = site_of_process(KitNote(kit))
        self._close = opened.close
        return opened.handle

    def prove(self, kit: Path, content: bytes) -> Any:
        """Sign bytes with the key of the site, see ``FederationServer.check``."""
        return KitNote(kit).sign(content)

    @override
    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.START_RUN:
            end_without_parent()
        elif event_type == EventType.END_RUN:
            self._close()

    @override
    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        try:
            site, kit = fl_ctx.get_identity_name(), Path(fl_ctx.get_prop(
                FLContextKey.WORKSPACE_OBJECT).get_root_dir())
            if self._handler is None:
                self._handler = self.open(site, kit)
            message = message_of(shareable)
            if message is None:
                raise ValueError("the message has no bytes")
            reply = self._handler(message)
            result = shareable_of([reply])
            result[PROOF] = self.prove(kit, signed_reply(site, reply))
            return result
        except Exception:
            _log.exception("the site cannot answer a message")
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
