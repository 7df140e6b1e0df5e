"""From a table and a formula to the regression of every site."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from resolvent.comparisons.regression.agreement import (
    RowsAgreement,
    agree_on_rows,
    describe_rows,
    level_names,
)
from resolvent.comparisons.regression.formula import (
    MAX_COLUMNS,
    Design,
    Formula,
    check_columns,
    design_of,
    parse_formula,
)
from resolvent.comparisons.regression.imputation import has_draws, impute
from resolvent.comparisons.regression.label_numbers import numbers_of, offsets_of, times_of
from resolvent.comparisons.regression.model import RegressionModel
from resolvent.comparisons.regression.settings import RegressionSettings
from resolvent.data.encoded_rows import RowNames
from resolvent.errors import InputError, alternatives, quote
from resolvent.regression.cox import CoxRegression
from resolvent.regression.families import FAMILIES
from resolvent.regression.objective import RegressionProblem, RowRegression
from resolvent.regression.site_intercepts import SiteIntercepts
from resolvent.tables.cells import ALL_COLUMNS, CellRules, ColumnError, read_cells, with_unique_names
from resolvent.tables.columns import check_magnitudes, label_kind, read_feature
from resolvent.tables.owners import natural_order, read_owners
from resolvent.tables.table_files import read_table_file
from resolvent.tables.text_formats import TextFormat

if TYPE_CHECKING:
    import pandas as pd

DATES_AS_NUMBERS = "replace it by a number, such as the days since a first day, or the year"
_SHOWN = 8  # levels in a message


class NoCompleteRowError(InputError):
    """No row of a site has values in all columns that are used.

    Attributes:
        column: a column that has no value in any row; None if each has some.
    """

    def __init__(self, frame: "pd.DataFrame", used: Sequence[str], site: str = "") -> None:
        absent = [name for name in used if frame[name].isna().all()]
        self.column = absent[0] if absent else None
        reason = f"{', '.join(map(quote, absent))} has no value in any row" if absent else (
            f"no row has values in all columns that are used: {', '.join(map(quote, used))}")
        place = f"site {quote(site)}: " if site else ""
        super().__init__(f"{place}{reason}. Leave the column or the site out, or fill missing values in the table")


@dataclass(frozen=True)
class RegressionRows:
    """The rows of a regression: those of all sites, one after the other, or those of one site.

    Attributes:
        model: what is fitted.
        sizes: [K] the numbers of rows of the sites whose rows these are.
        x: [rows, d] the columns.
        y: [rows] the label as a number; for Cox the time.
        event: [rows] whether the event occurred; None if the label is no time.
        entry: [rows] time of entry; None: rows are at risk from the beginning.
        strata: [rows] number of the stratum; None: a site is one.
        offsets: [rows] the offset; None: zero.
        weights: [rows] the weight of each row; None: 1.
        clusters: [rows] number of the cluster; None: a site is one.
        levels: column of categories -> [rows] its levels.
    """

    model: RegressionModel
    sizes: NDArray[np.int64]
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    event: NDArray[np.bool_] | None = None
    entry: NDArray[np.float64] | None = None
    strata: NDArray[np.int64] | None = None
    offsets: NDArray[np.float64] | None = None
    weights: NDArray[np.float64] | None = None
    clusters: NDArray[np.int64] | None = None
    levels: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def problem(self, *, l2: float = 0.0) -> RegressionProblem:
        """The objectives of the sites.

        Args:
            l2: weight of half the sum of the squared coefficients, the intercept left out.
        """
        model, penalty = self.model, l2 * self.model.is_penalised
        power = 2 if model.weights == "sampling" else 1
        if model.family is None:
            return CoxRegression(self.x, self.y, self.event, self.sizes, entry=self.entry, strata=self.strata,
                                 offsets=self.offsets, weights=self.weights, clusters=self.clusters, power=power,
                                 ties=model.ties, l2=penalty, longest=max(model.site_rows))
        regression = SiteIntercepts if model.keeps_intercepts else RowRegression
        return regression(model.family, self.x, self.y, self.sizes, offsets=self.offsets, weights=self.weights,
                          clusters=self.clusters, power=power, start=model.start, l2=penalty, block=model.block)


def read_tables(data: "pd.DataFrame | str | Path", settings: RegressionSettings, *, party: str,
                format: TextFormat = TextFormat(), cells: CellRules = CellRules()) -> Iterator[RegressionRows]:  # noqa: B008
    """The rows of all sites: once, without those that have a missing value; or for each imputation, with drawn values.

    Args:
        cells: what the cells of the table mean.
    """
    formula, cells = parse_formula(settings.formula), cells | CellRules(text=frozenset([party]))
    wanted = [party, *formula.response.columns, *formula.variables, *settings.columns]
    frame = with_unique_names(read_columns(data, wanted, format, cells) if isinstance(data, str | Path) else data)
    check_named(frame, party, "party")
    for name in {*cells.text, *cells.codes} - {ALL_COLUMNS}:
        check_named(frame, name, "text or missing")
    used = used_cells(frame, formula, settings, [party], cells)
    all_owners = read_owners(read_cells(frame, [party], cells), party)
    for number in range(settings.imputations or 1):
        table = used if settings.imputations is None else impute(used, formula, settings, all_owners, number)
        yield _encode_table(table, used, all_owners, formula, settings, party, cells)


def _encode_table(table: "pd.DataFrame", used: "pd.DataFrame", all_owners: NDArray[Any], formula: Formula,
                  settings: RegressionSettings, party: str, cells: CellRules) -> RegressionRows:
    """The complete rows of a table, in the order of the sites.

    Args:
        used: the table with its gaps.
        all_owners: [rows of the table] their sites.
    """
    import pandas as pd

    complete = without_gaps(table)
    owners = pd.Series(read_owners(complete, party))
    counts = Counter(all_owners.tolist())
    for name in counts:
        if name not in owners.values:
            raise NoCompleteRowError(table[all_owners == name], [*table], name)
    imputed = Counter(all_owners[has_draws(used, table)].tolist())
    names = sorted(owners.unique(), key=natural_order)
    order = np.argsort(owners.map({name: k for k, name in enumerate(names)}), kind="stable")
    complete, owners = complete.iloc[order].reset_index(drop=True), owners.iloc[order].reset_index(drop=True)
    reports = {name: describe_rows(rows, formula, settings, counts[name] - len(rows), imputed[name])
               for name, rows in complete.groupby(owners, sort=False)}
    are_checked = CellRules(cells.codes, frozenset(map(str, complete)))  # the levels of all sites are read together
    agreement = agree_on_rows(reports, formula, settings, are_checked)
    rows = encode_rows(complete, formula, settings, agreement, [*agreement.sites.values()])
    if rows.strata is not None and rows.event is not None and settings.strata is not None:
        without = [level for level in np.unique(rows.levels[settings.strata].astype(str))
                   if not rows.event[rows.levels[settings.strata] == level].any()]
        if without:
            raise InputError(f"no event occurred where {quote(settings.strata)} is {quote(without[0])}, so that this "
                             "stratum says nothing: leave its rows out, or join strata")
    return rows


def complete_rows(frame: "pd.DataFrame", formula: Formula, settings: RegressionSettings,
                  others: Sequence[str] = (), cells: CellRules = CellRules()) -> "pd.DataFrame":  # noqa: B008
    """The columns that are used, without rows that have a missing value in one; see ``used_cells``."""
    return without_gaps(used_cells(frame, formula, settings, others, cells))


def without_gaps(frame: "pd.DataFrame") -> "pd.DataFrame":
    """The rows without a missing value."""
    complete = frame.dropna().infer_objects()
    if complete.empty:
        raise NoCompleteRowError(frame, [*frame])
    return complete


def used_cells(frame: "pd.DataFrame", formula: Formula, settings: RegressionSettings,
               others: Sequence[str] = (), cells: CellRules = CellRules()) -> "pd.DataFrame":  # noqa: B008
    """The columns that are used, as they are read; a missing value is NaN.

    Args:
        others: further columns, which must not be features.
        cells: what the cells of the table mean.
    """
    frame = with_unique_names(frame)
    check_columns(formula, frame.columns, others)
    for name in settings.columns:
        check_named(frame, name, "offset, exposure, weights, strata or cluster")
    used = list(dict.fromkeys([*others, *formula.response.columns, *formula.variables, *settings.columns]))
    frame = read_cells(frame[used], used, cells)
    values: dict[str, NDArray[Any]] = {}
    for name in [*formula.variables, *settings.columns]:
        try:
            values[name] = read_feature(name, frame[name], max_levels=None)
        except ColumnError as error:
            if error.kind != "dates":
                raise
            raise InputError(f"{quote(name)} holds dates, each of which would be a category: "
                             f"{DATES_AS_NUMBERS}") from error
    for name in formula.response.columns:
        known = frame[name].dropna().infer_objects()
        if len(known) and label_kind(name, known) in ("integer", "decimal"):
            values[name] = read_feature(name, frame[name], max_levels=None)
    check_magnitudes(values.items(), RowNames(frame.index))
    return frame


def encode_rows(frame: "pd.DataFrame", formula: Formula, settings: RegressionSettings, agreement: RowsAgreement,
                sizes: Sequence[int]) -> RegressionRows:
    """The rows of one or all sites as numbers."""
    frame = frame.reset_index(drop=True)
    has_baseline = (agreement.family == "cox" or settings.site == "fixed"
                    or FAMILIES[agreement.family].has_thresholds)
    names, x = encode_features(frame, formula, agreement.levels, agreement.moments, has_baseline=has_baseline)
    model = RegressionModel.of_agreement(settings, names, agreement)
    y: NDArray[np.float64]
    label = frame[formula.response.label]
    if model.classes:
        numbers = {level: float(i) for i, level in enumerate(model.classes)}
        y = np.asarray(_known_levels(label, model.classes).map(numbers), np.float64)
    else:
        labels = "positive" if agreement.family == "cox" else FAMILIES[agreement.family].labels
        assert labels != "classes"
        y = numbers_of(label, labels)
    event, entry, strata = None, None, None
    if formula.response.event is not None:
        event = np.asarray(_known_levels(frame[formula.response.event], [*agreement.classes]) == model.event, bool)
        entry = times_of(frame, formula.response)[1]
        if ends := model.baseline_times:  # an interval ends with its last time
            first = 0 if entry is None else np.searchsorted(ends, entry, side="right") * (len(ends) + 1)
            y, event, entry = 2.0 * (first + np.searchsorted(ends, y)) + event, None, None
    of_rows = {name: np.asarray(level_names(frame[name]), object) for name in agreement.levels}
    if settings.strata is not None:
        of_rows[settings.strata] = np.asarray(level_names(frame[settings.strata]), object)
        strata = np.unique(of_rows[settings.strata].astype(str), return_inverse=True)[1]
    weights = None
    if settings.weights is not None:
        kind, column = settings.weights
        weights = numbers_of(frame[column], "frequency" if kind == "frequency" else "positive")
    clusters = None if settings.cluster is None else np.unique(level_names(frame[settings.cluster]),
                                                               return_inverse=True)[1]
    offsets = offsets_of(frame, settings.added)
    return RegressionRows(model, np.array(sizes), x, y, event, entry, strata, offsets, weights, clusters, of_rows)


def encode_features(frame: "pd.DataFrame", formula: Formula, levels: Mapping[str, Sequence[str]],
                    moments: Mapping[str, Sequence[float]], *, has_baseline: bool) -> Design:
    """The columns of the design of rows without missing values.

    Args:
        levels: column of categories -> its levels, base first.
        moments: column of polynomials -> its moments over the rows of all sites.
        has_baseline: whether a baseline of each site, or thresholds, take the place of the intercept.
    """
    import pandas as pd

    for name, known in levels.items():
        frame = frame.assign(**{name: pd.Categorical(_known_levels(frame[name], known), categories=[*known])})
    if (count := formula.count_columns(levels)) > MAX_COLUMNS:
        raise InputError(f"the formula {quote(formula.text)} has up to {count} columns with the levels of its "
                         f"categories: it may have {MAX_COLUMNS}")
    names, x = design_of(formula, frame, moments)
    columns = [j for j, name in enumerate(names) if not (has_baseline and name == "Intercept")]
    if not columns:
        raise InputError(f"the formula {quote(formula.text)} has no column but the intercept, and each site has a "
                         "baseline of its own, or the classes have thresholds")
    return Design(tuple(names[j] for j in columns), x[:, columns])


def rows_without_values(model: RegressionModel) -> RegressionRows:
    """One row of zeros, from which a server without rows knows the shapes of replies."""
    event = np.zeros(1, bool) if model.family is None else None
    entry = np.zeros(1) if parse_formula(model.formula).response.entry is not None else None
    return RegressionRows(model, np.array([1]), np.zeros((1, len(model.columns))), np.zeros(1), event, entry)


def read_columns(path: str | Path, wanted: Sequence[str], format: TextFormat,
                 cells: CellRules = CellRules()) -> "pd.DataFrame":  # noqa: B008
    """A file as a table.

    Args:
        wanted: the columns that are used.
        cells: what the cells mean.
    """
    return read_table_file(str(path), format, wanted, cells, lambda name: name in wanted)[0]


def check_named(frame: "pd.DataFrame", name: str, role: str) -> None:
    """Refuse a table without a column."""
    if name not in frame.columns:
        raise InputError(f"the table has no column {quote(name)} ({role}){alternatives(name, list(frame.columns))}")


def _known_levels(column: "pd.Series[Any]", levels: Sequence[str]) -> "pd.Series[str]":
    names = level_names(column)
    if unknown := {*names.unique()} - {*levels}:
        known = ", ".join(map(quote, levels[:_SHOWN])) + ", ..." * (len(levels) > _SHOWN)
        raise InputError(f"{quote(column.name)} has the level {quote(min(unknown))}, which the regression does not "
                         f"have: it has {known}")
    return names
