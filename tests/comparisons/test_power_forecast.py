"""The number of further test rows that would show a gain, against simulated test rows."""

import numpy as np
import pytest

import nightly
from resolvent.comparisons.judgement.power_forecast import further_rows
from resolvent.predict.special_intervals import RankScores, gains_of_shares


def variance_of(interval):
    """The variance that the width of an interval implies, which is near the true one with many rows."""
    return ((interval.high - interval.low) / (2 * 1.959964)) ** 2


def test_the_formula():
    """A deviation of 0.1 on 50 rows; (1.96 + 0.8416)^2 = 7.849 deviations are needed."""
    assert further_rows(0.01, 50, 0.1) == np.ceil(50 * (7.8489 - 1))
    assert further_rows(0.01, 50, -0.1) == further_rows(0.01, 50, 0.1)
    assert further_rows(0.01, 50, 0.3) == 0
    assert further_rows(0.01, 50, 0.0) is None
    assert further_rows(0.0, 50, 0.1) is None
    assert further_rows(np.nan, 50, 0.1) is None


def shares(rng, rows, gained, lost):
    """[1, rows] differences of two 0/1 values: 1, -1 or 0."""
    return rng.choice([1.0, -1.0, 0.0], size=(1, rows), p=[gained, lost, 1 - gained - lost])


@pytest.mark.when_changed
@nightly.parametrize(("rows", "gained", "lost"), [(60, 0.14, 0.06), (150, 0.10, 0.05)], others=nightly.WHEN_CHANGED)
def test_paired_shares_have_the_stated_power(rows, gained, lost):
    """Forecasts from many first samples, each followed by test rows in the number that it states."""
    rng = np.random.default_rng(0)
    shown, trials = 0, 500
    for _ in range(trials):
        first = shares(rng, rows, gained, lost)
        interval = gains_of_shares(first[None], np.ones_like(first, bool))[0]
        more = further_rows(variance_of(interval), rows, gained - lost)
        second = shares(rng, rows + more, gained, lost)
        shown += gains_of_shares(second[None], np.ones_like(second, bool))[0].low > 0
    assert 0.72 <= shown / trials <= 0.88  # 0.8 with a standard error of 0.018, and the uncertainty of the first rows


@pytest.mark.when_changed
def test_areas_have_the_stated_power():
    """The area under the ROC curve, with 15 % of the rarer class: the further rows keep the shares of the classes."""
    rng, trials, (rows, rarest), shown = np.random.default_rng(0), 400, (200, 30), 0

    def gain(rows, rarest):
        y = (np.arange(rows) < rarest).astype(int)
        signal = rng.normal(size=rows) + 1.2 * y
        scores = [signal, signal + rng.normal(size=rows)]  # areas of 0.80 and 0.73
        parts = [np.where(y == 1, (s[:, None] > s[y == 0]).mean(axis=1), (s[y == 1] > s[:, None]).mean(axis=1))
                 for s in scores]
        return RankScores.of(np.array(parts)[:, None], np.ones((1, rows), bool), y).gain(0, 1)

    truth = np.mean([gain(2000, 300).value for _ in range(20)])
    for _ in range(trials):
        more = further_rows(variance_of(gain(rows, rarest)), rarest, truth)
        shown += gain(rows * (rarest + more) // rarest, rarest + more).low > 0
    assert 0.7 <= shown / trials <= 0.92
