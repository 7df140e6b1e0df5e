"""The long table of metrics: method, round, party (or none), split (or none), metric, value."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jaxtyping import ArrayLike
from numpy.typing import NDArray

from resolvent.data.federated import FederatedData
from resolvent.data.samples import Task
from resolvent.math.tree import Vector
from resolvent.predict.party_predictions import PartyPredictions, predictions_of_parties
from resolvent.problem.learning import LearningProblem
from resolvent.problem.metrics.metric import Metric, Predictions, check_metric
from resolvent.problem.models.model import Model
from resolvent.problem.problem import Problem
from resolvent.simulator.record.cross_fit import Half

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


HELD_OUT = ("validation", "test")  # metrics are computed on samples on which the party does not train


class MetricValues(NamedTuple):
    """Values of metrics for some parties.

    Attributes:
        values: [M, splits, metrics]; NaN if the predictions are not finite.
        is_defined: [M, splits, metrics] whether the metric is defined for the party's labels in the split.
    """

    values: NDArray[np.float64]
    is_defined: NDArray[np.bool_]


class PartyMetrics:
    """Computes metrics from the predictions for each party's validation and test samples."""

    def __init__(self, metrics: Mapping[str, Metric], model: Model, data: FederatedData) -> None:
        """Check that the metrics fit.

        Args:
            model: the model whose predictions are judged.

        Raises:
            InputError: a metric is for another task, or needs probabilities that the loss does not define.
        """
        self.metrics, self._task = dict(metrics), data.task
        for name, metric in self.metrics.items():
            check_metric(name, metric, data.task, model.loss)

    def measure(self, problem: Problem, models: Vector, choice: NDArray[np.integer], parties: NDArray[np.integer],
                halves: Sequence[Half] = ()) -> MetricValues:
        """The metrics of model choice[i] for the samples of party i: see ``predictions_of_parties``.

        With both ``halves`` of the validation samples, see ``cross_fit``, the predictions for these samples are those
        of the models that the other half chose.
        """
        assert isinstance(problem.local(), LearningProblem)
        shape = (len(parties), len(HELD_OUT), len(self.metrics))
        values, is_defined = np.full(shape, np.nan), np.zeros(shape, bool)
        splits = [split for split in HELD_OUT if not halves or split != "validation"]
        for position, split, predictions in chain(
                predictions_of_parties(problem, models, choice, parties, splits, self._task),
                _of_halves(halves, choice, parties, self._task)):
            at = position, HELD_OUT.index(split)
            is_finite = all(bool(np.isfinite(leaf).all()) for leaf in jax.tree.leaves(predictions.outputs))
            readable = predictions if is_finite else uninformative(predictions)
            for number, metric in enumerate(self.metrics.values()):
                value = metric.value(readable)
                is_defined[(*at, number)] = not np.isnan(value)
                if is_finite:
                    values[(*at, number)] = value
        return MetricValues(values, is_defined)


def _of_halves(halves: Sequence[Half], choice: NDArray[np.integer], parties: NDArray[np.integer],
               task: Task) -> Iterator[PartyPredictions]:
    """The predictions for the validation samples of each party, from both halves."""
    of_party: dict[int, list[Predictions]] = {}
    for half in halves:
        for part in predictions_of_parties(half.problem, half.models, choice, parties, ("validation",), task):
            of_party.setdefault(part.position, []).append(part.predictions)
    for position, parts in of_party.items():
        yield PartyPredictions(position, "validation", Predictions.concatenate(parts))


def uninformative(predictions: Predictions) -> Predictions:
    """Finite predictions for the same labels: they show whether a metric is defined for them."""
    return predictions._replace(
        predicted=jax.tree.map(np.zeros_like, predictions.predicted),
        outputs=jax.tree.map(np.zeros_like, predictions.outputs),
        probabilities=jax.tree.map(lambda p: np.full_like(p, 1 / p.shape[1]), predictions.probabilities))
