"""Kills processes of a federation over NVIDIA FLARE at random moments, and compares with the run without kills.

    python tests/federation/fault_campaign.py --cases 50 --seed 0 --out benchmarks/federation_faults.json

Server, two sites and lead are the commands of the command line, in processes of their own on this machine. A case kills
(SIGKILL) one of: a job process of a site or of the server, the engine's process of a site or of the server, the command
of the lead, or a command with all of its processes at once, as when a machine of a site or of the server loses its
power. The commands of server and sites start their processes again; the campaign starts commands again. A run has
several cases, each a random time after the one before, so that a case can also interrupt a recovery. The cases of a run
pass if the digests of the server's states and the bytes of the sites' models equal those of the first run, which is not
disturbed. The file is written after every run; if it exists, the campaign continues after its cases. Needs the extra
``nvflare``.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import psutil

from resolvent.comparisons.runs.record import read_record
from resolvent.federation.engines.processes import free_port

SITES = ("aachen", "berlin")
# What is killed; "machine" is a command with all of its processes.
TARGETS = ("worker", "server worker", "site", "server", "lead", "site machine", "server machine")
MARKS = {"worker": "worker_process", "server worker": "runner_process", "site": "client_train",
         "server": "server_train"}
LONGEST_PAUSE = 0.6  # as a share of the time of a run without kills
LIMIT = 900  # seconds for a run and for each of its kills
RESOLVENT = str(Path(sys.executable).parent / "resolvent")
EXPERIMENT = """
data: {label: ill, test: 0.3}
model: logistic
solver: {name: SGD, learning_rate: 0.1, batch_size: 10, epochs: 1}
algorithms: {Scaffold: scaffold, FedAvg+: fedavg_plus}
rounds: 15
evaluate_every: 15
"""


class Kill(NamedTuple):
    """A process that is killed.

    Attributes:
        target: what is killed.
        site: the site whose process it is; not used by the other targets.
        pause: time after the kill before, or after the start of the run, as a share of the time of a run without kills.
    """

    target: str
    site: str
    pause: float


class Campaign:
    """A federation whose processes can be killed."""

    def __init__(self, folder, stack):
        self.folder, self.commands, self.stack = folder, {}, stack
        (folder / "consortium.yaml").write_text(
            f"name: faults\nhost: localhost\nport: {free_port()}\nsites: {[*SITES]}\nlead: lead@example.org\n")
        (folder / "mine.yaml").write_text(EXPERIMENT)
        rng = np.random.default_rng(0)
        for site, rows in zip(SITES, (30, 50), strict=True):
            age = rng.normal(50, 12, rows)
            frame = pd.DataFrame({"age": age, "ward": rng.choice(["east", "west"], rows),
                                  "ill": np.where(age + rng.normal(0, 5, rows) > 50, "yes", "no")})
            frame.to_csv(folder / f"{site}.csv", index=False)
            (folder / f"{site}.yaml").write_text(
                f"table: {site}.csv\nlimits: {{min_sites: 2, min_rows: 10, max_parameters_per_row: null}}\n")
        subprocess.run([RESOLVENT, "lead", "kits", "consortium.yaml"], cwd=folder, check=True, timeout=600)
        self.start("server")
        for site in SITES:
            self.start(site)

    def start(self, name):
        """Start the command of the server or of a site."""
        kit = f"kits/{name}"
        words = ("lead", "serve", kit) if name == "server" else ("site", "start", kit, f"{name}.yaml")
        log = self.stack.enter_context((self.folder / "commands.log").open("a"))
        process = subprocess.Popen([RESOLVENT, *words], cwd=self.folder, stdout=log, stderr=subprocess.STDOUT)
        self.stack.callback(process.wait, 30)
        self.stack.callback(process.send_signal, signal.SIGTERM)
        self.commands[name] = process

    def lead(self, out):
        log = self.stack.enter_context((self.folder / f"{out}.log").open("a"))
        return subprocess.Popen([RESOLVENT, "lead", "start", "mine.yaml", "kits/lead@example.org", "--out",
                                 out],
                                cwd=self.folder, stdout=log, stderr=subprocess.STDOUT)

    def kill(self, target, lead, site):
        """Kill a process, or all processes of a command; returns whether there was one."""
        if target == "lead":
            victims = [lead.pid] if lead.poll() is None else []
        elif target.endswith("machine"):
            command = psutil.Process(self.commands["server" if target == "server machine" else site].pid)
            victims = [command.pid, *(process.pid for process in command.children(recursive=True))]
        else:
            victims = self.pids(target, "server" if target.startswith("server") else site)[:1]
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if target.endswith("machine"):
            name = "server" if target == "server machine" else site
            self.commands[name].wait(600)
            self.start(name)
        return bool(victims)

    def pids(self, target, name):
        """The processes of a participant's kit with the mark of a target."""
        kit = str(self.folder / "kits" / name)
        lines = ((process.pid, " ".join(process.info["cmdline"] or []))
                 for process in psutil.process_iter(["cmdline"]))
        return [pid for pid, line in lines if kit in line and MARKS[target] in line]

    def run(self, out, kills=(), undisturbed=0.0):
        """Run the experiment with kills; returns for each kill whether there was such a process.

        The last kills are missing if the run was complete before them.
        """
        lead, outcomes, moment, limit = self.lead(out), [], time.monotonic(), LIMIT * (1 + len(kills))
        start = moment
        while not (self.folder / out / "summary.json").exists():
            assert time.monotonic() - start < limit, f"{out} is not complete after {limit} s; see {self.folder}"
            if len(outcomes) < len(kills) and time.monotonic() - moment > kills[len(outcomes)].pause * undisturbed:
                kill = kills[len(outcomes)]
                outcomes.append(self.kill(kill.target, lead, kill.site))
                moment = time.monotonic()
            if lead.poll() is not None and not (self.folder / out / "summary.json").exists():
                lead = self.lead(out)
            time.sleep(0.1)
        lead.wait(600)
        return outcomes

    def outcome(self, out, before):
        """Digests of the server's states, and the bytes of the models of both sites."""
        digests = [m["digest"] for m in read_record(self.folder / out).plain()["methods"].values()]
        models = []
        for site in SITES:
            (run,) = {p.parent for p in (self.folder / "kits" / site / "runs").glob("*/encoding.json")} - before
            models += [p.read_bytes() for p in sorted(run.glob("models/*/parties.safetensors"))]
        return digests, models

    def runs(self):
        return {p for site in SITES for p in (self.folder / "kits" / site / "runs").glob("*") if p.is_dir()}


def summary(options, undisturbed, runs):
    """The outcome of the runs so far, and the number of cases by what was killed."""
    cases = [case for run in runs for case in run["cases"]]
    return {"command": f"python tests/federation/fault_campaign.py --cases {options.cases} --seed {options.seed}",
            "rounds": "2 methods, 15 rounds each, 2 sites", "seconds without kill": undisturbed,
            "cases": len(cases), "runs": len(runs), "runs with another result": sum(not run["same"] for run in runs),
            "cases by target": {target: sum(case["target"] == target for case in cases) for target in TARGETS},
            "cases without such a process": sum(not case["killed"] for case in cases),
            "median seconds of a run": statistics.median(run["seconds"] for run in runs),
            "single runs": runs}


def draw_kills(options):
    """All kills of the campaign."""
    rng = random.Random(options.seed)
    draws = [(rng.choice(SITES), rng.random()) for _ in range(options.cases)]
    return [Kill(TARGETS[number % len(TARGETS)], site, share * LONGEST_PAUSE)
            for number, (site, share) in enumerate(draws)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases-per-run", type=int, default=5)
    parser.add_argument("--out", type=Path, help="a JSON file for the outcome")
    parser.add_argument("--folder", type=Path, help="a folder for kits, runs and logs, which stays; default: temporary")
    options = parser.parse_args()
    runs = json.loads(options.out.read_text())["single runs"] if options.out and options.out.exists() else []
    with ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        campaign, start = Campaign(folder, stack), time.monotonic()
        campaign.run("whole")
        whole = campaign.outcome("whole", set())
        undisturbed = round(time.monotonic() - start, 1)
        print(f"the run without kills is complete, {undisturbed} s", flush=True)
        kills = draw_kills(options)[sum(len(run["cases"]) for run in runs):]
        while kills:
            before, start, out = campaign.runs(), time.monotonic(), f"run-{len(runs)}"
            outcomes = campaign.run(out, kills[:options.cases_per_run], undisturbed)
            is_same, seconds = campaign.outcome(out, before) == whole, round(time.monotonic() - start, 1)
            cases = [{"target": kill.target, "site": kill.site, "pause": round(kill.pause * undisturbed, 1),
                      "killed": killed} for kill, killed in zip(kills, outcomes, strict=False)]
            kills = kills[len(cases):]
            undisturbed = undisturbed if cases else seconds  # the machine has become faster
            runs.append({"seconds": seconds, "same": is_same, "cases": cases})
            print(f"run {len(runs)}: {runs[-1]}", flush=True)
            if options.out is not None:
                options.out.write_text(json.dumps(summary(options, undisturbed, runs), indent=2) + "\n")
    wrong = sum(not run["same"] for run in runs)
    print(f"{sum(len(run['cases']) for run in runs)} cases in {len(runs)} runs; {wrong} runs with another result")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
