"""Scores of a fitted model on rows with known labels, each with an interval."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree
from numpy.typing import NDArray

from resolvent.data.html_tables import html_table
from resolvent.data.samples import Task
from resolvent.predict.intervals import Interval
from resolvent.predict.party_predictions import predicted_labels
from resolvent.predict.site_values import SiteRows, measure_site
from resolvent.problem.metrics.metric import Metric, Predictions, check_metric
from resolvent.problem.models.model import Model

if TYPE_CHECKING:
    import pandas as pd


class Evaluation(dict[str, float]):
    """Scores of a model on rows with known labels, as a dictionary from names to values.

    ``rows`` is the number of rows and ``loss`` the mean loss; the score of the model, such as ``accuracy``, and further
    metrics have their names. A metric that is not defined for the labels is nan.

    Attributes:
        intervals: name -> the value, with the ends of its interval of level 0.95.
    """

    def __init__(self, rows: int, intervals: Mapping[str, Interval]) -> None:
        super().__init__({"rows": rows, **{name: interval.value for name, interval in intervals.items()}})
        self.intervals = dict(intervals)

    @property
    def table(self) -> "pd.DataFrame":
        """A row per score: its ``value``, and the ends ``low`` and ``high`` of its interval."""
        import pandas as pd

        return pd.DataFrame.from_dict(self.intervals, orient="index", columns=["value", "low", "high"])

    def record(self) -> dict[str, Any]:
        """The scores as JSON can hold them: ``rows``, and for each score its value and the ends of its interval."""
        def ends(interval: Interval) -> dict[str, float | None]:
            return {key: value if np.isfinite(value) else None for key, value in interval._asdict().items()}

        return {"rows": self["rows"], "scores": {name: ends(interval) for name, interval in self.intervals.items()}}

    def _repr_html_(self) -> str:
        rows = [[name, *interval] for name, interval in self.intervals.items()]
        return html_table([f"{self['rows']} rows", "value", "low", "high"], rows)


def evaluate_outputs(model: Model, task: Task, classes: int, outputs: NDArray[Any], y: NDArray[Any],
                     metrics: Mapping[str, Metric], weights: NDArray[np.float64] | None,
                     predicted: NDArray[np.integer] | None = None) -> Evaluation:
    """The mean loss, the mean score and further metrics, each with an interval.

    Args:
        classes: number of classes of the data.
        outputs: [n, ...] outputs of the model.
        y: [n] class numbers or targets, or labels of another structure.
        metrics: further metrics by name, none with that of the score: see ``name_metrics``.
        weights: [n] weights of the rows in the mean of the loss; None: equal weights. The score and the metrics count
            every row once, as in a run with class weights.
        predicted: [n] the predicted classes of a model with a threshold; None: those that the score of the loss reads.

    Raises:
        InputError: a metric does not fit the task or the loss.
    """
    loss, score = (np.asarray(of_rows, np.float64)
                   for of_rows in _scores(model, *jax.tree.map(jnp.asarray, (outputs, y))))
    if predicted is not None:
        score = np.asarray(predicted == y, np.float64)
    values = {"loss": _weighted(loss, weights), model.loss.score_name: score}
    if metrics:
        predictions = _predictions(model, task, classes, outputs, y)
        predictions = predictions if predicted is None else predictions._replace(predicted=predicted)
        for name, metric in metrics.items():
            check_metric(name, metric, task, model.loss)
            values[name] = metric.row_values(predictions)
    return Evaluation(len(loss), {name: _interval(of_rows, metrics.get(name), y, task)
                               for name, of_rows in values.items()})


@jax.jit
def _scores(model: Model, outputs: PyTree[Array], y: PyTree[Array]) -> tuple[Array, Array]:
    """[n] loss and score of each row."""
    return model.loss.loss(outputs, y), model.loss.score(outputs, y)


def _predictions(model: Model, task: Task, classes: int, outputs: NDArray[Any], y: NDArray[Any]) -> Predictions:
    loss, arrays = model.loss, jax.tree.map(jnp.asarray, outputs)
    probabilities = np.asarray(loss.probabilities(arrays)) if loss.has_probabilities else None
    return Predictions(y, predicted_labels(loss, outputs, probabilities, task, classes), probabilities, outputs)


def _weighted(values: NDArray[np.float64], weights: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """[n] values whose mean is the weighted mean, and whose variance is n times its variance for large n."""
    if weights is None:
        return values
    mean = np.average(values, weights=weights)
    influence: NDArray[np.float64] = mean + weights / weights.mean() * (values - mean)
    return influence


def _interval(values: NDArray[np.float64], metric: Metric | None, labels: NDArray[Any], task: Task) -> Interval:
    """The mean of values [n], with the interval of comparisons.

    Args:
        metric: the metric whose values they are; None for the loss and the score of the model.
        labels: [n] class numbers or targets.
    """
    if not np.isfinite(values).all():
        return Interval(float(np.mean(values)), np.nan, np.nan)
    by_class = metric is not None and metric.sampling != "rows" and task == "classification"
    rows = SiteRows({"model": values[None]}, np.ones((1, len(values)), bool),
                    labels.astype(np.int64) if by_class else None)
    return measure_site(rows, ["model"], None, metric.sampling if metric is not None and by_class else "rows", 0,
                        higher_is_better=True, limits=Metric.limits if metric is None else metric.limits).intervals[0]
