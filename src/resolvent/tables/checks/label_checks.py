"""Checks of the label: classes at the sites, few test rows, and columns that nearly determine it."""

from collections.abc import Iterator
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from resolvent.errors import count_of, quote
from resolvent.tables.checks.finding import Finding
from resolvent.tables.checks.table_view import TableColumn, TableView
from resolvent.tables.columns import excluding

__all__ = ["check_base_rates", "check_classes", "check_leaks"]

_MIN_TEST_ROWS = 5  # of each class at a site; of all rows at a site for regression
_TEST = 2  # number of the split
_MAX_LEAK_ROWS = 50_000
_MAX_BINS = 100
_MAX_DATES = 10  # columns, each two of which are compared
_LEVEL, _RATE = 0.01, 0.2
_MIN_LEAK_ROWS = 50
_DETERMINED = 0.95  # share of the errors, or of the variance, that a column removes
_DETERMINED_VARIANCE = 0.995


def check_classes(view: TableView) -> Iterator[Finding]:
    """Classes that are absent at a site, and sites with few test rows of a class."""
    if view.label is None:
        return
    codes = view.label.codes if view.is_classification else np.zeros(len(view.site_of), np.int64)
    names = view.label.values.tolist() if view.is_classification else [""]
    rows = view.count(codes, len(names))
    test = view.count(codes, len(names), view.split_of == _TEST)
    for k, site in enumerate(view.sites):
        for c in np.flatnonzero(rows[k] == 0):
            yield Finding("class absent", "warning", f"{quote(site)} has no row of class {quote(names[c])}",
                          "a model of this site alone cannot predict it; check the spelling of the labels",
                          view.label.name, site, names[c])
        if not (present := np.flatnonzero(rows[k])).size:
            continue
        rarest = present[np.argmin(test[k][present])]
        if test[k][rarest] < _MIN_TEST_ROWS:
            of_class = f" of class {quote(names[rarest])}" if view.is_classification else ""
            count = int(test[k][rarest])
            number = f"only {count_of(count, 'test row')}" if count else "no test row"
            yield Finding("few test rows", "warning", f"{quote(site)} has {number}{of_class}, so that its score is "
                          f"uncertain",
                          "folds: 5, which tests every row once, or more rows",
                          view.label.name, site, count)


def check_base_rates(view: TableView) -> Iterator[Finding]:
    """The class at each site whose share differs most from that at the other sites, if it does beyond chance.

    The difference of two shares is compared with its standard error, at the level 0.01 divided by the number of
    comparisons, and is at least a fifth.
    """
    if view.label is None or not view.is_classification or len(view.sites) < 2:
        return
    from scipy.special import ndtri  # here, because its import takes 0.1 s

    names, counts = view.label.values, view.count(view.label.codes, len(view.label.values)).astype(float)
    rows, total = counts.sum(axis=1, keepdims=True), counts.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        share, others, pooled = counts / rows, (total - counts) / (rows.sum() - rows), total / rows.sum()
        z = np.abs(share - others) / np.sqrt(pooled * (1 - pooled) * (1 / rows + 1 / (rows.sum() - rows)))
    z = np.where(np.isfinite(z) & (np.abs(share - others) > _RATE), z, 0.0)
    z[(counts == 0).any(axis=1)] = 0.0  # an absent class is a finding of its own
    for k in np.flatnonzero(z.max(axis=1) > -ndtri(_LEVEL / 2 / z.size)):
        c = int(z[k].argmax())
        yield Finding("base rate", "note", f"{share[k, c]:.0%} of the rows of {quote(view.sites[k])} are of class "
                      f"{quote(names[c])}, and {others[k, c]:.0%} of those of the other sites: more than chance",
                      "check that the label means the same there", view.label.name, view.sites[k], float(share[k, c]))


def check_leaks(view: TableView) -> Iterator[Finding]:
    """Columns that nearly determine the label, as a column does that was filled in after the outcome was known.

    A column is divided into at most 100 bins of equal numbers of rows. For classification, each row is predicted by the
    most frequent class of the other rows of its bin; the column is reported if this makes at most 5 % of the errors of
    the most frequent class of all rows. For regression, the bins must explain 99.5 % of the variance of the ranks. The
    days between two dates are such a column too: of admission and discharge, for the length of a stay.
    """
    label = view.label
    if label is None:
        return
    rows = _sample(np.flatnonzero(label.codes >= 0))
    if len(rows) < _MIN_LEAK_ROWS:
        return
    if view.is_classification:
        target = label.codes[rows]
    else:
        target = np.argsort(np.argsort(label.numbers[rows], kind="stable"), kind="stable")
    for name, column in [*view.features.items(), *_days_between(view)]:
        if len(column.values) < 2 or (column.is_text and len(column.values) > _MAX_BINS):
            continue
        bins = _bins(column, rows)
        measure = _errors_removed(bins, target) if view.is_classification else _variance_explained(bins, target)
        if measure >= (_DETERMINED if view.is_classification else _DETERMINED_VARIANCE):
            effect = (f"removes {measure:.1%} of the errors of guessing" if view.is_classification else
                      f"explains {measure:.1%} of its variance")
            title, advice = f"column {quote(name)}", excluding(name)
            if name not in view.features:
                title, advice = f"the number of {name}", "exclude one of the two dates"
            yield Finding("leak", "warning", f"{title} alone nearly determines the label "
                          f"{quote(label.name)} (it {effect})",
                          f"{advice}, unless it is known before the outcome",
                          name if name in view.features else None, value=measure)


def _days_between(view: TableView) -> Iterator[tuple[str, TableColumn]]:
    """The differences of columns of dates, with what they are."""
    for first, second in combinations(view.dates[:_MAX_DATES], 2):
        days = view.features[second].numbers - view.features[first].numbers
        values, codes = np.unique(days[~np.isnan(days)], return_inverse=True)
        all_codes = np.full(len(days), -1)
        all_codes[~np.isnan(days)] = codes
        names = " and ".join(name.removesuffix(" days") for name in (first, second))
        yield f"days between {names}", TableColumn(names, all_codes, values)


def _sample(rows: NDArray[np.integer]) -> NDArray[np.integer]:
    if len(rows) <= _MAX_LEAK_ROWS:
        return rows
    return np.sort(np.random.default_rng(0).choice(rows, _MAX_LEAK_ROWS, replace=False))


def _bins(column: TableColumn, rows: NDArray[np.integer]) -> NDArray[np.integer]:
    """[rows] the number of the bin of each row; missing values are a bin."""
    codes: NDArray[np.integer] = column.codes[rows]
    if column.is_text or len(column.values) <= _MAX_BINS:
        return codes + np.int64(1)
    numbers = column.numbers[rows]
    present = numbers[~np.isnan(numbers)]
    count = min(_MAX_BINS, max(len(present) // 10, 2))
    edges = np.unique(np.quantile(present, np.linspace(0, 1, count + 1)[1:-1]))
    bins: NDArray[np.integer] = np.where(codes < 0, 0, 1 + np.searchsorted(edges, numbers, side="right"))
    return bins


def _errors_removed(bins: NDArray[np.integer], classes: NDArray[np.integer]) -> float:
    """The share of the errors of the most frequent class that the bins remove, without counting the row itself."""
    size = int(classes.max()) + 1
    table = np.bincount(bins.astype(np.int64) * size + classes, minlength=(int(bins.max()) + 1) * size)
    table = table.reshape(-1, size)
    ordered = np.sort(table, axis=1)
    second = ordered[:, -2] if size > 1 else np.zeros(len(table))
    right = ordered[:, -1][ordered[:, -1] - 1 > second].sum()
    errors = len(classes) - table.sum(axis=0).max()
    return 1.0 - (len(classes) - right) / errors if errors >= _MIN_LEAK_ROWS / 5 else 0.0


def _variance_explained(bins: NDArray[np.integer], target: NDArray[np.integer]) -> float:
    """The share of the variance that the means of the bins explain, adjusted for their number."""
    counts = np.bincount(bins)
    sums = np.bincount(bins, weights=target)
    used = counts > 0
    within = float((target.astype(float) ** 2).sum() - (sums[used] ** 2 / counts[used]).sum())
    total = float(target.var() * len(target))
    freedom = len(target) - int(used.sum())
    return 1.0 - within / total * (len(target) - 1) / freedom if freedom > 0 and total > 0 else 0.0
