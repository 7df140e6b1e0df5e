"""The recurrent GAN on an autoregressive toy series, and the cache of its results."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import portfolio as pf

KEY = jax.random.key(0)


@eqx.filter_jit
def draw(fitted, years):
    return jnp.log(jax.vmap(lambda key: fitted.sample(252, key))(jax.random.split(KEY, years)))


@pytest.fixture(scope="module")
def toy_gan():
    """Two assets: one AR(1) with coefficient 0.9, and one independent of it with another mean and deviation."""
    rng = np.random.default_rng(0)
    x = np.zeros((2000, 2))
    for t in range(1, 2000):
        x[t, 0] = 0.9 * x[t - 1, 0] + np.sqrt(0.19) * rng.normal()
    x[:, 1] = rng.normal(size=2000)
    returns = jnp.asarray(np.array([0.001, -0.002]) + np.array([0.01, 0.03]) * x, jnp.float32)
    gan = pf.GAN(units=8, window=8, batch_size=64, iterations=1500, learning_rate=3e-3)
    fitted = eqx.filter_jit(gan.fit)(returns, KEY)
    return np.asarray(returns), fitted, draw(fitted, 50)


@pytest.mark.nightly  # a training of 10 seconds
def test_gan_has_the_moments_of_an_autoregressive_series(toy_gan):
    """The dependence of successive days is learnt; the calibration sets means and deviations."""
    returns, fitted, drawn = toy_gan
    drawn = np.asarray(drawn)
    np.testing.assert_allclose(drawn.mean(axis=(0, 1)), returns.mean(axis=0), atol=1e-3)
    # The calibration has other series than these 50, and successive days of the first asset depend on each other.
    np.testing.assert_allclose(drawn.std(axis=(0, 1)), returns.std(axis=0), rtol=0.15)
    lag_1 = [np.mean([np.corrcoef(year[1:, i], year[:-1, i])[0, 1] for year in drawn]) for i in (0, 1)]
    assert 0.4 < lag_1[0] < 0.97
    assert abs(lag_1[1]) < 0.35
    ratios = returns.std(axis=0) / np.asarray(fitted.scale)  # a short training underestimates deviations
    assert np.all((ratios > 1 / 4) & (ratios < 4))


def test_results_of_a_gan_are_stored_and_damaged_files_are_not_used(tmp_path):
    closes = np.exp(np.cumsum(0.01 * np.random.default_rng(0).normal(size=(100, 3)), axis=0))
    calls = []
    augmenters = [pf.GAN(units=2, window=5, iterations=1)]
    universes = np.array([[0, 1], [2, 0]])

    def generate(**changes):
        return pf.generate(augmenters, closes, universes, years=1, cache=tmp_path, **changes)

    years = generate(progress=lambda done, total: calls.append((done, total)))
    assert calls == [(0, 2), (2, 2)]
    calls.clear()
    np.testing.assert_array_equal(generate(progress=lambda done, total: calls.append((done, total))), years)
    assert not calls
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:100])
    np.testing.assert_array_equal(generate(), years)
    generate(seed=1)
    assert len(list(tmp_path.iterdir())) == 2
