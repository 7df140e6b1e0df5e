"""Partitions with fixed numbers of samples or of classes for each party."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from typing_extensions import override

from resolvent.data.partition.division import Labels, Partition, Rows, check_count, cut_points, partition_generator
from resolvent.data.samples import one_per_sample
from resolvent.errors import InputError, shorten


@dataclass(frozen=True)
class FixedSizes(Partition):
    """Samples are shuffled, and party k gets ``sizes[k]`` of them; the others are not used.

    Attributes:
        sizes: number of samples of each party.

    Raises:
        InputError: ``sizes`` is empty, or a size is less than 1; when it is used: there are too few samples.

    Example:
        >>> [len(rows) for rows in FixedSizes((3, 5))(np.zeros(10), seed=0)]
        [3, 5]
    """

    needs_labels: ClassVar[bool] = False
    sizes: tuple[int, ...] = (100,) * 10

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1:
            raise InputError(f"FixedSizes(sizes={shorten(self.sizes)}) must have one positive number per party")

    @override
    def __call__(self, labels: Labels, seed: int, users: Labels | None = None) -> Rows:
        check_count(self, len(labels), sum(self.sizes))
        rows = partition_generator(seed).permutation(len(labels))[:sum(self.sizes)]
        return np.split(rows, np.cumsum(self.sizes)[:-1])


@dataclass(frozen=True)
class GrowingSizes(Partition):
    """Samples are shuffled; the size of party k = 1, ..., N is proportional to k, to k^2 or to e^k.

    Attributes:
        parties: N, the number of parties.
        growth: ``linear``, ``square`` or ``exponential``.
        min_samples: minimum number of samples of a party.

    Raises:
        InputError: ``parties`` or ``min_samples`` is less than 1; when it is used: there are too few samples.

    Example:
        >>> [len(rows) for rows in GrowingSizes(parties=3, growth="square")(np.zeros(140), seed=0)]
        [11, 40, 89]
    """

    needs_labels: ClassVar[bool] = False
    parties: Annotated[int, "[1, inf)"] = 10
    growth: Literal["linear", "square", "exponential"] = "linear"
    min_samples: Annotated[int, "[1, inf)"] = 1

    @override
    def __call__(self, labels: Labels, seed: int, users: Labels | None = None) -> Rows:
        check_count(self, len(labels), self.parties * self.min_samples)
        k = np.arange(1, self.parties + 1)
        shares = {"linear": k, "square": k**2, "exponential": np.exp(k - self.parties)}[self.growth]
        cuts = cut_points(shares, len(labels) - self.parties * self.min_samples) + self.min_samples * k[:-1]
        return np.split(partition_generator(seed).permutation(len(labels)), cuts)


@dataclass(frozen=True)
class FixedClasses(Partition):
    """Every party has samples of the same number of classes; a class is divided equally among its parties.

    The classes of successive parties are successive in a random cyclic order, so that every class has about the same
    number of parties. Classes that no party has, if there are few parties, are not used.

    Attributes:
        parties: number of parties.
        classes: number of classes of each party.

    Raises:
        InputError: a number is less than 1; when it is used: the data have too few classes, or a class too few samples.

    Example:
        >>> labels = np.array([0, 0, 1, 1, 2, 2])
        >>> [labels[rows].tolist() for rows in FixedClasses(parties=3, classes=2)(labels, seed=0)]
        [[0, 1], [1, 2], [0, 2]]

    References:
        McMahan, Moore, Ramage, Hampson, Aguera y Arcas: Communication-Efficient Learning of Deep Networks from
        Decentralized Data, AISTATS 2017, section 3: the pathological distribution, here without shards.
    """

    parties: Annotated[int, "[1, inf)"] = 10
    classes: Annotated[int, "[1, inf)"] = 2

    @override
    def __call__(self, labels: Labels, seed: int, users: Labels | None = None) -> Rows:
        labels, rng = one_per_sample(labels, "the labels"), partition_generator(seed)
        names = np.unique(labels)
        if self.classes > len(names):
            raise InputError(f"{self}: the data have {len(names)} classes: ask for fewer classes")
        order = rng.permutation(len(names))
        chosen = [order[np.arange(k * self.classes, (k + 1) * self.classes) % len(names)] for k in range(self.parties)]
        parts: list[Rows] = [[] for _ in chosen]
        for number, value in enumerate(names):
            holders = [k for k, classes in enumerate(chosen) if number in classes]
            rows = rng.permutation(np.flatnonzero(labels == value))
            if len(rows) < len(holders):
                raise InputError(f"{self}: the class {shorten(value)} has {len(rows)} samples for {len(holders)} "
                                 "parties: ask for fewer parties or classes")
            for k, part in zip(holders, np.array_split(rows, max(len(holders), 1)), strict=False):
                parts[k].append(part)
        return [np.concatenate(rows) for rows in parts]
