"""Forms of convolutions with few filters, or with few features."""

from dataclasses import replace

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from resolvent.xla.rewrites.convolutions.geometry import Convolution, Convolve

_MIN_FILTERS = 32  # filters that the library's matrix product needs for its full rate
# With 2 to 4 features the library gathers the windows slowly: it should gather few of them.
_FEW_FEATURES = range(2, 5)
_MAX_FILTERS = 64  # with more, the multiplications with zeros take longer than the windows
_MAX_NEIGHBOURS = 4


def columns_as_features(lhs: Array, rhs: Array, geometry: Convolution, convolve: Convolve) -> Array | None:
    """With few features and a stride: as many columns as the stride are the features of one, without a stride."""
    stride, window, features = geometry.strides[-1], *rhs.shape[-3:-1]
    if geometry.groups > 1 or stride == 1 or features > max(_FEW_FEATURES) or geometry.rhs_dilation[-1] > 1:
        return None
    outputs, padded = geometry.output_sizes(lhs, rhs)[-1], geometry.pad(lhs)
    taps = -(-window // stride)
    columns = (outputs + taps - 1) * stride
    fill = [(0, 0)] * (lhs.ndim - 2)
    whole = jnp.pad(padded, [*fill, (0, max(0, columns - padded.shape[-2])), (0, 0)])[..., :columns, :]
    wide = jnp.pad(rhs, [*fill[:-1], (0, taps * stride - window), (0, 0), (0, 0)])
    every = [True] * len(geometry.strides)
    return convolve(whole.reshape(*whole.shape[:-2], -1, stride * features),
                    wide.reshape(*wide.shape[:-3], taps, stride * features, rhs.shape[-1]),
                    replace(geometry.unpadded(every), strides=(*geometry.strides[:-1], 1)))


def few_filters(lhs: Array, rhs: Array, geometry: Convolution, convolve: Convolve) -> Array | None:
    """Adjacent outputs along the last spatial axis as further filters of a wider window, filled with zeros."""
    columns, filters = geometry.output_sizes(lhs, rhs)[-1], rhs.shape[-1]
    is_plain = (geometry.strides[-1], geometry.lhs_dilation[-1], geometry.rhs_dilation[-1]) == (1, 1, 1)
    if geometry.groups > 1 or not is_plain or rhs.shape[-3] == 1:
        return None
    has_few_features = rhs.shape[-2] in _FEW_FEATURES and filters <= _MAX_FILTERS
    limit = _MAX_NEIGHBOURS if has_few_features else _MIN_FILTERS // filters
    fitting = [m for m in (2, _MAX_NEIGHBOURS) if columns % m == 0 and m <= limit]
    if not fitting:
        return None
    neighbours = max(fitting)
    if has_few_features:
        lhs, geometry = geometry.pad(lhs), geometry.unpadded([True] * len(geometry.strides))
    shifted = [lax.pad(rhs, jnp.zeros((), rhs.dtype), [*[(0, 0, 0)] * (rhs.ndim - 3), (j, neighbours - 1 - j, 0),
                                                       (0, 0, 0), (0, 0, 0)]) for j in range(neighbours)]
    out = convolve(lhs, jnp.concatenate(shifted, axis=-1),
                   replace(geometry, strides=(*geometry.strides[:-1], neighbours)))
    return out.reshape(*out.shape[:-2], out.shape[-2] * neighbours, filters)
