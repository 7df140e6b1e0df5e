"""Adapters and full fine-tuning: bytes, memory and CPU time of a transformer with 10.7 million parameters.

    nice python benchmarks/lora.py [--out benchmarks/lora.json]

Six layers of width 384 read 16 characters of a random text; each of 20 parties has four sequences, and makes one step
with a minibatch of four in a round. Adapters of rank 8 are at the projections of attention. Each row has a process of
its own, which makes a run of one round, another one, and one of three rounds: ``cpu_seconds`` is the CPU time of a
round, all threads together, by the difference of the last two, which compile nothing. ``bytes`` go up and down in a
round, ``megabytes`` is the largest resident memory of the process, and ``states`` are the
megabytes that the parties store between rounds. The weights are random, so that accuracies would mean nothing.
"""

import argparse
import json
import os
import resource
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("PJRT_NPROC", "1")  # as the command line does: more threads only wait during steps this small

import jax
import jax.numpy as jnp
import numpy as np

import resolvent as rv
from records import as_json
from resolvent.algorithms.description import describe

LAYERS, WIDTH, HEADS, LENGTH, LETTERS, PARTIES = 6, 384, 6, 16, 64, 20
ROWS = ("full, fedavg", "full, fedplus", "lora, fedavg", "lora, fedplus", "ffa, fedavg")


def transformer(layers: int, width: int, heads: int, length: int, letters: int) -> tuple[Any, Any]:
    """The functions init and apply of a transformer that predicts the next character after each one."""

    def init(key):
        keys = iter(jax.random.split(key, 6 * layers + 3))

        def matrix(rows, columns):
            return jax.random.normal(next(keys), (rows, columns)) / np.sqrt(columns)

        blocks = {f"layer {i}": {
            "attention": {name: matrix(width, width) for name in ("query", "key", "value", "out")},
            "up": matrix(4 * width, width), "down": matrix(width, 4 * width), "scale": jnp.ones((2, width))}
            for i in range(layers)}
        return {"letters": matrix(letters, width), "places": 0.02 * matrix(length, width),
                "out": matrix(letters, width), **blocks}

    def apply(p, tokens):
        h = p["letters"][tokens] + p["places"]
        causal = jnp.tril(jnp.ones((length, length), bool))
        for i in range(layers):
            block = p[f"layer {i}"]
            x = block["scale"][0] * normalise(h)
            query, key, value = ((x @ block["attention"][name].T).reshape(len(x), length, heads, -1)
                                 for name in ("query", "key", "value"))
            scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(width / heads)
            weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf))
            mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(x.shape)
            h = h + mixed @ block["attention"]["out"].T
            h = h + jax.nn.gelu(block["scale"][1] * normalise(h) @ block["up"].T) @ block["down"].T
        return normalise(h) @ p["out"].T

    return init, apply


def attention(layers: int) -> tuple[str, ...]:
    """The names of the projections of attention."""
    return tuple(f"layer {i}.attention.{name}" for i in range(layers) for name in ("query", "key", "value", "out"))


def normalise(x):
    return x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


def run(name: str) -> dict[str, float]:
    """One run in this process."""
    kind, method = name.split(", ")
    rng = np.random.default_rng(0)
    x = [rng.integers(0, LETTERS, (4, LENGTH + 1)) for _ in range(PARTIES)]
    data = rv.FederatedData.from_arrays([s[:, :-1] for s in x], [s[:, 1:] for s in x], validation=0, test=0,
                                        vocabulary=tuple(map(str, range(LETTERS))),
                                        classes=list(map(str, range(LETTERS))))
    model = rv.models.from_functions(*transformer(LAYERS, WIDTH, HEADS, LENGTH, LETTERS), loss="token_cross_entropy")
    if kind != "full":
        model = rv.models.lora(model, rank=8, layers=attention(LAYERS), frozen_a=kind == "ffa")
    solver = rv.SGD(0.05, batch_size=4, epochs=1)
    algorithm = rv.fedavg(solver) if method == "fedavg" else rv.fedplus(solver, rv.penalties.L2Norm(), sigma=0.1)
    spent = {}
    for rounds in (1, 1, 3):
        began = time.process_time()
        result = rv.simulate(algorithm, model, data, rounds=rounds, evaluate_every=rounds, progress=False)
        spent[rounds] = time.process_time() - began
    traced = describe(algorithm, result.problem, parties=PARTIES)
    sizes = [sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
             for tree in (traced.messages, traced.replies, traced.party)]
    return {"parameters": sum(leaf.size for leaf in jax.tree.leaves(traced.model)),
            "bytes": PARTIES * (sizes[0] + sizes[1]), "states": round(PARTIES * sizes[2] / 1e6, 1),
            "cpu_seconds": round((spent[3] - spent[1]) / 2, 2),
            "megabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)}


def main() -> None:
    """Measure, print, and write the file that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--methods", nargs="+", default=ROWS, choices=ROWS)
    parser.add_argument("--run", choices=ROWS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        print(json.dumps(run(options.run)))
        return
    rows = []
    for name in options.methods:
        text = subprocess.run([sys.executable, __file__, "--run", name], check=True, capture_output=True,
                              text=True).stdout
        rows.append({"method": name, **json.loads(text.splitlines()[-1])})
        print(json.dumps(rows[-1]), flush=True)
    if options.out:
        options.out.write_text(as_json({
            "parties": PARTIES, "jax": jax.__version__,
            "command": shlex.join(["nice", "python", *sys.argv])}, rows=rows))


if __name__ == "__main__":
    main()
