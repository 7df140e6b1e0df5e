"""Batch normalisation in a federation: its statistics averaged, private or frozen, next to group normalisation.

    python benchmarks/model_state.py [--data digits cifar10] [--seeds 3] [--out benchmarks/model_state.json]

Ten parties that have all ten classes, or two each. ``digits``: scikit-learn's digits, and a network with one hidden
layer of 32 units; two local epochs. ``cifar10``: the first 3,000 images of the first batch of CIFAR-10, reduced to
16x16 pixels (``RESOLVENT_DATA`` is the folder), and a residual network: a convolution 3x3 of 16 filters with stride 2,
a residual block of two such convolutions without a stride, the mean over the pixels and an affine layer; one local
epoch.
Every layer is normalised: by the minibatch (``BatchNorm``, statistics with momentum 0.9) or by each sample
(``GroupNorm``, 4 groups). FedAvg, minibatches of 20, learning rate 0.1.

``shared`` is the mean accuracy of the shared model on the test samples of the parties, ``own`` that of the model that
a party uses on its own test samples; means over the seeds, with the standard errors. ``alone`` has ``BatchNorm`` and is
trained alone.
"""

import argparse
import functools
import json
import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("PJRT_NPROC", "1")  # as the command line does: more threads only wait during steps this small

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import resolvent as rv
from records import as_json

PARTIES = 10
ROUNDS = {"digits": 30, "cifar10": 15}
SOLVERS = {"digits": rv.SGD(0.1, batch_size=20, epochs=2), "cifar10": rv.SGD(0.1, batch_size=20, epochs=1)}
Norm = Callable[[int], Any]


def batch_norm(channels: int) -> eqx.Module:
    """Normalisation by the minibatch."""
    return eqx.nn.BatchNorm(channels, "batch", mode="batch", momentum=0.9)


def group_norm(channels: int) -> eqx.Module:
    """Normalisation by each sample."""
    return eqx.nn.GroupNorm(4, channels)


def normalise(norm: Any, x: jax.Array, state: eqx.nn.State | None) -> tuple[jax.Array, eqx.nn.State | None]:
    """The normalised values, and the state after them, which only ``BatchNorm`` has."""
    return (norm(x), state) if state is None else norm(x, state)


class Network(eqx.Module):
    """One hidden layer, for digits."""

    body: eqx.nn.Linear
    norm: Any
    head: eqx.nn.Linear

    def __init__(self, norm: Norm, key: jax.Array) -> None:
        keys = jax.random.split(key)
        self.body, self.head = eqx.nn.Linear(64, 32, key=keys[0]), eqx.nn.Linear(32, 10, key=keys[1])
        self.norm = norm(32)

    def __call__(self, x: jax.Array, state: eqx.nn.State | None = None) -> Any:
        h, after = normalise(self.norm, self.body(x), state)
        outputs = self.head(jax.nn.relu(h))
        return outputs if state is None else (outputs, after)


class ResidualNetwork(eqx.Module):
    """One residual block, for images of 16x16 pixels."""

    convolutions: list[eqx.nn.Conv2d]
    norms: list[Any]
    head: eqx.nn.Linear

    def __init__(self, norm: Norm, key: jax.Array) -> None:
        keys = jax.random.split(key, 4)
        self.convolutions = [eqx.nn.Conv2d(3 if i == 0 else 16, 16, 3, 2 if i == 0 else 1, 1, use_bias=False,
                                           key=keys[i]) for i in range(3)]
        self.norms = [norm(16) for _ in range(3)]
        self.head = eqx.nn.Linear(16, 10, key=keys[3])

    def __call__(self, x: jax.Array, state: eqx.nn.State | None = None) -> Any:
        h, after = normalise(self.norms[0], self.convolutions[0](jnp.moveaxis(x, -1, 0)), state)
        skipped = jax.nn.relu(h)
        h, after = normalise(self.norms[1], self.convolutions[1](skipped), after)
        h, after = normalise(self.norms[2], self.convolutions[2](jax.nn.relu(h)), after)
        outputs = self.head(jax.nn.relu(h + skipped).mean((1, 2)))
        return outputs if state is None else (outputs, after)


NETWORKS: dict[str, type[eqx.Module]] = {"digits": Network, "cifar10": ResidualNetwork}


def policy(name: str) -> Callable[[rv.SGD], rv.Algorithm]:
    """FedAvg with a policy for the statistics."""
    return lambda solver: rv.combinators.ModelState(rv.fedavg(solver), name)  # type: ignore[arg-type]


ROWS: dict[str, tuple[Norm, Callable[[rv.SGD], rv.Algorithm]]] = {
    "BatchNorm, averaged": (batch_norm, policy("average")),
    "GroupNorm": (group_norm, rv.fedavg),
    "BatchNorm, FedBN": (batch_norm, rv.fedbn),
    "alone": (batch_norm, rv.local),
    "BatchNorm, private": (batch_norm, policy("private")),
    "BatchNorm, frozen": (batch_norm, policy("frozen")),
}


def main() -> None:
    """Measure, print, and write the file that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", nargs="+", default=[*NETWORKS], choices=[*NETWORKS])
    parser.add_argument("--methods", nargs="+", default=[*ROWS], choices=[*ROWS])
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    rows, began = [], time.process_time()
    for name in options.data:
        for method in options.methods:
            for classes in (10, 2):
                rows.append({"data": name, "classes": classes, "method": method,
                             **row_of(name, method, classes, options.seeds)})
                print(json.dumps(rows[-1]), flush=True)
                if options.out:  # after each row, so that an interruption loses one row only
                    options.out.write_text(as_json({
                        "rounds": ROUNDS, "seeds": options.seeds, "parties": PARTIES, "jax": jax.__version__,
                        "cpu_seconds": round(time.process_time() - began),
                        "command": shlex.join(["python", *sys.argv])}, rows=rows))


def data_of(name: str, classes: int, seed: int) -> rv.FederatedData:
    """The samples of ten parties with this number of classes each."""
    if name == "digits":
        return rv.datasets.digits(parties=PARTIES, classes_per_party=classes, size_spread=0.0, seed=seed)
    images, labels = rv.datasets.cifar10(batches=(1,), partition=rv.partitions.IID(1), test=0.0).party(0)
    x, y = np.asarray(images)[:3000], np.asarray(labels)[:3000]
    x = x.reshape(len(x), 16, 2, 16, 2, 3).mean((2, 4))
    partition = (rv.partitions.IID(PARTIES) if classes == 10 else
                 rv.partitions.Shards(PARTIES, per_party=classes, cut="class"))
    rows = partition(y, seed)
    return rv.FederatedData.from_arrays([x[index] for index in rows], [y[index] for index in rows], validation=0.0,
                                        test=0.3, seed=seed, classes=[str(i) for i in range(10)])


def row_of(name: str, method: str, classes: int, seeds: int) -> dict[str, Any]:
    """Mean accuracies over the seeds, with their standard errors."""
    norm, build = ROWS[method]
    model, scores = rv.models.from_equinox(functools.partial(NETWORKS[name], norm)), []
    for seed in range(seeds):
        result = rv.simulate(build(SOLVERS[name]), model, data_of(name, classes, seed), rounds=ROUNDS[name], seed=seed,
                             evaluate_every=ROUNDS[name], progress=False)
        last = result.metrics.query("split == 'test' and round == @ROUNDS[@name]")
        scores.append([float(last.query("metric == @metric")["value"].mean())
                       for metric in ("global_accuracy", "accuracy")])
    means, errors = np.mean(scores, axis=0), np.std(scores, axis=0, ddof=1) / np.sqrt(seeds)
    return {key: None if np.isnan(mean) else [round(float(mean), 4), round(float(error), 4)]
            for key, mean, error in zip(("shared", "own"), means, errors, strict=True)}


if __name__ == "__main__":
    main()
