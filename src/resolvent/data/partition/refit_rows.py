"""The samples on which a chosen method is trained again: those of all splits."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from resolvent.data.federated import SPLITS, FederatedData, Split
from resolvent.errors import InputError, quote

__all__ = ["encode_by_all_rows", "join_splits"]


def join_splits(data: FederatedData, held_out: Sequence[str] = ()) -> FederatedData:
    """The same samples with the samples of all splits as training samples, party by party.

    The weights of samples get the mean 1 over the new training samples.

    Args:
        data: the samples.
        held_out: the splits that stay as they are, such as ``validation``.

    Raises:
        InputError: the data are on the disk, and the samples would have to be written in another order.

    Example:
        >>> data = rv.datasets.digits(parties=2)
        >>> join_splits(data).sizes("train").tolist() == [len(data.x) // 2 + 1, len(data.x) // 2]
        True
    """
    joined = ["train", *(s for s in SPLITS if s not in ("train", *held_out))]
    order, lengths = [*joined, *(s for s in SPLITS if s in held_out)], np.zeros((len(SPLITS), len(data)), np.int32)
    lengths[0] = sum(data.sizes(s) for s in joined)
    for s in held_out:
        lengths[SPLITS.index(s)] = data.sizes(s)
    blocks = [(int(data.splits[s].offset[k]), int(data.splits[s].length[k])) for k in range(len(data)) for s in order]
    rows = np.concatenate([np.arange(first, first + length) for first, length in blocks])
    ends = np.cumsum(lengths.sum(axis=0))
    offsets = ends - lengths.sum(axis=0) + np.cumsum(np.vstack([np.zeros_like(lengths[:1]), lengths[:-1]]), axis=0)
    splits = {s: Split(offsets[i].astype(np.int32), lengths[i]) for i, s in enumerate(SPLITS)}
    if (rows == np.arange(len(rows))).all():
        again = replace(data, splits=splits, weights=None, unencoded=None)
    elif isinstance(data.x, np.ndarray):
        again = replace(data, x=data.x[rows], y=data.y[rows], splits=splits, weights=None, unencoded=None)
    else:
        raise InputError(f"the data {quote(data.name)} are on the disk, where the order of their samples is fixed, and "
                         "this method needs another one: load them into memory")
    return again if data.weights is None else again.with_weights(data.weights[rows])


def encode_by_all_rows(data: FederatedData) -> FederatedData:
    """The same samples with the same splits, by an encoding that is fitted to all rows instead of the training rows.

    Means, deviations, ranges and imputed values change; data without a fitted encoding stay as they are.
    """
    if data.unencoded is None:
        return data
    x, encoding = data.unencoded.encode(np.ones(len(data.y), bool))
    return replace(data, x=x, encoding=encoding)
