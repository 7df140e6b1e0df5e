r"""The scores of a model on the samples of one party: the loss, the score, and further metrics.

**What a score tells.** A share of n rows is a count, an equation about the rows: whoever chooses the models and reads
as many exact counts as there are rows solves for the rows. So a score that leaves a site is rounded to a multiple of

.. math:: s = \max\!\Big(\frac{1}{4\sqrt{n}},\ \frac{c}{n}\Big), \quad c = \text{min\_cell},

the larger of half the largest standard error of a share and of c rows. It is the multiple above or below, drawn by the
operating system with the probabilities that make the mean of the answer the score itself. Then

1. *A row changes an answer with a probability of at most 1/c.* It changes the score by at most 1/n, and the
   probability of either multiple by at most 1/(n s) <= 1/c. Over k evaluations that is at most k/c for each row.
2. *All rows together.* An answer is one of at most n/c + 1 multiples, and so says at most log2(n/c + 1) bits about all
   rows: 3 for 36 rows, 4.4 for 100, with c = 5. ``max_scores`` allows k <= n/3 answers, fewer equations than a third
   of the unknown numbers, each with an error of the standard deviation up to s/2.

For a metric by class, n is the number of rows of the rarest class. The loss of a row has no bound, so that one row
could be seen in the mean of many: losses are cut off at four times that of the best constant, rounded up to a power of
two, which depends on no model, and rounded as a share of this range. A prediction that is not finite has the worst
value. A metric without a range, such as R2, does not leave a site this way.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.learning import LearningProblem
from resolvent.problem.problem import Problem
from resolvent.simulator.engine.evaluate import evaluate_models
from resolvent.simulator.record.cross_fit import Half, cross_fit, cross_fitted_scores
from resolvent.simulator.record.metrics_table import HELD_OUT, PartyMetrics

_random = random.SystemRandom()


def scores_of_model(problem: Problem, model: Vector, metrics: PartyMetrics | None, min_cell: int = 1,
                    scored: Sequence[str] | None = None,
                    choose: Callable[[Problem], Vector] | None = None) -> dict[str, dict[str, float | None]]:
    """Name of a score -> split -> its value; None if it is not finite. A split with fewer samples is left out.

    Args:
        metrics: are measured on validation and test samples, where the labels define them; None: no metrics.
        min_cell: smallest number of samples of a split; at least 1. From 2 on, scores are rounded at random.
        scored: the splits whose scores are computed; None: all.
        choose: problem -> the model that the party chooses by its validation samples, which are then divided into
            halves, see ``cross_fit``; None: the model does not depend on them.
    """
    stacked, first = tree.stack(model, 1), np.zeros(1, np.int32)
    halves = () if choose is None else cross_fit(problem, lambda half: tree.stack(choose(half), 1))
    sizes = {split: int(problem.split_sizes(i)[0]) if scored is None or split in scored else 0
             for i, split in enumerate(problem.splits)}
    if min_cell > 1:
        scores = _rounded_means(problem, model, halves, min_cell, sizes)
    else:
        scores = {name: {split: _finite(value) for split, value in zip(
            problem.splits, np.asarray(values)[0], strict=True) if sizes[split] >= min_cell}
            for name, values in cross_fitted_scores(
                problem, evaluate_models(problem, stacked, jnp.asarray(first)), halves, jnp.asarray(first)).items()}
    if metrics is None:
        return scores
    measured = metrics.measure(problem, stacked, first, first, halves)
    for i, (name, metric) in enumerate(metrics.metrics.items()):
        scores[name] = {}
        for number, split in enumerate(HELD_OUT):
            rows, value = sizes.get(split, 0), measured.values[0, number, i]
            if not measured.is_defined[0, number, i] or rows < min_cell:
                continue
            if min_cell == 1:
                scores[name][split] = _finite(value)
                continue
            rarest = rows if metric.sampling == "rows" else _rarest(problem, split)
            if rarest >= min_cell and np.isfinite(metric.limits).all():
                worst = min(metric.limits) if metric.higher_is_better else max(metric.limits)
                scores[name][split] = rounded_at_random(value if np.isfinite(value) else worst, rarest, min_cell,
                                                        metric.limits)
    return scores


def rounded_at_random(value: float, rows: int, min_cell: int, limits: tuple[float, float] = (0.0, 1.0)) -> float:
    """A mean over rows, rounded to a multiple of s of its range, which divides the range; its mean is the value.

    Args:
        limits: the smallest and the largest possible value of a row.
    """
    low, high = limits
    parts = max(1, math.floor(1 / max(1 / (4 * math.sqrt(rows)), min_cell / rows)))
    multiple = math.floor((value - low) / (high - low) * parts + _random.random())
    return low + (high - low) * min(max(multiple, 0), parts) / parts


def smallest_split(sizes: Mapping[str, int], min_cell: int) -> int:
    """The number of rows of the smallest split whose scores may leave; 0 without one."""
    return min((rows for rows in sizes.values() if rows >= min_cell), default=0)


def round_scores(content: Any, digits: int | None) -> Any:
    """Plain values in which numbers that are not whole have this number of significant digits; None: all."""
    if isinstance(content, dict):
        return {name: round_scores(value, digits) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [round_scores(value, digits) for value in content]
    return float(f"{content:.{digits}g}") if digits is not None and type(content) is float else content


def _rounded_means(problem: Problem, model: Vector, halves: Sequence[Half], min_cell: int,
                   sizes: Mapping[str, int]) -> dict[str, dict[str, float | None]]:
    """The mean loss and the mean score, rounded at random; without those whose rows have no range."""
    from resolvent.comparisons.judgement.metrics import is_share  # here: a process that scores nothing stays light

    scores: dict[str, dict[str, float | None]] = {"loss": {}, problem.score_name: {}}
    local = problem.local()
    if not isinstance(local, LearningProblem) or local.model.loss.needs_batch:
        return scores
    for split, rows in sizes.items():
        if rows < min_cell:
            continue
        has_halves = bool(halves) and split == "validation"
        models = [(half.problem.local(), tree.rows(half.models, 0)) for half in halves] if has_halves else [
            (local, model)]
        values = np.concatenate([of_model.evaluate_rows(w, _rows_of(of_model, split)) for of_model, w in models
                                 if isinstance(of_model, LearningProblem)], axis=1)
        for name, of_rows in zip(("loss", problem.score_name), values, strict=True):
            largest = 1.0 if is_share(name) else _largest_loss(local, split)
            if np.isfinite(largest):
                worst = 0.0 if is_share(name) else largest
                mean = np.clip(np.nan_to_num(of_rows, nan=worst, posinf=worst), 0.0, largest).mean()
                scores[name][split] = rounded_at_random(float(mean), rows, min_cell, (0.0, largest))
    return scores


def _largest_loss(problem: LearningProblem, split: str) -> float:
    """Where the losses of rows are cut off; nan for labels that have no best constant."""
    from resolvent.comparisons.judgement.advice import base_loss

    labels = _labels_of(problem, split)
    base = base_loss(labels, kind="classes" if problem.has_classes else "numbers") if labels.ndim == 1 else math.nan
    return 2.0 ** math.ceil(math.log2(4 * base)) if base > 0 else math.nan


def _rarest(problem: Problem, split: str) -> int:
    """The number of rows of the rarest class in a split; 0 for labels without classes."""
    local = problem.local()
    if not isinstance(local, LearningProblem) or not local.has_classes:
        return 0
    return int(np.unique(_labels_of(local, split), return_counts=True)[1].min())


def _labels_of(problem: LearningProblem, split: str) -> NDArray[Any]:
    labels = problem.labels
    return np.asarray(labels)[_rows_of(problem, split)] if hasattr(labels, "ndim") else np.zeros((0, 0))


def _rows_of(problem: LearningProblem, split: str) -> NDArray[np.integer]:
    number = problem.splits.index(split)
    first = int(np.asarray(problem.offset)[number, 0])
    return np.arange(first, first + int(np.asarray(problem.length)[number, 0]))


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
