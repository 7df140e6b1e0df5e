"""Run by test_schedulers.py and test_processes.py in separate processes.

A process keeps the devices with which it starts.

``schedulers FOLDER``: rounds on two devices against one; at night with all kinds of states.
``command FOLDER``: the command line with ``--devices 2`` against one device.
``process NUMBER FOLDER``: one of two processes that run a federation together.
"""

import contextlib
import io
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pandas as pd
import pytest

import resolvent as rv
from resolvent import cli
from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.comparisons.runs.comparison_runs import compare_file
from resolvent.errors import ProcessLostError
from resolvent.simulator.engine.rounds import run_rounds
from resolvent.simulator.engine.schedulers import choose_scheduler
from resolvent.simulator.mesh import connect, replicate, replicate_constants
from resolvent.simulator.storage.shard_storage import keep_own_parties
from resolvent.testing.example import assert_close, example_participation, example_problem, example_solver

SMALL = """\
data: {name: digits, parties: 3, classes_per_party: 5, test: 0.5}
model: logistic
solver: {name: SGD, learning_rate: 0.05, batch_size: 20}
algorithms: {FedAvg: fedavg}
rounds: 2
diagnostics: []
"""

FEDERATION = """\
data: {name: digits, parties: 5, classes_per_party: 4, seed: 3}
model: logistic
solver: {name: SGD, learning_rate: 0.1, batch_size: 16}
algorithms: {run: scaffold}
participation: {name: Stragglers, share: 0.4, inner: {name: Uniform, cohort: 3}}
rounds: 4
evaluate_every: 2
metrics: [roc_auc]
decide_by: roc_auc
diagnostics: [steps]
precision: float64
"""


def digits(parties=5):
    return rv.datasets.digits(parties=parties, classes_per_party=4, seed=3)


def federation(scheduler="auto", parties=5, data=None, **options):
    """A run with states of the server and of the parties, absent parties and stragglers."""
    data = digits(parties) if data is None else data
    settings = {"rounds": 4, "diagnostics": ("steps",), "evaluate_every": 2, "progress": False,
                "participation": rv.participation.Stragglers(rv.participation.Uniform(cohort=3), share=0.4)} | options
    return rv.simulate(rv.scaffold(rv.SGD(0.1, batch_size=16)), rv.models.logistic(64, 10), data, scheduler=scheduler,
                       **settings)


def two_devices(_):
    """Runs of states are the same on two devices; at night also those of all kinds of results and states."""
    jax.config.update("jax_num_cpu_devices", 2)
    assert jax.device_count() == 2
    assert choose_scheduler("auto", 3).mesh.size == 2
    check_that_constants_are_stored_once()
    check_earlier_rounds(rv.schedulers.Sharded.over(rv.schedulers.Sequential()))
    if "RESOLVENT_NIGHTLY" in os.environ:
        check_schedulers()
        check_that_nothing_compiles_again()


def command_on_two_devices(folder):
    """``resolvent run --devices 2`` has the metrics of a run on one device."""
    (folder / "small.yaml").write_text(SMALL)
    sys.argv = ["resolvent", "run", str(folder / "small.yaml"), "--out", str(folder / "out"), "--devices", "2"]
    cli.main()
    assert jax.device_count() == 2
    assert choose_scheduler("auto", 3).mesh.size == 2
    file = ExperimentFile.load(sys.argv[2])
    one_device = compare_file(file, replace(file.build(), scheduler=rv.schedulers.Sequential())).metrics
    both_devices = pd.read_parquet(folder / "out" / "metrics.parquet")
    np.testing.assert_allclose(both_devices["value"], one_device["value"], rtol=1e-4)


class Earlier(rv.participation.Participation):
    """Uniform cohorts, of which each party answers the message of an earlier round."""

    cohort: int = eqx.field(static=True)

    @property
    def inner(self):
        return rv.participation.Uniform(self.cohort)

    def capacity(self, parties):
        return self.cohort

    def shares(self, sizes):
        return self.inner.shares(sizes)

    def draw(self, state, key, t, sizes):
        cohort, after = self.inner.draw(state, key, t, sizes)
        return replace(cohort, began=jax.numpy.maximum(t - cohort.index % 3, 0)), after


def check_earlier_rounds(scheduler):
    """Every scheduler hands on the round in which a party began, from which its learning rate is."""
    rng, participation = np.random.default_rng(0), Earlier(cohort=4)
    algorithm = rv.fedavg(rv.solvers.GD(0.1, steps=2, schedule=rv.schedules.InversePower(1.0)))
    with jax.enable_x64(True):
        problem = rv.problems.QuadraticProblem.least_squares(rng.normal(size=(6, 5, 3)), rng.normal(size=(6, 5)))
        # Of different sizes, so that the order of the replies matters.
        problem = eqx.tree_at(lambda p: p.sizes, problem, jax.numpy.arange(1, 7))
        sequential, scheduled, present = (
            run_rounds(algorithm, problem, drawn, seed=1, rounds=3, scheduler=s).server for drawn, s in (
                (participation, "sequential"), (participation, scheduler), (participation.inner, "sequential")))
    assert_close(scheduled, sequential, 1e-12)
    assert not np.allclose(present, sequential, rtol=1e-2)


def check_schedulers():
    """A cohort of five on two devices has a slot without a party; all kinds of results and states are exchanged."""
    participation = example_participation(
        rv.participation.Stragglers(rv.participation.Uniform(cohort=5), share=0.5))
    solver, problem = example_solver(), example_problem()
    cases = [(rv.combinators.Anderson(rv.fedpi(solver, eta=0.5)), rv.schedulers.Queue(2)),
             (rv.diana(learning_rate=0.1, alpha=1.0), rv.schedulers.Lanes(2)),
             (rv.feddane(solver), rv.schedulers.Sequential())]
    for algorithm, inner in cases:
        with jax.enable_x64(True):
            sequential, sharded = (run_rounds(algorithm, problem, participation, seed=7, rounds=3, scheduler=scheduler)
                        for scheduler in ("sequential", rv.schedulers.Sharded.over(inner)))
            assert_close(sequential, sharded, 1e-11)


def check_that_constants_are_stored_once():
    """Devices of a CPU read the same memory; of what rounds overwrite each device has its own."""
    mesh, array = choose_scheduler("auto", 3).mesh, jax.numpy.arange(2**19)
    pointers = [[shard.data.unsafe_buffer_pointer() for shard in copies(array, mesh).addressable_shards]
                for copies in (replicate_constants, replicate)]
    assert list(map(len, map(set, pointers))) == [1, 2]
    np.testing.assert_array_equal(replicate_constants(array, mesh), array)


def check_that_nothing_compiles_again():
    """Rounds, seed, and with it the parties of a cohort, are traced on two devices as well."""
    federation()
    compilations = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **__: compilations.append(event) if event.endswith("backend_compile_duration") else None)
    federation(rounds=6, seed=1)
    assert compilations == []


def process(number, folder):
    """The environment says that Open MPI has started this process."""
    connect()
    assert (jax.process_count(), jax.device_count()) == (2, 2)
    jax.config.update("jax_enable_x64", True)
    written = folder / f"written by {number}"
    whole = federation(rounds=2, checkpoint=written)
    kept_data = keep_own_parties(digits())
    resumed = federation(data=kept_data, checkpoint=folder / "of one process", resume=True)
    with pytest.raises(rv.InputError, match="has those of its own parties only"):
        np.asarray(kept_data.x)
    save(folder / f"{number}.json", {
        "wrote": written.exists(), "digest": resumed.digest, "rows": len(kept_data.x._rows),
        "bytes": [result.problem.inner.x.nbytes for result in (whole, resumed)], "values": values_of(resumed)})
    run_command(folder, number)
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        federation()
    except ProcessLostError as error:
        save(folder / "lost.json", str(error))
        os._exit(0)  # JAX would wait for the other process


def save(path, value):
    path.write_text(json.dumps(value))


def values_of(result):
    """Models, states, scores and diagnostics."""
    parts = [result.server_model["weight"], result.personal_model(4)["bias"], result.personal_models["weight"],
             *jax.tree.leaves(result.state.parties[np.arange(5)] if result.storage else result.state.parties),
             result.metrics["value"]]
    return np.concatenate([np.asarray(part).ravel() for part in parts]).tolist()


def run_command(folder, number):
    """``resolvent run`` of the same federation in the same processes."""
    file = folder / f"{number}.yaml"
    file.write_text(FEDERATION)
    sys.argv = ["resolvent", "run", str(file), "--out", str(folder / "out"), "--processes", "cluster"]
    with contextlib.redirect_stdout(io.StringIO()) as output:
        cli.main()
    assert bool(output.getvalue()) == (number == 0)


if __name__ == "__main__":
    if sys.argv[1] == "process":
        process(int(sys.argv[2]), Path(sys.argv[3]))
    else:
        {"schedulers": two_devices, "command": command_on_two_devices}[sys.argv[1]](Path(sys.argv[2]))
