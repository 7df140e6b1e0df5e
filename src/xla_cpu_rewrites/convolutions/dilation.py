"""Forms of dilated arrays and of dilated windows."""

from dataclasses import replace

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from xla_cpu_rewrites.convolutions.few_filters import MAX_CHANNELS_OF_EIGEN, NEIGHBOURS
from xla_cpu_rewrites.convolutions.geometry import Convolution, Convolve, choose, strided
from xla_cpu_rewrites.small_call import no_inline


def strided_slices(lhs: Array, rhs: Array, geometry: Convolution, convolve: Convolve) -> Array | None:
    """Only the entries that a dilated window with one position reads, as in the gradient of a strided 1x1 one."""
    sizes = geometry.output_sizes(lhs, rhs)
    reads_part = [n == 1 and d > 1 for n, d in zip(sizes, geometry.rhs_dilation, strict=True)]
    if not any(reads_part):
        return None
    padded = geometry.unpadded([not part for part in reads_part]).pad(lhs)
    windows = [window if part else size for size, window, part
               in zip(padded.shape[1:-1], rhs.shape[:-2], reads_part, strict=True)]
    steps = [dilation if part else 1 for dilation, part in zip(geometry.rhs_dilation, reads_part, strict=True)]
    sliced = strided(padded, [0] * len(sizes), windows, steps)
    return convolve(sliced, rhs, replace(geometry.unpadded(reads_part),
                                         rhs_dilation=choose(reads_part, 1, geometry.rhs_dilation)))


def phases(lhs: Float[Array, "B ... C"], rhs: Float[Array, "... C F"], geometry: Convolution,
           convolve: Convolve) -> Array | None:
    """Along a dilated axis: a convolution for each phase of the outputs, with the taps that meet no zeros.

    A window that is not wider than the dilation has one tap in each phase, which the library's loop finds as fast.
    """
    axis = next((n for n, dilation in enumerate(geometry.lhs_dilation) if dilation > 1), None)
    if axis is None or (geometry.strides[axis], geometry.rhs_dilation[axis], geometry.batch_groups) != (1, 1, 1):
        return None
    if rhs.shape[axis] <= geometry.lhs_dilation[axis] and (len(geometry.strides), axis) != (3, 0):
        return None
    dilation, sizes = geometry.lhs_dilation[axis], geometry.output_sizes(lhs, rhs)
    before, size, rows, results = geometry.padding[axis][0], lhs.shape[axis + 1], -(-sizes[axis] // dilation), []
    for phase in range(dilation):
        first = (before - phase) % dilation  # tap t of output o meets entry (o + t - before) / dilation
        taps = rhs[(slice(None),) * axis + (slice(first, None, dilation),)]
        begin = (phase + first - before) // dilation
        end = begin + rows + taps.shape[axis] - 1
        axes = [n == axis for n in range(len(sizes))]
        inner = replace(geometry, padding=choose(axes, (-begin, end - size), geometry.padding),
                        lhs_dilation=choose(axes, 1, geometry.lhs_dilation))
        shape = (len(lhs), *choose(axes, rows, sizes), rhs.shape[-1])
        results.append(convolve(lhs, taps, inner) if taps.size else jnp.zeros(shape, lhs.dtype))
    out = jnp.stack(results, axis=axis + 2)
    out = out.reshape(*out.shape[:axis + 1], rows * dilation, *out.shape[axis + 3:])
    return lax.slice_in_dim(out, 0, sizes[axis], axis=axis + 1)


def phases_as_samples(lhs: Array, rhs: Array, geometry: Convolution, convolve: Convolve) -> Array | None:
    """With few features and filters: columns that one window reads as a sample, so that outputs can be joined."""
    dilation, window, columns = geometry.rhs_dilation[-1], rhs.shape[-3], geometry.output_sizes(lhs, rhs)[-1]
    is_plain = (geometry.groups, geometry.strides[-1], geometry.lhs_dilation[-1]) == (1, 1, 1)
    if dilation == 1 or not is_plain or max(rhs.shape[-2:]) > MAX_CHANNELS_OF_EIGEN:
        return None
    joined, before = max(NEIGHBOURS), geometry.padding[-1][0]
    of_phase = -(-columns // (dilation * joined)) * joined
    after = (of_phase + window - 1) * dilation - before - lhs.shape[-2]

    def split(lhs: Array) -> Array:
        padded = lax.pad(lhs, jnp.zeros((), lhs.dtype), [*[(0, 0, 0)] * (lhs.ndim - 2), (before, after, 0), (0, 0, 0)])
        by_phase = jnp.moveaxis(padded.reshape(*lhs.shape[:-2], -1, dilation, lhs.shape[-1]), -2, 1)
        return by_phase.reshape(-1, *by_phase.shape[2:])

    def join(out: Array) -> Array:
        by_phase = jnp.moveaxis(out.reshape(len(lhs), dilation, *out.shape[1:]), 1, -2)
        return by_phase.reshape(*by_phase.shape[:-3], -1, out.shape[-1])[..., :columns, :]

    inner = replace(geometry, padding=(*geometry.padding[:-1], (0, 0)),
                    rhs_dilation=(*geometry.rhs_dilation[:-1], 1))
    out: Array = no_inline(join)(convolve(no_inline(split)(lhs), rhs, inner))
    return out
