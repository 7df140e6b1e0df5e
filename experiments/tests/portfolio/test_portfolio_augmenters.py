"""Augmenters: parameters and moments are recovered, and synthetic years depend on what they may depend on only."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import portfolio as pf
from experiments.portfolio.augmenters.gbm import FittedGBM
from experiments.portfolio.augmenters.generation import log_returns
from resolvent.errors import InputError

KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def closes():
    """700 days of 6 correlated stocks; the last one is listed on day 400."""
    rng = np.random.default_rng(0)
    market = rng.standard_t(4, size=(700, 1))
    prices = np.exp(np.cumsum(0.0005 + 0.008 * market + 0.01 * rng.normal(size=(700, 6)), axis=0))
    prices[:400, 5] = np.nan
    return prices


def test_gbm_recovers_its_parameters_and_the_expected_price():
    drift, covariance = np.array([0.3, -0.1]), np.array([[0.09, 0.03], [0.03, 0.04]])
    true = FittedGBM(jnp.asarray(drift), jnp.asarray(covariance))
    returns = jnp.log(true.sample(50_000, KEY))
    fitted = pf.GBM().fit(returns, KEY)
    deviation_of_drift = np.sqrt(np.diag(covariance) * 252 / 50_000)  # 0.02: returns say little about the drift
    assert np.all(np.abs(fitted.drift - drift) < 4 * deviation_of_drift)
    np.testing.assert_allclose(fitted.covariance, covariance, rtol=0.04)
    years = jax.vmap(lambda key: jnp.prod(true.sample(252, key), axis=0))(jax.random.split(KEY, 4000))
    np.testing.assert_allclose(years.mean(axis=0), np.exp(drift), rtol=0.02)


def test_gbm_does_not_use_earlier_days_and_allows_a_constant_price():
    returns = jnp.array([[9.0, 9.0], [0.01, 0.0], [0.03, 0.0], [0.02, 0.0]])
    fitted = pf.GBM().fit(returns, KEY, first=1)
    np.testing.assert_allclose(fitted.covariance, [[0.0252, 0], [0, 0]], atol=1e-7)
    np.testing.assert_allclose(fitted.drift, [252 * 0.02 + 0.0126, 0], rtol=1e-5)
    assert jnp.all(fitted.sample(5, KEY)[:, 1] == 1)


def test_vmm_draws_real_days_of_its_symbols_and_continues_from_the_last_ones():
    """Symbols alternate in the real series, so that the drawn ones must."""
    rng = np.random.default_rng(0)
    signs = np.tile([-1.0, 1.0], 100)
    returns = jnp.asarray(signs[:, None] * rng.uniform(0.001, 0.02, (200, 3)))
    fitted = pf.VMM(symbols=2, order=2).fit(returns, KEY, first=20)
    np.testing.assert_array_equal(fitted.bounds, [20, 110, 200])
    drawn = np.log(fitted.sample(400, KEY))
    distances = np.abs(np.asarray(returns[20:])[None] - drawn[:, None]).max(axis=2)
    assert distances.min(axis=1).max() < 1e-6
    alternates = np.sign(drawn[1:, 0]) != np.sign(drawn[:-1, 0])
    assert alternates.mean() > 0.9
    firsts = jax.vmap(lambda key: fitted.sample(1, key)[0, 0])(jax.random.split(KEY, 20))
    assert np.mean(np.asarray(firsts) < 1) > 0.8  # the last real day has a positive return


def test_vmm_of_order_0_draws_all_days_equally_often():
    returns = jnp.arange(7.0)[:, None] / 100
    fitted = pf.VMM(symbols=3, order=0).fit(returns, KEY)
    drawn = np.round(100 * np.log(fitted.sample(14_000, KEY)[:, 0])).astype(int)
    np.testing.assert_allclose(np.bincount(drawn) / 2000, 1, atol=0.1)


def test_years_depend_on_the_seed_the_party_and_the_number_only(closes):
    universes = np.array([[0, 1], [2, 3], [4, 5]])
    augmenters = [pf.GBM(), pf.VMM(symbols=3, order=2)]
    years = pf.generate(augmenters, closes, universes, years=3, seed=1)
    assert years.shape == (3, 3, 252, 2)
    assert years.dtype == np.float32
    fewer = pf.generate(augmenters, closes, universes[:2], years=2, seed=1)
    np.testing.assert_allclose(years[:2, :2], fewer, rtol=1e-6)
    assert np.mean(pf.generate(augmenters, closes, universes, years=3, seed=2) != years) > 0.99
    later = closes.copy()
    later[:400, 4] = 1 + np.arange(400) % 7  # before stock 5 is listed
    np.testing.assert_array_equal(pf.generate(augmenters, later, universes, years=3, seed=1), years)
    assert len(log_returns(closes, [4, 5])) == 299


@pytest.mark.parametrize(("attempt", "message"), [
    (lambda: pf.VMM(symbols=0), r"VMM\(symbols=0\) must lie in \[1, inf\)"),
    (lambda: pf.GAN(window=1), r"GAN\(window=1\) must be at least 2"),
    (lambda: pf.GAN().fit(jnp.zeros((20, 2)), KEY), r"GAN\(window=60\) needs at least as long a series.*20 days"),
    (lambda: pf.generate([], np.ones((50, 2)), np.array([[0]])), r"generate\(augmenters\) is empty"),
    (lambda: pf.generate([pf.GBM()], np.ones((20, 2)), np.array([[0, 1]])), "party 0 has 19 days of returns"),
])
def test_wrong_arguments_are_refused(attempt, message):
    with pytest.raises(InputError, match=message):
        attempt()


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("augmenter", [pf.GBM(), pf.VMM(), pf.GAN()], ids=lambda part: type(part).__name__)
def test_augmenters_fit_and_draw_in_both_precisions(augmenter, x64):
    with jax.enable_x64(x64):
        shape = jax.eval_shape(lambda key: augmenter.fit(jnp.zeros((300, 3)), key, first=10).sample(20, key),
                               jax.random.key(0))
        assert (shape.shape, shape.dtype) == ((20, 3), jnp.zeros(0).dtype)
