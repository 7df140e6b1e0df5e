"""Intervals that fit special metrics: shares of rows, and areas under the ROC curve."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.math.score_intervals import paired_interval, wilson_interval
from resolvent.predict.intervals import Interval, covariance_of_means, explained_variance, student_quantile

Array = NDArray[np.float64]


def share_interval(values: Array, is_tested: NDArray[np.bool_]) -> Interval:
    """Wilson's interval of the share of rows with the value 1, over all seeds.

    Args:
        values: [S, n] the value of row i with seed s, 0 or 1; not read where the row was not tested.
        is_tested: [S, n] whether row i was a test row of seed s; each row is a test row of at least one seed.
    """
    share = float(values[is_tested].mean())
    number, z = _effective_number(values, is_tested, share * (1 - share))
    return _interval(share, wilson_interval(share, number, z))


def gains_of_shares(values: Array, is_tested: NDArray[np.bool_]) -> list[Interval]:
    """Tango's intervals of Q means of differences of two values that are 0 or 1, over all seeds.

    Args:
        values: [Q, S, n] the differences at row i with seed s: -1, 0 or 1; not read where the row was not tested.
        is_tested: [S, n] as in ``share_interval``.
    """
    tested = values[:, is_tested]
    gained, lost = (tested > 0).mean(axis=1), (tested < 0).mean(axis=1)
    effective = [_effective_number(v, is_tested, float(variance)) for v, variance in zip(
        values, gained + lost - (gained - lost) ** 2, strict=True)]
    low, high = paired_interval(gained, lost, *np.reshape(effective, (-1, 2)).T)
    return [_interval(float(value), ends) for value, *ends in zip(gained - lost, low, high, strict=True)]


def _effective_number(values: Array, is_tested: NDArray[np.bool_], variance: float) -> tuple[float, float]:
    """The number of independent rows that know as much, and the quantile of Student's distribution for them.

    The variance of the mean is that of the rows, each with its values of all seeds, plus what the seeds' means vary
    beyond it.
    """
    seeds, rows = is_tested.shape
    counts = is_tested.sum(axis=0)
    sums = np.where(is_tested, values, 0.0).sum(axis=0)
    mean = sums.sum() / counts.sum()
    of_rows = float(np.sum((sums - mean * counts) ** 2) / counts.sum() ** 2)
    between = float(np.var(np.where(is_tested, values, 0.0).sum(axis=1) / is_tested.sum(axis=1), ddof=1)) \
        if seeds > 1 else 0.0
    of_seeds = max(0.0, between - float(explained_variance(values[None], is_tested)[0])) / seeds if seeds > 1 else 0.0
    total = of_rows + of_seeds
    if variance == 0 or total == 0:
        return float(rows), float(student_quantile(rows - 1))
    uncertain = of_rows**2 / max(rows - 1, 1) + ((between / seeds) ** 2 / (seeds - 1) if of_seeds else 0.0)
    number = np.clip(variance / total, 1.0, counts.sum())
    return float(number), float(student_quantile(total**2 / uncertain))


def _interval(value: float, ends: Sequence[Array]) -> Interval:
    return Interval(value, min(float(ends[0]), value), max(float(ends[1]), value))


class RankScores(NamedTuple):
    """The areas under the ROC curve of M methods, on the same rows.

    A score has Wilson's interval with the number of rows that gives DeLong's variance A (1 - A) / n; it stays inside
    [0, 1] and has a width where the area is 1. The interval of a difference comes from those of both areas and their
    correlation (Zou and Donner):

    .. code-block:: text

        low  = d - sqrt(a^2 + b^2 - 2 r a b),   a = A_1 - low_1,   b = high_2 - A_2
        high = d + sqrt(a^2 + b^2 - 2 r a b),   a = high_1 - A_1,  b = A_2 - low_2

    Attributes:
        areas: [M] the areas, means over the seeds.
        covariance: [M, M] their covariance by DeLong, with the variance between seeds.
        freedom: degrees of freedom of the covariance.
        rarest: number of rows of the rarest class.

    Source: DeLong, DeLong, Clarke-Pearson, *Comparing the Areas under Two or More Correlated Receiver Operating
    Characteristic Curves*, Biometrics 1988; Zou, Donner, *Construction of Confidence Limits about Effect Measures*,
    Statistics in Medicine 2008.
    """

    areas: Array
    covariance: Array
    freedom: float
    rarest: int

    @classmethod
    def of(cls, values: Array, is_tested: NDArray[np.bool_], classes: NDArray[np.integer]) -> "RankScores":
        """From components [M, S, n] whose mean over classes of means over rows is the area."""
        seeds, rarest = len(is_tested), int(np.unique(classes, return_counts=True)[1].min())
        means, covariance = covariance_of_means(values, is_tested, classes)
        return cls(means, covariance, float(rarest - 1 if seeds == 1 else min(rarest - 1, 2 * seeds)), rarest)

    def score(self, method: int) -> Interval:
        """The area of a method."""
        area = float(self.areas[method])
        shrunk = (area * self.rarest + 0.5) / (self.rarest + 1)  # so that an area of 1 has a variance
        variance = max(float(self.covariance[method, method]), shrunk * (1 - shrunk) / (12 * self.rarest**2))
        number = max(area * (1 - area), shrunk * (1 - shrunk)) / variance
        return _interval(area, wilson_interval(np.clip(area, 0, 1), min(number, 4.0 * self.rarest),
                                               student_quantile(self.freedom)))

    def gain(self, method: int, reference: int) -> Interval:
        """The difference of the areas of two methods."""
        first, second = self.score(method), self.score(reference)
        deviations = np.sqrt(np.diag(self.covariance)[[method, reference]])
        product = float(np.prod(deviations))
        r = float(self.covariance[method, reference]) / product if product > 0 else 0.0
        value = first.value - second.value
        ends = []
        for a, b in ((first.value - first.low, second.high - second.value),
                     (first.high - first.value, second.value - second.low)):
            ends.append(np.sqrt(max(a**2 + b**2 - 2 * r * a * b, 0.0)))
        return Interval(value, value - float(ends[0]), value + float(ends[1]))
