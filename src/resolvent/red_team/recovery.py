"""When a row comes back: the rule by which attacks that guess rows are judged."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.data.federated import FederatedData
from resolvent.tables.encoding import TableEncoding

TOLERANCE = 0.1  # of the standard deviation of a number
_MIN_GUESSES = 200  # of the guesser from the marginals
_LARGEST_SHARE, _LUCK = 0.1, 1e-3  # of the distance of the nearest guess from the marginals, see below
_BLOCK = 256  # guesses that are compared at a time


class InputScale(NamedTuple):
    """How the inputs of a model are compared.

    Attributes:
        is_number: [d] whether an input is a number; the others are 0 or 1, such as the inputs of a level.
        deviation: [d] standard deviation of the input over the training rows; 1 if it is constant.
    """

    is_number: NDArray[np.bool_]
    deviation: NDArray[np.float64]

    @classmethod
    def of(cls, data: FederatedData) -> "InputScale":
        """The inputs of a site's training rows; without a table, such as of images, all inputs are numbers."""
        x = data.x[data.is_train].reshape(int(data.is_train.sum()), -1).astype(np.float64)
        is_number = np.ones(x.shape[1], bool)
        if isinstance(data.encoding, TableEncoding):
            kinds = [[not column.is_boolean] for column in data.encoding.numbers]
            kinds += [[False] * len(column.features) for column in data.encoding.categories]
            is_number = np.array([*(kind for kinds in kinds for kind in kinds), *[False] * len(data.encoding.marked)])
        deviation = x.std(axis=0)
        return cls(is_number, np.where(deviation > 0, deviation, 1.0))


def recovered_rows(guesses: NDArray[Any], rows: NDArray[Any], scale: InputScale, *,
                   tolerance: float = TOLERANCE) -> NDArray[np.intp]:
    """The rows that come back from guesses.

    A row comes back if one of the guesses meets all of these conditions:

    - every number of the guess is within ``tolerance`` standard deviations of that of the row, and every other input
      is within 1/2 of it, so that rounding gives the row's level;
    - no other row is nearer to the guess, with distances in standard deviations;
    - its distance from the row is at most a share of that of every guess of somebody who knows nothing but the marginal
      distribution of each input, and makes at least as many guesses. The share is 10^(-3/k) with k numbers, and at most
      0.1. So this guesser recovers no row, whatever the table is, and another one, with other random numbers, hardly
      one row in a thousand.

    Args:
        guesses: [G, ...] guesses of the inputs of rows; those with a number that is not finite do not count.
        rows: [n, ...] the inputs of the rows.
        tolerance: in standard deviations.

    Returns:
        The positions of the rows, in ascending order.

    Example:
        >>> rows = np.random.default_rng(0).normal(size=(20, 6))
        >>> scale = InputScale(np.ones(6, bool), np.ones(6))
        >>> recovered_rows(rows[[3, 5]] + 0.01, rows, scale).tolist()
        [3, 5]
    """
    true = rows.reshape(len(rows), -1).astype(np.float64)
    tried = guesses.reshape(len(guesses), true.shape[1]).astype(np.float64)
    tried = tried[np.isfinite(tried).all(axis=1)]
    if not len(tried):
        return np.zeros(0, np.intp)
    rng = np.random.default_rng(0)
    count = max(len(tried), _MIN_GUESSES)
    by_chance = np.stack([rng.choice(column, count) for column in true.T], axis=1)
    by_chance += scale.is_number * tolerance * scale.deviation * rng.normal(size=by_chance.shape)
    nearest_by_chance, _ = _matches(by_chance, true, scale, tolerance)
    nearest, matched = _matches(tried, true, scale, tolerance)
    share = min(_LARGEST_SHARE, _LUCK ** (1 / max(int(scale.is_number.sum()), 1)))
    return np.flatnonzero(matched & (nearest_by_chance > 0) & (nearest <= share * nearest_by_chance))


def _matches(guesses: NDArray[np.float64], rows: NDArray[np.float64], scale: InputScale,
             tolerance: float) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """[n] the distance of the nearest guess to each row, and whether a guess meets the first two conditions."""
    nearest, matched = np.full(len(rows), np.inf), np.zeros(len(rows), bool)
    for distance, is_within in _compared(guesses, rows, scale, tolerance):
        nearest = np.minimum(nearest, distance.min(axis=0))
        matched |= (is_within & (distance <= distance.min(axis=1, keepdims=True))).any(axis=0)
    return nearest, matched


def _compared(guesses: NDArray[np.float64], rows: NDArray[np.float64], scale: InputScale,
              tolerance: float) -> Iterator[tuple[NDArray[np.float64], NDArray[np.bool_]]]:
    """For blocks of guesses: [block, n] distances, and whether all inputs are within the tolerance."""
    largest = np.where(scale.is_number, tolerance, 0.5 / scale.deviation)
    scaled = rows / scale.deviation
    for block in np.split(guesses, range(_BLOCK, len(guesses), _BLOCK)):
        squares, is_within = np.zeros((len(block), len(rows))), np.ones((len(block), len(rows)), bool)
        for j, guess in enumerate((block / scale.deviation).T):
            difference = np.abs(guess[:, None] - scaled[:, j])
            squares += difference**2
            is_within &= difference < largest[j]
        yield np.sqrt(squares), is_within
