"""Admission: which replies may reach an aggregate.

A reply is refused if its structure, a shape or a dtype is not the expected one, if a number in it is not finite, or if
its update is far longer than those of the other parties: a reply of 3e38 is finite, and ruins a mean. In the simulator
the shapes are right by construction, so only the last two checks are made, inside the compiled round.

.. code-block:: text

    |u_k| > multiple * median of the |u_j|        the reply of party k does not count

u_k is the reply minus the model that the party was sent, or the reply itself if replies are no models. The median is
over the replies of the round that are finite; of two in the middle it is the larger one, so that less is refused. With
fewer than three replies, or if the median is 0 or overflows, there is no bound: of two replies it is not known which
one is wrong. Norms are reported in any case.

The default of the multiple, 10,000, is for replies that ruin a model in one step. It is far above what honest parties
reach (see ``docs/defences.md``), and no defence against an attacker who keeps below it: robust aggregators are.

A codec can lose a number that is not finite: it may leave the entry out, or encode it as an integer. So the vector is
checked before it is encoded (``Wire.is_finite``), and once more after decoding, which can overflow.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from resolvent.algorithms.algorithm import Algorithm, Message, Reply
from resolvent.algorithms.method import update_origin
from resolvent.math import tree
from resolvent.math.codecs import Wire

__all__ = ["admitted", "median_norm", "reason_to_refuse", "update_norm"]

_MIN_REPLIES = 3  # for a median
_BLOCK = 2**16  # numbers that are checked at once


def reason_to_refuse(reply: Any, expected: PyTree[Any]) -> str | None:
    """Say why a reply must not be aggregated.

    Args:
        reply: a party's reply.
        expected: a tree of the expected structure, whose leaves have the expected shape and dtype.

    Returns:
        The reason, or None if the reply may be aggregated.
    """
    try:
        same_structure: bool = jax.tree.structure(reply) == jax.tree.structure(expected)  # type: ignore[operator]
    except (TypeError, ValueError):  # a dict whose keys cannot be sorted
        same_structure = False
    if not same_structure:
        return "its structure is not the expected one"
    for (name, leaf), (_, like) in zip(tree.named_leaves(reply), tree.named_leaves(expected), strict=True):
        label = name or "the reply"
        try:
            value = np.asarray(leaf)
        except (TypeError, ValueError) as error:
            return f"{label} is not an array: {error}"
        if value.shape != like.shape:
            return f"{label} has shape {list(value.shape)}, expected {list(like.shape)}"
        if value.dtype != like.dtype:
            return f"{label} has dtype {value.dtype}, expected {like.dtype}"
    for name, leaf in tree.named_leaves(tree.map_parts(Wire.decoded, reply, Wire)):
        numbers = np.asarray(leaf).reshape(-1)
        for start in range(0, len(numbers), _BLOCK):
            if not np.isfinite(numbers[start:start + _BLOCK]).all():
                return f"{name or 'the reply'} is not finite"
    return None


def update_norm(algorithm: Algorithm, message: Message, reply: Reply, phase: int) -> Float[Array, ""]:
    """The Euclidean norm of a party's update; nan if a number of the reply is not finite, inf if the norm overflows.

    The reply may be encoded. The message is the one that the party was sent in this phase.
    """
    decoded = tree.map_parts(Wire.decoded, reply, Wire)
    is_finite = jnp.array(True)
    for leaf in jax.tree.leaves(decoded):
        is_finite &= jnp.all(jnp.isfinite(leaf))
    numbers = eqx.filter(decoded, eqx.is_inexact_array)
    origin = update_origin(algorithm, message, decoded, phase)
    update = tree.sub(numbers, eqx.filter(origin, eqx.is_inexact_array))  # a reply can have integers besides the model
    squares = jnp.zeros(())
    for leaf in jax.tree.leaves(update):
        squares += jnp.sum(jnp.square(jnp.abs(leaf).astype(squares.dtype)))
    return jnp.where(is_finite, jnp.sqrt(squares), jnp.nan)


def median_norm(norms: Float[Array, " C"], arrived: Bool[Array, " C"]) -> Float[Array, ""]:
    """The median of the norms of the finite replies; inf if there are fewer than three, so that nothing exceeds it."""
    is_finite = arrived & ~jnp.isnan(norms)
    count = jnp.sum(is_finite)
    ordered = jnp.sort(jnp.where(is_finite, norms, jnp.inf))
    median = ordered[jnp.minimum(count // 2, len(norms) - 1)]
    return jnp.where((count >= _MIN_REPLIES) & (median > 0), median, jnp.inf)


def admitted(norms: Float[Array, " C"], arrived: Bool[Array, " C"], multiple: float | None) -> Bool[Array, " C"]:
    """[C] whether a reply arrived, is finite, and has a norm of at most ``multiple`` times the median.

    Args:
        norms: see ``update_norm``.
        arrived: [C] whether a reply arrived.
        multiple: of the median; None: no bound.
    """
    is_finite = arrived & ~jnp.isnan(norms)
    if multiple is None or len(norms) < _MIN_REPLIES:
        return is_finite
    # The median is not below the shortest, so that mostly nothing has to be sorted.
    longest, shortest = jnp.max(norms, where=is_finite, initial=0), jnp.min(norms, where=is_finite, initial=jnp.inf)
    result: Bool[Array, " C"] = jax.lax.cond(
        longest <= multiple * shortest, lambda: is_finite,
        lambda: is_finite & (norms <= multiple * median_norm(norms, arrived)))
    return result
