"""A run that is stopped or killed, and resumed, equals an uninterrupted run."""

import os
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest

from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.comparisons.runs.record import read_record
from resolvent.comparisons.runs.runner import run_experiment

pytestmark = pytest.mark.when_changed  # whole runs: each file would train its own at every commit

MANY = ["rounds=60", "evaluate_every=2"]

SECONDS = ("seconds_per_round", "compile_seconds", "evaluation_seconds")


def without_times(folder):
    """The summary without measured seconds and its digest; its metrics and experiment are whole."""
    summary = read_record(folder).plain()
    for method in summary["methods"].values():
        assert set(SECONDS) <= set(method)
        for key in SECONDS:
            del method[key]
    return summary


def stop(finished, folder):
    """Interrupt the run in this process while its third method runs."""
    def interrupt(label, done, total):
        if label == "FedProx 0" and 0 < done < total:
            raise KeyboardInterrupt

    (folder / "log.txt").touch()
    with pytest.raises(KeyboardInterrupt):
        run_experiment(ExperimentFile.load(str(finished.yaml), MANY), folder / "out", progress=interrupt)


def kill(finished, folder):
    """Run a process, and kill it while its third method runs."""
    command = [sys.executable, "-m", "resolvent.cli", "run", str(finished.yaml), "--out", "out", "--set", *MANY]
    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env={**os.environ, "COLUMNS": "120"})
        checkpoints = folder / "out.partial" / "checkpoints"
        end = time.monotonic() + 600
        while not list(checkpoints.glob("02/[0-9]*")):
            assert process.poll() is None, (folder / "log.txt").read_text()
            assert time.monotonic() < end, "no checkpoint in ten minutes"
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    (folder / ".out.lock").unlink()  # the lock of the killed process, which ended with it


@pytest.fixture(scope="module", params=[stop, pytest.param(kill, marks=[
    pytest.mark.kill, pytest.mark.slow, pytest.mark.when_changed])], ids=["stopped", "killed"])
def killed(request, finished, tmp_path_factory):
    """A folder with a run that has ended while its third method ran."""
    folder = tmp_path_factory.mktemp("killed")
    request.param(finished, folder)
    assert not (folder / "out").exists()
    return folder


@pytest.mark.parametrize(("changes", "wanted"), [
    (["solver.learning_rate=0.1"], "solver.learning_rate (0.05, now 0.1)"),
    (["seed=8"], "seed (7, now 8)"),
    (["rounds=30"], "rounds (60, now 30)"),
    (["algorithms.FedProx 0.mu=1"], "algorithms.FedProx 0.mu (0.0, now 1.0)"),
    (["algorithms.RFA=rfa"], "algorithms.RFA.name ('not set', now 'rfa')"),
], ids=["solver", "seed", "rounds", "algorithm", "more algorithms"])
def test_resuming_with_other_settings_is_refused(changes, wanted, killed, finished, call):
    before = sorted((p, p.stat().st_mtime_ns) for p in killed.rglob("*"))
    outcome = call("run", finished.yaml, "--out", "out", "--resume", "--set", *MANY, *changes, cwd=killed)
    assert outcome.code == 2
    assert f"another value of {wanted}" in outcome.err
    assert "resume with the settings of out.partial/experiment.yaml" in outcome.err.replace(f"{killed}/", "")
    assert sorted((p, p.stat().st_mtime_ns) for p in killed.rglob("*")) == before


def test_resuming_with_the_methods_in_another_order_is_refused(killed, finished, call):
    text = finished.yaml.read_text()
    first, last = "  alone: local\n", "  FedAvg once more: {name: fedavg, stragglers: keep}\n"
    assert text.count(first) == text.count(last) == 1
    turned = killed / "turned.yaml"
    turned.write_text(text.replace(first, "").replace(last, last + first))
    outcome = call("run", turned, "--out", "out", "--resume", "--set", *MANY, cwd=killed)
    turned.unlink()
    assert outcome.code == 2
    assert "the order of the algorithms" in outcome.err


def test_resumed_run_equals_the_uninterrupted_one(killed, finished, call, tmp_path):
    checkpoints = killed / "out.partial" / "checkpoints"
    folders = sorted(p for p in checkpoints.iterdir() if p.is_dir())  # the lock of the interrupted run is a file
    rounds = {p.name: int(max(q.name for q in p.glob("[0-9]*"))) for p in folders}
    assert list(rounds) == ["00", "01", "02"]  # two methods are complete, one is interrupted, one has not started
    assert rounds["00"] == rounds["01"] == 60
    assert rounds["02"] < 60

    reported = {}
    run_experiment(ExperimentFile.load(str(finished.yaml), MANY), killed / "out", resume=True,
                   progress=lambda label, done, total: reported.setdefault(label, []).append(done))
    assert {*reported["alone"]} == {*reported["FedAvg+keep"]} == {0, 60}  # 0 when they are announced and begin
    assert [*dict.fromkeys(reported["FedProx 0"])][:2] == [0, rounds["02"]]
    for label, first in (("FedProx 0", rounds["02"]), ("FedAvg once more", 0)):
        assert reported[label] == sorted(reported[label])
        assert set(reported[label]) >= set(range(first + first % 2, 61, 2))
    straight = call("run", finished.yaml, "--out", "out", "--set", *MANY, cwd=tmp_path)
    assert straight.code == 0, straight.err

    assert without_times(killed / "out") == without_times(tmp_path / "out")
    metrics = [pd.read_parquet(folder / "out" / "metrics.parquet") for folder in (killed, tmp_path)]
    pd.testing.assert_frame_equal(*metrics, check_exact=True)
    for path in (tmp_path / "out" / "models").rglob("*.safetensors"):
        assert path.read_bytes() == (killed / path.relative_to(tmp_path)).read_bytes()
    assert sorted(p.name for p in killed.iterdir()) == ["log.txt", "out"]
    assert not (killed / "out" / "checkpoints").exists()
