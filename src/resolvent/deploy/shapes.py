"""The shapes of all messages and replies of a run, from a trace without data."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from resolvent.algorithms.algorithm import Algorithm, Message, PartyState, Reply
from resolvent.algorithms.keys import root_key
from resolvent.math.tree import Vector
from resolvent.problem.oracle import ShapeOracle

__all__ = ["ExchangeShapes", "exchange_shapes", "has_valid_numbers", "with_weak_scalars"]


class ExchangeShapes(NamedTuple):
    """Trees whose leaves have the shapes and dtypes of the arrays that are sent.

    Attributes:
        model: a model.
        messages: the message of each phase.
        replies: the reply of each phase.
        model_message: the message from which a party computes its personal model.
        shared: the shared model; None if the algorithm has none.
        has_party_states: whether a party stores something between rounds.
    """

    model: Vector
    messages: tuple[Message, ...]
    replies: tuple[Reply, ...]
    model_message: Message
    shared: Vector | None
    has_party_states: bool


def exchange_shapes(algorithm: Algorithm, model: Vector) -> ExchangeShapes:
    """The shapes of an algorithm's exchanges.

    Args:
        algorithm: the algorithm.
        model: a model, or its shapes.
    """
    shapes = jax.eval_shape(lambda w: w, model)
    messages, replies, model_message, shared, state = _trace.eval_shape(  # type: ignore[no-untyped-call]
        algorithm, shapes)
    return ExchangeShapes(shapes, messages, replies, model_message, shared, bool(jax.tree.leaves(state)))


@jax.jit  # because jit caches traces: all parties of a process share one
def _trace(algorithm: Algorithm, w0: Vector) -> tuple[
        tuple[Message, ...], tuple[Reply, ...], Message, Vector | None, PartyState]:
    """The messages and replies of party 0 in a round. No shape depends on the party or on the number of parties."""
    k, key, oracle = jnp.array(0), root_key(0), ShapeOracle()
    server = jax.tree.map(lambda leaf: jnp.asarray(leaf).astype(jnp.asarray(leaf).dtype),
                          algorithm.init(w0, jnp.ones(1)))
    state = algorithm.init_party(w0, oracle, key)
    messages = tuple(phase.message(server, k) for phase in algorithm.phases)
    replies = tuple(phase.party(state, message, oracle, key, jnp.ones(()))[1]
                    for phase, message in zip(algorithm.phases, messages, strict=True))
    return messages, replies, algorithm.model_message(server, k), algorithm.server_model(server), state


def with_weak_scalars(tree: PyTree[Any], like: PyTree[Any]) -> PyTree[Any]:
    """The tree with Python numbers for weakly typed scalars, so that JAX promotes dtypes as in a simulation."""
    def leaf(value: Any, shape: Any) -> Any:
        return value.item() if getattr(shape, "weak_type", False) and np.shape(value) == () else value

    return jax.tree.map(leaf, tree, like)


def has_valid_numbers(tree: PyTree[Any]) -> bool:
    """Whether a message has no nan, and no infinite number in an array.

    A scalar may be infinite, as the best residual of a safeguard is before the first round.
    """
    leaves = [leaf for leaf in map(np.asarray, jax.tree.leaves(tree)) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return all(not np.isnan(leaf) if leaf.ndim == 0 else np.isfinite(leaf).all() for leaf in leaves)
