"""Choosing among models by a party's held-out samples."""

from collections.abc import Callable
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle

__all__ = ["Measure", "best_held_out"]

Measure: TypeAlias = Literal["loss", "score"]


def best_held_out(oracle: Oracle, model: Callable[[PyTree[Array]], Vector], choices: PyTree[Array],
                  by: Measure) -> Int[Array, ""]:
    """The number of the best of several models on held-out samples.

    By ``score`` the best is the one of the lowest loss among those of the highest score; of equals, the first. A
    measure that is not a number is the worst there is, so that without held-out samples it is the first model.

    Args:
        oracle: the party's objective.
        model: from one choice to its model.
        choices: leaves [J, ...].
        by: what is compared.
    """
    loss, score = jax.lax.map(lambda choice: oracle.held_out(model(choice)), choices)
    gain = jnp.where(jnp.isnan(loss), -jnp.inf, -loss)
    if by == "score":
        score = jnp.where(jnp.isnan(score) | jnp.isnan(loss), -jnp.inf, score)
        gain = jnp.where(score == jnp.max(score), gain, -jnp.inf)
    return jnp.argmax(gain)
