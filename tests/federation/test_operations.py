"""What a federation goes through, over NVIDIA FLARE and Flower: each case is a line of the page on operations."""

import os
import signal
import subprocess
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from federation.typed_commands import ENGINES, SITES, Federation, kill_all, table
from resolvent.comparisons.runs.summary import read_summary

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


@contextmanager
def federation_of(folder, engine, sites, experiment=EXPERIMENT):
    """A server that runs, and sites that do not."""
    with ExitStack() as stack:
        parts = Federation(folder, engine, stack, sites, experiment)
        for k, site in enumerate(sites):
            table(k).to_csv(parts.folder / site / "patients.csv", index=False)
            parts.run(site, "party", "new", "--table", "patients.csv", "--set", "limits.min_sites=2",
                      "--set", f"approval={{leads: [{parts.lead}]}}")
        parts.start("server", "server", "start", "--kit", "kit")
        yield parts


@pytest.fixture(scope="module")
def federation(engine, tmp_path_factory):
    with federation_of(tmp_path_factory.mktemp(engine), engine, SITES) as parts:
        parts.processes = {site: parts.start_site(site) for site in SITES[:2]}
        yield parts


def begin(federation, out, *words):
    """Start the lead's command, and wait until the run has done some rounds."""
    runs = federation.folder / "server" / "kit" / "runs"
    before = {*runs.iterdir()} if runs.exists() else set()
    process = federation.begin(out, *words)
    federation.wait_for(lambda: {*runs.iterdir()} - before and 5 <= len(federation.rounds()) < 50)
    return process


def test_a_site_that_is_started_late_takes_part(federation):
    process = federation.begin("runs/late")
    federation.wait_for(lambda: "waiting for celle" in federation.said() or "celle" in federation.said())
    federation.processes["celle"] = federation.start_site("celle")
    code, said = federation.outcome(process)
    assert code == 0, said
    assert read_summary(federation.folder / "lead" / "runs" / "late")["data"]["parties"] == list(SITES)


def test_a_site_joins_between_two_rounds(federation):
    longer = ["--set", "rounds=400", "--set", "evaluate_every=400"]  # the job goes on until the second command ends it
    process = begin(federation, "runs/joins", *longer, "--sites", "aachen", "berlin")
    process.send_signal(signal.SIGINT)
    federation.outcome(process)
    code, said = federation.outcome(federation.begin("runs/joins", *longer, "--sites", *SITES))
    assert code == 0, said
    rounds = federation.rounds()
    assert len(rounds) == 400
    assert rounds[0]["counted"] == [0, 1]
    assert rounds[-1]["counted"] == [0, 1, 2]


def test_a_disk_that_is_full_in_the_middle(federation):
    """The disk of a site is a small file system in memory, for which the test needs the rights of root."""
    if os.geteuid():
        pytest.skip("mounting a file system needs the rights of root")
    runs = federation.folder / "berlin" / "kit" / "runs"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", runs], check=True)
    federation.stack.callback(subprocess.run, ["umount", "--lazy", str(runs)], check=False)
    filler = runs / "filler"
    process = begin(federation, "runs/full", "--retries", "0")
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
    process = begin(federation, "runs/lost", "--quorum", "2", "--grace", "1", "--deadline", "20")
    kill_all(federation.processes["celle"])
    code, said = federation.outcome(process, 1200)
    assert code == 0, said
    rounds = federation.rounds()
    assert rounds[2]["counted"] == [0, 1, 2]
    assert rounds[-1]["counted"] == [0, 1]


@pytest.mark.parametrize("offset", ["+1h", "-1h"])
def test_a_clock_that_is_an_hour_off(offset, federation):
    """Without libfaketime there is no such site. Durations are those of the machine's monotonic clock."""
    if not FAKETIME.exists():
        pytest.skip("libfaketime is not installed")
    federation.processes["berlin"].send_signal(signal.SIGTERM)
    federation.processes["berlin"].wait(60)
    federation.processes["berlin"] = federation.start_site(
        "berlin", LD_PRELOAD=str(FAKETIME), FAKETIME=offset, FAKETIME_DONT_FAKE_MONOTONIC="1", DONT_FAKE_MONOTONIC="1")
    out = f"runs/clock{offset}"
    code, said = federation.outcome(federation.begin(out, "--sites", "aachen", "berlin"), 400)
    print(engine := federation.engine, offset, code, said[-2000:])
    assert (code == 0) == (engine == "nvflare"), said


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
