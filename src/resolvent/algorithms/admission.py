"""What may reach an aggregate: a reply of the shape that was expected, all of it finite.

The simulator's replies have the right shape by construction, so there only non-finite ones are turned away, inside the
compiled round. Whoever gathers replies one by one, from a network above all, lets ``admit`` do both.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, PyTree

from resolvent.algorithms.algorithm import Replies
from resolvent.math import tree
from resolvent.math.codecs import Wire

__all__ = ["Admitted", "Private", "admit", "finite_rows", "reason_to_refuse"]


class Private(eqx.Module):
    """A part of a party's state that nobody's memory mirrors: it goes on even where the reply beside it is refused.

    The rest of the state goes back with a refused reply, as if the party had been absent, because the server's memories
    (Scaffold's c, DIANA's h) have not moved either.

    Attributes:
        value: the part.
    """

    value: PyTree[Any]

    @staticmethod
    def split(state: PyTree[Any], of_private: Callable[..., Any], of_rest: Callable[..., Any],
              *others: PyTree[Any]) -> PyTree[Any]:
        """One function on the private parts of states of the same structure, another on all else."""
        def is_private(part: Any) -> bool:
            return isinstance(part, Private)

        def of_part(part: Any, *rest: Any) -> Any:
            return (of_private if is_private(part) else of_rest)(part, *rest)
        return jax.tree.map(of_part, state, *others, is_leaf=is_private)


class Admitted(NamedTuple):
    """The replies that count, and why others do not.

    Attributes:
        replies: those that were admitted; rows of the others are zero and not alive.
        refused: party -> reason.
    """

    replies: Replies
    refused: dict[int, str]


def admit(replies: Mapping[int, Any], like: PyTree[Any], index: ArrayLike, weight: ArrayLike,
          shares: ArrayLike) -> Admitted:
    """Put the replies that came into the rows of a cohort, but for those that must not be aggregated.

    Args:
        replies: party -> its reply; absent parties are left out.
        like: a reply as it should be: leaves with shape and dtype (``jax.eval_shape`` gives them).
        index: [C] the cohort.
        weight: [C] aggregation weights, had everybody replied.
        shares: [C] lambda_k, had everybody replied.
    """
    cohort = [int(k) for k in np.asarray(index)]
    refused = {k: "it is not of this round's cohort" for k in replies if k not in cohort}
    refused |= {k: why for k in cohort if k in replies and (why := reason_to_refuse(replies[k], like)) is not None}
    nothing = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), like)
    rows = [replies[k] if k in replies and k not in refused else nothing for k in cohort]
    alive = np.array([k in replies and k not in refused for k in cohort], bool)
    payload = jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)
    return Admitted(Replies(payload, jnp.where(alive, jnp.asarray(weight), 0), jnp.asarray(index), jnp.asarray(alive),
                            jnp.where(alive, jnp.asarray(shares), 0)), refused)


def reason_to_refuse(reply: Any, like: PyTree[Any]) -> str | None:
    """Why a reply must not be aggregated, or None where it may."""
    try:
        fits: bool = jax.tree.structure(reply) == jax.tree.structure(like)  # type: ignore[operator]
    except (TypeError, ValueError):  # a dict with keys that have no order
        fits = False
    if not fits:
        return "its structure is not the one expected"
    for (name, leaf), (_, expected) in zip(tree.named_leaves(reply), tree.named_leaves(like), strict=True):
        where = name or "the reply"
        try:
            value = np.asarray(leaf)
        except (TypeError, ValueError) as error:
            return f"{where} is no array: {error}"
        if value.shape != expected.shape:
            return f"{where} has shape {list(value.shape)}, expected {list(expected.shape)}"
        if value.dtype != expected.dtype:
            return f"{where} is {value.dtype}, expected {expected.dtype}"
    for name, leaf in tree.named_leaves(_decoded(reply)):
        if not np.isfinite(np.asarray(leaf)).all():
            return f"{name or 'the reply'} is not finite"
    return None


def finite_rows(payload: PyTree[Any], count: int) -> Bool[Array, " C"]:
    """[C] whether every number of a row (leaves [C, ...]) is finite, once it has been decoded."""
    rows = jnp.ones(count, bool)
    for leaf in jax.tree.leaves(_decoded(payload, jax.vmap(Wire.decoded))):
        rows &= jnp.all(jnp.isfinite(leaf).reshape(count, -1), axis=1)
    return rows


def _decoded(payload: PyTree[Any], decode: Callable[[Wire], PyTree[Any]] = Wire.decoded) -> PyTree[Any]:
    """The payload with the vectors that wires stand for: integers on a wire may mean infinity."""
    def is_wire(part: Any) -> bool:
        return isinstance(part, Wire)
    return jax.tree.map(lambda part: decode(part) if is_wire(part) else part, payload, is_leaf=is_wire)
