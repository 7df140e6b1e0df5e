"""Batch normalisation in a federation: its statistics averaged, private or frozen, next to group normalisation.

    python benchmarks/model_state.py [--seeds 5] [--out benchmarks/model_state.json]

Scikit-learn's digits at ten parties, ten classes or two classes at each. The network has one hidden layer of 32 units,
which are normalised: by the minibatch (``BatchNorm``, statistics with momentum 0.9) or by each sample (``GroupNorm``,
4 groups). 30 rounds of FedAvg, two local epochs of minibatches of 20, learning rate 0.1.

``shared`` is the mean accuracy of the shared model on the test samples of the parties, ``own`` that of the model that
a party uses on its own test samples; means over the seeds, with the standard errors. ``alone`` has ``BatchNorm`` and is
trained alone.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("PJRT_NPROC", "1")  # as the command line does: more threads only wait during steps this small

import equinox as eqx
import jax
import numpy as np

import resolvent as rv
from records import as_json

ROUNDS, PARTIES = 30, 10
SOLVER = rv.SGD(0.1, batch_size=20, epochs=2)


class BatchNormalised(eqx.Module):
    """A network with batch normalisation."""

    body: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    head: eqx.nn.Linear

    def __init__(self, key: jax.Array) -> None:
        keys = jax.random.split(key)
        self.body, self.head = eqx.nn.Linear(64, 32, key=keys[0]), eqx.nn.Linear(32, 10, key=keys[1])
        self.norm = eqx.nn.BatchNorm(32, "batch", mode="batch", momentum=0.9)

    def __call__(self, x: jax.Array, state: eqx.nn.State) -> tuple[jax.Array, eqx.nn.State]:
        h, state = self.norm(self.body(x), state)
        return self.head(jax.nn.relu(h)), state


class GroupNormalised(eqx.Module):
    """The same network with group normalisation."""

    body: eqx.nn.Linear
    norm: eqx.nn.GroupNorm
    head: eqx.nn.Linear

    def __init__(self, key: jax.Array) -> None:
        keys = jax.random.split(key)
        self.body, self.head = eqx.nn.Linear(64, 32, key=keys[0]), eqx.nn.Linear(32, 10, key=keys[1])
        self.norm = eqx.nn.GroupNorm(4, 32)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.head(jax.nn.relu(self.norm(self.body(x))))


def policy(name: str) -> rv.Algorithm:
    """FedAvg with a policy for the statistics."""
    return rv.combinators.ModelState(rv.fedavg(SOLVER), name)  # type: ignore[arg-type]


ROWS: dict[str, tuple[type[eqx.Module], rv.Algorithm]] = {
    "BatchNorm, averaged": (BatchNormalised, policy("average")),
    "BatchNorm, private": (BatchNormalised, policy("private")),
    "BatchNorm, frozen": (BatchNormalised, policy("frozen")),
    "BatchNorm, FedBN": (BatchNormalised, rv.fedbn(SOLVER)),
    "GroupNorm": (GroupNormalised, rv.fedavg(SOLVER)),
    "alone": (BatchNormalised, rv.local(SOLVER)),
}


def main() -> None:
    """Measure, print, and write the file that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    rows = []
    for classes in (10, 2):
        for name, (module, algorithm) in ROWS.items():
            rows.append({"classes": classes, "method": name, **row_of(module, algorithm, classes, options.seeds)})
            print(json.dumps(rows[-1]), flush=True)
    if options.out:
        options.out.write_text(as_json({
            "rounds": ROUNDS, "seeds": options.seeds, "parties": PARTIES, "jax": jax.__version__,
            "command": f"python benchmarks/model_state.py --seeds {options.seeds} --out {options.out}"}, rows=rows))


def row_of(module: type[eqx.Module], algorithm: rv.Algorithm, classes: int, seeds: int) -> dict[str, Any]:
    """Mean accuracies over the seeds, with their standard errors."""
    model, scores = rv.models.from_equinox(module), []
    for seed in range(seeds):
        data = rv.datasets.digits(parties=PARTIES, classes_per_party=classes, size_spread=0.0, seed=seed)
        result = rv.simulate(algorithm, model, data, rounds=ROUNDS, seed=seed, evaluate_every=ROUNDS, progress=False)
        last = result.metrics.query("split == 'test' and round == @ROUNDS")
        scores.append([float(last.query("metric == @name")["value"].mean())
                       for name in ("global_accuracy", "accuracy")])
    means, errors = np.mean(scores, axis=0), np.std(scores, axis=0, ddof=1) / np.sqrt(seeds)
    return {name: None if np.isnan(mean) else [round(float(mean), 4), round(float(error), 4)]
            for name, mean, error in zip(("shared", "own"), means, errors, strict=True)}


if __name__ == "__main__":
    main()
