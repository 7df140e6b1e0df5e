"""The scores of a model on the samples of one party: the loss, the score, and further metrics."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.problem import Problem
from resolvent.simulator.engine.evaluate import evaluate_models
from resolvent.simulator.record.cross_fit import cross_fit, cross_fitted_scores
from resolvent.simulator.record.party_metrics import HELD_OUT, PartyMetrics


def scores_of_model(problem: Problem, model: Vector, metrics: PartyMetrics | None, min_cell: int = 1,
                    scored: Sequence[str] | None = None,
                    choose: Callable[[Problem], Vector] | None = None) -> dict[str, dict[str, float | None]]:
    """Name of a score -> split -> its value; None if it is not finite. A split with fewer samples is left out.

    Args:
        metrics: are measured on validation and test samples, where the labels define them; None: no metrics.
        min_cell: smallest number of samples of a split; at least 1.
        scored: the splits whose scores are computed; None: all.
        choose: problem -> the model that the party chooses by its validation samples, which are then divided into
            halves, see ``cross_fit``; None: the model does not depend on them.
    """
    stacked, first = tree.stack(model, 1), np.zeros(1, np.int32)
    halves = () if choose is None else cross_fit(problem, lambda half: tree.stack(choose(half), 1))
    sizes = [int(problem.split_sizes(i)[0]) if scored is None or split in scored else 0
             for i, split in enumerate(problem.splits)]
    scores = {name: {split: _finite(value) for split, value, size in zip(
        problem.splits, np.asarray(values)[0], sizes, strict=True) if size >= min_cell}
        for name, values in cross_fitted_scores(
            problem, evaluate_models(problem, stacked, jnp.asarray(first)), halves, jnp.asarray(first)).items()}
    if metrics is None:
        return scores
    measured = metrics.measure(problem, stacked, first, first, halves)
    size_of = dict(zip(problem.splits, sizes, strict=True))
    return scores | {name: {split: _finite(measured.values[0, number, i]) for number, split in enumerate(HELD_OUT)
                            if measured.is_defined[0, number, i] and size_of.get(split, 0) >= min_cell}
                     for i, name in enumerate(metrics.metrics)}


def round_scores(content: Any, digits: int | None) -> Any:
    """Plain values in which numbers that are not whole have this number of significant digits; None: all."""
    if isinstance(content, dict):
        return {name: round_scores(value, digits) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [round_scores(value, digits) for value in content]
    return float(f"{content:.{digits}g}") if digits is not None and type(content) is float else content


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
