"""Paired differences and deflated Sharpe ratios: the papers' numbers, closed forms and simulation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import portfolio as pf
from resolvent.errors import InputError


def log_return(growth):
    return jnp.sum(jnp.log(growth))


def growth_of(seed, universes=4, days=120):
    return 1 + 0.01 * jax.random.normal(jax.random.key(seed), (universes, days))


def test_a_constant_advantage_has_an_interval_of_no_width():
    growth = growth_of(0)
    estimate, low, high = pf.paired_difference(1.001 * growth, growth, jax.random.key(1), statistic=log_return,
                                               draws=200)
    np.testing.assert_allclose([estimate, low, high], 120 * np.log(1.001), rtol=1e-3)


def test_interval_of_independent_days_is_that_of_the_normal_distribution():
    """With mean_block = 1 the deviation of a sum of n days is sqrt(n) times the deviation of a day."""
    first, second = growth_of(0, days=250), growth_of(1, days=250)
    estimate, low, high = pf.paired_difference(first, second, jax.random.key(2), statistic=log_return, mean_block=1.0)
    daily = np.log(np.asarray(first) / np.asarray(second)).mean(axis=0)
    assert estimate == pytest.approx(daily.sum(), abs=1e-5)
    np.testing.assert_allclose([low, high], daily.sum() + np.array([-1.96, 1.96]) * np.sqrt(250) * daily.std(),
                               atol=0.15 * np.sqrt(250) * daily.std())


def test_swapped_strategies_have_the_opposite_interval():
    one_way, other_way = (pf.paired_difference(*pair, jax.random.key(3), statistic=pf.sharpe_ratio, draws=100)
                          for pair in ((growth_of(0), growth_of(1)), (growth_of(1), growth_of(0))))
    np.testing.assert_allclose(one_way, [-other_way.estimate, -other_way.high, -other_way.low], rtol=1e-4, atol=1e-5)


def test_numbers_of_the_deflated_ratio_in_its_paper():
    """An annual ratio of 2.5 over 1,250 days, skewness -3, kurtosis 10, 100 trials with variance 1/2: 0.90."""
    benchmark = pf.expected_best_ratio(np.sqrt(0.5 / 250), 100)
    assert benchmark == pytest.approx(0.1132, abs=1e-4)
    assert pf.probabilistic_ratio(2.5 / np.sqrt(250), benchmark, 1250, -3.0, 10.0) == pytest.approx(0.9004, abs=1e-4)


def test_expected_best_ratio_is_the_mean_of_the_largest():
    largest = 0.3 * np.random.default_rng(0).normal(size=(20_000, 30)).max(axis=1)
    assert pf.expected_best_ratio(0.3, 30) == pytest.approx(largest.mean(), rel=0.02)


def test_deflated_ratio_has_the_moments_of_the_growth():
    growth, ratios = growth_of(0)[0] + 0.001, np.array([0.2, 1.0, 1.8])
    r = np.asarray(growth, np.float64) - 1
    s, z = r.mean() / r.std(), (r - r.mean()) / r.std()
    benchmark = pf.expected_best_ratio(ratios.std(ddof=1) / np.sqrt(252), 3)
    expected = pf.probabilistic_ratio(s, benchmark, 120, (z**3).mean(), (z**4).mean())
    assert pf.deflated_sharpe_ratio(growth, ratios) == pytest.approx(float(expected), abs=1e-3)


@pytest.mark.parametrize(("call", "words"), [
    (lambda: pf.paired_difference(growth_of(0), growth_of(0, days=9), jax.random.key(0)), "shapes"),
    (lambda: pf.paired_difference(growth_of(0), growth_of(0), jax.random.key(0), mean_block=0.5), "mean_block=0.5"),
    (lambda: pf.paired_difference(growth_of(0), growth_of(0), jax.random.key(0), level=1.0), "level=1.0"),
    (lambda: pf.deflated_sharpe_ratio(growth_of(0)[0], np.array([1.0])), "at least 2 trials"),
])
def test_mistakes_are_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()
