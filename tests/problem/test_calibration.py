"""Calibrations and thresholds, against known truths and brute force."""

import itertools
import json
from dataclasses import asdict

import numpy as np
import pytest
from scipy.special import expit, logit, softmax
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from resolvent.data.files.plain_values import read_plain
from resolvent.errors import InputError
from resolvent.predict.calibration import (
    POOLED_ROWS,
    Calibration,
    LabelledOutputs,
    choose_calibration,
    fit_calibration,
    log_losses,
    probabilities_of,
)
from resolvent.predict.threshold import Goal, Threshold, choose_threshold


def drawn(rows, distortion=lambda z: z, *, seed=0):
    """Labels whose true logits are z, and outputs that are a distortion of z."""
    rng = np.random.default_rng(seed)
    z = rng.normal(0, 2, rows)
    return LabelledOutputs(distortion(z)[:, None], (rng.random(rows) < expit(z)).astype(int))


def drawn_of_three(rows, factor, seed=0):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, (rows, 3))
    labels = (rng.random((rows, 1)) > softmax(logits, axis=1).cumsum(axis=1)).sum(axis=1)
    return LabelledOutputs(factor * logits, labels)


@pytest.mark.parametrize("factor", [0.4, 3.0])
@pytest.mark.parametrize("draw", [lambda f: drawn(5000, lambda z: f * z), lambda f: drawn_of_three(5000, f)])
def test_temperature_of_scaled_logits_is_recovered(draw, factor):
    rows = draw(factor)
    calibration = fit_calibration("temperature", rows)
    assert 1 / calibration.slope == pytest.approx(factor, rel=0.06)


def test_temperature_is_the_maximum_of_the_likelihood():
    """The slope is that of a logistic regression on the logit without an intercept."""
    rows = drawn(300, lambda z: 2 * z)
    expected = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-10).fit(rows.outputs, rows.labels).coef_[0, 0]
    assert fit_calibration("temperature", rows).slope == pytest.approx(expected, rel=1e-4)


def test_temperature_of_two_logits_is_that_of_their_difference():
    rows = drawn(300, lambda z: 2 * z)
    two = LabelledOutputs(np.hstack([np.zeros_like(rows.outputs), rows.outputs]), rows.labels)
    for kind in ("temperature", "platt", "isotonic"):
        one_logit, two_logits = fit_calibration(kind, rows), fit_calibration(kind, two)
        np.testing.assert_allclose(probabilities_of(one_logit.apply(rows.outputs)),
                                   probabilities_of(two_logits.apply(two.outputs)), rtol=1e-6)


def test_platt_recovers_a_shifted_logit():
    rows = drawn(5000, lambda z: 2 * z + 1)  # so that z = 0.5 output - 0.5
    choice = choose_calibration(rows)
    assert choice.calibration.kind == "platt"
    assert (choice.calibration.slope, choice.calibration.intercept) == pytest.approx((0.5, -0.5), abs=0.06)


def test_platt_stays_finite_for_separable_rows():
    rows = LabelledOutputs(np.linspace(-1, 1, 60)[:, None], (np.arange(60) >= 30).astype(int))
    calibration = fit_calibration("platt", rows)
    assert np.isfinite([calibration.slope, calibration.intercept]).all()
    assert fit_calibration("platt", LabelledOutputs(-rows.outputs, rows.labels)) is None  # it would decrease


def test_a_monotone_distortion_needs_the_isotonic_map():
    rows, later = (drawn(5000, lambda z: np.sign(z) * z**2 + 3 * (z > 1), seed=seed) for seed in (0, 1))
    choice = choose_calibration(rows)
    assert choice.calibration.kind == "isotonic"
    truth = expit(np.random.default_rng(1).normal(0, 2, 5000))  # the first draw of the later rows
    after = probabilities_of(choice.calibration.apply(later.outputs))[:, 1]
    before = probabilities_of(later.outputs)[:, 1]
    assert np.abs(after - truth).mean() < 0.03 < np.abs(before - truth).mean()


def test_isotonic_is_that_of_scikit_learn():
    rows, z = drawn(400), np.linspace(-9, 9, 101)
    end = 1 / 402
    expected = IsotonicRegression(y_min=end, y_max=1 - end, out_of_bounds="clip").fit(rows.outputs[:, 0], rows.labels)
    calibration = fit_calibration("isotonic", rows)
    np.testing.assert_allclose(expit(calibration.apply(z[:, None])[:, 0]), expected.predict(z), rtol=1e-9)
    assert read_plain(Calibration, json.loads(json.dumps(asdict(calibration))), "file") == calibration


def test_probabilities_are_those_of_the_log_loss():
    rows = drawn_of_three(50, 1.0)
    np.testing.assert_allclose(log_losses(*rows), -np.log(probabilities_of(rows.outputs)[np.arange(50), rows.labels]))
    assert probabilities_of(np.array([[1000.0], [-1000.0]])).tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize(("rows", "compared"), [
    (30, ["none", "temperature"]), (120, ["none", "temperature", "platt"]),
    (1000, ["none", "temperature", "platt", "isotonic"])])
def test_kinds_that_are_compared_follow_from_the_number_of_rows(rows, compared):
    choice = choose_calibration(drawn(rows))
    assert list(choice.losses) == compared
    assert choice.losses[choice.calibration.kind] == min(choice.losses.values())


def test_cross_validated_losses_are_those_of_rows_that_were_left_out():
    """Labels that are independent of the outputs: no kind but a flat one can be better than its training loss."""
    rng = np.random.default_rng(0)
    rows = LabelledOutputs(rng.normal(0, 1, (600, 1)), rng.integers(0, 2, 600))
    isotonic = fit_calibration("isotonic", rows)
    assert choose_calibration(rows).losses["isotonic"] > log_losses(isotonic.apply(rows.outputs), rows.labels).mean()


@pytest.mark.parametrize("site", [LabelledOutputs(np.zeros((0, 1)), np.zeros(0, int)), drawn(6, lambda z: 3 * z),
                                  LabelledOutputs(np.ones((40, 1)), np.ones(40, int))])
def test_a_site_with_few_rows_gets_the_temperature_of_all_sites(site):
    others = drawn(5000, lambda z: 3 * z, seed=1)
    choice = choose_calibration(site, others)
    assert 1 / choice.calibration.slope == pytest.approx(3, rel=0.1)
    assert "the rows of all sites choose" in choice.reason
    alone = choose_calibration(site)
    assert (alone.calibration, alone.reason) == (Calibration(), "the rows are too few, or of one class")


def test_fits_are_shrunk_to_those_of_all_sites():
    """With n own rows the temperature is between the own and the pooled one, and nearer to the own for larger n."""
    others = drawn(5000, lambda z: 3 * z, seed=1)
    distances = []
    for n in (20, 60, 2000):
        site = drawn(n, lambda z: 1.0 * z, seed=2)
        unshrunk, pooled = (fit_calibration("temperature", rows).slope for rows in (site, others))
        shrunk = choose_calibration(site, others, "temperature").calibration.slope
        assert min(unshrunk, pooled) <= shrunk <= max(unshrunk, pooled)
        distances.append(abs(shrunk - unshrunk) / abs(pooled - unshrunk))
    assert distances[0] > distances[1] > distances[2]
    assert distances[2] < 0.1
    weighted = LabelledOutputs.join([site, others])
    weights = np.concatenate([np.ones(2000), np.full(5000, POOLED_ROWS / 5000)])
    assert shrunk == pytest.approx(fit_calibration("temperature", weighted, weights).slope)


@pytest.mark.when_changed
def test_shrinkage_helps_sites_with_few_rows():
    """Over 10 sites with 15 rows and one distortion, the shrunk calibrations are nearer to the truth than own ones."""
    others, later = drawn(2000, lambda z: 2.5 * z, seed=100), drawn(2000, lambda z: 2.5 * z, seed=101)
    losses = []
    for seed in range(10):
        site = drawn(15, lambda z: 2.5 * z, seed=seed)
        losses.append([log_losses(choose_calibration(site, o).calibration.apply(later.outputs), later.labels).mean()
                       for o in (None, others)])
    alone, shrunk = np.mean(losses, axis=0)
    assert shrunk < alone - 0.01


@pytest.mark.parametrize("kind", ["platt", "isotonic"])
def test_kinds_for_two_classes_are_refused_for_three(kind):
    with pytest.raises(InputError, match=f"{kind} is for two classes, and the model has 3: use temperature"):
        choose_calibration(drawn_of_three(100, 1.0), kind=kind)
    assert "platt" not in choose_calibration(drawn_of_three(2000, 1.0)).losses


def brute_force(p, is_positive, goal, weights):
    """The costs, sensitivities and specificities of all thresholds that divide the rows differently."""
    cuts = [0.0, *np.unique(p).tolist(), 2.0]
    for cut in cuts:
        predicted = p >= cut
        missed, false = (weights @ (is_positive & ~predicted), weights @ (~is_positive & predicted))
        yield cut, missed, false


@pytest.mark.parametrize("seed", range(12))
def test_a_threshold_for_costs_has_the_smallest_cost(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 40))
    p = np.round(rng.random(n), 1 if seed % 2 else 6)  # with ties, 0 and 1 among them
    is_positive = rng.random(n) < p if seed % 3 else np.full(n, seed % 2 == 0)
    weights = rng.random(n) if seed % 4 else np.ones(n)
    for cost_fn, cost_fp in itertools.product((0.2, 1.0, 5.0), repeat=2):
        goal = Goal(cost_false_negative=cost_fn, cost_false_positive=cost_fp)
        t = choose_threshold(p, is_positive, goal, weights)
        predicted = Threshold("ill", t, goal).is_positive(p)
        cost = cost_fn * (weights @ (is_positive & ~predicted)) + cost_fp * (weights @ (~is_positive & predicted))
        smallest = min(cost_fn * m + cost_fp * f for _, m, f in brute_force(p, is_positive, goal, weights))
        assert cost == pytest.approx(smallest)


def test_a_threshold_for_costs_is_the_exact_one_if_the_rows_allow_it():
    p, is_positive = np.array([0.05, 0.1, 0.4, 0.9]), np.array([False, False, True, True])
    assert choose_threshold(p, is_positive, Goal(5, 1)) == pytest.approx(1 / 6)
    p = expit(np.random.default_rng(0).normal(0, 2, 50_000))
    is_positive = np.random.default_rng(1).random(50_000) < p
    assert choose_threshold(p, is_positive, Goal(5, 1)) == pytest.approx(1 / 6, abs=0.06)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("share", [0.5, 0.9, 1.0])
def test_thresholds_for_shares_reach_them_and_no_better_one_does(seed, share):
    rng = np.random.default_rng(seed)
    p = np.round(rng.random(30), 2)
    is_positive = rng.random(30) < p
    t = choose_threshold(p, is_positive, Goal(sensitivity=share))
    assert (p[is_positive] >= t).mean() >= share
    assert all((p[is_positive] >= larger).mean() < share for larger in np.unique(p[p >= t]) + 1e-9)
    t = choose_threshold(p, is_positive, Goal(specificity=share))
    assert (p[~is_positive] < t).mean() >= share
    assert all((p[~is_positive] < smaller).mean() < share for smaller in np.unique(p[p < t]))


@pytest.mark.parametrize(("options", "message"), [
    ({}, "state one of them"), ({"sensitivity": 0.9, "specificity": 0.9}, "state one of them"),
    ({"cost_false_negative": 5}, "cost_false_positive=None must be a positive number: state both"),
    ({"cost_false_negative": 5, "cost_false_positive": -1}, "cost_false_positive=-1 must be a positive number"),
    ({"sensitivity": 90}, "sensitivity=90 must lie above 0, and at most at 1"),
])
def test_goals_that_say_nothing_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        Goal(**options)


def test_a_threshold_for_a_share_needs_rows_of_the_class():
    with pytest.raises(InputError, match="no row is of the class on which the sensitivity is measured"):
        choose_threshold(np.array([0.5]), np.array([False]), Goal(sensitivity=0.9))


def test_a_threshold_is_the_same_from_plain_values():
    threshold = Threshold("ill", float(expit(logit(0.3))), Goal(sensitivity=0.9))
    assert read_plain(Threshold, asdict(threshold), "file") == threshold
    assert str(threshold) == "ill from a probability of 0.3 on (sensitivity of at least 0.9)"
