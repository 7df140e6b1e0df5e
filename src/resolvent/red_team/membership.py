"""Membership inference: can somebody with a released model tell whether a row trained it?

The members are the training rows of the site, and its validation and test rows are the others. The split is random, so
that without leakage no attack flags members more often than others.

*With shadow models* (LiRA): models are trained as the plan does, on random rows of the same number. For each row, the
logit of the probability of its label, or the negative loss of a target, is normal with one mean for the models that
have trained on it and another for those that have not. The row is flagged if the logit of the released model is more
likely with the first.

*Without them*: a row is flagged if its loss is below the mean loss of the members.

References:
    Carlini et al.: Membership Inference Attacks From First Principles, 2022, Algorithm 1, with one variance for all
    rows; Yeom et al.: Privacy Risk in Machine Learning, 2018, for the threshold.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray
from scipy import stats

from resolvent.math.tree import Vector
from resolvent.problem.learning import LearningProblem

_MIN_SHADOWS = 8
_MAX_SHADOWS = 32
_LEVEL = 0.01  # of the test whether members are flagged more often
_CONFIDENCE = 0.95


class Rate(NamedTuple):
    """A share of rows that are flagged, with its Clopper-Pearson interval of 95 %.

    Attributes:
        low: lower end of the interval of the share.
        high: upper end.
    """

    flagged: int
    rows: int
    low: float
    high: float

    @classmethod
    def of(cls, flags: NDArray[np.bool_]) -> "Rate":
        """The rate of flags.

        Example:
            >>> rate = Rate.of(np.array([True, False, False, False]))
            >>> rate.flagged, round(rate.low, 4), round(rate.high, 4)
            (1, 0.0063, 0.8059)
        """
        interval = stats.binomtest(int(flags.sum()), len(flags)).proportion_ci(_CONFIDENCE)
        return cls(int(flags.sum()), len(flags), float(interval.low), float(interval.high))


class Membership(NamedTuple):
    """The result of a membership inference.

    Attributes:
        true_positive: the share of the members that are flagged.
        false_positive: the share of the other rows that are flagged.
        p_value: of Fisher's exact test that members are flagged no more often.
        shadows: number of shadow models; 0: the threshold of the loss was used.
    """

    true_positive: Rate
    false_positive: Rate
    p_value: float
    shadows: int

    @property
    def is_more_than_chance(self) -> bool:
        """Whether members are flagged more often, at the level 0.01."""
        return self.p_value < _LEVEL


def attack_membership(problem: LearningProblem, released: Vector, train: Callable[[LearningProblem], Vector | None],
                      seconds_left: Callable[[], float], progress: Callable[[str], None] = lambda line: None,
                      seed: int = 0) -> Membership | None:
    """Attack a released model; None if there are no other rows than the training rows.

    Args:
        train: a problem with other training rows -> the model that would have left.
        seconds_left: the time that is left; it is asked for the first time after the first shadow model, which includes
            the compilation. If there is not enough for eight models, no more are trained.
    """
    rows, samples = _rows(problem), int(problem.sizes[0])
    if len(rows) == samples:
        return None
    is_member = np.arange(len(rows)) < samples
    logits = _logits(problem, released, rows)
    rng = np.random.default_rng(seed)
    trained: list[NDArray[np.bool_]] = []
    shadows: list[NDArray[np.float64]] = []
    while len(shadows) < _MAX_SHADOWS and (not shadows or seconds_left() > 0):
        begin, chosen = time.monotonic(), rng.permutation(len(rows))[:samples]
        progress(f"membership inference: shadow model {len(shadows) + 1}")
        model = train(shadow_problem(problem, rows[chosen]))
        if model is None:
            break
        trained.append(np.isin(np.arange(len(rows)), chosen))
        shadows.append(_logits(problem, model, rows))
        needed = max(_MIN_SHADOWS - len(shadows), 1) * (time.monotonic() - begin)
        if len(shadows) > 1 and needed > seconds_left():
            break
    if len(shadows) < _MIN_SHADOWS:
        losses = _losses(problem, released, rows)
        return judge_flags(losses < losses[is_member].mean(), is_member, 0)
    return judge_flags(_likelihood_ratio(logits, np.stack(shadows), np.stack(trained)) > 0, is_member, len(shadows))


def judge_flags(flags: NDArray[np.bool_], is_member: NDArray[np.bool_], shadows: int) -> Membership:
    """Rates, and the test whether members are flagged more often than other rows."""
    members, others = flags[is_member], flags[~is_member]
    table = [[int(members.sum()), int((~members).sum())], [int(others.sum()), int((~others).sum())]]
    p_value = float(stats.fisher_exact(table, alternative="greater").pvalue)
    return Membership(Rate.of(members), Rate.of(others), p_value, shadows)


def shadow_problem(problem: LearningProblem, chosen: NDArray[np.integer]) -> LearningProblem:
    """The same problem with these rows as training rows, at the positions of the training rows."""
    first, samples = int(problem.offset[0, 0]), len(chosen)
    positions = slice(first, first + samples)
    x, y = jax.tree.map(lambda leaf: leaf.at[positions].set(leaf[chosen]), (problem.x, problem.y))
    return problem.with_samples(x, y, problem.offset, problem.length, problem.sizes)


def _rows(problem: LearningProblem) -> NDArray[np.intp]:
    """The positions of all rows of the site, the training rows first."""
    offset, length = (np.asarray(part)[:, 0] for part in (problem.offset, problem.length))
    of_splits = [np.arange(first, first + n, dtype=np.intp) for first, n in zip(offset, length, strict=True)]
    return np.concatenate(of_splits)


def _losses(problem: LearningProblem, model: Vector, rows: NDArray[np.intp]) -> NDArray[np.float64]:
    losses = problem.model.loss.loss(problem.model.apply(model, problem.x[rows]), problem.labels[rows])
    return np.asarray(jax.device_get(losses), np.float64)


def _logits(problem: LearningProblem, model: Vector, rows: NDArray[np.intp]) -> NDArray[np.float64]:
    """[rows] log(p / (1 - p)) of the label's probability p = exp(-loss); for targets the negative loss."""
    losses = _losses(problem, model, rows)
    return -losses - np.log(np.maximum(-np.expm1(-losses), 1e-12)) if problem.has_classes else -losses


def _likelihood_ratio(logits: NDArray[np.float64], shadows: NDArray[np.float64],
                      trained: NDArray[np.bool_]) -> NDArray[np.float64]:
    """[rows] log of the likelihood of a logit with the row among the training rows, minus that without it.

    Args:
        logits: [rows] of the released model.
        shadows: [models, rows] of the shadow models.
        trained: [models, rows] whether a shadow model has trained on the row.
    """
    means, squares = [], []
    for is_chosen in (trained, ~trained):
        count = is_chosen.sum(axis=0)
        # A row that all models have, or none, has no ratio.
        mean = np.where(count > 0, (shadows * is_chosen).sum(axis=0) / np.maximum(count, 1), np.nan)
        means.append(mean)
        squares.append(np.where(is_chosen, (shadows - mean) ** 2, 0.0))
    variance = np.nansum(squares) / max(shadows.size - 2 * shadows.shape[1], 1)
    likelihoods = [-((logits - mean) ** 2) / (2 * max(variance, 1e-12)) for mean in means]
    ratio: NDArray[np.float64] = likelihoods[0] - likelihoods[1]
    return np.where(np.isnan(ratio), -np.inf, ratio)
