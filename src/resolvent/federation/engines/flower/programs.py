"""A federation over Flower: the process of a site, and the server's rounds in the process of the lead.

``flwr run`` starts the app of ``relay``, whose ServerApp and ClientApps only move messages between these processes. So
the lead works on the machine of the SuperLink, and a site on that of its SuperNode; neither needs the same environment.
"""

import contextlib
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from typing_extensions import override

from resolvent.errors import InputError
from resolvent.federation.engines.flower.adapter import FlowerTransport, RelayedGrid, answer_of_site
from resolvent.federation.engines.flower.door import Door, door_setting
from resolvent.federation.engines.flower.kits import APP
from resolvent.federation.engines.processes import EngineProcess, end_with_parent, start_process
from resolvent.federation.protocol.events import Event, Observer, PhaseReport
from resolvent.federation.protocol.job import FederationJob
from resolvent.federation.protocol.kits import KitNote
from resolvent.federation.protocol.names import runs_of
from resolvent.federation.protocol.plan import Plan
from resolvent.federation.server.serve import serve_federation
from resolvent.federation.server.watch import Follower

_START_SECONDS = 300.0  # for a ServerApp, from the end of flwr run
_log = logging.getLogger(__name__)


class FlowerServer(Follower):
    """Makes the server's steps of a run until it is complete.

    Args:
        notify: a function that is called with messages about the connection.
    """

    final = InputError

    def __init__(self, note: KitNote, experiment: Plan, job: FederationJob, results: Path,
                 observe: Observer, notify: Callable[[str], None]) -> None:
        super().__init__(self._count_rounds, notify)
        self._note, self._experiment, self._job, self._results = note, experiment, job, results
        self._observe = observe
        self._rounds, self._rounds_at_restart = 0, -1  # rounds that this command has observed

    @override
    @contextlib.contextmanager
    def _connect(self) -> Iterator[RelayedGrid]:
        """Start the app with ``flwr run``, and wait for its ServerApp."""
        kit = self._note.kit
        with Door(kit) as door:
            program = Path(sys.executable).with_name("flwr")
            started = subprocess.run([program, "run", kit / APP, self._note.address, "--run-config", door_setting(kit)],
                                     stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                     text=True, check=False)
            if started.returncode:
                raise ConnectionError(f"flwr run has failed: {' '.join(started.stdout.split())}")
            with door.connection(_START_SECONDS) as connection:
                yield RelayedGrid(self._note, connection)

    @override
    def _follow(self, grid: RelayedGrid) -> Mapping[str, Any] | None:
        """Serve the federation once; None if a site was lost or started again, and the run can be continued.

        A site that was started again has not prepared the run: it fails to answer until the run is served again.
        """
        self._await_sites(self._job.sites, grid.connected_sites)
        nodes = grid.nodes()
        transport = FlowerTransport(grid, {site: nodes[site] for site in self._job.sites}, self._note.verify_site)
        outcome = serve_federation(self._job, self._experiment, transport, runs_of(self._note.kit) / self._job.run,
                                   self._results, self._watch, kit=self._note.kit)
        if outcome["status"] != "stopped":
            return outcome
        has_new_rounds = self._rounds > self._rounds_at_restart
        if {*self._job.sites} - grid.connected_sites() or (transport.failed and has_new_rounds):
            self._rounds_at_restart = self._rounds
            self._notify(f"the run stopped: {outcome['message']}")
            return None
        return outcome

    def _count_rounds(self, event: Event) -> None:
        self._rounds += isinstance(event, PhaseReport)
        self._observe(event)


def start_site(note: KitNote, environment: Mapping[str, str]) -> EngineProcess:
    """Start the process of a site, which answers what a ClientApp on the same machine passes on."""
    return start_process(note.kit, [__name__, str(note.kit)], environment)


def _run_site(note: KitNote) -> None:
    from resolvent.federation.site.site import site_of_process
    from resolvent.xla.compiled_programs import enable_compilation_cache

    enable_compilation_cache()
    site = site_of_process(note)
    answer = answer_of_site(note, site.handle)
    with Door(note.kit) as door:
        while True:
            with door.connection() as connection:
                try:
                    connection.send_bytes(answer(connection.recv_bytes()))
                except Exception:  # the ClientApp sees the end of the connection, and no reason
                    _log.exception("the site cannot answer a message")


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    _run_site(KitNote(Path(sys.argv[2])))
