"""The files of a run folder: summary, metrics, models, and an experiment that can be run again."""

import json
import platform
from importlib import metadata

import jax
import numpy as np
import pandas as pd
import pytest
from folder_contents import contents, digests
from safetensors.numpy import load_file

import resolvent
from resolvent.comparisons.experiment.checks import folder_name
from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.comparisons.runs.comparison_runs import compare_file, run_comparison
from resolvent.comparisons.runs.summary import straggler_notes
from resolvent.simulator.checkpoint.identity import fingerprint_of


@pytest.fixture(scope="module")
def summary(finished):
    return json.loads((finished.folder / "summary.json").read_text())


def test_files(finished):
    assert set(contents(finished.folder)) == {
        "experiment.yaml", "summary.json", "metrics.parquet", "test_rows.parquet", "report.html",
        "models/alone/parties.safetensors", "models/alone/tree.json", "models/alone/encoding.json", *(
            f"models/{m}/{file}" for m in ("FedAvg-pluskeep", "FedProx-0", "FedAvg-once-more")
            for file in ("parties.safetensors", "server.safetensors", "tree.json", "encoding.json"))}
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
    assert summary["data"].pop("digest") == fingerprint_of(data)
    assert summary["data"] == {
        "name": "digits", "parties": list(data.parties), "train": data.sizes().tolist(),
        "test": data.sizes("test").tolist(),
        "notes": ["party 4 is an outlier: its images are inverted", "50% of each round's parties are stragglers"]}


MIXED = ["algorithms={FedAvg: {name: fedavg, stragglers: drop}, FedProx: fedprox}"]
DIFFERENT = ("The methods differ in more than their updates: the partial work of stragglers counts with FedProx, but "
             "not with FedAvg. Leave out the setting stragglers of the methods, and set work in the participation")


def test_methods_that_treat_stragglers_differently_are_named(finished):
    alike, dropped, different, without = (
        straggler_notes(ExperimentFile.load(str(finished.yaml), changes).build()) for changes in (
            ["algorithms={FedAvg: fedavg, FedProx: fedprox}"],
            ["algorithms={FedAvg: fedavg, FedProx: fedprox}", "participation.work=drop"], MIXED,
            [*MIXED, "participation=full"]))
    assert alike == ["50% of each round's parties are stragglers"]
    assert dropped == [*alike, "the partial work of stragglers is dropped"]
    assert different == [*alike, DIFFERENT]
    assert without == []


def test_a_comparison_says_before_it_starts_that_methods_treat_stragglers_differently(finished):
    """Also without progress, and as a warning, which a test turns into an error before any round."""
    experiment = ExperimentFile.load(str(finished.yaml), MIXED).build()
    with pytest.raises(UserWarning, match=DIFFERENT):
        run_comparison(experiment)


def test_summary_of_each_method(summary):
    assert list(summary["methods"]) == ["alone", "FedAvg+keep", "FedProx 0", "FedAvg once more"]
    assert [m["preset"] for m in summary["methods"].values()] == ["local", "fedavg", "fedprox", "fedavg"]
    for m in summary["methods"].values():
        assert set(m) == {"preset", "final", "best", "rounds", "seconds_per_round", "compile_seconds",
                          "evaluation_seconds", "bytes", "refused", "digest", "digests", "is_bound", "is_untuned"}
        assert m["digests"] == [m["digest"]]
        assert m["rounds"] == 4
        assert 0 < m["seconds_per_round"] < 60
        assert m["compile_seconds"] >= 0
        assert m["evaluation_seconds"] > 0
        assert len(m["digest"]) == 64
    first, second = summary["methods"]["alone"], summary["methods"]["FedAvg+keep"]
    model = 4 * (64 * 10 + 10)  # float32; four of five parties for four rounds, and partial work counts
    assert second["bytes"] == {"down": 16 * model, "up": 16 * model}
    assert first["bytes"] == {"down": 0, "up": 0}


def test_summary_agrees_with_the_metrics(summary, finished):
    metrics = pd.read_parquet(finished.folder / "metrics.parquet")
    tests = metrics[metrics["split"] == "test"]
    for name, m in summary["methods"].items():
        scores = tests[(tests["method"] == name) & (tests["metric"] == "accuracy")]
        last = scores[scores["round"] == 4].set_index("party")["value"]
        assert m["final"]["mean"] == pytest.approx(last.mean(), abs=1e-12)
        assert m["final"]["worst"] == last.min()
        gains = [site["gains"].get(name, [0, 0, 0]) for site in summary["sites"]]
        assert m["final"]["better"] == sum(low > 0 for _, low, _ in gains)
        assert m["final"]["worse"] == sum(high < 0 for _, _, high in gains)
        assert [site["scores"][name][0] for site in summary["sites"]] == pytest.approx(last.tolist(), abs=1e-6)
        assert m["final"]["better"] + m["final"]["level"] + m["final"]["worse"] == 5
        means = scores.groupby("round")["value"].mean()
        assert m["best"] == {"round": means.idxmax(), "mean": pytest.approx(means.max(), abs=1e-12)}
        shared = tests[(tests["method"] == name) & (tests["metric"] == "global_accuracy") & (tests["round"] == 4)]
        if name == "alone":
            assert m["final"]["global mean"] is None
            assert shared.empty
        else:
            assert m["final"]["global mean"] == pytest.approx(shared["value"].mean(), abs=1e-12)


def test_metrics_are_one_long_table(finished):
    metrics = pd.read_parquet(finished.folder / "metrics.parquet")
    assert list(metrics.columns) == ["method", "round", "party", "split", "metric", "value", "seed"]
    assert set(metrics["seed"]) == {7}
    assert sorted(metrics["round"].unique()) == [0, 1, 2, 3, 4]
    assert set(metrics["split"].dropna()) == {"train", "validation", "test"}
    assert set(metrics["party"].dropna()) == set(range(5))
    assert {"loss", "accuracy", "global_loss", "global_accuracy", "model_change", "replies", "line_0.0",
            "line_previous"} <= set(metrics["metric"])
    assert np.isfinite(metrics["value"]).all()
    keys = ["method", "round", "party", "split", "metric"]
    assert not metrics.duplicated(keys).any()


@pytest.mark.when_changed
def test_models_can_be_read_without_this_library(finished):
    results = compare_file(ExperimentFile.load(str(finished.yaml))).results
    for name, result in results.items():
        folder = finished.folder / "models" / folder_name(name)
        note = json.loads((folder / "tree.json").read_text())
        assert note["method"] == name
        assert note["round"] == 4
        tensors = load_file(folder / "parties.safetensors")
        assert {k: {"shape": list(t.shape[1:]), "dtype": str(t.dtype)} for k, t in tensors.items()} == note["leaves"]
        for k, party in enumerate(note["parties"]):
            for party_id in (k, party):
                model = result.personal_model(party_id)
                assert set(model) == set(tensors)
                for leaf, value in model.items():
                    np.testing.assert_array_equal(tensors[leaf][k], value)
        if name == "alone":
            assert set(note["files"]) == {"parties.safetensors", "encoding.json"}
            assert not np.array_equal(tensors["weight"][0], tensors["weight"][1])
        else:
            assert set(note["files"]) == {"parties.safetensors", "server.safetensors", "encoding.json"}
            for leaf, value in load_file(folder / "server.safetensors").items():
                np.testing.assert_array_equal(value, result.server_model[leaf])


@pytest.mark.when_changed
def test_running_the_written_experiment_gives_the_same(finished, call, tmp_path):
    outcome = call("run", finished.folder / "experiment.yaml", "--out", "again", cwd=tmp_path)
    assert outcome.code == 0
    again = tmp_path / "again"
    assert digests(again) == digests(finished.folder)
    assert contents(again / "models") == contents(finished.folder / "models")
    assert (again / "experiment.yaml").read_bytes() == (finished.folder / "experiment.yaml").read_bytes()
    pd.testing.assert_frame_equal(*(pd.read_parquet(f / "metrics.parquet") for f in (again, finished.folder)),
                                  check_exact=True)
