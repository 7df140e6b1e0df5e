"""A form of dilated windows."""

from dataclasses import replace

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
