"""A federation over Flower: the process of a site, and the server's rounds in the process of the lead.

Flower knows no persons and returns no files. The lead therefore works on the server's machine, with the server's kit:
``resolvent lead start`` starts a run of Flower and makes the server's steps itself.
"""

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from typing_extensions import override

from resolvent.errors import InputError
from resolvent.federation.engines.processes import EngineProcess, end_with_parent, free_port, start_process
from resolvent.federation.protocol.job import FederationJob, Observer
from resolvent.federation.protocol.kits import KitNote
from resolvent.federation.protocol.names import runs_of
from resolvent.federation.protocol.plan import Plan
from resolvent.federation.server.serve import serve_federation
from resolvent.federation.server.waits import Follower

# Flower reports nothing to its makers, looks for no update, and installs nothing.
_PACKAGE = "resolvent.federation.engines.flower"
_QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
          "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1"}


def start_flower(note: KitNote, environment: Mapping[str, str]) -> EngineProcess:
    """Start the server's SuperLink, or a site's SuperNode and the process that answers its messages."""
    module = f"{_PACKAGE}.{'start' if note.kind == 'server' else 'programs'}"
    level = {"FLWR_LOG_LEVEL": "WARNING"} if note.kind == "server" else {}  # it logs every query for the sites
    return start_process(note.kit, [module, str(note.kit)],
                         {**_QUIET, **level, "FLWR_HOME": str(note.kit / "engine"), **environment})


class FlowerServer(Follower):
    """Makes the server's steps of a run until it is complete.

    Args:
        notify: a function that is called with messages about the connection.
    """

    final = InputError

    def __init__(self, note: KitNote, experiment: Plan, job: FederationJob, results: Path,
                 observe: Observer, notify: Callable[[str], None]) -> None:
        super().__init__(observe, notify)
        self._note, self._experiment, self._job, self._results = note, experiment, job, results
        self._rounds, self._rounds_at_restart = 0, -1  # rounds that this command has observed

    @override
    def _connect(self) -> AbstractContextManager[Any]:
        os.environ.update(_QUIET | {"FLWR_HOME": str(self._note.kit / "engine")})
        from resolvent.federation.engines.flower.link import SuperLink  # after its variables are set

        return SuperLink(self._note)

    @override
    def _follow(self, link: Any) -> Mapping[str, Any] | None:
        """Serve the federation once; None if a site was lost or started again, and the run can be continued.

        A site that was started again has not prepared the run: it fails to answer until the run is served again.
        """
        from resolvent.federation.engines.flower.adapter import FlowerTransport

        self._patience.await_sites(self._job.sites, link.connected_sites)
        nodes = link.nodes()
        with link.open_run() as grid:
            transport = FlowerTransport(grid, {site: nodes[site] for site in self._job.sites})
            outcome = serve_federation(self._job, self._experiment, transport, runs_of(self._note.kit) / self._job.run,
                                       self._results, self._count_rounds, kit=self._note.kit,
                                       expect=self._waits.expect)
        if outcome["status"] != "stopped":
            return outcome
        has_new_rounds = self._rounds > self._rounds_at_restart
        if {*self._job.sites} - link.connected_sites() or (transport.failed and has_new_rounds):
            self._rounds_at_restart = self._rounds
            self._notify(f"the run stopped: {outcome['message']}")
            return None
        return outcome

    def _count_rounds(self, event: Mapping[str, Any]) -> None:
        self._rounds += event.get("event") == "round"
        self._waits.observe(event)


def _run_site(note: KitNote) -> None:
    """Run a site: its SuperNode in a process of its own, and the party in this process."""
    from resolvent.federation.engines.flower.adapter import client_app
    from resolvent.federation.engines.flower.site import answer_messages
    from resolvent.federation.site.site import site_of_process
    from resolvent.xla.compiled_programs import enable_compilation_cache

    enable_compilation_cache()
    engine = note.kit / "engine"
    engine.mkdir(exist_ok=True)
    secret_file, secret, port = engine / "secret", secrets.token_bytes(32), free_port()
    secret_file.touch(mode=0o600)
    secret_file.write_bytes(secret)
    site = site_of_process(note)
    supernode = subprocess.Popen(
        [sys.executable, "-u", "-m", f"{_PACKAGE}.start", str(os.getpid()), str(note.kit), str(port), str(secret_file)],
        stdin=subprocess.DEVNULL)
    try:
        answer_messages(client_app(site.handle), f"127.0.0.1:{port}", secret, lambda: supernode.poll() is None)
    finally:
        supernode.terminate()
        site.close()


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    _run_site(KitNote(Path(sys.argv[2])))
