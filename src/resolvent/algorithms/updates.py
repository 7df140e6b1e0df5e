"""The origin of updates: attacks and momentum change the update, which is a reply minus its origin."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from resolvent.algorithms.algorithm import Algorithm, Message
from resolvent.math.tree import Vector

__all__ = ["update_origin"]


def update_origin(algorithm: Algorithm, message: Message, reply: PyTree[Any], phase: int) -> Vector:
    """The first part of the message with the reply's shape if the phase replies models, otherwise zero.

    The update of a party is its reply minus this origin.
    """
    def has_shape(part: Any) -> bool:
        same: bool = jax.tree.structure(part) == jax.tree.structure(reply)  # type: ignore[operator]
        return same and all(a.shape == b.shape
                            for a, b in zip(jax.tree.leaves(part), jax.tree.leaves(reply), strict=True))

    is_model = algorithm.replies_models and phase == len(algorithm.phases) - 1
    parts = jax.tree.leaves(message, is_leaf=has_shape) if is_model else []
    models = [part for part in parts if has_shape(part)]
    return models[0] if models else jax.tree.map(jnp.zeros_like, reply)
