"""Who gains without an attack and holds under one? Personal methods with their defaults, and training alone.

    python benchmarks/gain_and_hold.py [--seeds 5] [--problems "30 parties" ...] --out benchmarks/gain_and_hold.json
    python benchmarks/gain_and_hold.py --continue --out benchmarks/gain_and_hold.json    # only the rows that it lacks

Problems are those of ``preset_defaults.py``, with the same solvers and rounds. 20 % of the parties are malicious; which
ones is drawn from the seed. Attacks are those of ``defences.py`` and ``scaled``; ``none`` is without one. A column
has the mean test accuracy of the honest parties in percent over the seeds, and that of the worst honest party.
``mean_lost`` and ``worst_lost`` are the largest losses of a column against training alone, in points; negative numbers
are gains.
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
from resolvent.algorithms.presets.scale_free import default_sigma

SHARE, SCALED = 0.2, "scaled"
COLUMNS = ("none", SCALED, *ATTACKS, ADAPTIVE)
METHODS: dict[str, Callable[[Any], rv.Algorithm]] = {
    "alone": rv.local,
    "robust_interpolation": rv.robust_interpolation,
    "fedgeomed_plus": rv.fedgeomed_plus,
    "fedgeomed_plus with a sigma": lambda solver: rv.fedgeomed_plus(solver, sigma=default_sigma(solver, None)),
    "fedgeomed_plus(sigma=0.1, delta=0.1)": lambda solver: rv.fedgeomed_plus(solver, sigma=0.1, delta=0.1),
    "fedavg_plus": rv.fedavg_plus,
}


def main() -> None:
    """Measure, print, and write the file that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=5, help="number of divisions of the data and draws of attackers")
    parser.add_argument("--problems", nargs="+", choices=list(CASES), default=["30 parties"], help="problems")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS), help="methods")
    parser.add_argument("--columns", nargs="+", choices=COLUMNS, default=list(COLUMNS), help="attacks")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--continue", action="store_true", dest="continues", help="measure only the missing rows")
    options = parser.parse_args()
    known = json.loads(options.out.read_text()) if options.continues and options.out.exists() else {"rows": []}
    rows = known["rows"]
    facts = {"seeds": options.seeds, "malicious": SHARE, "jax": jax.__version__,
             "command": f"python benchmarks/gain_and_hold.py --seeds {options.seeds} --out {options.out}"}
    for problem in options.problems:
        rows_of_problem = {row["method"]: row for row in known["rows"] if row["problem"] == problem}
        for row in measured_rows(problem, options.methods, options.columns, options.seeds, rows_of_problem):
            rows = [*(old for old in rows if (old["problem"], old["method"]) != (problem, row["method"])), row]
            print(json.dumps(row), flush=True)
            if options.out:
                options.out.write_text(as_json(facts, rows=rows))
        jax.clear_caches()


def measured_rows(problem: str, methods: list[str], attacks: list[str], seeds: int,
                  known: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows of training alone and of methods, with their losses against it; known cells are not measured again."""
    case = CASES[problem]
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


def honest_scores(algorithm: rv.Algorithm, attack: str, case: Case, data: list[rv.FederatedData]) -> list[float]:
    """Mean accuracy of the honest parties and accuracy of the worst one, in percent, means over the seeds."""
    scores = []
    for seed, of_seed in enumerate(data):
        attacked = algorithm
        if attack != "none":
            kind = rv.attacks.Scaled() if attack == SCALED else attack_on(algorithm, attack)
            attacked = rv.attacked(algorithm, kind, share=SHARE, seed=seed)
        result = rv.simulate(attacked, case.model, of_seed, rounds=case.rounds, seed=seed, evaluate_every=case.rounds,
                             progress=False)
        values = np.nan_to_num(result.scores().iloc[-1].to_numpy())[is_honest(len(of_seed), seed, case)]
        scores.append([values.mean(), values.min()])
    return [round(100 * float(value), 1) for value in np.mean(scores, axis=0)]


def is_honest(parties: int, seed: int, case: Case) -> np.ndarray:
    """[N] which parties are honest; it depends on the seed and the number of parties only."""
    attacked = rv.attacked(rv.fedavg(case.solver), rv.attacks.NaN(), share=SHARE, seed=seed)
    state = attacked.init(case.model.init(jax.random.key(0)), jax.numpy.full(parties, 1 / parties))
    return ~np.asarray(state.extra)


if __name__ == "__main__":
    main()
