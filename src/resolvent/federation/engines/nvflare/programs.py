"""The programs of a federation that NVIDIA FLARE runs: the only classes that a job may name."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from typing_extensions import override

from resolvent.errors import InputError
from resolvent.federation.engines.nvflare.adapter import ServerProgram, SiteProgram
from resolvent.federation.protocol.job import FederationJob
from resolvent.federation.protocol.kits import KitNote
from resolvent.federation.protocol.names import MODELS, check_run_name, code_folder, is_rehearsal, runs_of
from resolvent.federation.protocol.plan_files import plan_from_text
from resolvent.federation.protocol.transport import PartyHandler, Transport
from resolvent.federation.server.serve import serve_federation
from resolvent.federation.site.site import site_of_process
from resolvent.xla.compiled_programs import enable_compilation_cache


class FederationServer(ServerProgram):
    """Runs the rounds of an experiment at the server, see ``serve_federation``."""

    @override
    def run(self, job: dict[str, Any], transport: Transport, kit: Path, results: Path) -> dict[str, Any]:
        enable_compilation_cache()
        events: list[dict[str, Any]] = []

        def observe(event: Any) -> None:
            events.append(dict(event))
            self.report(event)

        try:
            plan = FederationJob.from_plain(job)
            experiment = plan_from_text(plan.experiment, plan.run, rehearsal=is_rehearsal() and plan.rehearsal,
                                        models=json.loads(os.environ.get(MODELS, "[]")), folder=code_folder())
            experiment = experiment.with_refit(plan.refit, plan.keeps_validation)
            folder = runs_of(kit) / check_run_name(plan.run)
            outcome = serve_federation(plan, experiment, transport, folder, results, observe,
                                       kit=kit, expect=self._expect)
        except InputError as error:
            outcome = {"status": "refused", "message": f"server: {error}"}
        return {**outcome, "events": events}

    @override
    def check(self, kit: Path, site: str, content: bytes, proof: Any) -> None:
        KitNote(kit).verify_site(site, content, proof)

    def _expect(self, waiting: Callable[[], Mapping[str, Any]]) -> None:
        self._waiting = waiting

    @override
    def waiting(self) -> Mapping[str, Any]:
        waiting = getattr(self, "_waiting", None)
        return {} if waiting is None else waiting()


class FederationSite(SiteProgram):
    """Answers the server's messages at a site, see ``Site``."""

    @override
    def open(self, site: str, kit: Path) -> PartyHandler:
        enable_compilation_cache()
        self._site = site_of_process(KitNote(kit))
        return self._site.handle

    @override
    def prove(self, kit: Path, content: bytes) -> Any:
        return KitNote(kit).sign(content)

    @override
    def close(self) -> None:
        site = getattr(self, "_site", None)
        if site is not None:
            site.close()
