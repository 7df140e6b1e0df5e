"""Which form of Fed+ suits MNIST-robust? Schedules, momentum and a choice by each party, on validation rows.

    python benchmarks/fedplus_choices.py [--seeds 1000] [--methods "alone" ...] [--out benchmarks/fedplus_choices.json]

MNIST-robust with ten parties, of which the last one has inverted images: the setting of the reproduction
``robust-interpolation``. No test rows are read. The seed is that of the reproduction's search, which is not a reported
one. A row is a method and a learning rate, after 500 rounds. ``mean`` is the mean validation accuracy of all parties in
percent, ``others`` that of the nine ordinary parties, ``inverted`` that of the last one. A party has about 175
validation rows, and a method that chooses by them is judged on the same rows. ``cosine`` is a learning rate that
decreases to 0. ``sigma 1 to 0.03`` is FedGeoMed+ with a sigma that changes geometrically with the rounds.
"""

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

os.environ.setdefault("PJRT_NPROC", "1")  # as the command line does: more threads only wait during steps this small

import equinox as eqx
import jax
import jax.numpy as jnp

import resolvent as rv
from records import as_json
from resolvent.algorithms.algorithm import Phase
from resolvent.algorithms.method import Method, local_work
from resolvent.algorithms.methods.fedplus import ProxAnchor
from resolvent.math.tree import Vector
from resolvent.problem.subproblem import Subproblem

ROUNDS = 500
NORM = rv.penalties.L2Norm()
OfRound = Callable[[jax.Array], jax.Array]


class CentreState(NamedTuple):
    """The server's state, which is also its message.

    Attributes:
        centre: w~.
        t: number of the next round.
    """

    centre: Vector
    t: jax.Array


class ScheduledFedPlus(Method):
    """FedGeoMed+ whose sigma and delta change with the round."""

    solver: rv.SGD
    sigma: OfRound = eqx.field(static=True)
    delta: OfRound = eqx.field(static=True)
    replies_models: ClassVar[bool] = True
    needs_individual_replies: ClassVar[bool] = True

    def init(self, w0, shares):
        return CentreState(w0, jnp.zeros((), int))

    def init_party(self, w0, oracle, key):
        return w0

    @property
    def phases(self):
        return (Phase(lambda state, k: state, self.party, self.server),)

    def party(self, model, message, oracle, key, effort):
        z = ProxAnchor(NORM, self.delta(message.t))(message.centre, model, ())
        model, info = local_work(self.solver, Subproblem(oracle, z, self.sigma(message.t)), model, key, effort)
        return model, model, info

    def server(self, state, replies, key):
        centre, info = rv.aggregators.MoreauCentre(NORM, self.delta(state.t))(replies, state.centre, key)
        return CentreState(centre, state.t + 1), info

    def personal_model(self, state, message, oracle):
        return state

    def server_model(self, state):
        return state.centre


def geometric(first: float, last: float) -> OfRound:
    """A value that goes from ``first`` to ``last`` by equal factors."""
    return lambda t: first * (last / first) ** jnp.minimum(t / ROUNDS, 1.0)


def constant(value: float) -> OfRound:
    """The same value in every round."""
    return lambda t: jnp.asarray(value)


def sgd(rate: float, *, steps: int = 20, is_cosine: bool = False) -> rv.SGD:
    """The local solver of the reproduction."""
    schedule = rv.schedules.Cosine(rounds=ROUNDS) if is_cosine else None
    return rv.SGD(rate, batch_size=20, steps=steps, schedule=schedule)


def centre(solver: rv.SGD) -> rv.Algorithm:
    """FedAvg with the centre of ``robust_interpolation``."""
    return rv.robust(solver, rv.aggregators.MoreauCentre(NORM, 0.1))


def geomed(solver: rv.SGD) -> rv.Algorithm:
    """FedGeoMed+ with the best setting of ``fedplus-table2``."""
    return rv.fedgeomed_plus(solver, sigma=0.1, delta=1.0)


def choice(solver: rv.SGD, joint: rv.Algorithm) -> rv.Algorithm:
    """The choice by each party between training alone, a joint model, and mixtures."""
    return rv.model_interpolation(solver, joint)


CANDIDATES: dict[str, tuple[Callable[[float], rv.Algorithm], tuple[float, ...]]] = {
    "alone": (lambda r: rv.local(sgd(r)), (0.05, 0.1)),
    "alone, cosine": (lambda r: rv.local(sgd(r, is_cosine=True)), (0.1, 0.2)),
    "choice": (lambda r: choice(sgd(r), centre(sgd(r))), (0.05, 0.1, 0.2)),
    "choice, cosine": (lambda r: choice(sgd(r, is_cosine=True), centre(sgd(r, is_cosine=True))), (0.1, 0.2, 0.4)),
    "choice, momentum at the parties": (
        lambda r: choice(sgd(r), rv.combinators.Momentum(centre(sgd(r)), decay=0.9)), (0.1,)),
    "robust_interpolation": (lambda r: rv.robust_interpolation(sgd(r), delta=0.1), (0.02, 0.05)),
    "robust_interpolation, cosine": (lambda r: rv.robust_interpolation(sgd(r, is_cosine=True), delta=0.1), (0.1,)),
    "robust_interpolation, 100 steps": (lambda r: rv.robust_interpolation(sgd(r, steps=100), delta=0.1), (0.02,)),
    "choice, Anderson": (lambda r: choice(sgd(r), rv.combinators.Anderson(centre(sgd(r)), history_size=3)), (0.05,)),
    "FedGeoMed+": (lambda r: geomed(sgd(r)), (0.05, 0.1)),
    "FedGeoMed+, cosine": (lambda r: geomed(sgd(r, is_cosine=True)), (0.1, 0.2)),
    "FedGeoMed+, momentum at the parties": (lambda r: rv.combinators.Momentum(geomed(sgd(r)), decay=0.9), (0.05,)),
    "FedGeoMed+, Anderson": (
        lambda r: rv.combinators.DecentralisedAnderson(geomed(sgd(r)), history_size=3), (0.05,)),
    "sigma 1 to 0.03": (lambda r: ScheduledFedPlus(sgd(r), geometric(1.0, 0.03), constant(1.0)), (0.05,)),
    "sigma 0.03 to 0.3": (lambda r: ScheduledFedPlus(sgd(r), geometric(0.03, 0.3), constant(1.0)), (0.05,)),
    "delta 10 to 0.1": (lambda r: ScheduledFedPlus(sgd(r), constant(0.1), geometric(10.0, 0.1)), (0.05,)),
    "delta 0.1 to 3, cosine": (
        lambda r: ScheduledFedPlus(sgd(r, is_cosine=True), constant(0.1), geometric(0.1, 3.0)), (0.1,)),
}


def main() -> None:
    """Measure, print, and write the file that is asked for; rows that it has already stay."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1000], help="seeds, which draw the division")
    parser.add_argument("--methods", nargs="+", default=list(CANDIDATES), help="the methods; default: all")
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    options = parser.parse_args()
    known = json.loads(options.out.read_text())["rows"] if options.out and options.out.exists() else []
    rows = {(row["method"], row["learning_rate"], row["seed"]): row for row in known}
    for seed in options.seeds:
        data = rv.datasets.mnist(partition=rv.partitions.IID(parties=10), shift=rv.shifts.Negative(0.1), test=0.5,
                                 validation=0.05, seed=seed)
        for method in options.methods:
            for rate in CANDIDATES[method][1]:
                if (method, rate, seed) not in rows:
                    rows[method, rate, seed] = row_of(method, rate, seed, data)
                    print(json.dumps(rows[method, rate, seed]), flush=True)
    if options.out:
        facts = {"rounds": ROUNDS, "jax": jax.__version__,
                 "command": f"python benchmarks/fedplus_choices.py --out {options.out}"}
        options.out.write_text(as_json(facts, rows=list(rows.values())))


def row_of(method: str, rate: float, seed: int, data: rv.FederatedData) -> dict[str, Any]:
    """The validation accuracies of a method."""
    result = rv.simulate(CANDIDATES[method][0](rate), rv.models.logistic(784, 10), data, rounds=ROUNDS, seed=seed,
                         evaluate_every=ROUNDS, participation=rv.participation.Full("uniform"), progress=False)
    accuracies = 100 * result.scores("validation").iloc[-1].to_numpy()
    return {"method": method, "learning_rate": rate, "seed": seed, "mean": round(float(accuracies.mean()), 2),
            "others": round(float(accuracies[:-1].mean()), 2), "inverted": round(float(accuracies[-1]), 2)}


if __name__ == "__main__":
    main()
