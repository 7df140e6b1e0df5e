"""Accuracy against epsilon: FedAvg, FedGeoMed+ and training alone with DPSGD, on two real data sets.

    python benchmarks/privacy.py [--seeds 3] [--out benchmarks/privacy.json] [--figure benchmarks/privacy.svg]
    python benchmarks/privacy.py --redraw --out benchmarks/privacy.json --figure benchmarks/privacy.svg

The noise of each point is the smallest for which all rounds together spend at most the stated epsilon at the party with
the fewest samples (Renyi accounting, which PLD accounting would improve by about a tenth). All methods have the same
solver, the same number of rounds and the same noise: nothing is chosen by the samples, which would spend privacy again.
A value is the mean test accuracy over the parties, with Student's interval of level 0.95 over the seeds. A seed draws
the division, the first model, the minibatches and the noise. ``inf`` is the same training with clipping and without
noise. MNIST is its test part, 10,000 images.

The attack is ``rv.privacy.membership_inference`` on the records of one party, by everybody who sees the model that
FedAvg shares after the last round.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

os.environ.setdefault("PJRT_NPROC", "1")  # as the command line does: more threads only wait during steps this small

import jax
import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

import resolvent as rv
from records import as_json, drawing_parser
from resolvent.math.accounting import noise_within
from resolvent.predict.intervals import mean_interval
from resolvent.simulator.record.plots import colour_of, style

EPSILONS = (0.5, 2.0, 8.0, math.inf)
METHODS: dict[str, Callable[[rv.solvers.DPSGD], rv.Algorithm]] = {
    "alone": rv.local,
    "FedAvg": rv.fedavg,
    "FedGeoMed+": lambda solver: rv.fedgeomed_plus(solver, sigma=0.3, delta=3.0),
}
LABELS = {"digits": "digits: 5 parties, each with five of ten classes",
          "mnist": "MNIST: 10 parties, each with all ten classes"}
ATTACKED = (1.0, math.inf)  # the epsilons of the attack
SHADOWS = 8


class Setting(NamedTuple):
    """A data set and the training on it.

    Attributes:
        data: seed -> the parties' samples.
        model: the model.
        solver: the local solver; its noise is set for each epsilon.
        rounds: number of rounds.
        delta: of the privacy.
    """

    data: Callable[[int], rv.FederatedData]
    model: rv.models.Model
    solver: rv.solvers.DPSGD
    rounds: int
    delta: float


def settings() -> dict[str, Setting]:
    """The two data sets."""
    return {
        "digits": Setting(
            lambda seed: rv.datasets.digits(parties=5, classes_per_party=5, size_spread=0.0, validation=0.0, seed=seed),
            rv.models.logistic(64, 10), rv.solvers.DPSGD(1.0, clip=1.0, batch_size=64, steps=4), 25, 1e-3),
        "mnist": Setting(
            lambda seed: rv.datasets.mnist(partition=rv.partitions.IID(parties=10), part="test", seed=seed),
            rv.models.logistic(784, 10), rv.solvers.DPSGD(1.0, clip=1.0, batch_size=64, steps=5), 20, 1e-4),
    }


def main() -> None:
    """Measure, print, and write the files that are asked for."""
    options = drawing_parser(__doc__).parse_args()
    if options.redraw:
        rows = json.loads(options.out.read_text())["rows"]
    else:
        of_data = settings()
        facts = {"seeds": options.seeds, "jax": jax.__version__,
                 "command": f"python benchmarks/privacy.py --seeds {options.seeds} --out {options.out} "
                            f"--figure {options.figure}"}
        attacks = attack_rows(of_data["digits"])
        rows = [row for name in of_data for row in curve_rows(name, of_data[name], options.seeds)]
        if options.out:
            options.out.write_text(as_json(facts, rows=rows, attacks=attacks))
    if options.figure:
        draw(rows, LABELS, METHODS, EPSILONS).savefig(options.figure, metadata={"Date": None})


def noise_of(setting: Setting, samples: int, epsilon: float) -> float:
    """The noise multiplier for which all rounds spend ``epsilon`` at a party with this many training samples."""
    if math.isinf(epsilon):
        return 0.0
    solver, rate = setting.solver, min(1.0, setting.solver.batch_size / samples)
    return noise_within(epsilon, rate, round(float(solver.steps)) * setting.rounds, setting.delta, "rdp")


def curve_rows(name: str, setting: Setting, seeds: int) -> list[dict[str, Any]]:
    """The accuracies on one data set, a row for each method and epsilon."""
    data = [setting.data(seed) for seed in range(seeds)]
    samples = min(int(d.sizes().min()) for d in data)
    rows = []
    for epsilon in EPSILONS:
        noise = noise_of(setting, samples, epsilon)
        solver = replace(setting.solver, noise_multiplier=noise)
        for method, build in METHODS.items():
            values = [run(build(solver), setting, data[seed], seed).scores().iloc[-1].mean() for seed in range(seeds)]
            value, *ends = mean_interval(np.array(values))
            low, high = np.clip(ends, 0, 1)  # an accuracy
            rows.append({"data": name, "method": method, "epsilon": str(epsilon), "delta": setting.delta,
                         "noise": round(noise, 3), "accuracy": round(value, 4), "low": round(float(low), 4),
                         "high": round(float(high), 4)})
            print(json.dumps(rows[-1]), flush=True)
    return rows


def run(algorithm: rv.Algorithm, setting: Setting, data: rv.FederatedData, seed: int) -> rv.Result:
    """A run that is evaluated before the first and after the last round."""
    return rv.simulate(algorithm, setting.model, data, rounds=setting.rounds, seed=seed, evaluate_every=setting.rounds,
                       progress=False)


def attack_rows(setting: Setting) -> list[dict[str, Any]]:
    """The attack on the records of the first party, a row for each method and epsilon.

    Each shadow federation has half of these records; the other parties are the same in all.
    """
    data = setting.data(0)
    parties = [data.party(k) for k in range(len(data))]
    x, y = parties[0]
    members = rv.privacy.draw_members(SHADOWS, len(x))
    rows = []
    for epsilon in ATTACKED:
        solver = replace(setting.solver, noise_multiplier=noise_of(setting, int(members.sum(axis=1).min()), epsilon))
        models: dict[str, list[Any]] = {"alone": [], "FedAvg": []}
        for seed, of_shadow in enumerate(members):
            shadow = rv.FederatedData.from_arrays(
                [x[of_shadow], *(inputs for inputs, _ in parties[1:])],
                [y[of_shadow], *(labels for _, labels in parties[1:])], validation=0, test=0,
                classes=[str(c) for c in range(10)])
            for method, of_method in models.items():
                of_method.append(run(METHODS[method](solver), setting, shadow, seed).personal_model(0))
        for method, of_method in models.items():
            attack = rv.privacy.membership_inference(setting.model, of_method, x, y, members,
                                                     false_positive_rate=0.05)
            rows.append({"method": method, "epsilon": str(epsilon), "delta": setting.delta,
                         "auc": round(attack.auc, 3), "advantage": round(attack.advantage, 3),
                         "true_positive_rate": round(attack.true_positive_rate, 3), "false_positive_rate": 0.05,
                         "advantage_bound": round(rv.privacy.advantage_bound(min(epsilon, 100.0), setting.delta), 3)})
            print(json.dumps(rows[-1]), flush=True)
    return rows


def draw(table: list[dict[str, Any]], labels: Mapping[str, str], methods: Iterable[str],
         epsilons: Sequence[float]) -> Figure:
    """Accuracy against epsilon; a panel for each data set. The dotted lines are training without noise."""
    ticks = [e for e in epsilons if math.isfinite(e)]
    with mpl.rc_context({**style, "svg.hashsalt": "resolvent"}):
        figure = Figure(figsize=(8.4, 3.4), layout="constrained")
        for axes, (name, title) in zip(figure.subplots(1, 2), labels.items(), strict=True):
            for method, (colour, dash) in colour_of(list(methods)).items():
                rows = [row for row in table if (row["data"], row["method"]) == (name, method)]
                noisy = [row for row in rows if row["epsilon"] != "inf"]
                epsilon = [float(row["epsilon"]) for row in noisy]
                axes.plot(epsilon, [100 * row["accuracy"] for row in noisy], dash, color=colour, marker="o",
                          markersize=4, label=method)
                axes.fill_between(epsilon, [100 * row["low"] for row in noisy], [100 * row["high"] for row in noisy],
                                  color=colour, alpha=0.15, linewidth=0)
                axes.axhline(100 * next(row["accuracy"] for row in rows if row["epsilon"] == "inf"), color=colour,
                             linestyle=":", linewidth=1)
            axes.set_xscale("log", base=2)
            axes.set_xticks(ticks, [f"{e:g}" for e in ticks])
            axes.set_xlabel("epsilon")
            axes.set_title(title)
        figure.axes[0].set_ylabel("test accuracy, percent")
        figure.axes[0].legend(loc="lower right")
    return figure


if __name__ == "__main__":
    main()
