"""How good is ``rv.robust_interpolation(delta=0.1)`` untuned? Against training alone.

    python benchmarks/default.py [--seeds 3] [--rates 0.1 0.4] [--out benchmarks/default.json]

Four problems: 20 parties with scikit-learn's digits, all ten or three each, 50 rounds of two local epochs. A row is a
problem and a learning rate; nothing is tuned. ``interpolation`` and ``alone`` are mean test accuracies over the honest
parties and the seeds. ``better`` and ``worse`` count the honest parties whose gain over training alone with the same
learning rate has an interval of level 0.95 above, or below, zero (``rv.compare``). In ``linear, apart, bad`` 4 of the
20 parties are malicious.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("PJRT_NPROC", "1")  # as the command line does: more threads only wait during steps this small

import jax
import numpy as np

import resolvent as rv
from records import as_json

CLASSES = {"linear, alike": 10, "linear, apart": 3, "network, apart": 3, "linear, apart, bad": 3}
PARTIES, ROUNDS = 20, 50


def main() -> None:
    """Measure, print, and write the file that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.1, 0.4], help="learning rates")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    rows = []
    for problem in CLASSES:
        for rate in options.rates:
            rows.append(row_of(problem, rate, options.seeds))
            print(json.dumps(rows[-1]), flush=True)
        jax.clear_caches()
    if options.out:
        rates = " ".join(f"{rate:g}" for rate in options.rates)
        facts = {"rounds": ROUNDS, "seeds": options.seeds, "jax": jax.__version__,
                 "command": f"python benchmarks/default.py --seeds {options.seeds} --rates {rates} --out {options.out}"}
        options.out.write_text(as_json(facts, rows=rows))


def row_of(problem: str, rate: float, seeds: int) -> dict[str, Any]:
    """The row of a problem and a learning rate."""
    data = rv.datasets.digits(parties=PARTIES, classes_per_party=CLASSES[problem], size_spread=0.0, validation=0.2,
                              test=0.4)
    model = rv.models.mlp(64, 10, width=32) if problem.startswith("network") else rv.models.logistic(64, 10)
    solver = rv.SGD(rate, batch_size=12, epochs=2)
    interpolation, is_honest = rv.robust_interpolation(solver, delta=0.1), np.ones(PARTIES, bool)
    if problem.endswith("bad"):
        interpolation = rv.attacked(interpolation, rv.attacks.SignFlip(scale=5.0), share=0.2, seed=1)
        w0, shares = model.init(jax.random.key(0)), jax.numpy.full(PARTIES, 1 / PARTIES)
        is_honest = ~np.asarray(interpolation.init(w0, shares).extra)
    comparison = rv.compare({"alone": rv.local(solver), "interpolation": interpolation}, model, data, rounds=ROUNDS,
                            seeds=seeds, evaluate_every=ROUNDS, progress=False)
    sites = [site for site, honest in zip(comparison.verdict.sites.sites, is_honest, strict=True) if honest]
    signs = [site.gains["interpolation"].sign for site in sites]
    return {"problem": problem, "learning_rate": rate,
            **{method: round(float(np.mean([site.scores[method].value for site in sites])), 4)
               for method in ("interpolation", "alone")},
            "better": signs.count(1), "worse": signs.count(-1), "honest": len(sites)}


if __name__ == "__main__":
    main()
