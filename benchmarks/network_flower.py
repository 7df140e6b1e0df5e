"""A round of FedAvg over Flower on this machine: of this library, and of Flower's own strategy.

Run in the environment of the extra ``flower``:

    python benchmarks/network_flower.py --rounds 10

A SuperLink and several SuperNodes run in processes of their own, connected over loopback with TLS. In alternation it
measures rounds of FedAvg on the digits with the stores and checkpoints of this library (``digits``), and those of
Flower's strategy ``FedAvg`` with a client in NumPy (``Flower's FedAvg``). Flower starts a process for each message of
both.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.federation.engines.flower.local import superlink_and_supernodes
from resolvent.federation.lead.lead import federate
from resolvent.federation.lead.rehearsal import (
    LEAD,
    _write_tables,
    prepare_rehearsal,
    rehearsed_federation,
    shipped_changes,
)
from resolvent.federation.protocol.job import FederationJob
from resolvent.federation.protocol.kits import KitNote

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


def flower_rounds(rehearsal, rounds, folder, limit=900):
    """Seconds of each round of Flower's own FedAvg."""
    out, app = folder / "ends.json", folder / "app"
    app.mkdir()
    for name, text in {"pyproject.toml": PROJECT.format(rounds=rounds, sites=len(rehearsal.sites), out=out),
                       "server_app.py": SERVER_APP, "client_app.py": CLIENT_APP,
                       "numpy_client.py": Path(__file__).with_name("numpy_client.py").read_text()}.items():
        (app / name).write_text(text)
    tables = _write_tables(rehearsal, folder / "sites")
    settings = {site: f"table={json.dumps(str(file.parent / 'table.parquet'))}" for site, file in tables.items()}
    with superlink_and_supernodes(folder / "flower", "timing", settings):
        subprocess.run([Path(sys.executable).with_name("flwr"), "run", app, "timing"], check=True)
        end = time.monotonic() + limit
        while not out.exists():
            assert time.monotonic() < end, f"no result after {limit} s; see {folder}"
            time.sleep(0.5)
        time.sleep(0.5)
    return np.diff(json.loads(out.read_text())).tolist()


def own_rounds(rehearsal, folder):
    """The median of the seconds of a round of this library."""
    with rehearsed_federation(rehearsal, folder / "work", print, "flower") as kits:
        job = FederationJob("", rehearsal.plan.text, (*rehearsal.sites,))
        record = federate(KitNote(kits[LEAD]), rehearsal.plan, folder / "run", job, lambda event: None, notify=print)
    return record.methods["fedavg"].seconds_per_round


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
