"""The settings of a survival analysis, as a call, a command or a file states them."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from resolvent.comparisons.plan_file import Numbers, PlanFile
from resolvent.comparisons.regression.formula import Formula, Response
from resolvent.errors import InputError, check_range, quote

_MOST_EDGES = 1000


@dataclass(frozen=True, kw_only=True)
class SurvivalSettings:
    """Whose survival is estimated.

    Attributes:
        time: the column of the time of the event, or of the end of observation; from zero on, in any unit.
        event: the column that says whether the event occurred: 0 and 1, no and yes, or false and true.
        by: a column whose levels are the groups, such as the arm of a trial.
        entry: the column of the time at which observation begins, before ``time`` (left truncation); default: a row is
            at risk from the beginning.
        every: the width of the grid of times, such as 30 days: a time is told as the end of its cell. Default: exact
            times, for rows in one table; sites need a grid.
        until: the end of the grid; rows are censored there.
        at: times that the text shows; default: about five.
        min_cell: with a grid, no count of fewer rows is told, or can be computed from what is told; 1: all are told. A
            site's own limit can be larger.
        level: level of the intervals.

    Raises:
        InputError: a number is out of range, or a column is named twice.
    """

    time: str
    event: str
    by: str | None = None
    entry: str | None = None
    every: float | None = None
    until: float | None = None
    at: Numbers = ()
    min_cell: int = 5
    level: float = 0.95

    def __post_init__(self) -> None:
        check_range("survival", "[1, inf)", min_cell=self.min_cell)
        check_range("survival", "(0, 1)", level=self.level)
        for time in self.at:
            check_range("survival", "[0, inf)", at=time)
        if (self.every is None) != (self.until is None):
            raise InputError("every and until go together: they are the width of the grid of times, and its end")
        if self.every is not None and self.until is not None:
            check_range("survival", "(0, inf)", every=self.every, until=self.until)
            if self.until > _MOST_EDGES * self.every:
                raise InputError(f"every={self.every:g} and until={self.until:g} are more than {_MOST_EDGES} cells: "
                                 "make every larger")
        if twice := [name for name in self.columns if self.columns.count(name) > 1]:
            raise InputError(f"{quote(twice[0])} is named twice: time, event, entry and by are different columns")

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        return [*self.formula.response.columns, *self.formula.variables]

    @property
    def formula(self) -> Formula:
        """The columns as a formula, whose right side has the groups."""
        by = () if self.by is None else (self.by,)
        response = Response(self.time, self.event, self.entry)
        return Formula(f"Surv({', '.join(response.columns)}) ~ {' '.join(by)}", response, None, by, frozenset(by))

    @property
    def edges(self) -> NDArray[np.float64]:
        """[M] the grid of times, which begins at zero."""
        assert self.every is not None
        assert self.until is not None
        cells = int(np.ceil(round(self.until / self.every, 9)))
        return np.asarray(np.round(self.every * np.arange(cells + 1), 12), np.float64)


class SurvivalFile(PlanFile[SurvivalSettings]):
    """A survival analysis as checked settings."""

    kind: ClassVar[str] = "survival"
    title: ClassVar[str] = "survival analysis"
    example: ClassVar[str] = "{time: days, event: died, by: arm, every: 30, until: 720}"
    settings_type: ClassVar[type[Any]] = SurvivalSettings
    needs_party: ClassVar[bool] = False
