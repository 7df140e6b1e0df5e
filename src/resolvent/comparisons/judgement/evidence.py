"""The measurements by which methods are judged."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from resolvent.comparisons.judgement.metrics import is_share
from resolvent.comparisons.judgement.row_values import RowValues
from resolvent.problem.models.model import LinearModel

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, kw_only=True)
class Evidence:
    """The measurements by which methods are judged.

    Attributes:
        higher_is_better: whether larger values are better.
        alone: the label of training alone, or None.
        parties: the names of the sites, by id.
        metrics: all metrics; with the columns seed, method, round, party, split, metric and value.
        rows: the values of single test rows; None if the problem has none.
        baseline: the label of the predictions that need no training, if the rows have it.
        train: number of training rows of each party, if they are known.
        traffic: method -> bytes that are sent in a run, if they are known.
        bounds: labels of the methods that no federation runs: training on pooled rows, and training alone.
        folds: number of folds of each seed; 1: one split of the rows.
        decides: whether the advice is by the score, because the user says so, and not by a proper score.
        coefficients: number of coefficients of a linear model whose luck in the draw of the training rows the test rows
            do not show: with folds; otherwise 0.
    """

    score: str
    split: str
    higher_is_better: bool
    methods: tuple[str, ...]
    alone: str | None
    parties: Sequence[str] | Mapping[int, str]
    metrics: "pd.DataFrame"
    seeds: tuple[int, ...]
    rows: RowValues | None = None
    baseline: str | None = None
    train: Sequence[int] | None = None
    traffic: Mapping[str, float] | None = None
    bounds: frozenset[str] = frozenset()
    folds: int = 1
    decides: bool = False
    coefficients: int = 0

    @property
    def candidates(self) -> tuple[str, ...]:
        """The labels of the methods that the federation can run."""
        return tuple(m for m in self.methods if m != self.alone and m not in self.bounds)

    @property
    def is_share(self) -> bool:
        """Whether the score lies between 0 and 1."""
        return is_share(self.score)


def tested_coefficients(model: object, folds: int) -> int:
    """The number of coefficients of a linear model that folds test; otherwise 0."""
    if folds == 1 or not isinstance(model, LinearModel):
        return 0
    return max(model.outputs - 1, 1) * (model.features + 1)
