"""Kills processes of a federation over NVIDIA FLARE at random moments, and compares with the run without kills.

    python tests/deploy/fault_campaign.py --cases 50 --seed 0

Server, two sites and lead are the commands of the command line, in processes of their own on this machine. A case kills
(SIGKILL) one of: a job process of a site or of the server, the engine's process of a site or of the server, the command
of the lead. The commands of server and sites start their processes again, the campaign starts the lead's command again.
A case passes if the digests of the server's states and the bytes of the sites' models equal those of the first run,
which is not disturbed. Needs the extra ``nvflare``.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pandas as pd
import psutil

from resolvent.study.federation_rehearsal import _free_port
from resolvent.study.summary import read_summary

SITES = ("aachen", "berlin")
TARGETS = ("worker", "server worker", "site", "server", "lead")
RESOLVENT = str(Path(sys.executable).parent / "resolvent")
EXPERIMENT = """
data: {label: ill, test: 0.3}
model: logistic
solver: {name: SGD, learning_rate: 0.1, batch_size: 10, epochs: 1}
algorithms: {Scaffold: scaffold, FedAvg+: fedavg_plus}
rounds: 15
evaluate_every: 15
"""


class Campaign:
    """A federation whose processes can be killed."""

    def __init__(self, folder, stack):
        self.folder = folder
        (folder / "consortium.yaml").write_text(
            f"name: faults\nhost: localhost\nport: {_free_port()}\nsites: {[*SITES]}\nlead: lead@example.org\n")
        (folder / "mine.yaml").write_text(EXPERIMENT)
        rng = np.random.default_rng(0)
        for site, rows in zip(SITES, (30, 50), strict=True):
            age = rng.normal(50, 12, rows)
            frame = pd.DataFrame({"age": age, "ward": rng.choice(["east", "west"], rows),
                                  "ill": np.where(age + rng.normal(0, 5, rows) > 50, "yes", "no")})
            frame.to_csv(folder / f"{site}.csv", index=False)
            (folder / f"{site}.yaml").write_text(f"table: {site}.csv\n")
        subprocess.run([RESOLVENT, "federation", "new", "consortium.yaml"], cwd=folder, check=True, timeout=120)
        self.start(stack, "server", "start", "--kit", "kits/server")
        for site in SITES:
            self.start(stack, "party", "start", "--kit", f"kits/{site}", "--site", f"{site}.yaml")

    def start(self, stack, *command):
        log = stack.enter_context((self.folder / "commands.log").open("a"))
        process = subprocess.Popen([RESOLVENT, *command], cwd=self.folder, stdout=log, stderr=subprocess.STDOUT)
        stack.callback(process.wait, 30)
        stack.callback(process.send_signal, signal.SIGTERM)
        return process

    def lead(self, out):
        log = (self.folder / f"{out}.log").open("a")
        return subprocess.Popen([RESOLVENT, "federate", "mine.yaml", "--kit", "kits/lead@example.org", "--out", out],
                                cwd=self.folder, stdout=log, stderr=subprocess.STDOUT)

    def victim(self, target, lead, site):
        """The id of the process to kill; None if there is none at the moment."""
        if target == "lead":
            return lead.pid if lead.poll() is None else None
        kit = str(self.folder / "kits" / ("server" if target.startswith("server") else site))
        marks = {"worker": "worker_process", "server worker": "runner_process", "site": "client_train",
                 "server": "server_train"}
        for process in psutil.process_iter(["cmdline"]):
            line = " ".join(process.info["cmdline"] or [])
            if kit in line and marks[target] in line:
                return process.pid
        return None

    def run(self, out, rng=None, limit=900):
        """Run the experiment, with one kill if there is a source of random numbers; returns what was killed."""
        lead, killed, end = self.lead(out), None, time.monotonic() + limit
        target, site = (rng.choice(TARGETS), rng.choice(SITES)) if rng else (None, None)
        moment = time.monotonic() + (rng.uniform(0, 40) if rng else 0)
        while not (self.folder / out / "summary.json").exists():
            assert time.monotonic() < end, f"{out} is not complete after {limit} s: {target}"
            if target and not killed and time.monotonic() > moment:
                pid = self.victim(target, lead, site)
                if pid is not None:
                    os.kill(pid, signal.SIGKILL)
                    killed = f"{target} {site if target in ('worker', 'site') else ''}"
            if lead.poll() is not None and not (self.folder / out / "summary.json").exists():
                lead = self.lead(out)
            time.sleep(0.2)
        lead.wait(60)
        return killed or f"{target}: there was nothing to kill"

    def outcome(self, out, before):
        """Digests of the server's states, and the bytes of the models of both sites."""
        digests = [m["digest"] for m in read_summary(self.folder / out)["methods"].values()]
        models = []
        for site in SITES:
            (run,) = {p for p in (self.folder / "kits" / site / "runs").iterdir() if p.is_dir()} - before
            models += [p.read_bytes() for p in sorted(run.glob("models/*/parties.safetensors"))]
        return digests, models

    def runs(self):
        return {p for site in SITES for p in (self.folder / "kits" / site / "runs").glob("*") if p.is_dir()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, wrong = random.Random(options.seed), 0
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        campaign = Campaign(Path(name), stack)
        campaign.run("whole")
        whole = campaign.outcome("whole", set())
        print("the run without kills is complete", flush=True)
        for case in range(options.cases):
            before, start = campaign.runs(), time.monotonic()
            killed = campaign.run(f"case-{case}", rng)
            is_same = campaign.outcome(f"case-{case}", before) == whole
            wrong += not is_same
            print(f"case {case}: {killed}: {'the same result' if is_same else 'ANOTHER RESULT'}, "
                  f"{time.monotonic() - start:.0f} s", flush=True)
    print(f"{options.cases} cases, {wrong} wrong")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
