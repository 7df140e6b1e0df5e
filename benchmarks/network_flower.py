"""A round of FedAvg over Flower on this machine: of this library, and of Flower's own strategy.

Run in the environment of the extra ``flower``:

    python benchmarks/network_flower.py --rounds 10

A SuperLink and several SuperNodes run in processes of their own, connected over loopback with TLS and the keys of the
nodes. In alternation it measures rounds of FedAvg on the digits with the stores and checkpoints of this library
(``digits``), and those of Flower's strategy ``FedAvg`` with a client in NumPy, started as Flower starts an app that was
sent to it: a process for each message (``Flower's FedAvg``).
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from flwr.cli.build import build_fab_from_files
from flwr.common.serde import fab_to_proto
from flwr.proto.control_pb2 import StartRunRequest
from flwr.supercore.constant import NOOP_FEDERATION_ID
from flwr.supercore.fab import Fab

from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.federation.engines.flower.kits import (
    AUTHORITY_FILE,
    NODE_KEY,
    SERVER_CERTIFICATE,
    SERVER_KEY,
    make_flower_kits,
)
from resolvent.federation.engines.flower.link import SuperLink
from resolvent.federation.engines.flower.programs import _QUIET
from resolvent.federation.engines.processes import free_port
from resolvent.federation.lead.lead import federate
from resolvent.federation.lead.rehearsal import (
    _write_tables,
    prepare_rehearsal,
    rehearsed_federation,
    shipped_changes,
)
from resolvent.federation.protocol.job import FederationJob
from resolvent.federation.protocol.kits import SERVER_KIT, KitNote

FEDAVG = "Flower's FedAvg"
PROJECT = """\
[project]
name = "fedavg"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "benchmark"

[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"

[tool.flwr.app.config]
rounds = {rounds}
sites = {sites}
out = "{out}"
"""
SERVER_APP = """\
import json
import time
from pathlib import Path

from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from numpy_client import first_model

app = ServerApp()


@app.main()
def main(grid, context):
    ends, config = [], context.run_config
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=config["sites"], min_available_nodes=config["sites"])
    strategy.start(grid=grid, initial_arrays=ArrayRecord(first_model()), num_rounds=config["rounds"],
                   evaluate_fn=lambda number, arrays: ends.append(time.monotonic()))
    Path(config["out"]).write_text(json.dumps(ends))
"""
CLIENT_APP = """\
import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from numpy_client import read_rows, train

app = ClientApp()


@app.train()
def local_work(message, context):
    x, y = read_rows(context.node_config["table"])
    model = train(message.content["arrays"].to_numpy_ndarrays(), x, y, np.random.default_rng(0))
    return Message(RecordDict({"arrays": ArrayRecord(model), "metrics": MetricRecord({"num-examples": len(x)})}),
                   reply_to=message)
"""


@contextlib.contextmanager
def running(command, environment, log):
    """A process and those that it starts; they end with the block."""
    programs = Path(sys.executable).parent
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"  # it starts other programs of Flower by their names
    with log.open("ab") as output:
        process = subprocess.Popen([str(programs / command[0]), *map(str, command[1:])], stdin=subprocess.DEVNULL,
                                   env={**os.environ, **_QUIET, "PATH": path, **environment},
                                   stdout=output, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)


def flower_rounds(rehearsal, rounds, folder, limit=900):
    """Seconds of each round of Flower's own FedAvg."""
    sites, port, out = [*rehearsal.sites], free_port(), folder / "ends.json"
    kits = make_flower_kits(folder / "kits", name="timing", host="localhost", port=port, sites=sites)
    tables = _write_tables(rehearsal, folder / "sites")
    startup = kits[SERVER_KIT] / "startup"
    with contextlib.ExitStack() as stack:
        superlink = stack.enter_context(running(
            ["flower-superlink", "--host", "127.0.0.1", "--port", port, "--database", folder / "state.db",
             "--enable-supernode-auth", "--ssl-certfile", startup / SERVER_CERTIFICATE, "--ssl-keyfile",
             startup / SERVER_KEY, "--ssl-ca-certfile", startup / AUTHORITY_FILE],
            {"FLWR_HOME": str(folder / "home")}, folder / "superlink.log"))
        end = time.monotonic() + limit
        with SuperLink(KitNote(kits[SERVER_KIT])) as link:
            while time.monotonic() < end:
                with contextlib.suppress(Exception):  # the SuperLink is starting
                    link.register_sites()
                    break
                time.sleep(0.5)
                assert superlink.poll() is None, (folder / "superlink.log").read_text()
            for site in sites:
                table = tables[site].parent / "table.parquet"
                stack.enter_context(running(
                    ["flower-supernode", "--superlink", f"localhost:{port}", "--root-certificates",
                     startup / AUTHORITY_FILE, "--auth-supernode-private-key", kits[site] / "startup" / NODE_KEY,
                     "--host", "127.0.0.1", "--port", free_port(), "--node-config", f'table="{table}"'],
                    {"FLWR_HOME": str(folder / f"home-{site}")}, folder / f"{site}.log"))
            while link.connected_sites() != {*sites} and time.monotonic() < end:
                time.sleep(0.5)
            files = {"pyproject.toml": PROJECT.format(rounds=rounds, sites=len(sites), out=out).encode(),
                     "server_app.py": SERVER_APP.encode(), "client_app.py": CLIENT_APP.encode(),
                     "numpy_client.py": Path(__file__).with_name("numpy_client.py").read_bytes()}
            bundle, _ = build_fab_from_files(files)
            link._control.StartRun(StartRunRequest(fab=fab_to_proto(Fab("", bundle, {})),
                                                   federation=NOOP_FEDERATION_ID))
            while not out.exists() and time.monotonic() < end:
                time.sleep(0.5)
            assert out.exists(), f"no result after {limit} s; see {folder}"
            time.sleep(0.5)
    return np.diff(json.loads(out.read_text())).tolist()


def own_rounds(rehearsal, folder):
    """The median of the seconds of a round of this library."""
    with rehearsed_federation(rehearsal, folder / "work", print, "flower") as kits:
        job = FederationJob("", rehearsal.plan.text, (*rehearsal.sites,), rehearsal=True)
        summary = federate(KitNote(kits[SERVER_KIT]), rehearsal.plan, folder / "run", job, lambda event: None,
                           notify=print)
    return summary["methods"]["fedavg"]["seconds_per_round"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--sites", type=int, default=3)
    options = parser.parse_args()
    changes = [*shipped_changes("digits"), f"data.parties={options.sites}", f"rounds={options.rounds}",
               f"evaluate_every={options.rounds}", "algorithms=[fedavg]"]
    rehearsal = prepare_rehearsal(ExperimentFile.load("digits", changes))
    seconds = {"digits": [], FEDAVG: []}
    with tempfile.TemporaryDirectory() as name:
        for number in range(options.repeats):
            folder = Path(name) / str(number)
            folder.mkdir()
            seconds["digits"].append(own_rounds(rehearsal, folder))
            seconds[FEDAVG].append(statistics.median(flower_rounds(rehearsal, options.rounds, folder)))
    print(json.dumps({**{way: {"seconds": round(statistics.median(values), 4)} for way, values in seconds.items()},
                      "rounds": options.rounds, "sites": options.sites, "repeats": options.repeats}, indent=2))


if __name__ == "__main__":
    main()
