"""Forms of convolutions with three spatial axes, for which the library has none."""

from dataclasses import replace

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from resolvent.xla.rewrites.convolutions.geometry import Convolution, Convolve


def depth_phases(lhs: Float[Array, "B D H W C"], rhs: Float[Array, "d h w C F"], geometry: Convolution,
                 convolve: Convolve) -> Array | None:
    """Along a dilated depth: a convolution for each phase of the outputs, with the taps that meet no zeros."""
    dilation = geometry.lhs_dilation[0]
    if len(geometry.strides) < 3 or dilation == 1 or (geometry.strides[0], geometry.rhs_dilation[0]) != (1, 1):
        return None
    before, depth, outputs = geometry.padding[0][0], lhs.shape[1], geometry.output_sizes(lhs, rhs)[0]
    rows, phases = -(-outputs // dilation), []
    for phase in range(dilation):
        first = (before - phase) % dilation  # tap t of output o meets entry (o + t - before) / dilation
        taps = rhs[first::dilation]
        begin = (phase + first - before) // dilation
        end = begin + rows + len(taps) - 1
        inner = replace(geometry, padding=((-begin, end - depth), *geometry.padding[1:]),
                        lhs_dilation=(1, *geometry.lhs_dilation[1:]))
        shape = (len(lhs), rows, *geometry.output_sizes(lhs, rhs)[1:], rhs.shape[-1])
        phases.append(convolve(lhs, taps, inner) if len(taps) else jnp.zeros(shape, lhs.dtype))
    out = jnp.stack(phases, axis=2)
    return out.reshape(len(lhs), rows * dilation, *out.shape[3:])[:, :outputs]


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
                   Convolution(1, 1, geometry.strides[1:], geometry.padding[1:], geometry.lhs_dilation[1:],
                               geometry.rhs_dilation[1:], geometry.params))
    return out.reshape(len(lhs), outputs, *out.shape[1:])
