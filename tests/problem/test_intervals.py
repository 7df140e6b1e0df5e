"""Intervals of means over rows: their coverage, their relation to known intervals, pairing, and seeds."""

import numpy as np
import pytest
import scipy.stats

from resolvent.predict.intervals import (
    Interval,
    Pool,
    Sample,
    interval_of,
    mean_interval,
    resample,
)

UNIT, SIGNED = np.array([[0.0, 1.0]]), np.array([[-1.0, 1.0]])


def site(values, bounds, seed=0, is_tested=None):
    """The interval of one quantity at one site; values are [n] or [S, n]."""
    values = np.atleast_2d(np.asarray(values, float))
    is_tested = np.ones(values.shape, bool) if is_tested is None else is_tested
    rng = np.random.default_rng(seed)
    return interval_of(resample(values[None], is_tested, np.asarray(bounds, float), rng), rng)[0]


def rejections(values, bounds, truth, is_tested=None):
    """The share of samples, [M, S, n], whose interval does not include the truth."""
    rng = np.random.default_rng(1)
    is_tested = np.ones(values.shape[1:], bool) if is_tested is None else is_tested
    intervals = interval_of(resample(values, is_tested, bounds, rng), rng)
    return np.mean([not interval.low <= truth <= interval.high for interval in intervals])


def ranges(values):
    return np.stack([values.min(axis=(1, 2)), values.max(axis=(1, 2))], axis=1)


def test_many_rows_agree_with_the_bootstrap_of_scipy():
    rows = np.random.default_rng(0).exponential(size=300)
    expected = scipy.stats.bootstrap((rows,), np.mean, method="percentile", n_resamples=5000, rng=0)
    interval = site(rows, [[rows.min(), rows.max()]])
    assert interval.value == pytest.approx(rows.mean())
    assert interval.low == pytest.approx(expected.confidence_interval.low, abs=0.04)
    assert interval.high == pytest.approx(expected.confidence_interval.high, abs=0.04)


@pytest.mark.parametrize(("successes", "rows"), [(4, 4), (10, 20), (95, 100)])
def test_shares_agree_with_the_interval_of_wilson(successes, rows):
    interval = site(np.arange(rows) < successes, UNIT)
    expected = scipy.stats.binomtest(successes, rows).proportion_ci(method="wilson")
    assert interval.low == pytest.approx(expected.low, abs=0.04)
    assert interval.high == pytest.approx(expected.high, abs=0.04)


def test_four_equal_rows_decide_nothing_and_eight_do():
    assert site(np.ones(4), SIGNED).sign == 0
    assert site(np.ones(8), SIGNED).sign == 1
    assert site(-np.ones(8), SIGNED).sign == -1
    no_difference = site(np.zeros(4), SIGNED)
    assert no_difference.value == 0
    assert no_difference.high - no_difference.low > 0.5


@pytest.mark.parametrize(("rows", "low"), [(6, 0.0), (60, 0.01), (250, 0.02)])
def test_equal_methods_are_rarely_distinguished(rows, low):
    """At most about one comparison in 20 of two methods that are equally good, on accuracies."""
    rng = np.random.default_rng(0)
    differences = rng.choice([-1.0, 0.0, 1.0], p=[0.15, 0.7, 0.15], size=(500, 1, rows))
    assert low <= rejections(differences, np.tile(SIGNED, (500, 1)), 0.0) <= 0.065


@pytest.mark.parametrize("name", ["normal", "exponential"])
def test_coverage_of_unbounded_scores(name):
    rng = np.random.default_rng(0)
    values = rng.normal(2.0, 1.0, (500, 1, 100)) if name == "normal" else rng.exponential(2.0, (500, 1, 100))
    assert 0.015 <= rejections(values, ranges(values), 2.0) <= 0.085


def test_pairing_narrows_the_interval():
    """Two methods that err on the same rows differ by less than two independent ones."""
    rng = np.random.default_rng(0)
    difficulty = rng.normal(size=200)
    first, second = difficulty + 0.1 * rng.normal(size=(2, 200))
    paired = site(first - second, [[-1.0, 1.0]])
    unpaired = site(first - second[rng.permutation(200)], [[-4.0, 4.0]])
    assert paired.high - paired.low < 0.2 * (unpaired.high - unpaired.low)


@pytest.mark.parametrize("between", [0.0, 0.2, 1.0])
def test_coverage_over_seeds(between):
    """Values with an effect of the row, an effect of the seed, and noise; a quarter of the rows is tested per seed."""
    rng, rows, seeds = np.random.default_rng(0), 160, 4
    is_tested = np.zeros((seeds, rows), bool)
    for s in range(seeds):
        is_tested[s, rng.permutation(rows)[:rows // 4]] = True
    used = is_tested.any(axis=0)
    values = (rng.normal(size=(300, 1, rows)) + between * rng.normal(size=(300, seeds, 1))
              + rng.normal(size=(300, seeds, rows)))[:, :, used]
    assert rejections(values, ranges(values), 0.0, is_tested[:, used]) <= 0.1


def test_repeated_rows_are_not_more_rows():
    """Five seeds that test the same rows with the same result are as sure as one."""
    rows = np.random.default_rng(0).normal(size=50)
    bounds = [[rows.min(), rows.max()]]
    once, repeated = site(rows, bounds), site(np.repeat(rows[None], 5, axis=0), bounds)
    assert repeated == pytest.approx(once)


def test_many_rows_are_drawn_in_groups():
    rows = np.random.default_rng(0).normal(size=20_000)
    interval = site(rows, [[rows.min(), rows.max()]])
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * rows.std() / np.sqrt(20_000), rel=0.1)


def pooled(samples, weights):
    pool = Pool()
    for sample, weight in zip(samples, weights, strict=True):
        pool.add(sample, weight)
    return pool.intervals(0)


def test_mean_over_sites_has_the_variance_of_independent_sites():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(6, 100))
    samples = [resample(v[None, None], np.ones((1, 100), bool), np.array([[v.min(), v.max()]]), rng) for v in values]
    plain, = pooled(samples, np.ones(6))
    assert plain.value == pytest.approx(values.mean())
    assert plain.high - plain.low == pytest.approx(2 * 1.96 / np.sqrt(600), rel=0.15)
    four_rows = [resample(np.ones((1, 1, 4)), np.ones((1, 4), bool), SIGNED, rng) for _ in range(40)]
    few, = pooled(four_rows[:1], [1.0])
    assert few.low <= 0
    many, = pooled(four_rows, np.ones(40))
    assert 0 < many.low < many.value <= many.high
    first, = pooled(samples, [1.0, 0, 0, 0, 0, 0])
    assert first.value == pytest.approx(values[0].mean())


def test_seeds_alone_have_the_interval_of_student():
    values = np.random.default_rng(0).normal(size=20)
    expected = scipy.stats.ttest_1samp(values, 0).confidence_interval(0.95)
    for number in (2, 5, 20):
        interval = mean_interval(values[:number])
        expected = scipy.stats.ttest_1samp(values[:number], 0).confidence_interval(0.95)
        assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high), rel=1e-3)
    assert np.isnan(mean_interval(values[:1]).low)
    assert Interval(1.0, np.nan, np.nan).sign == 0


def test_variance_between_seeds_is_what_rows_do_not_explain():
    sample = Sample(np.zeros(1), np.zeros((1, 2000)), np.array([[-1.0, 1.0]]), np.array([2.0]))
    rng = np.random.default_rng(0)
    assert interval_of(sample, rng)[0] == (0, 0, 0)
    assert interval_of(sample._replace(explained=np.zeros(1)), rng)[0].high > 1
