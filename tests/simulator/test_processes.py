"""Several processes run one federation: what each has, who writes, and what happens when one of them ends."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from on_devices import FEDERATION, digits, federation, values_of

import resolvent as rv
from resolvent.cli import processes
from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.comparisons.runs.comparison_runs import compare_file
from resolvent.data.files.own_rows import keep_parties
from resolvent.simulator import mesh as connections
from resolvent.simulator.checkpoint.identity import fingerprint_of
from resolvent.simulator.storage.shard_storage import assign_parties
from resolvent.simulator.storage.tree_files import BlockedLeaf, digest, digest_of_array, read_tree, write_tree

SCRIPT = Path(__file__).parent / "on_devices.py"


def start(number, port, folder):
    """A process as Open MPI starts it: JAX computes the port from the number of the job."""
    job = (port - 61440) << 12
    environment = {"PJRT_NPROC": "1", "OMPI_MCA_orte_hnp_uri": f"{job}.0;tcp://127.0.0.1:1",
                   "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": str(number),
                   "OMPI_COMM_WORLD_LOCAL_RANK": str(number)}
    return subprocess.Popen([sys.executable, SCRIPT, "process", str(number), folder], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=os.environ | environment)


def free_port():
    for port in range(61440, 65536):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port
    raise AssertionError("all ports are in use")


@pytest.mark.nightly
@pytest.mark.devices
def test_two_processes_run_one_federation(tmp_path):
    """They continue from the checkpoint of one process, and one process continues from theirs."""
    with jax.enable_x64(True):
        federation(rounds=2, checkpoint=tmp_path / "of one process")
        port = free_port()
        first, second = started = [start(number, port, tmp_path) for number in (0, 1)]
        try:
            outputs = [process.communicate(timeout=600)[0] for process in started]
        finally:
            for process in started:
                process.kill()
        assert (first.returncode, second.returncode) == (0, -signal.SIGKILL), "\n".join(outputs)
        facts = [json.loads((tmp_path / f"{number}.json").read_text()) for number in (0, 1)]
        assert [fact.pop("wrote") for fact in facts] == [True, False]
        data = digits()
        assert sum(fact.pop("rows") for fact in facts) == len(data.x)
        # Each process has about half of the samples, in float64, in the arrays of all of its runs.
        assert all(size < 0.7 * data.x.size * 8 for fact in facts for size in fact.pop("bytes"))
        assert facts[0] == facts[1]

        uninterrupted = values_of(federation())
        np.testing.assert_allclose(facts[0]["values"], uninterrupted, rtol=1e-9, atol=1e-11)
        shutil.rmtree(tmp_path / "written by 0.parties", ignore_errors=True)
        continued = federation(checkpoint=tmp_path / "written by 0", resume=True)
        np.testing.assert_allclose(values_of(continued), uninterrupted, rtol=1e-9, atol=1e-11)
    assert "another process of this run has ended" in json.loads((tmp_path / "lost.json").read_text())
    rows = pd.read_parquet(tmp_path / "out" / "test_rows.parquet")
    expected = compare_file(ExperimentFile.parse(FEDERATION, "one.yaml", "one")).rows
    assert rows["row"].tolist() == expected.row.tolist()
    np.testing.assert_allclose(rows["value run"], expected.values["run"], rtol=1e-9, atol=1e-11)
    np.testing.assert_array_equal(rows["value majority class"], expected.values["majority class"])
    metrics = pd.read_parquet(tmp_path / "out" / "metrics.parquet")
    by_command = metrics["value"][~metrics["metric"].str.endswith("roc_auc")]
    np.testing.assert_allclose(by_command, facts[0]["values"][-len(by_command):], rtol=1e-9, atol=1e-11)


def test_every_device_has_parties_and_about_the_same_number_of_samples():
    samples = np.round(1000 * np.random.default_rng(0).pareto(1.5, 200)).astype(np.int64)
    for devices in (1, 2, 7):
        assigned = assign_parties(samples, devices)
        loads = np.bincount(assigned, samples, devices)
        # Graham: Bounds on Multiprocessing Timing Anomalies, 1969, Theorem 2.
        assert loads.max() <= 4 / 3 * max(samples.max(), samples.sum() / devices)
    assert sorted(assign_parties(np.array([5, 0, 0]), 3).tolist()) == [0, 1, 2]


def test_data_of_own_parties_have_the_identity_of_all():
    data = digits()
    local = keep_parties(data, np.array([1, 3]), (digest_of_array(data.x), digest_of_array(data.y)))
    assert fingerprint_of(local) == fingerprint_of(data)
    assert local.input_shape == data.input_shape
    for k in (1, 3):
        for split in ("train", "validation", "test"):
            for part, original in zip(local.party(k, split), data.party(k, split), strict=True):
                np.testing.assert_array_equal(part, original)
    with pytest.raises(rv.InputError, match="belong to a party of another process"):
        local.party(2)


class Halves(BlockedLeaf):
    """An array in two blocks."""

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def blocks(self):
        half = len(self.array) // 2
        return iter([self.array[:half], self.array[half:]])

    def from_blocks(self, read):
        return Halves(np.concatenate([read(0, 1), read(1, len(self.array))]))


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.bool_, jnp.bfloat16])
def test_tree_in_blocks_is_the_same_file_and_has_the_same_digest(tmp_path, dtype):
    array = np.arange(15).reshape(5, 3).astype(dtype)
    whole, blocked = {"a": np.ones(2), "b": array}, {"a": np.ones(2), "b": Halves(array)}
    assert digest(blocked) == digest(whole)
    write_tree(tmp_path / "blocks", blocked)
    with jax.enable_x64(True):
        read = read_tree(tmp_path / "blocks", whole)
    np.testing.assert_array_equal(read["b"], array)
    write_tree(tmp_path / "whole", whole)
    np.testing.assert_array_equal(read_tree(tmp_path / "whole", blocked)["b"].array, array)


PROGRAM = """
import os, sys, time
number, action = int(os.environ["RESOLVENT_PROCESS"].split("/")[0]), sys.argv[1]
if number == 1 and action == "kill":
    os.kill(os.getpid(), 9)
if number == 1 and action == "fail":
    sys.exit("what went wrong")
if number == 0 and action == "refuse":
    sys.exit(2)
if action != "succeed":
    time.sleep(3600)
"""


@pytest.mark.parametrize(("action", "code", "message"), [
    ("succeed", 0, ""),
    ("refuse", 2, ""),  # the first process has printed why
    ("kill", 3, "process 2 of 3 was ended by SIGKILL; the others were stopped. Continue, with any number of processes: "
                "resolvent kill --resume"),
    ("fail", 1, "what went wrong\nerror: process 2 of 3 has ended with exit code 1; the others were stopped"),
])
def test_process_that_fails_ends_the_others(action, code, message, monkeypatch, capsys):
    monkeypatch.setattr(processes, "_COMMAND", (sys.executable, "-S", "-E", "-c", PROGRAM))
    monkeypatch.setattr(sys, "argv", ["resolvent", action])
    assert processes.run_in_processes(3) == code
    printed = capsys.readouterr().err
    assert message in printed
    assert bool(printed) == bool(message)


def test_number_of_processes_is_positive():
    with pytest.raises(rv.InputError, match="--processes 0 must be at least 1"):
        processes.run_in_processes(0)


def test_a_process_of_a_cluster_that_cannot_connect(monkeypatch, capsys):
    """Without a cluster, and with a process that is missing."""
    def connect():
        released.wait(600)
        raise ValueError("coordinator_address should be defined.")

    released = threading.Event()
    monkeypatch.setenv("SLURM_PROCID", "3")
    monkeypatch.setattr(processes, "_PATIENCE", 0.01)
    monkeypatch.setattr(connections, "connect", connect)
    monkeypatch.setattr(processes, "print", lambda *args, **options: [print(*args, **options), released.set()],
                        raising=False)
    with pytest.raises(rv.InputError, match=r"cluster: .* neither Slurm nor Open MPI .* start the command with srun"):
        processes.connect_processes("cluster")
    assert "process 3 has waited 0.01 seconds" in capsys.readouterr().err
