"""Forms of convolutions in groups of features or of the batch: blocks of adjacent groups."""

from dataclasses import replace

import jax.numpy as jnp
from jaxtyping import Array

from resolvent.xla.rewrites.convolutions.geometry import Convolution, Convolve
from resolvent.xla.small_call import no_inline

_MIN_FEATURES = 8  # features of a block: with fewer, the library's products are slow


def batch_groups(lhs: Array, rhs: Array, geometry: Convolution, convolve: Convolve) -> Array | None:
    """The gradient of a grouped convolution by its filter: of a block's result, the parts with one group."""
    groups = geometry.batch_groups
    if groups == 1:
        return None
    batch, filters = len(lhs) // groups, rhs.shape[-1] // groups
    blocks = _number_of_blocks(groups, batch)

    def split(images: Array) -> list[Array]:
        return [jnp.moveaxis(part, (-1, 0), (0, -1)) for part in jnp.split(images, blocks, axis=-1)]

    # A call: otherwise XLA would read all of lhs again before the convolution of each block.
    block_lhs = no_inline(split)(jnp.moveaxis(lhs, (0, -1), (-1, 0)))
    outs = []
    for part, block_rhs in zip(block_lhs, jnp.split(rhs, blocks, axis=-1), strict=True):
        out = convolve(part, block_rhs, replace(geometry, batch_groups=1))
        of_group = out.reshape(-1, batch, *out.shape[1:-1], groups // blocks, filters)
        outs.append(jnp.diagonal(of_group, axis1=0, axis2=-2))
    joined = jnp.moveaxis(jnp.concatenate(outs, axis=-1), -1, -2)
    return joined.reshape(*joined.shape[:-2], -1)


def blocks_of_groups(lhs: Array, rhs: Array, geometry: Convolution, convolve: Convolve) -> Array | None:
    """Blocks with a dense filter that is zero between different groups."""
    groups, (features, filters) = geometry.groups, rhs.shape[-2:]
    if groups == 1:
        return None
    blocks = _number_of_blocks(groups, features)
    of_block = groups // blocks  # groups in a block
    same = jnp.eye(of_block, dtype=bool)[:, None, :, None]
    outs = []
    for block_lhs, block_rhs in zip(jnp.split(lhs, blocks, axis=-1), jnp.split(rhs, blocks, axis=-1), strict=True):
        of_group = block_rhs.reshape(*rhs.shape[:-2], 1, features, of_block, filters // groups)
        dense = jnp.where(same, of_group, 0).reshape(*rhs.shape[:-2], of_block * features, filters // blocks)
        outs.append(convolve(block_lhs, dense, replace(geometry, groups=1)))
    return jnp.concatenate(outs, axis=-1)


def _number_of_blocks(groups: int, features: int) -> int:
    of_block = min(groups, -(-_MIN_FEATURES // features))
    return next(n for n in range(groups // of_block, 0, -1) if groups % n == 0)
