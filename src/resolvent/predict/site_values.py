"""The scores and the gains at one site, with intervals, from the values of its test rows."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.predict.intervals import Interval, Sample, covariance_of_means, interval_of, resample
from resolvent.predict.special_intervals import RankScores, gains_of_shares, share_interval
from resolvent.problem.metrics.metric import Sampling

SEED = 20_240_229  # seed of the bootstrap

Values = NDArray[np.float64]


class SiteRows(NamedTuple):
    """The test rows of one site.

    Attributes:
        values: method -> [S, n] the value of each row with each seed; nan where the row was not tested.
        is_tested: [S, n] whether a row is a test row of a seed.
        classes: [n] the class of each row, if rows are resampled within their class; otherwise None.
    """

    values: dict[str, Values]
    is_tested: NDArray[np.bool_]
    classes: NDArray[np.int64] | None = None

    @property
    def rarest_class(self) -> int:
        """The number of rows of the rarest class; 0 if rows are not resampled by class."""
        return 0 if self.classes is None else int(np.unique(self.classes, return_counts=True)[1].min())


class SiteValues(NamedTuple):
    """The scores of M methods at a site, then the gains of those that are not training alone: Q quantities.

    Attributes:
        variances: [Q] the unbiased variances of the values.
        sample: the resampled means of the quantities; a seed that tests no row has the mean over all seeds.
        limits: [Q, 2] the smallest and the largest possible mean, which may be infinite.
        is_finite: whether all values are finite.
    """

    intervals: list[Interval]
    variances: Values
    sample: Sample
    limits: Values
    is_finite: bool


def measure_site(rows: SiteRows, methods: Sequence[str], alone: str | None, sampling: Sampling, party: int, *,
                 higher_is_better: bool, limits: tuple[float, float] = (-np.inf, np.inf)) -> SiteValues:
    """The score of each method and its gain over training alone.

    Args:
        rows: the values of the site's test rows.
        sampling: how intervals resample the rows.
        party: id of the site, from which its random numbers follow: other sites do not change its intervals.
        higher_is_better: whether larger values are better.
        limits: the smallest and the largest possible score, which end the intervals.
    """
    is_used = rows.is_tested.any(axis=1)  # a seed that tests no row of the site says nothing about it
    tested, rng = rows.is_tested[is_used], np.random.default_rng([SEED, party])
    scores = np.stack([rows.values[m][is_used] for m in methods])
    if sampling != "rows":
        assert rows.classes is not None
        scores = _by_class(scores, tested, rows.classes)
    gains = np.zeros((0, *tested.shape))
    if alone is not None:
        sign = 1.0 if higher_is_better else -1.0
        gains = np.stack([difference(scores[i], scores[methods.index(alone)], sign)
                          for i, m in enumerate(methods) if m != alone] or [gains[:0]]).reshape(-1, *tested.shape)
    values = np.concatenate([scores, gains])
    finite = np.isfinite(values[:, tested]).all(axis=1)
    is_binary = sampling == "rows" and bool(np.isin(scores[:, tested], (0.0, 1.0)).all())
    if is_binary:
        limits = 0.0, 1.0
    bounds = _bounds(scores, gains, tested, is_unit=tuple(limits) == (0, 1))
    size = limits[1] - limits[0]
    ends = np.array([limits] * len(scores) + [(-size, size)] * len(gains), float).reshape(-1, 2)
    used = np.where(np.isfinite(values), values, 0.0)
    sample = resample(used, tested, bounds, rng, rows.classes if sampling != "rows" else None)
    if is_binary:
        shares, differences = np.split(used, [len(scores)])
        intervals = [*(share_interval(v, tested) for v in shares), *gains_of_shares(differences, tested)]
    else:
        intervals = interval_of(sample, rng, ends)
    if sampling == "ranks":
        assert rows.classes is not None
        ranks = RankScores.of(used[:len(scores)], tested, rows.classes)
        reference = None if alone is None else methods.index(alone)
        intervals = [ranks.score(i) for i in range(len(scores))] + [
            ranks.gain(i, reference) for i in range(len(scores)) if reference is not None and i != reference]
    by_seed = np.tile(sample.values[:, None], len(rows.is_tested))
    by_seed[:, is_used] = sample.by_seed
    variances = np.diag(covariance_of_means(used, tested, rows.classes if sampling != "rows" else None)[1])
    return SiteValues([interval if ok else not_finite(values[i][tested]) for i, (interval, ok) in enumerate(
        zip(intervals, finite, strict=True))], variances, sample._replace(by_seed=by_seed), ends, bool(finite.all()))


def _by_class(values: Values, is_tested: NDArray[np.bool_], classes: NDArray[np.integer]) -> Values:
    """[M, S, n] values whose mean over classes of means over rows is the score, from values whose mean is the score."""
    result = np.full(values.shape, np.nan)
    for s, tested in enumerate(is_tested):
        _, number, count = np.unique(classes[tested], return_inverse=True, return_counts=True)
        result[:, s, tested] = values[:, s, tested] * (len(count) / tested.sum()) * count[number]
    return result


def _bounds(scores: Values, gains: Values, is_tested: NDArray[np.bool_], *, is_unit: bool) -> Values:
    """[Q, 2] the smallest and the largest value that a row can have; the extremes of the values if they are unknown."""
    if is_unit:
        score, largest = (0.0, 1.0), np.ones(len(gains))
    else:
        finite = scores[:, is_tested]
        finite = finite[np.isfinite(finite)]
        score = (float(finite.min(initial=0.0)), float(finite.max(initial=0.0))) if not len(finite) else (
            float(finite.min()), float(finite.max()))
        size = np.abs(gains[:, is_tested])
        largest = np.where(np.isfinite(size), size, 0.0).max(axis=1, initial=0.0)
    return np.concatenate([np.tile(score, (len(scores), 1)), np.stack([-largest, largest], axis=1)])


def difference(values: Values, alone: Values, sign: float) -> Values:
    """The gain of each row; nan where training alone diverged, because it is no reference there."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isinf(alone), np.nan, sign * (values - alone))


def not_finite(values: Values) -> Interval:
    """The interval of a mean that is infinite, or not defined."""
    mean = float(np.nan if np.isnan(values).any() else values[np.isinf(values)].sum())
    return Interval(mean, mean, mean)
