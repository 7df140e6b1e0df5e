"""Data sets by name: each a function that returns ``FederatedData``."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resolvent.data.federated import FederatedData
from resolvent.data.formats import leaf, libsvm
from resolvent.data.generators import fedplus_regression, fedprox_synthetic, sines, splitting_logistic
from resolvent.data.images import cifar10, emnist, fashion_mnist, mnist
from resolvent.data.tables import from_frame, table
from resolvent.data.texts import sentiment, shakespeare, stackexchange
from resolvent.errors import InputError

__all__ = ["cifar10", "digits", "emnist", "fashion_mnist", "fedplus_regression", "fedprox_synthetic", "from_frame",
           "leaf", "libsvm", "mnist", "sentiment", "shakespeare", "sines", "splitting_logistic", "stackexchange",
           "synthetic", "table"]


def digits(*, parties: int = 10, classes_per_party: int = 3, outliers: int = 0, size_spread: float = 0.6,
           validation: float = 0.2, test: float = 0.3, seed: int = 0) -> FederatedData:
    """scikit-learn's 1,797 handwritten digits (8x8), every party with few classes and a size of its own.

    The digits are real; who holds which is drawn from the seed. Each party is given its classes in turn, so that all
    ten are held by someone, and shares each class with the others that hold it in proportion to its log-normal size.

    Args:
        parties: how many parties.
        classes_per_party: how many of the ten digits each party sees.
        outliers: the last so many parties' images are inverted (dark on light).
        size_spread: standard deviation of the log-normal sizes; 0 for equal shares.
        validation: share of each party's samples kept for validation.
        test: share of each party's samples kept for testing.
        seed: of the partition and the split.
    """
    if not 1 <= classes_per_party <= 10:
        raise InputError(f"classes_per_party={classes_per_party} must lie in 1 to 10: there are ten digits")
    if not 1 <= parties <= 100:
        raise InputError(f"parties={parties} must lie in 1 to 100: there are 1,797 images to share")
    if not 0 <= outliers <= parties:
        raise InputError(f"outliers={outliers} must lie in 0 to {parties}, the number of parties")
    x, y = _handwritten()
    rng = np.random.default_rng(seed)
    rows = _by_classes(y, parties, classes_per_party, np.exp(rng.normal(0, size_spread, parties)), rng)
    inputs = [1 - x[r] if k >= parties - outliers else x[r] for k, r in enumerate(rows)]
    data = FederatedData.from_arrays(
        inputs, [y[r] for r in rows], validation=validation, test=test, seed=seed, name="digits",
        classes=[str(c) for c in range(10)], features=[f"pixel {i // 8},{i % 8}" for i in range(64)])
    return data.noting(*(f"{data.parties[k]} is an outlier: its images are inverted"
                         for k in range(parties - outliers, parties)))


def _handwritten() -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """scikit-learn's digits, in [0, 1], and their labels; from its file, for it takes seconds to import."""
    package = importlib.util.find_spec("sklearn")
    file = None if package is None or package.origin is None else (
        Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz")
    if file is not None and file.is_file():
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
        return table[:, :-1] / np.float32(16), table[:, -1].astype(np.int32)
    from sklearn.datasets import load_digits

    bunch = load_digits()
    inputs: NDArray[np.float32] = bunch.data.astype(np.float32) / 16
    return inputs, bunch.target.astype(np.int32)


def _by_classes(y: NDArray[Any], parties: int, per_party: int, sizes: NDArray[Any],
                rng: np.random.Generator) -> list[NDArray[Any]]:
    """Rows of each party: classes dealt in turn from shuffled decks of all classes, shared by relative size."""
    classes = np.unique(y)
    holds: list[set[int]] = [set() for _ in range(parties)]
    deck: list[int] = []
    for _ in range(per_party):
        for k in range(parties):
            if not set(deck) - holds[k]:
                deck += [int(c) for c in rng.permutation(classes)]
            card = next(c for c in deck if c not in holds[k])
            deck.remove(card)
            holds[k].add(card)
    rows: list[list[NDArray[Any]]] = [[] for _ in range(parties)]
    for c in classes:
        holders = [k for k in range(parties) if int(c) in holds[k]]
        if not holders:
            continue
        members = rng.permutation(np.flatnonzero(y == c))
        share = np.array([sizes[k] for k in holders])
        cuts = np.round(np.cumsum(share / share.sum())[:-1] * len(members)).astype(int)
        for k, part in zip(holders, np.split(members, cuts), strict=True):
            rows[k].append(part)
    return [np.concatenate(parts) for parts in rows]


def synthetic(*, parties: int = 30, samples: int = 20, features: int = 10, heterogeneity: float = 1.0,
              noise: float = 0.1, validation: float = 0.0, test: float = 0.2, seed: int = 0) -> FederatedData:
    """Linear regressions whose true weights differ from party to party: y = x'(w + heterogeneity*v_k) + noise.

    For benchmarks and first steps, with any number of parties; x, w and v_k are standard normal.

    Args:
        parties: how many parties.
        samples: samples per party.
        features: number of inputs.
        heterogeneity: standard deviation of the parties' true weights around the common ones.
        noise: standard deviation of the noise on the labels.
        validation: share of each party's samples kept for validation.
        test: share of each party's samples kept for testing.
        seed: of everything random.
    """
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(parties, samples, features)).astype(np.float32)
    true = rng.normal(size=features) + heterogeneity * rng.normal(size=(parties, features))
    y = np.einsum("knf,kf->kn", x, true) + noise * rng.normal(size=(parties, samples))
    return FederatedData.from_arrays(list(x), list(y.astype(np.float32)), task="regression", validation=validation,
                                     test=test, seed=seed, name="synthetic regression")
