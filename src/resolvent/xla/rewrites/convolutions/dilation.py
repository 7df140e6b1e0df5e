"""Forms that write out dilation and negative padding, which the library does not compute."""

from dataclasses import replace

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from resolvent.xla.rewrites.convolutions.geometry import Convolution, Convolve, choose, strided


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


def dilated_results(lhs: Array, rhs: Array, geometry: Convolution, convolve: Convolve) -> Array | None:
    """Where the window has one entry: the convolution of the array without dilation, whose result is padded."""
    moved = [window == 1 and stride == 1 and dilation > 1 for window, stride, dilation
             in zip(rhs.shape[:-2], geometry.strides, geometry.lhs_dilation, strict=True)]
    if not any(moved):
        return None
    config = [(*pair, dilation - 1) if move else (0, 0, 0) for pair, dilation, move
              in zip(geometry.padding, geometry.lhs_dilation, moved, strict=True)]
    out = convolve(lhs, rhs, geometry.unpadded(moved))
    return lax.pad(out, jnp.zeros((), out.dtype), [(0, 0, 0), *config, (0, 0, 0)])


def cropped(lhs: Array, rhs: Array, geometry: Convolution, convolve: Convolve) -> Array | None:
    """Crop lhs where the padding is negative, after writing out its dilation where there is one."""
    if all(min(pair) >= 0 for pair in geometry.padding):
        return None
    crops = [min(pair) < 0 for pair in geometry.padding]
    crop = replace(geometry, padding=tuple((min(before, 0), min(after, 0)) for before, after in geometry.padding),
                   lhs_dilation=choose([not c for c in crops], 1, geometry.lhs_dilation))
    return convolve(crop.pad(lhs), rhs, replace(
        geometry, padding=tuple((max(before, 0), max(after, 0)) for before, after in geometry.padding),
        lhs_dilation=choose(crops, 1, geometry.lhs_dilation)))
