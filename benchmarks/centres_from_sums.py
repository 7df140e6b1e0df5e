"""Robust centres from sums of replies: how many steps a round needs.

    python benchmarks/centres_from_sums.py [--problems "30 parties" ...] [--seeds 2] [--out FILE]

Rows that FILE has are not measured again.

For each method, with honest parties and with 20 % whose labels are flipped: the mean test accuracy of the honest
parties in percent with the direct aggregator, which sees every reply, and with ``CentreFromSums(method, steps=R)``;
and the ``error`` of the centre after the last round: its distance from the direct centre of the same replies, in median
distances of a reply from that centre.
"""

import argparse
import json
import os
import time
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("PJRT_NPROC", "1")  # as the command line does: more threads only wait during steps this small

import jax
import jax.numpy as jnp
import numpy as np

import resolvent as rv
from gain_and_hold import SHARE, is_honest
from preset_defaults import CASES
from records import as_json
from resolvent.math import tree
from resolvent.problem.problem import shares_by_size

STEPS = (1, 2, 4, 8, 16)
METHODS = {
    "rfa": rv.rfa,
    "fedgeomed_plus": lambda solver: rv.fedgeomed_plus(solver, sigma=1.0, delta=1.0),
    "fedcomed_plus": lambda solver: rv.fedcomed_plus(solver, sigma=1.0, delta=0.1),
    "coordinate_median": rv.coordinate_median,
}


def main() -> None:
    """Measure, print, and write the file that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=2, help="number of divisions of the data and draws of attackers")
    parser.add_argument("--problems", nargs="+", choices=list(CASES), default=["30 parties", "MNIST robust"],
                        help="problems of preset_defaults.py")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    rows = json.loads(options.out.read_text())["rows"] if options.out and options.out.exists() else []
    command = f"python benchmarks/centres_from_sums.py --seeds {options.seeds} --out {options.out}"
    for problem, name, attack in product(options.problems, METHODS, (None, rv.attacks.LabelFlip())):
        key = {"problem": problem, "method": name, "flipped": SHARE if attack else 0.0}
        if any(key.items() <= row.items() for row in rows):
            continue
        start = time.process_time()
        row = measured_row(problem, METHODS[name](CASES[problem].solver), attack, options.seeds)
        rows.append(key | row | {"cpu_seconds": round(time.process_time() - start)})
        print(json.dumps(rows[-1]), flush=True)
        if options.out:
            options.out.write_text(as_json({"seeds": options.seeds, "jax": jax.__version__, "command": command},
                                           rows=rows))
        jax.clear_caches()


def measured_row(problem: str, inner: Any, attack: rv.attacks.Attack | None, seeds: int) -> dict[str, Any]:
    """Mean accuracies of the direct form and of each number of steps, and the errors of the centres; over the seeds."""
    forms = {"direct": inner, **{str(steps): rv.combinators.CentreFromSums(inner, steps=steps) for steps in STEPS}}
    results = {form: [measured(problem, inner, algorithm, attack, seed) for seed in range(seeds)]
               for form, algorithm in forms.items()}
    means = {form: np.mean(values, axis=0) for form, values in results.items()}
    return {"accuracy": {form: round(float(mean[0]), 2) for form, mean in means.items()},
            "error": {form: float(f"{mean[1]:.2g}") for form, mean in means.items() if form != "direct"}}


def measured(problem: str, inner: Any, algorithm: rv.Algorithm, attack: rv.attacks.Attack | None,
             seed: int) -> tuple[float, float]:
    """The honest parties' mean accuracy in percent, and the error of the last centre; nan for the direct form."""
    case = CASES[problem]
    data = case.data(seed)
    run = algorithm if attack is None else rv.attacked(algorithm, attack, share=SHARE, seed=seed)
    result = rv.simulate(run, case.model, data, rounds=case.rounds, seed=seed, evaluate_every=case.rounds,
                         progress=False)
    honest = np.ones(len(data), bool) if attack is None else is_honest(len(data), seed, case)
    score = 100 * float(np.nan_to_num(result.scores().iloc[-1].to_numpy())[honest].mean())
    if algorithm is inner:
        return score, float("nan")
    n = len(data)
    weight = shares_by_size(result.problem.sizes)
    replies = rv.Replies(result.state.parties.reply, weight, jnp.arange(n), jnp.ones(n, bool), weight)
    exact, _ = inner.aggregator(replies, result.server_model)
    spread = jax.vmap(lambda x: tree.norm(tree.sub(x, exact)))(replies.payload)
    return score, float(tree.norm(tree.sub(result.server_model, exact)) / jnp.median(spread))


if __name__ == "__main__":
    main()
