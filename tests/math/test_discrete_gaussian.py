"""The exact sampler against the exact probabilities, with derived words, so that no test depends on chance."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import chisquare, norm

from resolvent.math import discrete_gaussian as sampler
from resolvent.math.discrete_gaussian import discrete_gaussian, system_words


def words_of(seed):
    rng = np.random.default_rng(seed)
    return lambda count: rng.integers(0, 2**64, count, np.uint64)


def probabilities(sigma, values):
    wide = np.arange(-math.ceil(12 * sigma) - 12, math.ceil(12 * sigma) + 13)
    return np.exp(-values**2 / (2 * sigma**2)) / np.exp(-wide**2 / (2 * sigma**2)).sum()


@pytest.mark.parametrize("sigma", [0.3, 0.5, 1.0, 2.7, 6.0])
def test_frequencies_are_the_probabilities(sigma):
    samples, count = discrete_gaussian(sigma, 200_000, words_of(1)), 200_000
    values = np.arange(-math.ceil(5 * sigma), math.ceil(5 * sigma) + 1)
    p = probabilities(sigma, values)
    p, values = p[p * count > 5], values[p * count > 5]
    observed = (samples[:, None] == values).sum(axis=0)
    assert chisquare([*observed, count - observed.sum() + 5], [*(p * count), (1 - p.sum()) * count + 5]).pvalue > 1e-4


@pytest.mark.parametrize("sigma", [2.0**18, 2.0**33 / 3])
def test_large_parameters_have_the_moments_and_all_residues(sigma):
    z, n = discrete_gaussian(sigma, 100_000, words_of(2)), 100_000
    assert z.mean() / sigma == pytest.approx(0, abs=4 / math.sqrt(n))
    assert z.std() / sigma == pytest.approx(1, abs=4 / math.sqrt(2 * n))
    assert np.mean((z / sigma) ** 4) == pytest.approx(3, abs=4 * math.sqrt(96 / n))
    assert chisquare(np.bincount(z % 16)).pvalue > 1e-4  # the lowest bits are uniform


def test_doubtful_comparisons_are_decided_with_more_bits(monkeypatch):
    """With a first comparison that never decides, exact arithmetic decides everything: the samples are the same."""
    fast = discrete_gaussian(5.5, 300, words_of(3))
    used, decide, more = [], sampler._is_below_exp, words_of(4)
    monkeypatch.setattr(sampler, "_is_below_exp", lambda *a: used.append(a) or decide(*a[:2], more))
    monkeypatch.setattr(sampler, "_ERROR", 1e9)
    slow = discrete_gaussian(5.5, 300, words_of(3))
    assert len(used) > 1000
    np.testing.assert_array_equal(slow, fast)


@pytest.mark.parametrize(("prefix", "gamma", "is_below"), [
    (0, 30, True), (2**53 - 1, 1e-9, False), (int(2**53 * math.exp(-1)) - 1, 1, True),
    (int(2**53 * math.exp(-1)) + 1, 1, False), (0, 0, True), (2**53 - 1, 0, True)])
def test_exact_comparisons_at_the_edges(prefix, gamma, is_below):
    assert sampler._is_below_exp(prefix, Fraction(gamma), words_of(0)) == is_below


def test_zero_has_no_noise_and_system_words_differ():
    assert not discrete_gaussian(0.0, 5).any()
    assert len(np.unique(system_words(1000))) == 1000
    assert len(np.unique(discrete_gaussian(2.0**18, 1000))) > 990


@pytest.mark.parametrize("multiplier", [0.5, 1.0, 4.0])
def test_the_privacy_profile_is_that_of_the_continuous_gaussian(multiplier):
    """The exact delta of a release on a grid with 1024 steps; and the formula that the accountant integrates."""
    unit = 1024
    sigma = multiplier * unit
    y = np.arange(-math.ceil(12 * sigma), math.ceil(12 * sigma) + unit)
    p, q = probabilities(sigma, y - unit), probabilities(sigma, y)
    for epsilon in (0.1, 1.0):
        delta = np.maximum(p - math.exp(epsilon) * q, 0).sum()
        mu = 1 / multiplier
        continuous = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        assert delta == pytest.approx(continuous, rel=1e-5)
