"""Asynchronous servers: against a plain event loop, identities, bounded staleness, checkpoints, and the clock."""

import heapq
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nightly
import resolvent as rv
from resolvent.algorithms import keys
from resolvent.simulator.engine.rounds import record_rounds, run_rounds
from resolvent.testing import check_participation

PARTIES, EVENTS, SEED = 7, 100, 4
SECONDS = np.array([1.0, 0.2, 3.0, 0.5, 1.7, 0.9, 8.0])
TARGETS = np.random.default_rng(0).normal(size=(PARTIES, 2)) * 3
SOLVER = rv.solvers.GD(0.1, steps=2)
R = 0.9**2  # a party's model is TARGETS[k] + R (w - TARGETS[k])
ROOT = keys.root_key(SEED)


def problem():
    return rv.problems.QuadraticProblem(jnp.stack([jnp.eye(2)] * PARTIES), jnp.asarray(TARGETS))


def arrivals(concurrency=None, **settings):
    return rv.participation.Arrivals(SECONDS, concurrency=concurrency, **{"jitter": 0.4, "failure": 0.2} | settings)


def jobs(participation):
    """The jobs that the keys give: those of the start, and of a lane after each event; the times are in ticks."""
    count = participation.concurrency or PARTIES
    tick = np.float32(SECONDS.max() / 2**22)
    sizes = jnp.ones(PARTIES, jnp.int32)
    first = participation.init(sizes, keys.participation_key(ROOT))
    job = jax.jit(lambda t, lane: participation._job(
        keys.cohort_key(keys.round_key(ROOT, t)), lane[None], PARTIES, first.tick))
    start = [(int(party), int(ticks)) for party, ticks in
             zip(np.asarray(first.party).ravel()[:count], np.asarray(first.finish).ravel()[:count], strict=True)]
    return start, lambda t, lane: tuple(int(x[0]) for x in job(jnp.array(t), jnp.array(lane))), tick


def event_loop(participation, enter):
    """Party, seconds since the last reply and staleness of each event, in a plain loop with a heap.

    ``enter`` gets (version that the party began with, party, present version) and returns the present version after it.
    """
    start, next_job, tick = jobs(participation)
    queue = [(ticks, lane, party, 0) for lane, (party, ticks) in enumerate(start)]
    heapq.heapify(queue)
    before, version, events = 0, 0, []
    for t in range(EVENTS):
        clock_ticks, lane, party, began = heapq.heappop(queue)
        events.append((party, (clock_ticks - before) * tick, version - began))
        version = enter(began, party, version)
        following, ticks = next_job(t, lane)
        heapq.heappush(queue, (clock_ticks + ticks, lane, following, version))
        before = clock_ticks
    return events


class FedAsync:
    def __init__(self, mixing, power, mu):
        self.models, self.mixing, self.power, self.mu = [np.zeros(2)], mixing, power, mu

    def __call__(self, began, party, version):
        w, start = self.models[-1], self.models[began]
        reply = start
        for _ in range(2):
            step = reply - 0.1 * (reply - TARGETS[party])
            reply = (step + 0.1 * self.mu * start) / (1 + 0.1 * self.mu)  # the solver's proximal step
        a = self.mixing * (1 + version - began) ** -self.power
        self.models.append((1 - a) * w + a * reply)
        return version + 1


class FedBuff:
    def __init__(self, size, rate, power, bound):
        self.models, self.size, self.rate, self.power, self.bound = [np.zeros(2)], size, rate, power, bound
        self.buffer = []

    def __call__(self, began, party, version):
        if version - began > self.bound:
            return version
        self.buffer.append((1 + version - began) ** -self.power * (1 - R) * (TARGETS[party] - self.models[began]))
        if len(self.buffer) < self.size:
            return version
        self.models.append(self.models[-1] + self.rate * np.mean(self.buffer, axis=0))
        self.buffer = []
        return version + 1


class CA2FL(FedBuff):
    """With the updates h_k of all parties at the server, as the paper has them."""

    def __init__(self, size, bound):
        super().__init__(size, 1.0, 0.0, bound)
        self.stored, self.mean = np.zeros((PARTIES, 2)), np.zeros(2)

    def __call__(self, began, party, version):
        if version - began > self.bound:
            return version
        update = (1 - R) * (TARGETS[party] - self.models[began])
        self.buffer.append(update - self.stored[party])
        self.stored[party] = update
        if len(self.buffer) < self.size:
            return version
        self.models.append(self.models[-1] + self.mean + np.mean(self.buffer, axis=0))
        self.mean = self.mean + np.sum(self.buffer, axis=0) / PARTIES
        self.buffer = []
        return version + 1


CASES = [
    ("FedBuff with bounded staleness", lambda m: rv.fedbuff(SOLVER, buffer=3, power=0.5, max_staleness=2,
                                                            concurrency=m), lambda: FedBuff(3, 1.0, 0.5, 2), 5),
    ("FedAsync", lambda m: rv.fedasync(SOLVER, power=0.7, mu=0.3, max_staleness=250, concurrency=m),
     lambda: FedAsync(0.6, 0.7, 0.3), None),
    ("CA2FL", lambda m: rv.ca2fl(SOLVER, buffer=2, max_staleness=8, concurrency=m), lambda: CA2FL(2, 8), None),
    ("FedBuff in three lanes", lambda m: rv.fedbuff(SOLVER, buffer=2, server_rate=0.5, concurrency=m),
     lambda: FedBuff(2, 0.5, 0.5, 100), 3),
]


@pytest.mark.when_changed
@nightly.parametrize(("make", "twin", "concurrency"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_the_compiled_rounds_are_those_of_an_event_loop(make, twin, concurrency):
    """100 events with jitter and failures, in double precision."""
    algorithm, server = make(concurrency), twin()
    with jax.enable_x64(True):
        participation = arrivals(concurrency)
        chunk = record_rounds(algorithm, problem(), participation, seed=SEED, rounds=EVENTS)
        events = event_loop(participation, server)
        model = algorithm.server_model(chunk.state.server)
    parties, seconds, staleness = (np.array(column) for column in zip(*events, strict=True))
    np.testing.assert_array_equal(np.asarray(chunk.record.index)[:, 0], parties)
    np.testing.assert_array_equal(chunk.record.server["staleness"], staleness)
    np.testing.assert_allclose(chunk.record.server["simulated_seconds"], seconds, rtol=1e-6)
    np.testing.assert_allclose(model, server.models[-1], rtol=1e-10)
    assert staleness.max() > 2


@pytest.mark.nightly
def test_one_party_makes_the_steps_of_fedavg():
    single = rv.problems.QuadraticProblem(jnp.eye(2)[None], jnp.ones((1, 2)))
    asynchronous = rv.combinators.Asynchronous(rv.fedavg(SOLVER))
    for participation in (rv.participation.Full(), rv.participation.Arrivals(2.0)):
        after = run_rounds(asynchronous, single, participation, rounds=9).server
        np.testing.assert_allclose(after.inner, run_rounds(rv.fedavg(SOLVER), single, rounds=9).server, rtol=1e-6)


@pytest.mark.when_changed
def test_jobs_have_their_law():
    """Medians of the lognormal seconds, the number of failures, and equal chances in a lane."""
    participation = rv.participation.Arrivals(3.0, concurrency=2, jitter=0.5, failure=0.25)
    lanes, tick = jnp.zeros(40_000, jnp.int32), jnp.float32(3.0 / 2**22)
    party, ticks = jax.jit(lambda key: participation._job(key, lanes, PARTIES, tick))(jax.random.key(0))
    np.testing.assert_allclose(np.bincount(np.asarray(party), minlength=PARTIES)[::2] / 40_000, 0.25, atol=0.012)
    assert set(np.asarray(party)) == {0, 2, 4, 6}
    seconds = np.asarray(ticks) * float(tick)
    expected = 3 * np.exp(0.5**2 / 2) / 0.75  # E[exp(jitter z)] and E[1 + failures]
    np.testing.assert_allclose(seconds.mean(), expected, rtol=0.03)
    exact = rv.participation.Arrivals(3.0)._job(jax.random.key(0), lanes[:9], PARTIES, tick)[1]
    np.testing.assert_array_equal(exact, 2**22)


@pytest.mark.when_changed
def test_times_continue_beyond_the_range_of_an_integer():
    """2^32 ticks are 1024 jobs of the slowest party; the order stays that of the exact times."""
    participation = rv.participation.Arrivals(np.array([1.0, 0.75]))
    record = jax.jit(lambda: record_rounds(rv.combinators.Asynchronous(rv.fedavg(SOLVER)), rv.problems.QuadraticProblem(
        jnp.stack([jnp.eye(2)] * 2), jnp.ones((2, 2))), participation, rounds=4200).record)()
    times = np.cumsum(np.asarray(record.server["simulated_seconds"], float))
    expected = np.sort(np.concatenate([np.arange(1, 3000) * 1.0, np.arange(1, 4000) * 0.75]))[:4200]
    np.testing.assert_allclose(times, expected, rtol=1e-4)
    assert times[-1] > 1024


@nightly.parametrize("concurrency", [3, None, 1], per_commit=0)
def test_arrivals_keep_the_contract(concurrency):
    check_participation(arrivals(concurrency), tuple(range(1, PARTIES + 1)))


class Interrupt(Exception):
    pass


@pytest.mark.when_changed
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path):
    run = partial(rv.simulate, rv.ca2fl(SOLVER, buffer=2, concurrency=3), problem(), rounds=40, evaluate_every=10,
                  participation=arrivals(3), progress=False)

    def interrupt(event):
        if event.round == 20:
            raise Interrupt

    with pytest.raises(Interrupt):
        run(checkpoint=tmp_path / "c", on_evaluation=interrupt)
    resumed, complete = run(checkpoint=tmp_path / "c", resume=True), run()
    assert resumed.digest == complete.digest
    assert resumed.metrics.equals(complete.metrics)
    assert {"staleness", "simulated_seconds", "loss", "gap"} <= {*complete.metrics["metric"]}


@pytest.mark.when_changed
def test_the_clock_is_that_of_synchronous_rounds():
    """With all parties a synchronous round lasts as long as the longest job of an asynchronous one."""
    clock = rv.VirtualClock(speed=10.0, rate=500.0, latency=0.2, seed=3)
    run = rv.simulate(rv.fedavg(SOLVER), problem(), rounds=1, clock=clock, progress=False)
    metrics = run.metrics.query("round == 1").set_index("metric")["value"]
    message = run.facts["bytes"]["down"] + run.facts["bytes"]["up"]
    seconds = clock.job_seconds(PARTIES, steps=2, message_bytes=message // PARTIES)
    np.testing.assert_allclose(metrics["simulated_seconds"], seconds.max())


@pytest.mark.parametrize(("algorithm", "settings", "message"), [
    (rv.fedavg(SOLVER), {}, "the server of this algorithm waits for a cohort: use rv.fedasync"),
    (rv.fedasync(SOLVER), {"participation": arrivals(3)}, "the algorithm has concurrency=7 and Arrivals have 3"),
    (rv.fedasync(SOLVER, concurrency=3), {"participation": None}, "needs replies that arrive one after the other"),
    (rv.fedasync(SOLVER), {"clock": rv.VirtualClock()}, "Arrivals have a clock of their own"),
    (rv.fedasync(SOLVER), {"participation": arrivals(9)}, r"concurrency=9\) is more than the 7 parties"),
    (rv.fedasync(SOLVER), {"participation": rv.participation.Arrivals([1.0, 2.0])}, "one per party"),
])
def test_parts_that_do_not_fit_are_refused(algorithm, settings, message):
    with pytest.raises(rv.InputError, match=message):
        rv.simulate(algorithm, problem(), rounds=1, progress=False, **{"participation": arrivals()} | settings)


@pytest.mark.parametrize(("make", "message"), [
    (lambda: rv.combinators.Asynchronous(rv.feddane(SOLVER)), "needs an algorithm of one phase"),
    (lambda: rv.combinators.Asynchronous(rv.scaffold(SOLVER), anchor="current"), "needs buffer=1 and replies"),
    (lambda: rv.fedasync(SOLVER, mixing=1.2), r"mixing=1.2\) must lie in \(0, 1\]"),
    (lambda: rv.combinators.Asynchronous(rv.scaffold(SOLVER), power=0.5), "weights would make its sums wrong"),
])
def test_servers_that_make_no_sense_are_refused(make, message):
    with pytest.raises(rv.InputError, match=message):
        make()
