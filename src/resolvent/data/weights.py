"""Weights of samples in the loss: the user's own weights, or weights that balance the classes.

With weights s_i a party's objective is f_k(w) = (1/n_k) sum_i s_i loss_i(w). The weights have the mean 1 over all
training samples, so the objective of the federation, sum_k (n_k/n) f_k, is the weighted mean (sum_i s_i loss_i) /
(sum_i s_i) over the samples of all parties: as if sample i occurred s_i times. The gradient of a minibatch is the mean
of s_i times the gradient of loss_i, an unbiased estimate of the full gradient.
"""

from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from resolvent.errors import InputError, nearest, quote, shorten

Balance = Literal["balanced", "balanced_per_party"]
ClassWeights = Balance | Mapping[str, float]


def normalized_weights(weights: Any, total: int, training: NDArray[np.integer]) -> NDArray[np.float32]:
    """[total] weights with the mean 1 over the training samples of all parties.

    Args:
        weights: [total] in the order of the data's rows.
    """
    numbers = np.asarray(weights)
    try:
        values = numbers.astype(np.float64) if numbers.dtype.kind in "biufO" else None
    except (ValueError, TypeError, OverflowError):
        values = None
    if values is None:
        raise InputError(f"weights of samples must be numbers, and they are of type {numbers.dtype}")
    if values.shape != (total,):
        raise InputError(f"there are weights of shape {values.shape} for {total} samples: give one per sample")
    wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if wrong.size:
        raise InputError(f"the weight of row {wrong[0]} is {values[wrong[0]]}: weights must be finite and not negative")
    mean = values[training].mean()
    if not mean > 0:
        raise InputError("all training samples have weight 0: give some of them a positive weight")
    if values.max() / mean > np.finfo(np.float32).max:
        raise InputError(f"the weight of row {values.argmax()}, {values.max():g}, is more than 3.4e38 times the mean "
                         "weight of the training samples: correct it")
    result: NDArray[np.float32] = (values / mean).astype(np.float32)
    return result


def class_weights(labels: NDArray[np.integer], classes: tuple[str, ...], samples: NDArray[np.floating],
                  groups: NDArray[np.integer], training: NDArray[np.integer],
                  weights: ClassWeights) -> NDArray[Any]:
    """[total] weights by class, times the weights that the samples have already.

    Args:
        labels: [total] class numbers.
        samples: [total] weights of the samples.
        groups: [total] the party of each sample, for weights that balance the classes of each party.
        weights: ``balanced``, ``balanced_per_party``, or the weight of each class, by name.
    """
    if isinstance(weights, Mapping):
        factors = _named(weights, classes)[labels]
        return np.asarray(samples * factors)
    if weights not in get_args(Balance):
        raise InputError(f"class_weight: {quote(weights)} is not known: use {', '.join(get_args(Balance))}, or a "
                         "weight for each class")
    group = groups if weights == "balanced_per_party" else np.zeros(len(labels), np.int64)
    totals = np.zeros((group.max() + 1, len(classes)))
    np.add.at(totals, (group[training], labels[training]), samples[training])
    occurring = (totals > 0).sum(axis=1, keepdims=True)
    factors = np.divide(totals.sum(axis=1, keepdims=True), occurring * totals, out=np.ones_like(totals),
                        where=totals > 0)  # a class without training samples has the factor 1
    return np.asarray(samples * factors[group, labels])


def weights_of_labels(labels: NDArray[np.integer], classes: tuple[str, ...],
                      weights: Literal["balanced"] | Mapping[str, float]) -> NDArray[np.float64]:
    """[n] the weight of each sample by its class.

    With ``balanced``, every class that occurs counts the same.
    """
    if not classes:
        raise InputError("class_weight: it is for classes, and the data are for regression: leave it out")
    if isinstance(weights, str) and weights != "balanced":
        raise InputError(f"class_weight: {quote(weights)} is not known: use balanced, or a weight for each class")
    ones, group = np.ones(len(labels)), np.zeros(len(labels), np.int64)
    of_labels: NDArray[np.float64] = class_weights(labels, classes, ones, group, np.arange(len(labels)), weights)
    if not (np.isfinite(of_labels).all() and (of_labels >= 0).all() and of_labels.any()):
        raise InputError(f"class_weight: {quote(weights)} must be finite numbers that are not negative, and the class "
                         "of at least one row must have a positive one")
    return of_labels


def _named(weights: Mapping[str, float], classes: tuple[str, ...]) -> NDArray[np.float64]:
    named = {str(name): value for name, value in weights.items()}
    for name in named:
        if name not in classes:
            raise InputError(f"class_weight: there is no class {quote(name)}; there are {shorten(', '.join(classes))}"
                             f"{nearest(name, classes)}")
    missing = [name for name in classes if name not in named]
    if missing:
        raise InputError(f"class_weight: class {quote(missing[0])} has no weight: give one for every class")
    return np.array([float(named[name]) for name in classes])
