"""The trajectories of all presets on one small federation, in each way in which rounds can run.

Four of seven parties take part in a round, two of them as stragglers. Each party's metrics after every round, the last
models, and the number of steps are recorded.
"""

import jax
import numpy as np

import resolvent as rv
from algorithms.contract_rows import COMBINED, ROWS, SAME
from resolvent.algorithms import presets
from resolvent.testing import example_problem, example_solver
from resolvent.testing.example import SIZES
from simulator.on_devices import Earlier

ROUNDS, SEED = 3, 7
WAYS = {
    "sequential": {"scheduler": rv.schedulers.Sequential()},
    "lanes": {"scheduler": rv.schedulers.Lanes(2)},
    "queue": {"scheduler": rv.schedulers.Queue(2)},
    "host": {"scheduler": rv.schedulers.Sequential(), "memory": "host"},
}
# Several devices and several processes are chosen from what the process has.
SEVERAL_DEVICES = {"scheduler": "sequential"}
# Those whose row in the contract sets what a user would not set.
BY_DEFAULT = {"fedprox by default": rv.fedprox, "reptile by default": rv.reptile}
EARLIER = "answers to earlier messages"  # every party works with the random keys of an earlier round
STRAGGLERS = rv.participation.Stragglers(rv.participation.Uniform(4), share=0.5)
PARTICIPATIONS = {EARLIER: Earlier(4)}


def algorithms():
    """Every preset with the arguments of its row in the contract, and the compositions of the contract."""
    rows = {name: ROWS[name] if name in ROWS else SAME[name][0] for name in presets.__all__}
    return rows | COMBINED | BY_DEFAULT | {EARLIER: rv.fedavg}


def data():
    rng = np.random.default_rng(0)
    inputs = [rng.normal(k / 3, 1, size=(n, 3)) for k, n in enumerate(SIZES)]
    labels = [rng.integers(0, 3, n) for n in SIZES]
    return rv.FederatedData.from_arrays(inputs, labels, validation=0.25, test=0.25, classes=["0", "1", "2"])


def record(ways, only=()):
    """The arrays of all presets in these ways: name -> array; what a preset refuses is a text."""
    values = {}
    for name, make in algorithms().items():
        if only and name not in only:
            continue
        for way, settings in ways.items():
            try:
                found = _readings(_simulate(make, PARTICIPATIONS.get(name, STRAGGLERS), settings))
            except rv.InputError as error:
                found = {"refused": str(error)}
            values |= {f"{name}/{way}/{key}": value for key, value in found.items()}
        jax.clear_caches()  # the programs of all presets would take gigabytes
    return values


def _simulate(make, participation, settings):
    return rv.simulate(
        make(example_solver()), example_problem().model, data(), rounds=ROUNDS, seed=SEED, evaluate_every=1,
        participation=participation, diagnostics=("steps",), progress=False, **settings)


def _readings(result):
    """Metrics as [rounds, parties], and models as one vector of all parts."""
    frame = result.metrics.assign(party=result.metrics["party"].fillna(-1).astype(int))
    values = {" ".join(key): table.pivot(index="round", columns="party", values="value").to_numpy(np.float64)
              for key, table in frame.groupby(["split", "metric"])}
    for name in ("server_model", "personal_models"):
        leaves = jax.tree.leaves(getattr(result, name))
        if leaves:
            values[name] = np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in leaves])
    return values
