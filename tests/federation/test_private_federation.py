"""A real federation with differential privacy: no other participant can compute the noise, the cohorts or the keys."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nightly
import resolvent as rv
from federation.parts import SEED, Federation, RecordingStore, quadratic
from resolvent.algorithms import keys
from resolvent.data.files.digests import DamagedFileError
from resolvent.errors import InputError
from resolvent.federation.engines.in_process import InProcess
from resolvent.federation.protocol.job import FederationJob
from resolvent.federation.protocol.plan import Part
from resolvent.federation.protocol.policy import FEDERATION, REHEARSAL
from resolvent.federation.protocol.protection import protect
from resolvent.federation.protocol.wire import decode
from resolvent.federation.server import coordinator, served_plan
from resolvent.federation.server.record_metrics import recorded_participation
from resolvent.math import gaussian_noise

GD = rv.solvers.GD(0.1)
HALF = rv.participation.Bernoulli(0.5)
PRIVATE = rv.combinators.PrivateParties(rv.fedavg(GD), cohort=5.0, clip=0.5, noise_multiplier=2.0)


def federation(algorithm, folder, *, policy=FEDERATION, **settings):
    """Five parties; by default all of them and the server behave as in a real federation."""
    parts = Federation(algorithm, quadratic(double=False), folder, **{"policy": policy, **settings})
    for k in range(5):
        parts.start_party(k, policy=policy)
    return parts


def cohorts(result):
    return [report.asked for report in result.reports if hasattr(report, "asked")]


def noise_of_seed(t, shape):
    """What everybody with the experiment file computes: the server's normal numbers of round t."""
    key = keys.server_key(keys.phase_key(keys.round_key(keys.root_key(SEED), t), 0))
    return jax.random.normal(jax.random.fold_in(keys.substep_key(key, 101), 0), shape)


@pytest.mark.when_changed
@nightly.parametrize("policy", [FEDERATION, REHEARSAL], others=nightly.WHEN_CHANGED)
def test_whoever_has_the_experiment_cannot_subtract_the_noise_of_the_server(tmp_path, policy):
    """In a rehearsal the attack gives the sum without noise; in a real federation all of the noise stays."""
    with federation(PRIVATE, tmp_path / "run", policy=policy, rounds=10) as parts:
        parts.run()
        models = {record.round: np.asarray(record.state.inner) for record in parts.store.records}
    errors = []
    for t in range(10):
        problem, w = parts.problem, jnp.asarray(models[t])
        updates = [-0.1 * problem.oracle(jnp.array(k)).grad(w) for k in range(5)]
        total = sum(u * jnp.minimum(1, 0.5 / jnp.linalg.norm(u)) for u in updates)
        guess = (models[t + 1] - models[t]) * 5 - noise_of_seed(t, w.shape) * 2.0 * 0.5
        errors.append(np.asarray(guess - total))
    if policy is REHEARSAL:
        assert np.abs(errors).max() < 1e-5
    else:
        assert np.sqrt(np.mean(np.square(errors))) > 0.5  # the noise of the server, and the guess


@pytest.mark.when_changed
@pytest.mark.parametrize("noise", ["server", "parties"])
def test_reports_have_nothing_of_a_single_update(tmp_path, noise):
    """The lead gets the reports. Without noise the length of an update would be in them, and a refusal shows its party.

    The update of one party is never finite.
    """
    problem = quadratic(double=False)
    problem = rv.problems.QuadraticProblem(problem.hessians, problem.linears.at[2].set(3e38))
    private = dataclasses.replace(PRIVATE, inner=rv.fedavg(rv.solvers.GD(100.0)), noise=noise)
    parts = Federation(private, problem, tmp_path / "run", policy=FEDERATION)
    with parts:
        for k in range(5):
            parts.start_party(k, policy=FEDERATION)
        result = parts.run()
    phases = [report for report in result.reports if hasattr(report, "norms")]
    assert len(phases) == 3
    assert not any(report.norms or report.refused for report in phases)
    assert all(report.counted == (0, 1, 2, 3, 4) for report in phases)
    assert np.isfinite(result.shared).all()


@pytest.mark.when_changed
def test_cohorts_come_from_a_secret_that_is_stored_with_the_run(tmp_path):
    """Two runs have other cohorts than each other and than the seed; a resumed run has the same ones."""
    drawn = []
    for folder in ("first", "second"):
        with federation(PRIVATE, tmp_path / folder, rounds=12, participation=HALF) as parts:
            drawn.append(cohorts(parts.run()))
    with federation(PRIVATE, tmp_path / "rehearsal", policy=REHEARSAL, rounds=12, participation=HALF) as parts:
        drawn.append(cohorts(parts.run()))
    assert drawn[0] != drawn[1] != drawn[2] != drawn[0]
    secret = tmp_path / "first" / "server" / "secret.key"
    assert len(secret.read_bytes()) == 16
    assert secret.stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "rehearsal" / "server" / "secret.key").exists()


class StoppingStore(RecordingStore):
    """A store on which one write fails."""

    def write(self, record):
        if record.round == 3 and not hasattr(type(self), "has_failed"):
            type(self).has_failed = True
            raise OSError("no space")
        super().write(record)


@pytest.mark.when_changed
def test_a_step_that_is_repeated_after_an_interruption_releases_one_noise_only(tmp_path, monkeypatch):
    """The state whose write failed never leaves, and the resumed run has the cohorts of its secret."""
    states, sent = [], []
    step = coordinator.next_state

    def recorded(*arguments, **settings):
        state = step(*arguments, **settings)
        states.append(jax.tree.map(np.array, state))  # a copy: the next step uses the memory
        return state

    monkeypatch.setattr(coordinator, "next_state", recorded)

    class Recording(InProcess):
        def broadcast(self, messages, **rules):
            sent.extend(map(bytes, messages.values()))
            return super().broadcast(messages, **rules)

    settings = {"rounds": 8, "participation": HALF, "transport": Recording, "server_store": StoppingStore}
    with federation(PRIVATE, tmp_path / "run", **settings) as parts:
        with pytest.raises(OSError, match="no space"):
            parts.run()
        result = parts.run()
    lost, repeated = np.asarray(states[2].inner), np.asarray(states[3].inner)
    assert len(states) == 9
    assert (lost != repeated).all()
    models = [array for data in sent for array in decode(data).arrays.values() if array.shape == lost.shape]
    assert not any(np.array_equal(array, lost) for array in models)
    assert any(np.array_equal(array, np.asarray(result.shared)) for array in models)
    with federation(PRIVATE, tmp_path / "run", **settings) as parts:
        again = parts.run()
    assert cohorts(again) == cohorts(result)
    np.testing.assert_array_equal(again.shared, result.shared)


def test_a_run_without_its_secret_does_not_continue(tmp_path):
    with federation(PRIVATE, tmp_path / "run", rounds=2) as parts:
        parts.run()
        (tmp_path / "run" / "server" / "secret.key").unlink()
        parts.rounds = 3
        with pytest.raises(DamagedFileError, match=r"secret\.key is missing"):
            parts.run()


def test_a_rehearsal_is_not_continued_as_a_federation(tmp_path):
    with federation(PRIVATE, tmp_path / "run", policy=REHEARSAL, rounds=1) as parts:
        parts.run()
        with pytest.raises(InputError, match="a run of a rehearsal, which a federation cannot continue"):
            parts.run(policy=FEDERATION, rounds=2)


def test_a_simulation_says_that_it_cannot_repeat_the_run(tmp_path):
    with federation(PRIVATE, tmp_path / "run", participation=HALF) as parts:
        result = parts.run()
    with pytest.raises(InputError, match="from a secret of its own"):
        recorded_participation(result.record, result.reports, SEED, HALF)


@pytest.mark.when_changed
@pytest.mark.filterwarnings("ignore:.*no reply arrived:resolvent.errors.UnusedRepliesWarning")
@nightly.parametrize("policy", [REHEARSAL, FEDERATION])
def test_a_round_without_parties_releases_noise_over_a_network(tmp_path, policy):
    """A rehearsal has the noise of the simulation."""
    no_party = rv.participation.Bernoulli(1e-6)
    with federation(PRIVATE, tmp_path / "run", policy=policy, participation=no_party) as parts:
        result = parts.run()
        models = {record.round: np.asarray(record.state.inner) for record in parts.store.records}
    assert cohorts(result) == [(), (), ()]
    assert all((models[t] != models[t + 1]).all() for t in range(3))
    settings = {"rounds": 3, "seed": SEED, "participation": no_party, "progress": False}
    simulated = rv.simulate(PRIVATE, quadratic(double=False), **settings)
    assert np.allclose(simulated.server_model, result.shared, atol=1e-6) == (policy is REHEARSAL)


@pytest.mark.when_changed
@nightly.parametrize("policy", [FEDERATION, REHEARSAL])
def test_the_noise_of_a_site_is_drawn_by_its_operating_system_in_every_step(tmp_path, policy, monkeypatch):
    sizes, draw = [], gaussian_noise.discrete_gaussian
    monkeypatch.setattr(gaussian_noise, "discrete_gaussian", lambda sigma, n: sizes.append(n) or draw(sigma, n))
    algorithm = rv.fedavg(rv.solvers.DPSGD(0.05, noise_multiplier=1.0, batch_size=4, steps=2))
    with federation(algorithm, tmp_path / "run", policy=policy) as parts:
        parts.run()
    assert sizes == ([] if policy is REHEARSAL else [3] * (5 * 3 * 2))


def test_the_noise_of_parties_leaves_a_site_on_the_grid(tmp_path):
    """Updates are multiples of the step of the grid, so that no lowest bit tells what they were."""
    algorithm = dataclasses.replace(PRIVATE, noise="parties", quantile=0.5)
    sent = []

    class Recording(InProcess):
        def broadcast(self, messages, **rules):
            replies = super().broadcast(messages, **rules)
            sent.extend(message for data in replies.values() if (message := decode(data)).kind == "reply")
            return replies

    with federation(algorithm, tmp_path / "run", transport=Recording, rounds=1) as parts:
        parts.run()
    updates = np.array([np.concatenate([a.ravel() for n, a in m.arrays.items() if "update" in n]) for m in sent])
    assert updates.shape == (5, 3)
    step = 0.5 / min(2**22 / (1 + 16 * 2), 2**30 / (64 + 4 * 5 + 16 * 2))
    np.testing.assert_allclose(updates / step, np.rint(updates / step), atol=0.02)
    assert len(np.unique(updates)) > updates.size - 3


def test_the_noise_of_a_sites_limits_is_on_a_grid_and_no_update_is_longer_than_the_clip(monkeypatch):
    reply = {"w": np.linspace(-1, 1, 2000)}
    zero = {"w": np.zeros(2000)}
    sent = protect(reply, zero, rv.fedavg(GD), clip=0.5, noise=2.0)["w"]
    step = 0.5 / (2.0**40 / 3)
    assert np.abs(sent / step - np.rint(sent / step)).max() < 1e-2
    assert np.std(sent) == pytest.approx(1.0, rel=0.1)
    monkeypatch.setattr("resolvent.federation.protocol.protection.discrete_gaussian",
                        lambda sigma, n: np.zeros(n, np.int64))
    clipped = protect(reply, zero, rv.fedavg(GD), clip=0.5, noise=2.0)["w"]
    assert 0.4999 < np.linalg.norm(clipped) <= 0.5


@pytest.mark.parametrize("number", [np.nan, np.inf, 1e300])
def test_a_number_that_is_not_finite_does_not_let_the_others_pass_the_clip(number):
    """A plan whose steps overflow in one coordinate would otherwise release all others as they are."""
    reply, reference = {"w": np.array([number, 100.0, -200.0]), "b": np.ones(1)}, {"w": np.ones(3), "b": np.zeros(1)}
    sent = protect(reply, reference, rv.fedavg(GD), clip=0.5, noise=0.0)
    assert all((sent[name] == reference[name]).all() for name in sent)
    noisy = protect(reply, reference, rv.fedavg(GD), clip=0.5, noise=1.0)
    assert np.abs(np.concatenate([noisy[name] - reference[name] for name in noisy])).max() < 0.5 * 8


def test_the_lead_cannot_make_the_server_derive_its_noise(monkeypatch, tmp_path):
    """The server's policy is decided where it runs, not by the lead's order."""
    policies = []

    class Stopped(Exception):
        pass

    def make(*args, policy, **settings):
        policies.append(policy)
        raise Stopped

    monkeypatch.setattr(served_plan, "Coordinator", make)
    experiment = SimpleNamespace(
        seeds=(0,), parts=(Part(0),), labels=("a",), policy=FEDERATION, rounds_of=lambda label: 1,
        title_of=lambda part: "", participation=lambda: None, privacy=None, evaluate_every=None)
    served = SimpleNamespace(
        job=FederationJob("run", "", ("a",), policy=REHEARSAL.name), plan=experiment, folder=tmp_path, observe=None,
        transport=SimpleNamespace(choose_parties=lambda **rule: None))
    with pytest.raises(Stopped):
        served_plan.ServedPlan._run_method(served, "a", Part(0), PRIVATE, rv.models.logistic(2, 2).init, score="",
                                            samples=1, rows={})
    assert policies == [FEDERATION]
