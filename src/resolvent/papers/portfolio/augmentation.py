"""Which synthetic years the parties of a federation train on, as settings of an experiment file."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from resolvent.errors import InputError, check_range
from resolvent.papers.portfolio.augmenters import Augmenter, generate

__all__ = ["Augmentation", "Panel", "report_fitting"]

Panel = Literal["appended", "recent"]
Progress: TypeAlias = Callable[[int, int], None]

_progress: ContextVar[Progress | None] = ContextVar("progress", default=None)


@contextmanager
def report_fitting(progress: Progress) -> Iterator[None]:
    """Call ``progress`` with (parties done, parties in total) in a block that fits augmenters: GANs take minutes."""
    token = _progress.set(progress)
    try:
        yield
    finally:
        _progress.reset(token)


@dataclass(frozen=True)
class Augmentation:
    """Synthetic years of prices that every party trains on, each for some rounds.

    Attributes:
        augmenters: the models of prices; party k has number k mod their number.
        years: number of years for each party; after the last one the first follows.
        rounds: number of rounds with the same year.
        panel: a party trains on its real prices with the year ``appended``, or on the ``recent`` real days that the
            first window needs and the year only.
        seed: seed of the augmenters.

    Raises:
        InputError: there is no augmenter, or a number is too small.
    """

    augmenters: dict[str, Augmenter]
    years: int = 40
    rounds: int = 20
    panel: Panel = "appended"
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.augmenters, Mapping) or not self.augmenters:
            raise InputError("Augmentation(augmenters) must be a mapping from labels to augmenters, at least 1")
        check_range(self, "[1, inf)", years=self.years, rounds=self.rounds)
        check_range(self, "[0, inf)", seed=self.seed)

    def relatives(self, closes: NDArray[np.float64], universes: NDArray[np.int64]) -> NDArray[np.float32]:
        """Daily price relatives [N, years, 252, m], from closing prices [days, assets] for training."""
        return generate(list(self.augmenters.values()), closes, universes, years=self.years, seed=self.seed,
                        progress=_progress.get())
