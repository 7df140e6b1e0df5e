"""The long table of metrics: method, round, party (or none), split (or none), metric, value."""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import ArrayLike
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd


class _Rows(NamedTuple):
    """Rows of one metric, one per value."""

    round: NDArray[np.int64]
    party: NDArray[np.int64] | None
    split: str | None
    metric: str
    value: NDArray[np.float64]


class MetricsTable:
    """Collects rows, and makes a table of them when it is asked for: pandas is not imported earlier.

    Rows are in the order of their rounds, whatever the number of rounds that were added at a time.

    Attributes:
        method: the value of the column ``method``.
    """

    def __init__(self, method: str) -> None:
        self.method = method
        self._table: pd.DataFrame | None = None
        self._rows: list[_Rows] = []

    def add(self, round_: ArrayLike, party: ArrayLike | None, split: str | None, metric: str,
            value: ArrayLike) -> None:
        """Add a row per value; scalars are repeated along arrays."""
        values = np.atleast_1d(np.asarray(value, dtype=np.float64))
        parties = None if party is None else np.broadcast_to(np.asarray(party, dtype=np.int64), values.shape)
        rounds = np.broadcast_to(np.asarray(round_, dtype=np.int64), values.shape)
        self._rows.append(_Rows(rounds, parties, split, metric, values))

    def table(self) -> "pd.DataFrame":
        """All rows since the first one."""
        import pandas as pd

        if self._rows or self._table is None:
            new = _as_table(self.method, self._rows)
            self._table = new if self._table is None else pd.concat([self._table, new], ignore_index=True)
            self._rows = []
        return self._table

    def restore(self, table: "pd.DataFrame") -> None:
        """Continue from an earlier table."""
        self._table, self._rows = table, []


def means_by(rows: "pd.DataFrame", keys: str | list[str]) -> "pd.Series[float]":
    """The mean value of each group of rows; NaN if a value of the group is NaN, because a model diverged."""
    groups = rows.groupby(keys, observed=True)["value"]
    return groups.mean().where(groups.count() == groups.size())


def _as_table(method: str, rows: list[_Rows]) -> "pd.DataFrame":
    import pandas as pd

    lengths = np.array([len(r.value) for r in rows], dtype=int)

    def repeat(values: list[Any]) -> NDArray[Any]:
        return np.repeat(np.array(values, dtype=object), lengths)

    without_party = np.repeat(np.array([r.party is None for r in rows], dtype=bool), lengths)
    party = _concatenate([np.zeros(n, np.int64) if r.party is None else r.party
                          for r, n in zip(rows, lengths, strict=True)], np.int64)
    table = pd.DataFrame({
        "method": method,
        "round": _concatenate([r.round for r in rows], np.int64),
        "party": pd.arrays.IntegerArray(party, without_party),
        "split": pd.array(repeat([r.split for r in rows]), "string"),
        "metric": repeat([r.metric for r in rows]),
        "value": _concatenate([r.value for r in rows], np.float64),
    })
    return table.iloc[np.argsort(table["round"].to_numpy(), kind="stable")].reset_index(drop=True)


def _concatenate(arrays: list[NDArray[Any]], dtype: type) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype), *arrays])
