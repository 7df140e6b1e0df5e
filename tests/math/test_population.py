"""The posterior of effects of a population: closed forms in the limits, calibration over the prior, and outliers."""

import numpy as np
import pytest

from resolvent.comparisons.judgement.population import Strangers, population_posterior


def test_precise_measurements_are_kept_and_vague_ones_are_those_of_the_population():
    effects = np.array([0.1, 0.12, 0.08, 0.11, 0.0])
    variances = np.array([1e-8, 1e-8, 1e-8, 1e-8, 1e4])
    posterior = population_posterior(effects, variances, scale=0.1)
    assert posterior.mean[:4] == pytest.approx(effects[:4], abs=1e-3)
    assert posterior.mean[4] == pytest.approx(0.1, abs=0.02)
    assert posterior.low[4] < 0.08 < 0.12 < posterior.high[4]
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


@pytest.mark.when_changed
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


def strangers(effects, variances, log_ratio=0.0):
    return Strangers(0.1, 0.5, np.zeros(len(effects)) + log_ratio, effects, variances)


def test_a_stranger_keeps_its_own_effect_and_does_not_widen_the_population():
    effects = np.array([0.10, 0.11, 0.09, 0.10, 0.12, 0.10, 0.09, -0.5])
    variances = np.full(8, 0.03**2)
    posterior = population_posterior(effects, variances, scale=0.1, strangers=strangers(effects, variances))
    without = population_posterior(effects, variances, scale=0.1)
    assert posterior.strange[-1] > 0.95 > 0.1 > posterior.strange[:-1].max()
    assert posterior.mean[-1] == pytest.approx(-0.5, abs=0.02)
    assert (posterior.high - posterior.low)[:-1].mean() < (without.high - without.low)[:-1].mean()


def test_a_further_measurement_says_who_is_a_stranger():
    effects, variances = np.array([0.1, 0.1, 0.1, 0.1, -0.2]), np.full(5, 0.15**2)
    doubted = population_posterior(effects, variances, scale=0.1, strangers=strangers(effects, variances))
    shown = population_posterior(effects, variances, scale=0.1, strangers=strangers(
        effects, variances, np.array([-2, -2, -2, -2, 6.0])))
    assert doubted.mean[-1] > -0.05 > -0.15 > shown.mean[-1]
    assert shown.strange[-1] > 0.9 > 0.5 > doubted.strange[-1]


@pytest.mark.when_changed
def test_the_grid_agrees_with_draws_from_the_prior():
    """Two million draws of everything that is integrated, weighted by their likelihood."""
    rng, number = np.random.default_rng(0), 2_000_000
    effects, variances = np.array([0.08, 0.02, -0.25]), np.array([0.05, 0.06, 0.12]) ** 2
    log_ratio = np.array([-1.0, 0.0, 1.0])
    share = rng.beta(1, 9, number)[:, None]
    mean, spread = rng.normal(0, 0.1, number)[:, None], np.abs(rng.normal(0, 0.05, number))[:, None]
    is_strange = rng.random((number, 3)) < share
    theta = np.where(is_strange, 0.5, spread) * rng.standard_t(4, (number, 3)) + np.where(is_strange, 0, mean)
    log_weight = (-0.5 * (effects - theta) ** 2 / variances + is_strange * log_ratio).sum(axis=1)
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    posterior = population_posterior(effects, variances, scale=0.1, margin=0.05,
                                     strangers=strangers(effects, variances, log_ratio))
    assert posterior.mean == pytest.approx(weight @ theta, abs=0.004)
    assert posterior.positive == pytest.approx(weight @ (theta > 0), abs=0.01)
    assert posterior.strange == pytest.approx(weight @ is_strange, abs=0.015)
    assert posterior.loss == pytest.approx(weight @ np.maximum(-theta - 0.05, 0), abs=0.003)
    assert np.sqrt(posterior.variance) == pytest.approx(np.sqrt(weight @ (theta - weight @ theta) ** 2), abs=0.005)


def test_what_nothing_measures_widens_the_posterior_by_its_variance():
    effects, variances, luck = np.array([0.1, 0.0, 0.2]), np.full(3, 0.04**2), np.array([0, 0.03, 0.1]) ** 2
    without = population_posterior(effects, variances, scale=0.1)
    posterior = population_posterior(effects, variances, scale=0.1, luck=luck)
    assert posterior.mean == pytest.approx(without.mean)
    assert posterior.variance - without.variance == pytest.approx(luck)
    assert posterior.positive[2] < without.positive[2]
