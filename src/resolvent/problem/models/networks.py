"""The papers' networks: the operator-splitting paper's two convolutional ones, FedProx's two recurrent ones.

Their work is done in ``kernels``: the same numbers as the textbook's operations, much faster in a compiled loop.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from resolvent.data import files
from resolvent.errors import InputError
from resolvent.math.tree import Vector
from resolvent.problem.models.model import Model, head
from resolvent.xla import kernels

__all__ = ["CNN", "LSTM", "char_lstm", "cifar_cnn", "mnist_cnn", "sentiment_lstm"]

_he = jax.nn.initializers.he_normal


class CNN(Model):
    """Convolutions (valid, stride 1), ReLU and 2x2 max-pooling, then affine layers with ReLU between them.

    With ``normalise`` there is local response normalisation over two neighbouring channels, after the first pooling and
    before the second, as the operator-splitting paper's Table 3 has it.

    Attributes:
        shape: rows, columns and channels of an image.
        channels: filters of each convolution.
        kernel: rows and columns of a filter.
        hidden: units of each hidden affine layer.
        outputs: how many there are.
        normalise: whether responses are normalised.
    """

    shape: tuple[int, int, int] = eqx.field(static=True)
    channels: tuple[int, ...] = eqx.field(static=True)
    kernel: int = eqx.field(static=True)
    hidden: tuple[int, ...] = eqx.field(static=True)
    outputs: int = eqx.field(static=True)
    normalise: bool = eqx.field(static=True)

    def init(self, key: Array) -> Vector:
        """He's normal initialisation; biases zero. Filters are [kernel, kernel, in, out]."""
        rows, columns, depth = self.shape
        keys = iter(jax.random.split(key, len(self.channels) + len(self.hidden) + 1))
        params = {}
        for i, n in enumerate(self.channels):
            weight = _he(in_axis=(0, 1, 2), out_axis=3)(next(keys), (self.kernel, self.kernel, depth, n))
            params[f"convolution {i}"] = {"weight": weight, "bias": jnp.zeros(n)}
            rows, columns, depth = ((rows - self.kernel + 1) // 2, (columns - self.kernel + 1) // 2, n)
        sizes = (rows * columns * depth, *self.hidden, self.outputs)
        for i, (n_in, n_out) in enumerate(pairwise(sizes)):
            weight = _he(in_axis=1, out_axis=0)(next(keys), (n_out, n_in))
            params[f"layer {i}"] = {"weight": weight, "bias": jnp.zeros(n_out)}
        return params

    def apply(self, params: PyTree[Any], x: Float[Array, "B ..."]) -> Float[Array, "B outputs"]:
        """Logits of images [B, rows, columns(, channels)], or flattened ones."""
        h = x.reshape(len(x), *self.shape)
        for i in range(len(self.channels)):
            layer = params[f"convolution {i}"]
            if self.normalise and i:
                h = jax.nn.relu(kernels.convolve(h, layer["weight"]) + layer["bias"])
                h = max_pool(normalise_responses(h))
            else:
                h = kernels.convolve_relu_pool(h, layer["weight"], layer["bias"])
                h = normalise_responses(h) if self.normalise else h
        h = h.reshape(len(x), -1)
        for i in range(len(self.hidden) + 1):
            layer = params[f"layer {i}"]
            h = (jax.nn.relu(h) if i else h) @ layer["weight"].T + layer["bias"]
        return h


def max_pool(x: Float[Array, "B H W C"]) -> Float[Array, "B H_ W_ C"]:
    """The largest of each 2x2 square; an odd last row or column is left out."""
    b, rows, columns, depth = x.shape
    even = x[:, :rows // 2 * 2, :columns // 2 * 2]
    return jnp.max(even.reshape(b, rows // 2, 2, columns // 2, 2, depth), axis=(2, 4))


def normalise_responses(x: Float[Array, "B H W C"]) -> Float[Array, "B H W C"]:
    """x_c / (1 + 1e-4 * (x_{c-1}^2 + x_c^2) / 2)^0.75: size 2, and the constants that are usual."""
    square = jnp.square(x)
    before = jnp.pad(square[..., :-1], ((0, 0), (0, 0), (0, 0), (1, 0)))
    return x / (1 + 1e-4 * (before + square) / 2) ** 0.75


class LSTM(Model):
    """Tokens, embedded, through stacked LSTM layers; outputs are affine in the last layer's last state.

    i, f, g, o = x W + h U + b; c <- sigmoid(f + 1) c + sigmoid(i) tanh(g); h = sigmoid(o) tanh(c).

    Attributes:
        tokens: how many different ones there are.
        embedding: dimensions of a token.
        width: units of each layer.
        depth: number of layers.
        outputs: how many there are.
        vectors: [tokens, embedding] fixed vectors of the tokens; none: they are learned.
    """

    tokens: int = eqx.field(static=True)
    embedding: int = eqx.field(static=True)
    width: int = eqx.field(static=True)
    depth: int = eqx.field(static=True)
    outputs: int = eqx.field(static=True)
    vectors: Float[Array, "tokens embedding"] | None = None

    def init(self, key: Array) -> Vector:
        """Vectors ~ N(0, 1) / sqrt(embedding), weights by Glorot's uniform initialisation, biases zero.

        A layer's weights are [in, 4 width], so that their gradient is a product that need not be turned round; the
        output's are [outputs, width].
        """
        glorot = jax.nn.initializers.glorot_uniform(in_axis=1, out_axis=0)
        keys = iter(jax.random.split(key, 2 * self.depth + 2))
        params: dict[str, Any] = {}
        if self.vectors is None:
            params["embedding"] = jax.random.normal(next(keys), (self.tokens, self.embedding)) / self.embedding**0.5
        for i in range(self.depth):
            size = self.width if i else self.embedding
            params[f"lstm {i}"] = {"input": glorot(next(keys), (4 * self.width, size)).T,
                                   "state": glorot(next(keys), (4 * self.width, self.width)).T,
                                   "bias": jnp.zeros(4 * self.width)}
        return params | {"output": {"weight": glorot(next(keys), (self.outputs, self.width)),
                                    "bias": jnp.zeros(self.outputs)}}

    def apply(self, params: PyTree[Any], x: Int[Array, "B T"]) -> Float[Array, "B outputs"]:
        """Outputs of sequences of tokens."""
        vectors = params["embedding"] if self.vectors is None else self.vectors
        h = jnp.swapaxes(vectors[x], 0, 1).astype(params["output"]["bias"].dtype)
        for i in range(self.depth):
            layer = params[f"lstm {i}"]
            h = kernels.lstm(h, layer["input"], layer["state"], layer["bias"])
        outputs: Array = h[-1] @ params["output"]["weight"].T + params["output"]["bias"]
        return outputs


def mnist_cnn(shape: tuple[int, ...], classes: int, *, l2: float = 0.0) -> Model:
    """The operator-splitting paper's network for MNIST: 11,910 parameters.

    Two convolutions 5x5 of 10 and 20 filters, each with ReLU and 2x2 max-pooling; 20 hidden units. Source: operator-
    splitting paper, Table 2.

    Args:
        shape: shape of an image: rows, columns and, if more than one, channels.
        classes: number of classes.
        l2: weight of |params|^2 / 2.
    """
    outputs, loss = head(classes)
    return CNN(loss=loss, l2=l2, shape=_image("mnist_cnn", shape), channels=(10, 20), kernel=5, hidden=(20,),
               outputs=outputs, normalise=False)


def cifar_cnn(shape: tuple[int, ...], classes: int, *, l2: float = 0.0) -> Model:
    """The operator-splitting paper's network for CIFAR-10: 797,962 parameters.

    Two convolutions 5x5 of 64 filters with ReLU, 2x2 max-pooling and local response normalisation; 384 and 192 hidden
    units. Source: operator-splitting paper, Table 3.

    Args:
        shape: shape of an image: rows, columns and, if more than one, channels.
        classes: number of classes.
        l2: weight of |params|^2 / 2.
    """
    outputs, loss = head(classes)
    return CNN(loss=loss, l2=l2, shape=_image("cifar_cnn", shape), channels=(64, 64), kernel=5, hidden=(384, 192),
               outputs=outputs, normalise=True)


def char_lstm(classes: int, vocabulary: tuple[str, ...], *, embedding: int = 8, width: int = 100, depth: int = 2,
              l2: float = 0.0) -> Model:
    """FedProx's network for the next character: tokens in 8 dimensions, two LSTM layers of 100 units.

    Source: FedProx, C.1 (Shakespeare).

    Args:
        classes: number of classes.
        vocabulary: what the tokens stand for.
        embedding: dimensions of a token.
        width: units of each layer.
        depth: number of layers.
        l2: weight of |params|^2 / 2.
    """
    outputs, loss = head(classes)
    _counts("char_lstm", embedding=embedding, width=width, depth=depth)
    return LSTM(loss=loss, l2=l2, tokens=_tokens("char_lstm", vocabulary), embedding=embedding, width=width,
                depth=depth, outputs=outputs)


def sentiment_lstm(classes: int, vocabulary: tuple[str, ...], *, glove: str | None = None, embedding: int = 300,
                   width: int = 256, depth: int = 2, l2: float = 0.0) -> Model:
    """FedProx's network for sentiment: words in 300 dimensions, two LSTM layers of 256 units.

    With a GloVe file the words' vectors are those, and stay fixed, as in FedProx; a word that is not there is zero.
    Without one they are learned. Source: FedProx, C.1 (Sent140).

    Args:
        classes: number of classes.
        vocabulary: what the tokens stand for.
        glove: a text file with a word and its vector on each line. Absolute, or in a data folder.
        embedding: dimensions of a word; a GloVe file's must be the same.
        width: units of each layer.
        depth: number of layers.
        l2: weight of |params|^2 / 2.

    Raises:
        InputError: the GloVe file is missing, cut off, or has vectors of other dimensions.
    """
    outputs, loss = head(classes)
    _counts("sentiment_lstm", embedding=embedding, width=width, depth=depth)
    vectors = None if glove is None else jnp.asarray(_glove(files.find(glove), vocabulary, embedding))
    return LSTM(loss=loss, l2=l2, tokens=_tokens("sentiment_lstm", vocabulary), embedding=embedding, width=width,
                depth=depth, outputs=outputs, vectors=vectors)


def _glove(path: Path, vocabulary: tuple[str, ...], embedding: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The vocabulary's vectors from a text file, read line by line."""
    number = {word.encode(): i for i, word in enumerate(vocabulary)}
    vectors = np.zeros((len(vocabulary), embedding), np.float32)
    found = 0
    with files.open_unpacked(path) as lines:
        for at, line in enumerate(lines, 1):
            word, *values = line.rstrip().split(b" ")
            if len(values) != embedding:
                raise InputError(f"{path}, line {at}: {len(values)} numbers after the word, expected {embedding}: it "
                                 "is cut off there, or set embedding to what the file has")
            if word in number:
                vectors[number[word]] = np.array(values, np.float32)
                found += 1
    if not found:
        raise InputError(f"{path} has none of the {len(vocabulary)} words of the data: is it a GloVe text file?")
    return vectors


def _image(name: str, shape: tuple[int, ...]) -> tuple[int, int, int]:
    full = (*shape, 1) if len(shape) == 2 else shape
    if len(full) != 3 or min(full[:2]) < 16:
        raise InputError(f"{name} needs images of 16x16 pixels or more, [rows, columns] or [rows, columns, channels]; "
                         f"the inputs have shape {shape}")
    return full[0], full[1], full[2]


def _tokens(name: str, vocabulary: tuple[str, ...]) -> int:
    if not vocabulary:
        raise InputError(f"{name} needs sequences of tokens, which have a vocabulary; these inputs have none: use data "
                         "such as shakespeare or sentiment")
    return len(vocabulary)


def _counts(name: str, **counts: int) -> None:
    for key, value in counts.items():
        if value < 1:
            raise InputError(f"{name}({key}={value}) must be at least 1")
