"""The reports of all sites as one: in plain arithmetic, or from a secure sum of integers, with the same numbers.

.. code-block:: text

    a site           n_k, n_k m_k and S_k + n_k m_k^2 of a column; counts of levels and classes; sums of weights
    all sites        n = sum n_k,  m = sum n_k m_k / n,  S = sum (S_k + n_k m_k^2) - n m^2

with the count n_k, the mean m_k and the sum of squared deviations S_k of the site's report. The sums have no rounding
(``math.exact_sums``), so that they do not depend on the order, and S has no cancellation.

In a secure sum the site sends names and kinds only, see ``names_only``; its numbers are a vector of integers in an
order that follows from the names.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from resolvent.data.federated import SPLITS
from resolvent.federation.protocol.exact_sums import EXACT_WORDS, exact_words, from_exact_words, on_exact_grid
from resolvent.federation.protocol.refusals import Refusal, RefusalCode
from resolvent.federation.protocol.table_reports import ColumnReport, LabelReport, TableReport


def names_only(report: TableReport, listed: Collection[str], labels: Sequence[str]) -> TableReport:
    """The part of a report that depends on no row but through the kinds of the columns.

    Args:
        listed: the columns of text, and the labels, whose levels the experiment lists.
    """
    unlisted = [column.name for column in report.columns if column.levels is not None and column.name not in listed]
    unlisted += [name for name, label in zip(labels, report.labels, strict=True)
                 if label.classes and name not in listed]
    if unlisted:
        raise Refusal(RefusalCode.UNLISTED, f"the experiment does not list the levels of {', '.join(unlisted)}",
                      column=unlisted[0])
    columns = tuple(replace(
        column, has_missing=False, count=0, mean=0.0, squares=0.0, has_hidden=False,
        levels=None if column.levels is None else dict.fromkeys(column.levels, 0)) for column in report.columns)
    of_labels = tuple(LabelReport(label.kind, dict.fromkeys(label.classes, 0), None if label.weights is None else
                                  dict.fromkeys(label.classes or [""], 0.0)) for label in report.labels)
    return TableReport(dict.fromkeys(SPLITS, 0), columns, of_labels, report.dates)


def pooled(reports: Sequence[TableReport]) -> TableReport:
    """The report of all sites together. The sites must have the same columns."""
    columns: dict[str, list[ColumnReport]] = {}
    for column in (column for report in reports for column in report.columns):
        columns.setdefault(column.name, []).append(column)
    labels = tuple(map(_pooled_label, zip(*(report.labels for report in reports), strict=True)))
    return TableReport({split: sum(report.rows[split] for report in reports) for split in SPLITS},
                       tuple(map(_pooled_column, columns.values())), labels,
                       tuple(dict.fromkeys(date for report in reports for date in report.dates)))


def _pooled_label(labels: Sequence[LabelReport]) -> LabelReport:
    weights = [label.weights for label in labels if label.weights is not None]
    sums = {name: float(sum(on_exact_grid(of_site.get(name, 0.0)) for of_site in weights))
            for name in dict.fromkeys(name for of_site in weights for name in of_site)}
    return LabelReport(labels[0].kind, _added([label.classes for label in labels]), sums if weights else None)


def _pooled_column(columns: Sequence[ColumnReport]) -> ColumnReport:
    first, has_missing = columns[0], any(column.has_missing for column in columns)
    if any(column.levels is not None for column in columns):
        levels = _added([column.levels or {} for column in columns])
        return replace(first, has_missing=has_missing, count=sum(levels.values()), levels=levels,
                       has_hidden=any(column.has_hidden for column in columns))
    moments = [_moments(column) for column in columns]
    return _number_column(first, has_missing, sum(column.count for column in columns),
                          *(sum(of_sites, Fraction()) for of_sites in zip(*moments, strict=True)))


def _moments(column: ColumnReport) -> tuple[Fraction, Fraction]:
    """n m and S + n m^2."""
    mean = Fraction(column.mean)
    return (on_exact_grid(column.count * mean),
            on_exact_grid(Fraction(column.squares) + column.count * mean * mean))


def _number_column(like: ColumnReport, has_missing: bool, count: int, first: Fraction,
                   second: Fraction) -> ColumnReport:
    """A column of numbers, from its count, the sum of its values and that of their squares."""
    mean, squares = (first / count, second - first * first / count) if count else (Fraction(), Fraction())
    return ColumnReport(like.name, like.kind, has_missing, count, float(mean), float(max(squares, Fraction())))


def _added(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    names = dict.fromkeys(name for of_site in counts for name in of_site)
    return {name: sum(of_site.get(name, 0) for of_site in counts) for name in names}


def integers_of(report: TableReport, names: TableReport) -> NDArray[np.uint64]:
    """[n] the numbers of a report as integers modulo 2^64, whose sum over the sites ``pooled_from_integers`` reads.

    Args:
        names: its ``names_only``.

    Raises:
        InputError: a number is 2^255 or larger.
    """
    columns = {column.name: column for column in report.columns}
    integers = [report.rows[split] for split in SPLITS]
    for column in _in_order(names):
        of_site = columns[column.name]
        integers.append(int(of_site.has_missing))
        if column.levels is not None:
            integers += [(of_site.levels or {}).get(level, 0) for level in sorted(column.levels)]
        else:
            integers += [of_site.count, *(word for moment in _moments(of_site) for word in exact_words(moment))]
    for reported, label in zip(report.labels, names.labels, strict=True):
        integers += [reported.classes.get(name, 0) for name in sorted(label.classes)]
        for name in sorted(label.weights or {}):
            integers += exact_words((reported.weights or {}).get(name, 0.0))
    return np.array([integer % 2**64 for integer in integers], np.uint64)


def pooled_from_integers(total: NDArray[np.uint64], names: TableReport) -> TableReport:
    """The ``pooled`` report, from the sum of the integers of all sites.

    Args:
        total: [n] the sum.
        names: ``names_only`` of any site.
    """
    values = iter(total.view(np.int64).tolist())
    rows = {split: next(values) for split in SPLITS}
    columns = {}
    for column in _in_order(names):
        has_missing = next(values) > 0
        if column.levels is not None:
            levels = {level: next(values) for level in sorted(column.levels)}
            levels = {level: levels[level] for level in column.levels}
            columns[column.name] = replace(column, has_missing=has_missing, count=sum(levels.values()), levels=levels)
        else:
            count = next(values)
            columns[column.name] = _number_column(column, has_missing, count, _next_exact(values), _next_exact(values))
    labels = []
    for label in names.labels:
        counts = {name: next(values) for name in sorted(label.classes)}
        weights = None if label.weights is None else {
            name: float(_next_exact(values)) for name in sorted(label.weights)}
        labels.append(LabelReport(label.kind, {name: counts[name] for name in label.classes}, weights))
    return TableReport(rows, tuple(columns[column.name] for column in names.columns), tuple(labels), names.dates)


def count_of_integers(names: TableReport) -> int:
    """Length of ``integers_of``."""
    return len(integers_of(names, names))


def _in_order(names: TableReport) -> list[ColumnReport]:
    return sorted(names.columns, key=lambda column: column.name)


def _next_exact(values: Iterator[int]) -> Fraction:
    return from_exact_words(next(values) for _ in range(EXACT_WORDS))
