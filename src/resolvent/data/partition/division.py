"""Distribute samples over parties by a partition: the base class of partitions, and ``divide``."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from resolvent.arguments import CheckedArguments, checked
from resolvent.data.federated import FederatedData, Task
from resolvent.errors import InputError, check_range

__all__ = ["Labels", "Partition", "Rows", "check_count", "cut_points", "divide", "partition_generator"]

Rows = list[NDArray[np.intp]]
Labels = NDArray[Any]


@dataclass(frozen=True)
class Partition(CheckedArguments, ABC):
    """A rule that distributes samples over parties.

    Attributes:
        parties_are_users: whether each party is a user of the data, whose name it gets.
    """

    parties_are_users: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, labels: Labels, seed: int, users: Labels | None = None) -> Rows:
        """The rows of each party: disjoint, and at least one per party.

        Args:
            labels: [n] the samples' labels.
            seed: seed of all random numbers.
            users: [n] the user whom each sample is from, if the data have users.

        Raises:
            InputError: there are too few samples for this number of parties.
        """


@checked
def divide(x: NDArray[Any], y: Labels, partition: Partition, *, users: Labels | None = None,
           names: Sequence[str] | None = None, seed: int = 0,
           task: Task = "classification", classes: list[str] | None = None, validation: float = 0.0, test: float = 0.2,
           name: str = "data", vocabulary: tuple[str, ...] = ()) -> FederatedData:
    """Distribute samples over parties.

    Args:
        x: [n, ...] inputs; they are copied once, in the order of the parties.
        y: [n] labels; for classification the numbers 0, 1, ... of ``classes``.
        partition: how samples are distributed over parties.
        users: [n] the user whom each sample is from, if the data have users.
        names: names of the users 0, 1, ..., if ``users`` are numbers.
        seed: seed of the partition and the split.
        task: classification or regression.
        classes: the classes' names; default: the numbers 0, ..., max(y).
        validation: share of each party's samples for validation.
        test: share of each party's samples for testing.
        name: the name of the data set, for reports.
        vocabulary: the words or characters that the tokens 0, 1, ... stand for, if inputs are sequences of tokens.

    Raises:
        InputError: the partition cannot distribute these samples.

    Example:
        >>> data = rv.partitions.divide(np.eye(60), np.arange(60) % 3, rv.partitions.IID(parties=4))
        >>> (data.sizes("train") + data.sizes("test")).tolist()
        [15, 15, 15, 15]
    """
    check_range("divide", "[0, inf)", seed=seed)
    rows = partition(y, seed, users)
    parties = None
    if users is not None and partition.parties_are_users:
        parties = [str(users[r[0]] if names is None else names[users[r[0]]]) for r in rows]
    # Row numbers are split first, so that inputs are copied once only.
    data = FederatedData.from_arrays(rows, [y[r] for r in rows], parties=parties, task=task, validation=validation,
                                     test=test, seed=seed, name=name)
    labels = y[data.x]
    if task == "classification":
        class_names = tuple(classes) if classes is not None else tuple(str(c) for c in range(int(y.max()) + 1))
        return replace(data, x=x[data.x], y=labels.astype(np.int32), classes=class_names, vocabulary=vocabulary)
    return replace(data, x=x[data.x], vocabulary=vocabulary)


def cut_points(sizes: NDArray[Any], samples: int) -> NDArray[np.intp]:
    """The rows at which ``samples`` rows are cut into parts whose lengths are proportional to ``sizes``."""
    return np.round(np.cumsum(sizes / sizes.sum())[:-1] * samples).astype(np.intp)


def partition_generator(seed: int) -> np.random.Generator:
    """The random numbers of a partition."""
    # The splits' generators are seeded by [seed, party]; the third number makes this one independent of them.
    return np.random.default_rng([seed, 0, 2**20])


def check_count(partition: Partition, samples: int, minimum: int) -> None:
    """Refuse fewer samples than a partition needs.

    Raises:
        InputError: there are fewer than ``minimum`` samples.
    """
    if samples < minimum:
        raise InputError(f"{partition}: {samples} samples are too few, it needs {minimum}: ask for fewer parties")
