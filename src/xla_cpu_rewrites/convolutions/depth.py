"""Forms of convolutions with three spatial axes, for which the library has none."""

from dataclasses import replace
from functools import partial

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from xla_cpu_rewrites.convolutions.geometry import Convolution, Convolve
from xla_cpu_rewrites.small_call import no_inline

_REGISTER = 8  # numbers of a vector register: fewer features are not written faster one slice after the other


def depth_as_features(lhs: Float[Array, "B D H W C"], rhs: Float[Array, "d h w C F"], geometry: Convolution,
                      convolve: Convolve) -> Array | None:
    """The slices of a window along the depth as features of a convolution with two spatial axes."""
    if len(geometry.strides) < 3 or geometry.groups > 1:
        return None
    outputs, taps = geometry.output_sizes(lhs, rhs)[0], rhs.shape[0]
    stride, dilation = geometry.strides[0], geometry.rhs_dilation[0]
    if taps > 1 and lhs.shape[-1] >= _REGISTER and geometry.lhs_dilation[0] == 1:
        images: Array = no_inline(partial(_write_side_by_side, geometry, outputs, taps))(lhs)
    else:
        padded = geometry.unpadded([False, True, True]).pad(lhs)
        images = jnp.concatenate([lax.slice_in_dim(padded, first, first + (outputs - 1) * stride + 1, stride, axis=1)
                                  for first in range(0, taps * dilation, dilation)], axis=-1)
    window = jnp.moveaxis(rhs, 0, 2)
    out = convolve(images.reshape(-1, *images.shape[2:]), window.reshape(*window.shape[:2], -1, window.shape[-1]),
                   replace(geometry, strides=geometry.strides[1:], padding=geometry.padding[1:],
                           lhs_dilation=geometry.lhs_dilation[1:], rhs_dilation=geometry.rhs_dilation[1:]))
    return out.reshape(len(lhs), outputs, *out.shape[1:])


def _write_side_by_side(geometry: Convolution, outputs: int, taps: int, lhs: Array) -> Array:
    """The slices that each output meets, written in place: XLA pads lhs first, and concatenates number by number."""
    (_, depth, *_, features), stride = lhs.shape, geometry.strides[0]
    images = jnp.zeros((len(lhs), outputs, *lhs.shape[2:-1], taps * features), lhs.dtype)
    for tap in range(taps):
        first = tap * geometry.rhs_dilation[0] - geometry.padding[0][0]  # of output 0; slices outside of lhs are zeros
        begin, end = max(0, -(first // stride)), min(outputs, (depth - 1 - first) // stride + 1)
        if begin < end:
            slices = lax.slice_in_dim(lhs, first + begin * stride, first + (end - 1) * stride + 1, stride, axis=1)
            images = lax.dynamic_update_slice(images, slices, (0, begin, 0, 0, tap * features))
    return images
