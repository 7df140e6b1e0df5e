"""From a table and a formula to the regression of every site."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from resolvent.comparisons.regression.formula import Design, Formula, check_columns, design_of, parse_formula
from resolvent.data.tables.party_tables import natural_order
from resolvent.data.tables.table_files import read_table_file
from resolvent.data.tables.text_formats import TextFormat
from resolvent.errors import InputError, alternatives, quote
from resolvent.problem.regression.cox import CoxRegression
from resolvent.problem.regression.families import (
    Binomial,
    Family,
    Gamma,
    Gaussian,
    Multinomial,
    NegativeBinomial,
    Poisson,
)
from resolvent.problem.regression.objective import RegressionProblem, RowRegression

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FamilyName", "RegressionRows", "read_rows"]

FamilyName: TypeAlias = Literal["auto", "gaussian", "binomial", "multinomial", "poisson", "negative_binomial", "gamma",
                                "cox"]
_COUNTS = ("poisson", "negative_binomial")
_POSITIVE_START = 1e-6  # the smallest mean label with which a fit on the logarithm begins


@dataclass(frozen=True)
class RegressionRows:
    """The rows of a regression, one site after the other.

    Attributes:
        formula: the formula.
        design: the columns.
        family: the distribution of the label; None: times to an event (Cox).
        y: [rows] the label as a number; for Cox the time.
        event: [rows] whether the event occurred; None if the label is no time.
        classes: the names of the label's classes, base first; () if it has none.
        offsets: [rows] the offset; None: zero.
        sites: the names of the sites.
        sizes: [N] their numbers of rows.
        left_out: number of rows with missing values.
    """

    formula: Formula
    design: Design
    family: Family | None
    y: NDArray[np.float64]
    event: NDArray[np.bool_] | None
    classes: tuple[str, ...]
    offsets: NDArray[np.float64] | None
    sites: tuple[str, ...]
    sizes: NDArray[np.int64]
    left_out: int

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the P parameters."""
        if self.family is None or self.family.predictors == 1:
            return (*self.design.names, *(() if self.family is None else self.family.extra))
        return tuple(f"{level}: {name}" for level in self.classes[1:] for name in self.design.names)

    def problem(self, *, l2: float = 0.0) -> RegressionProblem:
        """The objectives of all sites.

        Args:
            l2: weight of half the sum of the squared coefficients, the intercept left out.
        """
        penalty = l2 * self.is_penalised()
        if self.family is None:
            return CoxRegression(self.design.x, self.y, self.event, self.sizes, l2=penalty)
        start = np.zeros(len(self.names))
        if self.design.has_intercept and self.family.predictors == 1:
            mean = np.maximum(np.mean(self.y), _POSITIVE_START)
            start[self.design.names.index("Intercept")] = np.asarray(self.family.start(mean))
        return RowRegression(self.family, self.design.x, self.y, self.sizes, offsets=self.offsets, start=start,
                             l2=penalty)

    def is_penalised(self) -> NDArray[np.float64]:
        """[P] 1 for coefficients, 0 for intercepts and further parameters."""
        of_predictor = [float(name != "Intercept") for name in self.design.names]
        predictors, extra = (1, 0) if self.family is None else (self.family.predictors, len(self.family.extra))
        return np.array([*of_predictor * predictors, *[0.0] * extra])


def read_rows(data: "pd.DataFrame | str | Path", text: str, *, party: str, family: FamilyName = "auto",
              offset: str | None = None, exposure: str | None = None,
              reference: Mapping[str, Any] | None = None, format: TextFormat = TextFormat()) -> RegressionRows:  # noqa: B008
    """The rows of a regression; rows with a missing value in a column that is used are left out.

    Args:
        data: a table, or a file.
        text: the formula.
        party: the column that names the site.
        family: distribution of the label.
        offset: a column that is added to the linear predictor.
        exposure: a column whose logarithm is added to the linear predictor.
        reference: the base level of columns, and of the label, by name.
        format: the format of a text file.

    Raises:
        InputError: naming the column, the value and what to do.
    """
    formula = parse_formula(text)
    extra = [name for name in (offset, exposure) if name is not None]
    frame = _frame(data, formula, party, extra, format)
    check_columns(formula, frame.columns, [party])
    _check_named(frame, party, "party")
    for name in extra:
        _check_named(frame, name, "offset or exposure")
    used = list(dict.fromkeys([party, *formula.response.columns, *formula.variables, *extra]))
    complete = frame[used].dropna()
    if complete.empty:
        raise InputError("no row has values in all columns that are used: " + ", ".join(quote(name) for name in used))
    names = sorted(complete[party].astype(str).unique(), key=natural_order)
    order = np.argsort([names.index(name) for name in complete[party].astype(str)], kind="stable")
    complete = _with_references(complete.iloc[order].reset_index(drop=True), reference or {}, formula)
    chosen, y, event, classes = _label(complete, formula, family)
    counts = complete[party].astype(str).value_counts()
    return RegressionRows(
        formula, _design(formula, complete, is_cox=chosen is None), chosen, y, event, classes,
        _offsets(complete, offset, exposure), tuple(names), np.array([int(counts[name]) for name in names]),
        len(frame) - len(complete))


def _frame(data: "pd.DataFrame | str | Path", formula: Formula, party: str, extra: Sequence[str],
           format: TextFormat) -> "pd.DataFrame":
    if not isinstance(data, str | Path):
        return data
    wanted = [party, *formula.response.columns, *formula.variables, *extra]
    return read_table_file(str(data), format, wanted, [party], lambda name: name in wanted)[0]


def _check_named(frame: "pd.DataFrame", name: str, role: str) -> None:
    if name not in frame.columns:
        raise InputError(f"the table has no column {quote(name)} ({role}){alternatives(name, list(frame.columns))}")


def _design(formula: Formula, frame: "pd.DataFrame", *, is_cox: bool) -> Design:
    """The columns; a Cox model has no intercept, because its baseline hazard takes its place."""
    design = design_of(formula, frame)
    if not is_cox or not design.has_intercept:
        return design
    columns = [j for j, name in enumerate(design.names) if name != "Intercept"]
    if not columns:
        raise InputError(f"the formula {quote(formula.text)} has no column but the intercept, which a Cox model does "
                         "not have")
    return Design(tuple(design.names[j] for j in columns), design.x[:, columns])


def _with_references(frame: "pd.DataFrame", reference: Mapping[str, Any], formula: Formula) -> "pd.DataFrame":
    """Text columns as categories, whose first level is the reference."""
    import pandas as pd

    for name, base in reference.items():
        if name not in (*formula.variables, formula.response.label):
            raise InputError(f"reference={{{quote(name)}: ...}} is not in the formula"
                             + alternatives(name, formula.variables))
        levels = sorted(frame[name].unique(), key=lambda level: natural_order(str(level)))
        if str(base) not in [str(level) for level in levels]:
            raise InputError(f"{quote(base)} is no level of {quote(name)}"
                             + alternatives(str(base), [str(level) for level in levels]))
        ordered = sorted(levels, key=lambda level: str(level) != str(base))
        frame = frame.assign(**{name: pd.Categorical(frame[name], categories=ordered)})
    return frame


def _label(frame: "pd.DataFrame", formula: Formula,
           family: FamilyName) -> tuple[Family | None, NDArray[np.float64], NDArray[np.bool_] | None, tuple[str, ...]]:
    """The family, the label as numbers, whether the event occurred, and the names of the classes."""
    if family not in get_args(FamilyName):
        raise InputError(f"family={quote(family)} is not known{alternatives(family, get_args(FamilyName))}")
    response = formula.response
    if (response.event is not None) != (family == "cox") and (response.event is None or family != "auto"):
        raise InputError(f"family={family} and the label of {quote(formula.text)} do not fit together: a Cox model has "
                         "the label Surv(time, event), and the others have one column")
    column = frame[response.label]
    if response.event is not None:
        return None, _numbers(column, "positive"), _events(frame[response.event]), ()
    import pandas as pd

    is_number = pd.api.types.is_numeric_dtype(column) and not isinstance(column.dtype, pd.CategoricalDtype)
    levels = (list(column.cat.categories) if isinstance(column.dtype, pd.CategoricalDtype)
              else sorted(column.unique(), key=lambda level: natural_order(str(level))))
    if family == "auto":
        family = _choose_family(column, levels, is_number=is_number)
    if family in ("binomial", "multinomial"):
        return _classes(column, levels, family)
    numbers = _numbers(column, "count" if family in _COUNTS else "positive" if family == "gamma" else "any")
    families: dict[str, Callable[[], Family]] = {
        "gaussian": Gaussian, "poisson": Poisson, "negative_binomial": NegativeBinomial, "gamma": Gamma}
    return families[family](), numbers, None, ()


def _choose_family(column: "pd.Series[Any]", levels: Sequence[Any], *, is_number: bool) -> FamilyName:
    """The family that is certain from the label.

    Raises:
        InputError: it could be several.
    """
    if len(levels) == 2:
        return "binomial"
    if not is_number:
        return "multinomial"
    if np.any(np.asarray(column, float) % 1):
        return "gaussian"
    raise InputError(f"{quote(column.name)} has whole numbers, which can be counts, amounts or classes: set family= to "
                     "poisson, negative_binomial, gaussian or multinomial")


def _classes(column: "pd.Series[Any]", levels: Sequence[Any],
             family: str) -> tuple[Family, NDArray[np.float64], None, tuple[str, ...]]:
    """The label as the number of its class.

    Raises:
        InputError: there are too few classes, or too many for the family.
    """
    if len(levels) < 2 or (family == "binomial" and len(levels) > 2):
        raise InputError(f"{quote(column.name)} has {len(levels)} different values, and family={family} needs "
                         + ("2: use multinomial" if len(levels) > 2 else "at least 2"))
    numbers = {level: float(i) for i, level in enumerate(levels)}
    y = np.array([numbers[value] for value in column])
    chosen: Family = Binomial() if family == "binomial" else Multinomial(len(levels))
    return chosen, y, None, tuple(str(level) for level in levels)


def _numbers(column: "pd.Series[Any]", kind: Literal["any", "positive", "count"]) -> NDArray[np.float64]:
    """A column as numbers.

    Raises:
        InputError: a value is no number, or not of this kind.
    """
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


def _events(column: "pd.Series[Any]") -> NDArray[np.bool_]:
    """Whether the event occurred.

    Raises:
        InputError: the column has other values than 0 and 1.
    """
    values = {str(value).casefold() for value in column.unique()}
    if not values <= {"0", "1", "0.0", "1.0", "true", "false"}:
        raise InputError(f"{quote(column.name)} says whether the event occurred, and must have 0 and 1 or true and "
                         f"false, not {', '.join(quote(v) for v in sorted(values)[:4])}")
    return np.array([str(value).casefold() in ("1", "1.0", "true") for value in column])


def _offsets(frame: "pd.DataFrame", offset: str | None, exposure: str | None) -> NDArray[np.float64] | None:
    parts = []
    if offset is not None:
        parts.append(_numbers(frame[offset], "any"))
    if exposure is not None:
        parts.append(np.log(_numbers(frame[exposure], "positive")))
    return sum(parts[1:], parts[0]) if parts else None
