"""The memory of the processes of a federation with a large model, over NVIDIA FLARE.

Run in the environment of the extra ``nvflare``, on Linux:

    python benchmarks/federation_memory.py --megabytes 300

The commands of lead, server and one site run two rounds of FedAvg and two evaluations on this machine. The model is a
network with a square matrix of the given size. For each process, ``peaks`` has the largest resident memory of its own
(without pages of files), divided by the size of the model; a process without a large model has about 0.25 GB.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pandas as pd

from resolvent.federation.engines.processes import free_port

LEAD = "lead@example.org"
SITES = ("aachen", "berlin")  # a federation has at least two; the run has the first one
EXPERIMENT = """
data: {{label: readmitted}}
model: {{name: mlp, width: {width}, depth: 2}}
solver: {{name: SGD, learning_rate: 0.001, batch_size: 10, epochs: 1}}
algorithms: {{FedAvg: fedavg}}
rounds: 2
evaluate_every: 2
"""
SITE = """
table: patients.csv
limits: {min_sites: 1, networks: true, max_parameters_per_row: 1.0e+9}
"""
PARTS = {"runner_process": "process of the job", "worker_process": "process of the job",
         "nvflare.start": "engine", "resolvent.cli": "command"}


def processes(top):
    """The ids of a process and of all that it has started."""
    children = Path(f"/proc/{top}/task").glob("*/children")
    return [top, *(each for path in children for child in path.read_text().split() for each in processes(int(child)))]


def sample(roles, peaks):
    """Raise the peaks to the memory that the processes have now."""
    for role, top in [*roles.items()]:
        try:
            for number in processes(top):
                command = Path(f"/proc/{number}/cmdline").read_text()
                part = next((title for mark, title in PARTS.items() if mark in command), None)
                status = dict(line.split(":", 1) for line in Path(f"/proc/{number}/status").read_text().splitlines())
                if part is not None:
                    size = int(status["RssAnon"].split()[0]) * 1024
                    peaks[f"{role}, {part}"] = max(size, peaks.get(f"{role}, {part}", 0))
        except (OSError, KeyError):  # a process has ended
            continue


def measure(megabytes, folder):
    """Run the federation; returns the peaks in multiples of the model, and the seconds of the lead's command."""
    width = int((megabytes * 1e6 / 4) ** 0.5)
    rng, command = np.random.default_rng(0), [sys.executable, "-m", "resolvent.cli"]
    age = rng.normal(60, 12, 90)
    pd.DataFrame({"age": age, "readmitted": np.where(age > 60, "yes", "no")}).to_csv(
        folder / "patients.csv", index=False)
    (folder / "mine.yaml").write_text(EXPERIMENT.format(width=width))
    (folder / "site.yaml").write_text(SITE)
    (folder / "consortium.yaml").write_text(
        f"name: large\nhost: localhost\nport: {free_port()}\nsites: [{', '.join(SITES)}]\nlead: {LEAD}\n")
    subprocess.run([*command, "lead", "kits", "consortium.yaml"], cwd=folder, check=True, capture_output=True)
    roles, peaks, end = {}, {}, threading.Event()

    def watch():
        while not end.wait(0.1):
            sample(roles, peaks)

    with ExitStack() as stack:
        for role, words in (("server", ("lead", "serve", "kits/server")),
                            ("site", ("site", "start", f"kits/{SITES[0]}", "site.yaml"))):
            log = stack.enter_context((folder / f"{role}.log").open("w"))
            process = subprocess.Popen([*command, *words], cwd=folder, stdout=log, stderr=log)
            stack.callback(process.wait, 60)
            stack.callback(process.send_signal, signal.SIGTERM)
            roles[role] = process.pid
        thread, begin = threading.Thread(target=watch), time.monotonic()
        thread.start()
        stack.callback(thread.join)
        stack.callback(end.set)
        words = ("lead", "start", "mine.yaml", f"kits/{LEAD}", "--sites", SITES[0], "--set",
                 "federation.deadline=3000")
        lead = subprocess.Popen([*command, *words], cwd=folder, stdout=subprocess.DEVNULL)
        roles["lead"] = lead.pid
        if lead.wait() != 0:
            raise SystemExit((folder / "server.log").read_text())
    size = width * width * 4
    return {"peaks": {name: round(peak / size, 2) for name, peak in sorted(peaks.items())},
            "seconds": round(time.monotonic() - begin)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=300)
    arguments = parser.parse_args()
    command = f"python benchmarks/federation_memory.py {' '.join(sys.argv[1:])}"
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(arguments.megabytes, Path(folder))
    print(json.dumps({"command": command, **figures}, indent=1))


if __name__ == "__main__":
    main()
