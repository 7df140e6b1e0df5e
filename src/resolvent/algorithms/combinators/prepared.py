"""How an algorithm runs on a problem: with ``ModelState`` if its local work has a memory, and described once."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.combinators.combinator import contains
from resolvent.algorithms.combinators.model_state import ModelState
from resolvent.algorithms.combinators.warm_start import WarmStart
from resolvent.algorithms.description import Description, describe
from resolvent.algorithms.keys import key_shape
from resolvent.algorithms.method import solver_memories
from resolvent.errors import InputError
from resolvent.math.tree import Vector
from resolvent.problem.models.stateful import ParamsAndState
from resolvent.problem.oracle import Oracle
from resolvent.problem.problem import Problem
from resolvent.xla.shapes import shapes_of

__all__ = ["Prepared", "prepare", "with_memory"]


class Prepared(NamedTuple):
    """An algorithm as it runs on a problem."""

    algorithm: Algorithm  # the algorithm itself, or with ``ModelState``
    description: Description  # its description


def prepare(algorithm: Algorithm, source: Problem | Callable[[Array], Vector], *, parties: int = 1,
            oracle: Callable[[], Oracle] | None = None) -> Prepared:
    """As ``with_memory``, and the description of the algorithm, for which it is traced once."""
    prepared = with_memory(algorithm, source, parties=parties)
    described = source if isinstance(source, Problem) else shapes_of(source, key_shape())
    return Prepared(prepared, describe(prepared, described, parties=parties, oracle=oracle))


def with_memory(algorithm: Algorithm, source: Problem | Callable[[Array], Vector], *, parties: int = 1) -> Algorithm:
    """The algorithm itself, or with ``ModelState`` if its model has a state, or its solver or an oracle a memory.

    Raises:
        InputError: ``ModelState`` is inside another combinator.
    """
    if isinstance(algorithm, WarmStart):
        inner = with_memory(algorithm.inner, source, parties=parties)
        return algorithm if inner is algorithm.inner else replace(algorithm, inner=inner)
    if isinstance(algorithm, ModelState):
        return algorithm
    if contains(algorithm, ModelState):
        raise InputError(f"{type(algorithm).__name__} has ModelState inside: put ModelState around all other "
                         "combinators")
    w0 = shapes_of(source.init if isinstance(source, Problem) else source, key_shape())
    if isinstance(w0, ParamsAndState):
        shares = jnp.full(parties, 1 / parties)
        shared = jax.eval_shape(lambda w: algorithm.server_model(algorithm.init(w, shares)), w0.params)
        return ModelState(algorithm, "private" if shared is None else "average")
    return ModelState(algorithm, None) if _has_memory(algorithm, source, w0) else algorithm


def _has_memory(algorithm: Algorithm, source: Problem | Callable[[Array], Vector], w0: Vector) -> bool:
    """Whether a solver of the algorithm or an oracle has a memory."""
    k = jax.eval_shape(lambda: jnp.array(0))
    of_oracle = shapes_of(shapes_of(shapes_of(source.at, k).oracle, k).init_memory, w0) if isinstance(
        source, Problem) else ()
    return bool(jax.tree.leaves((of_oracle, jax.eval_shape(lambda w: solver_memories(algorithm, w), w0))))
