"""Weights of samples in the loss: the user's own weights, or weights that balance the classes.

With weights s_i a party's objective is f_k(w) = (1/n_k) sum_i s_i loss_i(w). The weights have the mean 1 over all
training samples, so the objective of the federation, sum_k (n_k/n) f_k, is the weighted mean (sum_i s_i loss_i) /
(sum_i s_i) over the samples of all parties: as if sample i occurred s_i times. The gradient of a minibatch is the mean
of s_i times the gradient of loss_i, an unbiased estimate of the full gradient.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from resolvent.errors import InputError, nearest, quote, shorten

if TYPE_CHECKING:
    from resolvent.data.federated import FederatedData

__all__ = ["ClassWeights", "class_weighted", "normalized_weights", "training_rows", "weights_of_labels"]

Balance = Literal["balanced", "balanced_per_party"]
ClassWeights = Balance | Mapping[str, float]


def normalized_weights(weights: Any, data: "FederatedData") -> NDArray[np.float32]:
    """[total] weights with the mean 1 over the training samples of all parties.

    Args:
        weights: [total] in the order of the data's rows.
        data: the data.

    Raises:
        InputError: a row has no weight, a weight is negative or not finite, or all training samples have weight 0.
    """
    numbers = np.asarray(weights)
    try:
        values = numbers.astype(np.float64) if numbers.dtype.kind in "biufO" else None
    except (ValueError, TypeError, OverflowError):
        values = None
    if values is None:
        raise InputError(f"weights of samples must be numbers, and they are of type {numbers.dtype}")
    if values.shape != (len(data.x),):
        raise InputError(f"there are weights of shape {values.shape} for {len(data.x)} samples: give one per sample")
    wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if wrong.size:
        raise InputError(f"the weight of row {wrong[0]} is {values[wrong[0]]}: weights must be finite and not negative")
    total = values[training_rows(data)].mean()
    if not total > 0:
        raise InputError("all training samples have weight 0: give some of them a positive weight")
    if values.max() / total > np.finfo(np.float32).max:
        raise InputError(f"the weight of row {values.argmax()}, {values.max():g}, is more than 3.4e38 times the mean "
                         "weight of the training samples: correct it")
    result: NDArray[np.float32] = (values / total).astype(np.float32)
    return result


def training_rows(data: "FederatedData") -> NDArray[np.intp]:
    """The rows of all parties' training samples, party by party."""
    split = data.splits["train"]
    return np.concatenate([np.arange(first, first + n) for first, n in zip(split.offset, split.length, strict=True)])


def class_weighted(data: "FederatedData", weights: ClassWeights) -> NDArray[np.float32]:
    """[total] weights by class, times the weights that the data have already.

    Args:
        data: the data.
        weights: ``balanced``, ``balanced_per_party``, or the weight of each class, by name.

    Raises:
        InputError: the data are for regression or on the disk, or a class does not exist or has no weight.
    """
    if data.task != "classification" or not isinstance(data.y, np.ndarray):
        kind = "for regression" if data.task == "regression" else "on the disk"
        raise InputError(f"class_weight: it is for classes of data in memory, and the data {quote(data.name)} are "
                         f"{kind}: use weights of samples, or leave it out")
    labels = data.y.astype(np.int64)
    samples = np.ones(len(labels)) if data.weights is None else data.weights.astype(np.float64)
    if isinstance(weights, Mapping):
        return normalized_weights(samples * _named(weights, data.classes)[labels], data)
    if weights not in get_args(Balance):
        raise InputError(f"class_weight: {quote(weights)} is not known: use {', '.join(get_args(Balance))}, or a "
                         "weight for each class")
    owner = np.zeros(len(labels), np.int64)
    if weights == "balanced_per_party":
        for split in data.splits.values():
            for k, (first, n) in enumerate(zip(split.offset, split.length, strict=True)):
                owner[first:first + n] = k
    rows = training_rows(data)
    totals = np.zeros((owner.max() + 1, len(data.classes)))
    np.add.at(totals, (owner[rows], labels[rows]), samples[rows])
    occurring = (totals > 0).sum(axis=1, keepdims=True)
    factors = np.divide(totals.sum(axis=1, keepdims=True), occurring * totals, out=np.ones_like(totals),
                        where=totals > 0)  # a class without training samples has the factor 1
    return normalized_weights(samples * factors[owner, labels], data)


def weights_of_labels(labels: NDArray[np.integer], classes: tuple[str, ...],
                      weights: Literal["balanced"] | Mapping[str, float]) -> NDArray[np.float64]:
    """[n] the weight of each sample by its class.

    Args:
        labels: [n] class numbers.
        classes: the classes' names; empty for regression.
        weights: ``balanced``, with which every class that occurs counts the same, or the weight of each class, by name.

    Raises:
        InputError: there are no classes, a class does not exist or has no weight, or no sample has a positive weight.
    """
    if not classes:
        raise InputError("class_weight: it is for classes, and the data are for regression: leave it out")
    if isinstance(weights, Mapping):
        of_labels: NDArray[np.float64] = _named(weights, classes)[labels]
        if not (np.isfinite(of_labels).all() and (of_labels >= 0).all() and of_labels.any()):
            raise InputError(f"class_weight: {quote(weights)} must be finite numbers that are not negative, and the "
                             "class of at least one row must have a positive one")
        return of_labels
    if weights != "balanced":
        raise InputError(f"class_weight: {quote(weights)} is not known: use balanced, or a weight for each class")
    counts = np.bincount(labels, minlength=len(classes))
    result: NDArray[np.float64] = len(labels) / (np.count_nonzero(counts) * counts[labels])
    return result


def _named(weights: Mapping[str, float], classes: tuple[str, ...]) -> NDArray[np.float64]:
    """[classes] the weights in the order of the classes."""
    named = {str(name): value for name, value in weights.items()}
    for name in named:
        if name not in classes:
            raise InputError(f"class_weight: there is no class {quote(name)}; there are {shorten(', '.join(classes))}"
                             f"{nearest(name, classes)}")
    missing = [name for name in classes if name not in named]
    if missing:
        raise InputError(f"class_weight: class {quote(missing[0])} has no weight: give one for every class")
    return np.array([float(named[name]) for name in classes])
