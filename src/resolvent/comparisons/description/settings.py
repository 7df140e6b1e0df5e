"""The settings of a description, as a call, a command or a file states them."""

from dataclasses import dataclass
from typing import Any, ClassVar

from resolvent.comparisons.plan_file import Numbers, PlanFile, Texts
from resolvent.errors import InputError, check_range, quote


@dataclass(frozen=True, kw_only=True)
class DescriptionSettings:
    """What is described.

    Attributes:
        columns: the columns; numbers have moments and quantiles, others have the counts of their levels. Default: all
            that are neither dates nor free text; sites must be told.
        by: a column whose levels are the groups, such as the arm of a trial.
        quantiles: in [0, 1]. Each is told as an interval between two edges of a histogram, whose bins are at most 1/16
            of the standard deviation wide, and wider where a bin would have fewer than ``min_cell`` rows.
        min_cell: no count of fewer rows is told, or can be computed from what is told; 1: all are told. A site's own
            limit can be larger.

    Raises:
        InputError: a number is out of range, or a column is named twice.
    """

    columns: Texts = ()
    by: str | None = None
    quantiles: Numbers = (0.25, 0.5, 0.75)
    min_cell: int = 5

    def __post_init__(self) -> None:
        check_range("describe", "[1, inf)", min_cell=self.min_cell)
        for quantile in self.quantiles:
            check_range("describe", "[0, 1]", quantiles=quantile)
        names = [*self.columns, *([] if self.by is None else [self.by])]
        if twice := [name for name in names if names.count(name) > 1]:
            raise InputError(f"columns: {quote(twice[0])} is named twice, or is also the column of the groups")


class DescriptionFile(PlanFile[DescriptionSettings]):
    """A description as checked settings."""

    kind: ClassVar[str] = "describe"
    title: ClassVar[str] = "description"
    example: ClassVar[str] = "{columns: [age, ward], by: arm}"
    settings_type: ClassVar[type[Any]] = DescriptionSettings
