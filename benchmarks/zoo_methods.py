"""Methods for parties with different labels, all tuned with one budget, on images under Dirichlet divisions.

    python benchmarks/zoo_methods.py [--seeds 5] [--rounds 20] [--data mnist cifar10]
                                     [--concentrations 0.1 0.5] [--out benchmarks/zoo_methods.json]

A problem is a data set whose classes are divided over ten parties by a Dirichlet distribution: the 10,000 test images
of MNIST, or the first 3,000 images of the first batch of CIFAR-10, in the folder ``RESOLVENT_DATA``. The model is a
network with one hidden layer of 64 units; for CIFAR-10 two convolutions of 10 and 20 filters and 20 hidden units, on
images that are reduced to 16x16 pixels, whose divisions have 2,900 images in multiples of ten at a party, so that they
all have the same compiled programs. A party makes two local epochs of minibatches of 20 in each round. Every method has
six trials, on divisions of their own: three learning rates times two values of its own parameter; a method without one
has six learning rates. The trial with the best validation score runs once for each seed, which draws the division, the
first model and the minibatches. Rows of other data sets stay in the file.

``test`` is the share of all test samples that are classified correctly by the model of their party, which is the shared
model of a method that has one. ``gain`` is the mean difference from FedAvg with the same seeds, ``error`` the standard
error of the differences. ``personal`` says whether parties use different models: such methods should be compared with
training alone and with FedAvg fine-tuned, not with FedAvg.
"""

import argparse
import functools
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("PJRT_NPROC", "1")  # as the command line does: more threads only wait during steps this small

import jax
import numpy as np
from sklearn.datasets import load_digits

import resolvent as rv
from records import as_json

PARTIES, EPOCHS, BATCH, TUNING_SEED, EVEN_ROWS = 10, 2, 20, 100, 2900
RATES = (0.05, 0.2, 0.8)
MORE_RATES = (0.025, 0.05, 0.1, 0.2, 0.4, 0.8)
HEAD = ("layer 1",)

# method -> (solver, own parameter) -> algorithm, and the two values of the parameter
METHODS: dict[str, tuple[Callable[..., rv.Algorithm], tuple[float, ...]]] = {
    "FedAvg": (lambda s: rv.fedavg(s), ()),
    "FedProx": (lambda s, mu: rv.fedprox(s, mu=mu), (0.01, 0.1)),
    "Scaffold": (lambda s: rv.scaffold(s), ()),
    "MOON": (lambda s, mu: rv.moon(s, mu=mu), (0.1, 1.0)),
    "FedNTD": (lambda s, beta: rv.fedntd(s, beta=beta), (0.3, 1.0)),
    "FedDecorr": (lambda s, beta: rv.feddecorr(s, beta=beta), (0.01, 0.1)),
    "FedLC": (lambda s, tau: rv.fedlc(s, tau=tau), (0.5, 1.0)),
    "alone": (lambda s: rv.local(s), ()),
    "FedAvg, fine-tuned": (lambda s: rv.combinators.FineTuned(rv.fedavg(s), s), ()),
    "FedAvg, head fine-tuned": (lambda s: rv.combinators.FineTuned(rv.fedavg(s), s, HEAD), ()),
    "FedPer": (lambda s: rv.combinators.PersonalLayers(rv.fedavg(s), HEAD), ()),
    "FedBABU": (lambda s: rv.fedbabu(s, layers=HEAD), ()),
    "FedProto": (lambda s, lam, features: rv.fedproto(s, lam=lam, features=features), (0.1, 1.0)),
}
FEATURES = {"mnist": 64, "cifar10": 20}  # of the last layer
PERSONAL = ("alone", "FedAvg, fine-tuned", "FedAvg, head fine-tuned", "FedPer", "FedBABU", "FedProto")


def main() -> None:
    """Measure, print, and write the file that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of a run")
    parser.add_argument("--data", nargs="+", default=["mnist", "cifar10"], choices=["mnist", "cifar10"])
    parser.add_argument("--concentrations", type=float, nargs="+", default=[0.1, 0.5], help="of the divisions")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    for data in options.data:
        for concentration in options.concentrations:
            began = time.process_time()
            rows = rows_of(data, concentration, options.rounds, options.seeds)
            jax.clear_caches()
            if options.out:
                write(options.out, rows, {
                    "data": data, "concentration": concentration, "rounds": options.rounds, "seeds": options.seeds,
                    "trials of a method": 6, "parties": PARTIES, "jax": jax.__version__,
                    "cpu_seconds": round(time.process_time() - began),
                    "command": f"python benchmarks/zoo_methods.py --seeds {options.seeds} --rounds {options.rounds} "
                               f"--data {data} --out {options.out}"})


def write(out: Path, rows: list[dict[str, Any]], run: dict[str, Any]) -> None:
    """Write the rows of a division; those of other divisions stay in the file."""
    record = json.loads(out.read_text()) if out.exists() else {"runs": [], "rows": []}
    tables = {name: [row for row in record[name] if (row["data"], row["concentration"])
                     != (run["data"], run["concentration"])] + new for name, new in (("runs", [run]), ("rows", rows))}
    out.write_text(as_json({"benchmark": "zoo_methods"}, **tables))


def rows_of(data: str, concentration: float, rounds: int, seeds: int) -> list[dict[str, Any]]:
    """The rows of a division, one for each method."""
    divisions = [divided(data, concentration, seed) for seed in range(seeds)]
    for_tuning, rows, of_fedavg = divided(data, concentration, TUNING_SEED), [], np.zeros(seeds)
    for name in METHODS:
        trials = [(score_of(make(), for_tuning, TUNING_SEED, rounds, "validation"), make, settings)
                  for make, settings in trials_of(name, data)]
        _, make, settings = max(trials, key=lambda trial: trial[0])
        scores = np.array([score_of(make(), of_seed, seed, rounds, "test") for seed, of_seed in enumerate(divisions)])
        of_fedavg = scores if name == "FedAvg" else of_fedavg
        gains = scores - of_fedavg
        rows.append({"data": data, "concentration": concentration, "method": name, "personal": name in PERSONAL,
                     "test": round(float(scores.mean()), 4), "gain": round(float(gains.mean()), 4),
                     "error": round(float(gains.std(ddof=1) / np.sqrt(seeds)), 4), **settings})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def trials_of(name: str, data: str) -> Iterator[tuple[Callable[[], rv.Algorithm], dict[str, float]]]:
    """The six trials of a method, each with its settings."""
    build, values = METHODS[name]
    if name == "FedProto":
        build = functools.partial(build, features=FEATURES[data])
    for rate in RATES if values else MORE_RATES:
        solver = rv.SGD(rate, batch_size=BATCH, epochs=EPOCHS)
        for value in values or (None,):
            arguments = () if value is None else (value,)
            settings = {"learning_rate": rate} | ({} if value is None else {"parameter": value})
            yield lambda solver=solver, arguments=arguments: build(solver, *arguments), settings


def divided(data: str, concentration: float, seed: int) -> rv.FederatedData:
    """The data of a division."""
    partition = rv.partitions.Dirichlet(PARTIES, concentration, min_samples=10)
    if data == "mnist":
        return rv.datasets.mnist(part="test", partition=partition, validation=0.2, test=0.3, seed=seed)
    x, y = arrays(data)
    rows = even_rows(partition(y, seed))
    return rv.FederatedData.from_arrays([x[index] for index in rows], [y[index] for index in rows], validation=0.2,
                                        test=0.3, seed=seed, classes=[str(i) for i in range(10)])


def even_rows(rows: list[np.ndarray]) -> list[np.ndarray]:
    """The rows of parties in multiples of ten, ``EVEN_ROWS`` in all, so that every division has the same programs."""
    rows = [index[:len(index) // 10 * 10] for index in rows]
    while sum(map(len, rows)) > EVEN_ROWS:
        largest = max(range(len(rows)), key=lambda k: len(rows[k]))
        rows[largest] = rows[largest][:-10]
    return rows


@functools.cache
def arrays(data: str) -> tuple[np.ndarray, np.ndarray]:
    """The images and labels of a data set that one array holds."""
    if data == "digits":
        x, y = load_digits(return_X_y=True)
        return x / 16, y
    images, labels = rv.datasets.cifar10(batches=(1,), partition=rv.partitions.IID(1), test=0.0).party(0)
    x, y = np.asarray(images)[:3000], np.asarray(labels)[:3000]
    return x.reshape(len(x), 16, 2, 16, 2, 3).mean((2, 4)), y


def score_of(algorithm: rv.Algorithm, data: rv.FederatedData, seed: int, rounds: int, split: str) -> float:
    """The share of the samples of a split that the models of their parties classify correctly."""
    shape = data.input_shape
    model = rv.models.mnist_cnn(shape, 10) if len(shape) == 3 and shape[-1] == 3 else (
        rv.models.mlp(int(np.prod(shape)), 10, width=64))
    result = rv.simulate(algorithm, model, data, rounds=rounds, seed=seed, evaluate_every=rounds, progress=False)
    last = result.metrics.query("metric == 'accuracy' and split == @split and round == @rounds")
    last = last.dropna(subset=["party", "value"])
    if len(last) < PARTIES:  # a run has diverged
        return 0.0
    sizes = np.array([data.splits[split].length[data.index(int(k))] for k in last["party"]])
    return float(np.average(np.asarray(last["value"], float), weights=sizes))


if __name__ == "__main__":
    main()
