"""Run by test_schedulers.py in processes of their own, for a process has the devices with which it began.

``two-devices FOLDER``: the command line with ``--devices 2``, and schedulers of two devices against one device.
``process NUMBER PORT FOLDER``: one of two processes that run a federation together.
"""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

import resolvent as rv
from resolvent import cli
from resolvent.simulate.schedulers import choose
from resolvent.study.compare import compare
from resolvent.study.experiment import ExperimentFile

SMALL = """\
data: {name: digits, parties: 3, classes_per_party: 5, test: 0.5}
model: logistic
solver: {name: SGD, learning_rate: 0.05, batch_size: 20}
algorithms: {FedAvg: fedavg}
rounds: 2
diagnostics: []
"""


def federation(scheduler="auto", parties=5, **options):
    """What two processes run, and one: state on both sides, absent parties and stragglers, every diagnostic."""
    data = rv.datasets.digits(parties=parties, classes_per_party=4, seed=3)
    settings = {"rounds": 4, "diagnostics": ("steps",), "evaluate_every": 2, "progress": False,
                "participation": rv.participation.Stragglers(rv.participation.Uniform(cohort=3), share=0.4)} | options
    return rv.simulate(rv.scaffold(rv.SGD(0.1, batch_size=16)), rv.models.logistic(64, 10), data, scheduler=scheduler,
                       **settings)


def two_devices(folder):
    (folder / "small.yaml").write_text(SMALL)
    sys.argv = ["resolvent", "run", str(folder / "small.yaml"), "--out", str(folder / "out"), "--devices", "2"]
    cli.main()
    assert jax.device_count() == 2
    assert choose("auto", 3).mesh.size == 2
    alone = compare(ExperimentFile.load(sys.argv[2]), scheduler=rv.schedulers.Sequential()).metrics
    together = pd.read_parquet(folder / "out" / "metrics.parquet")
    np.testing.assert_allclose(together["value"], alone["value"], rtol=1e-4)
    schedulers_agree()
    nothing_compiles_again()


def schedulers_agree():
    """A cohort of five on two devices: one slot is nobody's. All that travels and is kept is here once."""
    import test_contract

    import contract

    who = contract.Present(rv.participation.Stragglers(rv.participation.Uniform(cohort=5), share=0.5))
    with jax.enable_x64(True):
        problem = contract.problem()
        for name, inner in {"feddane": rv.schedulers.Sequential(), "diana": rv.schedulers.Lanes(2), "fedpi": rv.schedulers.Queue(2)}.items():
            algorithm = test_contract.ROWS[name](contract.solver())
            one, two = (contract.run(algorithm, problem, who, scheduler=scheduler)
                        for schedule in ("sequential", rv.schedulers.Sharded.over(inner)))
            contract.close(one, two, 1e-11)


def nothing_compiles_again():
    """Rounds, seed, and with it the cohort's members, are numbers on two devices as well."""
    federation()
    times = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **__: times.append(event) if event.endswith("backend_compile_duration") else None)
    federation(rounds=6, seed=1)
    assert times == []


def process(number, port, folder):
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=number)
    assert (jax.process_count(), jax.device_count()) == (2, 2)
    jax.config.update("jax_enable_x64", True)
    checkpoint = folder / f"written by {number}"
    federation(rounds=2, checkpoint=checkpoint)
    resumed = federation(checkpoint=folder / "written by 0", resume=True)
    weight = np.asarray(jnp.concatenate([resumed.server_model["weight"].ravel(), resumed.personal_model(4)["bias"]]))
    (folder / f"{number}.json").write_text(json.dumps({
        "digest": resumed.digest, "wrote": checkpoint.exists(), "weight": weight.tolist(),
        "scores": resumed.scores().to_numpy().tolist()}))


if __name__ == "__main__":
    if sys.argv[1] == "process":
        process(int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
    else:
        two_devices(Path(sys.argv[2]))
