"""What a federation goes through, over NVIDIA FLARE and Flower: each case is a line of the page on operations."""

import os
import shutil
import signal
import subprocess
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from federation.typed_commands import ENGINES, SITES, Federation, frozen, kill_all, table
from resolvent.comparisons.runs.record import read_record
from resolvent.federation.protocol.kits import kit_note

pytestmark = [pytest.mark.nightly, ENGINES]
EXPERIMENT = """
title: Readmission within 30 days
data: {label: readmitted, features: [age, ward]}
model: logistic
solver: {name: SGD, learning_rate: 0.1, batch_size: 10, epochs: 1}
algorithms: {FedAvg: fedavg}
rounds: 60
evaluate_every: 60
"""
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")  # of Debian's package faketime


def prepare_site(parts, k, site):
    """The table and the file of a site."""
    table(k).to_csv(parts.folder / site / "patients.csv", index=False)
    parts.run(site, "site", "new", "patients.csv", "--set", "limits.min_sites=2",
              "--set", f"approval={{leads: [{parts.lead}]}}")


@contextmanager
def federation_of(folder, engine, sites, experiment=EXPERIMENT, later=()):
    """A server that runs, and sites that do not; some are added later."""
    with ExitStack() as stack:
        parts = Federation(folder, engine, stack, sites, experiment)
        for k, site in enumerate(sites):
            prepare_site(parts, k, site)
        parts.serve((*sites, *later))
        yield parts


@pytest.fixture(scope="module")
def federation(engine, tmp_path_factory):
    with federation_of(tmp_path_factory.mktemp(engine), engine, SITES) as parts:
        parts.processes = {site: parts.start_site(site) for site in SITES[:2]}
        yield parts


def begin(federation, out, *words):
    """Start the lead's command with all sites, and wait until the run has done some rounds."""
    for site in {*SITES} - {*federation.processes}:
        federation.processes[site] = federation.start_site(site)
    before = {*federation.runs.glob("*")}
    process = federation.begin(out, *words)
    federation.wait_for(lambda: {*federation.runs.glob("*")} - before and 5 <= len(federation.rounds()) < 50)
    return process


def test_a_site_that_is_started_late_takes_part(federation):
    process = federation.begin("runs/late")
    federation.wait_for(lambda: "waiting for celle" in federation.said() or "celle" in federation.said())
    federation.processes["celle"] = federation.start_site("celle")
    code, said = federation.outcome(process)
    assert code == 0, said
    assert read_record(federation.folder / "lead" / "runs" / "late").data.parties == list(SITES)


def test_a_site_joins_between_two_rounds(federation):
    # With NVIDIA FLARE the job goes on until the second command ends it.
    rounds = 400 if federation.engine == "nvflare" else 20
    longer = ["--set", f"rounds={rounds}", "--set", f"evaluate_every={rounds}"]
    process = begin(federation, "runs/joins", *longer, "--sites", "aachen", "berlin")
    process.send_signal(signal.SIGINT)
    federation.outcome(process)
    code, said = federation.outcome(federation.begin("runs/joins", *longer, "--sites", *SITES))
    assert code == 0, said
    record = federation.rounds()
    assert len(record) == rounds
    assert record[0]["counted"] == [0, 1]
    assert record[-1]["counted"] == [0, 1, 2]


def test_the_command_of_the_lead_is_killed(federation):
    """It is started again, and no site has to be."""
    process = begin(federation, "runs/killed")
    kill_all(process)
    code, said = federation.outcome(federation.begin("runs/killed"))
    assert code == 0, said
    assert len(federation.rounds()) == 60


def test_a_frozen_site_is_named_within_its_deadline(federation):
    """The connection of the lead stays, what it has shown is not shown again, and the run continues afterwards."""
    process = begin(federation, "runs/frozen", "--set", "federation.deadline=15", "federation.retries=1")
    with frozen(federation.processes["berlin"]):
        code, said = federation.outcome(process, 300)
    assert code != 0
    assert "berlin: no answer" in said
    assert said.count("the sites agree on") == 1
    assert "connection to the server is lost" not in said
    code, said = federation.outcome(federation.begin("runs/frozen"))
    assert code == 0, said
    assert len(federation.rounds()) == 60


def test_a_disk_that_is_full_in_the_middle(federation):
    """The disk of a site is a small file system in memory, for which the test needs the rights of root."""
    if os.geteuid():
        pytest.skip("mounting a file system needs the rights of root")
    runs = federation.folder / "berlin" / "kit" / "runs"
    runs.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", runs], check=True)
    federation.stack.callback(subprocess.run, ["umount", "--lazy", str(runs)], check=False)
    filler = runs / "filler"
    process = begin(federation, "runs/full", "--set", "federation.retries=0")
    subprocess.run(["dd", "if=/dev/zero", f"of={filler}", "bs=4k"], check=False, capture_output=True)
    code, said = federation.outcome(process)
    assert code != 0
    assert "berlin: refused (storage)" in said
    filler.unlink()
    code, said = federation.outcome(federation.begin("runs/full"))
    assert code == 0, said
    assert len(federation.rounds()) == 60


def test_a_site_that_never_returns(federation):
    """Its machine is lost in the middle: a run with a quorum is completed by the others."""
    process = begin(federation, "runs/lost", "--set", "federation.quorum=2", "federation.grace=1",
                    "federation.deadline=20")
    kill_all(federation.processes.pop("celle"))
    code, said = federation.outcome(process, 1200)
    assert code == 0, said
    rounds = federation.rounds()
    assert rounds[2]["counted"] == [0, 1, 2]
    assert rounds[-1]["counted"] == [0, 1]


def test_kits_of_a_machine_whose_clock_is_an_hour_ahead(engine, tmp_path):
    """Certificates of NVIDIA FLARE are valid from the moment on, those for Flower from an hour before."""
    if not FAKETIME.exists():
        pytest.skip("libfaketime is not installed")
    ahead = {"LD_PRELOAD": str(FAKETIME), "FAKETIME": "+59m", "DONT_FAKE_MONOTONIC": "1"}
    with ExitStack() as stack:
        parts = Federation(tmp_path, engine, stack, made_with=ahead)
        if engine == "flower":
            assert kit_note(parts.lead_kit, "person").name == parts.lead
        else:
            assert "correct the clock" in parts.run("server", "lead", "serve", "kit", fails=True)


def test_a_site_is_added_while_the_server_runs(engine, tmp_path_factory):
    """Nothing is copied into the kit of the server."""
    with federation_of(tmp_path_factory.mktemp(f"{engine}-added"), engine, SITES[:2],
                       EXPERIMENT.replace("60", "2"), later=SITES[2:]) as parts:
        for site in SITES[:2]:
            parts.start_site(site)
        file, kits = parts.folder / "lead" / "consortium.yaml", parts.folder / "lead" / "kits"
        file.write_text(file.read_text().replace("aachen, berlin", ", ".join(SITES)))
        parts.run("lead", "lead", "kits", "consortium.yaml")
        shutil.copytree(kits / "celle", parts.folder / "celle" / "kit")
        prepare_site(parts, 2, "celle")
        parts.start_site("celle")
        code, said = parts.outcome(parts.begin("runs/added"))
        assert code == 0, said
        assert read_record(parts.folder / "lead" / "runs" / "added").data.parties == list(SITES)


def test_twenty_sites(engine, tmp_path_factory):
    sites = tuple(f"site-{k:02d}" for k in range(20))
    few = EXPERIMENT.replace("60", "5")
    with federation_of(tmp_path_factory.mktemp(f"{engine}-20"), engine, sites, few) as parts:
        for site in sites:
            parts.start_site(site)
        code, said = parts.outcome(parts.begin("runs/twenty"), 1800)
        assert code == 0, said
        rounds = parts.rounds()
        assert len(rounds) == 5
        assert all(len(entry["counted"]) == 20 for entry in rounds)
        gains = np.array([len(entry["norms"]) for entry in rounds])
        assert (gains == 20).all()
