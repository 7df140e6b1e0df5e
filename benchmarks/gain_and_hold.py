"""Who gains without an attack and holds under one? Personal methods with their defaults, and training alone.

    python benchmarks/gain_and_hold.py [--seeds 5] [--problems "30 parties" ...] --out benchmarks/gain_and_hold.json
    python benchmarks/gain_and_hold.py --continue --out benchmarks/gain_and_hold.json    # only the rows that it lacks
    python benchmarks/gain_and_hold.py --equal --continue --problems network --out FILE  # what chance alone would show

Problems are those of ``preset_defaults.py``, with the same solvers and rounds, and ``convolutions, 1000 test images``,
which has as many images for training and validation as ``convolutions``. 20 % of the parties are malicious; which
ones is drawn from the seed. Attacks are those of ``defences.py`` and ``scaled``; ``none`` is without one. A column
has the mean test accuracy of the honest parties in percent over the seeds, and that of the worst honest party.
``mean_lost`` and ``worst_lost`` are the largest losses of a column against training alone, in points; negative numbers
are gains. With ``--equal`` it measures the ``worst_lost`` of models that are as good as those alone: only which test
rows they predict rightly is drawn anew.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("PJRT_NPROC", "1")  # as the command line does: more threads only wait during steps this small

import jax
import numpy as np

import resolvent as rv
from defences import ADAPTIVE, ATTACKS, attack_on
from preset_defaults import CASES, Case
from records import as_json

SHARE, SCALED = 0.2, "scaled"
COLUMNS = ("none", SCALED, *ATTACKS, ADAPTIVE)
def many_test_images(seed: int) -> rv.FederatedData:
    """Ten parties with 48 images of MNIST for training, 12 for validation and 1,000 for testing; one is inverted."""
    return rv.datasets.mnist(partition=rv.partitions.FixedSizes((1060,) * 10), shift=rv.shifts.Negative(share=0.1),
                             part="train", validation=12 / 1060, test=1000 / 1060, seed=seed)


PROBLEMS = CASES | {"convolutions, 1000 test images": CASES["convolutions"]._replace(data=many_test_images)}
METHODS: dict[str, Callable[[Any], rv.Algorithm]] = {
    "alone": rv.local,
    "robust_interpolation": rv.robust_interpolation,
    "protected_fedplus": rv.protected_fedplus,
    "fedgeomed_plus": rv.fedgeomed_plus,
    "fedgeomed_plus(sigma=0.1, delta=0.1)": lambda solver: rv.fedgeomed_plus(solver, sigma=0.1, delta=0.1),
    "protected_fedplus, SquaredL2": lambda solver: rv.protected_fedplus(solver, rv.penalties.SquaredL2()),
}


def main() -> None:
    """Measure, print, and write the file that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=5, help="number of divisions of the data and draws of attackers")
    parser.add_argument("--problems", nargs="+", choices=list(PROBLEMS), default=["30 parties"], help="problems")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS), help="methods")
    parser.add_argument("--columns", nargs="+", choices=COLUMNS, default=list(COLUMNS), help="attacks")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--continue", action="store_true", dest="continues", help="measure only the missing rows")
    parser.add_argument("--equal", action="store_true", help="only the loss of the worst party by chance")
    options = parser.parse_args()
    known = json.loads(options.out.read_text()) if options.continues and options.out.exists() else {"rows": []}
    rows = known.pop("rows")
    facts = {"seeds": options.seeds, "malicious": SHARE, "jax": jax.__version__,
             "command": f"python benchmarks/gain_and_hold.py --seeds {options.seeds} --out {options.out}"}
    for problem in options.problems:
        rows_of_problem = {row["method"]: row for row in rows if row["problem"] == problem}
        for row in ([loss_by_chance(problem, options.seeds)] if options.equal else
                    measured_rows(problem, options.methods, options.columns, options.seeds, rows_of_problem)):
            rows = [*(old for old in rows if (old["problem"], old["method"]) != (problem, row["method"])), row]
            print(json.dumps(row), flush=True)
            if options.out:
                options.out.write_text(as_json(facts | known, rows=rows))
        jax.clear_caches()


def measured_rows(problem: str, methods: list[str], attacks: list[str], seeds: int,
                  known: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows of training alone and of methods, with their losses against it; known cells are not measured again."""
    case = PROBLEMS[problem]
    data = [case.data(seed) for seed in range(seeds)]
    for name in ("alone", *(name for name in METHODS if name in methods and name != "alone")):
        algorithm = METHODS[name](case.solver)
        # A party alone sends nothing, so that no attack changes an honest one.
        columns, old = COLUMNS[:1] if name == "alone" else attacks, known.get(name, {})
        row: dict[str, Any] = {"problem": problem, "method": name}
        row |= {column: old.get(column) or honest_scores(algorithm, column, case, data) for column in columns}
        if name == "alone":
            alone = row["none"]
        else:
            for i, loss in enumerate(("mean_lost", "worst_lost")):
                row[loss] = round(max(alone[i] - row[column][i] for column in columns), 1)
        yield row


def loss_by_chance(problem: str, seeds: int, draws: int = 4000) -> dict[str, Any]:
    """A row with median and 95 % quantile of ``worst_lost`` where every model is as accurate as the party's own alone.

    The accuracies are those that are measured, drawn to their mean by the share of their variance that the number of
    test rows explains. Numbers of right predictions are binomial, independent of each other.
    """
    case, rng = PROBLEMS[problem], np.random.default_rng(0)
    worst = np.zeros((draws, 1 + len(COLUMNS)))  # of training alone, and of a method in each column
    for seed in range(seeds):
        data = case.data(seed)
        accuracy = honest_accuracies(rv.local(case.solver), case, data, seed)
        rows = data.sizes("test")[is_honest(len(data), seed, case)]
        noise = (accuracy * (1 - accuracy) / rows).mean()
        share = max(0.0, 1 - noise / accuracy.var(ddof=1))
        rate = accuracy.mean() + share * (accuracy - accuracy.mean())
        worst += (rng.binomial(rows, rate, (*worst.shape, len(rows))) / rows).min(axis=2) / seeds
    lost = 100 * (worst[:, :1] - worst[:, 1:]).max(axis=1)
    quantiles = {name: round(float(np.quantile(lost, q)), 1) for name, q in (("median", 0.5), ("95 %", 0.95))}
    return {"problem": problem, "seeds": seeds, "method": "equal models", "worst_lost": quantiles}


def honest_scores(algorithm: rv.Algorithm, attack: str, case: Case, data: list[rv.FederatedData]) -> list[float]:
    """Mean accuracy of the honest parties and accuracy of the worst one, in percent, means over the seeds."""
    scores = []
    for seed, of_seed in enumerate(data):
        attacked = algorithm
        if attack != "none":
            kind = rv.attacks.Scaled() if attack == SCALED else attack_on(algorithm, attack)
            attacked = rv.attacked(algorithm, kind, share=SHARE, seed=seed)
        values = honest_accuracies(attacked, case, of_seed, seed)
        scores.append([values.mean(), values.min()])
    return [round(100 * float(value), 1) for value in np.mean(scores, axis=0)]


def honest_accuracies(algorithm: rv.Algorithm, case: Case, data: rv.FederatedData, seed: int) -> np.ndarray:
    """The test accuracy of each honest party after the last round."""
    result = rv.simulate(algorithm, case.model, data, rounds=case.rounds, seed=seed, evaluate_every=case.rounds,
                         progress=False)
    return np.nan_to_num(result.scores().iloc[-1].to_numpy())[is_honest(len(data), seed, case)]


def is_honest(parties: int, seed: int, case: Case) -> np.ndarray:
    """[N] which parties are honest; it depends on the seed and the number of parties only."""
    attacked = rv.attacked(rv.fedavg(case.solver), rv.attacks.NaN(), share=SHARE, seed=seed)
    state = attacked.init(case.model.init(jax.random.key(0)), jax.numpy.full(parties, 1 / parties))
    return ~np.asarray(state.extra)


if __name__ == "__main__":
    main()
