"""From a table and a formula to the regression of every site."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from resolvent.comparisons.regression.agreement import (
    RowsAgreement,
    agree_on_rows,
    describe_rows,
    event_flags,
    level_names,
)
from resolvent.comparisons.regression.formula import Formula, check_columns, design_of, parse_formula
from resolvent.comparisons.regression.model import RegressionModel
from resolvent.comparisons.regression.settings import RegressionSettings
from resolvent.errors import InputError, alternatives, quote
from resolvent.regression.cox import CoxRegression
from resolvent.regression.objective import RegressionProblem, RowRegression
from resolvent.tables.party_tables import natural_order
from resolvent.tables.table_files import read_table_file
from resolvent.tables.text_formats import TextFormat

if TYPE_CHECKING:
    import pandas as pd

_COUNTS = ("poisson", "negative_binomial")


@dataclass(frozen=True)
class RegressionRows:
    """The rows of a regression: those of all sites, one after the other, or those of one site.

    Attributes:
        model: what is fitted.
        sizes: [K] the numbers of rows of the sites whose rows these are.
        x: [rows, d] the columns.
        y: [rows] the label as a number; for Cox the time.
        event: [rows] whether the event occurred; None if the label is no time.
        offsets: [rows] the offset; None: zero.
        levels: column of categories -> [rows] its levels.
    """

    model: RegressionModel
    sizes: NDArray[np.int64]
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    event: NDArray[np.bool_] | None = None
    offsets: NDArray[np.float64] | None = None
    levels: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def problem(self, *, l2: float = 0.0) -> RegressionProblem:
        """The objectives of the sites.

        Args:
            l2: weight of half the sum of the squared coefficients, the intercept left out.
        """
        model, penalty = self.model, l2 * self.model.is_penalised
        if model.family is None:
            return CoxRegression(self.x, self.y, self.event, self.sizes, l2=penalty, longest=max(model.site_rows))
        return RowRegression(model.family, self.x, self.y, self.sizes, offsets=self.offsets, start=model.start,
                             l2=penalty, block=model.block)


def read_rows(data: "pd.DataFrame | str | Path", settings: RegressionSettings, *, party: str,
              format: TextFormat = TextFormat()) -> RegressionRows:  # noqa: B008
    """The rows of all sites; rows with a missing value in a column that is used are left out."""
    formula = parse_formula(settings.formula)
    frame = _frame(data, formula, party, settings.added, format)
    _check_named(frame, party, "party")
    complete = complete_rows(frame, formula, settings, [party])
    owners = complete[party].astype(str)
    names = sorted(owners.unique(), key=natural_order)
    order = np.argsort(owners.map({name: k for k, name in enumerate(names)}), kind="stable")
    complete, owners = complete.iloc[order].reset_index(drop=True), owners.iloc[order].reset_index(drop=True)
    reports = {name: describe_rows(rows, formula, settings, 0) for name, rows in complete.groupby(owners, sort=False)}
    agreement = agree_on_rows(reports, formula, settings)
    return encode_rows(complete, formula, settings, agreement, [*agreement.sites.values()],
                       left_out=len(frame) - len(complete))


def complete_rows(frame: "pd.DataFrame", formula: Formula, settings: RegressionSettings,
                  others: Sequence[str] = ()) -> "pd.DataFrame":
    """The columns that are used, without rows that have a missing value in one.

    Args:
        others: further columns, which must not be features.
    """
    check_columns(formula, frame.columns, others)
    for name in settings.added:
        _check_named(frame, name, "offset or exposure")
    used = list(dict.fromkeys([*others, *formula.response.columns, *formula.variables, *settings.added]))
    complete = frame[used].dropna()
    if complete.empty:
        raise InputError("no row has values in all columns that are used: " + ", ".join(quote(name) for name in used))
    return complete


def encode_rows(frame: "pd.DataFrame", formula: Formula, settings: RegressionSettings, agreement: RowsAgreement,
                sizes: Sequence[int], *, left_out: int | None = None) -> RegressionRows:
    """The rows of one or all sites as numbers.

    Args:
        left_out: number of rows with missing values of all sites; default: that of the agreement.
    """
    import pandas as pd

    frame = frame.reset_index(drop=True)
    for name, levels in agreement.levels.items():
        frame = frame.assign(**{name: pd.Categorical(_known_levels(frame[name], levels), categories=levels)})
    names, x = design_of(formula, frame)
    if agreement.family == "cox" and "Intercept" in names:  # its baseline hazard takes the place of the intercept
        columns = [j for j, name in enumerate(names) if name != "Intercept"]
        if not columns:
            raise InputError(f"the formula {quote(formula.text)} has no column but the intercept, which a Cox model "
                             "does not have")
        names, x = tuple(names[j] for j in columns), x[:, columns]
    model = RegressionModel.of_agreement(formula.text, names, agreement, left_out=left_out)
    y: NDArray[np.float64]
    label = frame[formula.response.label]
    if model.classes:
        numbers = {level: float(i) for i, level in enumerate(model.classes)}
        y = np.asarray(_known_levels(label, model.classes).map(numbers), np.float64)
    else:
        y = _numbers(label, "positive" if agreement.family in ("gamma", "cox") else
                     "count" if agreement.family in _COUNTS else "any")
    event = None if formula.response.event is None else event_flags(frame[formula.response.event])
    of_rows = {name: np.asarray(frame[name].astype(str), object) for name in agreement.levels}
    return RegressionRows(model, np.array(sizes), x, y, event, _offsets(frame, settings), of_rows)


def rows_without_values(model: RegressionModel) -> RegressionRows:
    """One row of zeros, from which a server without rows knows the shapes of replies."""
    event = np.zeros(1, bool) if model.family is None else None
    return RegressionRows(model, np.array([1]), np.zeros((1, len(model.columns))), np.zeros(1), event)


def _frame(data: "pd.DataFrame | str | Path", formula: Formula, party: str, extra: Sequence[str],
           format: TextFormat) -> "pd.DataFrame":
    if not isinstance(data, str | Path):
        return data
    wanted = [party, *formula.response.columns, *formula.variables, *extra]
    return read_table_file(str(data), format, wanted, [party], lambda name: name in wanted)[0]


def _check_named(frame: "pd.DataFrame", name: str, role: str) -> None:
    if name not in frame.columns:
        raise InputError(f"the table has no column {quote(name)} ({role}){alternatives(name, list(frame.columns))}")


def _known_levels(column: "pd.Series[Any]", levels: Sequence[str]) -> "pd.Series[str]":
    names = level_names(column)
    if unknown := {*names.unique()} - {*levels}:
        raise InputError(f"{quote(column.name)} has the level {quote(min(unknown))}, on which the sites have not "
                         "agreed")
    return names


def _numbers(column: "pd.Series[Any]", kind: Literal["any", "positive", "count"]) -> NDArray[np.float64]:
    try:
        numbers = np.asarray(column, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{quote(column.name)} has values that are no numbers, such as {quote(column.iloc[0])}: "
                         "choose another family, or correct the column") from error
    wrong = ~np.isfinite(numbers)
    if kind == "positive":
        wrong |= numbers <= 0
    elif kind == "count":
        wrong |= (numbers < 0) | (numbers % 1 != 0)
    if wrong.any():
        need = {"any": "finite numbers", "positive": "positive numbers", "count": "counts 0, 1, 2, ..."}[kind]
        raise InputError(f"{quote(column.name)} has {int(wrong.sum())} values that are not {need}, such as "
                         f"{quote(float(numbers[wrong][0]))}: correct them, or leave these rows out")
    return numbers


def _offsets(frame: "pd.DataFrame", settings: RegressionSettings) -> NDArray[np.float64] | None:
    parts = []
    if settings.offset is not None:
        parts.append(_numbers(frame[settings.offset], "any"))
    if settings.exposure is not None:
        parts.append(np.log(_numbers(frame[settings.exposure], "positive")))
    return sum(parts[1:], parts[0]) if parts else None
