"""Partitions: who holds which samples. Each is a pure function of labels and a seed to one array of rows per party.

The words are those of the papers: FedProx deals a power law of sizes over a few classes a party, the operator-splitting
paper deals shards, and natural data has its own users.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from resolvent.data.federated import FederatedData, Task
from resolvent.errors import InputError

__all__ = ["IID", "ByUser", "Dirichlet", "Partition", "PowerLaw", "QuantitySkew", "Rows", "Shards", "divide"]

Rows = list[NDArray[np.intp]]
Labels = NDArray[Any]


@dataclass(frozen=True)
class Partition(ABC):
    """A rule by which samples are dealt to parties."""

    @abstractmethod
    def __call__(self, labels: Labels, seed: int, users: Labels | None = None) -> Rows:
        """Each party's rows, disjoint, every party with at least one.

        Args:
            labels: [n] the samples' labels.
            seed: of everything random.
            users: [n] who each sample is from, where the data say so.

        Raises:
            InputError: there are too few samples for so many parties.
        """


@dataclass(frozen=True)
class IID(Partition):
    """Shuffled and cut into parties of equal size (to within one sample).

    Attributes:
        parties: how many parties.
        total: how many samples to deal in all, drawn at random; left out, all of them.
    """

    parties: int = 10
    total: int | None = None

    def __post_init__(self) -> None:
        _at_least(self, parties=1)

    def __call__(self, labels: Labels, seed: int, users: Labels | None = None) -> Rows:
        """Equal parts of a permutation."""
        chosen = _rng(seed).permutation(len(labels))[:self.total]
        _enough(self, len(chosen), self.parties)
        return np.array_split(chosen, self.parties)


@dataclass(frozen=True)
class QuantitySkew(Partition):
    """Samples of all classes alike, sizes in proportion to lognormal(0, sigma) draws.

    Attributes:
        parties: how many parties.
        sigma: standard deviation of the logarithm of the sizes.
        least: samples that every party has at least.
    """

    parties: int = 10
    sigma: float = 1.0
    least: int = 1

    def __post_init__(self) -> None:
        _at_least(self, parties=1, sigma=0, least=1)

    def __call__(self, labels: Labels, seed: int, users: Labels | None = None) -> Rows:
        """A permutation cut at the cumulated shares."""
        _enough(self, len(labels), self.parties * self.least)
        rng = _rng(seed)
        share = rng.lognormal(0, self.sigma, self.parties)
        cuts = _cuts(share, len(labels) - self.parties * self.least) + self.least * np.arange(1, self.parties)
        return np.split(rng.permutation(len(labels)), cuts)


@dataclass(frozen=True)
class PowerLaw(Partition):
    """FedProx's: party u holds the classes u, u+1, ... (modulo their number), in sizes of a lognormal power law.

    Each of a party's classes first gives it ``least`` samples; what is left of a class goes to its holders by
    lognormal(0, sigma) shares, rounded down (so a few samples go to nobody). With ``classes: 1`` every party has one
    digit only, as in the Fed+ papers. Source: FedProx, section 5.1 and C.1, and the authors' generator; errata 7.

    Attributes:
        parties: how many parties.
        classes: how many classes each party holds.
        least: samples that each party has of each of its classes at least.
        sigma: standard deviation of the logarithm of the shares.
        total: how many samples to deal in all, drawn at random; left out, all of them.
        average: how many to deal per party, in place of ``total``: federations of any number of parties then have
            parties of the same sizes.
    """

    parties: int = 1000
    classes: int = 2
    least: int = 5
    sigma: float = 2.0
    total: int | None = None
    average: int | None = None

    def __post_init__(self) -> None:
        _at_least(self, parties=1, classes=1, least=1, sigma=0)
        if self.total is not None and self.average is not None:
            raise InputError(f"PowerLaw(total={self.total}, average={self.average}) says twice how many samples to "
                             "deal: give one of them")

    def __call__(self, labels: Labels, seed: int, users: Labels | None = None) -> Rows:
        """Class by class: ``least`` to each holder, then the shares."""
        rng = _rng(seed)
        total = self.total if self.average is None else self.average * self.parties
        chosen = np.arange(len(labels)) if total is None else rng.permutation(len(labels))[:total]
        found = np.unique(labels)
        if self.classes > len(found):
            raise InputError(f"PowerLaw(classes={self.classes}) is more than the {len(found)} classes there are")
        parts: list[list[NDArray[np.intp]]] = [[] for _ in range(self.parties)]
        for number, label in enumerate(found):
            holders = [u for u in range(self.parties) if (number - u) % len(found) < self.classes]
            rows = rng.permutation(chosen[labels[chosen] == label])
            spare = len(rows) - self.least * len(holders)
            if spare < 0:
                raise InputError(f"PowerLaw(parties={self.parties}, classes={self.classes}, least={self.least}): class "
                                 f"{label!s} has {len(rows)} samples, but {len(holders)} parties are to hold "
                                 f"{self.least} each: ask for fewer parties, classes or samples")
            share = rng.lognormal(0, self.sigma, len(holders))
            sizes = self.least + np.floor(share / max(share.sum(), 1e-300) * spare).astype(int)
            for u, part in zip(holders, np.split(rows[:sizes.sum()], np.cumsum(sizes)[:-1]), strict=True):
                parts[u].append(part)
        return [np.concatenate(p) for p in parts]


@dataclass(frozen=True)
class Shards(Partition):
    """Samples sorted by class and cut into parties * per_party shards, dealt at random, ``per_party`` to each.

    Source: operator-splitting paper, A.2 (``cut: class``: nobody sees more than ``per_party`` classes) and A.3 (``cut:
    sorted``: shards and parties of equal size, of which one may lie across two classes).

    Attributes:
        parties: how many parties.
        per_party: how many shards each party is dealt.
        cut: cut every class into the same number of shards, or the sorted samples into equal ones.
        total: how many samples to deal in all, drawn at random; left out, all of them.
    """

    parties: int = 20
    per_party: int = 6
    cut: Literal["class", "sorted"] = "class"
    total: int | None = None

    def __post_init__(self) -> None:
        _at_least(self, parties=1, per_party=1)

    def __call__(self, labels: Labels, seed: int, users: Labels | None = None) -> Rows:
        """A random deal of the shards."""
        shards = self.parties * self.per_party
        rng = _rng(seed)
        order = rng.permutation(len(labels))[:self.total]
        _enough(self, len(order), shards)
        order = order[np.argsort(labels[order], kind="stable")]
        if self.cut == "sorted":
            cut = np.array_split(order, shards)
        else:
            groups = np.split(order, np.flatnonzero(np.diff(np.unique(labels[order], return_inverse=True)[1])) + 1)
            if shards % len(groups):
                raise InputError(f"Shards(parties={self.parties}, per_party={self.per_party}) makes {shards} shards, "
                                 f"which {len(groups)} classes cannot share equally: choose a multiple of "
                                 f"{len(groups)}, or cut: sorted")
            if min(map(len, groups)) < shards // len(groups):
                raise InputError(f"Shards: a class of {min(map(len, groups))} samples cannot be cut into "
                                 f"{shards // len(groups)} shards: ask for fewer parties or shards")
            cut = [shard for group in groups for shard in np.array_split(group, shards // len(groups))]
        dealt = rng.permutation(shards).reshape(self.parties, self.per_party)
        return [np.concatenate([cut[i] for i in hand]) for hand in dealt]


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Each class is shared by a Dirichlet draw over the parties: the smaller the concentration, the fewer hold it.

    PredrawnCohorts again (at most 1,000 times) until every party has ``least`` samples. Source: Hsu, Qi and Brown (2019), in the
    form by class of Yurochkin et al. (2019).

    Attributes:
        parties: how many parties.
        concentration: of the symmetric Dirichlet distribution; large is IID.
        least: samples that every party has at least.
    """

    parties: int = 10
    concentration: float = 0.5
    least: int = 1

    def __post_init__(self) -> None:
        _at_least(self, parties=1, least=1)
        if not self.concentration > 0:
            raise InputError(f"Dirichlet(concentration={self.concentration}) must be positive")

    def __call__(self, labels: Labels, seed: int, users: Labels | None = None) -> Rows:
        """Class by class, cut at the cumulated shares."""
        _enough(self, len(labels), self.parties * self.least)
        rng = _rng(seed)
        classes = [rng.permutation(np.flatnonzero(labels == c)) for c in np.unique(labels)]
        for _ in range(1000):
            shares = rng.dirichlet(np.full(self.parties, self.concentration), len(classes))
            dealt = [np.split(rows, _cuts(share, len(rows))) for rows, share in zip(classes, shares, strict=True)]
            parts = [np.concatenate(own) for own in zip(*dealt, strict=True)]
            if min(map(len, parts)) >= self.least:
                return parts
        raise InputError(f"Dirichlet(parties={self.parties}, concentration={self.concentration}, least={self.least}): "
                         f"in 1,000 draws some party had fewer than {self.least} of the {len(labels)} samples: ask "
                         "for fewer parties, a larger concentration or a smaller least")


@dataclass(frozen=True)
class ByUser(Partition):
    """The data's own users: speaking roles, accounts, writers.

    Attributes:
        parties: how many users, drawn at random from those with enough samples; left out, all of them.
        least: users with fewer samples are left out.
    """

    parties: int | None = None
    least: int = 1

    def __post_init__(self) -> None:
        _at_least(self, least=1, **({} if self.parties is None else {"parties": 1}))

    def __call__(self, labels: Labels, seed: int, users: Labels | None = None) -> Rows:
        """One party per user, in the order of their names."""
        if users is None:
            raise InputError("ByUser: these data do not say whose each sample is: choose another partition, such as "
                             "dirichlet")
        number = np.unique(users, return_inverse=True)[1]
        rows = np.split(np.argsort(number, kind="stable"), np.cumsum(np.bincount(number))[:-1])
        rows = [r for r in rows if len(r) >= self.least]
        if len(rows) < (self.parties or 1):
            raise InputError(f"ByUser(parties={self.parties}, least={self.least}): only {len(rows)} users have "
                             f"{self.least} samples or more: ask for fewer parties or samples")
        if self.parties is None:
            return rows
        return [rows[i] for i in sorted(_rng(seed).permutation(len(rows))[:self.parties])]


def divide(x: NDArray[Any], y: Labels, partition: Partition, *, users: Labels | None = None,
           names: Sequence[str] | None = None, seed: int = 0,
           task: Task = "classification", classes: list[str] | None = None, validation: float = 0.0, test: float = 0.2,
           name: str = "data", vocabulary: tuple[str, ...] = ()) -> FederatedData:
    """Data of all samples, dealt to parties.

    Args:
        x: [n, ...] inputs; they are copied once, in the order of the parties.
        y: [n] labels; for classification numbers 0, 1, ... of ``classes``.
        partition: who holds which.
        users: [n] whose each sample is, where the data say so.
        names: what the users 0, 1, ... are called, where ``users`` are numbers.
        seed: of the partition and the split.
        task: classification or regression.
        classes: the classes' names; default: the numbers that occur.
        validation: share of each party's samples kept for validation.
        test: share of each party's samples kept for testing.
        name: what the data is, for reports.
        vocabulary: what the tokens 0, 1, ... stand for, where inputs are sequences of tokens.

    Raises:
        InputError: what the partition refuses.
    """
    if seed < 0:
        raise InputError(f"seed={seed} must not be negative: use 0 or more")
    rows = partition(y, seed, users)
    parties = None
    if users is not None and isinstance(partition, ByUser):
        parties = [str(users[r[0]] if names is None else names[users[r[0]]]) for r in rows]
    data = FederatedData.from_arrays(rows, [y[r] for r in rows], parties=parties, task=task, validation=validation,
                                     test=test, seed=seed, name=name)
    labels = y[data.x]
    if task == "classification":
        called = tuple(classes) if classes is not None else tuple(str(c) for c in range(int(y.max()) + 1))
        return replace(data, x=x[data.x], y=labels.astype(np.int32), classes=called, vocabulary=vocabulary)
    return replace(data, x=x[data.x], vocabulary=vocabulary)


def _rng(seed: int) -> np.random.Generator:
    """Apart from the generators of the splits, which begin with the seed and a party's number alone."""
    return np.random.default_rng([seed, 0, 2**20])


def _cuts(share: NDArray[Any], samples: int) -> NDArray[np.intp]:
    """Where to cut so many samples in proportion to the shares."""
    return np.round(np.cumsum(share / share.sum())[:-1] * samples).astype(np.intp)


def _enough(partition: Partition, samples: int, needed: int) -> None:
    if samples < needed:
        raise InputError(f"{partition}: {samples} samples are too few, it needs {needed}: ask for fewer parties")


def _at_least(partition: Partition, **least: float) -> None:
    for key, value in least.items():
        if not getattr(partition, key) >= value:
            raise InputError(f"{type(partition).__name__}({key}={getattr(partition, key)}) must be at least {value}")
