"""Intervals of shares: published values, the maximum-likelihood definition, and exact error rates."""

import numpy as np
import pytest
from scipy.stats import binomtest, multinomial

from resolvent.math.score_intervals import _variance, paired_interval, wilson_interval

Z = 1.959963984540054


@pytest.mark.parametrize(("successes", "rows"), [(0, 10), (3, 10), (10, 10), (81, 263)])
def test_wilson_is_that_of_scipy(successes, rows):
    expected = binomtest(successes, rows).proportion_ci(method="wilson")
    low, high = wilson_interval(successes / rows, rows, Z)
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-12)


@pytest.mark.parametrize(("gained", "lost", "rows", "ends"), [(1, 12, 50, (-0.3594, -0.0942)),
                                                              (0, 0, 10, (-0.2775, 0.2775))])
def test_paired_interval_has_known_values(gained, lost, rows, ends):
    """50 pairs of Newcombe (1998), table III; without any difference the ends are z^2 / (n + z^2)."""
    assert paired_interval(gained / rows, lost / rows, rows, Z) == pytest.approx(ends, abs=5e-4)
    assert paired_interval(lost / rows, gained / rows, rows, Z)[0] == pytest.approx(-ends[1], abs=5e-4)


def test_variance_is_that_of_the_most_likely_shares():
    gained, lost, difference = 0.2, 0.1, 0.05
    q = np.linspace(1e-6, (1 - difference) / 2 - 1e-6, 400_001)
    neither = 1 - gained - lost
    likelihood = gained * np.log(q + difference) + lost * np.log(q) + neither * np.log1p(-2 * q - difference)
    best = q[likelihood.argmax()]
    expected = 2 * best + difference - difference**2
    assert _variance(np.array(gained), np.array(lost), np.array(difference)) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("rows", [14, 30, 60])
@pytest.mark.parametrize("discordant", [0.05, 0.2, 0.5])
def test_equal_methods_are_called_different_in_at_most_one_of_twenty(rows, discordant):
    """The exact error rate, summed over all outcomes."""
    b, c = (a.ravel() for a in np.meshgrid(np.arange(rows + 1), np.arange(rows + 1)))
    b, c = b[b + c <= rows], c[b + c <= rows]
    low, high = paired_interval(b / rows, c / rows, rows, Z)
    weight = multinomial.pmf(np.stack([b, c, rows - b - c], axis=1), rows, [discordant / 2] * 2 + [1 - discordant])
    assert weight[(low > 1e-9) | (high < -1e-9)].sum() <= 0.055
