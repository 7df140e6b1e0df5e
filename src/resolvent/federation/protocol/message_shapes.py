"""The numbers of a message: their types in the trace of a round, and which of them are valid."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from resolvent.algorithms.keys import GENERATOR


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


def key_shape() -> jax.ShapeDtypeStruct:
    """Shape and dtype of the data of a random key in a message."""
    return jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=GENERATOR)))  # type: ignore[no-any-return]


def scalar_shape() -> jax.ShapeDtypeStruct:
    """Shape and dtype of a number in a message, such as an effort."""
    return jax.eval_shape(lambda: jnp.zeros(()))  # type: ignore[no-any-return]


def tree_of_one(shapes: PyTree[Any]) -> PyTree[Any]:
    """Shapes with a leading axis of length 1."""
    return jax.tree.map(lambda s: jax.ShapeDtypeStruct((1, *s.shape), s.dtype), shapes)  # type: ignore[no-untyped-call]
