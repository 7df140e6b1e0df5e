"""Cohorts: how often each party is drawn, with which weight, and how much work it does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chi2

import resolvent as rv

SIZES = jnp.array([10, 20, 30, 40, 100])
DRAWS = 20_000


def cohorts(participation, sizes=SIZES, draws=DRAWS):
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(jax.random.key(0), jnp.arange(draws))
    return jax.jit(jax.vmap(lambda key: participation(key, sizes)))(keys)


def is_fair(counts, probabilities):
    expected = np.asarray(probabilities) * counts.sum()
    return ((counts - expected) ** 2 / expected).sum() < chi2.ppf(1 - 1e-6, len(counts) - 1)


def test_uniform_draws_all_parties_equally_often_without_replacement():
    drawn = np.asarray(cohorts(rv.participation.Uniform(cohort=2)).index)
    assert (drawn[:, 0] != drawn[:, 1]).all()
    assert is_fair(np.bincount(drawn[:, 0]), np.full(5, 0.2))
    pairs = np.bincount(drawn[:, 0] * 5 + drawn[:, 1], minlength=25).reshape(5, 5)[~np.eye(5, dtype=bool)]
    assert is_fair(pairs, np.full(20, 0.05))


def test_by_size_draws_in_proportion_to_size_and_weights_equally():
    """FedProx's scheme A: p_k = n_k/n, plain average. With one party a round its mean is the weighted mean."""
    drawn = cohorts(rv.participation.BySize(cohort=1))
    assert is_fair(np.bincount(np.asarray(drawn.index)[:, 0]), np.asarray(SIZES) / 200)
    assert np.unique(np.asarray(drawn.weight)).size == 1
    pair = np.asarray(cohorts(rv.participation.BySize(cohort=2)).index)
    assert (pair[:, 0] != pair[:, 1]).all()
    # without replacement: P(first = i, second = j) = p_i p_j / (1 - p_i)
    p = np.asarray(SIZES) / 200
    both = p[:, None] * p[None, :] / (1 - p[:, None])
    counts = np.bincount(pair[:, 0] * 5 + pair[:, 1], minlength=25).reshape(5, 5)
    off_diagonal = ~np.eye(5, dtype=bool)
    assert is_fair(counts[off_diagonal], both[off_diagonal])


def test_weights_are_the_shares():
    key = jax.random.key(0)
    np.testing.assert_allclose(rv.participation.Full()(key, SIZES).weight, np.asarray(SIZES) / 200)
    np.testing.assert_allclose(rv.participation.Full("uniform")(key, SIZES).weight, np.full(5, 0.2))
    cohort = rv.participation.Uniform(3)(key, SIZES)
    np.testing.assert_allclose(cohort.weight, np.asarray(SIZES)[np.asarray(cohort.index)] / 200)


def test_bernoulli_draws_parties_independently():
    alive = np.asarray(cohorts(rv.participation.Bernoulli(0.3)).alive)
    assert np.abs(alive.mean(axis=0) - 0.3).max() < 0.02
    assert np.abs(np.corrcoef(alive.T)[~np.eye(5, dtype=bool)]).max() < 0.04


def test_stragglers_are_a_fraction_of_the_cohort_with_uniform_effort():
    drawn = cohorts(rv.participation.Stragglers(rv.participation.Uniform(cohort=4), share=0.5))
    late, effort = np.asarray(drawn.late), np.asarray(drawn.effort)
    assert (late.sum(axis=1) == 2).all()
    assert is_fair(late.sum(axis=0), np.full(4, 0.25))
    assert (effort[~late] == 1).all()
    partial = effort[late]
    assert partial.min() > 0
    assert partial.max() <= 1
    assert is_fair(np.bincount(np.ceil(partial * 20).astype(int), minlength=21)[1:], np.full(20, 0.05))


def test_certain_parties_always_straggle():
    drawn = cohorts(rv.participation.Stragglers(rv.participation.Uniform(cohort=3), parties=(1, 4)), draws=50)
    np.testing.assert_array_equal(np.asarray(drawn.late), np.isin(np.asarray(drawn.index), [1, 4]))


def test_stragglers_do_not_change_the_cohort():
    plain, with_stragglers = (cohorts(p, draws=50) for p in (
        rv.participation.Uniform(3), rv.participation.Stragglers(rv.participation.Uniform(3), share=0.9)))
    np.testing.assert_array_equal(plain.index, with_stragglers.index)
    np.testing.assert_array_equal(plain.weight, with_stragglers.weight)


def test_fixed_effort_is_not_late():
    effort = np.array([0.1, 0.2, 0.3, 0.4, 1.0])
    participation = rv.participation.FixedEffort(jnp.asarray(effort), rv.participation.Uniform(3))
    drawn = participation(jax.random.key(0), SIZES)
    np.testing.assert_allclose(drawn.effort, effort[np.asarray(drawn.index)])
    assert not np.asarray(drawn.late).any()


def test_parties_drop_out_with_their_probability():
    probability = jnp.array([0.0, 0.2, 0.5, 0.9])
    participation = rv.participation.Dropout(probability, rv.participation.Uniform(cohort=3))
    participation.check(4)
    keys = jax.random.split(jax.random.key(0), 4000)
    cohorts = jax.vmap(lambda key: participation(key, jnp.array([5, 6, 7, 8])))(keys)
    for k, p in enumerate(probability):
        alive = np.asarray(cohorts.alive)[np.asarray(cohorts.index) == k]
        assert abs(alive.mean() - (1 - p)) < 0.03
    for wrong in (jnp.array([0.1, 0.2]), jnp.array([0.0, 0.0, 0.0, 1.0])):
        with pytest.raises(rv.InputError, match=r"one number in \[0, 1\) per party, 4"):
            rv.participation.Dropout(wrong).check(4)


def test_uniform_draws_from_a_million_parties():
    index = np.asarray(rv.participation.Uniform(5)(jax.random.key(1), jnp.ones(1_000_000, jnp.int32)).index)
    assert len(set(index)) == 5
    assert index.max() > 10


@pytest.mark.parametrize(("make", "message"), [
    (lambda: rv.participation.Uniform(0), r"Uniform\(cohort=0\) must be at least 1"),
    (lambda: rv.participation.BySize(0), r"BySize\(cohort=0\) must be at least 1"),
    (lambda: rv.participation.Bernoulli(0.0), r"Bernoulli\(probability=0.0\) must lie in \(0, 1\]"),
    (lambda: rv.participation.Stragglers(share=1.5), r"Stragglers\(share=1.5\) must lie in \[0, 1\]"),
    (lambda: rv.participation.Uniform(6).check(5), "a cohort of 6 cannot be drawn from 5"),
    (lambda: rv.participation.Stragglers(rv.participation.Uniform(6)).check(5), "a cohort of 6 cannot be drawn"),
    (lambda: rv.participation.Stragglers(parties=(5,)).check(5), "names party 5"),
    (lambda: rv.participation.FixedEffort(jnp.ones(4)).check(5), r"needs one number per party, 5, got shape \(4,\)"),
])
def test_wrong_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
