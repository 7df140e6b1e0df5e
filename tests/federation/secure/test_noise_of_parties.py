"""Noise that sites add in secure sums: the bits of a simulation, the stated variance if sites leave, and epsilon."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nightly
import resolvent as rv
from federation.parts import SEED, limits, quadratic
from federation.secure_parts import same
from resolvent.algorithms.combinators.private_parties import ClippedUpdate
from resolvent.differential_privacy.parties import unknown_noise
from resolvent.federation.engines.in_process import run_in_process
from resolvent.federation.protocol.events import PhaseReport
from resolvent.federation.protocol.exchange import FederationStoppedError, RoundRules
from resolvent.federation.secure.primitives import local_identities
from resolvent.federation.secure.rules import SumRules
from resolvent.federation.site.planned_work import Membership
from resolvent.federation.site.sum_party import secure_site
from resolvent.math.discrete_gaussian import sum_divergence

pytest.importorskip("cryptography")
pytest.importorskip("Crypto")

RULES, CLIP, MULTIPLIER = SumRules(min_sites=3, threshold=0.5), 0.5, 2.0
FULL = rv.participation.Full("uniform")


def private(**changes):
    settings = {"cohort": 5.0, "clip": CLIP, "noise_multiplier": MULTIPLIER, "noise": "parties", "noise_parties": 4}
    inner = rv.combinators.PrivateParties(rv.fedavg(rv.solvers.GD(0.05, steps=3)), **settings | changes)
    return rv.combinators.FixedPointSums(inner, weighting="uniform")


@pytest.mark.when_changed
@nightly.parametrize("quantile", [0.5, None], others=nightly.WHEN_CHANGED)
def test_a_secure_run_is_the_plain_run_and_the_simulation_to_the_bit(quantile):
    algorithm, problem = private(quantile=quantile), quadratic(double=False)
    secure = run_in_process(algorithm, problem, rounds=2, seed=SEED, secure=RULES, participation=FULL)
    plain = run_in_process(algorithm, problem, rounds=2, seed=SEED, participation=FULL)
    simulated = rv.simulate(algorithm, problem, rounds=2, seed=SEED, participation=FULL, progress=False)
    assert same(secure.state, plain.state)
    assert same(secure.shared, simulated.server_model)
    without = rv.simulate(private(noise_multiplier=0.0), problem, rounds=2, seed=SEED, participation=FULL,
                          progress=False)
    assert not same(without.server_model, secure.shared)


@pytest.mark.when_changed
def test_no_sum_has_less_noise_than_stated_whoever_drops_out(recorder, tmp_path):
    """Four of five sites have the stated noise; with three there is no sum, although the plan's rules allow it."""
    algorithm, problem = private(), quadratic(double=False)
    settings = {"seed": SEED, "secure": RULES, "participation": FULL,
                "rules": RoundRules(quorum=3, grace=0, deadline=5, retries=0)}
    recorder.lost = {"party 1": {("work", 0)}}
    result = run_in_process(algorithm, problem, rounds=1, **settings)
    assert [report.counted for report in result.reports if isinstance(report, PhaseReport)] == [(0, 2, 3, 4)]
    recorder.lost = {"party 1": {("work", 0)}, "party 2": {("work", 0)}}
    with pytest.raises(FederationStoppedError, match="4 are needed"):
        run_in_process(algorithm, problem, rounds=1, **settings)
    # A server that asks for less: the site's own rules.
    privacy = rv.privacy.PrivacyBudget(secure_sums=True, threshold=0.5)
    names = tuple(f"party {k}" for k in range(5))
    site = secure_site(privacy, Membership("party 0", names, ()), limits(min_sites=2), "run", tmp_path,
                       local_identities(names)["party 0"], algorithm)
    assert site.rules.min_sites == 4
    site = secure_site(privacy, Membership("party 0", names, ()), limits(min_sites=2), "run", tmp_path,
                       local_identities(names)["party 0"])
    assert site.rules.min_sites == 3


@pytest.mark.when_changed
@pytest.mark.parametrize(("alive", "share"), [(5, 5 / 4), (4, 1.0), (2, 1.0), (0, 1.0)])
def test_the_noise_of_a_round_by_the_number_of_replies(alive, share):
    """Moments over 20,000 numbers, to five standard errors. Below ``noise_parties`` the server adds what is missing."""
    size, algorithm = 20_000, private().inner
    (phase,) = algorithm.phases
    state = algorithm.init(jnp.zeros(size), jnp.ones(5) / 5)
    updates, counts = algorithm._sums(state.extra, jax.random.key(0))
    rows = [updates.noisy(updates.zero(jnp.zeros(size)), jax.random.key(100 + k), share=1 / 4) for k in range(5)]
    payload = ClippedUpdate(jnp.stack(rows), jnp.stack([counts.clip(jnp.array(0.5))] * 5))
    is_alive = jnp.arange(5) < alive
    weight = is_alive / 5
    after, _ = phase.server(state, rv.Replies(payload, weight, jnp.arange(5), is_alive, weight), jax.random.key(9))
    noise = np.asarray(algorithm.server_model(after), np.float64) * 5
    sigma = MULTIPLIER * CLIP * math.sqrt(share)
    assert abs(noise.mean()) < 5 * sigma / math.sqrt(size)
    assert noise.std() == pytest.approx(sigma, rel=5 / math.sqrt(2 * size))
    assert np.mean((noise / sigma) ** 4) == pytest.approx(3, abs=5 * math.sqrt(96 / size))


@pytest.mark.parametrize(("sigma", "terms"), [(0.6, 2), (0.7, 3), (0.8, 5)])
def test_the_sum_of_discrete_gaussians_is_nearly_one(sigma, terms):
    """By exact convolution of the probabilities, where the parameters are far smaller than those of the grid."""
    y = np.arange(-40, 41)

    def law(s):
        p = np.exp(-(y**2) / (2 * s**2))
        return p / p.sum()

    total = law(sigma)
    for _ in range(terms - 1):
        total = np.convolve(total, law(sigma), mode="same")
    middle = np.abs(y) <= 6
    ratio = np.log(total[middle] / law(sigma * math.sqrt(terms))[middle])
    bound = sum_divergence(sigma, terms)
    assert np.abs(ratio).max() <= bound
    assert np.abs(ratio).max() > 0.01 * bound  # the test sees differences of this size
    assert sum_divergence(4.0, 1000) < 1e-60


def test_epsilon_is_that_of_central_noise():
    """Against the server, which has none of the noise; another party has its own part."""
    pytest.importorskip("dp_accounting")
    settings = {"rate": 1.0, "rounds": 10, "delta": 1e-5, "accountant": "rdp"}
    central = rv.privacy.party_epsilons(private(noise="server", noise_parties=None).inner, **settings)
    spread = rv.privacy.party_epsilons(private().inner, **settings)
    assert spread.secure_server == central.known_cohorts < spread.known_cohorts < spread.server
    assert central.secure_server == math.inf
    with_helpers = rv.privacy.party_epsilons(private().inner, colluding=1, **settings)
    assert with_helpers.secure_server == spread.known_cohorts == spread.parties
    # The protected party's own part always remains.
    all_others = rv.privacy.party_epsilons(private().inner, colluding=4, **settings)
    assert all_others.secure_server == all_others.known_cohorts == spread.server


@pytest.mark.when_changed
@nightly.parametrize("colluding", [3, 1], others=nightly.WHEN_CHANGED)
def test_sites_that_subtract_their_own_noise_leave_what_epsilon_counts(colluding, recorder):
    """All updates are zero, so the model is noise. Sites know what they have sent, and the models, as every site does.

    Two rounds of 300 numbers: the standard deviation of what remains, to four standard errors.
    """
    size, rounds = 300, 2
    problem = rv.problems.QuadraticProblem(jnp.zeros((5, size, size)), jnp.zeros((5, size)))
    algorithm = private(noise_parties=5)
    run_in_process(algorithm, problem, rounds=rounds, seed=SEED, participation=FULL, evaluate_every=1)
    models = [head.arrays["shared"] for name, head, _ in recorder.messages
              if head.kind == "evaluate" and name == "party 0"]
    known = np.zeros((rounds, size))
    for name, head, reply in recorder.messages:
        if head.kind == "work" and int(name.split()[1]) < colluding:
            words = next(array for name, array in reply.arrays.items() if "update" in name)
            known[head.round] += np.ascontiguousarray(words).view("<i8").reshape(-1)[:size]
    step = CLIP / float(algorithm.inner._sums(jnp.array(CLIP), jax.random.key(0))[0]._unit)
    remaining = np.diff(models, axis=0) * 5 - known * step
    measured = remaining.std() / CLIP
    assert measured == pytest.approx(unknown_noise(algorithm.inner, colluding), rel=4 / math.sqrt(2 * remaining.size))
    assert measured == pytest.approx(MULTIPLIER * math.sqrt(1 - colluding / 5), rel=4 / math.sqrt(2 * remaining.size))
