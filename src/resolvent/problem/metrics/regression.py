"""Metrics of predicted numbers."""

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from resolvent.errors import InputError
from resolvent.problem.metrics.metric import MeanOverRows, Metric, Predictions, Task


@dataclass(frozen=True)
class _NumberMetric(Metric):
    task: Task = field(init=False, default="regression")


@dataclass(frozen=True)
class MAE(MeanOverRows, _NumberMetric):
    """Mean absolute error, in the unit of the label."""

    name: str = field(init=False, default="mae")
    limits: ClassVar[tuple[float, float]] = (0, math.inf)
    higher_is_better: bool = field(init=False, default=False)

    @override
    def row_values(self, predictions: Predictions) -> NDArray[np.float64]:
        errors = np.abs(_errors(predictions))
        return np.asarray(errors.reshape(len(errors), -1).mean(axis=1))


@dataclass(frozen=True)
class RMSE(_NumberMetric):
    """Square root of the mean squared error, in the unit of the label."""

    name: str = field(init=False, default="rmse")
    limits: ClassVar[tuple[float, float]] = (0, math.inf)
    higher_is_better: bool = field(init=False, default=False)

    @override
    def value(self, predictions: Predictions) -> float:
        return float(np.sqrt(np.mean(np.square(_errors(predictions)))))


@dataclass(frozen=True)
class R2(_NumberMetric):
    """Coefficient of determination, 1 - sum (y - prediction)^2 / sum (y - mean y)^2.

    The mean is that of the party's own labels. 1 is perfect, 0 is as good as this mean, and negative values are worse.
    It is not defined for a party whose labels are all equal. Of labels with several numbers it is the mean over the
    targets that are not all equal.
    """

    name: str = field(init=False, default="r2")
    limits: ClassVar[tuple[float, float]] = (-math.inf, 1)

    @override
    def value(self, predictions: Predictions) -> float:
        labels = predictions.labels.astype(np.float64).reshape(len(predictions.labels), -1)
        spread = np.sum(np.square(labels - labels.mean(axis=0)), axis=0)
        residual = np.sum(np.square(_errors(predictions).reshape(labels.shape)), axis=0)
        varies = spread > 0
        return float(np.mean(1 - residual[varies] / spread[varies])) if varies.any() else float("nan")


def _errors(predictions: Predictions) -> NDArray[np.float64]:
    """[n, ...] prediction - label, in double precision."""
    labels = predictions.labels.astype(np.float64)
    if not isinstance(predictions.predicted, np.ndarray):
        raise InputError("metrics: this metric needs outputs that are one array of predicted numbers: for outputs of "
                         "several arrays give rv.metrics.from_function a function of (labels, outputs)")
    errors: NDArray[np.float64] = predictions.predicted.astype(np.float64).reshape(labels.shape) - labels
    return errors
