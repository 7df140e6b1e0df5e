"""Scores of a fitted model on rows with known labels, each with an interval."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

from resolvent.data.html_tables import html_table
from resolvent.data.samples import Task
from resolvent.problem.metrics.influences import influences
from resolvent.problem.metrics.intervals import Interval, interval_of, resample
from resolvent.problem.metrics.metric import Metric, Predictions, check_metric
from resolvent.problem.models.model import Model
from resolvent.problem.party_predictions import has_probabilities, predicted_labels

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Evaluation", "evaluate_outputs"]

_SEED = 20_240_229  # seed of the bootstrap: the same rows have the same intervals


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


def evaluate_outputs(model: Model, task: Task, outputs: NDArray[Any], y: NDArray[Any], metrics: Mapping[str, Metric],
                     weights: NDArray[np.float64] | None) -> Evaluation:
    """The mean loss, the mean score and further metrics, each with an interval.

    Args:
        model: the model.
        task: task of the data.
        outputs: [n, ...] outputs of the model.
        y: [n] class numbers or targets.
        metrics: further metrics by name.
        weights: [n] weights of the rows in the mean of the loss; None: equal weights. The score and the metrics count
            every row once, as in a run with class weights.

    Raises:
        InputError: a metric does not fit the task or the loss.
    """
    loss, score = (np.asarray(of_rows, np.float64)
                   for of_rows in _scores(model, jnp.asarray(outputs), jnp.asarray(y)))
    values = {"loss": _weighted(loss, weights), model.loss.score_name: score}
    further = {name: metric for name, metric in metrics.items() if name not in values}  # the score has its own name
    if further:
        predictions = _predictions(model, task, outputs, y)
        for name, metric in further.items():
            check_metric(name, metric, task, model.loss, has_probabilities=predictions.probabilities is not None)
            values[name] = influences(predictions, metric)
    limits = {name: metric.limits for name, metric in further.items()}
    return Evaluation(len(y), {name: _interval(of_rows, limits.get(name)) for name, of_rows in values.items()})


@jax.jit
def _scores(model: Model, outputs: Array, y: Array) -> tuple[Array, Array]:
    """[n] loss and score of each row."""
    return model.loss.loss(outputs, y), model.loss.score(outputs, y)


def _predictions(model: Model, task: Task, outputs: NDArray[Any], y: NDArray[Any]) -> Predictions:
    shape = jax.ShapeDtypeStruct(outputs.shape, outputs.dtype)  # type: ignore[no-untyped-call]
    probabilities = (np.asarray(model.loss.probabilities(jnp.asarray(outputs)))
                     if has_probabilities(model.loss, shape) else None)
    return Predictions(y, predicted_labels(model.loss, outputs, probabilities, task), probabilities, outputs)


def _weighted(values: NDArray[np.float64], weights: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """[n] values whose mean is the weighted mean, and whose variance is n times its variance for large n."""
    if weights is None:
        return values
    mean = np.average(values, weights=weights)
    influence: NDArray[np.float64] = mean + weights / weights.mean() * (values - mean)
    return influence


def _interval(values: NDArray[np.float64], limits: tuple[float, float] | None) -> Interval:
    """The mean of values [n], with the bootstrap interval of comparisons.

    Args:
        values: the values of the rows.
        limits: the smallest and the largest possible mean; None: 0 and 1 if all values are 0 or 1, otherwise no limits.
    """
    if not np.isfinite(values).all():
        return Interval(float(np.mean(values)), np.nan, np.nan)
    is_binary = bool(np.isin(values, (0.0, 1.0)).all())
    bounds = np.array([[0.0, 1.0] if is_binary else [values.min(), values.max()]])
    ends = np.array([limits]) if limits is not None else bounds if is_binary else None
    rng = np.random.default_rng(_SEED)
    sample = resample(values[None, None], np.ones((1, len(values)), bool), bounds, rng)
    return interval_of(sample, rng, ends)[0]
