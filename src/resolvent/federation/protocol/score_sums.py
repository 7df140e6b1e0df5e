"""Mean scores over the sites, from a secure sum of integers.

For every score, split and model a site has three integers: its score in fixed point, whether it has one, and whether
it is not finite. The mean is over the sites that have one; it is not finite if one of theirs is not.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from resolvent.federation.protocol.events import SiteScores

MeanScore: TypeAlias = tuple[str, str, float | None]
"""Name of a score, as in the metrics; split; mean over the sites, None if it is not finite."""

_FRACTION, _LARGEST = 24, 2.0**24  # with 2^15 sites a sum fits in 64 bits


def names_of_scores(score: str, metrics: Sequence[str]) -> tuple[str, ...]:
    """The loss, the score and the further metrics."""
    return tuple(dict.fromkeys(("loss", score, *metrics)))


def count_of_scores(names: Sequence[str], splits: Sequence[str], *, has_shared: bool) -> int:
    """The number of integers."""
    return 3 * len(names) * len(splits) * (1 + has_shared)


def integers_of_scores(scores: Sequence[SiteScores], names: Sequence[str], splits: Sequence[str]) -> NDArray[np.uint64]:
    """[n] the integers of a site; a score beyond 2^24 counts as not finite.

    Args:
        scores: those of the personal model, and of the shared model if there is one.
        names: of the scores, see ``names_of_scores``.
    """
    integers = []
    for model in scores:
        for name in names:
            for split in splits:
                value = model.get(name, {}).get(split, math.inf)
                is_finite = value is not None and abs(value) < _LARGEST
                is_present = split in model.get(name, {})
                integers += [round(value * 2**_FRACTION) if is_present and is_finite and value is not None else 0,
                             int(is_present), int(is_present and not is_finite)]
    return np.array([integer % 2**64 for integer in integers], np.uint64)


def mean_scores_of(total: NDArray[Any], names: Sequence[str], splits: Sequence[str]) -> Iterator[MeanScore]:
    """The mean scores, from the sum of the integers of the sites; the names of the shared model begin with global."""
    values = iter(total.view(np.int64).tolist())
    keys = [(prefix + name, split) for prefix in ("mean_", "mean_global_") for name in names for split in splits]
    for (name, split), (value, present, infinite) in zip(keys, zip(values, values, values, strict=True), strict=False):
        if present:
            yield name, split, None if infinite else value / present / 2**_FRACTION
