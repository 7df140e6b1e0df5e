"""Another split of the same samples into training and validation samples; the test samples stay."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.data.federated import SPLITS, FederatedData
from resolvent.data.samples import split_order

__all__ = ["Resplit", "resplit"]


class Resplit(NamedTuple):
    """The same samples in another order.

    Attributes:
        data: the samples with the new split.
        rows: [total] the row that each sample had before.
    """

    data: FederatedData
    rows: NDArray[np.intp]


def resplit(data: FederatedData, seed: int, *, first_party: int = 0) -> Resplit:
    """Draw the training and the validation samples of every party again, with the same numbers of each.

    Test samples stay test samples: what was chosen with one seed, such as hyperparameters, has not read the test
    samples of another. A table keeps its encoding, whose means and deviations come from the training rows of the first
    split; the encoding does not depend on labels.

    Args:
        data: samples in memory.
        seed: seed of the split. A party's split depends only on the seed, the party's number and its size.
        first_party: number of the first party of the data, if they are some parties of a federation.

    Example:
        >>> data = rv.datasets.digits(parties=2)
        >>> again = resplit(data, seed=1)
        >>> again.data.sizes("train").tolist() == data.sizes("train").tolist()
        True
        >>> bool((again.data.y == data.y[again.rows]).all())
        True
    """
    drawn = [s for s in SPLITS if s != "test"]
    rows = np.arange(len(data.x))
    for k in range(len(data)):
        of_party = np.concatenate([_rows_of(data, k, s) for s in drawn])
        rows[of_party] = of_party[split_order(len(of_party), first_party + k, seed)]
    unencoded = None if data.unencoded is None else data.unencoded.reordered(rows)
    again = replace(data, x=data.x[rows], y=data.y[rows], weights=None, unencoded=unencoded)
    return Resplit(again if data.weights is None else again.with_weights(data.weights[rows]), rows)


def _rows_of(data: FederatedData, party: int, split: str) -> NDArray[np.intp]:
    first = int(data.splits[split].offset[party])
    return np.arange(first, first + int(data.splits[split].length[party]))
