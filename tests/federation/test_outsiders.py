"""The tutorial of three hospitals as it is typed, and attacks with its commands, over NVIDIA FLARE and Flower.

Every participant has a folder of its own and the default limits. The lead of the attacks has a valid kit and signs the
plans; two sites run the plans of this lead without a person, so that only the limits are between the plan and the rows.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import resolvent
from resolvent.comparisons.runs.summary import read_summary
from resolvent.federation.engines.processes import free_port

pytestmark = [pytest.mark.nightly, pytest.mark.parametrize("engine", [
    pytest.param(name, marks=pytest.mark.skipif(find_spec(module) is None, reason=f"{module} is not installed"))
    for name, module in (("nvflare", "nvflare"), ("flower", "flwr"))], scope="module")]
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

    def __init__(self, folder, engine, stack):
        self.folder, self.stack, self.engine = folder, stack, engine
        self.lead = "lead@example.org" if engine == "nvflare" else "server"
        self.env = {**os.environ, "PYTHONPATH": str(Path(resolvent.__file__).parents[1])}
        for name in ("lead", "server", *SITES):
            (folder / name).mkdir()
        (folder / "lead" / "consortium.yaml").write_text(
            f"name: hearts\nhost: localhost\nport: {free_port()}\nsites: [{', '.join(SITES)}]\n"
            f"lead: lead@example.org\nengine: {engine}\n")
        (folder / "lead" / "mine.yaml").write_text(EXPERIMENT)
        self.run("lead", "federation", "new", "consortium.yaml")
        for name in ("server", *SITES):  # with Flower the lead works on the machine of the server
            shutil.copytree(folder / "lead" / "kits" / name, folder / name / "kit")
        lead_kit = folder / "lead" / "kits" / self.lead
        self.lead_kit = lead_kit if engine == "nvflare" else folder / "server" / "kit"

    def command(self, *words):
        return [sys.executable, "-m", "resolvent.cli", *map(str, words)]

    def run(self, name, *words, fails=False):
        """What a command prints."""
        done = subprocess.run(self.command(*words), cwd=self.folder / name, env=self.env, capture_output=True,
                              text=True, timeout=600, stdin=subprocess.DEVNULL, check=False)
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return " ".join((done.stdout + done.stderr).split())

    def start(self, name, *words):
        """Start a command that stays until the end of the tests."""
        log = self.stack.enter_context((self.folder / f"{name}.log").open("a"))
        process = subprocess.Popen(self.command(*words), cwd=self.folder / name, env=self.env, stdout=log,
                                   stderr=subprocess.STDOUT)
        self.stack.callback(process.wait, 60)
        self.stack.callback(process.send_signal, signal.SIGTERM)

    def federate(self, out, *changes, fails=False):
        """What the lead's command prints."""
        words = [word for change in changes for word in ("--set", change)]
        return self.run("lead", "federate", "mine.yaml", "--kit", self.lead_kit, "--out", out, *words, fails=fails)

    def answers(self, site):
        """The answers of a site about its table, oldest first."""
        lines = (self.folder / site / "kit" / "runs" / "sent.jsonl").read_text().splitlines()
        return [entry["content"] for entry in map(json.loads, lines) if entry["kind"] == "describe"]


@pytest.fixture(scope="module")
def federation(engine, tmp_path_factory):
    with ExitStack() as stack:
        parts = Federation(tmp_path_factory.mktemp(engine), engine, stack)
        for k, site in enumerate(SITES):
            table(k).to_csv(parts.folder / site / "patients.csv", index=False)
            rule = () if site == "celle" else ("--set", f"approval={{leads: [{parts.lead}]}}")
            parts.run(site, "party", "new", "--table", "patients.csv", *rule)
        shutil.copy(parts.folder / "lead" / "mine.yaml", parts.folder / "aachen")
        shown = parts.run("aachen", "party", "check", "--kit", "kit", "--site", "site.yaml", "--experiment",
                          "mine.yaml")
        assert shown.endswith("Nothing has left the site.")
        parts.start("server", "server", "start", "--kit", "kit")
        for site in SITES:
            parts.start(site, "party", "start", "--kit", "kit", "--site", "site.yaml")
        yield parts


def test_the_tutorial_is_typed_with_an_approval(federation):
    """Celle decides about each plan; the run waits for it, and is complete afterwards."""
    waiting = federation.federate("runs/hearts", fails=True)
    assert "celle: refused (waits for approval)" in waiting
    assert not (federation.folder / "celle" / "kit" / "runs" / "table.versions").exists()
    shown = federation.run("celle", "party", "plans", "--kit", "kit")
    plan = shown.partition(": waiting")[0].rpartition(" ")[2]
    assert len(plan) == 12
    federation.run("celle", "party", "approve", plan[:6], "--kit", "kit")
    federation.federate("runs/hearts")
    summary = read_summary(federation.folder / "lead" / "runs" / "hearts")
    assert summary["data"]["parties"] == list(SITES)
    (run,) = (p.parent for p in (federation.folder / "berlin" / "kit" / "runs").glob("*/encoding.json"))
    shutil.copy(federation.folder / "berlin" / "patients.csv", federation.folder / "berlin" / "new_patients.csv")
    federation.run("berlin", "predict", run, "new_patients.csv", "--method", "FedAvg", "--site", "berlin")
    assert len(pd.read_csv(federation.folder / "berlin" / "predictions.csv")) == 90
    used = "6 rounds, 6 replies, 1 jobs, 4 evaluations"
    assert used in federation.run("berlin", "party", "ledger", "--kit", "kit", "--out", "ledger.html")
    assert "<script" not in (federation.folder / "berlin" / "ledger.html").read_text()


def test_other_splits_and_seeds_have_the_first_answer(federation):
    """The differences of the answers of a site are zero."""
    for number, change in enumerate(("data.test=0.3025", "seed=7")):
        assert "celle: refused (waits for approval)" in federation.federate(f"runs/split-{number}", change, fails=True)
    for site in ("aachen", "berlin"):
        answers = [answer for answer in federation.answers(site) if "refused" not in answer]
        assert len(answers) >= 3
        assert all(answer == answers[0] for answer in answers)


@pytest.mark.parametrize(("changes", "reason"), [
    (["solver.batch_size=1"], "limits"),
    (["solver={name: SGD, learning_rate: 0.0001, batch_size: 6, steps: 1}"], "limits"),
    (["data.label=name", "data.exclude=[notes]"], "rare"),
    (["data.features=[notes]", "data.exclude=null"], "column not allowed"),
    (["model={name: mlp, width: 64}"], "limits")], ids=["one row", "a small step", "names", "notes", "a large model"])
def test_what_describes_single_rows_stays_at_the_sites(changes, reason, federation):
    said = federation.federate(f"runs/attack-{abs(hash(tuple(changes)))}", *changes, fails=True)
    if "model" not in changes[0]:
        assert f"aachen: refused ({reason})" in said
        assert f"berlin: refused ({reason})" in said
    for site in SITES:
        runs = federation.folder / site / "kit" / "runs"
        sent = b"".join(path.read_bytes() for path in runs.rglob("sent.jsonl"))
        assert b"Name " not in sent
        assert b"note " not in sent
