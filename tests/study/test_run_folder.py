"""The run folder: what is in it, that it is whole or not at all, and that it can be made again."""

import hashlib
import json
import platform
from importlib import metadata
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file

import resolvent
from resolvent.errors import InputError
from resolvent.simulate.tree_files import Checkpoint, write_atomically
from resolvent.study import compare as compare_module
from resolvent.study import report, runner
from resolvent.study.compare import compare
from resolvent.study.experiment import ExperimentFile, slug
from resolvent.study.runner import run_experiment


def contents(folder):
    """Every file below a folder and its digest."""
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
            for p in sorted(folder.rglob("*")) if p.is_file()}


def digests(folder):
    summary = json.loads((folder / "summary.json").read_text())
    return {name: method["digest"] for name, method in summary["methods"].items()}


@pytest.fixture(scope="module")
def summary(finished):
    return json.loads((finished.folder / "summary.json").read_text())


@pytest.fixture
def plain(finished, monkeypatch, tmp_path):
    """The small experiment cut down to what is needed, in an empty current folder, without the pictures."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(report, "write_report", lambda folder: None)
    return ExperimentFile.load(str(finished.yaml), ["rounds=2", "algorithms.FedAvg once more=fedprox"])


# ---------------------------------------------------------------------------------------------------------- contents

def test_files(finished):
    assert set(contents(finished.folder)) == {
        "experiment.yaml", "summary.json", "metrics.parquet", "report.html", "models/alone/parties.safetensors",
        "models/alone/tree.json", *(f"models/{m}/{file}" for m in ("FedAvg-pluskeep", "FedProx-0", "FedAvg-once-more")
                                    for file in ("parties.safetensors", "server.safetensors", "tree.json"))}
    assert [p.name for p in finished.folder.parent.iterdir()] == ["small"]


def test_summary_says_what_ran_with_what(summary, finished):
    file = ExperimentFile.load(str(finished.yaml))
    assert summary["experiment"] == file.bound.settings()
    assert (summary["name"], summary["title"]) == ("small", "A small comparison")
    assert (summary["seed"], summary["rounds"], summary["alone"]) == (7, 4, "alone")
    assert (summary["score"], summary["higher_is_better"]) == ("accuracy", True)
    assert summary["versions"] == {
        "resolvent": resolvent.__version__, "jax": jax.__version__, "jaxlib": metadata.version("jaxlib"),
        "numpy": np.__version__, "python": platform.python_version()}
    data = file.build().data
    assert summary["data"] == {
        "name": "digits", "parties": list(data.parties), "train": data.sizes().tolist(),
        "test": data.sizes("test").tolist(),
        "notes": ["party 4 is an outlier: its images are inverted", "50% of each round's parties are stragglers"]}


def test_summary_of_each_method(summary):
    assert list(summary["methods"]) == ["alone", "FedAvg+keep", "FedProx 0", "FedAvg once more"]
    assert [m["preset"] for m in summary["methods"].values()] == ["local", "fedavg", "fedprox", "fedavg"]
    for m in summary["methods"].values():
        assert set(m) == {"preset", "final", "best", "rounds", "seconds_per_round", "compile_seconds",
                          "evaluation_seconds", "bytes", "refused", "digest"}
        assert m["rounds"] == 4
        assert 0 < m["seconds_per_round"] < 60
        assert m["compile_seconds"] >= 0
        assert m["evaluation_seconds"] > 0
        assert len(m["digest"]) == 64
    first, second = summary["methods"]["alone"], summary["methods"]["FedAvg+keep"]
    model = 4 * (64 * 10 + 10)  # float32; four of five parties for four rounds, and all of their work is kept
    assert second["bytes"] == {"down": 16 * model, "up": 16 * model}
    assert first["bytes"] == {"down": 0, "up": 0}


def test_summary_agrees_with_the_metrics(summary, finished):
    metrics = pd.read_parquet(finished.folder / "metrics.parquet")
    tests = metrics[metrics["split"] == "test"]
    alone = None
    for name, m in summary["methods"].items():
        own = tests[(tests["method"] == name) & (tests["metric"] == "accuracy")]
        last = own[own["round"] == 4].set_index("party")["value"]
        assert m["final"]["mean"] == pytest.approx(last.mean(), abs=1e-12)
        assert m["final"]["worst"] == last.min()
        alone = last if alone is None else alone
        assert m["final"]["better"] == (last > alone).sum()
        assert m["final"]["worse"] == (last < alone).sum()
        assert m["final"]["better"] + m["final"]["level"] + m["final"]["worse"] == 5
        means = own.groupby("round")["value"].mean()
        assert m["best"] == {"round": means.idxmax(), "mean": pytest.approx(means.max(), abs=1e-12)}
        shared = tests[(tests["method"] == name) & (tests["metric"] == "global_accuracy") & (tests["round"] == 4)]
        if name == "alone":
            assert m["final"]["global mean"] is None
            assert shared.empty
        else:
            assert m["final"]["global mean"] == pytest.approx(shared["value"].mean(), abs=1e-12)


def test_metrics_are_one_long_table(finished):
    metrics = pd.read_parquet(finished.folder / "metrics.parquet")
    assert list(metrics.columns) == ["method", "round", "party", "split", "metric", "value"]
    assert sorted(metrics["round"].unique()) == [0, 1, 2, 3, 4]
    assert set(metrics["split"].dropna()) == {"train", "validation", "test"}
    assert set(metrics["party"].dropna()) == set(range(5))
    assert {"loss", "accuracy", "global_loss", "global_accuracy", "model_change", "replies", "line_0.0",
            "line_previous"} <= set(metrics["metric"])
    assert np.isfinite(metrics["value"]).all()
    keys = ["method", "round", "party", "split", "metric"]
    assert not metrics.duplicated(keys).any()


def test_models_can_be_read_without_this_library(finished):
    results = compare(ExperimentFile.load(str(finished.yaml))).results
    for name, result in results.items():
        folder = finished.folder / "models" / slug(name)
        note = json.loads((folder / "tree.json").read_text())
        assert note["method"] == name
        assert note["round"] == 4
        tensors = load_file(folder / "parties.safetensors")
        assert {k: {"shape": list(t.shape[1:]), "dtype": str(t.dtype)} for k, t in tensors.items()} == note["leaves"]
        for k, party in enumerate(note["parties"]):
            for given in (k, party):
                model = result.personal_model(given)
                assert set(model) == set(tensors)
                for leaf, value in model.items():
                    np.testing.assert_array_equal(tensors[leaf][k], value)
        if name == "alone":
            assert set(note["files"]) == {"parties.safetensors"}
            assert not np.array_equal(tensors["weight"][0], tensors["weight"][1])
        else:
            assert set(note["files"]) == {"parties.safetensors", "server.safetensors"}
            for leaf, value in load_file(folder / "server.safetensors").items():
                np.testing.assert_array_equal(value, result.server_model[leaf])


def test_running_the_written_experiment_gives_the_same(finished, call, tmp_path):
    outcome = call("run", finished.folder / "experiment.yaml", "--out", "again", cwd=tmp_path)
    assert outcome.code == 0
    again = tmp_path / "again"
    assert digests(again) == digests(finished.folder)
    assert contents(again / "models") == contents(finished.folder / "models")
    assert (again / "experiment.yaml").read_bytes() == (finished.folder / "experiment.yaml").read_bytes()
    pd.testing.assert_frame_equal(*(pd.read_parquet(f / "metrics.parquet") for f in (again, finished.folder)),
                                  check_exact=True)


# ----------------------------------------------------------------------------------------------- whole or not at all

@pytest.mark.parametrize("used", ["a run", "a file in it", "a file", "an unfinished run"])
def test_used_folder_is_refused_and_kept(used, plain, finished, tmp_path, monkeypatch):
    out = tmp_path / "out"
    if used == "a run":
        out = finished.folder
        wanted = "is used already: give --out another folder, or --overwrite"
    elif used == "a file in it":
        out.mkdir()
        (out / "thesis.txt").write_text("mine")
        wanted = "is used already"
    elif used == "a file":
        out.write_text("mine")
        wanted = "is a file: give --out a folder"
    else:
        (tmp_path / "out.partial").mkdir()
        wanted = "out.partial is left from an unfinished run: give --resume to finish it, or --overwrite"
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
        with pytest.raises(InputError, match="is the current folder or holds it"):
            run_experiment(plain, Path(out), overwrite=overwrite)
    assert (tmp_path / "here" / "sub").is_dir()


@pytest.fixture
def fails_midway(monkeypatch):
    """The second method fails once; returns a function that mends it."""
    whole = compare_module.simulate
    calls = []

    def simulate(*arguments, **options):
        calls.append(options["name"])
        if len(calls) == 2:
            raise RuntimeError("the power went")
        return whole(*arguments, **options)

    monkeypatch.setattr(compare_module, "simulate", simulate)
    return calls


def test_overwriting_keeps_the_old_until_the_new_is_complete(plain, tmp_path, fails_midway):
    out = tmp_path / "out"
    out.mkdir()
    (out / "summary.json").write_text("{}")
    (out / "thesis.txt").write_text("mine")
    before = contents(out)
    with pytest.raises(RuntimeError, match="the power went"):
        run_experiment(plain, out, overwrite=True)
    assert contents(out) == before
    left = contents(tmp_path / "out.partial")
    assert "checkpoints/00/000000002/state.safetensors" in left
    assert "summary.json" not in left

    folder, summary = run_experiment(plain, out, resume=True)  # the old one goes only now
    assert folder == out
    assert "thesis.txt" not in contents(out)
    assert json.loads((out / "summary.json").read_text()) == summary
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert fails_midway == ["alone", "FedAvg+keep", "alone", "FedAvg+keep", "FedProx 0", "FedAvg once more"]

    plain_again = ExperimentFile.load(str(out / "experiment.yaml"))
    run_experiment(plain_again, tmp_path / "straight")
    assert digests(tmp_path / "straight") == digests(out)


def test_overwriting_replaces_the_old_and_what_was_left(plain, tmp_path):
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
    with pytest.raises(InputError, match=r"there is nothing to resume for .*out: .* would have left .*out\.partial"):
        run_experiment(plain, tmp_path / "out", resume=True)
    with pytest.raises(InputError, match=r"nothing to resume for .*small \(the run there is complete\)"):
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


# -------------------------------------------------------------------------------------------------- files and states

def test_written_file_is_whole_or_not_there(tmp_path):
    path = tmp_path / "a.txt"

    def fail(partial):
        partial.write_text("half")
        raise ValueError("the writer failed")

    with pytest.raises(ValueError, match="the writer failed"):
        write_atomically(path, fail)
    assert list(tmp_path.iterdir()) == []

    write_atomically(path, lambda p: p.write_text("old"))
    with pytest.raises(ValueError, match="the writer failed"):
        write_atomically(path, fail)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    write_atomically(path, lambda p: p.write_text("new"))
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("file", ["state.safetensors", "facts.json", "metrics.parquet"])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_damaged_checkpoint_is_refused(file, damage, tmp_path):
    state = {"w": jax.numpy.arange(3.0)}
    Checkpoint(4, state, pd.DataFrame({"value": [1.0]}), {"seconds": 1}).write(tmp_path, "mark")
    assert Checkpoint.read(tmp_path, state, "mark").rounds == 4
    path = tmp_path / "000000004" / file
    content = path.read_bytes()
    path.unlink()
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match=r"000000004.* cannot be read: .*remove it to start afresh"):
        Checkpoint.read(tmp_path, state, "mark")


def test_checkpoint_of_another_run_is_refused(tmp_path):
    state = {"w": jax.numpy.arange(3.0)}
    Checkpoint(4, state, pd.DataFrame({"value": [1.0]}), {}).write(tmp_path, "mark")
    with pytest.raises(InputError, match="belongs to another run"):
        Checkpoint.read(tmp_path, {"other": jax.numpy.arange(2.0)}, "another mark")
