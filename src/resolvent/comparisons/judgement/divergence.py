"""Methods whose training diverged: at which sites, since which round, and what to try."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from resolvent.comparisons.judgement.evidence import Evidence
from resolvent.comparisons.judgement.metrics import run_columns
from resolvent.comparisons.judgement.wording import enumerate_names
from resolvent.simulator.record.run_readings import diverged_parties

ALL_DIVERGED = "no method has a mean over the sites, because each diverged at a site"
_MAX_NAMED = 10  # sites that a warning names


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


def divergences(method: str, diverged: Mapping[str, int], algorithm: Any = None) -> str | None:
    """One sentence that names the sites where a method diverged, and what to try; None if it did not.

    Args:
        diverged: site -> the round since which its model has no score.
    """
    if not diverged:
        return None
    names = [f"{site} (round {round_})" for site, round_ in list(diverged.items())[:_MAX_NAMED]]
    if len(diverged) > _MAX_NAMED:
        names.append(f"{len(diverged) - _MAX_NAMED} more")
    rates = [f"{rate:g}" for rate in _learning_rates(algorithm)]
    smaller = f"smaller than {enumerate_names(rates)}" if rates else "that is smaller"
    return (f"{method}: the training diverged at {enumerate_names(names)}: the outputs of these models are not finite, "
            f"so they have no score and are no reference. Try a learning rate {smaller}, and look for extreme values "
            "among the rows of these sites.")


def _learning_rates(algorithm: Any) -> list[float]:
    """The different learning rates of an algorithm's solvers, ascending."""
    leaves = jax.tree_util.tree_flatten_with_path(algorithm)[0]
    rates = {float(leaf) for path, leaf in leaves if path and np.ndim(leaf) == 0
             and getattr(path[-1], "name", getattr(path[-1], "key", None)) == "learning_rate"}
    return sorted(rates)
