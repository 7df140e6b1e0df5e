"""Feature shift: parties who see the same classes differently."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import numpy as np

from resolvent.data.federated import SPLITS, FederatedData
from resolvent.errors import InputError

__all__ = ["LaplaceNoise", "Negative", "Shift"]


@dataclass(frozen=True)
class Shift(ABC):
    """A change of some parties' inputs, which are images in [0, 1]."""

    @abstractmethod
    def __call__(self, data: FederatedData, seed: int) -> FederatedData:
        """The same samples with changed inputs, and a note that says whose."""


@dataclass(frozen=True)
class Negative(Shift):
    """The last parties' images are inverted: MNIST-robust.

    Source: Fed+ (newest notation), section 5.1: a share of 0.1 for 10 parties, 0.2 for 50.

    Attributes:
        share: of the parties, rounded to the nearest number of them.
    """

    share: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise InputError(f"Negative(share={self.share}) must lie in [0, 1]")

    def __call__(self, data: FederatedData, seed: int) -> FederatedData:
        """1 - x."""
        x, first = data.x.copy(), len(data) - round(self.share * len(data))
        for k in range(first, len(data)):
            rows = _rows(data, k)
            x[rows] = 1 - x[rows]
        return replace(data, x=x).noting(*(f"{name} is an outlier: its images are inverted"
                                           for name in data.parties[first:]))


@dataclass(frozen=True)
class LaplaceNoise(Shift):
    """Every party has Laplacian noise on its images of a few classes of its own: MNIST-personal.

    Source: Fed+ (newest notation), section 5.1, which noises the robust variant and does not give the scale.

    Attributes:
        classes: how many classes, drawn for each party.
        scale: of the Laplace distribution, in units of the whole range from black to white.
        inner: a shift that comes first.
    """

    classes: int = 2
    scale: float = 0.5
    inner: Shift | None = None

    def __post_init__(self) -> None:
        if self.classes < 0 or not self.scale >= 0:
            raise InputError(f"LaplaceNoise(classes={self.classes}, scale={self.scale}) must not be negative")

    def __call__(self, data: FederatedData, seed: int) -> FederatedData:
        """X + noise where the label is one of the party's."""
        if data.task != "classification" or self.classes > len(data.classes):
            raise InputError(f"LaplaceNoise(classes={self.classes}) needs so many classes, the data have "
                             f"{len(data.classes)}")
        data = data if self.inner is None else self.inner(data, seed)
        x, notes = data.x.copy(), []
        for k, name in enumerate(data.parties):
            rng = np.random.default_rng([seed, k, 2**20 + 1])
            chosen = np.sort(rng.permutation(len(data.classes))[:self.classes])
            start = _rows(data, k).start
            rows = start + np.flatnonzero(np.isin(data.y[_rows(data, k)], chosen))
            x[rows] += rng.laplace(0, self.scale, x[rows].shape).astype(x.dtype)
            notes.append(f"{name} has noise on {', '.join(data.classes[c] for c in chosen)}")
        return replace(data, x=x).noting(*notes)


def _rows(data: FederatedData, k: int) -> slice:
    """All rows of a party, whose splits lie side by side."""
    starts = [int(data.splits[s].offset[k]) for s in SPLITS]
    return slice(min(starts), min(starts) + sum(int(data.splits[s].length[k]) for s in SPLITS))
