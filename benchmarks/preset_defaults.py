"""Are the presets' defaults any good? Each preset with nothing set, against training alone and against its tuned self.

    python benchmarks/preset_defaults.py --out benchmarks/preset_defaults.json
    python benchmarks/preset_defaults.py --continue --out benchmarks/preset_defaults.json  # only missing rows

A row is a problem and a preset. ``default`` is the mean test accuracy of the parties' models in percent, with nothing
set but the solver; ``best`` is that of the best setting of a small grid, by the same test rows, so that it is an upper
bound of what tuning gives; ``setting`` is that setting; ``alone`` is training alone with the same solver. Fed+ has a
grid of sigma and delta, the other presets one of their own parameter. Three problems are ``30 parties`` with other
learning rates, and in other units: inputs times 16 and the learning rate over 256.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("PJRT_NPROC", "1")  # as the command line does: more threads only wait during steps this small

import jax
import numpy as np

import resolvent as rv
from records import as_json
from resolvent.algorithms.methods.fedplus import ProxAnchor
from resolvent.algorithms.methods.personal_splitting import PersonalSplitting

Preset = Callable[..., rv.Algorithm]


class Case(NamedTuple):
    """A problem: its data, model and solver, and the number of rounds."""

    data: Callable[[int], rv.FederatedData]
    model: rv.models.Model
    solver: rv.SGD
    rounds: int = 60


def digits(**options: Any) -> Callable[[int], rv.FederatedData]:
    """scikit-learn's digits for a seed."""
    return lambda seed: rv.datasets.digits(seed=seed, **options)


def scaled_digits(seed: int) -> rv.FederatedData:
    """The digits with pixels from 0 to 16."""
    data = rv.datasets.digits(**THIRTY, seed=seed)
    return replace(data, x=np.float32(16) * data.x)


def tumours(seed: int, parties: int = 10) -> rv.FederatedData:
    """scikit-learn's table of breast tumours; the class rates of the parties differ."""
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    x = (bunch.data - bunch.data.mean(0)) / bunch.data.std(0)
    rows = rv.partitions.Dirichlet(parties=parties, concentration=1.0)(bunch.target, seed)
    rows = [part for part in rows if len(part) >= 10]
    return rv.FederatedData.from_arrays([x[part] for part in rows], [bunch.target[part] for part in rows],
                                        validation=0.2, test=0.4, seed=seed, classes=["0", "1"])


def mnist(shift: Any) -> Callable[[int], rv.FederatedData]:
    """Ten parties with 120 images of MNIST each, in one of the Fed+ paper's two forms."""
    return lambda seed: rv.datasets.mnist(partition=rv.partitions.FixedSizes((120,) * 10), shift=shift, part="test",
                                          validation=0.1, test=0.5, seed=seed)


LOGISTIC, SMALL = rv.models.logistic(64, 10), rv.SGD(0.1, batch_size=12, epochs=2)
THIRTY = {"parties": 30, "classes_per_party": 5}
TWENTY = {"parties": 20, "size_spread": 0.0, "test": 0.4}
IMAGES = rv.SGD(0.05, batch_size=20, steps=20)
CASES = {
    "alike": Case(digits(**TWENTY, classes_per_party=10), LOGISTIC, SMALL),
    "apart": Case(digits(**TWENTY, classes_per_party=3), LOGISTIC, SMALL),
    "network": Case(digits(**TWENTY, classes_per_party=3), rv.models.mlp(64, 10, width=32), SMALL),
    "30 parties": Case(digits(**THIRTY), LOGISTIC, rv.SGD(0.05, batch_size=20, epochs=5)),
    "an outlier": Case(digits(parties=10, classes_per_party=5, size_spread=1.0, outliers=1, test=0.5), LOGISTIC,
                       rv.SGD(0.05, batch_size=20, epochs=2)),
    "MNIST robust": Case(mnist(rv.shifts.Negative(share=0.1)), rv.models.logistic(784, 10), IMAGES),
    "MNIST personal": Case(mnist(rv.shifts.LaplaceNoise(inner=rv.shifts.Negative(share=0.1))),
                           rv.models.logistic(784, 10), IMAGES),
    "table": Case(tumours, rv.models.logistic(30, 2), rv.SGD(0.1, batch_size=10, epochs=1)),
    "large steps": Case(digits(**THIRTY), LOGISTIC, rv.SGD(0.4, batch_size=20, epochs=2)),
    "small steps": Case(digits(**THIRTY), LOGISTIC, rv.SGD(0.02, batch_size=5, epochs=5)),
    "other units": Case(scaled_digits, LOGISTIC, rv.SGD(0.05 / 256, batch_size=20, epochs=5)),
    "convolutions": Case(mnist(rv.shifts.Negative(share=0.1)), rv.models.mnist_cnn((28, 28, 1), 10),
                         rv.SGD(0.05, batch_size=20, steps=5), rounds=20),
}

PAIRS = [{"sigma": s, "delta": d} for s, d in product((0.1, 1.0, 10.0), (0.1, 1.0, 10.0))]


def relative(rate: float, name: str, factors: tuple[float, ...] = (0.001, 0.01, 0.05, 0.3)) -> list[dict[str, float]]:
    """Values of a weight, in units of one over the learning rate."""
    return [{name: factor / rate} for factor in factors]


def with_choice(preset: Preset) -> Preset:
    """A preset whose parties choose by validation samples between its model, one trained alone, and mixtures."""
    return lambda solver: rv.combinators.HeldOutInterpolation(preset(solver), solver, fallback="joint")


def protected(penalty: rv.penalties.Penalty) -> Preset:
    """``protected_fedplus`` by default; with numbers the paper's Fed+, which is what tuning is compared with."""
    return lambda solver, **numbers: (rv.fedplus(solver, penalty, **numbers) if numbers else
                                      rv.protected_fedplus(solver, penalty))


def chosen_fedpi_plus(solver: Any, **numbers: float) -> rv.Algorithm:
    """FedPi+ from the centre with a choice of each party by default; with numbers without."""
    if numbers:
        return rv.fedpi_plus(solver, rv.penalties.L2Norm(), **numbers)
    norm = rv.penalties.L2Norm()
    sigma = (1 / 0.98 - 1) / solver.learning_rate
    splitting = PersonalSplitting(solver, ProxAnchor(norm, 1.0, is_relative=True),
                                  rv.aggregators.MoreauCentre(norm, 1.0, is_relative=True), sigma, 2.0, 2.0, 0.5, 1.0)
    return rv.combinators.HeldOutInterpolation(splitting, solver, fallback="joint")


METHODS: dict[str, tuple[Preset, Callable[[float], list[dict[str, Any]]]]] = {
    "protected_fedplus": (protected(rv.penalties.L2Norm()), lambda rate: PAIRS),
    "protected_fedplus, L1": (protected(rv.penalties.L1()), lambda rate: [
        {**pair, "delta": pair["delta"] / 10} for pair in PAIRS]),
    "protected_fedplus, SquaredL2": (protected(rv.penalties.SquaredL2()), lambda rate: PAIRS),
    "fedpi_plus, with a choice": (chosen_fedpi_plus, lambda rate: PAIRS),
    "fedprox": (rv.fedprox, lambda rate: relative(rate, "mu")),
    "ditto": (rv.ditto, lambda rate: relative(rate, "lam")),
    "l2gd": (rv.l2gd, lambda rate: relative(rate, "lam", (0.001, 0.01, 0.05, 0.15))),
    "apfl": (rv.apfl, lambda rate: [{"alpha": a} for a in (0.25, 0.5, 0.75)]),
    "fedmix": (rv.fedmix, lambda rate: [{"alpha": a} for a in (0.5, 0.75)]),
    "pfedme": (rv.pfedme, lambda rate: [*relative(rate, "lam"), {"lam": 15.0, "eta": 0.005}]),
    "perfedavg": (rv.perfedavg, lambda rate: [{"alpha": a} for a in (0.1, rate)]),
    "fedavg": (rv.fedavg, lambda rate: []),
    "robust_interpolation": (rv.robust_interpolation, lambda rate: []),
}
METHODS |= {f"{name}, with a choice": (with_choice(METHODS[name][0]), lambda rate: [])
            for name in ("ditto", "l2gd", "fedmix", "pfedme")}
FED_PLUS = ("protected_fedplus, SquaredL2", "protected_fedplus", "protected_fedplus, L1", "fedavg",
            "robust_interpolation")  # of the network with convolutions


def main() -> None:
    """Measure, print, and write the files that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="number of divisions of the data")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--continue", action="store_true", dest="continues", help="measure only missing rows")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES), help="problems")
    parser.add_argument("--presets", nargs="+", choices=list(METHODS), default=list(METHODS), help="presets")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(options.out.read_text())["rows"] if (
        options.continues and options.out.exists()) else []
    facts = {"seeds": options.seeds, "jax": jax.__version__,
             "command": f"python benchmarks/preset_defaults.py --seeds {options.seeds} --out {options.out}"}
    for problem in options.cases:
        known = {row["preset"] for row in rows if row["problem"] == problem}
        for row in rows_of(problem, options.seeds, set(options.presets) - known):
            rows.append(row)
            print(json.dumps(row), flush=True)
            if options.out:
                options.out.write_text(as_json(facts, rows=rows))
        jax.clear_caches()


def rows_of(problem: str, seeds: int, presets: set[str]) -> Iterator[dict[str, Any]]:
    """The rows of presets."""
    case = CASES[problem]
    data = [case.data(seed) for seed in range(seeds)]
    alone = None
    for name, (preset, grid) in METHODS.items():
        if name not in presets or (problem == "convolutions" and name not in FED_PLUS):
            continue
        alone = accuracy(rv.local(case.solver), case, data) if alone is None else alone
        default = accuracy(preset(case.solver), case, data)
        tried = {json.dumps(setting): accuracy(preset(case.solver, **setting), case, data)
                 for setting in grid(float(case.solver.learning_rate))}
        best = max(tried, key=lambda setting: tried[setting], default="{}")
        yield {"problem": problem, "preset": name, "alone": alone, "default": default,
               "best": max(tried.get(best, default), default), "setting": json.loads(best)}


def accuracy(algorithm: rv.Algorithm, case: Case, data: list[rv.FederatedData]) -> float:
    """Mean test accuracy of the parties and seeds after the last round, in percent; 0 if the model diverged."""
    scores = [rv.simulate(algorithm, case.model, of_seed, rounds=case.rounds, seed=seed, evaluate_every=case.rounds,
                          progress=False).scores().iloc[-1].to_numpy() for seed, of_seed in enumerate(data)]
    return round(100 * float(np.mean([np.nan_to_num(score).mean() for score in scores])), 1)


if __name__ == "__main__":
    main()
