"""The models, as a user of Flax (linen) writes them: a batch of samples at a time."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.linen.initializers import variance_scaling
from jax import Array

__all__ = ["MODELS"]

_uniform = variance_scaling(1 / 3, "fan_in", "uniform")  # as in PyTorch


class MLP(nn.Module):
    """A multilayer perceptron with one hidden layer."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = nn.relu(nn.Dense(200, kernel_init=_uniform)(x))
        return nn.Dense(10, kernel_init=_uniform)(x)


class Bag(nn.Module):
    """The mean of the embeddings of 64 tokens, and a linear head."""

    @nn.compact
    def __call__(self, tokens: Array) -> Array:
        x = nn.Embed(20000, 64, embedding_init=nn.initializers.normal(1.0))(tokens)
        return nn.Dense(10, kernel_init=_uniform)(jnp.mean(x, axis=1))


# Name -> module and a batch of inputs.
MODELS: dict[str, tuple[Any, Array]] = {
    "mlp": (MLP(), np.zeros((1, 784), np.float32)),
    "bag": (Bag(), np.zeros((1, 64), np.int32)),
}
