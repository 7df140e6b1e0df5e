"""Losses for outputs and labels of more than one number: sequences, several labels, quantiles, pairs of views."""

from typing import Annotated, Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, PyTree
from numpy.typing import NDArray
from typing_extensions import override

from resolvent.errors import InputError, check_range, shorten
from resolvent.problem.models.losses import Loss, check_real_numbers, softmax_cross_entropy


def labels_and_mask(y: Any) -> tuple[Any, Any]:
    """Labels [B, ...] and their weights of the same shape; None if all count the same.

    Labels are an array, or a mapping with ``labels`` and ``mask``, where 0 in the mask stands for padding.
    """
    if isinstance(y, dict):
        if not {"labels"} <= set(y) <= {"labels", "mask"}:
            raise InputError(f"labels with a mask are a dict with 'labels' and 'mask', got {shorten(sorted(y))}")
        return y["labels"], y.get("mask")
    if not hasattr(y, "shape"):
        raise InputError(f"the loss needs labels that are an array, or a dict with 'labels' and 'mask', got "
                         f"{type(y).__name__}")
    return y, None


def _row_means(values: Array, weights: Array | None) -> Float[Array, " B"]:
    """[B] the weighted mean of each row of values [B, ...]; 0 where all weights are 0."""
    rows = values.reshape(len(values), -1)
    if weights is None:
        return jnp.mean(rows, axis=1)
    of_rows = weights.reshape(len(values), -1).astype(rows.dtype)
    total = jnp.sum(of_rows, axis=1)
    # The inner where keeps values that are not finite out of the sums of weights 0 and of their gradients.
    sums = jnp.sum(jnp.where(of_rows > 0, rows, 0) * of_rows, axis=1)
    return jnp.where(total > 0, sums / jnp.where(total > 0, total, 1), 0)


def _check_counted(weights: Any, what: str) -> None:
    """Refuse a sample of which nothing counts: its score would be that of a wrong prediction."""
    counts = np.asarray(weights).reshape(len(weights), -1).any(axis=1)
    if not counts.all():
        raise InputError(f"sample {int(np.argmin(counts))} of the data has no {what} that counts, and so no score: "
                         "leave it out")


def _check_shape(name: str, outputs: Any, needed: str, ndim: int | None = None, smallest: int = 2) -> None:
    shape = getattr(outputs, "shape", None)
    if shape is None or len(shape) < smallest or (ndim is not None and len(shape) != ndim):
        described = "a structure of several arrays" if shape is None else f"{list(shape)} for 2 samples"
        raise InputError(f"{name} needs outputs {needed}, got {described}")


class TokenCrossEntropy(Loss):
    """Cross-entropy of every token of a sequence, or pixel of an image; a sample's loss is the mean over its tokens.

    Outputs are logits [B, ..., classes], and labels class numbers [B, ...]. Tokens with the label ``padding`` do not
    count, so that sequences of different length are padded with it. Or labels are a dict with ``labels`` and ``mask``,
    weights [B, ...] of the tokens in the mean. Data with a sample without tokens are refused. The score is the share
    of tokens whose label has the largest logit.

    The objective of a party is a mean of means. With ``data.with_weights(lengths)`` every token counts the same.

    Attributes:
        padding: the label of tokens that do not count; -100 in data that were made for PyTorch or Hugging Face.

    Example:
        >>> logits = jnp.zeros((1, 3, 4))
        >>> rv.losses.TokenCrossEntropy().loss(logits, jnp.array([[1, 2, -1]])).tolist() == [float(jnp.log(4.0))]
        True
    """

    padding: int = eqx.field(static=True, default=-1)
    score_name: ClassVar[str] = "token_accuracy"
    higher_is_better: ClassVar[bool] = True

    def _weights(self, y: Any) -> tuple[Any, Any]:
        labels, mask = labels_and_mask(y)
        is_token = labels != self.padding
        return labels, is_token if mask is None else mask * is_token

    @override
    def loss(self, outputs: Float[Array, "B ... classes"], y: PyTree[Array]) -> Float[Array, " B"]:
        labels, weights = self._weights(y)
        return _row_means(softmax_cross_entropy(outputs, labels), weights)

    @override
    def score(self, outputs: Float[Array, "B ... classes"], y: PyTree[Array]) -> Float[Array, " B"]:
        labels, weights = self._weights(y)
        return _row_means((jnp.argmax(outputs, axis=-1) == labels).astype(outputs.dtype), weights)

    @override
    def probabilities(self, outputs: Float[Array, "B ... classes"]) -> Float[Array, "B ... classes"]:
        """The softmax of the logits of every token."""
        return jax.nn.softmax(outputs, axis=-1)

    @override
    def classes(self, outputs: NDArray[Any], probabilities: NDArray[Any] | None) -> NDArray[np.integer]:
        """[n, ...] the class with the largest logit of every token."""
        return np.asarray(np.argmax(outputs, axis=-1))

    @override
    def check(self, outputs: Any, task: str, classes: int) -> None:
        _check_shape("the cross-entropy of tokens", outputs, "[samples, tokens, classes]", smallest=3)

    @override
    def check_labels(self, y: Any, outputs: Any) -> None:
        labels = np.asarray(labels_and_mask(y)[0])
        if labels.dtype.kind not in "iu" or labels.shape[1:] != outputs.shape[1:-1]:
            raise InputError(f"the cross-entropy of tokens needs class numbers of shape [samples, "
                             f"{', '.join(map(str, outputs.shape[1:-1]))}], got {labels.dtype} {list(labels.shape)}")
        wrong = labels[((labels < 0) | (labels >= outputs.shape[-1])) & (labels != self.padding)]
        if wrong.size:
            hint = f": if it is, use TokenCrossEntropy(padding={wrong[0]})" if wrong[0] < 0 else ""
            raise InputError(f"the label {wrong[0]} of a token is not among the {outputs.shape[-1]} outputs of the "
                             f"model, 0 to {outputs.shape[-1] - 1}, and is not the padding {self.padding}{hint}")
        _check_counted(self._weights(y)[1], "token")


class MultiLabelCrossEntropy(Loss):
    """Mean logistic loss of L labels that are 0 or 1 each; outputs are logits [B, L].

    Labels are [B, L], or a dict with ``labels`` and ``mask``, weights [B, L], where 0 stands for a label that is not
    known. The score is the share of labels that the signs of the logits predict.

    Example:
        >>> rv.losses.MultiLabelCrossEntropy().score(jnp.array([[2.0, -1.0]]), jnp.array([[1, 1]])).tolist()
        [0.5]
    """

    score_name: ClassVar[str] = "label_accuracy"
    higher_is_better: ClassVar[bool] = True

    @override
    def loss(self, outputs: Float[Array, "B L"], y: PyTree[Array]) -> Float[Array, " B"]:
        labels, mask = labels_and_mask(y)
        return _row_means(optax.losses.sigmoid_binary_cross_entropy(outputs, labels.astype(outputs.dtype)), mask)

    @override
    def score(self, outputs: Float[Array, "B L"], y: PyTree[Array]) -> Float[Array, " B"]:
        labels, mask = labels_and_mask(y)
        return _row_means(((outputs > 0) == (labels > 0)).astype(outputs.dtype), mask)

    @override
    def probabilities(self, outputs: Float[Array, "B L"]) -> Float[Array, "B L"]:
        """The probability that each label is 1."""
        return jax.nn.sigmoid(outputs)

    @override
    def classes(self, outputs: NDArray[Any], probabilities: NDArray[Any] | None) -> NDArray[np.integer]:
        """[n, L] 1 where a logit is positive."""
        return np.asarray(outputs > 0, np.int64)

    @override
    def check(self, outputs: Any, task: str, classes: int) -> None:
        _check_shape("the loss of several labels", outputs, "[samples, labels]", ndim=2)

    @override
    def check_labels(self, y: Any, outputs: Any) -> None:
        labels = np.asarray(labels_and_mask(y)[0])
        if labels.shape[1:] != outputs.shape[1:]:
            raise InputError(f"the model has {outputs.shape[1]} outputs, and labels have the shape "
                             f"{list(labels.shape[1:])}: give one output per label")
        if not np.isin(labels, (0, 1)).all():
            wrong = labels[~np.isin(labels, (0, 1))][0]
            raise InputError(f"the loss of several labels needs labels that are 0 or 1, and one is {wrong}")
        if (mask := labels_and_mask(y)[1]) is not None:
            _check_counted(mask, "label")


class Quantile(Loss):
    """Pinball loss of quantiles: the mean over the levels q of max(q (y - s), (q - 1)(y - s)).

    Outputs s are [B], [B, 1] or [B, levels], and labels real numbers [B]. There is no score besides the loss. Source:
    Koenker, Bassett: Regression Quantiles, Econometrica 46, 1978.

    Attributes:
        levels: the levels of the quantiles, each between 0 and 1.

    Raises:
        InputError: a level is not between 0 and 1.

    Example:
        >>> rv.losses.Quantile((0.9,)).loss(jnp.array([0.0]), jnp.array([2.0])).tolist() == [np.float32(0.9) * 2]
        True
    """

    levels: tuple[float, ...] = eqx.field(static=True, default=(0.5,))

    def __check_init__(self) -> None:
        for level in self.levels or (0.0,):
            check_range(self, "(0, 1)", levels=level)

    @override
    def loss(self, outputs: Float[Array, "B ..."], y: Float[Array, " B"]) -> Float[Array, " B"]:
        values = outputs.reshape(len(outputs), len(self.levels))
        error, levels = y.astype(values.dtype)[:, None] - values, jnp.asarray(self.levels, values.dtype)
        return jnp.mean(jnp.maximum(levels * error, (levels - 1) * error), axis=1)

    @override
    def check(self, outputs: Any, task: str, classes: int) -> None:
        _check_shape("the quantile loss", outputs, f"[samples, {len(self.levels)}]", smallest=1)
        if outputs.size != 2 * len(self.levels) or task != "regression":
            raise InputError(f"the quantile loss needs one real number as label and {len(self.levels)} output(s), one "
                             f"per level; the outputs are {list(outputs.shape[1:])} and the task is {task}")

    @override
    def check_labels(self, y: Any, outputs: Any) -> None:
        _check_one_number("the quantile loss", y)


class Poisson(Loss):
    """Poisson regression of counts: exp(s) - y s for the logarithm s of the rate; the score is the deviance.

    The deviance is 2 (y log(y / exp(s)) - y + exp(s)). Outputs have as many numbers as labels, which may be [B] or
    [B, d]; several are averaged.

    Example:
        >>> rv.losses.Poisson().loss(jnp.array([0.0]), jnp.array([3.0])).tolist()
        [1.0]
    """

    score_name: ClassVar[str] = "poisson_deviance"
    higher_is_better: ClassVar[bool] = False

    @override
    def loss(self, outputs: Float[Array, "B ..."], y: Array) -> Float[Array, " B"]:
        s = outputs.reshape(y.shape)
        return _row_means(jnp.exp(s) - y.astype(s.dtype) * s, None)

    @override
    def score(self, outputs: Float[Array, "B ..."], y: Array) -> Float[Array, " B"]:
        s = outputs.reshape(y.shape)
        count = y.astype(s.dtype)
        return _row_means(2 * (jax.scipy.special.xlogy(count, count) - count * s - count + jnp.exp(s)), None)

    @override
    def check(self, outputs: Any, task: str, classes: int) -> None:
        check_real_numbers("the Poisson loss", task)

    @override
    def check_labels(self, y: Any, outputs: Any) -> None:
        counts = np.asarray(y)
        if counts.size and counts.min() < 0:
            raise InputError(f"the Poisson loss is for counts, and a label is {counts.min():g}: labels must not be "
                             "negative")


class NTXent(Loss):
    """The normalised temperature-scaled cross-entropy of two views of each sample, as in SimCLR; it needs no labels.

    Outputs are embeddings [B, 2, d]. With the cosine similarity sim and all 2B views of the minibatch, the loss of view
    i with its partner j is -log(exp(sim(i, j)/temperature) / sum over the views k other than i of
    exp(sim(i, k)/temperature)), and a sample's loss is the mean over its two views. Samples that only fill up the
    minibatch are no negatives. The score is the share of views whose partner is the most similar view.

    Attributes:
        temperature: a positive number.

    Raises:
        InputError: ``temperature`` is not positive.

    Example:
        >>> views = jnp.eye(2)[:, None, :].repeat(2, axis=1)  # two samples, each with two equal views
        >>> rv.losses.NTXent().score(views, None).tolist()
        [1.0, 1.0]

    References:
        Chen, Kornblith, Norouzi, Hinton: A Simple Framework for Contrastive Learning of Visual Representations, ICML
        2020, equation 1.
    """

    temperature: Annotated[float, "(0, inf)"] = eqx.field(static=True, default=0.5)
    score_name: ClassVar[str] = "pair_accuracy"
    higher_is_better: ClassVar[bool] = True
    needs_labels: ClassVar[bool] = False
    needs_batch: ClassVar[bool] = True

    @override
    def loss(self, outputs: Float[Array, "B 2 d"], y: PyTree[Array]) -> Float[Array, " B"]:
        return self.batch_loss(outputs, y, jnp.ones(len(outputs), bool))

    @override
    def score(self, outputs: Float[Array, "B 2 d"], y: PyTree[Array]) -> Float[Array, " B"]:
        return self.batch_score(outputs, y, jnp.ones(len(outputs), bool))

    @override
    def batch_loss(self, outputs: Float[Array, "B 2 d"], y: PyTree[Array],
                   mask: Bool[Array, " B"]) -> Float[Array, " B"]:
        logits, partner = self._similarities(outputs, mask)
        of_views = jax.nn.logsumexp(logits, axis=1) - jnp.sum(jnp.where(partner, logits, 0), axis=1)
        return jnp.mean(of_views.reshape(2, -1), axis=0)

    @override
    def batch_score(self, outputs: Float[Array, "B 2 d"], y: PyTree[Array],
                    mask: Bool[Array, " B"]) -> Float[Array, " B"]:
        logits, partner = self._similarities(outputs, mask)
        is_right = jnp.argmax(logits, axis=1) == jnp.argmax(partner, axis=1)
        return jnp.mean(is_right.reshape(2, -1).astype(logits.dtype), axis=0)

    def _similarities(self, outputs: Float[Array, "B 2 d"],
                      mask: Bool[Array, " B"]) -> tuple[Float[Array, "V V"], Bool[Array, "V V"]]:
        """Similarities of all pairs of the V = 2B views, and which pairs belong to one sample.

        A view is not compared with itself, nor with those of other samples outside the mask.
        """
        views = jnp.concatenate([outputs[:, 0], outputs[:, 1]])
        # rsqrt of a positive number: the gradient of a norm at 0 is not defined.
        views = views * jax.lax.rsqrt(jnp.sum(jnp.square(views), axis=1, keepdims=True) + 1e-12)
        number = jnp.tile(jnp.arange(len(outputs)), 2)
        is_self = jnp.eye(len(views), dtype=bool)
        partner = (number[:, None] == number[None, :]) & ~is_self
        is_compared = partner | (jnp.tile(mask, 2)[None, :] & ~is_self)
        smallest = jnp.finfo(views.dtype).min  # type: ignore[no-untyped-call]
        return jnp.where(is_compared, views @ views.T / self.temperature, smallest), partner

    @override
    def check(self, outputs: Any, task: str, classes: int) -> None:
        _check_shape("NT-Xent", outputs, "[samples, 2, d], an embedding of each of two views", ndim=3)
        if outputs.shape[1] != 2:
            raise InputError(f"NT-Xent needs outputs [samples, 2, d], an embedding of each of two views, got "
                             f"{list(outputs.shape)}")


class Reconstruction(Loss):
    """Half the mean squared error between outputs and inputs, as for autoencoders; it needs no labels.

    Outputs have the structure of the inputs, and each leaf as many numbers. The score is the mean squared error over
    all numbers of an input.

    Example:
        >>> rv.losses.Reconstruction().score(jnp.zeros((1, 4)), jnp.ones((1, 2, 2))).tolist()
        [1.0]
    """

    score_name: ClassVar[str] = "reconstruction_error"
    higher_is_better: ClassVar[bool] = False
    needs_labels: ClassVar[bool] = False
    needs_inputs: ClassVar[bool] = True

    @override
    def targets(self, x: PyTree[Array], y: PyTree[Array]) -> PyTree[Array]:
        return x

    @override
    def loss(self, outputs: PyTree[Array], y: PyTree[Array]) -> Float[Array, " B"]:
        return self.score(outputs, y) / 2

    @override
    def score(self, outputs: PyTree[Array], y: PyTree[Array]) -> Float[Array, " B"]:
        def squares(output: Array, target: Array) -> Array:
            return jnp.square(output.reshape(target.shape) - target.astype(output.dtype)).reshape(len(target), -1)

        return jnp.mean(jnp.concatenate(jax.tree.leaves(jax.tree.map(squares, outputs, y)), axis=1), axis=1)


def _check_one_number(name: str, y: Any) -> None:
    if np.ndim(y) != 1:
        raise InputError(f"{name} needs one number as the label of each sample, got labels of shape "
                         f"{list(np.shape(y)[1:])}")
