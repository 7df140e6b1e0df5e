"""Membership inference: the attack works where training memorises records, and fails with differential privacy."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import resolvent as rv
from resolvent.predict.intervals import mean_interval

MODELS, RECORDS, FEATURES = 16, 48, 60


@pytest.fixture(scope="module")
def records():
    """Records with random labels, which a model can only memorise, and the training records of each model."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(RECORDS, FEATURES)).astype(np.float32)
    return x, rng.integers(2, size=RECORDS), rv.privacy.draw_members(MODELS, RECORDS, seed=1)


def attack_on(records, clip, noise_multiplier, *, steps=20, seed=0):
    """The attack on models that are trained alone by DPSGD: each model is a party of one federation."""
    x, y, members = records
    classes = int(y.max()) + 1
    data = rv.FederatedData.from_arrays([x[m] for m in members], [y[m] for m in members], validation=0, test=0,
                                        classes=[str(c) for c in range(classes)])
    solver = rv.solvers.DPSGD(0.5, clip=clip, noise_multiplier=noise_multiplier, batch_size=len(x), steps=steps)
    model = rv.models.logistic(x.shape[1], classes)
    result = rv.simulate(rv.local(solver), model, data, rounds=1, seed=seed, progress=False)
    models = [result.personal_model(k) for k in range(len(members))]
    return rv.privacy.membership_inference(model, models, x, y, members, false_positive_rate=0.05)


@pytest.mark.nightly
def test_the_attack_works_without_privacy_and_fails_with_it(records):
    """20 steps on all samples with noise 12 are one Gaussian release with 12/sqrt(20): an advantage of at most 0.15."""
    open_, private = attack_on(records, 1e6, 0.0), attack_on(records, 1.0, 12.0)
    assert open_.auc > 0.95
    assert open_.advantage > 0.8
    assert open_.true_positive_rate > 0.5
    # An interval of five standard errors of the AUC of guessing, from all pairs of models and records.
    error = 1 / math.sqrt(3 * MODELS * RECORDS)  # of the AUC of guesses: 1/12 (1/members + 1/others)
    assert abs(private.auc - 0.5) < 0.5 * (2 * norm.cdf(0.5 * math.sqrt(20) / 12) - 1) + 5 * error
    assert private.advantage < 0.3
    assert private.true_positive_rate < 0.2


@pytest.mark.nightly
def test_the_attack_on_digits_with_many_shadow_models_stays_below_the_bound_of_gaussian_privacy():
    """100 steps on all samples with noise 10/mu are mu-Gaussian: no attack has an AUC above Phi(mu/sqrt 2).

    The intervals are Student's over five draws of the shadow models, of their records and of the noise.
    """
    data = rv.datasets.digits(parties=1, classes_per_party=10, validation=0, test=0.9)
    x, y = data.party(0)
    x, y = x[:100], y[:100]

    def auc(clip, noise_multiplier):
        return mean_interval(np.array([
            attack_on((x, y, rv.privacy.draw_members(64, len(x), seed=seed)), clip, noise_multiplier, steps=100,
                      seed=seed).auc for seed in range(5)]))

    exposed, weak, strong = auc(1e6, 0.0), auc(1.0, 10.0), auc(1.0, 50.0)  # mu = infinite, 1 and 0.2
    assert exposed.low > 0.65
    assert weak.high < norm.cdf(1 / math.sqrt(2))
    assert strong.high < norm.cdf(0.2 / math.sqrt(2))
    assert strong.high < exposed.low


def test_each_record_is_in_half_of_the_models_and_each_model_has_half_of_the_records():
    members = rv.privacy.draw_members(10, 30, seed=3)
    assert (members.sum(axis=0) == 5).all()
    assert (members.sum(axis=1) == 15).all()


def test_the_rates_are_those_of_the_likelihood_ratio_test_of_two_normal_distributions():
    """Statistics N(d, 1) of training records and N(0, 1) of others: AUC = Phi(d/sqrt 2), advantage 2 Phi(d/2) - 1."""
    d, rng = 1.5, np.random.default_rng(1)
    members = rv.privacy.draw_members(128, 400, seed=2)
    shift = 3 * rng.normal(size=400)  # records differ in how difficult they are, which the shadow models reveal
    attack = rv.privacy.attack_statistics(shift + d * members + rng.normal(size=members.shape), members,
                                          false_positive_rate=0.1)
    assert attack.auc == pytest.approx(norm.cdf(d / math.sqrt(2)), abs=0.01)
    assert attack.advantage == pytest.approx(2 * norm.cdf(d / 2) - 1, abs=0.015)
    assert attack.true_positive_rate == pytest.approx(norm.sf(norm.isf(0.1) - d), abs=0.015)


def test_equal_statistics_are_guesses():
    members = rv.privacy.draw_members(8, 20)
    attack = rv.privacy.attack_statistics(np.zeros((8, 20)), members)
    assert (attack.auc, attack.advantage, attack.true_positive_rate) == (0.5, 0.0, 0.0)


def test_the_bound_of_the_advantage_is_that_of_randomised_response():
    """Randomised response reports a bit truly with probability e^epsilon/(1 + e^epsilon), which attains the bound."""
    truth = math.exp(1.3) / (1 + math.exp(1.3))
    assert rv.privacy.advantage_bound(1.3) == pytest.approx(truth - (1 - truth))
    assert rv.privacy.advantage_bound(1.3, 0.01) == pytest.approx((math.exp(1.3) - 1 + 0.02) / (math.exp(1.3) + 1))
    assert rv.privacy.advantage_bound(1e4) == 1.0


def test_inputs_that_do_not_fit_are_refused(records):
    x, y, members = records
    model = rv.models.logistic(FEATURES, 2)
    w0 = {"weight": jnp.zeros((1, FEATURES)), "bias": jnp.zeros(1)}
    with pytest.raises(rv.InputError, match="one row per model"):
        rv.privacy.membership_inference(model, [w0] * 3, x, y, members)
    with pytest.raises(rv.InputError, match="draw_members"):
        rv.privacy.membership_inference(model, [w0] * 4, x, y, members[:4])
    with pytest.raises(rv.InputError, match="even"):
        rv.privacy.draw_members(3, 10)
