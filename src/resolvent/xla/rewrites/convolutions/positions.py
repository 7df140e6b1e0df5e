"""The form of convolutions with few positions of a large window: gradients by a filter."""

from math import prod

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from resolvent.xla.rewrites.convolutions.geometry import MAX_TERMS, Convolution, Convolve


def few_positions(lhs: Float[Array, "C ... B"], rhs: Float[Array, "... B F"], geometry: Convolution,
                  convolve: Convolve) -> Array | None:
    """One product of lhs and the entries of the window that meet it, side by side for all positions.

    It is for a dilated lhs, of which only the entries without the zeros take part, as in the gradient of a strided
    transposed convolution by its filter; and for windows with one position.
    """
    positions = geometry.output_sizes(lhs, rhs)
    is_dilated = max(geometry.lhs_dilation) > 1
    if (geometry.groups > 1 or geometry.batch_groups > 1 or set(geometry.rhs_dilation) != {1}
            or not (is_dilated or prod(positions) == 1) or prod(positions) > MAX_TERMS
            or prod(rhs.shape[:-2]) <= prod(positions)):
        return None
    sizes = lhs.shape[1:-1]
    parts = []
    for position in np.ndindex(*positions):
        # Entry u of lhs meets tap before + dilation * u - stride * position.
        config, limits = [], []
        for axis, u in enumerate(position):
            dilation = geometry.lhs_dilation[axis]
            first = geometry.padding[axis][0] - geometry.strides[axis] * u
            last = first + (sizes[axis] - 1) * dilation
            config.append((-first, last + 1 - rhs.shape[axis], 0))
            limits.append(dilation)
        met = lax.pad(rhs, jnp.zeros((), rhs.dtype), [*config, (0, 0, 0), (0, 0, 0)])
        parts.append(met[tuple(slice(None, None, step) for step in limits)].reshape(-1, rhs.shape[-1]))
    product = lhs.reshape(len(lhs), -1) @ jnp.concatenate(parts, axis=1)
    return product.reshape(len(lhs), *positions, -1)
