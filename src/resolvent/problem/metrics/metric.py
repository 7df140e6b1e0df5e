"""The base class of metrics, and metrics from functions of the user's own."""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

from numpy.typing import NDArray
from typing_extensions import override

from resolvent.arguments import CheckedArguments, checked
from resolvent.errors import InputError, quote, shorten

__all__ = ["Metric", "MetricFunction", "Predictions", "check_metric", "from_function", "name_metrics", "settings_of"]

Task = Literal["classification", "regression", "any"]
_ARGUMENTS = ("predictions", "probabilities", "outputs")  # names of a function's second parameter
_OTHER_NAMES = ("loss", "gap", "refused", "replies", "rows")  # quantities of a run or of an evaluation


class Predictions(NamedTuple):
    """The predictions of a model for samples whose labels are known.

    Attributes:
        labels: [n] class numbers, in the order of the data's ``classes``; or targets.
        predicted: [n] the predicted class numbers; or the predicted numbers.
        probabilities: [n, classes] the probability of each class; None for regression, and for losses without
            probabilities.
        outputs: [n, ...] the outputs of the model.

    Example:
        >>> predictions = rv.metrics.Predictions(np.array([1.0, 3.0]), np.array([1.0, 2.0]), None, np.array([1.0, 2.0]))
        >>> rv.metrics.MAE().value(predictions)
        0.5
    """

    labels: NDArray[Any]
    predicted: NDArray[Any]
    probabilities: NDArray[Any] | None
    outputs: NDArray[Any]


@dataclass(frozen=True)
class Metric(CheckedArguments, ABC):
    """A number that says how well a model predicts samples with known labels.

    It is computed for each party, from all samples of the party in a split, so that it need not be a mean over samples.

    Attributes:
        name: its name in tables and files.
        higher_is_better: whether higher values are better.
        task: the task for which it is defined.
        needs_probabilities: whether it reads the probabilities of the classes.
        limits: the smallest and the largest possible value, which end its intervals.
    """

    name: str = field(init=False, default="")
    higher_is_better: bool = field(init=False, default=True)
    task: Task = field(init=False, default="any")
    needs_probabilities: bool = field(init=False, default=False)
    limits: ClassVar[tuple[float, float]] = (-math.inf, math.inf)

    @abstractmethod
    def value(self, predictions: Predictions) -> float:
        """The value for the samples of one party; NaN if it is not defined for their labels."""


@dataclass(frozen=True)
class MetricFunction(Metric):
    """A metric from a function, see ``from_function``.

    Attributes:
        function: function of (labels, predictions), (labels, probabilities) or (labels, outputs).
        argument: the name of its second parameter.
        settings: further arguments.
    """

    function: Callable[..., Any] = field(kw_only=True)
    argument: str = field(kw_only=True)
    settings: dict[str, Any] = field(kw_only=True, default_factory=dict)
    name: str = field(kw_only=True)
    higher_is_better: bool = field(kw_only=True, default=True)
    needs_probabilities: bool = field(kw_only=True, default=False)

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


def check_metric(name: str, metric: Metric, task: Task, loss: object, *, has_probabilities: bool) -> None:
    """Refuse a metric that does not fit the task, or that needs probabilities that the loss does not define.

    Raises:
        InputError: naming the metric.
    """
    if metric.task not in ("any", task):
        raise InputError(f"metrics: {name} is for {metric.task}, and the data are for {task}: choose another metric")
    if metric.needs_probabilities and not has_probabilities:
        raise InputError(f"metrics: {name} needs probabilities of classes, and the loss {type(loss).__name__} defines "
                         "none: give it a method probabilities()")


def name_metrics(metrics: Sequence[Metric] | Mapping[str, Metric]) -> dict[str, Metric]:
    """Metrics by name: their own names, or those that the user chose.

    Raises:
        InputError: two metrics have the same name, or one has the name of another quantity of a run.
    """
    if isinstance(metrics, Mapping):
        named = dict(metrics)
    else:
        named = {}
        for metric in metrics:
            if metric.name in named:
                raise InputError(f"metrics: two are named {quote(metric.name)}: give a mapping with a name for each")
            named[metric.name] = metric
    for name in named:
        if name in _OTHER_NAMES or name.startswith("global_"):
            raise InputError(f"metrics: {quote(name)} is the name of another quantity: choose another name")
    return named


@checked
def from_function(function: Callable[..., Any], *, higher_is_better: bool = True, name: str | None = None,
                  settings: dict[str, Any] | None = None) -> Metric:
    """A metric from a function of the labels and the predictions of one party.

    The name of the second parameter says what the function receives: ``predictions`` [n], class numbers or numbers;
    ``probabilities`` [n, classes]; or ``outputs`` [n, ...], those of the model. The labels [n] are class numbers, in
    the order of the data's ``classes``, or targets. Both are NumPy arrays. The function returns a number, or NaN or
    None where it is not defined. In an experiment file, such a function is named as ``module:function``.

    Args:
        function: the function.
        higher_is_better: whether higher values are better.
        name: name of the metric; default: that of the function.
        settings: further arguments of the function, by name.

    Raises:
        InputError: the second parameter has another name, or a setting is none of the function's parameters.

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
                          higher_is_better=higher_is_better, needs_probabilities=names[1] == "probabilities")


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

    def make(*, higher_is_better: bool = True, **settings: Any) -> Metric:
        return from_function(function, higher_is_better=higher_is_better, settings=settings)

    is_higher = inspect.Parameter("higher_is_better", inspect.Parameter.KEYWORD_ONLY, default=True)
    further = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in list(signature.parameters.values())[2:]]
    make.__signature__ = inspect.Signature([is_higher, *further])  # type: ignore[attr-defined]
    annotations = inspect.get_annotations(function, eval_str=True)
    make.__annotations__ = {"higher_is_better": bool,
                            **{p.name: annotations.get(p.name, type(p.default)) for p in further}}
    make.__doc__, make.__name__ = function.__doc__, getattr(function, "__name__", "metric")
    return make
