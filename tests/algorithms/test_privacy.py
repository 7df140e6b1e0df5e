"""DPSGD, PrivateParties, what they spend, and which compositions are private."""

import math
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import equal, quadratic, trajectory
from scipy.stats import norm

import nightly
import resolvent as rv
from resolvent.problem.oracle import Oracle

DPSGD = rv.solvers.DPSGD
EQUAL_WEIGHTS = rv.participation.Full("uniform")
NO_NOISE = {"clip": 1e6, "noise_multiplier": 0.0}


class Rows(Oracle):
    """f_k(w) = the mean of <row_i, w>, so that the gradient of sample i is row i."""

    rows: jax.Array

    def value(self, w):
        return jnp.mean(self.rows @ w)

    def grad(self, w):
        return jnp.mean(self.rows, axis=0)

    def batch_grad(self, w, positions, mask, memory=()):
        return jnp.sum(jnp.where(mask[:, None], self.rows[positions], 0), axis=0) / jnp.sum(mask), memory


def oracle_of(rows):
    return Rows(jnp.array(len(rows)), rows=jnp.asarray(rows))


def clipped_sum(solver, rows, key):
    return solver._clipped_sum(oracle_of(rows), jnp.zeros(rows.shape[1]), key)


@pytest.mark.when_changed
@pytest.mark.parametrize(("batch_size", "rate", "mu"), [(12, 0.2, 0.3), (36, 0.6, 0.0)])
def test_without_clipping_and_noise_and_with_all_samples_it_is_gradient_descent(batch_size, rate, mu):
    """The sum is divided by the size of the minibatch, which is public, not by the 12 samples of a party."""
    rng = np.random.default_rng(2)
    data = rv.FederatedData.from_arrays([*rng.normal(size=(3, 12, 3))], [*rng.integers(0, 3, (3, 12))], validation=0,
                                        test=0, classes=["0", "1", "2"])
    problem = rv.problems.LearningProblem(rv.models.logistic(3, 3), data)
    private = rv.fedprox(DPSGD(rate, **NO_NOISE, batch_size=batch_size, steps=3, block=4), mu=mu)
    plain = rv.fedprox(rv.solvers.GD(0.2, steps=3), mu=mu)
    equal([s.server for s in trajectory(private, problem, 3)], [s.server for s in trajectory(plain, problem, 3)])


def test_samples_are_drawn_independently_with_the_same_probability():
    """Poisson sampling of 40 samples with q = 1/8: frequencies and covariances of 4,000 draws."""
    solver, draws = DPSGD(0.1, batch_size=5, block=3, clip=1.0), 4000
    keys = jax.random.split(jax.random.key(0), draws)
    included = np.asarray(jax.lax.map(lambda key: clipped_sum(solver, jnp.eye(40), key), keys))
    assert set(np.unique(included)) == {0.0, 1.0}  # no sample twice
    q = 1 / 8
    assert np.abs(included.mean(axis=0) - q).max() < 5 * math.sqrt(q * (1 - q) / draws)
    covariance = np.cov(included.T)
    assert np.abs(covariance - q * (1 - q) * np.eye(40)).max() < 6 * q / math.sqrt(draws)


def test_one_sample_changes_the_sum_by_at_most_the_clip():
    """Neighbouring data sets, the same draw: the rest of the sum is the same to the bit."""
    solver, rng = DPSGD(0.1, batch_size=6, clip=0.7, block=4), np.random.default_rng(0)
    rows = rng.normal(size=(20, 5))
    compiled = jax.jit(lambda rows, key: clipped_sum(solver, rows, key))
    for key in jax.random.split(jax.random.key(1), 20):
        base = np.asarray(compiled(rows, key))
        for row in (np.zeros(5), 1e12 * np.ones(5), np.full(5, np.nan), np.full(5, np.inf), -rows[3]):
            changed = rows.copy()
            changed[3] = row
            difference = np.asarray(compiled(changed, key)) - base
            assert np.isfinite(difference).all()
            bound = 0.7 if not row.any() or not np.isfinite(row).all() else 1.4  # removed, or replaced
            assert np.linalg.norm(difference) <= bound * (1 + 1e-12)


def test_the_noise_has_the_stated_standard_deviation():
    solver = DPSGD(1.0, clip=0.5, noise_multiplier=3.0, batch_size=10, steps=1)
    w, _, _ = solver(rv.problems.Subproblem(oracle_of(np.zeros((40, 100_000))), jnp.zeros(100_000)), jnp.zeros(100_000),
                  jax.random.key(2), jnp.ones(()))
    expected = 3.0 * 0.5 / 10
    assert np.std(np.asarray(w)) == pytest.approx(expected, rel=5 / math.sqrt(2 * 100_000))
    assert abs(np.mean(np.asarray(w))) < 5 * expected / math.sqrt(100_000)


@pytest.mark.parametrize(("algorithm", "calls"), [
    (rv.fedavg, 1), (rv.fedprox, 1), (rv.fedgeomed_plus, 1), (rv.local, 1), (rv.feddyn, 1), (rv.ditto, 2),
    (lambda s: rv.fedpi(s, eta=0.5), 1), (lambda s: rv.combinators.Compressed(rv.fedavg(s), rv.codecs.QSGD()), 1),
    (rv.robust_interpolation, 2), (lambda s: rv.pfedme(s, steps=3), 3),
    (lambda s: rv.fedplus_auto(s, sigmas=(0.1, 1.0)), 6)],
    ids=["fedavg", "fedprox", "fedgeomed_plus", "local", "feddyn", "ditto", "fedpi", "compressed",
         "robust_interpolation", "pfedme", "fedplus_auto"])
def test_methods_that_only_solve_are_private(algorithm, calls):
    work = rv.privacy.check_private_records(algorithm(DPSGD(0.1)), {"w": jnp.zeros(3)})
    assert work.calls == calls
    assert isinstance(work.solver, DPSGD)


def test_steps_are_counted_and_a_part_of_one_is_refused():
    solver = DPSGD(0.1, batch_size=4, steps=3.0)
    made = solver(rv.problems.Subproblem(oracle_of(np.zeros((9, 3))), jnp.zeros(3)), jnp.zeros(3), jax.random.key(2),
                  jnp.ones(()))[1]
    assert int(made) == rv.privacy.check_private_records(rv.fedavg(solver), jnp.zeros(3)).steps == 3
    with pytest.raises(rv.InputError, match="steps"):
        DPSGD(0.1, batch_size=4, steps=2.4)


@pytest.mark.parametrize(("algorithm", "message"), [
    (lambda s: rv.fedavg(rv.SGD(0.1)), "the solver is SGD"),
    (rv.feddane, "reads a gradient of a party's samples outside DPSGD"),
    (rv.fedprox_adaptive, "reads the loss"),
    (rv.ifca, "reads the loss"),
    (lambda s: rv.fedmix(s, alpha=0.5, inner=rv.fedavg(s)), "before the first round"),
    (lambda s: rv.combinators.FineTuned(rv.fedavg(s), s), "whenever it is used, each time with the same noise"),
], ids=["sgd", "feddane", "adaptive", "ifca", "fedmix", "fine-tuned"])
def test_methods_that_read_samples_elsewhere_are_refused(algorithm, message):
    with pytest.raises(rv.InputError, match=message):
        rv.privacy.check_private_records(algorithm(DPSGD(0.1)), jnp.zeros(3))


def test_private_parties_without_noise_by_numpy():
    problem, clip = quadratic(), 0.4
    inner = rv.fedavg(rv.solvers.GD(0.1, steps=2))
    private = rv.combinators.PrivateParties(inner, cohort=6, clip=clip, noise_multiplier=0.0)
    h, g = np.asarray(problem.hessians), np.asarray(problem.linears)
    for before, after in pairwise(trajectory(private, problem, 4, EQUAL_WEIGHTS)):
        w = np.repeat(before.server.inner[None], 6, axis=0)
        for _ in range(2):
            w = w - 0.1 * (np.einsum("kij,kj->ki", h, w) - g)
        updates = w - before.server.inner
        updates *= np.minimum(1, clip / np.linalg.norm(updates, axis=1))[:, None]
        np.testing.assert_allclose(after.server.inner, before.server.inner + updates.sum(axis=0) / 6, atol=1e-12)


@nightly.parametrize("source", ["parties", "server"])
def test_the_noise_of_private_parties_has_the_stated_standard_deviation(source):
    problem = rv.problems.QuadraticProblem(jnp.zeros((4, 60, 60)), jnp.zeros((4, 60)))
    private = rv.combinators.PrivateParties(rv.fedavg(rv.solvers.GD(0.1)), cohort=4, clip=0.5, noise_multiplier=2.0,
                                            noise=source)
    states = trajectory(private, problem, 60, EQUAL_WEIGHTS)
    steps = np.diff([state.server.inner for state in states], axis=0)
    expected = 2.0 * 0.5 / 4
    assert np.std(steps) == pytest.approx(expected, rel=5 / math.sqrt(2 * steps.size))


@pytest.mark.when_changed
def test_the_clip_follows_the_quantile_of_the_lengths_of_updates():
    """Parties with constant updates of lengths 1, ..., 6: half of them are shorter than 3.5."""
    problem = rv.problems.QuadraticProblem(jnp.zeros((6, 1, 1)), jnp.arange(1.0, 7.0)[:, None])
    private = rv.combinators.PrivateParties(rv.fedavg(rv.solvers.GD(1.0)), cohort=6, clip=0.1, noise_multiplier=0.0,
                                            quantile=0.5, quantile_noise=1e-3)
    state = trajectory(private, problem, 120, EQUAL_WEIGHTS)[-1]
    assert 2.9 < float(state.server.extra) < 4.1


@pytest.mark.parametrize("build", [
    lambda: DPSGD(0.1, clip=0), lambda: DPSGD(0.1, noise_multiplier=-1), lambda: DPSGD(0.1, block=0),
    lambda: rv.combinators.PrivateParties(rv.scaffold(rv.SGD(0.1)), cohort=3),
    lambda: rv.combinators.PrivateParties(rv.rfa(rv.SGD(0.1)), cohort=3),
    lambda: rv.combinators.PrivateParties(rv.fedavg(rv.SGD(0.1)), cohort=0)])
def test_settings_that_are_not_allowed_are_refused(build):
    with pytest.raises(rv.InputError, match=r"DPSGD|PrivateParties"):
        build()


def test_accounting_without_its_library_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "dp_accounting", None)
    with pytest.raises(rv.InputError, match=r"resolvent\[privacy\]"):
        rv.privacy.party_epsilon(rv.combinators.PrivateParties(rv.fedavg(rv.SGD(0.1)), cohort=3), rate=0.1, rounds=2,
                                 delta=1e-5)


def gaussian_delta(epsilon, sigma):
    """The exact delta of one Gaussian release (Balle, Wang: Improving the Gaussian Mechanism, Theorem 8)."""
    return norm.cdf(0.5 / sigma - epsilon * sigma) - math.exp(epsilon) * norm.cdf(-0.5 / sigma - epsilon * sigma)


class TestAccounting:
    """With the extra ``privacy``."""

    @pytest.fixture(autouse=True)
    def _library(self):
        pytest.importorskip("dp_accounting", reason="needs the extra `privacy`")

    def test_releases_of_all_samples_are_one_gaussian_release(self):
        """T releases with sigma are one with sigma/sqrt(T), whose delta is known exactly."""
        solver = DPSGD(0.1, noise_multiplier=4.0, batch_size=50, steps=8)
        epsilon, = rv.privacy.record_epsilons(rv.fedavg(solver), jnp.zeros(3), [50], rounds=2, delta=1e-5)
        assert gaussian_delta(epsilon, 4 / math.sqrt(16)) == pytest.approx(1e-5, rel=0.02)

    def test_the_published_epsilon_of_mnist(self):
        """Noise 1.1, batches of 256 of 60,000, 60 epochs, delta 1e-5: 3.0 by Renyi accounting as published.

        The library converts Renyi to (epsilon, delta) by a newer and tighter rule, and PLD is tighter still.
        """
        rate, sigma, steps, delta = 256 / 60_000, 1.1, 60 * 234, 1e-5
        published, newer = [], []
        for order in range(2, 25):  # Mironov, Talwar, Zhang 2019, section 3.3
            terms = [math.comb(order, i) * (1 - rate) ** (order - i) * rate**i * math.exp((i * i - i) / (2 * sigma**2))
                     for i in range(order + 1)]
            renyi = steps * math.log(sum(terms)) / (order - 1)
            published.append(renyi + math.log(1 / delta) / (order - 1))
            newer.append(renyi + math.log1p(-1 / order) - math.log(delta * order) / (order - 1))
        assert min(published) == pytest.approx(3.0, abs=0.05)
        algorithm = rv.fedavg(DPSGD(0.1, noise_multiplier=sigma, batch_size=256, steps=234))
        by_renyi, tight = (rv.privacy.record_epsilons(algorithm, jnp.zeros(3), [60_000], rounds=60, delta=delta,
                                                      accountant=a)[0] for a in ("rdp", "pld"))
        assert by_renyi == pytest.approx(min(newer), rel=0.02)
        assert tight < by_renyi

    @pytest.mark.nightly
    def test_the_number_of_rounds_within_a_budget_is_the_largest(self):
        algorithm, w0 = rv.fedavg(DPSGD(0.1, noise_multiplier=2.0, batch_size=8, steps=5)), jnp.zeros(3)
        rounds = rv.privacy.rounds_within(algorithm, w0, [100, 400], epsilon=2.0, delta=1e-4)
        spent = [max(rv.privacy.record_epsilons(algorithm, w0, [100, 400], rounds=r, delta=1e-4))
                 for r in (rounds, rounds + 1)]
        assert spent[0] <= 2.0 < spent[1]

    @pytest.mark.nightly
    def test_sampled_parties_spend_less_and_the_quantile_costs_something(self):
        inner = rv.fedavg(rv.SGD(0.1))
        plain = rv.combinators.PrivateParties(inner, cohort=10, noise_multiplier=1.0)
        adaptive = rv.combinators.PrivateParties(inner, cohort=10, noise_multiplier=1.0, quantile=0.5)
        sampled, full, with_quantile = (rv.privacy.party_epsilon(a, rate=rate, rounds=20, delta=1e-5) for a, rate in (
            (plain, 0.1), (plain, 1.0), (adaptive, 0.1)))
        assert sampled < full
        assert sampled < with_quantile
