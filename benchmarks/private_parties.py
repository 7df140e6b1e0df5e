"""Private Fed+: accuracy against the epsilon of single parties, with noise in secure sums, at a server, at each party.

    python benchmarks/private_parties.py --seeds 5 --out benchmarks/private_parties.json --figure docs/images/...
    python benchmarks/private_parties.py --redraw --out benchmarks/private_parties.json --figure ...

A party releases its clipped update with noise, and keeps its personal model. The noise of each point is the smallest
for which all rounds together spend at most the stated epsilon. ``trusted server``: the server adds it. ``secure sums``:
each party adds a part of it, to integers of which the server learns the sum; epsilon holds against the server, too.
``local noise``: each party adds as much as protects it alone. ``alone`` releases nothing. A value is the mean test
accuracy of the personal models, with Student's interval of level 0.95 over the seeds; ``inf`` is the same training with
clipping and without noise. ``shared`` is FedAvg, whose parties have no own models.
"""

import json
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("PJRT_NPROC", "1")  # as the command line does: more threads only wait during steps this small

import jax
import numpy as np

import resolvent as rv
from privacy import draw
from records import as_json, drawing_parser
from resolvent.math.accounting import noise_within
from resolvent.predict.intervals import mean_interval

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0, math.inf)
DELTA, ROUNDS, CLIP = 1e-3, 20, 1.0
ALL = rv.participation.Full("uniform")
LABELS = {"digits": "digits: 100 parties, each with three of ten classes", "table": "breast tumours: 40 parties"}
DATA: dict[str, tuple[Callable[[int], rv.FederatedData], rv.models.Model, rv.SGD]] = {
    "digits": (lambda seed: rv.datasets.digits(parties=100, classes_per_party=3, size_spread=0.0, validation=0.15,
                                               test=0.3, seed=seed), rv.models.logistic(64, 10),
               rv.SGD(0.5, batch_size=10, epochs=2)),
    "table": (lambda seed: tumours(seed), rv.models.logistic(30, 2), rv.SGD(0.1, batch_size=10, epochs=2)),
}


def tumours(seed: int) -> rv.FederatedData:
    """scikit-learn's table of breast tumours; the class rates of the 40 parties differ."""
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    x = (bunch.data - bunch.data.mean(0)) / bunch.data.std(0)
    rows = rv.partitions.Dirichlet(parties=40, concentration=1.0)(bunch.target, seed)
    rows = [part for part in rows if len(part) >= 10]
    return rv.FederatedData.from_arrays([x[part] for part in rows], [bunch.target[part] for part in rows],
                                        validation=0.2, test=0.4, seed=seed, classes=["0", "1"])


def private(method: rv.Algorithm, parties: int, multiplier: float, **settings: Any) -> rv.Algorithm:
    """A method whose parties are protected by this noise multiplier."""
    return rv.combinators.PrivateParties(method, cohort=float(parties), clip=CLIP, noise_multiplier=multiplier,
                                         **settings)


def in_sums(method: rv.Algorithm, parties: int, noise: float) -> rv.Algorithm:
    """The same with noise of the parties, in sums of integers."""
    return rv.combinators.FixedPointSums(private(method, parties, noise, noise="parties"), weighting="uniform")


def plus(solver: rv.SGD) -> rv.Algorithm:
    """Fed+ with nothing to set, whose parties choose on their validation samples."""
    return rv.protected_fedplus(solver, rv.penalties.SquaredL2())


METHODS: dict[str, Callable[[rv.SGD, int, float], rv.Algorithm]] = {
    "alone": lambda solver, parties, noise: rv.local(solver),
    "Fed+, trusted server": lambda solver, parties, noise: private(plus(solver), parties, noise),
    "Fed+, secure sums": lambda solver, parties, noise: in_sums(plus(solver), parties, noise),
    "Fed+, local noise": lambda solver, parties, noise: private(plus(solver), parties, noise,
                                                                noise="parties", noise_parties=1),
    "shared, secure sums": lambda solver, parties, noise: in_sums(rv.fedavg(solver), parties, noise),
}


def main() -> None:
    """Measure, print, and write the files that are asked for."""
    options = drawing_parser(__doc__).parse_args()
    if options.redraw:
        rows = json.loads(options.out.read_text())["rows"]
    else:
        rows = [row for name in DATA for row in measured_rows(name, options.seeds)]
        if options.out:
            command = (f"python benchmarks/private_parties.py --seeds {options.seeds} --out {options.out} --figure "
                       f"{options.figure}")
            options.out.write_text(as_json({"seeds": options.seeds, "rounds": ROUNDS, "clip": CLIP, "delta": DELTA,
                                            "jax": jax.__version__, "command": command}, rows=rows))
    if options.figure:
        draw(rows, LABELS, METHODS, EPSILONS).savefig(options.figure, metadata={"Date": None})


def measured_rows(name: str, seeds: int) -> Iterator[dict[str, Any]]:
    """A row for each method and epsilon."""
    make, model, solver = DATA[name]
    data = [make(seed) for seed in range(seeds)]
    noises = [0.0 if math.isinf(epsilon) else noise_within(epsilon, 1.0, ROUNDS, DELTA, "pld") for epsilon in EPSILONS]
    for method, build in METHODS.items():
        values = np.array([[accuracy(build(solver, len(of_seed), noise), model, of_seed, seed)
                            for seed, of_seed in enumerate(data)]
                           for noise in (noises[-1:] if method == "alone" else noises)])
        for epsilon, noise, of_noise in zip(EPSILONS, noises, np.broadcast_to(values, (len(noises), seeds)),
                                            strict=True):
            mean, *ends = mean_interval(of_noise)
            low, high = np.clip(ends, 0, 1)  # an accuracy
            row = {"data": name, "method": method, "epsilon": str(epsilon), "noise": round(noise, 3),
                   "accuracy": round(mean, 4), "low": round(float(low), 4), "high": round(float(high), 4)}
            print(json.dumps(row), flush=True)
            yield row


def accuracy(algorithm: rv.Algorithm, model: rv.models.Model, data: rv.FederatedData, seed: int) -> float:
    """The mean test accuracy of the parties' models after the last round."""
    result = rv.simulate(algorithm, model, data, rounds=ROUNDS, seed=seed, participation=ALL, evaluate_every=ROUNDS,
                         progress=False)
    return float(np.nanmean(result.scores().iloc[-1].to_numpy()))


if __name__ == "__main__":
    main()
