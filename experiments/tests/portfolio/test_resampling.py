"""The stationary bootstrap against its distribution and the closed form of the variance of a mean."""

import jax
import numpy as np
import pytest

from experiments.portfolio.resampling import stationary_bootstrap


def draw(length, mean_block, draws=4000):
    keys = jax.random.split(jax.random.key(0), draws)
    return np.asarray(jax.vmap(lambda key: stationary_bootstrap(key, length, mean_block))(keys))


@pytest.mark.parametrize("mean_block", [1.0, 4.0])
def test_blocks_end_with_the_probability_of_one_over_their_mean_length(mean_block):
    indices = draw(20, mean_block)
    frequencies = np.bincount(indices.ravel(), minlength=20) / indices.size
    np.testing.assert_allclose(frequencies, 1 / 20, atol=0.003)
    is_successor = (np.diff(indices, axis=1) - 1) % 20 == 0
    expected = 1 - 1 / mean_block + 1 / (20 * mean_block)
    assert is_successor.mean() == pytest.approx(expected, abs=0.01)


def test_variance_of_the_mean_has_its_closed_form():
    """Var = (1/n) sum_{|k|<n} (1 - |k|/n) (1-p)^|k| C(k), with the circular autocovariance C: Politis and Romano."""
    n, p = 60, 0.1
    x = np.cumsum(np.random.default_rng(0).normal(size=n))
    x -= x.mean()
    expected = sum((1 if k == 0 else 2) * (1 - k / n) * (1 - p) ** k * (x @ np.roll(x, -k)) / n for k in range(n)) / n
    means = x[draw(n, 1 / p)].mean(axis=1)
    assert means.var() == pytest.approx(expected, rel=0.1)
    assert means.mean() == pytest.approx(0, abs=4 * np.sqrt(expected / len(means)))
