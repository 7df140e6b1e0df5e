"""Schedulers: how they distribute work, and that they do not change results. The contract has a queue as well."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from on_devices import check_earlier_rounds, federation

import nightly
import resolvent as rv
from resolvent.simulator.engine import schedulers
from resolvent.simulator.engine.cohort_parts import distribute
from resolvent.simulator.engine.compiled_rounds import estimated_work
from resolvent.simulator.engine.rounds import compiled_programs, run_rounds
from resolvent.simulator.engine.schedulers import choose_scheduler, fastest_scheduler, scheduler_candidates
from resolvent.testing.example import assert_close, example_participation, example_problem, example_solver
from resolvent.xla.compiled_programs import free_programs


@pytest.mark.parametrize(("devices", "slots"), [(1, 11), (2, 6), (2, 9), (2, 11), (3, 4), (3, 6), (7, 2), (7, 3)])
def test_party_with_the_most_work_goes_first_to_the_device_with_the_least(devices, slots):
    amount = np.round(50 * np.random.default_rng(devices).pareto(1, 11)).astype(np.float32)
    parties = [[] for _ in range(devices)]
    for k in np.argsort(-amount, kind="stable"):
        with_free_slot = [d for d in range(devices) if len(parties[d]) < slots]
        parties[min(with_free_slot, key=lambda d: (amount[parties[d]].sum(), d))].append(int(k))
    expected = [k for ids in parties for k in [*ids, *[11] * (slots - len(ids))]]
    assert np.asarray(distribute(jnp.asarray(amount), devices, slots)).tolist() == expected


def test_estimated_work_is_the_sum_over_the_solvers():
    sizes, epochs, steps = jnp.array([3, 20]), rv.SGD(0.1, batch_size=10, epochs=2), rv.SGD(0.1, batch_size=10, steps=4)
    assert estimated_work(rv.fedavg(epochs), sizes).tolist() == [20, 40]
    assert estimated_work(rv.fedprox(steps, mu=1.0), sizes).tolist() == [40, 40]
    assert estimated_work(rv.model_interpolation(steps, rv.fedavg(epochs)), sizes).tolist() == [60, 80]
    assert estimated_work((), sizes).tolist() == [3, 20]  # without a solver


@pytest.mark.nightly
@pytest.mark.parametrize(("algorithm", "participation", "scheduler"), [
    # Seven parties in batches of three: two lanes have no party.
    (rv.scaffold(example_solver()), example_participation(
        rv.participation.Stragglers(rv.participation.Full(), share=0.5)), rv.schedulers.Lanes(3)),
    # GD's loop, whose steps cost as much as a party has samples.
    (rv.fedprox(rv.solvers.GD(0.1, steps=5), mu=0.3), example_participation(), rv.schedulers.Queue(2)),
], ids=["lanes", "queue"])
def test_lanes_and_queues_do_not_change_results(algorithm, participation, scheduler):
    with jax.enable_x64(True):
        problem = example_problem()
        sequential, scheduled = (run_rounds(algorithm, problem, participation, seed=7, rounds=3, scheduler=s)
                      for s in ("sequential", scheduler))
        assert_close(sequential, scheduled, 1e-12)


@pytest.mark.parametrize("scheduler", [rv.schedulers.Lanes(2), rv.schedulers.Lanes(4), rv.schedulers.Queue(2)], ids=str)
def test_every_scheduler_hands_on_the_round_in_which_a_party_began(scheduler):
    """Test two devices run it with ``Sharded``."""
    check_earlier_rounds(scheduler)


def test_candidates_differ_and_the_fastest_is_chosen(monkeypatch):
    """By a clock of the test, which the runs move."""
    seconds_of, now = {"sequential": 0.02, "lanes of 2": 0.005, "queue of 2": 0.01}, [0.0]
    monkeypatch.setattr(schedulers.time, "perf_counter", lambda: now[0])

    def run(name):
        now[0] += seconds_of[name]

    chosen, seconds = fastest_scheduler({name: name for name in seconds_of}, run)
    assert chosen == "lanes of 2"
    assert seconds == pytest.approx(seconds_of)
    assert list(scheduler_candidates(5)) == ["sequential", "lanes of 5"]
    assert list(scheduler_candidates(70)) == [
        "sequential", "lanes of 8", "lanes of 64", "lanes of 70", "queue of 8", "queue of 64"]


@pytest.mark.nightly
def test_measured_scheduler_changes_no_results():
    algorithm, data = rv.fedavg_plus(rv.SGD(0.1, batch_size=8)), rv.datasets.digits()
    runs = [rv.simulate(algorithm, rv.models.logistic(64, 10), data, rounds=3, scheduler=s, progress=False,
                        participation=rv.participation.Uniform(3)) for s in ("sequential", "measured")]
    assert set(runs[1].facts["scheduler_seconds"]) == set(scheduler_candidates(3))
    for a, b in zip(*(jax.tree.leaves(r.state) for r in runs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_names_and_schedulers_as_choice():
    # The tests have one CPU.
    assert choose_scheduler("auto", 5) == (rv.schedulers.Sequential(), None)
    assert choose_scheduler("queue", 5) == (rv.schedulers.Queue(), None)
    assert choose_scheduler(rv.schedulers.Lanes(3), 5) == (rv.schedulers.Lanes(3), None)
    assert choose_scheduler("measured", 5).inner == rv.schedulers.Sequential()  # until the candidates have been timed
    with pytest.raises(rv.InputError, match=r"no scheduler 'lane'; did you mean 'lanes'\?"):
        choose_scheduler("lane", 5)
    with pytest.raises(rv.InputError, match=r"Queue\(width=0\)"):
        rv.schedulers.Queue(0)


@pytest.mark.when_changed
def test_runs_of_60_200_and_1000_rounds_are_one_program():
    """Between evaluations they have 3, 10 and 50 rounds, and a compiled call runs any number of them."""
    def compiled(rounds):
        before = len(compilations), compiled_programs()
        result = rv.simulate(rv.fedavg(rv.solvers.GD(0.01)), problem, rounds=rounds, progress=False,
                             participation=rv.participation.Uniform(cohort=2))
        assert result.metrics["round"].max() == rounds
        return len(compilations) - before[0], compiled_programs() - before[1]

    problem, compilations = rv.problems.least_squares(parties=4, samples=6, features=5), []
    free_programs()  # none is freed meanwhile because models of earlier tests are gone

    def listen(event, _, **__):
        if event.endswith("backend_compile_duration"):
            compilations.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    assert compiled(60)[1] == 1
    assert compiled(200) == (0, 0)
    assert compiled(1000) == (0, 0)


@pytest.mark.nightly
def test_what_compiles_again():
    """Another round, seed or cohort compiles nothing; another cohort size or federation compiles the rounds."""
    def compiled(**options):
        before = len(compilations), compiled_programs()
        federation(**options)
        return len(compilations) - before[0], compiled_programs() - before[1]

    compilations = []
    free_programs()

    def listen(event, _, **__):
        if event.endswith("backend_compile_duration"):
            compilations.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    assert compiled()[1] == 1
    assert compiled(rounds=6, seed=5) == (0, 0)
    smaller = rv.participation.Stragglers(rv.participation.Uniform(cohort=2), share=0.4)
    assert compiled(participation=smaller)[1] == 1
    assert compiled(participation=smaller, seed=9) == (0, 0)
    assert compiled(parties=6)[1] == 1
    assert compiled(parties=6, seed=2) == (0, 0)


@pytest.mark.when_changed
@pytest.mark.devices
@nightly.parametrize("what", ["schedulers", "command"])
def test_two_devices(what, tmp_path):
    subprocess.run([sys.executable, Path(__file__).parent / "on_devices.py", what, tmp_path], check=True,
                   timeout=600, env=os.environ | {"PJRT_NPROC": "1"})
