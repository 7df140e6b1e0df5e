"""A federation as it is typed: the commands of lead, server and sites, each in its own folder, over an engine."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest

import resolvent
from federation.harness import left
from resolvent.federation.engines.flower.door import door_setting
from resolvent.federation.engines.flower.local import superlink_and_supernodes
from resolvent.federation.engines.processes import free_port
from signals import start_process

ENGINES = pytest.mark.parametrize("engine", [
    pytest.param(name, marks=pytest.mark.skipif(find_spec(module) is None, reason=f"{module} is not installed"))
    for name, module in (("nvflare", "nvflare"), ("flower", "flwr"))], scope="module")
SITES = ("aachen", "berlin", "celle")
EXPERIMENT = """
title: Readmission within 30 days
data: {label: readmitted, exclude: [name, notes]}
model: logistic
solver: {name: SGD, learning_rate: 0.1, batch_size: 10, epochs: 1}
algorithms:
  alone: local
  FedAvg: fedavg
rounds: 3
evaluate_every: 3
"""


def table(seed):
    """A hospital's table, with a column of names and one of notes."""
    rng = np.random.default_rng(seed)
    age = rng.normal(60, 12, 90)
    return pd.DataFrame({"age": age.round(3), "ward": rng.choice(["east", "west"], 90),
                         "name": [f"Name {seed}-{k}" for k in range(90)],
                         "notes": [f"note {seed}-{k}" for k in range(90)],
                         "readmitted": np.where(age + rng.normal(0, 9, 90) > 60, "yes", "no")})


class Federation:
    """The commands of lead, server and sites, each in its own folder."""

    def __init__(self, folder, engine, stack, sites=SITES, experiment=EXPERIMENT, made_with=()):
        self.folder, self.stack, self.engine, self.sites = folder, stack, engine, sites
        self.lead = "lead@example.org"
        self.env = {**os.environ, "PYTHONPATH": str(Path(resolvent.__file__).parents[1])}
        for name in ("lead", "server", *sites):
            (folder / name).mkdir()
        (folder / "lead" / "consortium.yaml").write_text(
            f"name: hearts\nhost: localhost\nport: {free_port()}\nsites: [{', '.join(sites)}]\n"
            f"lead: lead@example.org\nengine: {engine}\n")
        (folder / "lead" / "mine.yaml").write_text(experiment)
        self.run("lead", "lead", "kits", "consortium.yaml", env=dict(made_with))
        for name in ("server", *sites) if engine == "nvflare" else sites:
            shutil.copytree(folder / "lead" / "kits" / name, folder / name / "kit")
        self.lead_kit = folder / "lead" / "kits" / self.lead
        # Over Flower the lead makes the server's steps.
        self.runs = (folder / "server" / "kit" if engine == "nvflare" else self.lead_kit) / "runs"

    def serve(self, sites=()):
        """Start the server; over Flower a SuperLink, and the SuperNodes of these sites or of all."""
        if self.engine == "nvflare":
            self.start("server", "lead", "serve", "kit")
            return
        settings = {site: door_setting(self.folder / site / "kit") for site in sites or self.sites}
        self.stack.enter_context(superlink_and_supernodes(self.folder / "flower", "localhost", settings))
        self.env |= os.environ
        self.env["PYTHONPATH"] = str(Path(resolvent.__file__).parents[1])

    def command(self, *words):
        return [sys.executable, "-m", "resolvent.cli", *map(str, words)]

    def run(self, name, *words, fails=False, env=()):
        """What a command prints."""
        done = subprocess.run(self.command(*words), cwd=self.folder / name, env={**self.env, **dict(env)},
                              capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL, check=False)
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return " ".join((done.stdout + done.stderr).split())

    def start(self, name, *words, **env):
        """Start a command that stays until the end of the tests."""
        log = self.stack.enter_context((self.folder / f"{name}.log").open("a"))
        process = start_process(self.command(*words), cwd=self.folder / name, env={**self.env, **env}, stdout=log,
                                stderr=subprocess.STDOUT)
        self.stack.callback(process.wait, 60)
        self.stack.callback(process.send_signal, signal.SIGTERM)
        return process

    def start_site(self, name, **env):
        return self.start(name, "site", "start", "kit", "site.yaml", **env)

    def federate(self, out, *changes, fails=False):
        """What the lead's command prints."""
        words = [word for change in changes for word in ("--set", change)]
        return self.run("lead", "lead", "start", "mine.yaml", self.lead_kit, "--out", out, *words, fails=fails)

    def answers(self, site):
        """The answers of a site about its table, oldest first."""
        return [entry["content"] for entry in left(self.folder / site / "kit" / "runs") if entry["kind"] == "describe"]

    def begin(self, out, *words):
        """Start the lead's command, which the test ends or waits for with ``outcome``."""
        with (self.folder / "lead.log").open("w") as log:
            return start_process(self.command("lead", "start", "mine.yaml", self.lead_kit, "--out", out,
                                              *words),
                                 cwd=self.folder / "lead", env=self.env, stdout=log, stderr=subprocess.STDOUT,
                                 stdin=subprocess.DEVNULL)

    def outcome(self, process, seconds=600):
        """The exit code of the lead's command and what it has printed."""
        try:
            return process.wait(seconds), self.said()
        finally:
            process.kill()

    def said(self):
        return " ".join((self.folder / "lead.log").read_text().split())

    def wait_for(self, condition, seconds=300):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, self.said()
            time.sleep(0.1)

    def rounds(self):
        """The record of the rounds of the newest run, which has one method; the name of a run has its time."""
        record = max(self.runs.glob("*"), default=self.runs) / "stores" / "00" / "rounds.jsonl"
        lines = record.read_text().splitlines() if record.exists() else []
        return [entry for entry in map(json.loads, lines) if entry["event"] == "PhaseReport"]


def all_of(process):
    """A process and its children."""
    return [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]


def kill_all(process):
    """Kill a process and its children, as a machine that loses its power."""
    for each in all_of(process):
        each.kill()
    process.wait()


@contextmanager
def frozen(process):
    """Stop a process and its children during a block, as ``kill -STOP`` does: their connections stay open."""
    stopped = all_of(process)
    for each in stopped:
        each.suspend()
    try:
        yield
    finally:
        for each in stopped:
            with suppress(psutil.NoSuchProcess):
                each.resume()
