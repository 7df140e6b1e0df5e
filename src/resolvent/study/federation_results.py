"""The run folder of a federation. It has the files of a simulation's run folder.

The lead's folder has the shared models and the scores that leave the sites. A site's folder has its personal models and
its own scores.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from resolvent.data.atomic_files import remove_folder, write_atomically, write_text
from resolvent.simulate.model_folder import SavedModels, write_model_folder
from resolvent.study.checks import folder_name
from resolvent.study.environment import device, versions
from resolvent.study.federation_experiment import FederatedExperiment
from resolvent.study.metrics import higher_is_better
from resolvent.study.summary import EXPERIMENT_FILE, METRICS_FILE, write_summary
from resolvent.study.verdict import finding, score_table

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FederationRun", "MethodRun", "write_run_folder"]

_SPLIT = "test"


@dataclass(frozen=True)
class MethodRun:
    """The outcome of one method.

    Attributes:
        models: its models with the encoding.
        metrics: table of metrics with the columns of a simulation's metrics.
        digest: SHA-256 of the last state of the server, or the empty text.
        seconds: median duration of a round.
        bytes_down: bytes from the server to the sites in the run.
        bytes_up: bytes from the sites to the server in the run.
        refused: site -> number of its replies that did not count.
    """

    models: SavedModels
    metrics: "pd.DataFrame"
    digest: str = ""
    seconds: float = 0.0
    bytes_down: int = 0
    bytes_up: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class FederationRun:
    """The outcome of a run, as the lead or a site knows it.

    Attributes:
        experiment: the experiment.
        sites: names of the sites whose scores the folder can have.
        train: number of training rows of each site.
        test: number of test rows of each site.
        methods: label -> method.
        score: the metric that compares the methods.
        notes: facts for the reader of the report.
        warnings: facts that the report shows first.
    """

    experiment: FederatedExperiment
    sites: Sequence[str]
    train: Sequence[int]
    test: Sequence[int]
    methods: Mapping[str, MethodRun]
    score: str
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()


def write_run_folder(folder: Path, run: FederationRun) -> dict[str, Any]:
    """Write the experiment, the models, the metrics and the summary; returns the summary."""
    import pandas as pd

    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / EXPERIMENT_FILE, run.experiment.text)
    remove_folder(folder / "models")
    for label, method in run.methods.items():
        write_model_folder(folder / "models" / folder_name(label), method.models)
    metrics = pd.concat([method.metrics for method in run.methods.values()], ignore_index=True)
    write_atomically(folder / METRICS_FILE, lambda path: metrics.to_parquet(path, index=False))
    files = [EXPERIMENT_FILE, METRICS_FILE,
             *(p.relative_to(folder).as_posix() for p in sorted((folder / "models").rglob("*")) if p.is_file())]
    return write_summary(folder, _summary(run, metrics), files)


def _summary(run: FederationRun, metrics: "pd.DataFrame") -> dict[str, Any]:
    experiment, labels = run.experiment, [*run.methods]
    values, is_better = experiment.file.bound.values, higher_is_better(run.score)
    has_scores = bool(((metrics["metric"] == run.score) & (metrics["split"] == _SPLIT)).any())
    local = (label for label in labels if has_scores and experiment.file.preset_of(label) == "local")
    alone = next(local, None)
    table = score_table(metrics, labels, run.score, higher_is_better=is_better, alone=alone, split=_SPLIT)
    sentence = (finding(table, run.score, alone, higher_is_better=is_better) if has_scores
                else "No site lets its scores out: each site can see its own.")
    return {
        "name": experiment.file.name, "title": values["title"] or experiment.file.name, "finding": sentence,
        "warnings": list(run.warnings), "experiment": experiment.file.bound.settings(), "seed": experiment.seed,
        "seeds": [experiment.seed],
        "rounds": experiment.rounds, "score": run.score, "split": _SPLIT, "higher_is_better": is_better,
        # Intervals need the outcome of every test row, which does not leave a site.
        "alone": alone, "baseline": None, "level": None, "sites": [], "means": None,
        "data": {"name": "tables of the sites", "parties": list(run.sites), "train": list(run.train),
                 "test": list(run.test), "notes": list(run.notes)},
        "methods": {label: _method(run, label, table) for label in labels},
        "versions": versions(), "device": device()}


def _method(run: FederationRun, label: str, table: "pd.DataFrame") -> dict[str, Any]:
    method, is_better = run.methods[label], higher_is_better(run.score)
    row = table[table["method"] == label].iloc[0].drop("method").to_dict()
    rows = method.metrics[(method.metrics["metric"] == run.score) & (method.metrics["split"] == _SPLIT)]
    means = rows.groupby("round")["value"].mean()
    best: dict[str, Any] = {"round": run.experiment.rounds, "mean": None}
    if len(means):
        values = means.fillna(-np.inf if is_better else np.inf).to_numpy()
        position = int(values.argmax() if is_better else values.argmin())
        best = {"round": int(means.index[position]), "mean": _number(means.iloc[position])}
    return {
        "preset": run.experiment.file.preset_of(label), "final": {key: _number(value) for key, value in row.items()},
        "best": best, "rounds": run.experiment.rounds, "seconds_per_round": method.seconds, "compile_seconds": 0.0,
        "evaluation_seconds": 0.0, "bytes": {"down": method.bytes_down, "up": method.bytes_up},
        "refused": dict(method.refused), "digest": method.digest}


def _number(value: Any) -> float | int | None:
    if isinstance(value, int | np.integer):
        return int(value)
    return float(value) if np.isfinite(value) else None
