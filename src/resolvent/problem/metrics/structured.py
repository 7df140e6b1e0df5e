"""Metrics of sequences, of several labels per sample and of embeddings."""

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from resolvent.errors import InputError
from resolvent.problem.metrics.metric import MeanOverRows, Metric, Predictions, Task
from resolvent.problem.models.structured_losses import labels_and_mask


@dataclass(frozen=True)
class _StructuredMetric(Metric):
    """A metric of labels with a structure of their own."""

    task: Task = field(init=False, default="structured")


@dataclass(frozen=True)
class TokenAccuracy(_StructuredMetric):
    """The share of all tokens of a party whose class is predicted; longer sequences count more.

    The score of ``TokenCrossEntropy`` is the mean over sequences instead.

    Attributes:
        padding: the label of tokens that do not count.
    """

    padding: int = -1
    name: str = field(init=False, default="accuracy_of_all_tokens")
    limits: ClassVar[tuple[float, float]] = (0, 1)

    @override
    def value(self, predictions: Predictions) -> float:
        labels, weights = _tokens(predictions, self.padding)
        return _ratio(np.sum(weights * (predictions.predicted == labels)), weights)


@dataclass(frozen=True)
class Perplexity(_StructuredMetric):
    """exp of the mean cross-entropy of all tokens of a party: 1 is perfect, the number of classes is uniform guessing.

    Attributes:
        padding: the label of tokens that do not count.
    """

    padding: int = -1
    name: str = field(init=False, default="perplexity")
    higher_is_better: bool = field(init=False, default=False)
    needs_probabilities: bool = field(init=False, default=True)
    limits: ClassVar[tuple[float, float]] = (1, math.inf)

    @override
    def value(self, predictions: Predictions) -> float:
        labels, weights = _tokens(predictions, self.padding)
        of_label = np.take_along_axis(predictions.probabilities, np.maximum(labels, 0)[..., None], axis=-1)[..., 0]
        logs = np.log(np.maximum(of_label.astype(np.float64), np.finfo(np.float64).tiny))
        return float(np.exp(_ratio(-np.sum(np.where(weights > 0, logs, 0) * weights), weights)))


@dataclass(frozen=True)
class ExactMatch(MeanOverRows, _StructuredMetric):
    """The share of samples of which all 0/1 labels are predicted; labels with the mask 0 do not count."""

    name: str = field(init=False, default="exact_match")
    limits: ClassVar[tuple[float, float]] = (0, 1)

    @override
    def row_values(self, predictions: Predictions) -> NDArray[np.float64]:
        labels, mask = _several_labels(predictions)
        is_right = ((predictions.predicted == labels) | (mask == 0)).reshape(len(labels), -1).all(axis=1)
        has_label = (mask != 0).reshape(len(labels), -1).any(axis=1)
        mean = float(is_right[has_label].mean()) if has_label.any() else math.nan
        return np.where(has_label, is_right, mean)  # a sample without a known label says nothing


@dataclass(frozen=True)
class MultiLabelF1(_StructuredMetric):
    """F1 of several 0/1 labels: 2 TP / (2 TP + FP + FN).

    Attributes:
        average: ``micro``: of all labels together; ``macro``: the mean over the labels that occur or are predicted.
    """

    average: Literal["micro", "macro"] = "micro"
    name: str = field(init=False, default="multi_label_f1")
    limits: ClassVar[tuple[float, float]] = (0, 1)

    @override
    def value(self, predictions: Predictions) -> float:
        labels, mask = _several_labels(predictions)
        weights, predicted = np.asarray(mask, np.float64), predictions.predicted
        hits = np.sum(weights * (labels == 1) * (predicted == 1), axis=0)
        wrong = np.sum(weights * (labels != predicted), axis=0)
        if self.average == "micro":
            hits, wrong = hits.sum(keepdims=True), wrong.sum(keepdims=True)
        total = 2 * hits + wrong
        return float(np.mean(2 * hits[total > 0] / total[total > 0])) if (total > 0).any() else math.nan


@dataclass(frozen=True)
class RecallAtK(MeanOverRows):
    """Retrieval by embeddings: the share of samples that have a sample of the same kind among their k nearest ones.

    Distances are the cosine of outputs. Outputs [n, 2, d], two views of each sample: the query is the first view, and
    the right answer the second view of the same sample among those of all samples. Outputs [n, d] with class numbers as
    labels: the right answers are the other samples of the class.

    Attributes:
        k: number of nearest samples, at least 1.

    Raises:
        InputError: ``k`` is less than 1; when it is used: outputs have another shape.
    """

    k: Annotated[int, "[1, inf)"] = 1
    name: str = field(init=False, default="recall_at_k")
    limits: ClassVar[tuple[float, float]] = (0, 1)

    @override
    def row_values(self, predictions: Predictions) -> NDArray[np.float64]:
        outputs = predictions.outputs
        if not isinstance(outputs, np.ndarray) or outputs.ndim not in (2, 3) or (
                outputs.ndim == 3 and outputs.shape[1] != 2) or (
                outputs.ndim == 2 and np.ndim(predictions.labels) != 1):
            raise InputError("recall_at_k needs outputs [n, 2, d], two views, or outputs [n, d] and one class number "
                             "per sample")
        unit = outputs / np.maximum(np.linalg.norm(outputs, axis=-1, keepdims=True), 1e-12)
        queries, gallery = (unit[:, 0], unit[:, 1]) if unit.ndim == 3 else (unit, unit)
        similar = queries.astype(np.float64) @ gallery.T
        number = np.arange(len(unit)) if unit.ndim == 3 else predictions.labels
        if unit.ndim == 2:
            np.fill_diagonal(similar, -np.inf)
        nearest = np.argsort(-similar, axis=1, kind="stable")[:, :min(self.k, len(unit) - (unit.ndim == 2))]
        return np.asarray((number[nearest] == number[:, None]).any(axis=1), np.float64)


def _tokens(predictions: Predictions, padding: int) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """The labels of tokens and their weights, 0 for padding."""
    labels, mask = labels_and_mask(predictions.labels)
    is_token = labels != padding
    return labels, np.asarray(is_token if mask is None else mask * is_token, np.float64)


def _several_labels(predictions: Predictions) -> tuple[NDArray[Any], NDArray[Any]]:
    labels, mask = labels_and_mask(predictions.labels)
    return labels, np.ones(labels.shape) if mask is None else mask


def _ratio(total: Any, weights: NDArray[np.float64]) -> float:
    return float(total / weights.sum()) if weights.sum() > 0 else math.nan
