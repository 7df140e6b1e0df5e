"""Forms of convolutions in groups of features or of the batch."""

from dataclasses import replace

import jax.numpy as jnp
from jaxtyping import Array

from resolvent.xla.rewrites.convolutions.geometry import Convolution, Convolve

__all__ = ["batch_groups", "few_groups"]

_MAX_DENSE_GROUPS = 4  # with more groups, the zeros of a dense filter cost more than they save


def batch_groups(lhs: Array, rhs: Array, geometry: Convolution, convolve: Convolve) -> Array | None:
    """Groups of the batch as groups of features: the gradient of a grouped convolution by its filter."""
    groups = geometry.batch_groups
    if groups == 1:
        return None
    batch, features = len(lhs) // groups, lhs.shape[-1]
    grouped = jnp.moveaxis(lhs.reshape(groups, batch, *lhs.shape[1:]), 0, -2)
    return convolve(grouped.reshape(batch, *lhs.shape[1:-1], groups * features), rhs,
                    replace(geometry, groups=groups, batch_groups=1))


def few_groups(lhs: Array, rhs: Array, geometry: Convolution, convolve: Convolve) -> Array | None:
    """A dense filter [..., groups * features, filters] that is zero between different groups."""
    groups = geometry.groups
    if not 1 < groups <= _MAX_DENSE_GROUPS:
        return None
    features, filters = rhs.shape[-2:]
    of_group = rhs.reshape(*rhs.shape[:-2], 1, features, groups, filters // groups)
    same = jnp.eye(groups, dtype=bool)[:, None, :, None]
    dense = jnp.where(same, of_group, 0).reshape(*rhs.shape[:-2], groups * features, filters)
    return convolve(lhs, dense, replace(geometry, groups=1))
