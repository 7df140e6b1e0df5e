"""Cohorts: how often each party is drawn, with which weight, and how much work it does."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chi2

import resolvent as rv
from resolvent.algorithms.cohort import Cohort
from resolvent.errors import InputError
from resolvent.simulator.engine.rounds import run_rounds

SIZES = jnp.array([10, 20, 30, 40, 100])
DRAWS = 20_000


def cohorts(participation, sizes=SIZES, draws=DRAWS):
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(jax.random.key(0), jnp.arange(draws))
    return jax.jit(jax.vmap(lambda key: participation.draw((), key, 0, sizes)[0]))(keys)


def is_fair(counts, probabilities):
    expected = np.asarray(probabilities) * counts.sum()
    return ((counts - expected) ** 2 / expected).sum() < chi2.ppf(1 - 1e-6, len(counts) - 1)


def test_uniform_draws_all_parties_equally_often_without_replacement():
    drawn = np.asarray(cohorts(rv.participation.Uniform(cohort=2)).index)
    assert (drawn[:, 0] != drawn[:, 1]).all()
    assert is_fair(np.bincount(drawn[:, 0]), np.full(5, 0.2))
    pairs = np.bincount(drawn[:, 0] * 5 + drawn[:, 1], minlength=25).reshape(5, 5)[~np.eye(5, dtype=bool)]
    assert is_fair(pairs, np.full(20, 0.05))


def test_uniform_among_the_first_parties_never_draws_the_others():
    drawn = np.asarray(cohorts(rv.participation.Uniform(cohort=2, among=3)).index)
    assert (drawn[:, 0] != drawn[:, 1]).all()
    assert is_fair(np.bincount(drawn[:, 0]), np.full(3, 1 / 3))
    rv.participation.Uniform(2, among=5).check(5)
    with pytest.raises(InputError, match=r"among=6.* cannot be drawn from 5 parties"):
        rv.participation.Uniform(2, among=6).check(5)
    with pytest.raises(InputError, match=r"among=1.* must be at least cohort=2"):
        rv.participation.Uniform(2, among=1)


def drawn_weights(participation, sizes=SIZES, draws=DRAWS):
    """[draws, N] the weight of each party in each round; parties that do not take part have none."""
    drawn = cohorts(participation, sizes, draws)
    weights = np.zeros((draws, len(sizes)))
    rows = np.arange(draws)[:, None]
    assert (np.diff(np.sort(drawn.index, axis=1)) > 0).all()
    np.add.at(weights, (rows, np.asarray(drawn.index)), np.where(drawn.alive, drawn.weight, 0))
    np.testing.assert_array_equal(np.asarray(drawn.weight) > 0, drawn.alive)
    np.testing.assert_allclose(drawn.shares, (np.asarray(sizes) / np.sum(sizes))[np.asarray(drawn.index)])
    return weights


def test_by_size_draws_with_replacement_in_proportion_to_size():
    """FedProx's scheme A: K independent draws of a party, with p_k = n_k/n."""
    single = drawn_weights(rv.participation.BySize(cohort=1))
    assert (single.sum(axis=1) == 1).all()
    assert is_fair(single.sum(axis=0), np.asarray(SIZES) / 200)
    pairs = 2 * drawn_weights(rv.participation.BySize(cohort=2))  # the number of times that each party was drawn
    assert (pairs.sum(axis=1) == 2).all()
    first, second = pairs.argmax(axis=1), len(SIZES) - 1 - pairs[:, ::-1].argmax(axis=1)
    p = np.asarray(SIZES) / 200
    unordered = np.triu(2 * np.outer(p, p) - np.diag(p**2))
    counts = np.bincount(first * 5 + second, minlength=25).reshape(5, 5)
    assert is_fair(counts[unordered > 0], unordered[unordered > 0])


def test_expected_weight_by_size_is_the_share():
    """Over all N^K sequences of draws with their probabilities, the mean weight of party k is n_k/n exactly."""
    sizes, draws = np.array([1, 1, 1, 97]), 3
    probability, expected = sizes / sizes.sum(), np.zeros(4)
    sequences = np.array(list(itertools.product(range(4), repeat=draws)))
    cohorts = jax.jit(jax.vmap(Cohort.from_draws, in_axes=(0, None)))(jnp.asarray(sequences), jnp.asarray(probability))
    for i, sequence in enumerate(sequences):
        index, alive = np.asarray(cohorts.index[i]), np.asarray(cohorts.alive[i])
        assert np.unique(sequence).tolist() == index[alive].tolist()
        assert len(set(index.tolist())) == draws
        np.add.at(expected, index, probability[sequence].prod() * np.asarray(cohorts.weight[i]))
    np.testing.assert_allclose(expected, probability, atol=1e-15)


@pytest.mark.when_changed
def test_by_size_without_replacement_is_biased():
    """Sizes 1, 1, 1, 97 and K = 2: the large party has half of the weight whenever it is drawn, and never more."""
    sizes = jnp.array([1, 1, 1, 97])
    p = np.array([0.01, 0.01, 0.01, 0.97])
    # without replacement: P(first = i, second = j) = p_i p_j / (1 - p_i)
    both = np.outer(p / (1 - p), p) * ~np.eye(4, dtype=bool)
    biased = drawn_weights(rv.participation.BiasedBySize(cohort=2), sizes).mean(axis=0)
    np.testing.assert_allclose(biased, (both.sum(axis=0) + both.sum(axis=1)) / 2, atol=0.005)
    unbiased = drawn_weights(rv.participation.BySize(cohort=2), sizes).mean(axis=0)
    np.testing.assert_allclose(unbiased, p, atol=0.005)
    assert biased[3] < 0.5 < 0.96 < unbiased[3]


@pytest.mark.nightly
def test_fedavg_by_size_settles_at_the_minimiser_of_the_weighted_objective():
    """f_k = (w - b_k)^2 / 2 with b = (1, 1, 1, 0) and n_k/n = (0.01, 0.01, 0.01, 0.97): the minimiser is 0.03."""
    problem = rv.problems.QuadraticProblem(jnp.ones((4, 1, 1)), jnp.array([[1.0], [1.0], [1.0], [0.0]]),
                                           sizes=jnp.array([1, 1, 1, 97]))
    algorithm = rv.fedavg(rv.solvers.GD(0.005, steps=1))
    fair, biased = (run_rounds(algorithm, problem, participation, rounds=4000).server[0] for participation in (
        rv.participation.BySize(2), rv.participation.BiasedBySize(2)))
    assert abs(fair - 0.03) < 0.02
    assert abs(biased - 0.5) < 0.02


def test_weights_are_the_shares():
    key = jax.random.key(0)
    np.testing.assert_allclose(rv.participation.Full().draw((), key, 0, SIZES)[0].weight, np.asarray(SIZES) / 200)
    np.testing.assert_allclose(rv.participation.Full("uniform").draw((), key, 0, SIZES)[0].weight, np.full(5, 0.2))
    cohort = rv.participation.Uniform(3).draw((), key, 0, SIZES)[0]
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


@pytest.mark.when_changed
def test_each_party_drawn_by_size_straggles_with_the_same_probability():
    """Free rows of a cohort can be late as well, so the number of late parties varies, but not its mean."""
    drawn = cohorts(rv.participation.Stragglers(rv.participation.BySize(cohort=4), share=0.5))
    late, alive = np.asarray(drawn.late), np.asarray(drawn.alive)
    assert abs(late[alive].mean() - 0.5) < 0.01


def test_fixed_effort_is_not_late():
    effort = np.array([0.1, 0.2, 0.3, 0.4, 1.0])
    participation = rv.participation.FixedEffort(jnp.asarray(effort), rv.participation.Uniform(3))
    drawn = participation.draw((), jax.random.key(0), 0, SIZES)[0]
    np.testing.assert_allclose(drawn.effort, effort[np.asarray(drawn.index)])
    assert not np.asarray(drawn.late).any()


def test_parties_drop_out_with_their_probability():
    probability = jnp.array([0.0, 0.2, 0.5, 0.9])
    participation = rv.participation.Dropout(probability, rv.participation.Uniform(cohort=3))
    participation.check(4)
    keys = jax.random.split(jax.random.key(0), 4000)
    cohorts = jax.jit(jax.vmap(lambda key: participation.draw((), key, 0, jnp.array([5, 6, 7, 8]))[0]))(keys)
    for k, p in enumerate(probability):
        alive = np.asarray(cohorts.alive)[np.asarray(cohorts.index) == k]
        assert abs(alive.mean() - (1 - p)) < 0.03
    for wrong in (jnp.array([0.1, 0.2]), jnp.array([0.0, 0.0, 0.0, 1.0])):
        with pytest.raises(rv.InputError, match=r"one number in \[0, 1\) per party, 4"):
            rv.participation.Dropout(wrong).check(4)


def test_one_number_for_all_parties_and_lists_of_ids():
    participation = rv.participation
    key, sizes = jax.random.key(0), jnp.arange(1, 6)
    for shared, listed in ((participation.Dropout(0.5), participation.Dropout([0.5] * 5)),
                      (participation.FixedEffort(0.5), participation.FixedEffort(np.full(5, 0.5)))):
        shared.check(5)
        a, b = (one.draw((), key, 0, sizes)[0] for one in (shared, listed))
        assert (a.alive.tolist(), a.effort.tolist()) == (b.alive.tolist(), b.effort.tolist())
    assert participation.Stragglers(parties=[0, 3]) == participation.Stragglers(parties=(0, 3))
    attacked = rv.attacked(rv.fedavg(rv.SGD(0.1)), rv.attacks.SignFlip(), share=0.0, parties=[1])
    assert attacked.parties == (1,)  # static fields are hashed


def test_uniform_draws_from_a_million_parties():
    sizes = jnp.ones(1_000_000, jnp.int32)
    index = np.asarray(rv.participation.Uniform(5).draw((), jax.random.key(1), 0, sizes)[0].index)
    assert len(set(index)) == 5
    assert index.max() > 10


@pytest.mark.parametrize(("make", "message"), [
    (lambda: rv.participation.Uniform(0), r"Uniform\(cohort=0\) must lie in \(0, inf\)"),
    (lambda: rv.participation.BySize(0), r"BySize\(cohort=0\) must lie in \(0, inf\)"),
    (lambda: rv.participation.BiasedBySize(-1), r"BiasedBySize\(cohort=-1\) must lie in \(0, inf\)"),
    (lambda: rv.participation.BySize(6).check(5), "a cohort of 6 cannot be drawn from 5"),
    (lambda: rv.participation.Bernoulli(0.0), r"Bernoulli\(probability=0.0\) must lie in \(0, 1\]"),
    (lambda: rv.participation.Stragglers(share=1.5), r"Stragglers\(share=1.5\) must lie in \[0, 1\]"),
    (lambda: rv.participation.Uniform(6).check(5), "a cohort of 6 cannot be drawn from 5"),
    (lambda: rv.participation.Stragglers(rv.participation.Uniform(6)).check(5), "a cohort of 6 cannot be drawn"),
    (lambda: rv.participation.Stragglers(parties=(5,)).check(5), "names party 5"),
    (lambda: rv.participation.FixedEffort(jnp.ones(4)).check(5), r"one per party \(5\), got shape \(4,\)"),
])
def test_wrong_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.when_changed
def test_a_cohort_can_be_a_share_of_the_parties():
    sizes = jnp.arange(1, 21)
    for make in (rv.participation.Uniform, rv.participation.BySize, rv.participation.BiasedBySize):
        share, number = (make(cohort).draw((), jax.random.key(0), 0, sizes)[0] for cohort in (0.1, 2))
        np.testing.assert_array_equal(share.index, number.index)
        assert (make(0.01).capacity(20), make(1.0).capacity(20)) == (1, 20)
        with pytest.raises(InputError, match=r"cohort=1\.5.* must be a whole number, or a share"):
            make(1.5)
    assert rv.participation.Uniform(0.5, among=4).capacity(20) == 2
