"""The scores of the methods by seed, round and party, from which all numbers of a study are computed."""

from typing import TYPE_CHECKING

import numpy as np

from resolvent.comparisons.judgement.evidence import Evidence
from resolvent.comparisons.judgement.metrics import GAP, run_columns, title_of
from resolvent.errors import InputError
from resolvent.simulator.record.metrics_table import means_by

if TYPE_CHECKING:
    import pandas as pd

_KEYS = ["method", "seed", "round", "party"]


def scores_by_round(evidence: Evidence) -> "pd.DataFrame":
    """The score at every evaluation: the columns method, seed, round, party and value.

    With folds the value is the mean over them. The gap of the shared model has the party 0. The value is NaN where a
    model diverged.

    Raises:
        InputError: the score is defined at no site.
    """
    metrics = evidence.metrics
    rows = metrics[metrics["metric"] == evidence.score]
    if evidence.score != GAP:
        rows = rows[rows["split"] == evidence.split]
    if rows.empty:
        raise InputError(f"no site has a {title_of(evidence.score)} of its {evidence.split} rows, by which the methods "
                         "are compared: compare by another metric (decide_by), or give the sites more rows")
    rows = rows.assign(party=rows["party"].fillna(0).astype(np.int64))
    return means_by(rows, _KEYS).reset_index()


def last_scores(evidence: Evidence) -> "pd.DataFrame":
    """[method and seed, party] the score after the last round; the worst possible one where a model diverged."""
    rows = scores_by_round(evidence)
    last = rows[rows["round"] == rows.groupby(["method", "seed"])["round"].transform("max")]
    table = last.assign(value=last["value"].fillna(_worst(evidence))).pivot_table(
        index=["method", "seed"], columns="party", values="value", aggfunc="mean")
    known = set(table.index.get_level_values("method"))
    return table.reindex([m for m in evidence.methods if m in known], level="method")


def seed_means(evidence: Evidence) -> "pd.DataFrame":
    """[method, seed] the mean over the parties of the score after the last round."""
    means: pd.DataFrame = last_scores(evidence).mean(axis=1).unstack("seed").reindex(list(evidence.methods))
    return means


def curves(evidence: Evidence) -> "dict[str, pd.DataFrame]":
    """method -> [seed, round] the mean score over the parties; the worst possible one where a model diverged.

    A run that a callback has stopped keeps its last score up to the last round of the longest run.
    """
    rows = scores_by_round(evidence)
    rows["value"] = rows["value"].fillna(_worst(evidence))
    table = rows.pivot_table(index=["method", "seed"], columns="round", values="value").ffill(axis=1)
    names = table.index.get_level_values("method")
    return {method: table[names == method].droplevel("method") for method in evidence.methods}


def last_rounds(evidence: Evidence, method: str) -> dict[int, int]:
    """seed -> the last evaluated round."""
    rows = scores_by_round(evidence)
    last = rows[rows["method"] == method].groupby("seed")["round"].max()
    return {int(str(seed)): int(round_) for seed, round_ in last.items()}


def _worst(evidence: Evidence) -> float:
    return -np.inf if evidence.higher_is_better else np.inf


def cost_by_round(evidence: Evidence, method: str, seed: int, names: tuple[str, ...]) -> "pd.Series[float]":
    """round -> the sum of these metrics of the round, the mean over the folds; empty if they were not measured."""
    metrics = evidence.metrics
    rows = metrics[(metrics["method"] == method) & (metrics["seed"] == seed) & metrics["metric"].isin(names)]
    runs = rows.groupby([*run_columns(rows), "round"])["value"].sum()
    mean: pd.Series[float] = runs.groupby(level="round").mean()
    return mean
