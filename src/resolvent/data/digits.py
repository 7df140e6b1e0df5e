"""scikit-learn's handwritten digits, divided over parties by class."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resolvent.arguments import checked
from resolvent.data.federated import FederatedData
from resolvent.data.partition.division import cut_points
from resolvent.errors import InputError, check_range


@checked
def digits(*, parties: int = 10, classes_per_party: int = 3, outliers: int = 0, size_spread: float = 0.6,
           validation: float = 0.2, test: float = 0.3, seed: int = 0) -> FederatedData:
    """scikit-learn's 1,797 handwritten digits (8x8); every party has a few of the ten classes.

    The images are real; their distribution over parties is drawn from the seed. Classes are assigned to parties in
    turn, so that every class has a party if parties * classes_per_party is at least 10. The images of a class are
    divided over its parties in proportion to log-normal draws, one per party.

    Args:
        parties: number of parties.
        classes_per_party: number of digits of each party.
        outliers: number of parties, the last ones, whose images are inverted (dark on light).
        size_spread: standard deviation of the logarithm of the parties' relative sizes; 0 for equal sizes.
        validation: share of each party's samples for validation.
        test: share of each party's samples for testing.
        seed: seed of the partition and the split.

    Raises:
        InputError: an argument is out of range.

    Example:
        >>> data = digits(parties=5, seed=1)
        >>> len(data), data.input_shape, data.outputs
        (5, (64,), 10)
    """
    if not 1 <= classes_per_party <= 10:
        raise InputError(f"digits(classes_per_party={classes_per_party}) must lie in 1 to 10: there are ten digits")
    if not 1 <= parties <= 100:
        raise InputError(f"digits(parties={parties}) must lie in 1 to 100: there are 1,797 images")
    if not 0 <= outliers <= parties:
        raise InputError(f"digits(outliers={outliers}) must lie in 0 to {parties}, the number of parties")
    check_range("digits", "[0, inf)", size_spread=size_spread)
    x, y = _load_digits()
    rng = np.random.default_rng(seed)
    sizes = np.exp(rng.normal(0, size_spread, parties))
    rows = _divide_classes(y, _assign_classes(np.unique(y), parties, classes_per_party, rng), sizes, rng)
    inputs = [1 - x[r] if k >= parties - outliers else x[r] for k, r in enumerate(rows)]
    data = FederatedData.from_arrays(
        inputs, [y[r] for r in rows], validation=validation, test=test, seed=seed, name="digits",
        classes=[str(c) for c in range(10)], features=[f"pixel {i // 8},{i % 8}" for i in range(64)])
    return data.with_notes(*(f"{data.parties[k]} is an outlier: its images are inverted"
                             for k in range(parties - outliers, parties)))


def _load_digits() -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """scikit-learn's digits [1797, 64] in [0, 1], and their labels [1797]."""
    # The file is read without importing scikit-learn, which takes more than a second.
    package = find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    rows = np.loadtxt(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", np.int32, delimiter=",")
    inputs: NDArray[np.float32] = rows[:, :-1].astype(np.float32) / np.float32(16)
    return inputs, rows[:, -1]


def _assign_classes(classes: NDArray[Any], parties: int, per_party: int, rng: np.random.Generator) -> list[set[int]]:
    """The classes of each party, assigned in turn from a queue of shuffled copies of all classes."""
    assigned: list[set[int]] = [set() for _ in range(parties)]
    queue: list[int] = []
    for _ in range(per_party):
        for k in range(parties):
            if not set(queue) - assigned[k]:
                queue += [int(c) for c in rng.permutation(classes)]
            label = next(c for c in queue if c not in assigned[k])
            queue.remove(label)
            assigned[k].add(label)
    return assigned


def _divide_classes(y: NDArray[Any], classes: list[set[int]], sizes: NDArray[Any],
                    rng: np.random.Generator) -> list[NDArray[Any]]:
    """The rows of each party: each class is divided over its parties in proportion to their sizes."""
    rows: list[list[NDArray[Any]]] = [[] for _ in classes]
    for label in np.unique(y):
        holders = [k for k, assigned in enumerate(classes) if int(label) in assigned]
        if not holders:
            continue
        of_class = rng.permutation(np.flatnonzero(y == label))
        cuts = cut_points(sizes[holders], len(of_class))
        for k, part in zip(holders, np.split(of_class, cuts), strict=True):
            rows[k].append(part)
    return [np.concatenate(parts) for parts in rows]
