"""Forms of convolutions in groups of features or of the batch."""

from dataclasses import replace

import jax.numpy as jnp
from jaxtyping import Array

from resolvent.xla.rewrites.convolutions.geometry import Convolution, Convolve

_MIN_FEATURES = 8  # features of a block: with fewer, the library's products are slow


def batch_groups(lhs: Array, rhs: Array, geometry: Convolution, convolve: Convolve) -> Array | None:
    """Groups of the batch as groups of features: the gradient of a grouped convolution by its filter."""
    groups = geometry.batch_groups
    if groups == 1:
        return None
    batch, features = len(lhs) // groups, lhs.shape[-1]
    grouped = jnp.moveaxis(lhs.reshape(groups, batch, *lhs.shape[1:]), 0, -2)
    return convolve(grouped.reshape(batch, *lhs.shape[1:-1], groups * features), rhs,
                    replace(geometry, groups=groups, batch_groups=1))


def blocks_of_groups(lhs: Array, rhs: Array, geometry: Convolution, convolve: Convolve) -> Array | None:
    """Blocks of adjacent groups, each with a dense filter that is zero between different groups."""
    groups, (features, filters) = geometry.groups, rhs.shape[-2:]
    if groups == 1:
        return None
    blocks = next(n for n in range(groups // min(groups, -(-_MIN_FEATURES // features)), 0, -1) if groups % n == 0)
    of_block = groups // blocks  # groups in a block
    same = jnp.eye(of_block, dtype=bool)[:, None, :, None]
    outs = []
    for block_lhs, block_rhs in zip(jnp.split(lhs, blocks, axis=-1), jnp.split(rhs, blocks, axis=-1), strict=True):
        of_group = block_rhs.reshape(*rhs.shape[:-2], 1, features, of_block, filters // groups)
        dense = jnp.where(same, of_group, 0).reshape(*rhs.shape[:-2], of_block * features, filters // blocks)
        outs.append(convolve(block_lhs, dense, replace(geometry, groups=1)))
    return jnp.concatenate(outs, axis=-1)
