"""Agreement of the sites on columns, categories, classes and scaling, without pooling rows.

Each site reports the names and kinds of its columns, the levels of categories, and the classes. For each column of
numbers it reports the count, the mean and the sum of squared deviations over the training rows. No smallest or largest
value leaves a site, because it is the value of one row. Levels with fewer rows than the site's minimum count are not
named, and a mean over fewer rows is not reported: the mean of the other sites is used.

The reports determine one encoding for all sites. Means and deviations equal those of the pooled training rows up to
rounding, see ``table_sums``; with secure sums the server has nothing but the pooled numbers, and the same encoding.
Missing numbers are imputed by the pooled mean; a simulation imputes the median, which cannot be computed from sums.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from resolvent.errors import InputError, shorten
from resolvent.federation.protocol.table_reports import ColumnReport, LabelReport, TableReport
from resolvent.federation.protocol.table_sums import pooled
from resolvent.tables.cells import level_mistakes, missing_advice, spelling_mistakes, yaml_name
from resolvent.tables.column_encodings import (
    CategoryColumn,
    LabelEncoding,
    NumberColumn,
    join_rare,
    list_values,
    task_of_labels,
)
from resolvent.tables.columns import MAX_CATEGORIES
from resolvent.tables.dates import date_column
from resolvent.tables.encoding import TableEncoding
from resolvent.tables.table_options import TableOptions


class Agreement(NamedTuple):
    """The common encoding of all sites, or the conflicts between them.

    Attributes:
        encoding: the encoding of every site; None if there are conflicts.
        conflicts: one sentence for each site and column that does not fit the others.
    """

    encoding: TableEncoding | None
    conflicts: tuple[str, ...]


def agree(reports: Mapping[str, TableReport], settings: TableOptions, total: TableReport | None = None) -> Agreement:
    """Find the common encoding of all sites.

    Args:
        reports: the report of each site, in the order of the parties; their names and kinds suffice if there is a
            ``total``.
        total: the pooled report; default: that of ``reports``.
    """
    labels: list[LabelEncoding] = []
    conflicts = [*spelling_mistakes("among the sites", reports), *conflicts_of_names(reports)]
    for name, reported in zip(settings.labels, zip(*(report.labels for report in reports.values()), strict=True),
                              strict=True):
        label, label_conflicts = _agree_label(name, dict(zip(reports, reported, strict=True)), settings.task)
        conflicts += label_conflicts
        levels = (level for report in reported if report.kind == "text" for level in report.classes)
        conflicts += map(str, level_mistakes(name, dict.fromkeys(levels, 1), settings.cells))
        labels += [] if label is None else [label]
    if not conflicts:
        try:
            task_of_labels(labels)
        except InputError as error:
            conflicts.append(str(error))
    if conflicts:
        return Agreement(None, tuple(conflicts))
    total = pooled([*reports.values()]) if total is None else total
    min_rows = settings.min_level_rows
    if conflicts := [line for column in total.columns for line in _column_conflicts(column, min_rows, settings)]:
        return Agreement(None, tuple(conflicts))
    numbers = tuple(_number_column(column, total.rows["train"], settings.scale) for column in total.columns
                    if column.kind != "text")
    categories = tuple(_category_column(column, min_rows) for column in total.columns if column.kind == "text")
    marked = tuple(column.name for column in total.columns if column.has_missing)
    missing = settings.treatment
    dates = tuple(date_column(name, settings.dates) for name in total.dates)
    return Agreement(TableEncoding(settings.party, tuple(labels), numbers, categories,
                                   marked if missing == "indicate" else (), missing, dates, settings.unseen,
                                   tuple((name, tuple(codes)) for name, codes in settings.cells.codes.items())), ())


def misfits(site: str, report: TableReport, encoding: TableEncoding) -> list[str]:
    """One sentence for each column of a site that does not fit an encoding to which the site did not contribute."""
    columns = {column.name: column for column in report.columns}
    kinds = {c.name: "boolean" if c.is_boolean else "number" for c in encoding.numbers}
    levels = {c.name: {*c.levels, *c.rare} for c in encoding.categories}
    kinds |= dict.fromkeys(levels, "text")
    lines = [f"column {shorten(repr(name))} is absent: name the site's column in columns" for name in kinds
             if name not in columns]
    lines += [f"column {shorten(repr(name))} is not a column of the run: leave it out of the site's table"
              for name in columns if name not in kinds]
    for name, column in columns.items():
        if name in kinds and column.kind != kinds[name]:
            lines.append(f"column {shorten(repr(name))} holds {column.kind} values, and {kinds[name]} values in the "
                         "run: convert it")
        elif unknown := {*(column.levels or {})} - levels.get(name, {*(column.levels or {})}):
            lines.append(f"column {shorten(repr(name))} has the level {shorten(repr(min(unknown)))}, which the run "
                         "does not have: join it with another level")
    for label, of_run in zip(report.labels, encoding.labels, strict=True):
        if unknown := {*label.classes} - {*of_run.classes}:
            lines.append(f"the label has the class {shorten(repr(min(unknown)))}, which the run does not have: leave "
                         "its rows out")
    return [f"{site}: {line}" for line in lines]


def conflicts_of_names(reports: Mapping[str, TableReport]) -> list[str]:
    """One sentence for each column that a site does not have, or has with values of another kind than most sites."""
    columns: dict[str, dict[str, str]] = {}
    for site, report in reports.items():
        for column in report.columns:
            columns.setdefault(column.name, {})[site] = column.kind
    lines = [] if columns else ["no column is left to predict from"]
    for name, by_site in columns.items():
        title = f"column {shorten(repr(name))}"
        if absent := [site for site in reports if site not in by_site]:
            lines.append(f"{', '.join(absent)}: {title} is absent, and present at {', '.join(by_site)}: name the "
                         "site's column in columns, or exclude it")
            continue
        usual = Counter(by_site.values()).most_common(1)[0][0]
        few = missing_advice(level for report in reports.values() for column in report.columns
                             if column.name == name for level in column.levels or ())
        advice = f"{few}set text: [{yaml_name(name)}] for all sites if it is a category, convert it, or exclude it"
        lines += [f"{site}: {title} holds {kind} values, and {usual} values at most sites: {advice}"
                  for site, kind in by_site.items() if kind != usual]
    return lines


def _column_conflicts(column: ColumnReport, min_rows: int, settings: TableOptions) -> list[str]:
    title = f"column {shorten(repr(column.name))}"
    levels_of_all = dict.fromkeys(column.levels or (), 1)
    conflicts = [str(mistake) for mistake in level_mistakes(column.name, levels_of_all, settings.cells)]
    if not (column.count or column.levels):
        conflicts.append(f"{title} has at no site as many values in the training rows as the site's min_cell: exclude "
                         "it")
    levels = {level for level, count in (column.levels or {}).items() if count >= min_rows}
    if len(levels) + (min_rows > 0) > MAX_CATEGORIES:
        change = "set a larger rare_count" if min_rows else "set rare: other to join the rare ones"
        conflicts.append(f"{title} has {len(levels)} levels at all sites, at most {MAX_CATEGORIES} are allowed: "
                         f"exclude it, or {change}")
    if not conflicts and column.kind == "text" and not levels:
        conflicts.append(f"{title} has no level that a site may name: exclude it, or lower min_cell in site.yaml")
    return conflicts


def _agree_label(name: str, labels: Mapping[str, LabelReport], task: str) -> tuple[LabelEncoding | None, list[str]]:
    title = f"the label {shorten(repr(name))}"
    kinds = Counter(label.kind for label in labels.values())
    usual: Any = kinds.most_common(1)[0][0]
    are_numbers = {*kinds} <= {"integer", "decimal"}
    if len(kinds) > 1 and not (task == "regression" and are_numbers):
        quantity = "set task: regression if it is a quantity, or " if are_numbers else ""
        advice = f"{quantity}set text: [{yaml_name(name)}] for all sites if it has classes, or convert it"
        return None, [f"{site}: {title} holds {label.kind} values, and {usual} values at most sites: {advice}"
                      for site, label in labels.items() if label.kind != usual]
    if task == "regression" or (task == "auto" and usual == "decimal"):
        if not are_numbers:
            return None, [f"{title} holds {usual} values, and regression needs numbers"]
        return LabelEncoding(name, "decimal" if len(kinds) > 1 else usual, "regression"), []
    classes = {c for label in labels.values() for c in label.classes}
    if len(classes) < 2:
        return None, [f"{title} has {len(classes)} classes at all sites, at least 2 are needed"]
    return LabelEncoding(name, usual, "classification", list_values([*classes], usual)), []


def _number_column(total: ColumnReport, rows: int, scale: str) -> NumberColumn:
    """The encoding of a column of numbers whose missing values become the pooled mean."""
    column = NumberColumn(total.name, total.mean, is_boolean=total.kind == "boolean")
    if scale != "standard":
        return column
    variance = total.squares / rows  # an imputed row lies at the mean, and adds nothing to the sum
    # The rule by which scikit-learn recognises a column of equal numbers despite rounding.
    epsilon = float(np.finfo(float).eps)
    is_constant = variance <= rows * epsilon * variance + (rows * total.mean * epsilon) ** 2
    return replace(column, mean=total.mean, deviation=1.0 if is_constant else math.sqrt(variance))


def _category_column(total: ColumnReport, min_rows: int) -> CategoryColumn:
    """The encoding of a column of text; levels with fewer than ``min_rows`` training rows are joined."""
    counts = Counter(total.levels)
    imputed = max(sorted(counts), key=lambda level: counts[level])
    return join_rare(total.name, imputed, counts, min_rows)
