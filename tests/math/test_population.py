"""The posterior of effects of a population: closed forms in the limits, calibration over the prior, and outliers."""

import numpy as np
import pytest

from resolvent.math.population import population_posterior


def test_precise_measurements_are_kept_and_vague_ones_are_those_of_the_population():
    effects = np.array([0.1, 0.12, 0.08, 0.11, 0.0])
    variances = np.array([1e-8, 1e-8, 1e-8, 1e-8, 1e4])
    posterior = population_posterior(effects, variances, scale=0.1)
    assert posterior.mean[:4] == pytest.approx(effects[:4], abs=1e-3)
    assert posterior.mean[4] == pytest.approx(0.1, abs=0.02)
    assert posterior.low[4] < 0.08 < 0.12 < posterior.high[4]
    assert posterior.gain - posterior.loss == pytest.approx(posterior.mean)
    assert ((posterior.positive >= 0) & (posterior.positive <= 1)).all()


def test_an_outlier_keeps_its_own_effect():
    effects = np.array([0.1] * 20 + [-0.8])
    posterior = population_posterior(effects, np.full(21, 0.05**2), scale=0.1)
    assert posterior.mean[-1] < -0.6
    assert posterior.mean[:-1] == pytest.approx(0.1, abs=0.01)


def test_units_that_agree_are_surer_than_each_of_them():
    single = population_posterior(np.array([0.05]), np.array([0.05**2]), scale=0.1)
    many = population_posterior(np.full(30, 0.05), np.full(30, 0.05**2), scale=0.1)
    assert many.positive[0] > 0.97 > single.positive[0] > 0.6


def test_a_feature_informs_the_prior():
    feature = np.linspace(-1.5, 1.5, 20)[:, None]
    effects = 0.1 - 0.1 * feature[:, 0]
    variances = np.full(20, 0.02**2)
    variances[-1] = 1e4  # nothing is known of the last unit but its feature
    with_feature = population_posterior(effects, variances, feature, scale=0.1)
    without = population_posterior(effects, variances, scale=0.1)
    assert with_feature.mean[-1] == pytest.approx(-0.05, abs=0.03)
    assert without.mean[-1] > 0.05


def test_effects_drawn_from_the_prior_are_covered_and_probabilities_are_frequencies():
    rng, stated, gained, covered = np.random.default_rng(0), [], [], []
    for _ in range(100):
        spread = abs(rng.normal(0, 0.05))
        true = rng.normal(0, 0.1) + spread * rng.standard_t(4, 8)
        deviation = rng.uniform(0.02, 0.15, 8)
        posterior = population_posterior(true + deviation * rng.normal(size=8), deviation**2, scale=0.1)
        stated.append(posterior.positive)
        gained.append(true > 0)
        covered.append((posterior.low <= true) & (true <= posterior.high))
    stated, gained = np.concatenate(stated), np.concatenate(gained)
    assert 0.92 <= np.mean(covered) <= 0.97
    for low, high in ((0.0, 0.2), (0.2, 0.5), (0.5, 0.8), (0.8, 0.95), (0.95, 1.0)):
        chosen = (stated > low) & (stated <= high)
        assert gained[chosen].mean() == pytest.approx(stated[chosen].mean(), abs=0.09)
