"""A run that is killed outright and resumed is the run that was never killed."""

import json
import os
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest

from resolvent.study.experiment import ExperimentFile
from resolvent.study.runner import run_experiment

MANY = ["rounds=60", "evaluate_every=2"]
CLOCK = ("seconds_per_round", "compile_seconds", "evaluation_seconds")


def without_times(folder):
    """The summary without what a clock says."""
    summary = json.loads((folder / "summary.json").read_text())
    for method in summary["methods"].values():
        assert set(CLOCK) <= set(method)
        for key in CLOCK:
            del method[key]
    return summary


@pytest.fixture(scope="module")
def killed(finished, tmp_path_factory):
    """A folder with the run of a process that was killed while its third method ran."""
    place = tmp_path_factory.mktemp("killed")
    command = [sys.executable, "-m", "resolvent.cli", "run", str(finished.yaml), "--out", "out", "--set", *MANY]
    with (place / "log.txt").open("w") as log:
        process = subprocess.Popen(command, cwd=place, stdout=log, stderr=log, env={**os.environ, "COLUMNS": "120"})
        checkpoints = place / "out.partial" / "checkpoints"
        end = time.monotonic() + 120
        while not list(checkpoints.glob("02/[0-9]*")):
            assert process.poll() is None, (place / "log.txt").read_text()
            assert time.monotonic() < end, "no checkpoint in two minutes"
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert not (place / "out").exists()
    return place


@pytest.mark.parametrize(("changes", "wanted"), [
    (["solver.learning_rate=0.1"], "solver.learning_rate is 0.1 now and was 0.05 in the unfinished run"),
    (["seed=8"], "seed is 8 now and was 7 in the unfinished run"),
    (["rounds=30"], "rounds is 30 now and was 60 in the unfinished run"),
    (["algorithms.FedProx 0.mu=1"], "algorithms.FedProx 0.mu is 1.0 now and was 0.0 in the unfinished run"),
    (["algorithms.RFA=rfa"], "algorithms.RFA.name is 'rfa' now and was 'not set' in the unfinished run"),
], ids=["solver", "seed", "rounds", "algorithm", "more algorithms"])
def test_resuming_with_other_settings_is_refused(changes, wanted, killed, finished, call):
    before = sorted((p, p.stat().st_mtime_ns) for p in killed.rglob("*"))
    outcome = call("run", finished.yaml, "--out", "out", "--resume", "--set", *MANY, *changes, cwd=killed)
    assert outcome.code == 2
    assert f"error: {wanted}: resume with the settings of " in outcome.err
    assert "out.partial/experiment.yaml, or start afresh with --overwrite or another --out" in outcome.err
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
    assert "error: the algorithms stand in another order than in the unfinished run" in outcome.err


def test_resumed_run_equals_the_uninterrupted_one(killed, finished, call, tmp_path):
    checkpoints = killed / "out.partial" / "checkpoints"
    rounds = {p.name: int(max(q.name for q in p.glob("[0-9]*"))) for p in sorted(checkpoints.iterdir())}
    assert list(rounds) == ["00", "01", "02"]  # two methods done, one under way, one not begun
    assert rounds["00"] == rounds["01"] == 60
    assert rounds["02"] < 60

    seen = {}
    run_experiment(ExperimentFile.load(str(finished.yaml), MANY), killed / "out", resume=True,
                   progress=lambda label, done, total: seen.setdefault(label, []).append(done))
    assert seen["alone"] == seen["FedAvg+keep"] == [60]
    assert seen["FedProx 0"] == list(range(rounds["02"], 61, 2))
    assert seen["FedAvg once more"] == list(range(0, 61, 2))
    straight = call("run", finished.yaml, "--out", "out", "--set", *MANY, cwd=tmp_path)
    assert straight.code == 0, straight.err

    assert without_times(killed / "out") == without_times(tmp_path / "out")
    pd.testing.assert_frame_equal(*(pd.read_parquet(place / "out" / "metrics.parquet") for place in (killed, tmp_path)),
                                  check_exact=True)
    for path in (tmp_path / "out" / "models").rglob("*.safetensors"):
        assert path.read_bytes() == (killed / path.relative_to(tmp_path)).read_bytes()
    assert sorted(p.name for p in killed.iterdir()) == ["log.txt", "out"]
    assert not (killed / "out" / "checkpoints").exists()
