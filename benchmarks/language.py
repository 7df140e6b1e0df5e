"""A language model that 20 roles of Shakespeare adapt together: methods, and tokens per second beside PyTorch.

    python benchmarks/language.py --out benchmarks/language.json [--only speed] [--torch PYTHON]

A transformer (two layers of width 128, 32 characters) is trained on the speeches of other roles. Then the 20 roles
with the longest parts train adapters of rank 4 at the projections of attention, an epoch of minibatches of 8 in each
of 5 rounds. Every method has two learning rates; the one with the best accuracy on validation samples is used with
three seeds and tested once: the share of characters that are predicted.

*FLoRA* adds the mean of the products B A to the weights after each round, without an error, and begins with new
adapters (Wang and others, 2024); a party receives the factors of all. *LowRankMean* keeps adapters of the same rank.

Tokens per second of CPU time are those of the local work of a round of FedAvg: the difference between runs of three
rounds and of one. PyTorch's are of a plain loop over the same parties, minibatches and adapters, on one thread, with
the interpreter of ``--torch``, which has PyTorch. The same command measures a GPU, the first of several with
``CUDA_VISIBLE_DEVICES=0``; all GPUs of a machine are used, each with a part of the parties.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("PJRT_NPROC", "1")

import jax
import jax.numpy as jnp
import numpy as np
import optax

import resolvent as rv
from lora import attention, transformer
from records import as_json

LAYERS, WIDTH, HEADS, LENGTH, PARTIES, RANK, BATCH, ROUNDS = 2, 128, 4, 32, 20, 4, 8, 5
ALPHA = 16.0
RATES, SEEDS, SAMPLES = (0.3, 1.0), (0, 1, 2), 80
TORCH = """
import json, sys, time
import numpy as np, torch
from torch.nn import functional as F
torch.set_num_threads(1)
saved = np.load(sys.argv[1])
layers, width, heads, rank, alpha, batch, rate = (saved["settings"][i].item() for i in range(7))
layers, width, heads, rank, batch = map(int, (layers, width, heads, rank, batch))
base = {name: torch.tensor(saved[name]) for name in saved if "|" in name}
names = [f"layer {i}|attention|{n}" for i in range(layers) for n in ("query", "key", "value", "out")]
def norm(x):
    return x / torch.sqrt((x ** 2).mean(-1, keepdim=True) + 1e-6)
def project(x, name, adapters):
    a, b = adapters[name]
    return x @ base[name].T + alpha / rank * ((x @ a.T) @ b.T)
def forward(tokens, adapters):
    h = base["letters|"][tokens] + base["places|"]
    for i in range(layers):
        x = base[f"layer {i}|scale"][0] * norm(h)
        q, k, v = (project(x, f"layer {i}|attention|{n}", adapters).view(len(x), -1, heads, width // heads)
                   .transpose(1, 2) for n in ("query", "key", "value"))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        h = h + project(mixed, f"layer {i}|attention|out", adapters)
        h = h + F.gelu(base[f"layer {i}|scale"][1] * norm(h) @ base[f"layer {i}|up"].T,
                       approximate="tanh") @ base[f"layer {i}|down"].T
    return norm(h) @ base["out|"].T
def train(x, y, start):
    adapters = {n: tuple(t.clone().requires_grad_() for t in pair) for n, pair in start.items()}
    optimizer = torch.optim.SGD([t for pair in adapters.values() for t in pair], rate)
    for rows in torch.randperm(len(x)).split(batch):
        optimizer.zero_grad()
        F.cross_entropy(forward(x[rows], adapters).flatten(0, 1), y[rows].flatten()).backward()
        optimizer.step()
    return {n: tuple(t.detach() for t in pair) for n, pair in adapters.items()}
parties = [(torch.tensor(saved[f"x{k}"]).long(), torch.tensor(saved[f"y{k}"]).long())
           for k in range(int(saved["parties"]))]
shared = {n: (torch.randn(rank, width) / width ** 0.5, torch.zeros(width, rank)) for n in names}
seconds = []
for _ in range(4):
    began = time.process_time()
    replies = [train(x, y, shared) for x, y in parties]
    shared = {n: tuple(torch.stack([r[n][j] for r in replies]).mean(0) for j in range(2)) for n in names}
    seconds.append(time.process_time() - began)
tokens = sum(y.numel() for _, y in parties)
print(json.dumps({"tokens_per_second": tokens / min(seconds[1:]), "torch": torch.__version__}))
"""


def sequences() -> tuple[rv.FederatedData, rv.FederatedData]:
    """The 20 roles, and the speeches of other roles as one party."""
    data = rv.datasets.shakespeare(length=LENGTH, stride=LENGTH, test=0.0)
    windows = [np.concatenate([np.asarray(x), np.asarray(y)[:, None]], axis=1)
               for x, y in (data.party(k) for k in data.parties)]
    order = np.argsort([-len(w) for w in windows], kind="stable")
    roles = [windows[k][:SAMPLES] for k in order[:PARTIES]]
    others = np.concatenate([windows[k] for k in order[PARTIES:PARTIES + 60]])[:6000]
    settings = {"vocabulary": data.vocabulary, "classes": data.classes, "seed": 0}
    return (rv.FederatedData.from_arrays([w[:, :-1] for w in roles], [w[:, 1:] for w in roles], validation=0.2,
                                         test=0.3, **settings),
            rv.FederatedData.from_arrays([others[:, :-1]], [others[:, 1:]], validation=0.0, test=0.1, **settings))


def network(data: rv.FederatedData) -> rv.Model:
    """The model that is adapted."""
    return rv.models.from_functions(*transformer(LAYERS, WIDTH, HEADS, LENGTH, len(data.classes)),
                                    loss="token_cross_entropy")


def pretrained(data: rv.FederatedData, others: rv.FederatedData, rounds: int = 5) -> Any:
    """Parameters that predict the characters of other roles."""
    solver = rv.solvers.OptaxSolver(optax.adam(1e-3), batch_size=32, epochs=1, keep=True)
    result = rv.simulate(rv.fedavg(solver), network(data), others, rounds=rounds, evaluate_every=rounds,
                         progress=False)
    print("trained on others:", result.scores("test").iloc[-1].mean(), flush=True)
    return result.server_model


def adapted(data: rv.FederatedData, base: Any, **settings: Any) -> rv.Model:
    """The model with adapters."""
    return rv.models.lora(network(data), base=base, rank=RANK, alpha=ALPHA, layers=attention(LAYERS), **settings)


def one_run(algorithm: Callable[[Any], Any], **settings: Any) -> Callable[..., tuple[float, float]]:
    """A function (data, base, rate, seed) -> mean accuracies on validation and test samples."""
    def run(data: rv.FederatedData, base: Any, rate: float, seed: int) -> tuple[float, float]:
        result = rv.simulate(algorithm(solver(rate)), adapted(data, base, **settings), data, rounds=ROUNDS, seed=seed,
                             evaluate_every=ROUNDS, progress=False)
        return accuracies(result)
    return run


def solver(rate: float) -> rv.SGD:
    return rv.SGD(rate, batch_size=BATCH, epochs=1)


def accuracies(result: rv.Result, evaluation: int = -1) -> tuple[float, float]:
    """Means over the parties, by default after the last round."""
    validation, test = (float(result.scores(part).iloc[evaluation].mean()) for part in ("validation", "test"))
    return validation, test


def flora(data: rv.FederatedData, base: Any, rate: float, seed: int) -> tuple[float, float]:
    """FLoRA: a round of local work from new adapters, then the mean of the products becomes part of the weights."""
    for t in range(ROUNDS):
        model = adapted(data, base)
        result = rv.simulate(rv.local(solver(rate)), model, data, rounds=1, seed=1000 * seed + t, progress=False)
        weights = [model.weights(result.personal_model(party)) for party in data.parties]
        base = jax.tree.map(lambda *leaves: jnp.mean(jnp.stack(leaves), axis=0), *weights)
    return untrained(data, base)


def untrained(data: rv.FederatedData, base: Any) -> tuple[float, float]:
    """The accuracies of the weights as they are, before the first round."""
    result = rv.simulate(rv.fedavg(solver(0.1)), network(data), data, start=base, rounds=1, progress=False)
    return accuracies(result, 0)


METHODS: dict[str, Callable[..., tuple[float, float]]] = {
    "alone": one_run(rv.local),
    "FedAvg": one_run(rv.fedavg),
    "FFA-LoRA": one_run(rv.fedavg, frozen_a=True),
    "LowRankMean": one_run(lambda s: rv.robust(s, rv.aggregators.LowRankMean())),
    "FLoRA": flora,
    "Fed+": one_run(lambda s: rv.fedplus(s, rv.penalties.L2Norm(), sigma=0.1)),
}


def compare(data: rv.FederatedData, base: Any) -> list[dict[str, Any]]:
    """A row for each method, and for the weights before any adaptation."""
    rows: list[dict[str, Any]] = [{"method": "not adapted", "accuracy": round(untrained(data, base)[1], 4)}]
    for name, run in METHODS.items():
        first = {rate: run(data, base, rate, SEEDS[0]) for rate in RATES}
        rate = max(first, key=lambda r: np.nan_to_num(first[r][0]))
        tests = [first[rate][1], *(run(data, base, rate, seed)[1] for seed in SEEDS[1:])]
        rows.append({"method": name, "learning_rate": rate, "accuracy": round(float(np.mean(tests)), 4),
                     "deviation": round(float(np.std(tests, ddof=1)), 4)})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def tokens_per_second(data: rv.FederatedData, base: Any) -> float:
    """Trained characters per second of CPU time, on a GPU of time, in the local work of FedAvg."""
    clock = time.process_time if jax.default_backend() == "cpu" else time.perf_counter
    spent: dict[int, list[float]] = {1: [], 3: []}
    model = adapted(data, base)
    for rounds in (1, 3, 1, 3, 1, 3, 1, 3):
        began = clock()
        rv.simulate(rv.fedavg(solver(RATES[0])), model, data, rounds=rounds, evaluate_every=rounds, progress=False)
        spent[rounds].append(clock() - began)
    return trained_tokens(data) / ((min(spent[3]) - min(spent[1])) / 2)


def trained_tokens(data: rv.FederatedData) -> int:
    return sum(np.asarray(data.party(k)[1]).size for k in data.parties)


def of_torch(python: str, data: rv.FederatedData, base: Any, folder: Path) -> dict[str, Any]:
    """The same from a plain loop of PyTorch."""
    flat = jax.tree_util.tree_flatten_with_path(base)[0]
    names = ["|".join(p.key for p in path) + ("|" if len(path) == 1 else "") for path, _ in flat]
    arrays = {name: np.asarray(leaf) for name, (_, leaf) in zip(names, flat, strict=True)}
    for k, party in enumerate(data.parties):
        arrays[f"x{k}"], arrays[f"y{k}"] = (np.asarray(part) for part in data.party(party))
    path = folder / "language.npz"
    np.savez(path, parties=len(data.parties), settings=[LAYERS, WIDTH, HEADS, RANK, ALPHA, BATCH, RATES[0]], **arrays)
    text = subprocess.run([python, "-c", TORCH, str(path)], check=True, capture_output=True, text=True).stdout
    return dict(json.loads(text))


def main() -> None:
    """Measure, print, and write the file that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="write the figures as JSON; what is not measured is kept")
    parser.add_argument("--only", choices=("methods", "speed"), help="measure this alone")
    parser.add_argument("--torch", default=sys.executable, help="an interpreter with PyTorch")
    options = parser.parse_args()
    known = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    rows = known.pop("rows", [])
    data, others = sequences()
    base = pretrained(data, others, rounds=1 if options.only == "speed" else 5)
    facts = known | {"jax": jax.__version__, "device": jax.devices()[0].device_kind, "parties": PARTIES}
    if options.only != "methods":
        facts |= {"tokens_per_second": round(tokens_per_second(data, base))}
        with tempfile.TemporaryDirectory() as folder:
            torch = of_torch(options.torch, data, base, Path(folder))
        facts |= {"torch": torch["torch"], "torch_tokens_per_second": round(torch["tokens_per_second"])}
    if options.only != "speed":
        rows = compare(data, base)
    print(json.dumps(facts, indent=1))
    if options.out:
        options.out.write_text(as_json(facts, rows=rows))


if __name__ == "__main__":
    main()
