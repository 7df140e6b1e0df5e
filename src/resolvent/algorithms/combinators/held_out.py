"""Choosing among models by a party's held-out samples."""

from collections.abc import Callable
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from resolvent.errors import InputError
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle

__all__ = ["Measure", "best_held_out", "check_measure"]

Measure: TypeAlias = Literal["loss", "score"]


def best_held_out(oracle: Oracle, model: Callable[[PyTree[Array]], Vector], candidates: PyTree[Array],
                  by: Measure) -> Int[Array, ""]:
    """The number of the best of several models on held-out samples.

    By ``score`` the best is the one of the lowest loss among those of the highest score. Among equals it is the first.
    A measure that is not a number is the worst; so without held-out samples the first model is the best. The candidates
    have leaves [J, ...], and ``model`` maps one of them to its model.
    """
    loss, score = jax.lax.map(lambda candidate: oracle.held_out(model(candidate)), candidates)
    gain = jnp.where(jnp.isnan(loss), -jnp.inf, -loss)
    if by == "score":
        score = jnp.where(jnp.isnan(score) | jnp.isnan(loss), -jnp.inf, score)
        gain = jnp.where(score == jnp.max(score), gain, -jnp.inf)
    return jnp.argmax(gain)


def check_measure(combinator: object, by: str) -> None:
    """Refuse an unknown measure."""
    if by not in ("loss", "score"):
        raise InputError(f"{type(combinator).__name__}(by={by!r}) is not known: use 'score' or 'loss'")
