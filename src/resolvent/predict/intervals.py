"""Bootstrap intervals of means over test rows, which include the variance between seeds.

A row is drawn with its values of all seeds, so that a row that was a test row of several seeds counts as one row.
All methods are resampled with the same rows, so that the difference of two methods is paired.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
RESAMPLES = 2000
_MAX_GROUPS = 1000  # more rows than this are drawn in groups of several rows, which changes the interval by rounding

Array = NDArray[np.float64]


class Interval(NamedTuple):
    """A value and the ends of its interval of level 0.95; the ends are nan if no interval is possible.

    Attributes:
        value: the estimate.
        low: the lower end.
        high: the upper end.
    """

    value: float
    low: float
    high: float

    @property
    def sign(self) -> int:
        """1 if the interval is above zero, -1 if it is below, 0 if it includes zero or there is none."""
        return int(self.low > 0) - int(self.high < 0)


class Sample(NamedTuple):
    """Resampled means of M quantities, at one site.

    Attributes:
        values: [M] the means.
        draws: [M, RESAMPLES] the means of the resampled rows.
        by_seed: [M, S] the mean of each seed.
        explained: [M] the variance of a seed's mean that the rows explain.
    """

    values: Array
    draws: Array
    by_seed: Array
    explained: Array


def resample(values: Array, is_tested: NDArray[np.bool_], bounds: Array, rng: np.random.Generator,
             classes: NDArray[np.integer] | None = None) -> Sample:
    """Draw rows with replacement, from the test rows and two added rows, one at each bound.

    The added rows keep the interval wide if there are few rows: without them, four rows with the same value would have
    an interval of width zero. For 0/1 values the result is close to Agresti and Coull's interval, which adds successes
    and failures for the same reason.

    With ``classes`` the quantity is a mean over the K classes of means over the rows of a class. Each class is drawn
    separately and has two added rows of its own: a class of three rows says little, whatever the number of other rows.

    Args:
        values: [M, S, n] the value of row i with seed s; not read where the row was not tested.
        is_tested: [S, n] whether row i was a test row of seed s; each row is a test row of at least one seed.
        bounds: [M, 2] the smallest and the largest value that a row can have.
        rng: draws the rows.
        classes: [n] the class of each row; default: all rows are of one class.
    """
    groups = [slice(None)] if classes is None else [classes == c for c in np.unique(classes)]
    parts = [_resample(values[:, :, rows], is_tested[:, rows], bounds, rng, _MAX_GROUPS // len(groups))
             for rows in groups]
    number = len(parts)
    values_, draws, by_seed, explained = (np.sum([part[i] for part in parts], axis=0) for i in range(4))
    return Sample(values_ / number, draws / number, by_seed / number, explained / number**2)


def _resample(values: Array, is_tested: NDArray[np.bool_], bounds: Array, rng: np.random.Generator,
              max_groups: int) -> Sample:
    count, size = is_tested.astype(float), is_tested.shape[1]
    numerator = np.where(is_tested, values, 0.0)
    by_seed = numerator.sum(axis=2) / np.maximum(count.sum(axis=1), 1)
    mean = numerator.sum(axis=(1, 2)) / count.sum()
    explained = explained_variance(values, is_tested)
    # Over all seeds: the sum of a row's values, and the number of seeds in which it was a test row.
    sums, counts = numerator.sum(axis=1), count.sum(axis=0)
    typical = counts.mean()
    if size > max_groups:
        group = rng.permutation(size) % max_groups
        sums = np.stack([np.bincount(group, weights=row, minlength=max_groups) for row in sums])
        counts = np.bincount(group, weights=counts, minlength=max_groups)
    sums = np.concatenate([sums, typical * bounds], axis=1)
    counts = np.concatenate([counts, [typical, typical]])
    number = len(counts)
    drawn = rng.integers(number, size=(RESAMPLES, number)) + number * np.arange(RESAMPLES)[:, None]
    weights = np.bincount(drawn.ravel(), minlength=drawn.size).reshape(drawn.shape).astype(float)
    return Sample(mean, (sums @ weights.T) / (weights @ counts), by_seed, explained)


def explained_variance(values: Array, is_tested: NDArray[np.bool_]) -> Array:
    """[M] the expected variance of the seeds' means if seeds differ only by the noise of their rows.

    It is the mean variance of a seed's mean under independent rows, less the mean covariance of two seeds' means: seeds
    that test the same rows vary less.

    Args:
        values: [M, S, n] the values.
        is_tested: [S, n] whether row i was a test row of seed s.
    """
    count = np.maximum(is_tested.sum(axis=1), 1)[:, None]
    by_seed = np.where(is_tested, values, 0.0).sum(axis=2, keepdims=True) / count
    parts = np.where(is_tested, values - by_seed, 0.0) / count
    products = parts @ parts.transpose(0, 2, 1)  # [M, S, S]
    variances = np.diagonal(products, axis1=1, axis2=2) @ (1 + 1 / np.maximum(count[:, 0] - 1, 1))
    seeds = len(is_tested)
    if seeds == 1:
        return np.asarray(variances)
    shared = products.sum(axis=(1, 2)) - np.trace(products, axis1=1, axis2=2)
    return np.asarray(np.maximum(variances / seeds - shared / (seeds * (seeds - 1)), 0))


def covariance_of_means(values: Array, is_tested: NDArray[np.bool_],
                        classes: NDArray[np.integer] | None = None) -> tuple[Array, Array]:
    """[M] the means of M quantities over their rows and seeds, and the [M, M] unbiased covariance of these means.

    A row counts with its values of all seeds. What the means of the seeds vary beyond the rows is added.

    Args:
        values: [M, S, n] the values.
        is_tested: [S, n] whether row i was a test row of seed s; each row is a test row of at least one seed.
        classes: [n] the class of each row, if a quantity is a mean over classes of means over the rows of a class.
    """
    groups = [slice(None)] if classes is None else [np.flatnonzero(classes == c) for c in np.unique(classes)]
    seeds, by_seed = len(is_tested), np.zeros((len(values), len(is_tested)))
    means, covariance, explained = np.zeros(len(values)), np.zeros((len(values),) * 2), np.zeros(len(values))
    for rows in groups:
        tested = is_tested[:, rows]
        part = np.where(tested, values[:, :, rows], 0.0)
        counts = tested.sum(axis=0)
        mean = part.sum(axis=(1, 2)) / counts.sum()
        residual = part.sum(axis=1) - mean[:, None] * counts
        scale = len(counts) / max(len(counts) - 1, 1) / counts.sum() ** 2
        covariance += scale * residual @ residual.T / len(groups) ** 2
        means += mean / len(groups)
        by_seed += part.sum(axis=2) / np.maximum(tested.sum(axis=1), 1) / len(groups)
        explained += explained_variance(values[:, :, rows], tested) / len(groups) ** 2
    if seeds > 1:
        centred = by_seed - by_seed.mean(axis=1, keepdims=True)
        between = centred @ centred.T / (seeds - 1)
        share = np.sqrt(np.maximum(1 - explained / np.maximum(np.diag(between), 1e-300), 0))
        covariance += between * np.outer(share, share) / seeds
    return means, covariance


def interval_of(sample: Sample, rng: np.random.Generator, limits: Array | None = None) -> list[Interval]:
    """The interval of each quantity: quantiles of the resampled means, with noise of the seeds added.

    The variance between seeds is that of the seeds' means minus what the rows explain; it is estimated with S - 1
    degrees of freedom, so the noise has Student's distribution.

    Args:
        sample: the resampled means.
        rng: draws the noise.
        limits: [M, 2] the smallest and the largest possible mean, such as 0 and 1 for a share; default: none.
    """
    low, high = np.quantile(_with_seed_noise(sample, rng), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=1)
    if limits is not None:
        low, high = np.maximum(low, limits[:, 0]), np.minimum(high, limits[:, 1])
    return [Interval(float(value), float(min(a, value)), float(max(b, value)))
            for value, a, b in zip(sample.values, low, high, strict=True)]


def _with_seed_noise(sample: Sample, rng: np.random.Generator) -> Array:
    """[M, RESAMPLES] the resampled means, with the noise of the seeds added."""
    draws, seeds = sample.draws, sample.by_seed.shape[1]
    if seeds == 1:
        return draws
    between = np.maximum(sample.by_seed.var(axis=1, ddof=1) - sample.explained, 0)
    return np.asarray(draws + np.sqrt(between / seeds)[:, None] * rng.standard_t(seeds - 1, draws.shape[1]))


class Pool:
    """The weighted mean over sites of several quantities.

    The sites are fixed, not a sample of a larger population: only the score of each site is uncertain. The two rows
    that ``resample`` adds shift the resampled means of a site towards the middle of the bounds, most at sites with few
    rows. The interval is therefore the union of two: that of the resampled means, and that of the resampled means
    shifted back to the estimate.
    """

    def __init__(self) -> None:
        self._weight = 0.0
        self._sum: Sample | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is no site."""
        return self._sum is None

    def add(self, sample: Sample, weight: float) -> None:
        """Add a site.

        Args:
            sample: drawn independently of the other sites, with the same seeds and the same quantities.
            weight: the site's weight in the mean.
        """
        weighted = Sample(weight * sample.values, weight * sample.draws, weight * sample.by_seed,
                          weight**2 * sample.explained)
        self._weight += weight
        self._sum = weighted if self._sum is None else Sample(
            *(a + b for a, b in zip(self._sum, weighted, strict=True)))

    def intervals(self, seed: int, limits: Array | None = None) -> list[Interval]:
        """The interval of the mean of each quantity.

        Args:
            seed: seed of the noise that stands for the variance between seeds.
            limits: [M, 2] the smallest and the largest possible mean; default: none.
        """
        both = (interval_of(sample, np.random.default_rng(seed), limits) for sample in self._samples())
        return [Interval(a.value, min(a.low, b.low), max(a.high, b.high)) for a, b in zip(*both, strict=True)]

    def p_values(self, seed: int) -> Array:
        """[M] the two-sided p-value of the hypothesis that the mean of a quantity is zero.

        It is twice the share of the resampled means on the other side of zero, the larger of those of the two
        intervals that ``intervals`` unites; so an interval of level 0.95 excludes zero where p is below 0.05. The
        smallest p-value is 2 / (RESAMPLES + 1).
        """
        shares = []
        for sample in self._samples():
            draws = _with_seed_noise(sample, np.random.default_rng(seed))
            counts = np.minimum((draws <= 0).sum(axis=1), (draws >= 0).sum(axis=1))
            shares.append(np.minimum(2 * (counts + 1) / (draws.shape[1] + 1), 1.0))
        return np.asarray(np.maximum(*shares))

    def _samples(self) -> tuple[Sample, Sample]:
        """The resampled mean, and the same shifted back to the estimate."""
        assert self._sum is not None
        values, draws, by_seed = (part / self._weight for part in self._sum[:3])
        mean = Sample(values, draws, by_seed, self._sum.explained / self._weight**2)
        return mean, mean._replace(draws=draws + (values - draws.mean(axis=1))[:, None])


def mean_interval(values: Array) -> Interval:
    """Student's interval of a mean of independent values; a single value has no interval.

    Args:
        values: [n] such as the score of each seed.
    """
    mean, seeds = float(np.mean(values)), len(values)
    if seeds < 2 or not np.isfinite(values).all():
        return Interval(mean, np.nan, np.nan)
    half = float(student_quantile(seeds - 1)) * float(np.std(values, ddof=1)) / np.sqrt(seeds)
    return Interval(mean, mean - half, mean + half)


def student_quantile(freedom: Array | float) -> Array:
    """The quantile (1 + LEVEL) / 2 of Student's distribution."""
    from scipy.special import stdtrit  # here, because its import takes 0.1 s, and a run does not need it

    return np.asarray(stdtrit(np.maximum(freedom, 1), (1 + LEVEL) / 2))

