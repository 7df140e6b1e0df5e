"""The run folder: it is complete or not there, and an unfinished run can be resumed."""

import os
from pathlib import Path

import pytest
from folder_contents import contents, digests

from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.comparisons.runs import comparison_runs, report, runner
from resolvent.comparisons.runs.record import read_record
from resolvent.comparisons.runs.runner import run_experiment
from resolvent.errors import InputError


@pytest.fixture
def plain(finished, monkeypatch, tmp_path):
    """The small experiment with two rounds, in an empty current folder, without the report."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(report, "write_report", lambda *arguments: None)
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
    monkeypatch.setattr(runner, "compare_file", lambda *a, **k: pytest.fail("work began"))
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
    original = comparison_runs.simulate
    calls = []

    def simulate(*arguments, **options):
        calls.append(options["name"])
        if len(calls) == 2:
            raise RuntimeError("power failure")
        return original(*arguments, **options)

    monkeypatch.setattr(comparison_runs, "simulate", simulate)
    return calls


@pytest.mark.when_changed
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

    folder, record = run_experiment(plain, out, resume=True)  # the old content is removed now
    assert folder == out
    assert "thesis.txt" not in contents(out)
    assert read_record(out).plain() == record.plain()
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


@pytest.mark.when_changed
def test_failing_report_leaves_an_unfinished_run(plain, tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError("no space left")

    monkeypatch.setattr(report, "write_report", fail)
    with pytest.raises(OSError, match="no space left"):
        run_experiment(plain, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["out.partial"]
    monkeypatch.setattr(report, "write_report", lambda *arguments: None)
    run_experiment(plain, tmp_path / "out", resume=True)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_refusal_before_the_first_round_leaves_no_folder(plain, tmp_path, monkeypatch):
    def refuse(*arguments, **options):
        raise InputError("it does not fit")

    monkeypatch.setattr(comparison_runs, "simulate", refuse)
    with pytest.raises(InputError, match="it does not fit"):
        run_experiment(plain, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.when_changed
def test_resume_without_a_run_starts_it_and_of_a_complete_run_shows_it(plain, tmp_path, monkeypatch):
    def resume(out=None, file=plain):
        said = []
        folder, record = run_experiment(file, out, resume=True, notify=said.append)
        return str(folder), record.plain(), said

    first = resume(tmp_path / "out")
    size = "4 methods of 2 rounds at 5 sites."
    assert first[2] == [f"there is no unfinished run in {tmp_path / 'out'}: it starts from the beginning", size]
    assert resume()[2] == ["there is no unfinished run in runs/small: it starts from the beginning", size]
    before = contents(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(ExperimentFile, "build", lambda self: pytest.fail("data were loaded"))
        assert resume(tmp_path / "out") == (*first[:2], [f"the run in {tmp_path / 'out'} is complete"])
        assert resume()[::2] == ("runs/small", ["the run in runs/small is complete"])
        other = ExperimentFile.load(str(tmp_path / "out" / "experiment.yaml"), ["seed=8"])
        with pytest.raises(InputError, match=r"complete run of another experiment, with .* seed \(7, now 8"):
            resume(tmp_path / "out", other)
        (tmp_path / "thesis").mkdir()
        (tmp_path / "thesis" / "thesis.txt").write_text("mine")
        with pytest.raises(InputError, match="thesis is not empty and holds no run: give --out another folder"):
            resume(tmp_path / "thesis")
    assert {path: digest for path, digest in contents(tmp_path).items() if "thesis" not in path} == before


@pytest.mark.when_changed
def test_a_folder_that_another_process_writes_is_refused(plain, tmp_path, monkeypatch):
    """With any option and with the number of that process; without --out the next folder is used."""
    build = ExperimentFile.build

    def run_again_and_build(file):
        monkeypatch.setattr(ExperimentFile, "build", build)
        for options in ({}, {"resume": True}, {"overwrite": True}):
            with pytest.raises(InputError, match=rf"runs/small is being written by process {os.getpid()} on "):
                run_experiment(plain, Path("runs/small"), **options)
        assert run_experiment(plain)[0] == Path("runs/small-2")
        return build(file)

    monkeypatch.setattr(ExperimentFile, "build", run_again_and_build)
    assert run_experiment(plain)[0] == Path("runs/small")
    assert {p.name for p in (tmp_path / "runs").iterdir()} == {"small", "small-2"}
    (tmp_path / "runs" / ".small.lock").write_text("1 on a machine")  # of a process that was killed
    run_experiment(plain, Path("runs/small"), overwrite=True)
    assert {p.name for p in (tmp_path / "runs").iterdir()} == {"small", "small-2"}


@pytest.mark.when_changed
def test_a_kill_while_checkpoints_are_removed_leaves_a_complete_run(plain, tmp_path, monkeypatch):
    """Before that, at every rename of the end, the run is resumed without training again."""
    out, rename, steps = tmp_path / "out", Path.rename, []
    out.mkdir()
    (out / "old.txt").write_text("old")

    def stop(self, target):
        if self.exists() and self.name in ("out", "out.partial", "checkpoints"):
            steps.append((self.name, Path(target).name))
            raise RuntimeError("power failure")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", stop)
    with pytest.raises(RuntimeError):
        run_experiment(plain, out, overwrite=True)
    assert steps == [("out", ".out.old")]
    rounds = []
    for wanted in (("out.partial", "out"), ("checkpoints", ".checkpoints.removed")):
        monkeypatch.setattr(Path, "rename", lambda self, target, wanted=wanted: (
            stop(self, target) if self.name == wanted[0] else rename(self, target)))
        with pytest.raises(RuntimeError):
            run_experiment(plain, out, resume=True, progress=lambda label, done, total: rounds.append(done / total))
        assert steps[-1] == wanted
    assert set(rounds) == {0, 1}  # announced and finished: no method was trained again
    monkeypatch.setattr(Path, "rename", rename)
    assert (out / "checkpoints").is_dir()
    said = []
    run_experiment(plain, out, resume=True, notify=said.append)
    assert said == [f"the run in {out} is complete"]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert not (out / "checkpoints").exists()


@pytest.mark.when_changed
def test_default_folders_are_numbered(plain, tmp_path):
    runs = tmp_path / "runs"
    assert run_experiment(plain)[0] == Path("runs/small")
    (runs / "small-2").mkdir()
    (runs / "small-3.partial").mkdir()
    assert run_experiment(plain)[0] == Path("runs/small-4")
    assert run_experiment(plain, overwrite=True)[0] == Path("runs/small")
    assert {p.name for p in runs.iterdir()} == {"small", "small-2", "small-3.partial", "small-4"}


@pytest.mark.when_changed
def test_resume_without_a_folder_takes_the_last_of_that_name(plain, tmp_path, fails_midway):
    with pytest.raises(RuntimeError):
        run_experiment(plain, Path("runs/small-7"))
    for other in ("small.v2.partial", "smaller.partial", "small-x.partial"):
        (tmp_path / "runs" / other).mkdir()
    assert run_experiment(plain, resume=True)[0] == Path("runs/small-7")
    assert (tmp_path / "runs" / "small-7" / "summary.json").is_file()
