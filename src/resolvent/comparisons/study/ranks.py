"""Ranks of methods over data sets or parties: Friedman's test, and Nemenyi's critical difference."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.predict.intervals import LEVEL

if TYPE_CHECKING:
    import pandas as pd


class Ranks(NamedTuple):
    """The ranks of the methods over several blocks, such as data sets.

    Attributes:
        mean: method -> its mean rank, the best first; 1 is the best.
        blocks: number of blocks.
        p_value: Friedman's test that all methods have the same mean rank; NaN for two methods or one block.
        critical_difference: the difference of two mean ranks from which on Nemenyi's test of level 0.05 distinguishes
            them; NaN for one block.
        groups: the largest sets of methods that the test does not distinguish from each other.
    """

    mean: "pd.Series[float]"
    blocks: int
    p_value: float
    critical_difference: float
    groups: tuple[tuple[str, ...], ...]


def rank_methods(scores: "pd.DataFrame", *, higher_is_better: bool) -> Ranks:
    """The ranks of the methods; ties have their mean rank, and blocks in which a score is missing do not count.

    Args:
        scores: [block, method] the scores; infinite for a method that diverged.
        higher_is_better: whether larger scores are better.

    References:
        Demsar: Statistical comparisons of classifiers over multiple data sets, Journal of Machine Learning Research 7,
        2006.
    """
    scores = scores.dropna()
    ranks = scores.rank(axis=1, ascending=not higher_is_better)
    mean = ranks.mean().sort_values(kind="stable")
    blocks, methods = ranks.shape
    difference = critical_difference(methods, blocks)
    return Ranks(mean, blocks, _friedman(ranks.to_numpy()), difference, _groups(mean, difference))


def critical_difference(methods: int, blocks: int) -> float:
    """Nemenyi's critical difference q * sqrt(k (k + 1) / (6 n)) of k mean ranks over n blocks.

    q is the quantile of the studentised range of k normal variables, divided by sqrt(2).
    """
    from scipy.stats import studentized_range  # here, because its import takes 0.5 s

    if blocks < 2 or methods < 2:
        return float("nan")
    quantile = float(studentized_range.ppf(LEVEL, methods, np.inf)) / np.sqrt(2)
    return float(quantile * np.sqrt(methods * (methods + 1) / (6 * blocks)))


def _friedman(ranks: NDArray[np.float64]) -> float:
    from scipy.stats import friedmanchisquare

    blocks, methods = ranks.shape
    if blocks < 2 or methods < 3 or not np.ptp(ranks):
        return float("nan")
    return float(friedmanchisquare(*ranks.T).pvalue)


def _groups(mean: "pd.Series[float]", difference: float) -> tuple[tuple[str, ...], ...]:
    """The longest runs of neighbouring mean ranks that differ by at most the critical difference."""
    values, names = mean.to_numpy(), [str(name) for name in mean.index]
    groups, last_end = [], 0
    for first in range(len(values)):
        end = int(np.searchsorted(values, values[first] + difference, side="right"))
        if end - first > 1 and end > last_end:
            groups.append(tuple(names[first:end]))
            last_end = end
    return tuple(groups)
