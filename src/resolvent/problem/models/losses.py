"""Losses of a prediction against its label, and the score that people read beside the loss."""

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

__all__ = ["BinaryCrossEntropy", "CrossEntropy", "Loss", "SampleLoss", "SquaredError", "loss_named"]

LossName = Literal["cross_entropy", "binary_cross_entropy", "squared_error"]


class Loss(eqx.Module):
    """A loss per sample and a score per sample whose mean over samples is reported.

    Attributes:
        score_name: what the reported score is called.
        higher_is_better: whether a larger score is a better one.
    """

    score_name: eqx.AbstractClassVar[str]
    higher_is_better: eqx.AbstractClassVar[bool]

    @abstractmethod
    def loss(self, outputs: Float[Array, "B ..."], y: Array) -> Float[Array, " B"]:
        """The loss of each sample."""

    @abstractmethod
    def score(self, outputs: Float[Array, "B ..."], y: Array) -> Float[Array, " B"]:
        """The score of each sample."""


class CrossEntropy(Loss):
    """Multinomial cross-entropy: outputs are logits [B, classes], labels class numbers; scored by accuracy."""

    score_name: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True

    def loss(self, outputs: Float[Array, "B classes"], y: Array) -> Float[Array, " B"]:
        """-log softmax(outputs)[y]."""
        # A sum over a mask in place of optax's lookup, whose gradient is a scatter: slow in a loop on a CPU.
        largest = jax.lax.stop_gradient(jnp.max(outputs, axis=-1, keepdims=True))
        own = jnp.arange(outputs.shape[-1]) == y[:, None]
        apart = outputs - largest
        result: Array = jnp.log(jnp.sum(jnp.exp(apart), axis=-1)) - jnp.sum(jnp.where(own, apart, 0), axis=-1)
        return result

    def score(self, outputs: Float[Array, "B classes"], y: Array) -> Float[Array, " B"]:
        """1 where the largest logit is the label's."""
        return (jnp.argmax(outputs, axis=-1) == y).astype(outputs.dtype)


class BinaryCrossEntropy(Loss):
    """Logistic loss: outputs are one logit per sample, [B] or [B, 1], labels 0 or 1; scored by accuracy."""

    score_name: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True

    def loss(self, outputs: Float[Array, "B ..."], y: Array) -> Float[Array, " B"]:
        """log(1 + exp(-s)), s the logit of the true class against the other."""
        logit = outputs.reshape(len(outputs))
        result: Array = optax.losses.sigmoid_binary_cross_entropy(logit, y.astype(logit.dtype))
        return result

    def score(self, outputs: Float[Array, "B ..."], y: Array) -> Float[Array, " B"]:
        """1 where the logit's sign is the label's."""
        logit = outputs.reshape(len(outputs))
        return ((logit > 0) == (y > 0)).astype(logit.dtype)


class SquaredError(Loss):
    """Half the squared error, outputs [B] or [B, 1]; scored by the mean squared error."""

    score_name: ClassVar[str] = "squared_error"
    higher_is_better: ClassVar[bool] = False

    def loss(self, outputs: Float[Array, "B ..."], y: Array) -> Float[Array, " B"]:
        """(output - y)^2 / 2."""
        return self.score(outputs, y) / 2

    def score(self, outputs: Float[Array, "B ..."], y: Array) -> Float[Array, " B"]:
        """(output - y)^2."""
        value = outputs.reshape(len(outputs))
        return jnp.square(value - y.astype(value.dtype))


class SampleLoss(Loss):
    """A user's own loss per sample, a function (outputs, y) -> [B]; scored by itself."""

    function: Callable[[Array, Array], Array] = eqx.field(static=True)
    score_name: ClassVar[str] = "own_loss"
    higher_is_better: ClassVar[bool] = False

    def loss(self, outputs: Float[Array, "B ..."], y: Array) -> Float[Array, " B"]:
        """The user's loss."""
        return self.function(outputs, y)

    def score(self, outputs: Float[Array, "B ..."], y: Array) -> Float[Array, " B"]:
        """The user's loss once more."""
        return self.function(outputs, y)


def loss_named(loss: Loss | LossName | Callable[[Array, Array], Array]) -> Loss:
    """A loss from its name, from a function (outputs, labels) -> [B], or as it is."""
    named: dict[str, Loss] = {"cross_entropy": CrossEntropy(), "binary_cross_entropy": BinaryCrossEntropy(),
                              "squared_error": SquaredError()}
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, str):
        if loss not in named:
            raise ValueError(f"loss={loss!r} is not known: use one of {sorted(named)}, a Loss, or a function")
        return named[loss]
    return SampleLoss(loss)
