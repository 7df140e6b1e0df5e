"""Folds: a partition of each party's rows, of which each part is tested once."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.data.federated import SPLITS, FederatedData, consecutive_splits
from resolvent.errors import InputError

_FOLDS, _FEW_ROWS = 5, 20_000  # by default, tables with fewer rows have folds
_STREAM = 0xF01D  # the random numbers of folds differ from those of splits


class Fold(NamedTuple):
    """The samples, split so that the rows of one fold are tested.

    Attributes:
        data: the samples with this split.
        rows: [total] the row that each sample had before.
        is_repeated: [total] whether a sample is a test row of another fold, and only fills this one up to the number of
            test rows that all folds have.
    """

    data: FederatedData
    rows: NDArray[np.intp]
    is_repeated: NDArray[np.bool_]


class PartyFold(NamedTuple):
    """The rows of a party, split so that those of one fold are tested.

    Attributes:
        order: [n] positions of its training, validation and test rows.
        sizes: numbers of training, validation and test rows.
        is_repeated: [n] see ``Fold``.
    """

    order: NDArray[np.intp]
    sizes: tuple[int, int, int]
    is_repeated: NDArray[np.bool_]


def folds_of_table(rows: Sequence[int]) -> int:
    """Five for a table with fewer than 20,000 rows, of which a site has at least five; otherwise one.

    Args:
        rows: the number of rows of each site.
    """
    return _FOLDS if sum(rows) < _FEW_ROWS and max(rows, default=0) >= _FOLDS else 1


def default_folds(data: Any) -> int:
    """``folds_of_table`` if the data are a table whose rows can be tested once each; otherwise one."""
    if not isinstance(data, FederatedData) or data.unencoded is None:
        return 1
    folds = folds_of_table(np.sum([data.sizes(split) for split in SPLITS], axis=0).tolist())
    try:
        check_folds(data, folds)
    except InputError:
        return 1
    return folds


def check_folds(data: Any, folds: int) -> None:
    """Raise an error if the rows of these data cannot be tested once each.

    Raises:
        InputError: the data are no samples or are on the disk, the source of the data has chosen the test rows, no
            party has as many rows as there are folds, or none has test rows.
    """
    if not isinstance(data, FederatedData):
        raise InputError(f"folds: {folds}: only samples can be divided into folds, and prices, which have an order in "
                         "time, and problems have none: use folds: 1")
    if not data.is_in_memory:
        raise InputError(f"folds: {folds}: the data are on the disk, where their split is fixed: use folds: 1, or data "
                         "in memory")
    if "test" in data.fixed:
        raise InputError(f"folds: {folds}: the test rows of {data.name} are fixed: they come from the source of the "
                         "data, such as other writers or later days, and folds would train on them: use folds: 1")
    largest = int(np.sum([data.sizes(split) for split in SPLITS], axis=0).max())
    if largest < folds:
        raise InputError(f"folds: {folds}: the largest party has {largest} rows: use at most as many folds")
    if not data.sizes("test").any():
        raise InputError(f"folds: {folds}: no party has test rows: set a share for testing in the data")


def fold_numbers(labels: NDArray[np.integer] | None, rows: int, folds: int,
                 rng: np.random.Generator) -> NDArray[np.intp]:
    """The fold in which each row of a party is tested.

    Every fold has floor or ceil(rows / folds) rows, and of each class floor or ceil of its share, so that the shares of
    the classes differ as little as possible between training and test rows.

    Args:
        labels: [n] class of each row; None for regression.
        rows: n.
        folds: number of folds.
        rng: draws the folds.

    >>> fold_numbers(np.array([0, 0, 0, 1, 1, 1]), 6, 3, np.random.default_rng(0)).tolist()
    [1, 2, 0, 0, 2, 1]
    """
    order = rng.permutation(rows)
    if labels is not None:
        order = order[np.argsort(labels[order], kind="stable")]
    numbers = np.empty(rows, np.intp)
    numbers[order] = (np.arange(rows) + rng.integers(folds)) % folds
    return numbers


def fold_sizes(rows: int, folds: int, train: int, validation: int) -> tuple[int, int, int]:
    """The numbers of training, validation and test rows of a party in each fold.

    Args:
        rows: its number of rows.
        train: its number of training rows in the split of the data.
        validation: its number of validation rows in that split.
    """
    test = -(-rows // folds) if rows > 1 else 0
    others = rows - test
    validated = min(round(others * validation / max(train + validation, 1)), max(others - 1, 0))
    return others - validated, validated, test


def stream_of_party(seed: int, party: int) -> tuple[int, ...]:
    """The numbers from which the folds of a party follow in a simulation."""
    return _STREAM, seed, party


def stream_of_secret(secret: bytes) -> tuple[int, ...]:
    """The numbers from which the folds of a site follow, which nobody else knows."""
    return _STREAM, *np.frombuffer(secret, np.uint32).tolist()


def fold_of_party(labels: NDArray[np.integer] | None, rows: int, train: int, validation: int, fold: int, folds: int,
                  stream: Sequence[int]) -> PartyFold:
    """Split the rows of a party so that those of one fold are its test rows, see ``split_fold``.

    Args:
        labels: [n] class of each row, whose shares are kept in every fold; None: they are not.
        rows: n.
        train: its number of training rows in the split of the data.
        validation: its number of validation rows in that split.
        stream: numbers from which the folds follow.
    """
    numbers = fold_numbers(labels, rows, folds, np.random.default_rng(stream))
    of_fold, others = np.flatnonzero(numbers == fold), np.flatnonzero(numbers != fold)
    others = np.random.default_rng([*stream, fold]).permutation(others)
    sizes = fold_sizes(rows, folds, train, validation)
    filled = sizes[2] - len(of_fold)
    if filled < 0:  # the only row of a party
        of_fold, others, filled = of_fold[:0], np.arange(rows), 0
    fill, others = others[:filled], others[filled:]
    return PartyFold(np.concatenate([others, of_fold, fill]), sizes, np.arange(rows) >= rows - filled)


def split_fold(data: FederatedData, fold: int, folds: int, seed: int) -> Fold:
    """Split the samples of every party so that the rows of one fold are its test rows.

    Over all folds, each row of a party is tested once. The other rows of a fold are divided at random into training and
    validation rows in the ratio of the data. All folds have the same numbers of rows: where a party's rows cannot be
    divided equally, a smaller fold is filled up with a row of another fold, whose prediction is not counted. A party
    with one row has no test row. A table is encoded again, by an encoding that is fitted to the training rows of this
    fold.

    Args:
        data: samples in memory.
        fold: number of the fold, from 0.
        folds: number of folds, at least 2.
        seed: seed of the folds. A party's folds depend only on the seed, its number and its labels.

    Example:
        >>> data = rv.datasets.digits(parties=2)
        >>> splits = [split_fold(data, fold, 5, seed=0) for fold in range(5)]
        >>> tested = [s.rows[o:o + n][~s.is_repeated[o:o + n]] for s in splits
        ...           for o, n in zip(s.data.splits["test"].offset, s.data.sizes("test"))]
        >>> sorted(np.concatenate(tested)) == list(range(data.total))
        True
    """
    lengths = np.zeros((len(SPLITS), len(data)), np.int32)
    orders, repeated = [], []
    for k in range(len(data)):
        rows = np.sort(data.rows_of(k))  # folds do not depend on the split of the data
        labels = data.y[rows] if data.task == "classification" else None
        train, validation = (int(data.splits[s].length[k]) for s in ("train", "validation"))
        of_party = fold_of_party(labels, len(rows), train, validation, fold, folds, stream_of_party(seed, k))
        lengths[:, k] = of_party.sizes
        orders.append(rows[of_party.order])
        repeated.append(of_party.is_repeated)
    rows = np.concatenate(orders)
    split = data.reordered(rows, consecutive_splits(lengths))
    if split.unencoded is not None:
        x, encoding = split.unencoded.encode(split.splits["train"].rows)
        split = replace(split, x=x, encoding=encoding)
    return Fold(split, rows, np.concatenate(repeated))
