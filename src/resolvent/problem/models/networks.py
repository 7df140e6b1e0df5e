"""The networks of the papers: two convolutional ones (operator splitting) and two recurrent ones (FedProx).

They use ``xla_cpu_rewrites.kernels``, which computes the same numbers as the textbook operations, much faster in a
compiled loop on a CPU.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree
from typing_extensions import override

from resolvent.arguments import checked
from resolvent.data.files import data_files as files
from resolvent.errors import InputError
from resolvent.math.tree import Vector
from resolvent.problem.models.model import Model, check_counts, head
from xla_cpu_rewrites import kernels


class CNN(Model):
    """Convolutions (valid, stride 1) with ReLU and 2x2 max-pooling, then affine layers with ReLU between them.

    With ``normalise``, local response normalisation over two adjacent channels follows the first pooling and precedes
    the others, as in the operator-splitting paper's Table 3.

    Attributes:
        shape: rows, columns and channels of an image.
        channels: number of filters of each convolution.
        kernel: rows and columns of a filter.
        hidden: number of units of each hidden affine layer.
        normalise: whether there is local response normalisation.
        initial_variance: variance of a weight before training, times the number of inputs of its unit.
    """

    shape: tuple[int, int, int] = eqx.field(static=True)
    channels: tuple[int, ...] = eqx.field(static=True)
    kernel: int = eqx.field(static=True)
    hidden: tuple[int, ...] = eqx.field(static=True)
    outputs: int = eqx.field(static=True)
    normalise: bool = eqx.field(static=True)
    initial_variance: Annotated[float, "(0, inf)"] = eqx.field(static=True, default=2.0)

    @override
    def init(self, key: Array) -> Vector:
        """Weights from a truncated normal distribution, biases of zero. Filters are [kernel, kernel, in, out].

        The default variance is He's initialisation.
        """
        normal = partial(jax.nn.initializers.variance_scaling, self.initial_variance, "fan_in", "truncated_normal")
        rows, columns, depth = self.shape
        keys = iter(jax.random.split(key, len(self.channels) + len(self.hidden) + 1))
        params = {}
        for i, n in enumerate(self.channels):
            weight = normal(in_axis=(0, 1, 2), out_axis=3)(next(keys), (self.kernel, self.kernel, depth, n))
            params[f"convolution {i}"] = {"weight": weight, "bias": jnp.zeros(n)}
            rows, columns, depth = ((rows - self.kernel + 1) // 2, (columns - self.kernel + 1) // 2, n)
        sizes = (rows * columns * depth, *self.hidden, self.outputs)
        for i, (n_in, n_out) in enumerate(pairwise(sizes)):
            weight = normal(in_axis=1, out_axis=0)(next(keys), (n_out, n_in))
            params[f"layer {i}"] = {"weight": weight, "bias": jnp.zeros(n_out)}
        return params

    @override
    def apply(self, params: PyTree[Any], x: Float[Array, "B ..."]) -> Float[Array, "B outputs"]:
        """The outputs for images [B, rows, columns(, channels)], or for flattened ones."""
        outputs: Array = self.apply_with_features(params, x)[0]
        return outputs

    @override
    def apply_with_features(self, params: PyTree[Any], x: Float[Array, "B ..."]) -> tuple[PyTree[Any], Array]:
        """The outputs, and the inputs of the last layer."""
        h = x.reshape(len(x), *self.shape)
        for i in range(len(self.channels)):
            layer = params[f"convolution {i}"]
            if self.normalise and i:
                h = jax.nn.relu(kernels.convolve(h, layer["weight"]) + layer["bias"])
                h = max_pool(normalise_responses(h))
            else:
                h = kernels.convolve_relu_pool(h, layer["weight"], layer["bias"])
                h = normalise_responses(h) if self.normalise else h
        h = features = h.reshape(len(x), -1)
        for i in range(len(self.hidden) + 1):
            layer, features = params[f"layer {i}"], jax.nn.relu(h) if i else h
            h = features @ layer["weight"].T + layer["bias"]
        return h, features


def max_pool(x: Float[Array, "B H W C"]) -> Float[Array, "B H_ W_ C"]:
    """2x2 max-pooling; an odd last row or column is left out."""
    b, rows, columns, depth = x.shape
    even = x[:, :rows // 2 * 2, :columns // 2 * 2]
    return jnp.max(even.reshape(b, rows // 2, 2, columns // 2, 2, depth), axis=(2, 4))


def normalise_responses(x: Float[Array, "B H W C"]) -> Float[Array, "B H W C"]:
    """x_c / (1 + 1e-4 * (x_{c-1}^2 + x_c^2) / 2)^0.75: local response normalisation with the usual constants."""
    square = jnp.square(x)
    previous = jnp.pad(square[..., :-1], ((0, 0), (0, 0), (0, 0), (1, 0)))
    return x / (1 + 1e-4 * (previous + square) / 2) ** 0.75


class LSTM(Model):
    """Embedded tokens, stacked LSTM layers, and outputs that are affine in the last layer's last state.

    i, f, g, o = x W + h U + b; c <- sigmoid(f + 1) c + sigmoid(i) tanh(g); h = sigmoid(o) tanh(c).

    Attributes:
        tokens: number of different tokens.
        embedding: dimensions of a token's vector.
        width: units of each layer.
        vectors: [tokens, embedding] fixed vectors of the tokens; None: they are learned.
    """

    tokens: int = eqx.field(static=True)
    embedding: int = eqx.field(static=True)
    width: int = eqx.field(static=True)
    depth: int = eqx.field(static=True)
    outputs: int = eqx.field(static=True)
    vectors: Float[Array, "tokens embedding"] | None = None

    @override
    def rewritten(self, f: Callable[..., Any]) -> Callable[..., Any]:
        return f  # ``kernels.lstm`` has the faster orders already; other orders take 17 % more time

    @override
    def init(self, key: Array) -> Vector:
        """Vectors ~ N(0, 1) / sqrt(embedding), weights by Glorot's uniform initialisation, biases zero.

        The weights of an LSTM layer are [in, 4 width], so that their gradient is a product without a transpose. Those
        of the output layer are [outputs, width].
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

    @override
    def apply(self, params: PyTree[Any], x: Int[Array, "B T"]) -> Float[Array, "B outputs"]:
        """The outputs for sequences of tokens."""
        vectors = params["embedding"] if self.vectors is None else self.vectors
        h = jnp.swapaxes(vectors[x], 0, 1).astype(params["output"]["bias"].dtype)
        for i in range(self.depth):
            layer = params[f"lstm {i}"]
            h = kernels.lstm(h, layer["input"], layer["state"], layer["bias"])
        outputs: Array = h[-1] @ params["output"]["weight"].T + params["output"]["bias"]
        return outputs


@checked
def mnist_cnn(shape: tuple[int, ...], classes: int, *, l2: float = 0.0) -> Model:
    """The operator-splitting paper's network for MNIST: 11,910 parameters.

    Two convolutions 5x5 of 10 and 20 filters, each with ReLU and 2x2 max-pooling; 20 hidden units. Source: operator-
    splitting paper, Table 2.

    Args:
        shape: shape of an image: rows, columns and, if more than one, channels.
        classes: number of classes.
        l2: weight of |params|^2 / 2.

    Example:
        >>> params = jax.eval_shape(rv.models.mnist_cnn((28, 28, 1), 10).init, jax.random.key(0))
        >>> params["layer 0"]["weight"].shape
        (20, 320)
    """
    outputs, loss = head(classes)
    return CNN(loss=loss, l2=l2, shape=_image_shape("mnist_cnn", shape), channels=(10, 20), kernel=5, hidden=(20,),
               outputs=outputs, normalise=False)


@checked
def cifar_cnn(shape: tuple[int, ...], classes: int, *, initial_variance: float = 2.0, l2: float = 0.0) -> Model:
    """The operator-splitting paper's network for CIFAR-10: 797,962 parameters.

    Two convolutions 5x5 of 64 filters with ReLU, 2x2 max-pooling and local response normalisation; 384 and 192 hidden
    units. Source: operator-splitting paper, Table 3.

    Args:
        shape: shape of an image: rows, columns and, if more than one, channels.
        classes: number of classes.
        initial_variance: variance of a weight before training, times the number of inputs of its unit: 2 is He's
            initialisation, 1 is LeCun's. The paper does not state it.
        l2: weight of |params|^2 / 2.

    Raises:
        InputError: ``initial_variance`` is not positive.

    Example:
        >>> params = jax.eval_shape(rv.models.cifar_cnn((32, 32, 3), 10).init, jax.random.key(0))
        >>> params["layer 0"]["weight"].shape
        (384, 1600)
    """
    outputs, loss = head(classes)
    return CNN(loss=loss, l2=l2, shape=_image_shape("cifar_cnn", shape), channels=(64, 64), kernel=5, hidden=(384, 192),
               outputs=outputs, normalise=True, initial_variance=initial_variance)


@checked
def char_lstm(classes: int, vocabulary: tuple[str, ...], *, embedding: int = 8, width: int = 100, depth: int = 2,
              l2: float = 0.0) -> Model:
    """FedProx's network for the next character: vectors of 8 dimensions, two LSTM layers of 100 units.

    Source: FedProx, C.1 (Shakespeare).

    Args:
        classes: number of classes.
        vocabulary: the texts of the tokens.
        embedding: dimensions of a token's vector.
        width: units of each layer.
        depth: number of layers.
        l2: weight of |params|^2 / 2.

    Example:
        >>> model = rv.models.char_lstm(3, ("a", "b", "c"), width=4, depth=1)
        >>> sorted(jax.eval_shape(model.init, jax.random.key(0)))
        ['embedding', 'lstm 0', 'output']
    """
    outputs, loss = head(classes)
    check_counts("char_lstm", embedding=embedding, width=width, depth=depth)
    return LSTM(loss=loss, l2=l2, tokens=_token_count("char_lstm", vocabulary), embedding=embedding, width=width,
                depth=depth, outputs=outputs)


@checked
def sentiment_lstm(classes: int, vocabulary: tuple[str, ...], *, glove: str | None = None, embedding: int = 300,
                   width: int = 256, depth: int = 2, l2: float = 0.0) -> Model:
    """FedProx's network for sentiment: vectors of 300 dimensions, two LSTM layers of 256 units.

    With a GloVe file the vectors of the words are read from it and stay fixed, as in FedProx; words that it does not
    have are zero. Without a file the vectors are learned. Source: FedProx, C.1 (Sent140).

    Args:
        classes: number of classes.
        vocabulary: the texts of the tokens.
        glove: a text file with a word and its vector on each line: an absolute path, or a path in a data folder.
        embedding: dimensions of a word's vector; those of the GloVe file must be the same.
        width: units of each layer.
        depth: number of layers.
        l2: weight of |params|^2 / 2.

    Raises:
        InputError: the GloVe file is missing or truncated, or has vectors of other dimensions.

    Example:
        >>> model = rv.models.sentiment_lstm(2, ("bad", "good"), width=4, depth=1)
        >>> sorted(jax.eval_shape(model.init, jax.random.key(0)))
        ['embedding', 'lstm 0', 'output']
    """
    outputs, loss = head(classes)
    check_counts("sentiment_lstm", embedding=embedding, width=width, depth=depth)
    vectors = None if glove is None else jnp.asarray(_read_glove(files.find(glove), vocabulary, embedding))
    return LSTM(loss=loss, l2=l2, tokens=_token_count("sentiment_lstm", vocabulary), embedding=embedding, width=width,
                depth=depth, outputs=outputs, vectors=vectors)


def _read_glove(path: Path, vocabulary: tuple[str, ...], embedding: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The vectors of the vocabulary from a text file, read line by line."""
    tokens = {word.encode(): i for i, word in enumerate(vocabulary)}
    vectors = np.zeros((len(vocabulary), embedding), np.float32)
    matches = 0
    with files.open_unpacked(path) as lines:
        for line_number, line in enumerate(lines, 1):
            word, *values = line.rstrip().split(b" ")
            if len(values) != embedding:
                raise InputError(f"{path}, line {line_number}: {len(values)} numbers after the word, expected "
                                 f"{embedding}: the file is truncated, or set embedding to the number of dimensions in "
                                 "the file")
            if word in tokens:
                vectors[tokens[word]] = np.array(values, np.float32)
                matches += 1
    if not matches:
        raise InputError(f"{path} has none of the {len(vocabulary)} words of the data: is it a GloVe text file?")
    return vectors


def _image_shape(name: str, shape: tuple[int, ...]) -> tuple[int, int, int]:
    full = (*shape, 1) if len(shape) == 2 else shape
    if len(full) != 3 or min(full[:2]) < 16:
        raise InputError(f"{name} needs images of at least 16x16 pixels, [rows, columns] or [rows, columns, channels]; "
                         f"the inputs have shape {shape}")
    return full[0], full[1], full[2]


def _token_count(name: str, vocabulary: tuple[str, ...]) -> int:
    if not vocabulary:
        raise InputError(f"{name} needs sequences of tokens, but the inputs have no vocabulary: use data such as "
                         "shakespeare or sentiment")
    return len(vocabulary)
