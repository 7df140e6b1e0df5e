"""Metrics of each party's samples that it does not train on, from the predictions of its model."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from resolvent.data.federated import FederatedData
from resolvent.data.samples import Task
from resolvent.math.tree import Vector
from resolvent.predict.party_predictions import PartyPredictions, predictions_of_parties
from resolvent.problem.learning import LearningProblem
from resolvent.problem.metrics.metric import HELD_OUT, Metric, Predictions, check_metric
from resolvent.problem.models.model import Model
from resolvent.problem.problem import Problem
from resolvent.simulator.record.cross_fit import Half


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
