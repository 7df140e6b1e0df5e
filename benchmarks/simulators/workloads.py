"""The four workloads as arrays on disk, and the quality of a model.

All contestants read the same samples, cohorts and first model, and do the same local work; only the order of the
minibatches differs. So the models after the last round must agree up to this noise.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from peer import Work

import resolvent as rv
from resolvent.algorithms import keys
from resolvent.algorithms.participation.rules import draw_of_round
from resolvent.data.federated import Split
from resolvent.math import tree

__all__ = ["WORKLOADS", "Workload", "algorithm_of", "data_of", "model_of", "participation_of", "prepare", "quality",
           "solver_of"]


@dataclass(frozen=True)
class Workload:
    """A federated training task.

    Attributes:
        title: for tables.
        model: logistic, cnn or lstm.
        parties: number of parties.
        cohort: number of parties in a round.
        epochs: passes over a party's samples.
        batch: samples per step.
        learning_rate: of plain SGD.
        mu: weight of the proximal term.
        half: number of rounds before the timing, and of the timed rounds.
    """

    title: str
    model: str
    parties: int
    cohort: int
    epochs: int
    batch: int
    learning_rate: float
    mu: float
    half: int

    def data(self) -> rv.FederatedData:
        """The parties' samples."""
        if self.title.startswith("Synthetic"):
            return rv.datasets.fedprox_synthetic(alpha=1, beta=1, parties=self.parties, test=0.2, seed=0)
        if self.model == "lstm":
            users = rv.partitions.ByUser(parties=self.parties, min_samples=125)
            return rv.datasets.shakespeare(max_samples=125, partition=users)
        partition = rv.partitions.PowerLaw(parties=self.parties) if self.model == "logistic" else rv.partitions.IID(
            self.parties)
        return rv.datasets.mnist(partition=partition, part="all" if self.model == "logistic" else "train")


WORKLOADS = {
    "W1": Workload("Synthetic(1,1), logistic regression", "logistic", 30, 10, 20, 10, 0.01, 1.0, 20),
    "W2": Workload("MNIST, power law, logistic regression", "logistic", 1000, 10, 20, 10, 0.03, 1.0, 50),
    "W3": Workload("MNIST, CNN of 11,910 parameters", "cnn", 20, 20, 1, 50, 0.05, 0.0, 3),
    "W4": Workload("Shakespeare, two LSTM layers of 100", "lstm", 30, 10, 1, 10, 0.8, 0.0, 8),
}


def model_of(facts: dict[str, Any]) -> rv.Model:
    """The workload's model in resolvent."""
    shape, classes = tuple(facts["shape"]), facts["classes"]
    if facts["model"] == "logistic":
        return rv.models.logistic(int(np.prod(shape)), classes)
    if facts["model"] == "cnn":
        return rv.models.mnist_cnn(shape, classes)
    return rv.models.char_lstm(classes, tuple(map(str, range(classes))))


def data_of(work: Work) -> rv.FederatedData:
    """The workload's samples in resolvent; all of them are training samples."""
    empty = Split(np.zeros_like(work.offset), np.zeros_like(work.length))
    return rv.FederatedData(
        work.x, work.y, {"train": Split(work.offset, work.length), "validation": empty, "test": empty},
        tuple(map(str, range(len(work.length)))), "classification", tuple(map(str, range(work.facts["classes"]))),
        vocabulary=tuple(map(str, range(work.facts["tokens"]))))


def solver_of(facts: dict[str, Any]) -> rv.SGD:
    """The workload's local solver in resolvent."""
    return rv.SGD(facts["learning_rate"], batch_size=facts["batch"], epochs=facts["epochs"], proximal="explicit")


def algorithm_of(facts: dict[str, Any]) -> rv.Algorithm:
    """The workload's algorithm in resolvent."""
    return rv.fedprox(solver_of(facts), mu=facts["mu"]) if facts["mu"] else rv.fedavg(solver_of(facts))


def participation_of(work: Work) -> rv.participation.Participation:
    """The workload's participation in resolvent."""
    cohort = work.cohorts.shape[1]
    return rv.participation.Full() if cohort == len(work.length) else rv.participation.Uniform(cohort)


def prepare(name: str, folder: Path, half: int | None = None) -> Path:
    """Write the workload's arrays, unless they exist, and return their folder.

    Args:
        name: W1 to W4.
        folder: folder of all workloads.
        half: number of rounds before the timing, and of the timed rounds; default: the workload's.
    """
    work = WORKLOADS[name]
    rounds = 2 * (half or work.half)
    target = folder / f"{name}-{rounds}"
    facts = asdict(work) | {"rounds": rounds}
    if (target / "facts.json").exists():
        stored = json.loads((target / "facts.json").read_text())
        if all(stored.get(key) == value for key, value in facts.items()):
            return target
    target.mkdir(parents=True, exist_ok=True)
    data = work.data()
    train = np.concatenate([np.arange(b, b + n) for b, n in zip(
        data.splits["train"].offset, data.splits["train"].length, strict=True)])
    test = np.setdiff1d(np.arange(len(data.x)), train)
    facts |= {"shape": data.input_shape, "classes": data.outputs, "tokens": len(data.vocabulary),
              "samples": len(train)}
    length = data.sizes()
    x = data.x if data.vocabulary else data.x.astype(np.float32)
    arrays = {"x": x[train], "y": data.y[train], "length": length, "offset": np.cumsum(length) - length,
              "x_test": x[test], "y_test": data.y[test], "cohorts": _cohorts(work, length, rounds)}
    for key, value in arrays.items():
        np.save(target / f"{key}.npy", np.ascontiguousarray(value))
    first = model_of(facts).init(keys.initial_key(0))
    np.savez(target / "first.npz", **{key: np.asarray(leaf) for key, leaf in tree.named_leaves(first)})
    (target / "facts.json").write_text(json.dumps(facts))
    return target


def _cohorts(work: Workload, sizes: np.ndarray, rounds: int) -> np.ndarray:
    """The cohorts that resolvent draws with seed 0; all contestants use them."""
    participation = rv.participation.Full() if work.cohort == work.parties else rv.participation.Uniform(work.cohort)

    def of_round(t: jax.Array) -> jax.Array:
        return draw_of_round(participation, (), jnp.asarray(sizes), keys.root_key(0), t)[0].index

    return np.asarray(jax.lax.map(of_round, jnp.arange(rounds)))


def quality(folder: Path, model: dict[str, np.ndarray]) -> dict[str, float]:
    """Mean training loss and test accuracy of a model, over all samples of all parties."""
    facts = json.loads((folder / "facts.json").read_text())
    ours = model_of(facts)
    like = jax.eval_shape(ours.init, jax.random.key(0))
    names = [name for name, _ in tree.named_leaves(like)]
    params = jax.tree.unflatten(jax.tree.structure(like), [jnp.asarray(model[name]) for name in names])
    apply = jax.jit(lambda x, y: (ours.loss.loss(ours.apply(params, x), y), ours.loss.score(ours.apply(params, x), y)))

    def mean(split: str, number: int) -> float:
        x, y = np.load(folder / f"x{split}.npy", mmap_mode="r"), np.load(folder / f"y{split}.npy")
        parts = [apply(x[i:i + 2000], y[i:i + 2000])[number] for i in range(0, len(x), 2000)]
        return float(np.mean(np.concatenate(parts)))

    return {"train_loss": round(mean("", 0), 5), "test_accuracy": round(mean("_test", 1), 5)}


def cache() -> Path:
    """The folder of workloads and virtual environments, outside the repository."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "resolvent" / "benchmarks"
