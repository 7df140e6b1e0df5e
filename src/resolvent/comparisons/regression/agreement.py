"""What sites agree on before a regression: levels, classes, the family and the mean label, without pooling rows.

A simulation makes the same agreement between its sites, so that a federation has the same columns and the same start.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from resolvent.comparisons.regression.bases import moments_of, pooled_moments
from resolvent.comparisons.regression.formula import Formula
from resolvent.comparisons.regression.label_numbers import numbers_of, offsets_of
from resolvent.comparisons.regression.settings import FamilyName, RegressionSettings
from resolvent.errors import InputError, alternatives, count_of, quote
from resolvent.regression.families import FAMILIES
from resolvent.tables.cells import (
    NO_WORDS,
    YES_WORDS,
    CellRules,
    Code,
    check_spellings,
    level_mistakes,
    missing_advice,
    text_of_value,
    yaml_name,
)
from resolvent.tables.owners import natural_order

if TYPE_CHECKING:
    import pandas as pd

LabelKind = Literal["classes", "integer", "decimal", "time"]
CLASS_FAMILIES = tuple(name for name, family in FAMILIES.items() if family.labels == "classes")
_COUNT_FAMILIES = tuple(name for name, family in FAMILIES.items() if family.labels == "count")
_FEW_VALUES = 2  # numbers with as many different values can be classes


@dataclass(frozen=True)
class RowsReport:
    """What a site says about its rows before a regression.

    Attributes:
        left_out: number of rows with a missing value in a column that is used.
        imputed: number of rows in which missing values were drawn.
        levels: column of categories -> its levels, in their order -> number of rows.
        numbers: the columns of numbers.
        booleans: the columns of true/false.
        classes: class -> number of rows, if the label is or could be one of classes; for times, of the event's values.
        total: sum of the label, if it is a number.
        offset: mean of the offsets, with the logarithms of exposures.
        log_exposure: logarithm of the mean of their exponentials.
        moments: column of polynomials -> ``moments_of`` its values.
    """

    rows: int
    left_out: int
    levels: Mapping[str, Mapping[str, int]]
    numbers: tuple[str, ...]
    booleans: tuple[str, ...]
    label: LabelKind
    classes: Mapping[str, int]
    total: float
    offset: float = 0.0
    log_exposure: float = 0.0
    moments: Mapping[str, Sequence[float]] = field(default_factory=dict)
    imputed: int = 0

    def __post_init__(self) -> None:
        counts = [self.rows - 1, self.left_out, self.imputed, *self.classes.values(),
                  *(count for levels in self.levels.values() for count in levels.values())]
        numbers = [self.total, self.offset, self.log_exposure, *(x for of in self.moments.values() for x in of)]
        if min(counts) < 0 or not all(map(math.isfinite, numbers)):
            raise InputError("there are no rows, a count is negative, or a sum is too large")


@dataclass(frozen=True)
class RowsAgreement:
    """What all sites use.

    Attributes:
        levels: column of categories -> its levels, base first.
        family: the distribution of the label.
        classes: class -> number of rows of all sites, base first; for times, the event's value second.
        sites: site -> its number of rows.
        left_out: site -> its number of rows with missing values, if there are any.
        offset: the offset that stands for those of all rows: with the logarithm as link that of the mean exposure,
            otherwise the mean.
        missing: column, or ``*`` -> the cells that stand for a missing value in all tables.
        moments: column of polynomials -> ``pooled_moments`` of its values.
        imputed: site -> its number of rows in which missing values were drawn, if there are any.
    """

    levels: Mapping[str, list[str]]
    family: str
    classes: Mapping[str, int]
    mean: float
    sites: Mapping[str, int]
    left_out: Mapping[str, int]
    offset: float = 0.0
    missing: Mapping[str, Sequence[Code]] = field(default_factory=dict)
    moments: Mapping[str, Sequence[float]] = field(default_factory=dict)
    imputed: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.family not in get_args(FamilyName)[1:] or not math.isfinite(self.mean + self.offset):
            raise InputError("there is no such family, or a mean is not finite")


def describe_rows(frame: "pd.DataFrame", formula: Formula, settings: RegressionSettings, left_out: int,
                  imputed: int = 0) -> RowsReport:
    """What a site says about its complete rows."""
    levels: dict[str, dict[str, int]] = {}
    numbers: list[str] = []
    booleans: list[str] = []
    for name in formula.variables:
        if is_category(frame[name]) or name in formula.categories:
            levels[name] = count_levels(frame[name])
        else:
            (booleans if frame[name].dtype == bool else numbers).append(name)
    kind, classes, total = _describe_label(frame, formula, settings)
    offsets = offsets_of(frame, settings.added)
    moments = {name: moments_of(numbers_of(frame[name], "any"), degree) for name, degree in formula.degrees.items()}
    report = RowsReport(len(frame), left_out, levels, tuple(numbers), tuple(booleans), kind, classes, total,
                        moments=moments, imputed=imputed)
    if offsets is None:
        return report
    largest = float(offsets.max())
    return replace(report, offset=float(offsets.mean()),
                   log_exposure=largest + float(np.log(np.exp(offsets - largest).mean())))


def _describe_label(frame: "pd.DataFrame", formula: Formula,
                    settings: RegressionSettings) -> tuple[LabelKind, dict[str, int], float]:
    """The kind of the label, its classes with their numbers of rows, and its sum."""
    label = frame[formula.response.label]
    if formula.response.event is not None:
        return "time", count_levels(frame[formula.response.event]), 0.0
    if is_category(label) or label.dtype == bool or settings.family in CLASS_FAMILIES:
        return "classes", count_levels(label), 0.0
    values = numbers_of(label, "any")
    could_be_classes = settings.family == "auto" and label.nunique() <= _FEW_VALUES
    classes = count_levels(label) if could_be_classes else {}
    return "decimal" if np.any(values % 1) else "integer", classes, float(values.sum())


def agree_on_rows(reports: Mapping[str, RowsReport], formula: Formula, settings: RegressionSettings,
                  cells: CellRules = CellRules()) -> RowsAgreement:  # noqa: B008
    """What all sites use.

    Args:
        reports: site -> its report, in the order of the parties.
        cells: what the cells of all tables mean; the levels of columns of text may differ in case only.
    """
    _refuse_levels(reports, formula, cells)
    levels: dict[str, list[str]] = {}
    for name in formula.variables:
        if kind_at_all_sites(name, {
                site: "categories" if name in report.levels else "true/false" if name in report.booleans else "numbers"
                for site, report in reports.items()}, [
                    level for report in reports.values() for level in report.levels.get(name, ())]) == "categories":
            levels[name] = _ordered(name, [report.levels[name] for report in reports.values()], settings)
            if len(levels[name]) < 2:
                raise InputError(f"{quote(name)} is {quote(levels[name][0])} in all rows that have values in every "
                                 f"column of the formula{_without(reports)}, so that it has no coefficient: leave it "
                                 "out, or fill its missing values in the table")
    kinds = {report.label for report in reports.values()}
    name = formula.response.label
    seen = {level for report in reports.values() for level in report.classes}
    if len(seen) == 1 and kinds != {"time"} and all(report.classes for report in reports.values()):
        raise InputError(f"the label {quote(name)} is {quote(min(seen))} in all rows that have values in every column "
                         f"of the formula{_without(reports)}: there is nothing to explain")
    if "classes" in kinds and len(kinds) > 1:
        raise InputError(f"the label {quote(name)} has classes at some sites and numbers at others: set text: "
                         f"[{yaml_name(name)}] in the data of the file if it has classes, or convert it")
    family = _family(formula, settings, reports)
    if family in _COUNT_FAMILIES and not any(report.total for report in reports.values()):
        raise InputError(f"the label {quote(name)} is 0 in all complete rows: there is nothing to explain")
    counts = sum((Counter(report.classes) for report in reports.values()), Counter[str]())
    classes = {}
    if family in CLASS_FAMILIES:
        order = _ordered(name, [report.classes for report in reports.values()], settings)
        if family == "ordinal":
            order = _in_given_order(name, order, settings)
        if len(order) < 2 or (family == "binomial" and len(order) > 2):
            raise InputError(f"{quote(name)} has {len(order)} different values, and family={family} needs "
                             + ("2: use multinomial" if len(order) > 2 else "at least 2"))
        classes = {level: counts[level] for level in order}
    elif formula.response.event is not None:
        classes = {level: counts[level] for level in event_values(formula.response.event, counts, settings)}
    _check_references(formula, levels, classes, settings)
    rows = sum(report.rows for report in reports.values())
    mean = (classes[[*classes][1]] / rows if family == "binomial"
            else math.fsum(report.total for report in reports.values()) / rows)
    return RowsAgreement(levels, family, classes, mean, {site: report.rows for site, report in reports.items()},
                         {site: report.left_out for site, report in reports.items() if report.left_out},
                         _typical_offset(family, reports, rows), dict(cells.codes), _joint_moments(reports, formula),
                         {site: report.imputed for site, report in reports.items() if report.imputed})


def _joint_moments(reports: Mapping[str, RowsReport], formula: Formula) -> dict[str, Sequence[float]]:
    """Column of polynomials -> the moments of all rows."""
    return {name: pooled_moments(name, [(report.rows, report.moments.get(name, ())) for report in reports.values()],
                                 degree) for name, degree in formula.degrees.items()}


def _typical_offset(family: str, reports: Mapping[str, RowsReport], rows: int) -> float:
    """The offset with which a model without features has the mean label."""
    if family in FAMILIES and FAMILIES[family].is_logarithmic:
        largest = max(report.log_exposure for report in reports.values())
        return largest + math.log(math.fsum(report.rows * math.exp(report.log_exposure - largest)
                                            for report in reports.values()) / rows)
    return math.fsum(report.rows * report.offset for report in reports.values()) / rows


def is_category(column: "pd.Series[Any]") -> bool:
    """Whether a column has text or categories."""
    import pandas as pd

    return isinstance(column.dtype, pd.CategoricalDtype) or not pd.api.types.is_numeric_dtype(column)


def level_names(column: "pd.Series[Any]") -> "pd.Series[str]":
    """The levels of a column as text: whole numbers without a decimal point, whatever their dtype."""
    import pandas as pd

    if pd.api.types.is_float_dtype(column) and np.isfinite(column).all() and not np.any(column % 1):
        column = column.astype(np.int64)
    if isinstance(column.dtype, np.dtype) and column.dtype != object:  # the name of each value is written once
        codes, values = pd.factorize(column)
        names = pd.Series(values, name=column.name).astype(str).take(codes)
        return names.set_axis(column.index)
    return column.astype(str)


def count_levels(column: "pd.Series[Any]") -> dict[str, int]:
    """Level -> number of rows, in natural order, or in that of the column's categories."""
    import pandas as pd

    counts = Counter({str(name): int(rows) for name, rows in level_names(column).value_counts().items()})
    if isinstance(column.dtype, pd.CategoricalDtype):
        return {str(level): counts[str(level)] for level in column.cat.categories}
    return {level: counts[level] for level in sorted(counts, key=natural_order)}


def _ordered(name: str, counts: list[Mapping[str, int]], settings: RegressionSettings) -> list[str]:
    """The levels of all sites that have rows: in the order of the sites if they agree, else naturally; base first."""
    observed = {level for of_site in counts for level, count in of_site.items() if count}
    orders = [[level for level in of_site if level in observed] for of_site in counts]
    joined = [*dict.fromkeys(level for order in orders for level in order)]
    agrees = all(order == [level for level in joined if level in order] for order in orders)
    if not (agrees and any({*order} == observed for order in orders)):
        joined = sorted(observed, key=natural_order)
    base = settings.references.get(name)
    return joined if base is None else sorted(joined, key=lambda level: level != str(base))


def _in_given_order(name: str, classes: Sequence[str], settings: RegressionSettings) -> list[str]:
    """The classes of an ordinal label, from the lowest."""
    shown = ", ".join(map(quote, classes[:4]))
    if name in settings.references:
        raise InputError(f"reference={{{quote(name)}: ...}}: an ordinal label has no base level, but an order: set "
                         f"order to its classes from the lowest, such as [{shown}]")
    if settings.order is None:
        try:
            return sorted(classes, key=float)
        except ValueError as error:
            raise InputError(f"the classes of {quote(name)} are {shown}, whose order is not certain: set order to "
                             "all of them from the lowest") from error
    order = [text_of_value(value) for value in settings.order]
    if sorted(order) != sorted(classes):
        raise InputError(f"order has {', '.join(map(quote, order))}, and {quote(name)} has the classes {shown}: "
                         "name each of them once, from the lowest")
    return order


def event_values(name: str, counts: Mapping[str, int], settings: RegressionSettings) -> tuple[str, str]:
    """The values of rows without and with the event, where they are certain."""
    values = sorted(counts, key=natural_order)
    shown = ", ".join(map(quote, values[:4]))
    base = settings.references.get(name)
    no_event = [value for value in values if (value.casefold() in NO_WORDS if base is None else value == str(base))]
    event = [value for value in values if value not in no_event and (base is not None or value.casefold() in YES_WORDS)]
    if len(no_event) + len(event) < len(values) or len(no_event) > 1 or len(event) > 1:
        ask = (f"say which of them means no event; if it is {quote(values[0])}, by reference={{{quote(name)}: "
               f"{quote(values[0])}}} (--set regression.reference.{name}={values[0]})" if len(values) == 2 else
               "make a column with 0 and 1")
        raise InputError(f"{quote(name)} says whether the event occurred, and must have 0 and 1, no and yes, or false "
                         f"and true, not {shown}: {ask}")
    if not event:
        raise InputError(f"no event occurred: {quote(name)} is {shown} in all complete rows, and a Cox model compares "
                         "rows with and without an event")
    return no_event[0] if no_event else "no event", event[0]


def kind_at_all_sites(name: str, kinds: Mapping[str, str], levels: Sequence[str] = ()) -> str:
    """The kind of a column's values.

    Args:
        kinds: site -> what it has in this column, such as ``numbers``.
        levels: those of the sites that have categories.

    Raises:
        InputError: sites have different kinds.
    """
    sites_of: dict[str, list[str]] = {}
    for site, kind in kinds.items():
        sites_of.setdefault(kind, []).append(site)
    if len(sites_of) > 1:
        listed = " and ".join(f"{kind} at {', '.join(sites)}" for kind, sites in sites_of.items())
        raise InputError(f"{quote(name)} has {listed}: {missing_advice(levels)}set text: [{yaml_name(name)}] in "
                         "the data of the file if it is a category, or convert it")
    return next(iter(sites_of))


def _refuse_levels(reports: Mapping[str, RowsReport], formula: Formula, cells: CellRules) -> None:
    """Refuse sites and levels that differ only in how they are written, and levels that are meant as numbers."""
    check_spellings("among the sites", reports)
    found: dict[str, dict[str, int]] = {}
    for report in reports.values():
        for column, levels in {**report.levels, formula.response.columns[-1]: report.classes}.items():
            found.setdefault(column, {}).update(dict.fromkeys(levels, 1))
    for name, of_all in found.items():
        for mistake in level_mistakes(name, of_all, cells):
            raise mistake


def _without(reports: Mapping[str, RowsReport]) -> str:
    left_out = sum(report.left_out for report in reports.values())
    return f" ({count_of(left_out, 'row')} with missing values left out)" if left_out else ""


def _check_references(formula: Formula, levels: Mapping[str, list[str]], classes: Mapping[str, int],
                      settings: RegressionSettings) -> None:
    """Refuse base levels that there are not."""
    for name, base in settings.references.items():
        if name == formula.response.event:
            continue
        if name not in (*formula.variables, formula.response.label):
            raise InputError(f"reference={{{quote(name)}: ...}} is not in the formula"
                             + alternatives(name, formula.variables))
        known = [*classes] if name == formula.response.label else levels.get(name)
        if known is None:
            raise InputError(f"reference={{{quote(name)}: ...}} is a column of numbers: write C({name}) in the formula")
        if str(base) not in known:
            raise InputError(f"{quote(base)} is no level of {quote(name)}{alternatives(str(base), known)}")


def _family(formula: Formula, settings: RegressionSettings, reports: Mapping[str, RowsReport]) -> str:
    """The family, if it is certain."""
    family, response = settings.family, formula.response
    if (response.event is not None) != (family == "cox") and (response.event is None or family != "auto"):
        raise InputError(f"family={family} and the label of {quote(formula.text)} do not fit together: a Cox model has "
                         "the label Surv(time, event), and the others have one column")
    if response.event is not None:
        return "cox"
    if family != "auto":
        return family
    can_be_classes = all(report.classes for report in reports.values())
    levels = {level for report in reports.values() for level in report.classes}
    if can_be_classes and len(levels) == 2:
        return "binomial"
    if all(report.label == "classes" for report in reports.values()):
        return "multinomial"
    if any(report.label == "decimal" for report in reports.values()):
        return "gaussian"
    raise InputError(f"{quote(response.label)} has whole numbers, which can be counts, amounts or classes: set family= "
                     "to poisson, negative_binomial, gaussian, ordinal or multinomial")
