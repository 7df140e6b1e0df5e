"""Resampling of time series whose successive values depend on each other."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Int

__all__ = ["stationary_bootstrap"]


def stationary_bootstrap(key: Array, length: int, mean_block: ArrayLike = 10.0) -> Int[Array, " length"]:
    """Indices of one draw of the stationary bootstrap: blocks of successive indices, with geometric lengths.

    The first index is uniform. Each later one is uniform with probability p = 1/mean_block, and otherwise the successor
    of the one before it, where 0 follows the last. With mean_block = 1 it is the ordinary bootstrap.

    Args:
        key: a random key.
        length: n, the length of the series and of the draw.
        mean_block: the mean length of a block, at least 1.

    Example:
        >>> indices = stationary_bootstrap(jax.random.key(0), 250)
        >>> indices.shape, bool(jnp.all((indices >= 0) & (indices < 250)))
        ((250,), True)

    References:
        Politis, Romano: The Stationary Bootstrap, Journal of the American Statistical Association, 1994.
    """
    of_starts, of_blocks = jax.random.split(key)
    positions = jnp.arange(length)
    is_start = (jax.random.uniform(of_blocks, (length,)) < 1 / jnp.asarray(mean_block)) | (positions == 0)
    block = jax.lax.cummax(jnp.where(is_start, positions, 0))  # where the block of each position begins
    return (jax.random.randint(of_starts, (length,), 0, length)[block] + positions - block) % length
