"""The check of a table: all findings at once, also those for which a run would be refused one at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from resolvent.data.encoded_rows import RowNames
from resolvent.data.samples import check_name, split_order, split_sizes
from resolvent.errors import InputError, count_of, quote
from resolvent.tables.cells import CellRules, ColumnError, read_cells, spelling_mistakes
from resolvent.tables.checks.column_checks import (
    check_column,
    check_units,
    leading_zeros,
    missing_codes,
)
from resolvent.tables.checks.finding import Finding, examples
from resolvent.tables.checks.label_checks import check_base_rates, check_classes, check_leaks
from resolvent.tables.checks.row_checks import check_duplicates, check_persons
from resolvent.tables.checks.table_view import TableColumn, TableView, read_column
from resolvent.tables.columns import MAX_FLOAT32, is_empty, read_label, read_parties
from resolvent.tables.dates import expand_dates, find_dates, replace_dates
from resolvent.tables.owners import group_rows
from resolvent.tables.party_tables import column_mistakes, remaining_columns
from resolvent.tables.table_options import TableOptions

if TYPE_CHECKING:
    import pandas as pd

_MAX_RATIO = 6  # rows for each value with which a label of many values is read


def check_frame(frame: "pd.DataFrame", settings: TableOptions, site: str | None = None, party: int = 0,
                cells: CellRules | None = None) -> tuple[TableView | None, list[Finding]]:
    """Check a table.

    Args:
        frame: the table; it is not changed.
        site: the site to which all rows belong; None: the column of the party says it.
        party: the number of this site, on which the split of its rows depends.
        cells: what the cells mean; default: what the settings say.

    Returns:
        The table as the checks read it, None if its rows or its label cannot be assigned; and the findings.
    """
    import pandas as pd

    names = [str(c) for c in frame.columns]
    frame = frame.set_axis(pd.Index(names, dtype=object), axis=1)
    chosen = remaining_columns(names, settings)
    findings = [Finding("columns", "error", *divided(mistake))
                for mistake in column_mistakes(names, settings, is_of_site=site is not None)]
    frame = frame.loc[:, ~frame.columns.duplicated()]
    if not len(frame):
        return None, [*findings, Finding("rows", "error", "the table has no rows", "give one row per sample")]
    labels = [name for name in settings.labels if name in frame.columns]
    cells = settings.cells if cells is None else cells
    frame = _read_cells(frame, [*({settings.party} & {*names} if site is None else ()), *labels], cells, findings)
    owners = _read_sites(frame, settings.party, site, findings)
    read = [_read_label(frame, name, settings, findings) for name in settings.labels]
    label, is_classification = read[0] if len(read) == 1 else (None, False)
    features, dates = _read_features(frame, [name for name in dict.fromkeys(chosen) if name in frame.columns
                                      and not name.startswith("Unnamed: ")], settings, cells, findings)
    if settings.weight is not None and settings.weight in frame.columns:
        findings += _check_weights(frame[settings.weight])
    if owners is None:
        return None, findings
    names_of_sites, site_of = owners
    findings += check_persons(frame, [name for name in frame.columns if name not in (
        settings.party, settings.weight, *settings.labels)], site_of)
    splits = _split_rows(site_of, len(names_of_sites), settings, party, findings)
    if splits is None:
        return None, findings
    view = TableView(frame.index, names_of_sites, site_of, splits, features, label, is_classification, dates)
    usable = (site_of >= 0) & (True if label is None else label.codes >= 0)
    view = view if usable.all() else _select(view, usable)
    if len(view.index):
        findings += _check_view(view, settings)
    return view, findings


def _check_view(view: TableView, settings: TableOptions) -> Iterator[Finding]:
    for mistake in spelling_mistakes("among the sites", view.sites):
        yield Finding("spelling", "error", *divided(mistake))
    for column in view.features.values():
        yield from check_column(view, column, settings.treatment, settings.min_level_rows)
        if column.name not in (settings.text or []):
            yield from leading_zeros(view, column)
    if view.label is not None:
        yield from missing_codes(view.label)
    yield from check_classes(view)
    yield from check_base_rates(view)
    yield from check_leaks(view)
    yield from check_units(view)
    yield from check_duplicates(view)


def divided(mistake: str) -> tuple[str, str]:
    """A sentence as the fact and the advice."""
    fact, _, advice = mistake.partition(": ")
    return fact, advice


def _read_sites(frame: "pd.DataFrame", party: str, site: str | None, findings: list[Finding]
                ) -> tuple[tuple[str, ...], NDArray[np.integer]] | None:
    """The names of the sites, and the number of the site of each row, -1 if it is missing."""
    if site is not None:
        return (site,), np.zeros(len(frame), np.int64)
    if party not in frame.columns:
        return None
    column = frame[party]
    empty = is_empty(column)
    if empty.any():
        findings.append(_missing("party", party, frame, empty, "every sample needs a site"))
    if empty.all():
        return None
    number = np.full(len(frame), -1)
    names, members = group_rows(read_parties(column[~empty]))
    for k, rows in enumerate(members):
        number[np.flatnonzero(~empty)[rows]] = k
    for name in names:
        try:
            check_name(name, "the name of a site")
        except InputError as error:
            findings.append(Finding("spelling", "error", *divided(str(error))))
    return names, number


def _missing(kind: str, name: str, frame: "pd.DataFrame", empty: NDArray[np.bool_], reason: str) -> Finding:
    rows = frame.index[np.flatnonzero(empty)[:4]].tolist()
    count = int(empty.sum())
    return Finding("missing", "error", f"the {kind} {quote(name)} is missing in {count_of(count, 'row')} "
                   f"({'row ' if count == 1 else 'rows '}{examples(rows)}), and {reason}",
                   "fill it in, or delete these rows from the table", name, value=count)


def _read_label(frame: "pd.DataFrame", name: str, settings: TableOptions, findings: list[Finding]
                ) -> tuple[TableColumn | None, bool]:
    import pandas as pd

    if name not in frame.columns:
        return None, True
    column = frame[name]
    empty = is_empty(column)
    if empty.any():
        findings.append(_missing("label", name, frame, empty, "a sample cannot be used without it"))
    codes, values = column[~empty].factorize()
    if not len(codes):
        return None, True
    # A label with the same values in the same proportion to the rows, but few rows, is judged alike and faster.
    different = pd.Series(values)
    few = different.repeat(min(_MAX_RATIO, max(len(codes) // len(different), 1)))
    task: Any = settings.task
    try:
        target = read_label(name, few, task)
    except InputError as error:
        findings.append(Finding("label", "error", *divided(str(error)), name))
        return None, True
    is_classification = target.task == "classification"
    all_codes = np.full(len(column), -1)
    all_codes[~empty] = codes
    if is_classification:
        texts = np.array([str(value) for value in different.tolist()], object)
        return TableColumn(name, all_codes, texts), True
    numbers = different.to_numpy(dtype=float)
    if not (np.abs(numbers) <= MAX_FLOAT32).all():
        findings.append(Finding("magnitude", "error", f"the label {quote(name)} has values that are infinite, or too "
                                "large for a 32-bit float", "correct them, or leave the rows out", name))
        return None, False
    return TableColumn(name, all_codes, numbers), False


def _read_features(frame: "pd.DataFrame", names: list[str], settings: TableOptions, cells: CellRules,
                   findings: list[Finding]) -> tuple[dict[str, TableColumn], tuple[str, ...]]:
    """The features that can be read, and those among them that are days."""
    frame = _read_cells(frame, names, cells, findings)
    names, days = [name for name in names if name in frame.columns], []
    try:
        dates = find_dates(frame, names, settings.dates)
        frame = expand_dates(frame, dates, RowNames(frame.index))
        names = replace_dates(names, dates)
        days = [name for date in dates if settings.dates == "days" for name in date.columns]
    except InputError as error:
        findings.append(Finding("dates", "error", *divided(str(error))))
    columns = {}
    for name in names:
        if name not in frame.columns:  # its cells cannot be read
            continue
        column, problems = read_column(name, frame[name], joins_rare=settings.rare == "other")
        findings += problems
        if column is not None:
            columns[name] = column
    return columns, tuple(name for name in days if name in columns)


def _read_cells(frame: "pd.DataFrame", names: Sequence[str], cells: CellRules, findings: list[Finding]
                ) -> "pd.DataFrame":
    """The frame with these columns read, without those whose cells cannot be read."""
    for name in names:
        try:
            frame = read_cells(frame, [name], cells)
        except ColumnError as error:
            findings.append(Finding(error.kind, "error", *divided(str(error)), name))
            frame = frame.drop(columns=name)
    return frame


def _check_weights(weights: "pd.Series[Any]") -> Iterator[Finding]:
    import pandas as pd

    name = str(weights.name)
    numbers = pd.to_numeric(weights, errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    wrong = np.flatnonzero(~(np.isfinite(numbers) & (numbers >= 0)))
    if len(wrong):
        yield Finding("weight", "error", f"the weight {quote(name)} is no number of at least 0 in {len(wrong)} rows "
                      f"(rows {examples(weights.index[wrong[:4]].tolist())})", "correct it, or leave the rows out",
                      name, value=len(wrong))


def _split_rows(site_of: NDArray[np.integer], sites: int, settings: TableOptions, party: int,
                findings: list[Finding]) -> NDArray[np.integer] | None:
    """[n] 0 for training, 1 for validation, 2 for test rows, as the run divides them."""
    splits = np.zeros(len(site_of), np.int8)
    order = np.argsort(site_of, kind="stable")
    rows_of_sites = np.split(order, np.searchsorted(site_of[order], np.arange(sites)))[1:]
    for k, rows in enumerate(rows_of_sites):
        try:
            train, validation, _ = split_sizes(len(rows), settings.validation, settings.test)
        except InputError as error:
            findings.append(Finding("split", "error", *divided(str(error))))
            return None
        drawn = rows[split_order(len(rows), party + k, settings.seed)]
        splits[drawn[train:train + validation]], splits[drawn[train + validation:]] = 1, 2
    return splits


def _select(view: TableView, rows: NDArray[np.bool_]) -> TableView:
    """The table without the rows that have no site or no label."""
    def select(column: TableColumn) -> TableColumn:
        return replace(column, codes=column.codes[rows])

    return TableView(view.index[rows], view.sites, view.site_of[rows], view.split_of[rows],
                     {name: select(column) for name, column in view.features.items()},
                     None if view.label is None else select(view.label), view.is_classification, view.dates)
