"""PrivateParties: every round releases all of the stated noise; and the attack that counts unchanged rounds."""

import math
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import SEED, quadratic, trajectory
from scipy.stats import binom, norm

import nightly
import resolvent as rv
from resolvent.algorithms.combinators.combinator import Wrapped
from resolvent.algorithms.combinators.private_parties import ClippedUpdate
from resolvent.algorithms.round import server_step
from resolvent.differential_privacy import parties
from resolvent.math.system_keys import system_key
from resolvent.problem.oracle import ShapeOracle
from resolvent.simulator.engine.rounds import initial_state, run_rounds
from resolvent.testing.python_loop import python_rounds

GD = rv.solvers.GD(0.1)
KEYS = {"derived": jax.random.key(3), "system": system_key()}


def private(inner=None, **settings):
    return rv.combinators.PrivateParties(rv.fedavg(GD) if inner is None else inner,
                                         **{"cohort": 1.0, "clip": 0.5, "noise_multiplier": 2.0, **settings})


def unchanged_rounds(parties, rounds, probability):
    """What an attacker counts: rounds after which the model is the one before."""
    problem = rv.problems.QuadraticProblem(jnp.zeros((parties, 1, 1)), jnp.zeros((parties, 1)))
    algorithm = private(cohort=parties * probability, noise_multiplier=10.0)
    states = trajectory(algorithm, problem, rounds, rv.participation.Bernoulli(probability, "uniform"))
    steps = np.diff([float(state.server.inner[0]) for state in states])
    return int((steps == 0).sum())


def proven_epsilon(rounds, of_two, of_three, delta=1e-5):
    """The largest epsilon that the numbers of unchanged rounds prove, if a round is unchanged with these probabilities.

    It is the largest of log((P(count >= c) - delta) / Q(count >= c)) over c and over both orders of the worlds.
    """
    counts = np.arange(rounds + 1)
    p, q = (binom.sf(counts - 1, rounds, share) for share in (of_two, of_three))
    with np.errstate(divide="ignore", invalid="ignore"):
        bounds = np.log([(p - delta) / q, (1 - q - delta) / (1 - p)])
    return max(0.0, float(np.nanmax(np.where(np.isfinite(bounds), bounds, -np.inf), initial=0.0)))


@pytest.mark.nightly
def test_counting_unchanged_rounds_proves_nothing():
    """2 of 3 parties are known, each in half of 100 rounds, noise 10: claimed 2.0, and the count once proved 21.7."""
    rounds = 100
    shares = [unchanged_rounds(parties, rounds, 0.5) / rounds for parties in (2, 3)]
    assert shares == [0, 0]
    assert proven_epsilon(rounds, *shares) == 0
    assert proven_epsilon(rounds, 1 / 4, 1 / 8) > 2.0  # the attack works where rounds are left out


@pytest.mark.when_changed
@nightly.parametrize("quantile", [0.5, None])
def test_a_round_without_parties_releases_noise_in_the_simulator_and_in_the_plain_loop(quantile):
    participation = rv.participation.Bernoulli(1e-6, "uniform")
    algorithm = private(quantile=quantile)
    fast = trajectory(algorithm, quadratic(), 3, participation)
    plain = python_rounds(algorithm, quadratic(), participation, int(SEED), 3)
    models = np.array([state.server.inner for state in fast])
    assert (np.diff(models, axis=0) != 0).all()
    np.testing.assert_allclose(models, [state.server.inner for state in plain], rtol=1e-6)


def test_other_algorithms_do_nothing_in_a_round_without_parties():
    states = trajectory(rv.fedavg(GD), quadratic(), 2, rv.participation.Bernoulli(1e-6, "uniform"))
    assert not np.diff([state.server for state in states], axis=0).any()


@nightly.parametrize("outer", [
    lambda inner: rv.combinators.ServerOptimizer(inner, optax.adam(0.1)), rv.combinators.Momentum,
    rv.combinators.ErgodicAveraging, lambda inner: rv.combinators.Compressed(inner, rv.codecs.QSGD(), step=0.5)],
    ids=["adam", "momentum", "ergodic", "compressed"])
def test_combinators_around_it_release_noise_and_stay_finite_without_replies(outer):
    algorithm = outer(private())
    states = trajectory(algorithm, quadratic(), 3, rv.participation.Bernoulli(1e-6, "uniform"))
    assert all(np.isfinite(leaf).all() for state in states for leaf in jax.tree.leaves(state.server))
    assert np.diff([algorithm.server_model(state.server) for state in states], axis=0).all()


@partial(jax.jit, static_argnames=("replying", "size"))
def next_server(algorithm, key, replying, size):
    """The server's state after a round in which the first of four parties reply, all with zero updates."""
    (phase,) = algorithm.phases
    state = algorithm.init(jnp.zeros(size), jnp.ones(4) / 4)
    replies = [phase.party(Wrapped((), ()), phase.message(state, jnp.array(k)), Zero(jnp.array(1)),
                           jax.random.fold_in(key, k), jnp.ones(()))[1] for k in range(replying)]
    absent = ClippedUpdate(jnp.zeros(size), jnp.zeros(()))
    payload = jax.tree.map(lambda *rows: jnp.stack(rows), *replies, *[absent] * (4 - replying))
    alive = jnp.arange(4) < replying
    weight = jnp.where(alive, 0.25, 0.0)
    return server_step(algorithm, 0, state, rv.Replies(payload, weight, jnp.arange(4), alive, weight),
                       jax.random.fold_in(key, 99))[0]


class Zero(ShapeOracle):
    """An objective without a gradient."""

    def grad(self, w):
        return jnp.zeros_like(w)


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("source", ["server", "parties"])
@nightly.parametrize("replying", [3, 0, 4])
def test_the_model_has_the_stated_noise_whoever_replies(kind, source, replying):
    """Standard deviation 2 * 0.5, also if fewer parties reply than expected, with noise of either kind."""
    state = next_server(private(cohort=4.0, noise=source), KEYS[kind], replying, 4000)
    assert float(jnp.std(state.inner)) * 4 == pytest.approx(1.0, rel=5 / math.sqrt(2 * 4000))


@pytest.mark.when_changed
@nightly.parametrize("kind", sorted(KEYS, reverse=True))
@nightly.parametrize("replying", [4, 0])
def test_the_number_of_short_updates_has_its_noise_from_the_parties_too(kind, replying):
    """Nothing but the noise changes the clip if all four b_k are 1/2 and the quantile is that share."""
    algorithm = private(cohort=4.0, noise="parties", quantile=0.5, quantile_noise=8.0, quantile_rate=1.0)
    keys = jax.vmap(partial(jax.random.fold_in, KEYS[kind]))(jnp.arange(300))
    clips = jax.lax.map(lambda key: next_server(algorithm, key, replying, 1).extra, keys)
    logs = -np.log(np.asarray(clips) / 0.5)
    assert np.mean(logs) == pytest.approx(0.5 if replying else 0.0, abs=5 * 2 / math.sqrt(300))
    assert np.std(logs) == pytest.approx(8.0 / 4, rel=5 / math.sqrt(2 * 300))


@pytest.mark.when_changed
def test_a_party_sends_no_count_without_noise():
    """b_k leaves a party that adds noise only with noise, and not at all without a quantile."""
    for quantile, expected in ((None, {0.0}), (0.5, None)):
        algorithm = private(cohort=4.0, noise="parties", quantile=quantile)
        (phase,) = algorithm.phases
        state = algorithm.init(jnp.zeros(3), jnp.ones(4) / 4)
        replies = {float(phase.party(Wrapped((), ()), phase.message(state, jnp.array(0)), Zero(jnp.array(1)),
                                     jax.random.key(k), jnp.ones(()))[1].shortness) for k in range(3)}
        assert replies == expected if expected else (not replies & {0.5, -0.5} and len(replies) == 3)


def private_fed_plus(clip, **settings):
    """Fed+ for the L2 norm, whose delta is the clip: the sum of the clipped updates is that of its pulls."""
    return private(rv.fedavg_plus(GD, sigma=0.5, delta=clip), cohort=6.0, clip=clip, noise_multiplier=0.0, **settings)


@nightly.parametrize("source", ["parties", "server"])
def test_private_fed_plus_releases_the_sum_of_the_pulls_and_no_party_moves_it_by_more_than_the_clip(source):
    """Fed+ (25) with the L2 norm; one party's objective pulls its model to 1e6, where it stays from round to round."""
    problem, clip = quadratic(), 0.4
    problem = rv.problems.QuadraticProblem(problem.hessians, problem.linears.at[2].multiply(1e6))
    states = trajectory(private_fed_plus(clip, noise=source), problem, 4, rv.participation.Full("uniform"))
    prox = rv.penalties.L2Norm().prox
    for before, after in pairwise(states):
        r = after.parties.inner - before.server.inner
        pulls = np.array([row - prox(row, clip) for row in r])
        np.testing.assert_allclose(after.server.inner, before.server.inner + pulls.sum(axis=0) / 6, atol=2e-6)
        assert np.linalg.norm(pulls, axis=1).max() <= clip * (1 + 1e-6)
    assert np.abs(np.asarray(states[-1].parties.inner)[2]).max() > 1e5  # its own model is where its data are
    assert np.abs(np.asarray(states[-1].server.inner)).max() < 4


@pytest.mark.when_changed
def test_the_best_attack_on_private_fed_plus_gains_what_its_epsilon_says():
    """The adversary knows all other parties, the target's data and each released model, and computes the likelihoods.

    The target's clipped updates are as long as allowed, so that T rounds are one Gaussian release with z / sqrt(T), and
    P(present, ratio > e^epsilon) - e^epsilon P(absent, ratio > e^epsilon) is its delta: no more, and no less.
    """
    rounds, z, runs, epsilon = 6, 3.0, 4000, 0.5
    problem = rv.problems.QuadraticProblem(jnp.ones((2, 1, 1)), jnp.array([[0.0], [1e6]]))
    algorithm = private(rv.fedavg_plus(GD, sigma=0.5, delta=1.0), cohort=1.0, clip=1.0, noise_multiplier=z)

    def log_ratio(seed, absent):
        participation = rv.participation.Dropout(jnp.array([0.0, 1.0]) * absent, rv.participation.Full("uniform"))

        def step(state, t):
            after = run_rounds(algorithm, problem, participation, state=state, seed=seed, start=t)
            w = state.server.inner
            known = after.parties[0] - w  # the first party's update, which the adversary can compute
            moved = (after.server.inner - w - known / jnp.maximum(1, jnp.abs(known)))[0]
            return after, (moved - 0.5) / z**2  # the target's clipped update is 1

        first = initial_state(algorithm, problem, participation, seed)
        return jnp.sum(jax.lax.scan(step, first, jnp.arange(rounds))[1])

    many = jax.jit(jax.vmap(log_ratio, (0, None)))
    ratios = [np.asarray(many(jnp.arange(runs), absent)) for absent in (0.0, 1 - 1e-6)]
    present, absent = (np.mean(ratio > epsilon) for ratio in ratios)
    mu = math.sqrt(rounds) / z
    delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    error = math.sqrt((present * (1 - present) + math.exp(2 * epsilon) * absent * (1 - absent)) / runs)
    assert present - math.exp(epsilon) * absent == pytest.approx(delta, abs=4 * error)


class TestLedger:
    """What is claimed, and what is refused because the noise would depend on who takes part."""

    @pytest.fixture(autouse=True)
    def _simple_accountant(self, monkeypatch):
        def epsilon(noise, rate, steps, delta, accountant, *earlier):
            return rate * steps / noise

        monkeypatch.setattr(parties, "gaussian_epsilon", epsilon)

    def epsilons(self, algorithm, rate):
        return rv.privacy.party_epsilons(algorithm, rate=rate, rounds=10, delta=1e-5)

    def test_three_adversaries_have_three_epsilons(self):
        """A server that adds the noise has every reply without it; one of four parts has half the multiplier.

        Another party knows its own part of the noise. In a secure sum the server knows none, unless parties tell it.
        """
        other = 5.0 / math.sqrt(3 / 4)
        assert self.epsilons(private(), 0.5) == (2.5, 5.0, math.inf, math.inf)
        assert self.epsilons(private(cohort=4.0, noise="parties"), 1.0) == pytest.approx((other, other, 10.0, 5.0))
        assert self.epsilons(private(cohort=9.0, noise="parties", noise_parties=4), 1.0) == pytest.approx(
            (other, other, 10.0, 5.0))
        assert self.epsilons(private(cohort=9.0, noise="parties", noise_parties=1), 1.0) == (5.0, 5.0, 5.0, 5.0)
        with_helpers = rv.privacy.party_epsilons(private(cohort=4.0, noise="parties"), rate=1.0, rounds=10, delta=1e-5,
                                         colluding=3)
        assert with_helpers == (10.0, 10.0, 10.0, 10.0)
        assert rv.privacy.party_epsilon(private(), rate=0.5, rounds=10, delta=1e-5) == 2.5

    def test_noise_of_parties_is_not_accounted_for_in_drawn_cohorts(self):
        with pytest.raises(rv.InputError, match="let all parties take part"):
            self.epsilons(private(noise="parties"), 0.5)

    @pytest.mark.parametrize(("cohort", "participation", "message"), [
        (3.0, rv.participation.Bernoulli(0.5), "let all parties take part"),
        (2.0, rv.participation.Full(), "Set cohort=3"), (3.0, rv.participation.Full(), None),
        (4.0, rv.participation.Full(), None)])
    def test_a_budget_takes_the_noise_of_parties_only_if_it_is_the_stated_one_in_every_round(
            self, cohort, participation, message):
        budget = rv.privacy.PrivacyBudget(delta=1e-3)

        def ledger():
            return rv.privacy.PrivacyLedger(budget, private(cohort=cohort, noise="parties"), jnp.zeros(2), [5, 6, 7],
                                            participation)

        if message is None:
            ledger()
        else:
            with pytest.raises(rv.InputError, match=message):
                ledger()
