"""Participations with a state and the round: their laws against exact formulas, checkpoints, host memory, a network."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nightly
import resolvent as rv
from federation.parts import SEED, Federation, quadratic
from resolvent.algorithms import keys
from resolvent.algorithms.description import describe
from resolvent.algorithms.participation.rules import draw_cohort, first_state
from resolvent.federation.server.membership import check_change_of_members
from resolvent.federation.server.record_metrics import recorded_participation
from resolvent.simulator.engine.rounds import record_rounds, run_rounds
from resolvent.simulator.storage.tree_files import digest
from resolvent.testing import assert_close, check_participation

ROUNDS = 20_000
PROBABILITIES = {"on": np.array([0.02, 0.1, 0.5, 0.9]), "off": np.array([0.1, 0.1, 0.25, 0.0])}
MARKOV = rv.participation.MarkovOnOff(on=0.3, off=0.2)


@partial(jax.jit, static_argnames=("parties", "rounds"))
def alive_in(participation, parties, rounds, seed=0):
    """[R, N] which parties take part in each round."""
    root, sizes = keys.root_key(seed), jnp.arange(1, parties + 1)

    def step(state, t):
        cohort, after = participation.draw(state, keys.cohort_key(keys.round_key(root, t)), t, sizes)
        return after, jnp.zeros(parties, bool).at[cohort.index].set(cohort.alive)

    return jax.lax.scan(step, first_state(participation, sizes, root), jnp.arange(rounds))[1]


def assert_rates(alive, expected, decorrelation=1.0):
    """Means over the rounds within five standard errors; ``decorrelation`` is the rounds of one independent draw."""
    expected = np.asarray(expected)
    error = np.sqrt(expected * (1 - expected) * decorrelation / len(alive))
    np.testing.assert_array_less(np.abs(np.mean(alive, axis=0) - expected), 5 * error + 1e-12)


def correlation(a, b):
    return np.mean((a - a.mean(0)) * (b - b.mean(0)), axis=0) / np.sqrt(a.var(0) * b.var(0))


def test_markov_chains_have_their_stationary_rates_and_correlations():
    participation = rv.participation.MarkovOnOff(**PROBABILITIES)
    alive = np.asarray(alive_in(participation, 4, ROUNDS), float)
    memory = 1 - PROBABILITIES["on"] - PROBABILITIES["off"]  # correlation of two successive rounds
    assert_rates(alive, participation.rate, (1 + memory) / (1 - memory))
    for distance in (1, 3):
        measured = correlation(alive[:-distance, :3], alive[distance:, :3])
        np.testing.assert_allclose(measured, memory[:3]**distance, atol=0.03)
    assert alive[:, 3].all()  # off=0: the stationary state is on
    independent = np.corrcoef(alive[:, :3].T)[np.triu_indices(3, 1)]
    assert np.abs(independent).max() < 0.08


def test_first_states_of_markov_chains_are_stationary():
    """Over many seeds the rate of round 0 is already on/(on + off)."""
    first = jax.vmap(lambda seed: alive_in(rv.participation.MarkovOnOff(on=0.05, off=0.15), 4, 1, seed)[0])
    assert_rates(np.asarray(first(jnp.arange(4000))), np.full(4, 0.25))


def test_days_and_nights_follow_the_time_zones():
    participation = rv.participation.DayNight(period=10, day=4, zones=5, by_day=0.8, by_night=0.1)
    alive = np.asarray(alive_in(participation, 6, ROUNDS), float)
    t, k = np.arange(10)[:, None], np.arange(6)
    probability = np.where((t + k % 5 * 2) % 10 < 4, 0.8, 0.1)
    assert_rates(alive.reshape(-1, 10 * 6), probability.reshape(-1))
    assert_rates(alive, np.full(6, (4 * 0.8 + 6 * 0.1) / 10))
    certain = rv.participation.DayNight(period=4, offsets=[0, 3])
    np.testing.assert_array_equal(alive_in(certain, 2, 5), [[1, 0], [1, 1], [0, 1], [0, 0], [1, 0]])


@pytest.mark.when_changed
def test_outages_correlate_the_parties_of_a_group_only():
    participation = rv.participation.Outages([0, 0, 1, 1], failure=0.2, repair=0.3, single=0.7)
    alive = np.asarray(alive_in(participation, 4, ROUNDS), float)
    up = 0.3 / 0.5
    assert_rates(alive, np.full(4, 0.7 * up), decorrelation=3)
    within = 0.7 * (1 - up) / (1 - 0.7 * up)
    matrix = np.corrcoef(alive.T)
    np.testing.assert_allclose([matrix[0, 1], matrix[2, 3]], within, atol=0.03)
    np.testing.assert_allclose([matrix[0, 2], matrix[1, 3]], 0, atol=0.04)


def test_tables_functions_and_periods_of_membership():
    table = np.array([[1, 0, 1], [0, 1, 1]])
    np.testing.assert_array_equal(alive_in(rv.participation.AvailabilityTable(table), 3, 5), table[[0, 1, 0, 1, 0]])

    def fading(t, sizes):
        return sizes / (1 + t)

    probability = np.arange(1, 4) / 5 / np.arange(1, 5)[:, None]
    rounds = jax.vmap(lambda seed: alive_in(rv.participation.AvailabilityFunction(
        lambda t, sizes: fading(t, sizes) / 5), 3, 4, seed))(jnp.arange(4000))
    assert_rates(np.asarray(rounds).reshape(4000, -1), probability.reshape(-1))
    grows = rv.participation.MembershipPeriods(joins=[0, 0, 2, 3], leaves=[9, 1, 9, 4])
    np.testing.assert_array_equal(np.sum(alive_in(grows, 4, 6), axis=1), [2, 1, 2, 3, 2, 2])


@pytest.mark.when_changed
def test_nested_availabilities_are_independent():
    """With one key for both, a party that one chain turns on would be turned on by the other as well."""
    inner = rv.participation.AvailabilityFunction(half)
    alive = np.asarray(alive_in(rv.participation.AvailabilityFunction(half, inner), 4, ROUNDS))
    assert_rates(alive, np.full(4, 0.25))


def half(t, sizes):
    return jnp.full(sizes.shape, 0.5)


def test_selection_is_uniform_among_the_available_parties():
    """Given the number A of available parties, an available one is selected with probability min(1, 2/A)."""
    available = rv.participation.MarkovOnOff(on=0.3, off=0.3)
    available_in = np.asarray(alive_in(available, 5, ROUNDS))
    selected = np.asarray(alive_in(rv.participation.UniformAvailable(2, available), 5, ROUNDS))
    assert not (selected & ~available_in).any()
    count = available_in.sum(axis=1)
    np.testing.assert_array_equal(selected.sum(axis=1), np.minimum(count, 2))
    for number in (3, 4):
        rows = count == number
        rate = selected[rows].sum(0) / available_in[rows].sum(0)
        np.testing.assert_allclose(rate, 2 / number, atol=5 * np.sqrt(0.25 / available_in[rows].sum(0).min()))


@pytest.mark.when_changed
@nightly.parametrize("participation", [
    rv.participation.Stragglers(MARKOV, share=0.4), rv.participation.UniformAvailable(3, MARKOV),
    rv.participation.DayNight(period=6), rv.participation.Outages([0, 1, 0, 1, 0], failure=0.1, repair=0.3, single=0.9),
    rv.participation.AvailabilityTable(np.full((3, 5), 0.5)), rv.participation.AvailabilityFunction(half),
    rv.participation.MembershipPeriods(joins=[0, 0, 3, 1, 2])], ids=lambda p: type(p).__name__)
def test_availabilities_keep_the_contract(participation):
    check_participation(participation, (4, 3, 2, 5, 1))


@pytest.mark.when_changed
def test_a_replayed_draw_is_that_of_the_rounds():
    """A network has no stored state: it draws the earlier rounds again."""
    sizes, root = jnp.ones(5, jnp.int32), keys.root_key(3)
    alive = np.asarray(alive_in(MARKOV, 5, 30, 3))
    for t in (0, 1, 29):
        np.testing.assert_array_equal(draw_cohort(MARKOV, sizes, root, jnp.array(t))[1].alive, alive[t])


@pytest.mark.parametrize(("make", "message"), [
    (lambda: rv.participation.MarkovOnOff(on=0.0, off=0.5), r"MarkovOnOff\(on=0.0\)"),
    (lambda: rv.participation.MarkovOnOff(on=[0.5, 0.5], off=0.5), r"MarkovOnOff\(on=...\) needs one number, or one"),
    (lambda: rv.participation.AvailabilityTable([[1, 0]]), "has 2 columns, but there are 3 parties"),
    (lambda: rv.participation.AvailabilityTable([[1, 2, 0]]), r"table=2\)"),
    (lambda: rv.participation.Outages([0, 0, 7], failure=0.1, repair=0.1), "number of a group, 0 to 2"),
    (lambda: rv.participation.MembershipPeriods(joins=[2, 0, 0], leaves=[1, 5, 5]), "leaves before it joins"),
    (lambda: rv.participation.DayNight(day=30), r"day=30\) must lie in 0 to period=24"),
    (lambda: rv.participation.UniformAvailable(4, MARKOV), "cannot be drawn from 3 parties"),
])
def test_wrong_settings_are_refused(make, message):
    with pytest.raises(rv.InputError, match=message):
        make().check(3)


def test_a_participation_without_draw_is_refused():
    class Called(rv.participation.Participation):
        capacity = shares = __call__ = None

    with pytest.raises(TypeError, match=r"abstract method '?draw"):
        Called()


class Interrupt(Exception):
    pass


@pytest.mark.when_changed
@nightly.parametrize("memory", ["host", "device"])
def test_a_resumed_run_continues_the_chain(memory, tmp_path):
    """The state of the participation is in the checkpoint, in both places of the parties' states."""
    rng = np.random.default_rng(0)
    data = rv.FederatedData.from_arrays([rng.normal(size=(4, 2)) for _ in range(6)],
                                        [rng.integers(0, 2, 4) for _ in range(6)], validation=0, test=0,
                                        classes=["0", "1"])
    participation = rv.participation.UniformAvailable(2, rv.participation.MarkovOnOff(on=0.1, off=0.1))

    def run(**options):
        return rv.simulate(rv.scaffold(rv.solvers.GD(0.1)), rv.models.logistic(2, 2), data, rounds=12, memory=memory,
                           evaluate_every=3, participation=participation, progress=False, **options)

    def interrupt(event):
        if event.round == 6:
            raise Interrupt

    with pytest.raises(Interrupt):
        run(checkpoint=tmp_path / "c", on_evaluation=interrupt)
    resumed, complete = run(checkpoint=tmp_path / "c", resume=True), run()
    assert resumed.digest == complete.digest
    assert resumed.metrics.equals(complete.metrics)
    expected = np.asarray(alive_in(participation.inner, 6, 12))
    np.testing.assert_array_equal(complete.metrics.query("metric == 'replies'")["value"],
                                  np.minimum(expected.sum(axis=1), 2))


@pytest.mark.nightly
def test_a_network_replays_the_chain(tmp_path):
    participation = rv.participation.MarkovOnOff(on=0.4, off=0.3)
    algorithm = rv.scaffold(rv.solvers.GD(0.05, steps=3))
    with jax.enable_x64(True), Federation(algorithm, quadratic(), tmp_path, rounds=6,
                                          participation=participation) as parts:
        result = parts.run()
        plain, replayed = (rv.simulate(algorithm, quadratic(), rounds=6, seed=SEED, participation=p, progress=False)
                           for p in (participation, recorded_participation(
                               result.record, result.reports, SEED, participation)))
        for simulated in (plain, replayed):
            assert_close(result.state, simulated.state.server, 1e-11)


def test_members_of_a_network_cannot_change_with_a_state():
    algorithm = rv.fedavg(rv.solvers.GD(0.1))
    description = describe(algorithm, quadratic(double=False))
    check_change_of_members(algorithm, description, rv.participation.Uniform(2), 5)
    with pytest.raises(rv.InputError, match="UniformAvailable, whose cohorts depend on those of earlier rounds"):
        check_change_of_members(algorithm, description, rv.participation.UniformAvailable(2, MARKOV), 5)


@pytest.mark.when_changed
def test_rounds_that_continue_replay_the_draws_before():
    """So the state of a run, its checkpoints and its digest have no part of a participation's state."""
    algorithm, problem = rv.fedavg(rv.solvers.GD(0.1)), quadratic(double=False)
    half = run_rounds(algorithm, problem, MARKOV, rounds=4)
    chunk = record_rounds(algorithm, problem, MARKOV, state=half, start=4, rounds=4)
    np.testing.assert_array_equal(chunk.record.invited, alive_in(MARKOV, 5, 8)[4:])
    assert digest(chunk.state) == digest(run_rounds(algorithm, problem, MARKOV, rounds=8))
