"""The metric that is shown beside the advice, and decides if the user says so."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from resolvent.comparisons.experiment.registry import registry_of
from resolvent.data.federated import FederatedData
from resolvent.errors import InputError, alternatives, quote, shorten
from resolvent.problem.metrics.classification import BalancedAccuracy
from resolvent.problem.metrics.metric import Metric, name_metrics
from resolvent.problem.metrics.regression import RMSE
from resolvent.problem.models.model import Model
from resolvent.problem.problem import Problem

MAX_SHARE = 0.8  # largest share of one class; above it, the accuracy mostly says how often this class occurs


class DecisiveMetric(NamedTuple):
    """The metric that is shown beside the advice.

    Attributes:
        metrics: all metrics that a run must compute, including this one.
        note: why the metric was chosen, for the reader of a report; empty if it is the score of the model.
        decides: whether the advice is by this metric, because the user says so, and not by a proper score.
    """

    name: str
    metrics: dict[str, Metric]
    note: str
    decides: bool = False


def choose_decisive_metric(data: FederatedData, model: Model, metrics: Mapping[str, Metric],
                           decide_by: str | None) -> DecisiveMetric:
    """The metric beside the advice: the user's choice, which decides, or one that fits the task and the classes.

    The default is the accuracy, or the root of the mean squared error, which is in the unit of the label; otherwise the
    score of the model's loss. If one class has more than 80 % of all samples, it is the balanced accuracy, because a
    model that always predicts this class would have an accuracy of more than 80 %.

    Args:
        decide_by: the name of one of them, of the score, of a metric of the library, or ``loss``; None for the default.
    """
    return choose_by_share(*_largest_class(data), model.loss.score_name, metrics, decide_by)


def choose_by_share(share: float, name: str, score: str, metrics: Mapping[str, Metric],
                    decide_by: str | None) -> DecisiveMetric:
    """The metric beside the advice, see ``choose_decisive_metric``, from the share of the most frequent class.

    Args:
        share: the largest share of a class among all samples; 0 for regression.
        decide_by: the user's choice; None for the default.
    """
    metrics = name_metrics(metrics, score)
    if decide_by is None:
        if score == "squared_error":
            error = RMSE()
            return DecisiveMetric(error.name, {error.name: error, **metrics}, "")
        if share <= MAX_SHARE or score != "accuracy":
            return DecisiveMetric(score, dict(metrics), "")
        chosen = BalancedAccuracy()
        return DecisiveMetric(chosen.name, {chosen.name: chosen, **metrics},
                              f"Beside the advice stands the balanced accuracy, because class {shorten(name)} has "
                              f"{share:.0%} of all samples (decide_by changes this)")
    if decide_by in (score, "loss", *metrics):
        return DecisiveMetric(decide_by, dict(metrics), _note(decide_by), decides=True)
    registry = registry_of(Metric)
    part = registry.name_of(decide_by)
    if part is None:
        names = list(dict.fromkeys([score, "loss", *metrics, *registry.functions]))
        raise InputError(f"decide_by: there is no metric {quote(decide_by)}{alternatives(decide_by, names)}")
    added: Metric = registry.functions[part]()
    name = decide_by if decide_by != part else added.name
    return DecisiveMetric(name, {**metrics, name: added}, _note(name), decides=True)


def decisive_score(metrics: Mapping[str, Metric] | None, decide_by: str | None, problem: Problem) -> tuple[str, bool]:
    """The name of the metric beside the advice, and whether higher values of it are better."""
    name = decide_by or problem.score_name
    if metrics and name in metrics:
        return name, metrics[name].higher_is_better
    return name, problem.higher_is_better and name != "loss"


def _note(name: str) -> str:
    return f"The advice is by this metric, and not by a proper score: {name.replace('_', ' ')}"


def _largest_class(data: FederatedData) -> tuple[float, str]:
    """The largest share of a class among all samples, and its name; 0 for regression, tokens and data on the disk."""
    if data.task != "classification" or data.vocabulary or not isinstance(data.y, np.ndarray):
        return 0.0, ""
    counts = np.bincount(data.y.astype(np.int64), minlength=len(data.classes))
    return float(counts.max() / counts.sum()), data.classes[int(counts.argmax())]
