"""Forms of convolutions with few filters, or with few features."""

from dataclasses import replace

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from xla_cpu_rewrites.convolutions.geometry import Convolution, Convolve

_MIN_FILTERS = 16  # filters that the library's matrix product needs for its full rate
MAX_CHANNELS_OF_EIGEN = 16  # XLA computes convolutions with more features or filters by the faster YNNPACK
_MAX_FEATURES = 4  # with more, a copy of the padded array takes longer than the library's loop over the features saves
NEIGHBOURS = (1, 2, 4)  # outputs that are computed together
_COLUMNS_OF_YNNPACK = range(2, 9)  # filters for which its product of one output is faster than that of several


def columns_with_features(lhs: Array, rhs: Array, geometry: Convolution, convolve: Convolve) -> Array | None:
    """With few features: the columns and the features as one axis, of which a window is one run of numbers."""
    window, features = rhs.shape[-3:-1]
    if geometry.groups > 1 or window == 1 or not 1 < features <= _MAX_FEATURES or geometry.rhs_dilation[-1] > 1:
        return None
    padded, every = geometry.pad(lhs), [True] * len(geometry.strides)
    strides = (*geometry.strides[:-1], geometry.strides[-1] * features)
    return convolve(padded.reshape(*padded.shape[:-2], -1, 1), rhs.reshape(*rhs.shape[:-3], -1, 1, rhs.shape[-1]),
                    replace(geometry.unpadded(every), strides=strides))


def few_filters(lhs: Array, rhs: Array, geometry: Convolution, convolve: Convolve) -> Array | None:
    """Adjacent outputs along the last spatial axis as further filters of a wider window, filled with zeros."""
    columns, stride, (features, filters) = geometry.output_sizes(lhs, rhs)[-1], geometry.strides[-1], rhs.shape[-2:]
    is_plain = (geometry.groups, geometry.lhs_dilation[-1], geometry.rhs_dilation[-1]) == (1, 1, 1)
    is_fast = features > MAX_CHANNELS_OF_EIGEN and filters in _COLUMNS_OF_YNNPACK
    if not is_plain or is_fast or rhs.shape[-3] < 2 * stride:
        return None
    fitting = [m for m in NEIGHBOURS if columns % m == 0]
    neighbours = next((m for m in fitting if m * filters >= _MIN_FILTERS
                       and max(m * filters, features) > MAX_CHANNELS_OF_EIGEN), fitting[-1])
    if neighbours == 1:
        return None
    fill, zero = [(0, 0, 0)] * (rhs.ndim - 3), jnp.zeros((), rhs.dtype)
    shifted = [lax.pad(rhs, zero, [*fill, (j * stride, (neighbours - 1 - j) * stride, 0), (0, 0, 0), (0, 0, 0)])
               for j in range(neighbours)]
    out = convolve(lhs, jnp.concatenate(shifted, axis=-1),
                   replace(geometry, strides=(*geometry.strides[:-1], stride * neighbours)))
    return out.reshape(*out.shape[:-2], out.shape[-2] * neighbours, filters)
