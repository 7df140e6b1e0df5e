"""Claimed epsilons against lower bounds from canaries; and that these bounds refute the claims of known faults."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nightly
import resolvent as rv
from resolvent.algorithms.combinators.held_out import HeldOutInterpolation
from resolvent.problem.oracle import NO_MEMORY
from resolvent.problem.solvers.dpsgd import DPSGD
from resolvent.simulator.engine.rounds import initial_state, run_rounds, trajectory
from resolvent.testing import canaries
from resolvent.testing.canaries import audit_parties, audit_records, party_canaries, record_canaries

DELTA, COUNT = 1e-5, 200
SOLVER = DPSGD(0.1, clip=1.0, noise_multiplier=1.5, batch_size=COUNT, steps=2)
FULL_STEP = rv.solvers.GD(1.0, steps=1)


def test_the_bound_is_that_of_the_binomial_distribution():
    """Without delta: the epsilon at which v of r correct guesses have the probability 5 %."""
    bound = rv.privacy.epsilon_lower_bound(50, 50, canaries=100)
    assert (math.exp(bound) / (1 + math.exp(bound))) ** 50 == pytest.approx(0.05, rel=1e-3)
    assert rv.privacy.epsilon_lower_bound(50, 25, canaries=100) == 0
    bounds = [rv.privacy.epsilon_lower_bound(50, 48, canaries=100, delta=delta) for delta in (0.0, 1e-5, 1e-3, 1e-1)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > bounds[-1]


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 2.5])
def test_the_bound_holds_for_randomised_response(epsilon):
    """It is exactly epsilon-private: the bound exceeds epsilon in at most 5 % of 1,000 audits, and comes close."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, (1000, 60)).astype(bool)
    is_right = rng.random(truth.shape) < 1 / (1 + math.exp(-epsilon))
    correct = is_right.sum(axis=1)
    bound_of = {int(v): rv.privacy.epsilon_lower_bound(60, int(v), canaries=60) for v in {*correct.tolist()}}
    bounds = np.array([bound_of[int(v)] for v in correct])
    assert np.mean(bounds > epsilon) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1000)
    assert np.mean(bounds) >= 0.4 * epsilon
    of_scores = rv.privacy.audit_scores((truth[0] == is_right[0]) + 0.0, truth[0], delta=0.0)
    assert of_scores.lower_bound <= max(epsilon, 0.0) + 1.0


def test_wrong_numbers_are_refused():
    with pytest.raises(rv.InputError, match="correct <= guesses"):
        rv.privacy.epsilon_lower_bound(5, 6, canaries=10)
    with pytest.raises(rv.InputError, match="one score and one truth"):
        rv.privacy.audit_scores(np.zeros(3), np.zeros(4, bool), delta=0.0)


RECORDS = {
    "fedavg": rv.fedavg, "robust_interpolation": rv.robust_interpolation, "fedprox": rv.fedprox, "local": rv.local,
    "ditto": rv.ditto,
    "fedgeomed_plus": rv.fedgeomed_plus, "feddyn": rv.feddyn, "fedpi": lambda s: rv.fedpi(s, eta=0.5),
    "pfedme": lambda s: rv.pfedme(s, steps=2, eta=0.03),
    "model_interpolation": lambda s: rv.model_interpolation(s, rv.fedprox(s, mu=0.5)),
    "fedplus_auto": lambda s: rv.fedplus_auto(s, sigmas=(0.1, 1.0), deltas=(1.0,)),
}
PARTIES = {"server": {}, "parties": {"noise": "parties"}, "quantile": {"quantile": 0.5},
           "personal models": {"method": lambda solver: rv.fedavg_plus(solver, sigma=0.1), "noise": "parties"}}


@pytest.mark.when_changed
@nightly.parametrize("name", [*RECORDS])
def test_no_claim_for_records_is_below_its_lower_bound(name):
    pytest.importorskip("dp_accounting", reason="needs the extra `privacy`")
    algorithm = RECORDS[name](SOLVER)
    claim, = rv.privacy.record_epsilons(algorithm, jnp.zeros(COUNT), [COUNT], rounds=2, delta=DELTA)
    audit = audit_records(algorithm, rounds=2, delta=DELTA, canaries=record_canaries(COUNT))
    assert 0 < audit.lower_bound <= claim


class DividedBySamples(DPSGD):
    """The fault: the noisy sum of a step is divided by n, where n is less than ``batch_size``. For one step."""

    def __call__(self, subproblem, start, key, effort, memory=NO_MEMORY):
        w, *rest = super().__call__(subproblem, start, key, effort, memory)
        factor = self.batch_size / subproblem.oracle.samples
        return jax.tree.map(lambda before, after: before + factor * (after - before), start, w), *rest


@pytest.mark.when_changed
@pytest.mark.parametrize("kind", [DividedBySamples, DPSGD])
def test_a_division_by_the_number_of_records_is_refuted(kind):
    """Each party has one record or two, without gradient, at most ``batch_size``: only the noise could tell which."""
    is_included = np.random.default_rng(0).integers(0, 2, COUNT).astype(bool)
    data = rv.FederatedData.from_arrays([np.zeros((1 + there, COUNT), "float32") for there in is_included],
                                        [np.zeros(1 + there, "float32") for there in is_included], validation=0, test=0)
    model = rv.models.from_functions(lambda key: jnp.zeros(COUNT), lambda w, x: x @ w, loss="squared_error")
    algorithm = rv.local(kind(0.1, clip=1.0, noise_multiplier=20.0, batch_size=2, steps=1))
    state = run_rounds(algorithm, rv.problems.LearningProblem(model, data), rounds=1, seed=1)
    lengths = np.linalg.norm(np.asarray(jax.tree.leaves(state.parties)[0]), axis=-1)
    bound = rv.privacy.audit_scores(-lengths, is_included, delta=DELTA).lower_bound
    assert (bound > gaussian_epsilon(20.0)) == (kind is DividedBySamples)


def private_parties(method=rv.fedavg, **settings):
    return rv.combinators.PrivateParties(method(FULL_STEP), cohort=COUNT, clip=1.0,
                                         **{"noise_multiplier": 1.0} | settings)


@pytest.mark.when_changed
@nightly.parametrize("name", [*PARTIES])
def test_no_claim_for_parties_is_below_its_lower_bound(name):
    pytest.importorskip("dp_accounting", reason="needs the extra `privacy`")
    algorithm = private_parties(**PARTIES[name])
    claim = rv.privacy.party_epsilon(algorithm, rate=1.0, rounds=2, delta=DELTA)
    audit = audit_parties(algorithm, rounds=2, delta=DELTA, canaries=party_canaries(COUNT))
    assert 0 < audit.lower_bound <= claim


@pytest.mark.nightly
def test_published_personal_models_refute_the_claim():
    """They are not protected: the model of an included party says so, whatever the noise of the sums is."""
    algorithm = private_parties(noise_multiplier=20.0, **PARTIES["personal models"])
    group = party_canaries(COUNT)
    absent = jnp.where(jnp.asarray(group.is_included), 0.0, 1 - 1e-6)
    state = run_rounds(algorithm, group.problem, rv.participation.Dropout(absent, rv.participation.Full("uniform")),
                       rounds=2, seed=1)
    of_parties = np.diag(canaries.coordinates(state.parties, COUNT))
    bounds = [rv.privacy.audit_scores(score, group.is_included, delta=DELTA).lower_bound
              for score in (of_parties, canaries.coordinates(state.server, COUNT)[0])]
    assert bounds[0] > gaussian_epsilon(20.0 / math.sqrt(2)) >= bounds[1]


def gaussian_epsilon(noise_multiplier):
    """An upper bound on epsilon that needs no library: Dwork, Roth, Theorem A.1, for epsilon below 1."""
    epsilon = math.sqrt(2 * math.log(1.25 / DELTA)) / noise_multiplier
    assert epsilon < 1
    return epsilon


@pytest.mark.when_changed
@nightly.parametrize("knows_the_seed", [True, False])
def test_noise_from_a_known_seed_is_refuted(knows_the_seed):
    """An auditor who knows the seed of the noise subtracts it."""
    algorithm, group = private_parties(noise_multiplier=20.0), party_canaries(COUNT)
    without_updates = eqx.tree_at(lambda problem: problem.x, group.problem, jnp.zeros_like(group.problem.x))
    participation = rv.participation.Dropout(jnp.where(jnp.asarray(group.is_included), 0.0, 1 - 1e-6),
                                             rv.participation.Full("uniform"))
    noisy, plain = (canaries.coordinates(run_rounds(algorithm, problem, participation, seed=seed).server, COUNT)[0]
                    for problem, seed in ((group.problem, 7), (without_updates, 7 if knows_the_seed else 8)))
    bound = rv.privacy.audit_scores(noisy - plain, group.is_included, delta=DELTA).lower_bound
    assert (bound > gaussian_epsilon(20.0)) == knows_the_seed


class SharedKey(HeldOutInterpolation):
    """The fault: the local work has the key of the inner algorithm's work."""

    def party(self, inner, state, message, oracle, key, effort, phase):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DPSGD, "adds_noise", False)
            return super().party(inner, state, message, oracle, key, effort, phase)


@nightly.parametrize("kind", [SharedKey, HeldOutInterpolation], per_commit=0)
def test_noise_that_two_releases_share_is_refuted(kind):
    """In round 2 the models v and w of a party differ, and so do the gradients a (a v - 1) of a canary, by a^2 (v - w).

    The difference of the two steps, divided by that of the models, is 1 for an included canary, if no noise is left.
    """
    is_included = record_canaries(COUNT).is_included
    solver = DPSGD(1.0, clip=1.0, noise_multiplier=40.0, batch_size=COUNT, steps=1)
    algorithm = kind(rv.fedplus(solver, rv.penalties.SquaredL2(), sigma=0.0, lam=1.0), solver)
    data = rv.FederatedData.from_arrays([(np.eye(COUNT) * is_included[:, None]).astype("float32"),
                                         np.zeros((COUNT, COUNT), "float32")],
                                        [np.full(COUNT, 0.1, "float32")] * 2, validation=0, test=0)
    model = rv.models.from_functions(lambda key: jnp.zeros(COUNT), lambda w, x: x @ w,
                                     loss=lambda outputs, y: (outputs - y) ** 2 / 2)
    with jax.enable_x64(True):
        _, before, after = trajectory(algorithm, rv.problems.LearningProblem(model, data), 2)
        local, joint = (after.parties.extra.value - before.parties.extra.value)[0], (
            after.parties.inner[0] - before.server.inner)
        score = (joint - local) / (before.parties.extra.value[0] - before.server.inner)
    bound = rv.privacy.audit_scores(np.asarray(score, float), is_included, delta=DELTA).lower_bound
    claim = gaussian_epsilon(40.0 / math.sqrt(4))
    assert (bound > claim) == (kind is SharedKey)


class SilentWhenEmpty(rv.combinators.PrivateParties):
    """The fault: a round without replies releases no noise."""

    def server(self, inner, state, replies, key, phase):
        after, info = super().server(inner, state, replies, key, phase)
        return jax.tree.map(lambda new, old: jnp.where(jnp.any(replies.alive), new, old), after, state), info


@nightly.parametrize("kind", [SilentWhenEmpty, rv.combinators.PrivateParties], per_commit=0)
def test_silence_in_a_round_without_parties_is_refuted(kind):
    """400 federations of one canary and two known parties: rounds that change nothing say that the canary is absent."""
    runs, rounds = 400, 64
    algorithm = kind(rv.fedavg(FULL_STEP), cohort=1.0, clip=1.0, noise_multiplier=60.0)
    data = rv.FederatedData.from_arrays([np.zeros((1, 1), "float32")] * 3, [np.zeros(1, "float32")] * 3, validation=0,
                                        test=0)
    problem = rv.problems.LearningProblem(rv.models.from_functions(
        lambda key: jnp.zeros(1), lambda w, x: x @ w, loss="squared_error"), data)
    is_included = np.random.default_rng(0).integers(0, 2, runs).astype(bool)

    def unchanged(seed, absent):
        participation = rv.participation.Dropout(jnp.array([0.0, 0.0, 1.0]) * absent, rv.participation.Bernoulli(0.5))

        def step(state, t):
            after = run_rounds(algorithm, problem, participation, state=state, seed=seed, start=t)
            return after, jnp.all(after.server.inner == state.server.inner)

        first = initial_state(algorithm, problem, participation, seed)
        return jnp.sum(jax.lax.scan(step, first, jnp.arange(rounds))[1])

    counts = jax.jit(jax.vmap(unchanged))(jnp.arange(runs), jnp.where(is_included, 0.0, 1 - 1e-6))
    bound = rv.privacy.audit_scores(-np.asarray(counts, float), is_included, delta=DELTA).lower_bound
    assert (bound > gaussian_epsilon(60.0 / math.sqrt(rounds))) == (kind is SilentWhenEmpty)
