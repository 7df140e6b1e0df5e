"""What a site says about its table: the report that leaves it before the rounds, without the value of any row."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from resolvent.errors import InputError


@dataclass(frozen=True)
class ColumnReport:
    """What a site says about one column.

    Attributes:
        kind: ``number``, ``boolean`` or ``text``.
        has_missing: whether a value is missing.
        count: number of training rows with a value; 0 if it is below the site's minimum count.
        mean: over these rows; 0 for text.
        squares: sum of squared deviations from the mean over these rows; 0 for text.
        levels: named level -> number of training rows with it, 0 if it is below the minimum count; empty for numbers.
        has_hidden: whether levels are not named, because they have fewer rows than the minimum count.
    """

    name: str
    kind: str
    has_missing: bool
    count: int
    mean: float = 0.0
    squares: float = 0.0
    levels: Mapping[str, int] | None = None
    has_hidden: bool = False


@dataclass(frozen=True)
class LabelReport:
    """What a site says about the label column.

    Attributes:
        kind: ``boolean``, ``integer``, ``decimal`` or ``text``.
        classes: class -> number of rows; empty for regression.
        weights: class -> sum of the weights of its training rows, with the empty text as the class of a regression;
            None if the experiment has no weights.
    """

    kind: str
    classes: Mapping[str, int]
    weights: Mapping[str, float] | None = None


@dataclass(frozen=True)
class TableReport:
    """What a site says about its table.

    Attributes:
        rows: number of rows in each split.
        columns: the features, in the order of the table.
        labels: the label columns.
    """

    rows: Mapping[str, int]
    columns: tuple[ColumnReport, ...]
    labels: tuple[LabelReport, ...]
    dates: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """Plain values, as they are sent."""
        return asdict(self)

    def __post_init__(self) -> None:
        numbers = [*self.rows.values(), *(x for c in self.columns for x in (c.count, c.mean, c.squares)),
                   *(n for c in self.columns for n in (c.levels or {}).values()),
                   *(n for label in self.labels for n in (*label.classes.values(), *(label.weights or {}).values()))]
        if not all(map(math.isfinite, numbers)):
            raise InputError("a number is not finite")
