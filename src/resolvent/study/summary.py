"""``summary.json``: what ran, on what, and with what outcome."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from resolvent.algorithms.participation import Stragglers
from resolvent.data.digests import check_files, file_digests, read_sealed, write_sealed
from resolvent.data.federated import FederatedData
from resolvent.errors import InputError
from resolvent.problem.problem import SolvedProblem
from resolvent.simulate.diagnostics import dissimilarity
from resolvent.simulate.result import Result
from resolvent.study.compare import Comparison
from resolvent.study.environment import device, versions
from resolvent.study.experiment import Experiment, ExperimentFile
from resolvent.study.metrics import GAP
from resolvent.study.verdict import Verdict, judge, refusals

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["EXPERIMENT_FILE", "METRICS_FILE", "SUMMARY_FILE", "read_summary", "summarize", "write_summary"]

EXPERIMENT_FILE, METRICS_FILE, SUMMARY_FILE = "experiment.yaml", "metrics.parquet", "summary.json"
_ADVICE = "run the experiment again"


def write_summary(folder: Path, summary: dict[str, Any], files: Sequence[str]) -> dict[str, Any]:
    """Write ``summary.json`` into a run folder, with the digests of these files and of itself.

    Returns:
        The summary as ``read_summary`` returns it.
    """
    write_sealed(folder / SUMMARY_FILE, summary | {"files": file_digests(folder, files)})
    return read_summary(folder)


def read_summary(folder: Path) -> dict[str, Any]:
    """The summary of a finished run, whose experiment and metrics are those that the run wrote.

    Raises:
        InputError: there is no finished run in the folder, or one of the three files is damaged.
    """
    path = folder / SUMMARY_FILE
    if not path.is_file():
        raise InputError(f"there is no finished run in {folder}: {path} is missing")
    summary = read_sealed(path, _ADVICE)
    files = summary.get("files", {})
    check_files(folder, {name: files.get(name, "") for name in (EXPERIMENT_FILE, METRICS_FILE)}, _ADVICE)
    return summary


def summarize(file: ExperimentFile, comparison: Comparison) -> dict[str, Any]:
    """The summary of a comparison, as plain data."""
    experiment, verdict = comparison.experiment, judge(comparison)
    return {
        "name": file.name,
        "title": experiment.title or file.name,
        "finding": verdict.finding,
        "warnings": [line for result in comparison.results.values() if (line := refusals(result)) is not None],
        "experiment": file.bound.settings(),
        "seed": experiment.seed,
        "rounds": experiment.rounds,
        "score": verdict.score,
        "split": verdict.split,
        "higher_is_better": verdict.higher_is_better,
        "alone": verdict.alone,
        "data": _federation(file, experiment),
        "methods": {label: _method(file.preset_of(label), result, verdict)
                    for label, result in comparison.results.items()},
        "versions": versions(),
        "device": device(),
    }


def _federation(file: ExperimentFile, experiment: Experiment) -> dict[str, Any]:
    """The parties, their numbers of samples, and notes for the reader."""
    data, problem, parties = experiment.data, experiment.problem, list(experiment.parties)
    if isinstance(data, FederatedData):
        return {"name": data.name, "parties": parties, "train": data.sizes("train").tolist(),
                "test": data.sizes("test").tolist(), "notes": [*data.notes, *_straggler_notes(experiment)]}
    assert problem is not None
    if not isinstance(problem, SolvedProblem):
        notes = [] if data is None else data.notes
        name = file.part_name("problem").replace("_", " ") if data is None else data.name
        return {"name": name, "parties": parties, "train": np.asarray(problem.sizes).tolist(),
                "notes": [*notes, *_straggler_notes(experiment)]}
    optimum = problem.optimum(experiment.participation.shares(problem.sizes))
    heterogeneity = float(dissimilarity(problem, optimum).heterogeneity)
    notes = [f"Heterogeneity H = {heterogeneity:.3g}, the mean of |grad f_k|^2 at the optimum",
             f"Computed in {experiment.precision}", *_straggler_notes(experiment)]
    return {"name": file.part_name("problem").replace("_", " "), "parties": parties,
            "train": np.asarray(problem.sizes).tolist(), "notes": notes}


def _straggler_notes(experiment: Experiment) -> list[str]:
    participation, parties = experiment.participation, experiment.parties
    if not isinstance(participation, Stragglers):
        return []
    notes = [f"{parties[k]} is a straggler: in each round it does a random part of its work"
             for k in participation.parties]
    if participation.share:
        notes.append(f"{participation.share:.0%} of each round's parties are stragglers")
    return notes


def _method(preset: str, result: Result, verdict: Verdict) -> dict[str, Any]:
    table, higher = verdict.table, verdict.higher_is_better
    row = table[table["method"] == result.name].iloc[0].drop("method").to_dict()
    means = _means(result, verdict)
    values = means.fillna(-np.inf if higher else np.inf).to_numpy()
    best = int(values.argmax() if higher else values.argmin())
    seconds = result.facts["seconds"]
    return {
        "preset": preset,
        "final": {key: _json_number(value) for key, value in row.items()},
        "best": {"round": int(means.index[best]), "mean": _json_number(means.iloc[best])},
        "rounds": result.rounds,
        "seconds_per_round": float(np.median(result.facts["seconds_per_round"])),
        "compile_seconds": seconds["compile"],
        "evaluation_seconds": seconds["evaluation"],
        "bytes": result.facts["bytes"],
        "refused": result.refused,
        "digest": result.digest,
    }


def _means(result: Result, verdict: Verdict) -> "pd.Series":
    """The score by round: the gap, or the mean over the parties."""
    if verdict.score == GAP:
        rows: pd.Series = result.metrics[result.metrics["metric"] == GAP].set_index("round")["value"]
        return rows
    means: pd.Series = result.scores(verdict.split).mean(axis=1, skipna=False)
    return means


def _json_number(value: Any) -> float | int | None:
    """A number as JSON can hold it; None if it is not finite."""
    if isinstance(value, int | np.integer):
        return int(value)
    return float(value) if np.isfinite(value) else None
