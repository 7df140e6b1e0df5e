"""Losses of predictions, and the scores that are reported in addition to the loss."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float
from numpy.typing import NDArray
from typing_extensions import override

from resolvent.arguments import CheckedArguments
from resolvent.errors import InputError, quote

__all__ = ["BinaryCrossEntropy", "CrossEntropy", "Loss", "SampleLoss", "SquaredError", "WeightedLoss", "loss_named",
           "score_rows"]

LossName = Literal["cross_entropy", "binary_cross_entropy", "squared_error"]


class Loss(CheckedArguments, eqx.Module):
    """A loss and a score per sample. Their means over samples are reported.

    Attributes:
        score_name: name of the score in reports.
        higher_is_better: whether a larger score is better. Every comparison of scores follows this attribute.
    """

    score_name: eqx.AbstractClassVar[str]
    higher_is_better: eqx.AbstractClassVar[bool]

    @abstractmethod
    def loss(self, outputs: Float[Array, "B ..."], y: Array) -> Float[Array, " B"]:
        """The loss of each sample, of which training minimises the mean."""

    @abstractmethod
    def score(self, outputs: Float[Array, "B ..."], y: Array) -> Float[Array, " B"]:
        """The score of each sample."""

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

    def check(self, outputs: jax.ShapeDtypeStruct, task: str, classes: int) -> None:
        """Refuse outputs for two samples, or data, that the loss is not for; by default none.

        Args:
            outputs: shape and dtype.
            task: ``classification`` or ``regression``.
            classes: number of classes of the data.

        Raises:
            InputError: naming what the loss needs.
        """


class CrossEntropy(Loss):
    """Multinomial cross-entropy of logits [B, classes] and class numbers; the score is the accuracy."""

    score_name: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True

    @override
    def loss(self, outputs: Float[Array, "B classes"], y: Array) -> Float[Array, " B"]:
        """-log softmax(outputs)[y]."""
        # The label's logit is a masked sum. optax indexes it, and the gradient of that, a scatter, is slow in a loop on
        # a CPU.
        largest = jax.lax.stop_gradient(jnp.max(outputs, axis=-1, keepdims=True))
        is_label = jnp.arange(outputs.shape[-1]) == y[:, None]
        logits = outputs - largest
        result: Array = jnp.log(jnp.sum(jnp.exp(logits), axis=-1)) - jnp.sum(jnp.where(is_label, logits, 0), axis=-1)
        return result

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
        raise InputError(f"{type(loss).__name__} is for classes, but the labels are real numbers: use squared_error")


class SquaredError(Loss):
    """Half the squared error of outputs [B] or [B, 1]; the score is the squared error."""

    score_name: ClassVar[str] = "squared_error"
    higher_is_better: ClassVar[bool] = False

    @override
    def loss(self, outputs: Float[Array, "B ..."], y: Array) -> Float[Array, " B"]:
        return self.score(outputs, y) / 2

    @override
    def score(self, outputs: Float[Array, "B ..."], y: Array) -> Float[Array, " B"]:
        value = outputs.reshape(len(outputs))
        return jnp.square(value - y.astype(value.dtype))


class SampleLoss(Loss):
    """A loss from a function (outputs, y) -> [B]; the score is the loss."""

    function: Callable[[Array, Array], Array] = eqx.field(static=True)
    score_name: ClassVar[str] = "own_loss"
    higher_is_better: ClassVar[bool] = False

    @override
    def loss(self, outputs: Float[Array, "B ..."], y: Array) -> Float[Array, " B"]:
        return self.function(outputs, y)

    @override
    def score(self, outputs: Float[Array, "B ..."], y: Array) -> Float[Array, " B"]:
        return self.function(outputs, y)


class WeightedLoss(Loss):
    """A loss times the weight of each sample; the score counts every sample once.

    Labels [B, 2] are pairs of the label and the weight, so that weights are gathered, divided among devices and stored
    with the labels.

    Attributes:
        inner: the loss of a sample.
        has_classes: whether labels are class numbers.
    """

    inner: Loss
    has_classes: bool = eqx.field(static=True)

    @property
    def score_name(self) -> str:  # type: ignore[override]
        """Name of the inner loss's score."""
        return self.inner.score_name

    @property
    def higher_is_better(self) -> bool:  # type: ignore[override]
        """Whether higher values of the inner loss's score are better."""
        return self.inner.higher_is_better

    @override
    def loss(self, outputs: Float[Array, "B ..."], y: Float[Array, "B 2"]) -> Float[Array, " B"]:
        return y[:, 1].astype(outputs.dtype) * self.inner.loss(outputs, self.labels(y))

    @override
    def score(self, outputs: Float[Array, "B ..."], y: Float[Array, "B 2"]) -> Float[Array, " B"]:
        return self.inner.score(outputs, self.labels(y))

    @override
    def probabilities(self, outputs: Float[Array, "B ..."]) -> Float[Array, "B classes"]:
        return self.inner.probabilities(outputs)

    @property
    @override
    def has_probabilities(self) -> bool:
        return self.inner.has_probabilities

    def labels(self, y: Float[Array, "B 2"]) -> Array:
        """[B] the labels without the weights."""
        return y[:, 0].astype(jnp.int32) if self.has_classes else y[:, 0]


def score_rows(loss: Loss, outputs: Float[Array, "B ..."], y: Array) -> Float[Array, " B"]:
    """The score of each sample; NaN where an output of the sample is not finite.

    Scores of a model that diverged would be numbers otherwise: the largest of NaN logits is that of class 0.
    """
    is_finite = [jnp.isfinite(leaf).reshape(len(leaf), -1).all(axis=1) for leaf in jax.tree.leaves(outputs)]
    return jnp.where(jnp.stack(is_finite).all(axis=0), loss.score(outputs, y), jnp.nan)


def loss_named(loss: Loss | LossName | Callable[[Array, Array], Array]) -> Loss:
    """A loss from its name, from a function (outputs, labels) -> [B], or unchanged.

    Raises:
        InputError: there is no loss of this name.
    """
    named: dict[str, Loss] = {"cross_entropy": CrossEntropy(), "binary_cross_entropy": BinaryCrossEntropy(),
                              "squared_error": SquaredError()}
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, str):
        if loss not in named:
            raise InputError(f"loss={quote(loss)} is not known: use one of {sorted(named)}, a Loss, or a function")
        return named[loss]
    return SampleLoss(loss)
