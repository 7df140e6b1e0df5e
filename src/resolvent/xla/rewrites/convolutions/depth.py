"""Forms of convolutions with three spatial axes, for which the library has none."""

from dataclasses import replace

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from resolvent.xla.rewrites.convolutions.geometry import Convolution, Convolve


def depth_as_features(lhs: Float[Array, "B D H W C"], rhs: Float[Array, "d h w C F"], geometry: Convolution,
                      convolve: Convolve) -> Array | None:
    """The slices of a window along the depth as features of a convolution with two spatial axes."""
    if len(geometry.strides) < 3 or geometry.groups > 1:
        return None
    outputs, taps = geometry.output_sizes(lhs, rhs)[0], rhs.shape[0]
    padded = replace(geometry, padding=(geometry.padding[0], (0, 0), (0, 0)),
                     lhs_dilation=(geometry.lhs_dilation[0], 1, 1)).pad(lhs)
    stride, dilation = geometry.strides[0], geometry.rhs_dilation[0]
    slices = [lax.slice_in_dim(padded, t * dilation, t * dilation + (outputs - 1) * stride + 1, stride, axis=1)
              for t in range(taps)]
    images = jnp.concatenate(slices, axis=-1)
    window = jnp.moveaxis(rhs, 0, 2)
    out = convolve(images.reshape(-1, *images.shape[2:]), window.reshape(*window.shape[:2], -1, window.shape[-1]),
                   replace(geometry, strides=geometry.strides[1:], padding=geometry.padding[1:],
                           lhs_dilation=geometry.lhs_dilation[1:], rhs_dilation=geometry.rhs_dilation[1:]))
    return out.reshape(len(lhs), outputs, *out.shape[1:])
