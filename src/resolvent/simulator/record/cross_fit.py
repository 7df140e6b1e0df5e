"""Validation scores of methods whose parties choose their models by validation samples.

If the samples by which a party chooses its model also scored it, the method would have an advantage over methods that
choose nothing. The validation samples of each party are therefore divided into two halves. Each half scores the model
that the other half chooses, and the score of the party is the mean over all its validation samples. The samples of a
party are in random order, so that each half is a random half. The model that the party uses is chosen by all of them.
Training is not repeated: only personal models are chosen again.

References:
    Chernozhukov, Chetverikov, Demirer, Duflo, Hansen, Newey, Robins: Double/debiased machine learning for treatment and
    structural parameters, The Econometrics Journal 21, 2018 (cross-fitting).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from resolvent.math.tree import Vector
from resolvent.problem.learning import LearningProblem
from resolvent.problem.problem import PartyScores, Problem
from resolvent.simulator.engine.evaluate import evaluate_models

_SPLIT = "validation"


class Half(NamedTuple):
    """Models that one half of the validation samples chose, and the other half.

    Attributes:
        problem: the problem, whose only samples are the half that scores: it is the validation split.
        models: leaves [M, ...], the models that the other half chose.
    """

    problem: Problem
    models: Vector


def cross_fit(problem: Problem, choose: Callable[[Problem], Vector]) -> tuple[Half, ...]:
    """Both halves of the validation samples; none if the problem has no validation samples that can be divided.

    Args:
        choose: problem -> the models [M, ...] that parties choose by its validation samples.
    """
    if _SPLIT not in problem.splits or not _learning_problems(problem):
        return ()
    return tuple(Half(_with_half(problem, half, is_alone=True), choose(_with_half(problem, 1 - half)))
                 for half in (0, 1))


def cross_fitted_scores(problem: Problem, scores: PartyScores, halves: tuple[Half, ...],
                        index: Int[Array, " M"]) -> PartyScores:
    """Scores [M, splits], with those of the validation samples from both halves.

    Args:
        halves: both halves, or none: then the scores do not change.
        index: [M] ids of the parties.
    """
    if not halves:
        return scores
    split, rows = problem.splits.index(_SPLIT), np.asarray(problem.row(index))
    sizes = [np.asarray(half.problem.split_sizes(split))[rows] for half in halves]
    of_halves = [evaluate_models(half.problem, half.models, index) for half in halves]
    total = np.sum(sizes, axis=0)
    fitted = {}
    for name, values in scores.items():  # with NumPy: JAX would compile each operation
        of_splits = np.array(values)
        dtype, sums = of_splits.dtype, np.zeros(len(total), of_splits.dtype)
        for size, of_half in zip(sizes, of_halves, strict=True):
            np.add(sums, size.astype(dtype) * np.asarray(of_half[name])[:, split], out=sums, where=size > 0)
        of_splits[:, split] = np.where(total > 0, sums / np.maximum(total, 1).astype(dtype), np.nan)
        fitted[name] = jnp.asarray(of_splits)
    return fitted


def _with_half(problem: Problem, half: int, *, is_alone: bool = False) -> Problem:
    """The problem with half of each party's validation samples; alone: without any other samples."""
    def of_node(node: object) -> object:
        return node.with_half(_SPLIT, half, is_alone=is_alone) if isinstance(node, LearningProblem) else node

    changed: Problem = jax.tree.map(of_node, problem, is_leaf=_is_learning)
    return changed


def _learning_problems(problem: Problem) -> list[LearningProblem]:
    return [node for node in jax.tree.leaves(problem, is_leaf=_is_learning) if isinstance(node, LearningProblem)]


def _is_learning(node: object) -> bool:
    return isinstance(node, LearningProblem)
