r"""Drift: whether new rows are distributed like the training rows, from a small summary of the training rows.

The summary has the number of training rows in at most ten bins of each column of numbers, between deciles of the
training rows and for each value that is several deciles, and in each level of each category. New rows with shares q of
the bins are compared with the shares p of the n training rows by the population stability index

.. code-block:: text

    PSI = sum_b (q_b - p_b) log(q_b / p_b)

If m new rows come from the distribution of the training rows, PSI / (1 / n + 1 / m) has nearly a chi-squared
distribution with B - 1 degrees of freedom. A column has drifted if the index exceeds the quantile of this distribution
at the level 0.01, divided by the number of columns, and 0.1, below which a shift is customarily called small.

References:
    Yurdakul, Naranjo: Statistical Properties of the Population Stability Index, Journal of Risk Model Validation 14,
    2020.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.data.encoded_rows import Drift, EncodedRows, Encoding
from resolvent.data.federated import FederatedData
from resolvent.tables.column_encodings import CategoryColumn, NumberColumn
from resolvent.tables.encoding import TableEncoding

_LEVEL, _MIN_INDEX = 0.01, 0.1
_DECILES = np.linspace(0.1, 0.9, 9)
_MIN_ROWS = 50  # of training rows: deciles of few rows tell the values of single rows
_MIN_NEW_ROWS = 20
_MAX_COLUMNS = 2000
_MAX_SUMMARIES = 20_000  # columns times sites


class ColumnCounts(NamedTuple):
    """The training rows of a column.

    Attributes:
        edges: the inner edges of the bins of its input; empty for a category.
        counts: number of training rows in each bin, or with each level and with none.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class TrainingRows:
    """Summaries of training rows: site -> column -> its counts; those of all sites are under the empty text."""

    sites: Mapping[str, Mapping[str, ColumnCounts]]

    def plain(self) -> dict[str, Any]:
        """Plain values, as they are written."""
        return asdict(self)


def summarize(data: FederatedData) -> TrainingRows | None:
    """The summaries of the training rows of a table, of all sites together and of each site with at least 50 of them.

    Returns:
        The summaries; None for other data, data on the disk or of other processes, or more than 2000 columns. There are
        none of single sites if these would be more than 20,000 columns.
    """
    encoding = data.encoding
    if not isinstance(encoding, TableEncoding) or not isinstance(data.x, np.ndarray):
        return None
    if len(encoding.columns) > _MAX_COLUMNS:
        return None
    parts = {"": data.x[data.is_train]}
    if len(encoding.columns) * len(data) <= _MAX_SUMMARIES:
        parts |= {site: data.party(k)[0] for k, site in enumerate(data.parties)}
    return TrainingRows({site: {name: _count_training(inputs, column) for name, column, inputs in _inputs(encoding, x)}
                         for site, x in parts.items() if len(x) >= _MIN_ROWS})


def with_drift(encoded: EncodedRows, encoding: Encoding, training: TrainingRows | None, site: str | None
               ) -> EncodedRows:
    """Encoded rows with remarks about the columns that have drifted.

    Args:
        training: the summaries of the training rows; None: nothing is added.
        site: the site with which rows are compared; None: all sites.
    """
    columns = {} if training is None else training.sites.get(site or "", {})
    if not columns or len(encoded.x) < _MIN_NEW_ROWS or not isinstance(encoding, TableEncoding):
        return encoded
    drifts = (_drift(column, columns[name], inputs, len(columns)) for name, column, inputs in
              _inputs(encoding, encoded.x) if name in columns)
    drift = tuple(d for d in drifts if d is not None)
    return encoded._replace(remarks=replace(encoded.remarks, drift=drift))


def _drift(column: NumberColumn | CategoryColumn, training: ColumnCounts, inputs: NDArray[Any],
           columns: int) -> Drift | None:
    from scipy.stats import chi2  # its import takes 0.5 s

    counts = _count(inputs, training)
    before, after = np.array(training.counts), counts
    if not (used := (before + after) > 0).any():
        return None
    index = _stability_index(before[used], after[used])
    scale = 1 / before.sum() + 1 / after.sum()
    bound = max(scale * float(chi2.isf(_LEVEL / columns, max(int(used.sum()) - 1, 1))), _MIN_INDEX)
    if index <= bound:
        return None
    shares = before / before.sum(), after / after.sum()
    k = int(np.argmax(shares[1] - shares[0]))
    return Drift(column.name, index, bound, _title(column, training.edges, k), float(shares[0][k]), float(shares[1][k]))


def _stability_index(before: NDArray[np.integer], after: NDArray[np.integer]) -> float:
    """The population stability index of two rows of counts, with half a row added to each bin."""
    p, q = ((counts + 0.5) / (counts + 0.5).sum() for counts in (before, after))
    return float(((q - p) * np.log(q / p)).sum())


def _inputs(encoding: TableEncoding, x: NDArray[Any]
            ) -> Iterator[tuple[str, NumberColumn | CategoryColumn, NDArray[Any]]]:
    """Each column with the inputs [n] of numbers, or the number of the level [n] of categories."""
    start = 0
    for column in encoding.columns:
        block = x[:, start:start + len(column.features)]
        start += len(column.features)
        if isinstance(column, NumberColumn):
            yield column.name, column, block[:, 0]
        else:
            yield column.name, column, np.where(block.any(axis=1), block.argmax(axis=1), block.shape[1])


def _count_training(inputs: NDArray[Any], column: NumberColumn | CategoryColumn) -> ColumnCounts:
    if isinstance(column, CategoryColumn):
        return ColumnCounts((), tuple(np.bincount(inputs, minlength=len(column.levels) + 1).tolist()))
    deciles, times = np.unique(np.quantile(inputs.astype(float), _DECILES, method="inverted_cdf"), return_counts=True)
    # A value that is several deciles has a bin of its own: otherwise a rare mark has all its rows in one bin.
    edges = tuple(np.union1d(deciles, np.nextafter(deciles[times > 1], np.inf)).tolist())
    return ColumnCounts(edges, tuple(_count(inputs, ColumnCounts(edges, (0,) * (len(edges) + 1))).tolist()))


def _count(inputs: NDArray[Any], training: ColumnCounts) -> NDArray[np.integer]:
    """[bins] the number of rows in each bin, or with each level."""
    bins = np.searchsorted(training.edges, inputs.astype(float), side="right") if training.edges else inputs
    return np.bincount(bins, minlength=len(training.counts))


def _title(column: NumberColumn | CategoryColumn, edges: tuple[float, ...], k: int) -> str:
    """A bin as text, such as ``values below 3``."""
    if isinstance(column, CategoryColumn):
        return repr(column.levels[k]) if k < len(column.levels) else "no level"
    # Inputs are numbers of 32 bits: rounded, so that 0 is not written as -2e-10.
    ends = [f"{round(edge + column.mean / column.deviation, 5) * column.deviation + 0.0:.4g}" for edge in edges]

    def is_one_value(k: int) -> bool:
        return 0 < k < len(edges) and bool(edges[k] == np.nextafter(edges[k - 1], np.inf))

    if k == 0:
        return f"values below {ends[0]}"
    if is_one_value(k):
        return f"values of {ends[k]}"
    begin = "above" if is_one_value(k - 1) else "from"
    return f"values {begin} {ends[k - 1]}" + (f" to {ends[k]}" if k < len(ends) else "")
