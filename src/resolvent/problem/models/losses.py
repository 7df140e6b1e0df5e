"""Losses of predictions, and the scores that are reported in addition to the loss."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PyTree
from numpy.typing import NDArray
from typing_extensions import override

from resolvent.arguments import CheckedArguments
from resolvent.errors import InputError, quote

_HIGHER_IS_BETTER = frozenset((
    "accuracy", "accuracy_of_all_tokens", "annual_return", "auc", "average_precision", "balanced_accuracy",
    "exact_match", "f1", "f1_score", "label_accuracy", "macro_f1", "multi_label_f1", "pair_accuracy", "precision", "r2",
    "r2_score", "recall", "recall_at_k", "roc_auc", "sensitivity", "sharpe_ratio", "specificity", "token_accuracy",
    "wealth", "wealth_by_day"))
_LOWER_IS_BETTER = frozenset((
    "absolute_error", "brier_score", "calibration_error", "error_rate", "gap", "gradient_variance", "line",
    "line_previous", "log_loss", "loss", "mae", "max_drawdown", "mean_absolute_error", "mean_squared_error",
    "model_change", "mse", "objective", "own_loss", "perplexity", "poisson_deviance", "reconstruction_error",
    "rmse", "squared_error", "start_change"))


def higher_is_better(name: str) -> bool:
    """Whether higher values of a score are better, if its name says so; `global_` before a name changes nothing.

    Raises:
        InputError: the name is none of those that are known.
    """
    known = name.removeprefix("global_")
    if known in _HIGHER_IS_BETTER:
        return True
    if known in _LOWER_IS_BETTER:
        return False
    raise InputError(f"whether a larger {quote(name)} is better is not known: set higher_is_better to True or False")


def state_direction(kind: type[Any], attribute: str) -> None:
    """Give a class that names its score the direction of a known name, unless the class states one.

    Args:
        attribute: the attribute with the name.

    Raises:
        InputError: the class names a score that is not known, and no direction.
    """
    own = vars(kind)
    if attribute in own and "higher_is_better" not in {*own, *own.get("__annotations__", ())}:
        name = getattr(own[attribute], "default", own[attribute])  # of a field, its default
        kind.higher_is_better = higher_is_better(name if isinstance(name, str) else kind.__name__)


class Loss(CheckedArguments, eqx.Module):
    """A loss per sample and, for most losses, a score per sample. Their means over samples are reported.

    Outputs and labels are pytrees of arrays [B, ...], of which a single array is the simplest. A loss of one's own
    derives from this class and defines ``loss``; ``score`` with its name, ``probabilities`` and ``check`` as needed.

    Attributes:
        score_name: name of the score in reports; ``loss`` if there is none.
        higher_is_better: whether a larger score is better. Every comparison of scores follows this attribute. A class
            with a ``score_name`` states it, unless the name is a known one, such as ``accuracy``.
        needs_labels: whether the loss reads labels; if not, data without labels (``y=None``) can be used.
        needs_inputs: whether the loss compares outputs with the inputs, as a reconstruction does (``targets``).
        needs_batch: whether the loss of a sample depends on the other samples of its minibatch, as in contrastive
            learning. It then overrides ``batch_loss``. The objective of a party is the mean over blocks of its samples.
    """

    score_name: ClassVar[str] = "loss"
    higher_is_better: ClassVar[bool] = False
    needs_labels: ClassVar[bool] = True
    needs_inputs: ClassVar[bool] = False
    needs_batch: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        state_direction(cls, "score_name")
        if "score" in vars(cls) and cls.score_name == "loss":
            raise InputError(f"{cls.__name__} has a score without a name: set score_name, and higher_is_better")

    @abstractmethod
    def loss(self, outputs: PyTree[Array], y: PyTree[Array]) -> Float[Array, " B"]:
        """The loss of each sample, of which training minimises the mean."""

    def score(self, outputs: PyTree[Array], y: PyTree[Array]) -> Float[Array, " B"]:
        """The score of each sample; by default the loss."""
        return self.loss(outputs, y)

    def batch_loss(self, outputs: PyTree[Array], y: PyTree[Array], mask: Bool[Array, " B"]) -> Float[Array, " B"]:
        """The loss of each sample of a minibatch; samples outside ``mask`` only fill it up, and must have no effect.

        A loss of single samples, the default, need not know the mask.
        """
        return self.loss(outputs, y)

    def batch_score(self, outputs: PyTree[Array], y: PyTree[Array], mask: Bool[Array, " B"]) -> Float[Array, " B"]:
        """The score of each sample of a minibatch, as ``batch_loss``."""
        return self.score(outputs, y)

    def targets(self, x: PyTree[Array], y: PyTree[Array]) -> PyTree[Array]:
        """What outputs are compared with, from the inputs and the labels of a minibatch; by default the labels."""
        return y

    def adapted(self, outputs: PyTree[jax.ShapeDtypeStruct], task: str, classes: int) -> "Loss":
        """The loss for a model with these outputs on these data; by default the loss itself.

        Args:
            outputs: shapes and dtypes of the outputs for some samples.
            task: task of the data.
            classes: number of classes of the data.
        """
        return self

    def probabilities(self, outputs: Float[Array, "B ..."]) -> Float[Array, "B classes"]:
        """The probability of each class.

        Raises:
            InputError: the loss defines no probabilities; losses of regression do not.
        """
        raise InputError(f"{type(self).__name__} defines no probabilities of classes: use the outputs of the model, or "
                         "give the loss a method probabilities()")

    @property
    def has_probabilities(self) -> bool:
        """Whether the loss defines probabilities of the classes."""
        return type(self).probabilities is not Loss.probabilities

    def classes(self, outputs: NDArray[Any], probabilities: NDArray[Any] | None) -> NDArray[np.integer]:
        """[n] the predicted class of each sample: the most probable one.

        Without probabilities it is the one with the largest output, or class 1 where the only output is positive.

        Args:
            outputs: [n, ...] outputs of the model.
            probabilities: [n, classes] those of the outputs; None if the loss defines none.
        """
        if probabilities is None and outputs.size == len(outputs):
            return np.asarray(outputs.reshape(len(outputs)) > 0, np.int64)
        return np.asarray(np.argmax(outputs if probabilities is None else probabilities, axis=-1))

    def check(self, outputs: Any, task: str, classes: int) -> None:
        """Refuse outputs for two samples, or data, that the loss is not for; by default none.

        Args:
            outputs: shapes and dtypes.
            task: ``classification``, ``regression`` or ``structured``.
            classes: number of classes of the data.

        Raises:
            InputError: naming what the loss needs.
        """

    def check_labels(self, y: Any, outputs: Any) -> None:
        """Refuse labels for which the loss would be a number without a meaning; by default none.

        Args:
            y: all labels of the data, in memory.
            outputs: shapes and dtypes of the outputs for some samples.

        Raises:
            InputError: naming a label that the loss is not for.
        """


def softmax_cross_entropy(outputs: Float[Array, "... classes"], labels: Int[Array, "..."]) -> Float[Array, "..."]:
    """-log softmax(outputs)[label]."""
    # The largest logit is subtracted as it is: the test of jax.nn.logsumexp whether it is finite is a pass of its own.
    largest = jax.lax.stop_gradient(jnp.max(outputs, axis=-1, keepdims=True))
    logits = outputs - largest
    # The label's logit is a masked sum. optax indexes it, and the gradient of that, a scatter, is slow in a loop on a
    # CPU.
    is_label = jnp.arange(outputs.shape[-1]) == labels[..., None]
    result: Array = jnp.log(jnp.sum(jnp.exp(logits), axis=-1)) - jnp.sum(jnp.where(is_label, logits, 0), axis=-1)
    return result


class CrossEntropy(Loss):
    """Multinomial cross-entropy of logits [B, classes] and class numbers; the score is the accuracy."""

    score_name: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True

    @override
    def loss(self, outputs: Float[Array, "B classes"], y: Array) -> Float[Array, " B"]:
        return softmax_cross_entropy(outputs, y)

    @override
    def score(self, outputs: Float[Array, "B classes"], y: Array) -> Float[Array, " B"]:
        """1 where the label has the largest logit."""
        return (jnp.argmax(outputs, axis=-1) == y).astype(outputs.dtype)

    @override
    def probabilities(self, outputs: Float[Array, "B ..."]) -> Float[Array, "B classes"]:
        """The softmax of the outputs, which are logits: [B, classes], each row sums to 1."""
        return jax.nn.softmax(outputs, axis=-1)

    @override
    def classes(self, outputs: NDArray[Any], probabilities: NDArray[Any] | None) -> NDArray[np.integer]:
        return np.asarray(np.argmax(outputs, axis=-1))

    @override
    def check(self, outputs: jax.ShapeDtypeStruct, task: str, classes: int) -> None:
        if len(outputs.shape) != 2:
            raise InputError(f"the cross-entropy needs outputs [samples, classes], got {list(outputs.shape)} "
                             f"({outputs.dtype}) for 2 samples: return one logit per class")
        _check_classification(self, task)
        if outputs.shape[-1] < classes:
            raise InputError(f"the model has {outputs.shape[-1]} output(s), but the data has {classes} classes")


class BinaryCrossEntropy(Loss):
    """Logistic loss of one logit per sample, [B] or [B, 1], and labels 0 or 1; the score is the accuracy."""

    score_name: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True

    @override
    def loss(self, outputs: Float[Array, "B ..."], y: Array) -> Float[Array, " B"]:
        """log(1 + exp(-s)), with s the logit of the label's class."""
        logit = outputs.reshape(len(outputs))
        result: Array = optax.losses.sigmoid_binary_cross_entropy(logit, y.astype(logit.dtype))
        return result

    @override
    def score(self, outputs: Float[Array, "B ..."], y: Array) -> Float[Array, " B"]:
        """1 where the sign of the logit agrees with the label."""
        logit = outputs.reshape(len(outputs))
        return ((logit > 0) == (y > 0)).astype(logit.dtype)

    @override
    def probabilities(self, outputs: Float[Array, "B ..."]) -> Float[Array, "B classes"]:
        """1 - sigmoid(outputs) and sigmoid(outputs)."""
        logit = outputs.reshape(len(outputs))
        return jnp.stack([jax.nn.sigmoid(-logit), jax.nn.sigmoid(logit)], axis=1)

    @override
    def classes(self, outputs: NDArray[Any], probabilities: NDArray[Any] | None) -> NDArray[np.integer]:
        """As the score: a logit of 0 is the first class."""
        return np.asarray(outputs.reshape(len(outputs)) > 0, np.int64)

    @override
    def check(self, outputs: jax.ShapeDtypeStruct, task: str, classes: int) -> None:
        _check_classification(self, task)
        if classes > 2:
            raise InputError(f"the binary cross-entropy is for two classes, but the data has {classes}")


def _check_classification(loss: Loss, task: str) -> None:
    if task == "regression":
        raise InputError(f"{type(loss).__name__} is for classes, but the labels are real numbers: use squared_error, "
                         "or give the number of the class of each sample")
    if task == "structured":
        raise InputError(f"{type(loss).__name__} is for one class number per sample, but labels have another "
                         "structure: use token_cross_entropy for sequences and images of class numbers, multi_label "
                         "for 0/1 labels, or a loss of your own")


def check_real_numbers(name: str, task: str) -> None:
    """Refuse a loss of real numbers for data of another task."""
    if task != "regression":
        labels = "class numbers" if task == "classification" else "of another structure"
        raise InputError(f"{name} is for real numbers, and labels are {labels}: make the data with task='regression' "
                         "if the integers are numbers, or choose another loss")


class SquaredError(Loss):
    """Half the squared error of outputs [B] or [B, 1]; the score is the squared error.

    For labels [B, d, ...] and outputs of as many numbers, it is the mean over the d targets.
    """

    score_name: ClassVar[str] = "squared_error"
    higher_is_better: ClassVar[bool] = False

    @override
    def check(self, outputs: Any, task: str, classes: int) -> None:
        if task == "structured":
            check_real_numbers("the squared error", task)

    @override
    def loss(self, outputs: Float[Array, "B ..."], y: Array) -> Float[Array, " B"]:
        return self.score(outputs, y) / 2

    @override
    def score(self, outputs: Float[Array, "B ..."], y: Array) -> Float[Array, " B"]:
        value = outputs.reshape(y.shape)
        squares = jnp.square(value - y.astype(value.dtype))
        return squares if y.ndim == 1 else jnp.mean(squares.reshape(len(y), -1), axis=1)


class SampleLoss(Loss):
    """A loss from a function (outputs, y) -> [B].

    The score is the accuracy where labels are class numbers and outputs [B, classes] have one number per class.
    Otherwise it is the loss.

    Attributes:
        has_class_scores: whether the score is the accuracy.
    """

    function: Callable[[Any, Any], Array] = eqx.field(static=True)
    has_class_scores: bool = eqx.field(static=True, default=False)

    @property
    def score_name(self) -> str:  # type: ignore[override]
        """``accuracy``, or ``own_loss``."""
        return "accuracy" if self.has_class_scores else "own_loss"

    @property
    def higher_is_better(self) -> bool:  # type: ignore[override]
        """Whether the score is the accuracy."""
        return self.has_class_scores

    @override
    def loss(self, outputs: PyTree[Array], y: PyTree[Array]) -> Float[Array, " B"]:
        return self.function(outputs, y)

    @override
    def score(self, outputs: PyTree[Array], y: PyTree[Array]) -> Float[Array, " B"]:
        if not self.has_class_scores:
            return self.function(outputs, y)
        is_right: Array = jnp.argmax(outputs, axis=-1) == y
        return is_right.astype(outputs.dtype)

    @override
    def adapted(self, outputs: PyTree[jax.ShapeDtypeStruct], task: str, classes: int) -> Loss:
        shape: tuple[int, ...] = getattr(outputs, "shape", ())
        is_row = len(shape) == 2 and shape[-1] == classes > 1
        return replace(self, has_class_scores=task == "classification" and is_row)


class WeightedLabels(NamedTuple):
    """Labels with a weight of each sample, so that weights are gathered, divided among devices and stored with them.

    Attributes:
        labels: leaves [total, ...].
        weight: [total] the weight of each sample in the loss.
    """

    labels: PyTree[Array]
    weight: Float[Array, " total"]


class WeightedLoss(Loss):
    """A loss of ``WeightedLabels``, times the weight of each sample; the score counts every sample once."""

    inner: Loss

    @property
    def score_name(self) -> str:  # type: ignore[override]
        """Name of the inner loss's score."""
        return self.inner.score_name

    @property
    def higher_is_better(self) -> bool:  # type: ignore[override]
        """Whether higher values of the inner loss's score are better."""
        return self.inner.higher_is_better

    @property
    def needs_inputs(self) -> bool:  # type: ignore[override]
        """Whether the inner loss reads inputs."""
        return self.inner.needs_inputs

    @property
    def needs_batch(self) -> bool:  # type: ignore[override]
        """Whether the inner loss reads the other samples of a minibatch."""
        return self.inner.needs_batch

    @override
    def targets(self, x: PyTree[Array], y: WeightedLabels) -> WeightedLabels:
        return WeightedLabels(self.inner.targets(x, y.labels), y.weight)

    @override
    def loss(self, outputs: PyTree[Array], y: WeightedLabels) -> Float[Array, " B"]:
        loss = self.inner.loss(outputs, y.labels)
        return y.weight.astype(loss.dtype) * loss

    @override
    def batch_loss(self, outputs: PyTree[Array], y: WeightedLabels, mask: Bool[Array, " B"]) -> Float[Array, " B"]:
        loss = self.inner.batch_loss(outputs, y.labels, mask)
        return y.weight.astype(loss.dtype) * loss

    @override
    def score(self, outputs: PyTree[Array], y: WeightedLabels) -> Float[Array, " B"]:
        return self.inner.score(outputs, y.labels)

    @override
    def batch_score(self, outputs: PyTree[Array], y: WeightedLabels, mask: Bool[Array, " B"]) -> Float[Array, " B"]:
        return self.inner.batch_score(outputs, y.labels, mask)

    @override
    def probabilities(self, outputs: PyTree[Array]) -> PyTree[Array]:
        return self.inner.probabilities(outputs)

    @property
    @override
    def has_probabilities(self) -> bool:
        return self.inner.has_probabilities


def score_rows(loss: Loss, outputs: PyTree[Array], y: PyTree[Array],
               mask: Bool[Array, " B"] | None = None) -> Float[Array, " B"]:
    """The score of each sample; NaN where an output of the sample is not finite.

    Scores of a model that diverged would be numbers otherwise: the largest of NaN logits is that of class 0.

    Args:
        outputs: leaves [B, ...].
        mask: which samples belong to the minibatch; None: all.
    """
    is_finite = [jnp.isfinite(leaf).reshape(len(leaf), -1).all(axis=1) for leaf in jax.tree.leaves(outputs)]
    score = loss.score(outputs, y) if mask is None else loss.batch_score(outputs, y, mask)
    return jnp.where(jnp.stack(is_finite).all(axis=0), score, jnp.nan)
