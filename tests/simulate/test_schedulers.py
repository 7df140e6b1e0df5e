"""Schedulers: what work goes where, and that it changes nothing. Every preset is in the contract with a queue."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from on_devices import federation

import contract
import resolvent as rv
from resolvent.simulate.engine import run_chunk, work_of
from resolvent.simulate.schedulers import choose, deal, fastest, rivals

WORKER = Path(__file__).parent / "on_devices.py"


def start(*arguments):
    tests = WORKER.parents[1]
    path = os.pathsep.join(map(str, [tests, tests / "algorithms", *filter(None, [os.environ.get("PYTHONPATH")])]))
    return subprocess.Popen([sys.executable, WORKER, *map(str, arguments)], text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, env=os.environ | {"PYTHONPATH": path, "PJRT_NPROC": "1"})


def finish(*processes):
    """Wait for all; one that has failed would leave the others waiting for it."""
    try:
        for process in processes:
            out, _ = process.communicate(timeout=300)
            assert process.returncode == 0, out
    finally:
        for process in processes:
            process.kill()
            process.communicate()  # closes its pipe as well


@pytest.mark.parametrize(("hands", "room"), [(1, 11), (2, 6), (2, 9), (2, 11), (3, 4), (3, 6), (7, 2), (7, 3)])
def test_the_longest_work_goes_first_to_whom_has_least(hands, room):
    amount = np.round(50 * np.random.default_rng(hands).pareto(1, 11)).astype(np.float32)
    held = [[] for _ in range(hands)]
    for k in np.argsort(-amount, kind="stable"):
        open_ = [h for h in range(hands) if len(held[h]) < room]
        held[min(open_, key=lambda h: (amount[held[h]].sum(), h))].append(int(k))
    expected = [k for h in held for k in [*h, *[11] * (room - len(h))]]
    assert np.asarray(deal(jnp.asarray(amount), hands, room)).tolist() == expected


def test_devices_share_out_what_the_solvers_read():
    """By size, where a party's work grows with it; alike, where it does not; together, where there are two solvers."""
    sizes, epochs, steps = jnp.array([3, 20]), rv.SGD(0.1, batch_size=10, epochs=2), rv.SGD(0.1, batch_size=10, steps=4)
    assert work_of(rv.fedavg(epochs), sizes).tolist() == [20, 40]
    assert work_of(rv.fedprox(steps, mu=1.0), sizes).tolist() == [40, 40]
    assert work_of(rv.model_interpolation(steps, rv.fedavg(epochs)), sizes).tolist() == [60, 80]
    assert work_of((), sizes).tolist() == [3, 20]  # no solver in it


def test_lanes_go_with_their_like_and_absent_slots_change_nothing():
    """Seven in batches of three: two lanes are nobody's."""
    algorithm = rv.scaffold(contract.solver())
    who = contract.Present(rv.participation.Stragglers(rv.participation.Full(), share=0.5))
    with jax.enable_x64(True):
        problem = contract.problem()
        one, batched = (contract.run(algorithm, problem, who, scheduler=s) for s in ("sequential", rv.schedulers.Lanes(3)))
        contract.close(one, batched, 1e-12)


def test_full_passes_queue_as_well():
    """GD's loop, whose steps cost as much as a party has samples."""
    with jax.enable_x64(True):
        problem, algorithm = contract.problem(), rv.fedprox(rv.solvers.GD(0.1, steps=5), mu=0.3)
        one, queue = (contract.run(algorithm, problem, scheduler=s) for s in ("sequential", rv.schedulers.Queue(2)))
        contract.close(one, queue, 1e-12)


def test_the_fastest_is_taken_and_nothing_else_changes():
    """Every candidate has its seconds; they differ from one another, and what is chosen has the least."""
    slow = {"sequential": 0.02, "lanes of 2": 0.0, "queue of 2": 0.01}
    taken, seconds = fastest({name: name for name in slow}, lambda name: time.sleep(slow[name]))
    assert taken == "lanes of 2"
    assert all(seconds[name] >= slow[name] for name in slow)
    assert list(rivals(5)) == ["sequential", "lanes of 5"]
    assert list(rivals(70)) == ["sequential", "lanes of 8", "lanes of 64", "lanes of 70", "queue of 8", "queue of 64"]

    algorithm, data = rv.fedavg_plus(rv.SGD(0.1, batch_size=8)), rv.datasets.digits()
    runs = [rv.simulate(algorithm, rv.models.logistic(64, 10), data, rounds=3, participation=rv.participation.Uniform(3),
                        scheduler=s, progress=False) for s in ("sequential", "measured")]
    assert set(runs[1].facts["schedules"]) == set(rivals(3))
    for a, b in zip(*(jax.tree.leaves(r.state) for r in runs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_a_name_is_for_all_devices_and_a_scheduler_is_taken_as_it_is():
    assert choose("auto", 5) == rv.schedulers.Sequential()  # the tests' one CPU
    assert choose("queue", 5) == rv.schedulers.Queue()
    assert choose(rv.schedulers.Lanes(3), 5) == rv.schedulers.Lanes(3)
    assert choose("measured", 5) == rv.schedulers.Sequential()  # before anything is measured
    with pytest.raises(rv.InputError, match=r"no schedule 'lane'; did you mean 'lanes'\? Use any of"):
        choose("lane", 5)
    with pytest.raises(rv.InputError, match=r"Queue\(width=0\) must be at least 1"):
        rv.schedulers.Queue(0)


def test_what_compiles_again():
    """Nothing for rounds, seed and cohort members; the rounds, once, for another size of cohort or federation."""
    def compiled(**options):
        before = len(events), run_chunk._cache_size()
        federation(**options)
        return len(events) - before[0], run_chunk._cache_size() - before[1]

    events = []

    def listen(event, _, **__):
        if event.endswith("backend_compile_duration"):
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    assert compiled()[1] == 1
    assert compiled(rounds=6, seed=5) == (0, 0)
    smaller = rv.participation.Stragglers(rv.participation.Uniform(cohort=2), share=0.4)
    assert compiled(participation=smaller)[1] == 1
    assert compiled(participation=smaller, seed=9) == (0, 0)
    assert compiled(parties=6)[1] == 1
    assert compiled(parties=6, seed=2) == (0, 0)


def test_two_devices(tmp_path):
    finish(start("two-devices", tmp_path))


def test_two_processes_are_one(tmp_path):
    """Stopped after two rounds and resumed; only the first process writes; both end with what one process finds."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    finish(*(start("process", number, port, tmp_path) for number in (0, 1)))
    first, second = (json.loads((tmp_path / f"{number}.json").read_text()) for number in (0, 1))
    assert (first.pop("wrote"), second.pop("wrote")) == (True, False)
    assert first == second
    with jax.enable_x64(True):
        alone = federation()
        weight = jnp.concatenate([alone.server_model["weight"].ravel(), alone.personal_model(4)["bias"]])
        np.testing.assert_allclose(first["weight"], weight, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(first["scores"], alone.scores().to_numpy())
