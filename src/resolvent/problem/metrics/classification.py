"""Metrics of classifiers.

They have the values of scikit-learn's functions, with which the tests compare them. scikit-learn's own functions take
about a millisecond per call and class, which would be longer than the rounds if there are many parties.

Classes are numbered 0 to K - 1. With two classes, class 1 is the *positive* one: the second of the data's ``classes``,
which are sorted unless the data say otherwise.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from resolvent.errors import InputError
from resolvent.problem.metrics.metric import MeanOverRows, Metric, Predictions, Sampling, Task

Indicators: TypeAlias = NDArray[np.bool_]  # [n, C] whether a sample is of a class
Scores: TypeAlias = NDArray[np.float64]  # [C]


@dataclass(frozen=True)
class _ClassMetric(Metric):
    task: Task = field(init=False, default="classification")


@dataclass(frozen=True)
class _ProbabilityMetric(_ClassMetric):
    needs_probabilities: bool = field(init=False, default=True)


@dataclass(frozen=True)
class Accuracy(MeanOverRows, _ClassMetric):
    """Share of the samples whose predicted class is their label; the same for any number of classes."""

    name: str = field(init=False, default="accuracy")
    limits: ClassVar[tuple[float, float]] = (0, 1)
    is_score: ClassVar[bool] = True

    @override
    def row_values(self, predictions: Predictions) -> NDArray[np.float64]:
        return np.asarray(predictions.labels == predictions.predicted, np.float64)


@dataclass(frozen=True)
class BalancedAccuracy(_ClassMetric):
    """Mean over the classes of their recall: the share of a class's samples that are predicted as that class.

    Predicting one class always has the value 1/K for K classes, whatever their shares. The mean is over the classes
    that occur among the party's labels. It is not defined for a party whose labels have one class: the recall of one
    class alone says nothing about errors on the others.

    References:
        Brodersen, Ong, Stephan, Buhmann: The Balanced Accuracy and Its Posterior Distribution, ICPR 2010.
    """

    name: str = field(init=False, default="balanced_accuracy")
    limits: ClassVar[tuple[float, float]] = (0, 1)
    sampling: ClassVar[Sampling] = "classes"

    @override
    def value(self, predictions: Predictions) -> float:
        counts = _confusion(predictions)
        samples = counts.sum(axis=1)
        occurs = samples > 0
        if occurs.sum() < 2:
            return float("nan")
        return float(np.mean(np.diag(counts)[occurs] / samples[occurs]))

    @override
    def row_values(self, predictions: Predictions) -> NDArray[np.float64]:
        _, number, count = np.unique(predictions.labels, return_inverse=True, return_counts=True)
        is_right = predictions.labels == predictions.predicted
        if len(count) < 2:
            return np.full(len(is_right), np.nan)
        return np.asarray(is_right * (len(is_right) / len(count)) / count[number])


@dataclass(frozen=True)
class ROCAUC(_ProbabilityMetric):
    """Area under the receiver operating characteristic.

    With two classes it is the probability that a random positive sample has a higher probability of class 1 than a
    random negative one; equal probabilities count one half. With more classes it is the mean of this number over the
    classes, each against all others. A class is left out if no sample or every sample belongs to it. The metric is not
    defined for a party whose labels have one class.

    References:
        Fawcett: An introduction to ROC analysis, Pattern Recognition Letters 27, 2006.
    """

    name: str = field(init=False, default="roc_auc")
    limits: ClassVar[tuple[float, float]] = (0, 1)
    reads_order_only: ClassVar[bool] = True
    sampling: ClassVar[Sampling] = "ranks"

    @override
    def value(self, predictions: Predictions) -> float:
        return _mean_over_classes(predictions, _roc_auc)

    @override
    def row_values(self, predictions: Predictions) -> NDArray[np.float64]:
        """[n] the components of DeLong, DeLong and Clarke-Pearson for two classes, otherwise pseudo-values.

        With V_i the share of samples of the other class that sample i is on the right side of, and A the area, the mean
        of 2 V_i - A over each class is A, and the variance of the mean of these two means is DeLong's.
        """
        probabilities = _probabilities(predictions)
        positive = predictions.labels == 1
        if probabilities.shape[1] != 2 or positive.all() or not positive.any():
            return super().row_values(predictions)
        score, n = probabilities[:, 1], len(positive)
        above = _share_below(score[positive], score[~positive])
        below = 1 - _share_below(score[~positive], score[positive])
        area, values = above.mean(), np.empty(n)
        values[positive] = (2 * above - area) * n / (2 * len(above))
        values[~positive] = (2 * below - area) * n / (2 * len(below))
        return values


@dataclass(frozen=True)
class AveragePrecision(_ProbabilityMetric):
    """Mean precision over the thresholds at which the recall increases, weighted by the increase.

    With two classes it is the value for class 1; for a random ranking this is about the share of class 1. With more
    classes it is the mean over the classes, each against all others; a class without samples is left out. It is not
    defined for a party whose labels have one class.

    References:
        Manning, Raghavan, Schuetze: Introduction to Information Retrieval, 2008, section 8.4.
    """

    name: str = field(init=False, default="average_precision")
    limits: ClassVar[tuple[float, float]] = (0, 1)
    reads_order_only: ClassVar[bool] = True
    sampling: ClassVar[Sampling] = "classes"

    @override
    def value(self, predictions: Predictions) -> float:
        return _mean_over_classes(predictions, _average_precision)


@dataclass(frozen=True)
class F1(_ClassMetric):
    """Harmonic mean of precision and recall, 2 TP / (2 TP + FP + FN).

    Attributes:
        average: ``binary``: the F1 of class 1, for two classes. ``macro``: the mean over the classes that occur among
            the labels or the predictions. ``weighted``: the mean over the classes, weighted by their sample counts.
            ``auto`` is ``binary`` for two classes, otherwise ``macro``. ``binary`` is not defined for a party with no
            label and no prediction of class 1.

    Raises:
        InputError: when it is computed: ``average`` is ``binary``, and there are more than two classes.

    Example:
        >>> metric = rv.metrics.F1(average="macro")
    """

    average: Literal["auto", "binary", "macro", "weighted"] = "auto"
    name: str = field(init=False, default="f1")
    limits: ClassVar[tuple[float, float]] = (0, 1)
    sampling: ClassVar[Sampling] = "classes"

    @override
    def value(self, predictions: Predictions) -> float:
        counts = _confusion(predictions)
        hits, samples = np.diag(counts), counts.sum(axis=1)
        total = samples + counts.sum(axis=0)
        occurs = total > 0
        scores = np.divide(2 * hits, total, out=np.full(len(hits), np.nan), where=occurs)
        if self.average == "binary" and len(counts) > 2:
            raise InputError(f"f1: average=binary is for two classes, and there are {len(counts)}: use macro or "
                             "weighted")
        if self.average == "binary" or (self.average == "auto" and len(counts) == 2):
            return float(scores[1])
        weights = samples if self.average == "weighted" else np.ones(len(hits))
        return float(np.average(scores[occurs], weights=weights[occurs]))


@dataclass(frozen=True)
class LogLoss(MeanOverRows, _ProbabilityMetric):
    """Mean of -log p, with p the probability of the label; the same for any number of classes.

    Probabilities are at least 1.2e-7, the resolution of 32-bit numbers, so that the value is finite.
    """

    name: str = field(init=False, default="log_loss")
    limits: ClassVar[tuple[float, float]] = (0, math.inf)
    higher_is_better: bool = field(init=False, default=False)

    @override
    def row_values(self, predictions: Predictions) -> NDArray[np.float64]:
        probabilities = _probabilities(predictions)
        of_label = probabilities[np.arange(len(probabilities)), predictions.labels.astype(int)]
        return np.asarray(-np.log(np.maximum(of_label, np.finfo(np.float32).eps)))


@dataclass(frozen=True)
class BrierScore(MeanOverRows, _ProbabilityMetric):
    """Mean squared error of the probabilities: (p_1 - y)^2 for two classes, sum_c (p_c - 1[y = c])^2 for more.

    It lies in [0, 1] for two classes, and in [0, 2] for more. Lower is better.

    References:
        Brier: Verification of forecasts expressed in terms of probability, Monthly Weather Review 78, 1950.
    """

    name: str = field(init=False, default="brier_score")
    limits: ClassVar[tuple[float, float]] = (0, 2)
    higher_is_better: bool = field(init=False, default=False)

    @override
    def row_values(self, predictions: Predictions) -> NDArray[np.float64]:
        probabilities = _probabilities(predictions)
        errors = np.square(probabilities - np.eye(probabilities.shape[1])[predictions.labels.astype(int)])
        return np.asarray(errors[:, 1] if probabilities.shape[1] == 2 else errors.sum(axis=1))


@dataclass(frozen=True)
class CalibrationError(_ProbabilityMetric):
    """Expected calibration error: the mean difference between the probability of the predicted class and the accuracy.

    The value is sum_b (n_b / n) |accuracy_b - confidence_b| over the bins b, which divide [0, 1] into equal parts. A
    sample's confidence is its largest probability. The definition is the same for any number of classes. With few
    samples the value is biased upwards.

    Attributes:
        bins: number of bins.

    Raises:
        InputError: ``bins`` is outside 1 to 10,000.

    Example:
        >>> metric = rv.metrics.CalibrationError(bins=15)

    References:
        Guo, Pleiss, Sun, Weinberger: On Calibration of Modern Neural Networks, ICML 2017, (3).
    """

    bins: int = 10
    name: str = field(init=False, default="calibration_error")
    limits: ClassVar[tuple[float, float]] = (0, 1)
    sampling: ClassVar[Sampling] = "classes"
    higher_is_better: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        if not 1 <= self.bins <= 10_000:
            raise InputError(f"CalibrationError(bins={self.bins}) must lie in 1 to 10000")

    @override
    def value(self, predictions: Predictions) -> float:
        probabilities = _probabilities(predictions)
        confidence, is_right = probabilities.max(axis=1), probabilities.argmax(axis=1) == predictions.labels
        bins = np.clip(np.ceil(confidence * self.bins).astype(int) - 1, 0, self.bins - 1)
        differences = np.bincount(bins, weights=is_right - confidence, minlength=self.bins)
        return float(np.abs(differences).sum() / len(confidence))


def _probabilities(predictions: Predictions) -> NDArray[np.float64]:
    """[n, classes] in double precision."""
    assert predictions.probabilities is not None
    return np.asarray(predictions.probabilities, np.float64)


def _confusion(predictions: Predictions) -> NDArray[np.int64]:
    """[K, K] number of samples by label and predicted class."""
    labels, predicted = predictions.labels.astype(int), predictions.predicted.astype(int)
    shape = np.shape(predictions.outputs) if isinstance(predictions.outputs, np.ndarray) else ()
    classes = max(shape[-1] if len(shape) > 1 else 2, int(labels.max(initial=0)) + 1, int(predicted.max(initial=0)) + 1)
    return np.bincount(labels * classes + predicted, minlength=classes**2).reshape(classes, classes)


def _mean_over_classes(predictions: Predictions, scores: Callable[[Indicators, NDArray[np.float64]], Scores]) -> float:
    """The score of class 1, or its mean over more than two classes; NaN if the labels have one class only.

    Args:
        predictions: the predictions of a model for the samples of a party.
        scores: function from (is_class [n, C], probabilities [n, C]) to the score [C] of each class against all others.
    """
    probabilities = _probabilities(predictions)
    is_class = predictions.labels[:, None] == np.arange(probabilities.shape[1])
    is_scored = is_class.any(axis=0) & ~is_class.all(axis=0)
    if probabilities.shape[1] == 2:
        is_scored[0] = False
    if not is_scored.any():
        return float("nan")
    return float(np.mean(scores(is_class[:, is_scored], probabilities[:, is_scored])))


def _roc_auc(is_class: Indicators, probabilities: NDArray[np.float64]) -> Scores:
    """The statistic of Mann and Whitney: (sum of the positive ranks - n_1 (n_1 + 1) / 2) / (n_1 n_0)."""
    positives = is_class.sum(axis=0)
    ranks = np.stack([_ranks(column) for column in probabilities.T], axis=1)
    result: Scores = ((np.where(is_class, ranks, 0).sum(axis=0) - positives * (positives + 1) / 2)
                      / (positives * (len(is_class) - positives)))
    return result


def _share_below(values: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """The share of the others that each value is above; equal ones count one half."""
    others = np.sort(others)
    counts = np.searchsorted(others, values, "left") + np.searchsorted(others, values, "right")
    return np.asarray(counts / (2 * len(others)))


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rank of each value from 1 on; equal values have their mean rank."""
    _, level, counts = np.unique(values, return_inverse=True, return_counts=True, equal_nan=False)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[level])


def _average_precision(is_class: Indicators, probabilities: NDArray[np.float64]) -> Scores:
    """sum over the distinct thresholds of (recall - last recall) * precision; equal probabilities are one threshold."""
    order = np.argsort(-probabilities, axis=0, kind="stable")
    hits, values = (np.take_along_axis(a, order, axis=0) for a in (is_class, probabilities))
    recalled = np.cumsum(hits, axis=0)
    precision = np.divide(recalled, np.arange(1, len(hits) + 1)[:, None])
    # A sample counts with the precision at the last sample of the same probability.
    is_last = np.vstack([values[1:] != values[:-1], np.ones((1, values.shape[1]), bool)])
    position = np.where(is_last, np.arange(len(hits))[:, None], len(hits))
    last = np.minimum.accumulate(position[::-1], axis=0)[::-1]
    result: Scores = np.sum(hits * np.take_along_axis(precision, last, axis=0), axis=0) / recalled[-1]
    return result
