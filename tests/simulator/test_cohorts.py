"""Cohorts in the simulator: merged draws are exact, repeated parties and cohorts without weight do no harm."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nightly
import resolvent as rv
from resolvent.algorithms.cohort import Cohort
from resolvent.simulator import placement
from resolvent.simulator.engine import cohorts
from resolvent.simulator.engine.rounds import record_rounds, run_rounds, trajectory
from resolvent.simulator.engine.schedulers import Lanes, Queue
from resolvent.simulator.storage.tree_files import digest
from resolvent.testing import assert_close, check_participation, example_problem, python_rounds

SIZES = (1, 30, 1, 2, 1, 12, 1)
SOLVER = rv.SGD(0.1, batch_size=4, epochs=2)
BY_SIZE = rv.participation.BySize(5)  # about 2 of the 7 parties are drawn in a round, so that 3 rows are free
WRAPPED = rv.participation.Dropout(np.full(7, 0.2, np.float32), rv.participation.Stragglers(BY_SIZE, share=0.4))


class Repeating(rv.participation.Participation):
    """Draws parties with replacement and does not merge them, from round ``first`` on."""

    first: int = eqx.field(static=True, default=0)

    def capacity(self, parties):
        return 3

    def shares(self, sizes):
        return sizes / jnp.sum(sizes)

    def draw(self, state, key, t, sizes):
        cohort, after = rv.participation.Uniform(3).draw(state, key, t, sizes)
        index = jnp.where(t < self.first, cohort.index, cohort.index.at[2].set(cohort.index[0]))
        return replace(cohort, index=index), after


class Weightless(rv.participation.Full):
    """All parties take part; with ``weight`` 0, without any weight."""

    weight: float = 0.0

    def draw(self, state, key, t, sizes):
        cohort, after = super().draw(state, key, t, sizes)
        return replace(cohort, weight=self.weight * cohort.weight), after


def data():
    rng = np.random.default_rng(0)
    return rv.FederatedData.from_arrays([rng.normal(size=(n + 2, 3)) for n in SIZES],
                                        [rng.integers(0, 3, n + 2) for n in SIZES], validation=0.2, test=0,
                                        classes=["0", "1", "2"])


@nightly.parametrize("scheduler", [Queue(2), "sequential", Lanes(2)], ids=str, per_commit=0)
def test_merged_draws_are_exact_under_every_scheduler(scheduler):
    """Against a Python loop over the parties, for states that the server mirrors. Other parties change no bit."""
    algorithm = rv.combinators.Compressed(rv.scaffold(SOLVER), rv.codecs.RandK(share=0.5))
    with jax.enable_x64(True):
        problem = example_problem(SIZES)
        expected = python_rounds(algorithm, problem, WRAPPED, 3, 4)
        states = trajectory(algorithm, problem, 4, WRAPPED, seed=3, scheduler=scheduler)
        record = record_rounds(algorithm, problem, WRAPPED, rounds=4, seed=3).record
    for t in range(4):
        assert_close(states[t + 1], expected[t + 1], 1e-11)
        drawn = np.asarray(record.index)[t][np.asarray(record.invited)[t]]
        others = np.setdiff1d(np.arange(7), drawn)
        assert len(others) > 2
        for before, after in zip(jax.tree.leaves(states[t].parties), jax.tree.leaves(states[t + 1].parties),
                                 strict=True):
            np.testing.assert_array_equal(before[others], after[others])


@nightly.parametrize("algorithm", [
    rv.local(SOLVER), rv.scaffold(SOLVER), rv.combinators.HeldOutInterpolation(rv.fedprox(SOLVER), SOLVER),
], ids=["private state", "mirrored state", "held-out rows"], per_commit=0)
def test_merged_draws_are_the_same_in_host_memory(algorithm):
    options = {"rounds": 6, "evaluate_every": 3, "participation": WRAPPED, "progress": False}
    device, host = (rv.simulate(algorithm, rv.models.logistic(3, 3), data(), memory=memory, **options)
                    for memory in ("device", "host"))
    assert device.metrics.equals(host.metrics)
    for a, b in zip(jax.tree.leaves((device.state.server, device.state.parties)),
                    jax.tree.leaves((host.state.server, host.state.parties[np.arange(7)])), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.when_changed
def test_drawn_parties_alone_are_invited():
    """The seconds, bytes and replies of a round are those of the distinct parties that were drawn."""
    record = record_rounds(rv.fedavg(SOLVER), example_problem(SIZES), BY_SIZE, rounds=50, record=("steps",)).record
    invited, steps = np.asarray(record.invited), np.asarray(record.party["steps"])
    assert 1 < invited.sum(axis=1).mean() < 4
    assert not steps[~invited].any()
    assert steps[invited].all()
    np.testing.assert_array_equal(record.counted, invited)


@pytest.mark.parametrize("memory", ["device", "host"])
def test_repeated_parties_are_refused_before_the_first_round(memory, monkeypatch):
    monkeypatch.setattr(placement, "message_bytes", None)  # the next step of a run in device memory
    participation = rv.participation.Stragglers(Repeating(), share=0.5)
    with pytest.raises(rv.InputError, match=r"drew party \d twice in round 0.*Cohort.from_draws"):
        rv.simulate(rv.fedavg(SOLVER), rv.models.logistic(3, 3), data(), rounds=2, memory=memory,
                    participation=participation, progress=False)


@pytest.mark.when_changed
@nightly.parametrize("memory", ["host", "device"])
def test_repeated_parties_are_refused_in_any_round(memory, monkeypatch):
    monkeypatch.setattr(cohorts, "_CHECKED_ROUNDS", 1)
    with pytest.raises(rv.InputError, match=r"Repeating drew party \d twice in round 3"):
        rv.simulate(rv.fedavg(SOLVER), rv.models.logistic(3, 3), data(), rounds=6, evaluate_every=2, memory=memory,
                    participation=Repeating(first=3), progress=False)


@pytest.mark.parametrize(("change", "message"), [
    ({"index": jnp.array([0, 9, 2])}, "drew party 9 in round 0, but parties are numbered 0 to 6"),
    ({"weight": jnp.array([0.5, -0.1, 0.6])}, r"weight -0.1\d*: weights must be finite and not negative"),
    ({"weight": jnp.array([0.5, jnp.nan, 0.6])}, "weight nan"),
    ({"effort": jnp.array([0.5, 2.0, 1.0])}, r"effort 2.0: efforts must lie in \(0, 1\]"),
    ({"alive": jnp.ones(2, bool)}, r"alive has shape \(2,\), but its capacity is 3"),
])
def test_wrong_cohorts_are_refused(change, message):
    class Wrong(Repeating):
        def draw(self, state, key, t, sizes):
            return replace(Cohort.from_parties(jnp.arange(3), self.shares(sizes)), **change), state

    with pytest.raises(rv.InputError, match=message):
        cohorts.check_first_cohorts(Wrong(), jnp.asarray(SIZES), 0)
    with pytest.raises(AssertionError, match=message):
        check_participation(Wrong())


@nightly.parametrize("participation", [
    WRAPPED, rv.participation.Bernoulli(0.4), rv.participation.Full(), rv.participation.Uniform(4, "uniform"), BY_SIZE,
    rv.participation.BiasedBySize(3), rv.participation.FixedEffort(np.linspace(0.1, 1, 7), BY_SIZE),
], ids=lambda participation: type(participation).__name__, per_commit=0)
def test_participations_keep_their_contract(participation):
    check_participation(participation, SIZES)


def test_a_plain_loop_refuses_repeated_parties():
    with pytest.raises(rv.InputError, match="twice"):
        python_rounds(rv.fedavg(SOLVER), example_problem(SIZES), Repeating(), 0, 1)


@pytest.mark.when_changed
@nightly.parametrize("algorithm", [rv.fedgeomed_plus(SOLVER, sigma=0.1), rv.scaffold(SOLVER), rv.fedavg(SOLVER)],
                     ids=["median", "mirrored state", "mean"])
def test_cohort_without_weight_changes_nothing(algorithm):
    """With a total weight of 0 the mean is 0/0: no reply counts, and later rounds continue from the same state."""
    problem = example_problem(SIZES)
    first = run_rounds(algorithm, problem, Weightless(weight=1.0), rounds=1)
    chunk = record_rounds(algorithm, problem, Weightless(weight=0.0), state=first, start=1, rounds=2)
    assert digest(chunk.state) == digest(first)
    assert not np.asarray(chunk.record.counted).any()


@pytest.mark.parametrize(("sizes", "message"), [
    ([0, 0], "the 2 parties have 0 training samples in all"),
    ([2**30, 2**30], "2147483648 training samples in all"),
    ([3, -1], "party 1 has -1 training samples"),
])
def test_sizes_without_shares_are_refused(sizes, message):
    problem = rv.problems.QuadraticProblem(jnp.ones((2, 1, 1)), jnp.ones((2, 1)), sizes=jnp.array(sizes))
    with pytest.raises(rv.InputError, match=message):
        rv.simulate(rv.fedavg(SOLVER), problem, rounds=1, progress=False)
