"""The test rows of a run and of its peers, judged by the same rules."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import resolvent as rv
from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.comparisons.judgement.evidence import Evidence
from resolvent.comparisons.judgement.row_values import RowValues
from resolvent.comparisons.judgement.sites import judge_sites
from resolvent.comparisons.runs.comparison_runs import samples_of
from resolvent.comparisons.runs.record import ROWS_FILE, read_metrics, read_record
from resolvent.data.federated import SPLITS, FederatedData
from resolvent.predict.intervals import Interval

__all__ = ["judged", "splits_of"]


def splits_of(path: Path) -> pd.DataFrame:
    """The part of every row with every seed of an experiment; run it in the folder of the table.

    Returns:
        Columns: seed; row, the number of the row in ``test_rows.parquet``; line, its number in the table, from 0; and
        split, one of train, validation and test.
    """
    file = ExperimentFile.load(str(path))
    experiment = file.build()
    settings = file.bound.settings()["data"]
    frame = pd.read_csv(settings["table"], dtype={settings["party"]: str})
    lines = rv.datasets.from_frame(
        frame[[settings["party"], settings["label"]]].assign(line=np.arange(len(frame))), settings["party"],
        settings["label"], scale="none", **{name: settings[name] for name in ("task", "test", "validation", "seed")})
    assert isinstance(experiment.data, FederatedData)
    assert (lines.y == experiment.data.y).all()
    experiment = replace(experiment, data=lines)
    parts = []
    for seed in range(experiment.seed, experiment.seed + experiment.seeds):
        samples = samples_of(experiment, seed)
        assert samples.data is not None
        rows = np.arange(len(frame)) if samples.rows is None else samples.rows
        split = np.empty(len(frame), object)
        for name in SPLITS:
            for offset, length in zip(samples.data.splits[name].offset, samples.data.splits[name].length, strict=True):
                split[offset:offset + length] = name
        parts.append(pd.DataFrame({"seed": seed, "row": rows, "line": samples.data.x[:, 0].astype(int),
                                   "split": split}))
    return pd.concat(parts)


def judged(run: Path, peers: pd.DataFrame) -> dict[str, Any]:
    """The scores of all methods at every site, and the advice of the run to the sites.

    Args:
        run: the run folder.
        peers: the scores of the peers, with the columns seed, row and method.
    """
    record, metrics = read_record(run), read_metrics(run)
    score, higher, parties = record.score, record.higher_is_better, record.data.parties
    rows = RowValues.read(run / ROWS_FILE)
    keys = pd.MultiIndex.from_arrays([rows.seed, rows.row])
    scores = peers.set_index(["seed", "row"])
    rows = replace(rows, values=rows.values | {
        label: of_peer[score].reindex(keys).to_numpy() for label, of_peer in scores.groupby("method")})
    assert not any(np.isnan(values).any() for values in rows.values.values())
    chosen = record.federation.about
    # The peers have scores of rows, but neither losses nor linear predictors.
    rows = replace(rows, labels=None, models={})
    labels = list(rows.values)
    methods = (chosen, *(label for label in labels if label != chosen))
    sites = judge_sites(Evidence(
        score=score, split="test", higher_is_better=higher, methods=methods, alone=chosen, parties=parties,
        metrics=metrics.iloc[:0], seeds=tuple(record.seeds), rows=rows, train=record.data.train))
    assert sites.means is not None
    accuracies = _accuracies(metrics, record.data.test, peers)
    return {
        "score": score, "chosen": chosen, "sites": len(parties), "rows": len(np.unique(rows.row)),
        "warnings": record.warnings,
        "methods": [{"method": label, "score": _rounded(sites.means.weighted[label]), "accuracy": accuracies.get(label),
                     "gain over the chosen": None if label == chosen else _rounded(sites.means.weighted_gains[label])}
                    for label in labels],
        "advice": dict(Counter(site.advice.answer for site in record.sites if site.advice)),
        "by site": [{"site": site.name, "test_rows": site.test_rows,
                     "scores": {label: _rounded(interval) for label, interval in site.scores.items()}}
                    for site in sites.sites],
    }


def _accuracies(metrics: pd.DataFrame, test_rows: list[int], peers: pd.DataFrame) -> dict[str, float]:
    """The share of right predictions over all test rows, by method; none for regression."""
    if "accuracy" not in peers:
        return {}
    ours = metrics[(metrics["metric"] == "accuracy") & (metrics["split"] == "test")]
    ours = ours[ours["round"] == ours.groupby(["method", "seed"])["round"].transform("max")]
    weights = np.asarray(test_rows)[ours["party"].to_numpy(int)]
    ours = ours.assign(weight=weights, right=ours["value"] * weights).groupby("method")[["right", "weight"]].sum()
    return {label: round(float(value), 4) for label, value in
            [*(ours["right"] / ours["weight"]).items(), *peers.groupby("method")["accuracy"].mean().items()]}


def _rounded(interval: Interval) -> list[float]:
    return [float(f"{value:.4g}") for value in interval]
