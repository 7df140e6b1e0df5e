"""Partitions: how samples are distributed over parties.

A partition is a pure function of labels and a seed to one array of row numbers per party. FedProx distributes a few
classes to each party, in power-law sizes. The operator-splitting paper distributes shards. Natural data have users.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from resolvent.data.partition.division import (
    Labels,
    Partition,
    Rows,
    check_count,
    cut_points,
    divide,
    partition_generator,
)
from resolvent.data.samples import one_per_sample
from resolvent.errors import InputError, shorten

__all__ = [
    "IID",
    "ByUser",
    "Dirichlet",
    "FixedClasses",
    "FixedSizes",
    "GrowingSizes",
    "Partition",
    "PowerLaw",
    "QuantitySkew",
    "Rows",
    "Shards",
    "divide",
]


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


@dataclass(frozen=True)
class IID(Partition):
    """Samples are shuffled and cut into parties of equal size, to within one sample.

    Attributes:
        parties: number of parties.
        total: number of samples to distribute, drawn at random; default: all.

    Raises:
        InputError: ``parties`` is less than 1; when it is used: there are too few samples.

    Example:
        >>> [len(rows) for rows in IID(parties=3)(np.zeros(10), seed=0)]
        [4, 3, 3]
    """

    needs_labels: ClassVar[bool] = False
    parties: Annotated[int, "[1, inf)"] = 10
    total: int | None = None

    @override
    def __call__(self, labels: Labels, seed: int, users: Labels | None = None) -> Rows:
        rows = partition_generator(seed).permutation(len(labels))[:self.total]
        check_count(self, len(rows), self.parties)
        return np.array_split(rows, self.parties)


@dataclass(frozen=True)
class QuantitySkew(Partition):
    """Every party has samples of all classes; sizes are proportional to lognormal(0, sigma) draws.

    Attributes:
        parties: number of parties.
        sigma: standard deviation of the logarithm of the sizes.
        min_samples: minimum number of samples of a party.

    Raises:
        InputError: a number is out of range; when it is used: there are too few samples.

    Example:
        >>> [len(rows) for rows in QuantitySkew(parties=3)(np.zeros(100), seed=0)]
        [16, 13, 71]
    """

    needs_labels: ClassVar[bool] = False
    parties: Annotated[int, "[1, inf)"] = 10
    sigma: Annotated[float, "[0, inf)"] = 1.0
    min_samples: Annotated[int, "[1, inf)"] = 1

    @override
    def __call__(self, labels: Labels, seed: int, users: Labels | None = None) -> Rows:
        minimum = self.parties * self.min_samples
        check_count(self, len(labels), minimum)
        rng = partition_generator(seed)
        sizes = rng.lognormal(0, self.sigma, self.parties)
        cuts = cut_points(sizes, len(labels) - minimum) + self.min_samples * np.arange(1, self.parties)
        return np.split(rng.permutation(len(labels)), cuts)


@dataclass(frozen=True)
class PowerLaw(Partition):
    """FedProx's partition: party u holds the classes u, u+1, ... (modulo their number), in power-law sizes.

    Each party first gets ``min_samples`` samples of each of its classes. The other samples of a class are divided over
    its parties in proportion to lognormal(0, sigma) draws, rounded down, so that a few samples remain unused. With
    ``classes: 1`` every party has one class only, as in the Fed+ papers. Source: FedProx, section 5.1 and C.1, and the
    authors' generator; errata 7.

    Attributes:
        parties: number of parties.
        classes: number of classes of each party.
        min_samples: minimum number of samples that a party has of each of its classes.
        sigma: standard deviation of the logarithm of the relative sizes.
        total: number of samples to distribute, drawn at random; default: all.
        average: average number of samples per party, instead of ``total``. With it, parties have the same sizes in
            federations of any number of parties.

    Raises:
        InputError: a number is out of range, or both totals are given; when it is used: a class has too few samples.

    Example:
        >>> [len(rows) for rows in PowerLaw(parties=3)(np.repeat([0, 1, 2], 100), seed=0)]
        [173, 10, 114]
    """

    parties: Annotated[int, "[1, inf)"] = 1000
    classes: Annotated[int, "[1, inf)"] = 2
    min_samples: Annotated[int, "[1, inf)"] = 5
    sigma: Annotated[float, "[0, inf)"] = 2.0
    total: int | None = None
    average: int | None = None

    def __post_init__(self) -> None:
        if self.total is not None and self.average is not None:
            raise InputError(f"PowerLaw(total={self.total}, average={self.average}): both give the number of samples "
                             "to distribute: give one of them")

    @override
    def __call__(self, labels: Labels, seed: int, users: Labels | None = None) -> Rows:
        labels, rng = one_per_sample(labels, "the labels"), partition_generator(seed)
        total = self.total if self.average is None else self.average * self.parties
        rows = np.arange(len(labels)) if total is None else rng.permutation(len(labels))[:total]
        classes = np.unique(labels)
        if self.classes > len(classes):
            raise InputError(f"PowerLaw(classes={self.classes}) is more than the {len(classes)} classes of the data")
        parts: list[list[NDArray[np.intp]]] = [[] for _ in range(self.parties)]
        for number, label in enumerate(classes):
            holders = [u for u in range(self.parties) if (number - u) % len(classes) < self.classes]
            of_class = rng.permutation(rows[labels[rows] == label])
            surplus = len(of_class) - self.min_samples * len(holders)
            if surplus < 0:
                raise InputError(f"PowerLaw(parties={self.parties}, classes={self.classes}, min_samples="
                                 f"{self.min_samples}): class {shorten(label)} has {len(of_class)} samples, but "
                                 f"{len(holders)} parties need {self.min_samples} each: ask for fewer parties, "
                                 "classes or samples")
            draws = rng.lognormal(0, self.sigma, len(holders))
            sizes = self.min_samples + np.floor(draws / max(draws.sum(), 1e-300) * surplus).astype(int)
            for u, part in zip(holders, np.split(of_class[:sizes.sum()], np.cumsum(sizes)[:-1]), strict=True):
                parts[u].append(part)
        return [np.concatenate(p) for p in parts]


@dataclass(frozen=True)
class Shards(Partition):
    """Samples are sorted by class and cut into parties * per_party shards; each party gets ``per_party`` of them.

    The shards are assigned at random. Source: operator-splitting paper, A.2 (``cut: class``: a party has at most
    ``per_party`` classes) and A.3 (``cut: sorted``: shards and parties of equal size; a shard may contain two classes).

    Attributes:
        parties: number of parties.
        per_party: number of shards of each party.
        cut: ``class`` cuts every class into the same number of shards, ``sorted`` cuts the sorted samples into equal
            shards.
        total: number of samples to distribute, drawn at random; default: all.

    Raises:
        InputError: a number is less than 1; when it is used: there are too few samples for the shards.

    Example:
        >>> [len(rows) for rows in Shards(parties=3, per_party=2)(np.repeat([0, 1, 2], 10), seed=0)]
        [10, 10, 10]
    """

    parties: Annotated[int, "[1, inf)"] = 20
    per_party: Annotated[int, "[1, inf)"] = 6
    cut: Literal["class", "sorted"] = "class"
    total: int | None = None

    @override
    def __call__(self, labels: Labels, seed: int, users: Labels | None = None) -> Rows:
        n_shards = self.parties * self.per_party
        labels, rng = one_per_sample(labels, "the labels"), partition_generator(seed)
        rows = rng.permutation(len(labels))[:self.total]
        check_count(self, len(rows), n_shards)
        rows = rows[np.argsort(labels[rows], kind="stable")]
        shards = np.array_split(rows, n_shards) if self.cut == "sorted" else self._cut_classes(rows, labels[rows])
        assigned = rng.permutation(n_shards).reshape(self.parties, self.per_party)
        return [np.concatenate([shards[i] for i in numbers]) for numbers in assigned]

    def _cut_classes(self, rows: NDArray[np.intp], labels: Labels) -> Rows:
        """Shards of one class each, from rows that are sorted by their labels."""
        n_shards = self.parties * self.per_party
        groups = np.split(rows, np.flatnonzero(np.diff(np.unique(labels, return_inverse=True)[1])) + 1)
        if n_shards % len(groups):
            raise InputError(f"Shards(parties={self.parties}, per_party={self.per_party}) makes {n_shards} shards, "
                             f"which {len(groups)} classes cannot share equally: choose a multiple of "
                             f"{len(groups)}, or cut: sorted")
        smallest = min(map(len, groups))
        if smallest < n_shards // len(groups):
            raise InputError(f"Shards: a class of {smallest} samples cannot be cut into "
                             f"{n_shards // len(groups)} shards: ask for fewer parties or shards")
        return [shard for group in groups for shard in np.array_split(group, n_shards // len(groups))]


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Each class is divided over the parties by a draw from a symmetric Dirichlet distribution.

    The smaller the concentration, the fewer parties hold a class. The draw is repeated, at most 1,000 times, until
    every party has ``min_samples`` samples. Source: Hsu, Qi and Brown (2019), in the form by class of Yurochkin et al.
    (2019).

    Attributes:
        parties: number of parties.
        concentration: parameter of the Dirichlet distribution; large values approach IID parties.
        min_samples: minimum number of samples of a party.

    Raises:
        InputError: a number is out of range; when it is used: no draw gives every party ``min_samples`` samples.

    Example:
        >>> labels = np.repeat([0, 1], 100)
        >>> parties = Dirichlet(parties=2, concentration=0.5)(labels, seed=0)
        >>> [np.bincount(labels[rows], minlength=2).tolist() for rows in parties]
        [[6, 49], [94, 51]]
    """

    parties: Annotated[int, "[1, inf)"] = 10
    concentration: Annotated[float, "(0, inf)"] = 0.5
    min_samples: Annotated[int, "[1, inf)"] = 1

    @override
    def __call__(self, labels: Labels, seed: int, users: Labels | None = None) -> Rows:
        labels, rng = one_per_sample(labels, "the labels"), partition_generator(seed)
        check_count(self, len(labels), self.parties * self.min_samples)
        classes = [rng.permutation(np.flatnonzero(labels == c)) for c in np.unique(labels)]
        for _ in range(1000):
            shares = rng.dirichlet(np.full(self.parties, self.concentration), len(classes))
            cut = [np.split(rows, cut_points(share, len(rows))) for rows, share in zip(classes, shares, strict=True)]
            parties = [np.concatenate(parts) for parts in zip(*cut, strict=True)]
            if min(map(len, parties)) >= self.min_samples:
                return parties
        raise InputError(f"Dirichlet(parties={self.parties}, concentration={self.concentration}, "
                         f"min_samples={self.min_samples}): in each of 1,000 draws a party had fewer than "
                         f"{self.min_samples} of the {len(labels)} samples: "
                         "ask for fewer parties, a larger concentration or smaller min_samples")


@dataclass(frozen=True)
class ByUser(Partition):
    """One party per user of the data: a speaking role, an account, a writer. Parties are sorted by name.

    Attributes:
        parties: number of users, drawn at random from those with enough samples; default: all of them.
        min_samples: minimum number of samples of a user; users with fewer are left out.

    Raises:
        InputError: a number is less than 1; when it is used: the data have no users, or too few with enough samples.

    Example:
        >>> users = np.array(["b", "a", "b", "a"])
        >>> [rows.tolist() for rows in ByUser()(np.zeros(4), seed=0, users=users)]
        [[1, 3], [0, 2]]
    """

    parties: Annotated[int | None, "[1, inf)"] = None
    min_samples: Annotated[int, "[1, inf)"] = 1
    parties_are_users: ClassVar[bool] = True
    needs_labels: ClassVar[bool] = False

    @override
    def __call__(self, labels: Labels, seed: int, users: Labels | None = None) -> Rows:
        if users is None:
            raise InputError("ByUser: these data have no users: choose another partition, such as dirichlet")
        number = np.unique(one_per_sample(users, "the users"), return_inverse=True)[1]
        rows = np.split(np.argsort(number, kind="stable"), np.cumsum(np.bincount(number))[:-1])
        rows = [r for r in rows if len(r) >= self.min_samples]
        if len(rows) < (self.parties or 1):
            raise InputError(f"ByUser(parties={self.parties}, min_samples={self.min_samples}): only {len(rows)} users "
                             f"have {self.min_samples} samples or more: ask for fewer parties or samples")
        if self.parties is None:
            return rows
        return [rows[i] for i in sorted(partition_generator(seed).permutation(len(rows))[:self.parties])]
