"""A round of a federation over NVIDIA FLARE on this machine, and rounds of NVIDIA FLARE itself.

Run in the environment of the extra ``nvflare``:

    python benchmarks/network.py --rounds 50
    python benchmarks/network.py --megabytes 100 --rounds 5

One server and three sites run in processes of their own, connected over loopback with certificates. In one run of these
processes it measures: rounds of the engine's own ``broadcast_and_wait`` with an executor that returns its input; the
same through the transport of this library; and rounds of FedAvg on the digits, with stores and checkpoints.
"""

import argparse
import json
import socket
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from nvflare.apis.controller_spec import Task
from nvflare.apis.shareable import Shareable

from resolvent.deploy.kits import SERVER_KIT, kit_note
from resolvent.deploy.nvflare import ServerProgram, SiteProgram
from resolvent.deploy.nvflare_lead import open_session
from resolvent.deploy.nvflare_processes import start_engine
from resolvent.deploy.processes import running
from resolvent.deploy.provisioning import make_kits
from resolvent.study.experiment import ExperimentFile
from resolvent.study.federation_lead import federate, write_sites
from resolvent.study.federation_names import ALLOWED_CLASSES, REHEARSAL, SITE_FILE
from resolvent.study.federation_rehearsal import _write_tables, prepare_rehearsal, shipped_changes
from resolvent.study.federation_server import FederationJob

LEAD = "lead@example.org"
CLASSES = ("network.RoundTimer", "network.Echo")


class RoundTimer(ServerProgram):
    """Times rounds of the engine and of the transport with messages of one size."""

    def control_flow(self, abort_signal, fl_ctx):
        self._signal, self._context = abort_signal, fl_ctx
        super().control_flow(abort_signal, fl_ctx)

    def run(self, job, transport, kit, results):
        message = bytes(job["bytes"])
        return {"engine": [self._engine_round(message, transport.parties) for _ in range(job["rounds"] + 1)][1:],
                "transport": [self._transport_round(message, transport) for _ in range(job["rounds"] + 1)][1:]}

    def _engine_round(self, message, sites):
        start = time.monotonic()
        self.broadcast_and_wait(Task("message", Shareable({"message": message})), self._context, [*sites],
                                min_responses=len(sites), abort_signal=self._signal)
        return time.monotonic() - start

    def _transport_round(self, message, transport):
        start = time.monotonic()
        replies = transport.broadcast(dict.fromkeys(transport.parties, message), deadline=300,
                                      quorum=len(transport.parties), grace=0)
        assert len(replies) == len(transport.parties)
        return time.monotonic() - start


class Echo(SiteProgram):
    """Returns each message."""

    def open(self, site, kit):
        return lambda message: message


def run_job(session, job, classes, folder):
    number = session.submit("timing", job, *classes)
    while not session.state(number).is_done:
        time.sleep(0.3)
    return session.fetch(number, folder)


def measure(rounds, size, folder):
    changes = [*shipped_changes("digits"), f"rounds={rounds}", f"evaluate_every={rounds}", "algorithms=[fedavg]"]
    rehearsal = prepare_rehearsal(ExperimentFile.load("digits", changes))
    sites = [*rehearsal.sites]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    kits = make_kits(folder / "kits", name="timing", host="localhost", port=port, sites=sites, lead=LEAD)
    write_sites(kits[LEAD], "timing", sites)
    files = _write_tables(rehearsal, folder / "sites")
    variables = {REHEARSAL: "1", "PYTHONPATH": str(Path(__file__).parent)}
    allowed = (*ALLOWED_CLASSES, *CLASSES)
    with ExitStack() as stack:
        server = stack.enter_context(running(start_engine(kit_note(kits[SERVER_KIT], "server"), allowed, variables)))
        for site in sites:
            stack.enter_context(running(start_engine(kit_note(kits[site], "site"), allowed,
                                                     {**variables, SITE_FILE: str(files[site])})))
        for site in sites:
            server.wait_for(f"New client {site}", 120)
        note = kit_note(kits[LEAD], "person")
        with open_session(note) as session:
            job = {"sites": sites, "rounds": rounds, "bytes": size}
            times = run_job(session, job, CLASSES, folder / "timing")
        result = {name: statistics.median(times[name]) for name in ("engine", "transport")}
        if size < 10**6:
            job = FederationJob("", rehearsal.experiment.text, tuple(sites), rehearsal=True)
            summary = federate(note, rehearsal.experiment, folder / "run", job, lambda event: None, notify=print)
            result["digits"] = summary["methods"]["fedavg"]["seconds_per_round"]
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--megabytes", type=float, default=0.001, help="size of a message in each direction")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(options.rounds, int(options.megabytes * 1e6), Path(folder))
    print(json.dumps({**{name: round(seconds, 4) for name, seconds in result.items()},
                      **{f"{name} / engine": round(result[name] / result["engine"], 2) for name in result},
                      "rounds": options.rounds, "megabytes": options.megabytes}, indent=2))


if __name__ == "__main__":
    main()
