"""Other splits of the same samples: training and validation samples drawn again, or joined for a refit."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.data.federated import SPLITS, FederatedData, consecutive_splits
from resolvent.data.samples import split_order
from resolvent.errors import InputError, quote


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
    samples of another. So do validation samples that the source of the data has chosen. A table keeps its encoding,
    whose means and deviations come from the training rows of the first split; the encoding does not depend on labels.

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
    rows = np.arange(data.total)
    for k in range(len(data)):
        drawn = data.rows_of(k, "train", *{"validation"}.difference(data.fixed))
        rows[drawn] = drawn[split_order(len(drawn), first_party + k, seed)]
    return Resplit(data.reordered(rows), rows)


def join_splits(data: FederatedData, held_out: Sequence[str] = ()) -> FederatedData:
    """The same samples with the samples of all splits as training samples, party by party.

    The weights of samples get the mean 1 over the new training samples.

    Args:
        held_out: the splits that stay as they are, such as ``validation``.

    Example:
        >>> data = rv.datasets.digits(parties=2)
        >>> join_splits(data).sizes("train").tolist() == [data.total // 2 + 1, data.total // 2]
        True
    """
    joined = [s for s in SPLITS if s == "train" or s not in held_out]
    staying = [s for s in SPLITS if s not in joined]
    rows = np.concatenate([data.rows_of(k, *joined, *staying) for k in range(len(data))])
    lengths = np.zeros((len(SPLITS), len(data)), np.int32)
    lengths[0] = sum(data.sizes(s) for s in joined)
    for s in staying:
        lengths[SPLITS.index(s)] = data.sizes(s)
    splits, data = consecutive_splits(lengths), replace(data, unencoded=None)
    if (rows == np.arange(len(rows))).all():
        again = replace(data, splits=splits, weights=None)
        return again if data.weights is None else again.with_weights(data.weights)
    if data.is_in_memory:
        return data.reordered(rows, splits)
    raise InputError(f"the data {quote(data.name)} are on the disk, where the order of their samples is fixed, and "
                     "this method needs another one: load them into memory")


def encode_by_all_rows(data: FederatedData) -> FederatedData:
    """The same samples with the same splits, by an encoding that is fitted to all rows instead of the training rows.

    Means, deviations, ranges and imputed values change; data without a fitted encoding stay as they are.
    """
    if data.unencoded is None:
        return data
    x, encoding = data.unencoded.encode(np.arange(data.total))
    return replace(data, x=x, encoding=encoding)
