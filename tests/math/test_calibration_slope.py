"""Intercept and slope of labels on a linear predictor: statsmodels, separated classes, influences."""

import numpy as np
import pytest
import statsmodels.api as sm

from resolvent.comparisons.judgement.calibration_slope import calibration_slope, winning_log_odds
from resolvent.errors import InputError


def rows(n, slope, seed, shift=0.0, size=1.0):
    rng = np.random.default_rng(seed)
    eta = size * rng.normal(shift, 1, n)
    return (rng.random(n) < 1 / (1 + np.exp(-(0.3 + slope * eta / size)))).astype(float), eta


@pytest.mark.parametrize(("slope", "shift", "size"), [(1.0, 0.0, 1.0), (-2.0, 1.0, 1.0), (2.0, 0.0, 1e-4)])
def test_a_binary_slope_is_that_of_statsmodels(slope, shift, size):
    for seed, n in enumerate((25, 100, 2000)):
        y, eta = rows(n, slope, seed, shift, size)
        found = calibration_slope(y, eta, is_binary=True)
        fit = sm.Logit(y, sm.add_constant(eta / size)).fit(disp=0, tol=1e-14, maxiter=200)
        scale = np.array([1, 1 / size])
        assert [found.intercept, found.slope] == pytest.approx(fit.params * scale, rel=1e-8, abs=1e-8)
        assert found.covariance == pytest.approx(fit.cov_params() * np.outer(scale, scale), rel=1e-8)
        assert not found.is_separated


def test_a_slope_of_numbers_is_that_of_statsmodels():
    rng = np.random.default_rng(0)
    prediction = 1000 + rng.normal(0, 3, 60)
    y = 5 - 0.7 * prediction + rng.normal(0, 2, 60)
    found = calibration_slope(y, prediction, is_binary=False)
    fit = sm.OLS(y, sm.add_constant(prediction)).fit()
    assert [found.intercept, found.slope] == pytest.approx(fit.params, rel=1e-8)
    assert found.covariance == pytest.approx(fit.cov_params(), rel=1e-8)


def firth_log_likelihood(y, eta, intercept, slope):
    linear = intercept + slope * eta
    p = 1 / (1 + np.exp(-linear))
    design = np.stack([np.ones_like(eta), eta], axis=1)
    return (np.sum(y * np.log(p) + (1 - y) * np.log1p(-p))
            + 0.5 * np.linalg.slogdet((design * (p * (1 - p))[:, None]).T @ design)[1])


@pytest.mark.parametrize("sign", [1, -1])
def test_separated_classes_have_the_slope_of_firth(sign):
    eta = np.array([-2.0, -1.5, -0.2, 0.4, 1.1, 3.0])
    y = (sign * eta > 0).astype(float)
    found = calibration_slope(y, eta, is_binary=True)
    assert found.is_separated
    assert 0 < sign * found.slope < 10
    best = firth_log_likelihood(y, eta, found.intercept, found.slope)
    for change in np.random.default_rng(0).normal(0, 0.3, (50, 2)):
        assert firth_log_likelihood(y, eta, found.intercept + change[0], found.slope + change[1]) < best
    assert np.isfinite(found.covariance).all()


@pytest.mark.parametrize(("y", "eta"), [([1, 1, 1, 1], [0.1, 0.2, 0.3, 0.4]), ([0, 1, 0, 1], [0.3] * 4),
                                        ([0, 1], [1.0, 2.0])])
def test_a_slope_that_the_rows_do_not_identify_is_not_a_number(y, eta):
    found = calibration_slope(np.array(y, float), np.array(eta), is_binary=True)
    assert np.isnan(found.slope)
    assert np.isinf(found.covariance).all()


@pytest.mark.when_changed
def test_influences_give_the_covariance_with_a_mean_of_the_same_rows():
    """Against 2,000 fresh samples: the slope and the mean of values that depend on the labels vary together."""
    pairs, stated = [], []
    for seed in range(2000):
        y, eta = rows(200, 1.0, seed)
        values = (y - 0.5) * eta
        found = calibration_slope(y, eta, is_binary=True)
        pairs.append([found.slope, values.mean()])
        stated.append(found.influence[:, 1] @ (values - values.mean()) / len(y))
    assert np.mean(stated) == pytest.approx(np.cov(np.transpose(pairs))[0, 1], rel=0.1)


def test_the_winning_class_of_a_model_that_fits_has_slope_one_and_of_a_permuted_one_a_negative_slope():
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 2, (5000, 4))
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = np.array([rng.choice(4, p=row) for row in p])
    right = calibration_slope(*winning_log_odds(p, labels), is_binary=True)
    wrong = calibration_slope(*winning_log_odds(p[:, [1, 2, 3, 0]], labels), is_binary=True)
    assert right.slope == pytest.approx(1, abs=0.1)
    assert wrong.slope < -0.2


@pytest.mark.parametrize(("y", "eta", "words"), [
    ([0, 1, 2], [1.0, 2.0, 3.0], "0 or 1"), ([0, 1], [1.0, 2.0, 3.0], "one length"),
    ([0, 1, 0], [1.0, np.inf, 2.0], "finite")])
def test_what_is_no_calibration_is_refused(y, eta, words):
    with pytest.raises(InputError, match=words):
        calibration_slope(np.array(y, float), np.array(eta), is_binary=True)
