"""Agreement of the sites on columns, categories, classes and scaling, without pooling rows.

Each site reports the names and kinds of its columns, the levels of categories, and the classes. For each column of
numbers it reports the count, the mean and the sum of squared deviations over the training rows. No smallest or largest
value leaves a site, because it is the value of one row. Levels with fewer rows than the site's minimum count are not
named, and a mean over fewer rows is not reported: the mean of the other sites is used.

The reports determine one encoding for all sites. Means and deviations equal those of the pooled training rows up to
rounding: with counts n_k, means m_k and sums of squared deviations S_k, the pooled sum is
S = sum_k S_k + n_k (m_k - m)^2 (Chan, Golub, LeVeque). Missing numbers are imputed by the pooled mean; a simulation
imputes the median, which cannot be computed from sums.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from resolvent.data.tables.column_encodings import (
    CategoryColumn,
    LabelEncoding,
    NumberColumn,
    join_rare,
    list_values,
    task_of_labels,
)
from resolvent.data.tables.columns import MAX_CATEGORIES
from resolvent.data.tables.dates import date_column
from resolvent.data.tables.encoding import TableEncoding
from resolvent.data.tables.table_settings import TableSettings
from resolvent.errors import InputError, shorten
from resolvent.federation.protocol.table_reports import ColumnReport, LabelReport, TableReport

__all__ = ["Agreement", "agree", "misfits"]


class Agreement(NamedTuple):
    """The common encoding of all sites, or the conflicts between them.

    Attributes:
        encoding: the encoding of every site; None if there are conflicts.
        conflicts: one sentence for each site and column that does not fit the others.
    """

    encoding: TableEncoding | None
    conflicts: tuple[str, ...]


def agree(reports: Mapping[str, TableReport], settings: TableSettings) -> Agreement:
    """Find the common encoding of all sites.

    Args:
        reports: the report of each site, in the order of the parties.
        settings: settings of the experiment.
    """
    columns: dict[str, dict[str, ColumnReport]] = {}
    for site, report in reports.items():
        for column in report.columns:
            columns.setdefault(column.name, {})[site] = column
    min_rows = settings.rare_count if settings.rare == "other" else 0
    conflicts = [line for name, by_site in columns.items()
                 for line in _column_conflicts(name, by_site, [*reports], min_rows)]
    labels: list[LabelEncoding] = []
    for name, reported in zip(settings.labels, zip(*(report.labels for report in reports.values()), strict=True),
                              strict=True):
        label, label_conflicts = _agree_label(name, dict(zip(reports, reported, strict=True)), settings.task)
        conflicts += label_conflicts
        labels += [] if label is None else [label]
    if not columns:
        conflicts.append("no column is left to predict from")
    if not conflicts:
        try:
            task_of_labels(labels)
        except InputError as error:
            conflicts.append(str(error))
    if conflicts:
        return Agreement(None, tuple(conflicts))
    rows = sum(report.rows["train"] for report in reports.values())
    numbers = tuple(_pooled(name, [*by_site.values()], rows, settings.scale) for name, by_site in columns.items()
                    if next(iter(by_site.values())).kind != "text")
    categories = tuple(_joined(name, [*by_site.values()], min_rows) for name, by_site in columns.items()
                       if next(iter(by_site.values())).kind == "text")
    marked = tuple(name for name, by_site in columns.items() if any(c.has_missing for c in by_site.values()))
    missing: Any = settings.missing
    dates = tuple(date_column(name, settings.dates) for name in dict.fromkeys(
        name for report in reports.values() for name in report.dates))
    return Agreement(TableEncoding(settings.party, labels[0], numbers, categories,
                                   marked if missing == "indicate" else (), missing, dates, settings.unseen,
                                   tuple(labels[1:])), ())


def misfits(site: str, report: TableReport, encoding: TableEncoding) -> list[str]:
    """One sentence for each column of a site that does not fit an encoding to which the site did not contribute.

    Args:
        site: name of the site.
        report: the report on its table.
        encoding: the encoding of the run that the site joins.
    """
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


def _column_conflicts(name: str, by_site: Mapping[str, ColumnReport], sites: Sequence[str], min_rows: int
                      ) -> list[str]:
    title = f"column {shorten(repr(name))}"
    absent = [site for site in sites if site not in by_site]
    if absent:
        return [f"{', '.join(absent)}: {title} is absent, and present at {', '.join(by_site)}: name the site's column "
                "in columns, or exclude it"]
    kinds = Counter(column.kind for column in by_site.values())
    usual = kinds.most_common(1)[0][0]
    conflicts = [f"{site}: {title} holds {column.kind} values, and {usual} values at most sites: convert it, or "
                 "exclude it" for site, column in by_site.items() if column.kind != usual]
    if not conflicts and not any(column.count or column.levels for column in by_site.values()):
        conflicts.append(f"{title} has at no site as many values in the training rows as the site's min_cell: exclude "
                         "it")
    levels = {level for level, count in _count_levels(by_site.values()).items() if count >= min_rows}
    if len(levels) + (min_rows > 0) > MAX_CATEGORIES:
        change = "set a larger rare_count" if min_rows else "set rare: other to join the rare ones"
        conflicts.append(f"{title} has {len(levels)} levels at all sites, at most {MAX_CATEGORIES} are allowed: "
                         f"exclude it, or {change}")
    if not conflicts and usual == "text" and not levels:
        conflicts.append(f"{title} has no level that a site may name: exclude it, or lower min_cell in site.yaml")
    return conflicts


def _agree_label(name: str, labels: Mapping[str, LabelReport], task: str) -> tuple[LabelEncoding | None, list[str]]:
    title = f"the label {shorten(repr(name))}"
    kinds = Counter(label.kind for label in labels.values())
    usual: Any = kinds.most_common(1)[0][0]
    are_numbers = {*kinds} <= {"integer", "decimal"}
    if len(kinds) > 1 and not (task == "regression" and are_numbers):
        return None, [f"{site}: {title} holds {label.kind} values, and {usual} values at most sites: convert it"
                      for site, label in labels.items() if label.kind != usual]
    if task == "regression" or (task == "auto" and usual == "decimal"):
        if not are_numbers:
            return None, [f"{title} holds {usual} values, and regression needs numbers"]
        return LabelEncoding(name, "decimal" if len(kinds) > 1 else usual, "regression"), []
    classes = {c for label in labels.values() for c in label.classes}
    if len(classes) < 2:
        return None, [f"{title} has {len(classes)} classes at all sites, at least 2 are needed"]
    return LabelEncoding(name, usual, "classification", list_values([*classes], usual)), []


def _pooled(name: str, reports: Sequence[ColumnReport], rows: int, scale: str) -> NumberColumn:
    """The encoding of a column of numbers whose missing values become the pooled mean."""
    count = sum(report.count for report in reports)
    mean = math.fsum(report.count * report.mean for report in reports) / count
    column = NumberColumn(name, mean, is_boolean=reports[0].kind == "boolean")
    if scale != "standard":
        return column
    squares = math.fsum(report.squares + report.count * (report.mean - mean) ** 2 for report in reports)
    variance = squares / rows  # an imputed row lies at the mean, and adds nothing to the sum
    # The rule by which scikit-learn recognises a column of equal numbers despite rounding.
    epsilon = float(np.finfo(float).eps)
    is_constant = variance <= rows * epsilon * variance + (rows * mean * epsilon) ** 2
    return replace(column, mean=mean, deviation=1.0 if is_constant else math.sqrt(variance))


def _count_levels(reports: Iterable[ColumnReport]) -> Counter[str]:
    """The number of training rows of each level at all sites, without the numbers below a site's minimum count."""
    counts: Counter[str] = Counter()
    for report in reports:
        counts.update(report.levels or {})
    return counts


def _joined(name: str, reports: Sequence[ColumnReport], min_rows: int) -> CategoryColumn:
    """The encoding of a column of text; levels with fewer than ``min_rows`` training rows are joined."""
    counts = _count_levels(reports)
    imputed = max(sorted(counts), key=lambda level: counts[level])
    return join_rare(name, imputed, counts, min_rows)
