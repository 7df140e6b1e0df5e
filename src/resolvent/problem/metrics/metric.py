"""The base class of metrics, and metrics from functions of the user's own."""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from resolvent.arguments import CheckedArguments, checked
from resolvent.errors import InputError, quote, shorten
from resolvent.math.tree import concatenate, count_rows, rows
from resolvent.problem.models.losses import Loss, state_direction
from resolvent.problem.models.losses import higher_is_better as is_higher

Task = Literal["classification", "regression", "structured", "any"]
Sampling = Literal["rows", "classes", "ranks"]
HELD_OUT = ("validation", "test")  # metrics are computed on samples on which the party does not train
_ARGUMENTS = ("predictions", "probabilities", "outputs")  # names of a function's second parameter
_MAX_GROUPS = 100  # number of groups of samples that the jackknife leaves out in turn
_OTHER_NAMES = ("loss", "gap", "refused", "replies", "rows")  # quantities of a run or of an evaluation


class Predictions(NamedTuple):
    """The predictions of a model for samples whose labels are known.

    Attributes:
        labels: [n] class numbers, in the order of the data's ``classes``; or targets, or what the loss compares with.
        predicted: [n] the predicted class numbers; or the predicted numbers; for structured labels the classes that the
            loss defines, such as one per token, or the outputs.
        probabilities: [n, classes] the probability of each class; None for regression, and for losses without
            probabilities; for structured labels as the loss defines them.
        outputs: [n, ...] the outputs of the model, which may be a pytree.

    Example:
        >>> predictions = rv.metrics.Predictions(np.array([1.0, 3.0]), np.array([1.0, 2.0]), None, np.array([1.0, 2.0]))
        >>> rv.metrics.MAE().value(predictions)
        0.5
    """

    labels: Any
    predicted: Any
    probabilities: Any
    outputs: Any

    @classmethod
    def concatenate(cls, parts: "Sequence[Predictions]") -> "Predictions":
        """The predictions of several models for different samples, as if they were those of one model."""
        joined: Predictions = concatenate(parts)
        return joined


@dataclass(frozen=True)
class Metric(CheckedArguments, ABC):
    """A number that says how well a model predicts samples with known labels.

    It is computed for each party, from all samples of the party in a split, so that it need not be a mean over samples.

    Attributes:
        name: its name in tables and files.
        higher_is_better: whether higher values are better. A class with a ``name`` states it, unless the name is a
            known one, such as ``accuracy``.
        task: the task for which it is defined.
        needs_probabilities: whether it reads the probabilities of the classes.
        limits: the smallest and the largest possible value, which end its intervals.
        is_score: whether every loss whose score has this metric's name defines the score in the same way.
        sampling: how its interval resamples rows. ``rows``: a mean over rows. ``classes``: computed by class, so that
            rows are resampled within each class. ``ranks``: an area under the ROC curve.
        reads_order_only: whether the value depends on the order of each class's probabilities alone. Those of the
            models of several folds are made comparable first.
    """

    name: str = field(init=False, default="")
    higher_is_better: bool = field(init=False, default=True)
    task: Task = field(init=False, default="any")
    needs_probabilities: bool = field(init=False, default=False)
    limits: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    is_score: ClassVar[bool] = False
    sampling: ClassVar[Sampling] = "rows"
    reads_order_only: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        state_direction(cls, "name")

    @abstractmethod
    def value(self, predictions: Predictions) -> float:
        """The value for the samples of one party; NaN if it is not defined for their labels."""

    def row_values(self, predictions: Predictions) -> NDArray[np.float64]:
        """[n] a value of each sample: their mean is the metric, and their variance is n times its variance.

        The default are the pseudo-values of the jackknife, which leaves out every sample in turn, or groups of samples
        of the same class if there are more than 100 samples. All are nan if the metric is not defined.
        """
        return _pseudo_values(self, predictions)


@dataclass(frozen=True)
class MeanOverRows(Metric):
    """A metric that is the mean of a value of each sample."""

    @abstractmethod
    @override
    def row_values(self, predictions: Predictions) -> NDArray[np.float64]:
        """[n] the value of each sample."""

    @override
    def value(self, predictions: Predictions) -> float:
        return float(np.mean(self.row_values(predictions)))


def _pseudo_values(metric: Metric, predictions: Predictions) -> NDArray[np.float64]:
    """The pseudo-values of the jackknife.

    A group without which the metric is not defined, such as the only positive row, has the influence that takes the
    metric to the farther end of its range; without a finite range it has none.
    """
    n, value = count_rows(predictions.outputs), metric.value(predictions)
    if not np.isfinite(value):
        return np.full(n, np.nan)
    group, influence = _groups(predictions.labels, n), np.zeros(n)
    farther = max(metric.limits, key=lambda end: abs(value - end))
    for number in range(int(group.max()) + 1):
        is_left = group != number
        count = int(n - is_left.sum())
        without = metric.value(rows(predictions, is_left)) if n > count else np.nan
        without = farther if np.isnan(without) else without
        if np.isfinite(without):
            influence[~is_left] = (n - count) / np.sqrt(count) * (value - without)
    result: NDArray[np.float64] = value + influence - influence.mean()
    return result


def _groups(labels: Any, n: int) -> NDArray[np.intp]:
    """[n] the group of each sample, at most about 100; with few classes, the samples of a group have one class."""
    if n <= _MAX_GROUPS or np.ndim(labels) != 1 or not isinstance(labels, np.ndarray):
        return np.arange(n) % _MAX_GROUPS
    classes, number = np.unique(labels, return_inverse=True)
    if len(classes) > _MAX_GROUPS // 5:
        return np.arange(len(labels)) % _MAX_GROUPS
    group, first = np.zeros(len(labels), np.intp), 0
    for c in range(len(classes)):
        of_class = np.flatnonzero(number == c)
        groups = min(len(of_class), _MAX_GROUPS // len(classes))
        group[of_class] = first + np.arange(len(of_class)) % groups
        first += groups
    return group


@dataclass(frozen=True)
class MetricFunction(Metric):
    """A metric from a function, see ``from_function``.

    Attributes:
        function: function of (labels, predictions), (labels, probabilities) or (labels, outputs).
        argument: the name of its second parameter.
    """

    function: Callable[..., Any] = field(kw_only=True)
    argument: str = field(kw_only=True)
    settings: dict[str, Any] = field(kw_only=True, default_factory=dict)
    name: str = field(kw_only=True)
    higher_is_better: bool = field(kw_only=True)
    needs_probabilities: bool = field(kw_only=True, default=False)
    sampling: ClassVar[Sampling] = "classes"  # it may be computed by class; a mean over rows loses little by this

    @override
    def value(self, predictions: Predictions) -> float:
        argument = {"predictions": predictions.predicted, "probabilities": predictions.probabilities,
                    "outputs": predictions.outputs}[self.argument]
        try:
            value = self.function(predictions.labels, argument, **self.settings)
            return math.nan if value is None else float(value)
        except Exception as error:  # whatever the user's function raises
            raise InputError(f"the metric {quote(self.name)} cannot be computed for {len(predictions.labels)} samples: "
                             f"{type(error).__name__}: {shorten(error)}. Return nan where it is not defined") from error


def check_metric(name: str, metric: Metric, task: Task, loss: Loss) -> None:
    """Refuse a metric that does not fit the task, or that needs probabilities that the loss does not define."""
    if metric.task not in ("any", task):
        raise InputError(f"metrics: {name} is for {metric.task}, and the data are for {task}: choose another metric")
    if metric.needs_probabilities and not loss.has_probabilities:
        raise InputError(f"metrics: {name} needs probabilities of classes, and the loss {type(loss).__name__} defines "
                         "none: give it a method probabilities()")


def name_metrics(metrics: Sequence[Metric] | Mapping[str, Metric], score: str | None = None) -> dict[str, Metric]:
    """Metrics by name: their own names, or those that the user chose.

    Args:
        score: name of the score of the loss, which is reported anyway. A metric of this library with the same
            definition is left out, and every other metric of this name is refused.
    """
    if isinstance(metrics, Mapping):
        named = dict(metrics)
    else:
        named = {}
        for metric in metrics:
            if metric.name in named:
                raise InputError(f"metrics: two are named {quote(metric.name)}: give a mapping with a name for each")
            named[metric.name] = metric
    for name, metric in named.items():
        if not isinstance(name, str) or not name:
            raise InputError(f"metrics: the name {quote(name)} must be a text with at least one character")
        if name in _OTHER_NAMES or name.startswith("global_") or (name == score and not metric.is_score):
            owner = "the score of the loss, which every run reports" if name == score else "another quantity"
            raise InputError(f"metrics: {quote(name)} is the name of {owner}: choose another name")
    return {name: metric for name, metric in named.items() if name != score}


@checked
def from_function(function: Callable[..., Any], *, higher_is_better: bool | None = None, name: str | None = None,
                  settings: dict[str, Any] | None = None) -> Metric:
    """A metric from a function of the labels and the predictions of one party.

    The name of the second parameter says what the function receives: ``predictions`` [n], class numbers or numbers;
    ``probabilities`` [n, classes]; or ``outputs`` [n, ...], those of the model. The labels [n] are class numbers, in
    the order of the data's ``classes``, or targets. Both are NumPy arrays. The function returns a number, or NaN or
    None where it is not defined. In an experiment file, such a function is named as ``module:function``.

    Args:
        function: the function.
        higher_is_better: whether higher values are better; only a known name, such as ``accuracy``, needs no statement.
        name: name of the metric; default: that of the function.
        settings: further arguments of the function, by name.

    Raises:
        InputError: the second parameter has another name, or a setting is none of the function's parameters, or
            the direction is neither stated nor known.

    Example:
        >>> def cost(labels, predictions, miss=5.0):
        ...     return np.mean(np.where(labels > predictions, miss, labels < predictions))
        >>> metric = rv.metrics.from_function(cost, higher_is_better=False, settings={"miss": 2.0})
        >>> metric.name, metric.higher_is_better
        ('cost', False)
    """
    name = getattr(function, "__name__", "metric") if name is None else name
    names = list(inspect.signature(function).parameters)
    if len(names) < 2 or names[1] not in _ARGUMENTS:
        raise InputError(f"the metric {quote(name)} has the parameters {', '.join(names) or 'none'}: the first must be "
                         f"labels, and the second one of {', '.join(_ARGUMENTS)}")
    unknown = sorted(set(settings or {}).difference(names[2:]))
    if unknown:
        raise InputError(f"the metric {quote(name)} has no parameter {quote(unknown[0])}: its settings are "
                         f"{', '.join(names[2:]) or 'none'}")
    return MetricFunction(function=function, argument=names[1], settings=dict(settings or {}), name=name,
                          higher_is_better=is_higher(name) if higher_is_better is None else higher_is_better,
                          needs_probabilities=names[1] == "probabilities")


def settings_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that makes a metric from settings, from a function of (labels, predictions).

    Its parameters are ``higher_is_better`` and those of the function after the first two. A function whose first
    parameter is not ``labels`` is returned as it is: it makes a metric already.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return function
    names = list(signature.parameters)
    if inspect.isclass(function) or not names or names[0] != "labels":
        return function

    def make(*, higher_is_better: bool | None = None, **settings: Any) -> Metric:
        return from_function(function, higher_is_better=higher_is_better, settings=settings)

    direction = inspect.Parameter("higher_is_better", inspect.Parameter.KEYWORD_ONLY, default=None)
    further = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in list(signature.parameters.values())[2:]]
    make.__signature__ = inspect.Signature([direction, *further])  # type: ignore[attr-defined]
    annotations = inspect.get_annotations(function, eval_str=True)
    make.__annotations__ = {"higher_is_better": bool | None,
                            **{p.name: annotations.get(p.name, type(p.default)) for p in further}}
    make.__doc__, make.__name__ = function.__doc__, getattr(function, "__name__", "metric")
    return make
