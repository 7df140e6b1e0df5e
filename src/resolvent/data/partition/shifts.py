"""Feature shifts: changes of some parties' inputs, so that parties see the same classes differently."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Annotated, Any

import jax
import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from resolvent.arguments import CheckedArguments
from resolvent.data.federated import FederatedData
from resolvent.errors import InputError, nearest, quote, shorten
from resolvent.math.tree import named_leaves

__all__ = ["LaplaceNoise", "Negative", "OnInput", "Shift"]


@dataclass(frozen=True)
class Shift(CheckedArguments, ABC):
    """A change of some parties' inputs, which are images in [0, 1]."""

    @abstractmethod
    def __call__(self, data: FederatedData, seed: int) -> FederatedData:
        """The same samples with changed inputs, and notes that name the changed parties."""


@dataclass(frozen=True)
class Negative(Shift):
    """The last parties' images are inverted, x -> 1 - x: the MNIST-robust data set.

    Source: Fed+ (newest notation), section 5.1: a share of 0.1 for 10 parties, 0.2 for 50.

    Attributes:
        share: share of the parties with inverted images, rounded to the nearest number of parties.

    Raises:
        InputError: ``share`` lies outside [0, 1].

    Example:
        >>> data = rv.datasets.digits(parties=2)
        >>> rv.shifts.Negative(0.5)(data, seed=0).notes
        ('party 1 is an outlier: its images are inverted',)
    """

    share: Annotated[float, "[0, 1]"] = 0.1

    @override
    def __call__(self, data: FederatedData, seed: int) -> FederatedData:
        x, first = _images(data).copy(), len(data) - round(self.share * len(data))
        for k in range(first, len(data)):
            rows = data.rows_of(k)
            x[rows] = 1 - x[rows]
        return replace(data, x=x).with_notes(*(f"{name} is an outlier: its images are inverted"
                                               for name in data.parties[first:]))


@dataclass(frozen=True)
class LaplaceNoise(Shift):
    """Laplacian noise on each party's images of a few classes, drawn for each party: the MNIST-personal data set.

    Source: Fed+ (newest notation), section 5.1, which adds noise to the robust variant and does not state its scale.

    Attributes:
        classes: number of classes with noise, for each party.
        scale: scale of the Laplace distribution, in units of the range from black to white.
        inner: a shift that is applied before; None: no other shift.

    Raises:
        InputError: ``classes`` or ``scale`` is negative; when it is used: the data have fewer classes.

    Example:
        >>> data = rv.datasets.digits(parties=2)
        >>> rv.shifts.LaplaceNoise(classes=1)(data, seed=0).notes
        ('party 0 has noise on 1', 'party 1 has noise on 1')
    """

    classes: Annotated[int, "[0, inf)"] = 2
    scale: Annotated[float, "[0, inf)"] = 0.5
    inner: Shift | None = None

    @override
    def __call__(self, data: FederatedData, seed: int) -> FederatedData:
        if data.task != "classification" or self.classes > len(data.classes):
            raise InputError(f"LaplaceNoise(classes={self.classes}) needs at least {self.classes} classes, the data "
                             f"have {len(data.classes)}: choose other data, or fewer classes")
        data = data if self.inner is None else self.inner(data, seed)
        x, notes = _images(data).copy(), []
        for k, name in enumerate(data.parties):
            rng = np.random.default_rng([seed, k, 2**20 + 1])  # independent of the generators of splits and partitions
            noisy = np.sort(rng.permutation(len(data.classes))[:self.classes])
            rows = data.rows_of(k)
            rows = rows[np.isin(data.y[rows], noisy)]
            x[rows] += rng.laplace(0, self.scale, x[rows].shape).astype(x.dtype)
            notes.append(f"{name} has noise on {', '.join(data.classes[c] for c in noisy)}")
        return replace(data, x=x).with_notes(*notes)


@dataclass(frozen=True)
class OnInput(Shift):
    """A shift of one array of inputs that are a structure.

    Attributes:
        inner: the shift.
        name: the name of the array, such as ``image`` or ``meta.scan``.

    Raises:
        InputError: when it is used: there is no input of this name.

    Example:
        >>> x = {"image": np.ones((5, 2)), "age": np.ones(5)}
        >>> data = rv.FederatedData.from_arrays([x, x], [[0, 1, 0, 1, 0]] * 2)
        >>> shifted = rv.shifts.OnInput(rv.shifts.Negative(0.5), "image")(data, seed=0)
        >>> shifted.party(1)[0]["image"].max(), shifted.party(1)[0]["age"].max()
        (np.float64(0.0), np.float64(1.0))
    """

    inner: Shift
    name: str

    @override
    def __call__(self, data: FederatedData, seed: int) -> FederatedData:
        names = [name for name, _ in named_leaves(data.x)]
        if self.name not in names or not self.name:
            raise InputError(f"OnInput(name={quote(self.name)}): there is no such input; there are "
                             f"{shorten(', '.join(names) or 'one array without a name')}{nearest(self.name, names)}")
        leaves, structure = jax.tree.flatten(data.x)
        number = names.index(self.name)
        shifted = self.inner(replace(data, x=leaves[number]), seed)
        leaves[number] = shifted.x
        return replace(shifted, x=jax.tree.unflatten(structure, leaves))


def _images(data: FederatedData) -> NDArray[Any]:
    """The inputs, if they are one array in memory."""
    if not hasattr(data.x, "copy") or isinstance(data.x, dict):
        raise InputError("a shift changes inputs that are one array in memory: use OnInput(shift, name) for one array "
                         "of a structure")
    images: NDArray[Any] = data.x
    return images
