"""Admission: which replies may reach an aggregate.

A reply is refused if its structure, a shape or a dtype is not the expected one, or if a number in it is not finite. In
the simulator the shapes are right by construction, so only the last check is made, inside the compiled round.

A codec can lose a number that is not finite: it may leave the entry out, or encode it as an integer. So the vector is
checked before it is encoded (``Wire.is_finite``), and once more after decoding, which can overflow.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from resolvent.math import tree
from resolvent.math.codecs import Wire

__all__ = ["finite_rows", "reason_to_refuse"]


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
    for name, leaf in tree.named_leaves(_decoded(reply)):
        if not np.isfinite(np.asarray(leaf)).all():
            return f"{name or 'the reply'} is not finite"
    return None


def finite_rows(payload: PyTree[Any], count: int) -> Bool[Array, " C"]:
    """[C] whether every number of a row is finite, before encoding and after decoding.

    Args:
        payload: replies, leaves [C, ...].
        count: C, for a payload without leaves.
    """
    finite = jnp.ones(count, bool)
    for leaf in jax.tree.leaves(_decoded(payload, jax.vmap(Wire.decoded))):
        finite &= jnp.all(jnp.isfinite(leaf).reshape(count, -1), axis=1)
    return finite


def _decoded(payload: PyTree[Any], decode: Callable[[Wire], PyTree[Any]] = Wire.decoded) -> PyTree[Any]:
    """Replace encoded vectors by what they decode to, or by NaN."""
    def is_wire(part: Any) -> bool:
        return isinstance(part, Wire)
    return jax.tree.map(lambda part: decode(part) if is_wire(part) else part, payload, is_leaf=is_wire)
