"""The models, as a user of Equinox writes them: one sample at a time, channels first."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from equinox import nn
from jax import Array

__all__ = ["MODELS"]


class CNN(eqx.Module):
    """The network of McMahan et al., 1.66 million parameters."""

    convolutions: list[nn.Conv2d]
    hidden: nn.Linear
    output: nn.Linear
    pooling: nn.MaxPool2d

    def __init__(self, key: Array) -> None:
        keys = jax.random.split(key, 4)
        self.convolutions = [nn.Conv2d(1, 32, 5, padding=2, key=keys[0]), nn.Conv2d(32, 64, 5, padding=2, key=keys[1])]
        self.hidden, self.output = nn.Linear(3136, 512, key=keys[2]), nn.Linear(512, 10, key=keys[3])
        self.pooling = nn.MaxPool2d(2, 2)

    def __call__(self, x: Array) -> Array:
        for convolution in self.convolutions:
            x = self.pooling(jax.nn.relu(convolution(x)))
        return self.output(jax.nn.relu(self.hidden(x.reshape(-1))))


class Block(eqx.Module):
    """A residual block with group normalisation."""

    first: nn.Conv2d
    second: nn.Conv2d
    norms: list[nn.GroupNorm]
    shortcut: nn.Conv2d | None

    def __init__(self, inputs: int, outputs: int, stride: int, key: Array) -> None:
        keys = jax.random.split(key, 3)
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, use_bias=False, key=keys[0])
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, use_bias=False, key=keys[1])
        self.norms = [nn.GroupNorm(8, outputs), nn.GroupNorm(8, outputs)]
        is_same = stride == 1 and inputs == outputs
        self.shortcut = None if is_same else nn.Conv2d(inputs, outputs, 1, stride, use_bias=False, key=keys[2])

    def __call__(self, x: Array) -> Array:
        h = jax.nn.relu(self.norms[0](self.first(x)))
        return jax.nn.relu(self.norms[1](self.second(h)) + (x if self.shortcut is None else self.shortcut(x)))


class ResNet(eqx.Module):
    """ResNet-20 with group normalisation."""

    first: nn.Conv2d
    norm: nn.GroupNorm
    blocks: list[Block]
    output: nn.Linear

    def __init__(self, key: Array) -> None:
        keys = iter(jax.random.split(key, 11))
        self.first, self.norm = nn.Conv2d(3, 16, 3, 1, 1, use_bias=False, key=next(keys)), nn.GroupNorm(8, 16)
        sizes = [(16, 16, 1), (16, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 32, 1), (32, 64, 2), (64, 64, 1),
                 (64, 64, 1)]
        self.blocks = [Block(*size, next(keys)) for size in sizes]
        self.output = nn.Linear(64, 10, key=next(keys))

    def __call__(self, x: Array) -> Array:
        x = jax.nn.relu(self.norm(self.first(x)))
        for block in self.blocks:
            x = block(x)
        return self.output(x.mean((1, 2)))


class Series(eqx.Module):
    """A convolutional network for time series of 9 channels."""

    convolutions: list[nn.Conv1d]
    pooling: nn.MaxPool1d
    output: nn.Linear

    def __init__(self, key: Array) -> None:
        keys = jax.random.split(key, 4)
        self.convolutions = [nn.Conv1d(9, 64, 5, padding=2, key=keys[0]), nn.Conv1d(64, 64, 5, padding=2, key=keys[1]),
                             nn.Conv1d(64, 128, 3, padding=1, key=keys[2])]
        self.pooling, self.output = nn.MaxPool1d(2, 2), nn.Linear(128, 6, key=keys[3])

    def __call__(self, x: Array) -> Array:
        for convolution in self.convolutions[:2]:
            x = self.pooling(jax.nn.relu(convolution(x)))
        return self.output(jax.nn.relu(self.convolutions[2](x)).mean(1))


class Recurrent(eqx.Module):
    """A recurrent cell scanned over characters."""

    embedding: nn.Embedding
    cell: Any
    output: nn.Linear

    def __init__(self, cell: Callable[..., Any], key: Array) -> None:
        keys = jax.random.split(key, 3)
        self.embedding, self.output = nn.Embedding(80, 8, key=keys[0]), nn.Linear(128, 80, key=keys[2])
        self.cell = cell(8, 128, key=keys[1])

    def __call__(self, tokens: Array) -> Array:
        zeros = jnp.zeros(128)
        first = (zeros, zeros) if isinstance(self.cell, nn.LSTMCell) else zeros
        last = jax.lax.scan(lambda state, x: (self.cell(x, state), None), first, jax.vmap(self.embedding)(tokens))[0]
        return self.output(last[0] if isinstance(last, tuple) else last)


class TransformerBlock(eqx.Module):
    """Causal attention with 4 heads, and a hidden layer of 256 units."""

    attention: nn.MultiheadAttention
    norms: list[nn.LayerNorm]
    hidden: nn.Linear
    output: nn.Linear

    def __init__(self, key: Array) -> None:
        keys = jax.random.split(key, 3)
        self.attention, self.norms = nn.MultiheadAttention(4, 64, key=keys[0]), [nn.LayerNorm(64), nn.LayerNorm(64)]
        self.hidden, self.output = nn.Linear(64, 256, key=keys[1]), nn.Linear(256, 64, key=keys[2])

    def __call__(self, x: Array) -> Array:
        h = jax.vmap(self.norms[0])(x)
        x = x + self.attention(h, h, h, mask=jnp.tril(jnp.ones((len(x), len(x)), bool)))
        return x + jax.vmap(lambda v: self.output(jax.nn.gelu(self.hidden(self.norms[1](v)))))(x)


class Transformer(eqx.Module):
    """Two layers of width 64 over 64 tokens."""

    embedding: nn.Embedding
    positions: Array
    blocks: list[TransformerBlock]
    output: nn.Linear

    def __init__(self, key: Array, outputs: int = 10) -> None:
        keys = jax.random.split(key, 5)
        self.embedding, self.output = nn.Embedding(1000, 64, key=keys[0]), nn.Linear(64, outputs, key=keys[4])
        self.positions = 0.02 * jax.random.normal(keys[1], (64, 64))
        self.blocks = [TransformerBlock(keys[2]), TransformerBlock(keys[3])]

    def features(self, tokens: Array) -> Array:
        """[64, 64] of each token."""
        x = jax.vmap(self.embedding)(tokens) + self.positions
        for block in self.blocks:
            x = block(x)
        return x

    def __call__(self, tokens: Array) -> Array:
        return self.output(self.features(tokens).mean(0))


class Language(Transformer):
    """The same with the logits of the next token at each token."""

    def __init__(self, key: Array) -> None:
        super().__init__(key, 1000)

    def __call__(self, tokens: Array) -> Array:
        return jax.vmap(self.output)(self.features(tokens))


MODELS: dict[str, Callable[[Array], eqx.Module]] = {
    "cnn": CNN,
    "resnet": ResNet,
    "series": Series,
    "gru": lambda key: Recurrent(nn.GRUCell, key),
    "lstm": lambda key: Recurrent(nn.LSTMCell, key),
    "transformer": Transformer,
    "language": Language,
}
