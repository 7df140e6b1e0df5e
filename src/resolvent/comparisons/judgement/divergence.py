"""Methods whose training diverged or collapsed: where, and what to try."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from resolvent.comparisons.judgement.evidence import Evidence
from resolvent.comparisons.judgement.metrics import format_value, run_columns, title_of
from resolvent.comparisons.judgement.wording import enumerate_names
from resolvent.simulator.record.run_readings import diverged_parties

ALL_DIVERGED = "no method has a mean over the sites, because each diverged at a site"
_MAX_NAMED = 10  # sites that a warning names
_SPREAD = 10  # times the spread of the others
_SMALLEST_SPREAD = 0.02  # of a share


def no_reference(alone: str) -> str:
    """The part of a finding that says that training alone diverged at every site."""
    return f"{alone} diverged at every site, so that there is no gain over training alone"


def diverged_sites(evidence: Evidence) -> dict[str, dict[str, int]]:
    """Method -> site -> the round since which its model has no score; methods that did not diverge are left out.

    Of several seeds, it is the smallest round of those that diverged.
    """
    metrics, sites = evidence.metrics, dict[str, dict[str, int]]()
    for method in evidence.methods:
        rows = metrics[metrics["method"] == method]
        keys = run_columns(rows)
        runs = [run for _, run in rows.groupby(keys)] if keys else [rows]
        rounds: dict[int, int] = {}
        for run in runs:
            for party, round_ in diverged_parties(run, evidence.score).items():
                rounds[party] = min(round_, rounds.get(party, round_))
        if rounds:
            sites[method] = {evidence.parties[party]: rounds[party] for party in sorted(rounds)}
    return sites


def collapses(evidence: Evidence) -> dict[str, str]:
    """Method -> why its training counts as collapsed; such a method is marked everywhere, and best nowhere.

    It collapsed if the test rows of a seed have, by more than two standard errors, worse values than the predictions
    that need no training, and the training of this seed lost at least half of what it had gained at its best
    evaluation, so that a method which is still learning is none; or if the standard deviation over the seeds of its
    mean over the sites is ten times the median of the other methods', and at least 0.02 where the score is a share.
    """
    reasons: dict[str, str] = {}
    unit, rows, sign = title_of(evidence.score), evidence.rows, 1 if evidence.higher_is_better else -1
    metrics = evidence.metrics
    scores = metrics[(metrics["metric"] == evidence.score) & (metrics["split"] == evidence.split)]
    if scores.empty:  # the sites keep their scores
        return reasons
    curves = sign * scores.groupby(["method", "seed", "round"])["value"].mean().unstack("round")
    for method, seed in curves.index if rows is not None and evidence.baseline in rows.values else ():
        assert rows is not None
        curve = curves.loc[(method, seed)].dropna().to_numpy()
        gains = sign * (rows.values[method] - rows.values[str(evidence.baseline)])[rows.seed == seed]
        if len(gains) > 1 and np.isfinite(gains).all() and 2 * (curve[-1] - curve[0]) <= curve.max() - curve[0] and (
                gains.mean() < -2 * gains.std(ddof=1) / np.sqrt(len(gains))):
            reasons.setdefault(method, f"with seed {seed} its {unit} is worse than that of the {evidence.baseline}")
    spreads = curves.ffill(axis=1).iloc[:, -1].groupby("method").std()
    for method in spreads.index[np.isfinite(spreads)]:
        others, spread = float(spreads.drop(method).median()), float(spreads[method])
        if spread > _SPREAD * others and (not evidence.is_share or spread > _SMALLEST_SPREAD):
            reasons.setdefault(method, f"the standard deviation of its {unit} over the seeds is "
                               f"{format_value(spread, evidence.score)}, and that of the others "
                               f"{format_value(others, evidence.score)}")
    return {method: reasons[method] for method in evidence.methods if method in reasons}


def collapse_text(method: str, reason: str) -> str:
    """One sentence that says why a method collapsed, and what to try."""
    return (f"{method} collapsed: {reason}. It is marked in tables and best in none. Try a smaller learning rate, "
            "clipped gradients, or more rounds.")


def divergences(method: str, diverged: Mapping[str, int], algorithm: Any = None) -> str | None:
    """One sentence that names the sites where a method diverged, and what to try; None if it did not.

    Args:
        diverged: site -> the round since which its model has no score.
    """
    if not diverged:
        return None
    names = [f"{site} (round {round_})" for site, round_ in diverged.items()]
    rates = [f"{rate:g}" for rate in _learning_rates(algorithm)]
    smaller = f"smaller than {enumerate_names(rates)}" if rates else "that is smaller"
    return (f"{method}: the training diverged at {enumerate_names(names, _MAX_NAMED)}: the outputs of these models are "
            f"not finite, so they have no score and are no reference. Try a learning rate {smaller}, and look for "
            "extreme values among the rows of these sites.")


def _learning_rates(algorithm: Any) -> list[float]:
    """The different learning rates of an algorithm's solvers, ascending."""
    leaves = jax.tree_util.tree_flatten_with_path(algorithm)[0]
    rates = {float(leaf) for path, leaf in leaves if path and np.ndim(leaf) == 0
             and getattr(path[-1], "name", getattr(path[-1], "key", None)) == "learning_rate"}
    return sorted(rates)
