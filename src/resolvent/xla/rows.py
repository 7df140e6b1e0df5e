"""Rows of stacked arrays by numbers that are not negative.

``x[i]`` compares each number with zero, adds the length of the axis where it is negative, and does so for every axis.
These operations are more than half of those of a round's small arrays, and programs compile longer with them.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array


def rows(x: Any, index: Any) -> Any:
    """Row(s) ``index`` of every leaf [N, ...] of a tree.

    Args:
        index: anything that indexes an array; numbers in JAX arrays must not be negative.
    """
    return jax.tree.map(lambda leaf: _rows(leaf, index), x)


def entry(x: Array, *index: Any) -> Array:
    """x[index] with a number for each of the first axes; numbers in JAX arrays must not be negative."""
    dtype = jnp.result_type(*(i for i in index if isinstance(i, jax.Array)), jnp.int32)  # one type for all numbers
    starts = [i.astype(dtype) if isinstance(i, jax.Array) else np.asarray(i, dtype)
              for i in (*index, *[0] * (x.ndim - len(index)))]
    part = lax.dynamic_slice(x, starts, (*[1] * len(index), *x.shape[len(index):]), allow_negative_indices=False)
    return lax.squeeze(part, range(len(index)))


def _rows(leaf: Any, index: Any) -> Any:
    if not isinstance(index, jax.Array) or not isinstance(leaf, jax.Array) or not jnp.issubdtype(
            index.dtype, jnp.integer):
        return leaf[index]
    return leaf.at[index].get(wrap_negative_indices=False) if index.ndim else entry(leaf, index)
