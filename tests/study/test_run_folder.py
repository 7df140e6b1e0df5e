"""The run folder: it is complete or not there, and an unfinished run can be resumed."""

import json
from pathlib import Path

import pytest
from folder_contents import contents, digests

from resolvent.errors import InputError
from resolvent.study import compare as compare_module
from resolvent.study import report, runner
from resolvent.study.experiment import ExperimentFile
from resolvent.study.runner import run_experiment


@pytest.fixture
def plain(finished, monkeypatch, tmp_path):
    """The small experiment with two rounds, in an empty current folder, without the report."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(report, "write_report", lambda folder: None)
    return ExperimentFile.load(str(finished.yaml), ["rounds=2", "algorithms.FedAvg once more=fedprox"])


@pytest.mark.parametrize("used", ["a run", "a file in it", "a file", "an unfinished run"])
def test_used_folder_is_refused_and_unchanged(used, plain, finished, tmp_path, monkeypatch):
    out = tmp_path / "out"
    if used == "a run":
        out = finished.folder
        wanted = "is not empty: give --out another folder, or --overwrite"
    elif used == "a file in it":
        out.mkdir()
        (out / "thesis.txt").write_text("mine")
        wanted = "is not empty"
    elif used == "a file":
        out.write_text("mine")
        wanted = "is a file: give --out a folder"
    else:
        (tmp_path / "out.partial").mkdir()
        wanted = "out.partial is an unfinished run: give --resume to finish it, or --overwrite"
    before = contents(out.parent)
    monkeypatch.setattr(runner, "compare", lambda *a, **k: pytest.fail("work began"))
    monkeypatch.setattr(ExperimentFile, "build", lambda self: pytest.fail("data were loaded"))
    with pytest.raises(InputError) as caught:
        run_experiment(plain, out)
    assert wanted in str(caught.value)
    assert contents(out.parent) == before


def test_an_empty_folder_is_free(plain, tmp_path):
    (tmp_path / "out").mkdir()
    assert run_experiment(plain, tmp_path / "out")[0] == tmp_path / "out"
    assert (tmp_path / "out" / "summary.json").is_file()


@pytest.mark.parametrize("out", [".", "..", "sub/..", "../here"])
def test_folder_that_holds_the_current_one_is_refused(out, plain, tmp_path, monkeypatch):
    (tmp_path / "here" / "sub").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    for overwrite in (False, True):
        with pytest.raises(InputError, match="is the current folder or contains it"):
            run_experiment(plain, Path(out), overwrite=overwrite)
    assert (tmp_path / "here" / "sub").is_dir()


@pytest.fixture
def fails_midway(monkeypatch):
    """The second method fails once; returns the names of the methods that ran."""
    original = compare_module.simulate
    calls = []

    def simulate(*arguments, **options):
        calls.append(options["name"])
        if len(calls) == 2:
            raise RuntimeError("power failure")
        return original(*arguments, **options)

    monkeypatch.setattr(compare_module, "simulate", simulate)
    return calls


def test_old_run_stays_until_the_new_one_is_complete(plain, tmp_path, fails_midway):
    out = tmp_path / "out"
    out.mkdir()
    (out / "summary.json").write_text("{}")
    (out / "thesis.txt").write_text("mine")
    before = contents(out)
    with pytest.raises(RuntimeError, match="power failure"):
        run_experiment(plain, out, overwrite=True)
    assert contents(out) == before
    left = contents(tmp_path / "out.partial")
    assert "checkpoints/00/000000002/state.safetensors" in left
    assert "summary.json" not in left

    folder, summary = run_experiment(plain, out, resume=True)  # the old content is removed now
    assert folder == out
    assert "thesis.txt" not in contents(out)
    assert json.loads((out / "summary.json").read_text()) == summary
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert fails_midway == ["alone", "FedAvg+keep", "alone", "FedAvg+keep", "FedProx 0", "FedAvg once more"]

    plain_again = ExperimentFile.load(str(out / "experiment.yaml"))
    run_experiment(plain_again, tmp_path / "straight")
    assert digests(tmp_path / "straight") == digests(out)


def test_overwriting_replaces_old_and_unfinished_runs(plain, tmp_path):
    for name in ("out", "out.partial"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "old.txt").write_text("old")
    run_experiment(plain, tmp_path / "out", overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert "old.txt" not in contents(tmp_path / "out")
    assert (tmp_path / "out" / "summary.json").is_file()


def test_failing_report_leaves_an_unfinished_run(plain, tmp_path, monkeypatch):
    def fail(folder):
        raise OSError("no space left")

    monkeypatch.setattr(report, "write_report", fail)
    with pytest.raises(OSError, match="no space left"):
        run_experiment(plain, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["out.partial"]
    monkeypatch.setattr(report, "write_report", lambda folder: None)
    run_experiment(plain, tmp_path / "out", resume=True)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_refusal_before_the_first_round_leaves_no_folder(plain, tmp_path, monkeypatch):
    def refuse(*arguments, **options):
        raise InputError("it does not fit")

    monkeypatch.setattr(compare_module, "simulate", refuse)
    with pytest.raises(InputError, match="it does not fit"):
        run_experiment(plain, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_there_must_be_something_to_resume(plain, finished, tmp_path):
    with pytest.raises(InputError, match=r"there is no run to resume for .*out: .*out\.partial"):
        run_experiment(plain, tmp_path / "out", resume=True)
    with pytest.raises(InputError, match=r"no run to resume for .*small \(the run in it is complete\)"):
        run_experiment(plain, finished.folder, resume=True)
    with pytest.raises(InputError, match=r"there is no unfinished run of small in runs/"):
        run_experiment(plain, resume=True)
    assert list(tmp_path.iterdir()) == []


def test_default_folders_are_numbered(plain, tmp_path):
    runs = tmp_path / "runs"
    assert run_experiment(plain)[0] == Path("runs/small")
    (runs / "small-2").mkdir()
    (runs / "small-3.partial").mkdir()
    assert run_experiment(plain)[0] == Path("runs/small-4")
    assert run_experiment(plain, overwrite=True)[0] == Path("runs/small")
    assert {p.name for p in runs.iterdir()} == {"small", "small-2", "small-3.partial", "small-4"}


def test_resume_without_a_folder_takes_the_last_of_that_name(plain, tmp_path, fails_midway):
    with pytest.raises(RuntimeError):
        run_experiment(plain, Path("runs/small-7"))
    for other in ("small.v2.partial", "smaller.partial", "small-x.partial"):
        (tmp_path / "runs" / other).mkdir()
    assert run_experiment(plain, resume=True)[0] == Path("runs/small-7")
    assert (tmp_path / "runs" / "small-7" / "summary.json").is_file()
