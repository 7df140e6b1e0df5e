"""Forms of convolutions with few positions of a large window: gradients by a filter."""

from functools import partial
from math import prod

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from xla_cpu_rewrites.convolutions.geometry import MAX_TERMS, Convolution, Convolve
from xla_cpu_rewrites.small_call import no_inline

MIN_PIXELS = 512  # terms of a product of one or all samples: with fewer, the library's convolution is faster
_MIN_FILTERS = 32
_MAX_ROWS = 49  # of one product of all samples: with more, the library's convolution is as fast
_MIN_NUMBERS = 2**19  # of images in parts, which with their copies and transforms fill more than the second cache
_SAMPLES = range(2, 17, 2)  # of a part: the library's products add two at a time
_MAX_NUMBERS = 2**16  # of a sample in its first factor: products of more numbers are fast one after the other


def few_positions(lhs: Float[Array, "C ... B"], rhs: Float[Array, "... B F"], geometry: Convolution,
                  convolve: Convolve) -> Array | None:
    """For each position, the product of lhs and the entries of the window that meet it.

    It is for a dilated lhs, of which only the entries without the zeros take part, as in the gradient of a strided
    transposed convolution by its filter; and for windows with one position. The sums are over samples first, as arrays
    of features are stored.
    """
    positions = geometry.output_sizes(lhs, rhs)
    is_dilated = max(geometry.lhs_dilation) > 1
    if (geometry.groups > 1 or geometry.batch_groups > 1 or set(geometry.rhs_dilation) != {1}
            or not (prod(positions) == 1 or (is_dilated and prod(lhs.shape[1:]) >= MIN_PIXELS))
            or prod(positions) > MAX_TERMS or prod(rhs.shape[:-2]) <= prod(positions)):
        return None
    sizes, rows, gradients = lhs.shape[1:-1], jnp.moveaxis(lhs, -1, 1).reshape(len(lhs), -1), jnp.moveaxis(rhs, -2, 0)
    products = []
    for position in np.ndindex(*positions):
        # Entry u of lhs meets tap before + dilation * u - stride * position.
        config, limits = [], []
        for axis, u in enumerate(position):
            dilation = geometry.lhs_dilation[axis]
            first = geometry.padding[axis][0] - geometry.strides[axis] * u
            last = first + (sizes[axis] - 1) * dilation
            config.append((-first, last + 1 - rhs.shape[axis], 0))
            limits.append(dilation)
        met = lax.pad(gradients, jnp.zeros((), rhs.dtype), [(0, 0, 0), *config, (0, 0, 0)])
        products.append(rows @ met[(slice(None), *(slice(None, None, step) for step in limits))].reshape(
            -1, rhs.shape[-1]))
    return jnp.stack(products, axis=1).reshape(len(lhs), *positions, -1)


def parts_of_samples(lhs: Float[Array, "C ... B"], rhs: Float[Array, "... B F"], geometry: Convolution,
                     convolve: Convolve) -> Array | None:
    """The sum of the gradients of a few samples at a time, for large images."""
    positions, (*sizes, batch, filters) = geometry.output_sizes(lhs, rhs), rhs.shape
    samples = max((n for n in _SAMPLES if batch % n == 0), default=batch)
    is_small = max(lhs.size, rhs.size) < _MIN_NUMBERS or min(len(lhs), filters) < _MIN_FILTERS
    if (geometry.groups > 1 or geometry.batch_groups > 1 or prod(positions) > min(MAX_TERMS, prod(sizes) - 1)
            or is_small or samples >= batch):
        return None
    images = jnp.moveaxis(lhs, (0, -1), (-1, 0)).reshape(-1, samples, *lhs.shape[1:-1], len(lhs))
    gradients = jnp.moveaxis(rhs, -2, 0).reshape(-1, samples, *sizes, filters)

    def add(n: Array, total: Array) -> Array:
        return total + convolve(jnp.moveaxis(images[n], (0, -1), (-1, 0)), jnp.moveaxis(gradients[n], 0, -2), geometry)

    out: Array = lax.fori_loop(0, len(images), add, jnp.zeros((len(lhs), *positions, filters), lhs.dtype))
    return out


def products_of_samples(lhs: Float[Array, "C ... B"], rhs: Float[Array, "... B F"], geometry: Convolution,
                        convolve: Convolve) -> Array | None:
    """The sum over the samples of products of the parts of lhs that meet the window, and the window.

    The parts of one sample, a row of pixels after the other, stay in a cache; the library gathers those of all samples.
    With few features these products are small, and there is one of all samples.
    """
    positions, (*sizes, batch, filters) = geometry.output_sizes(lhs, rhs), rhs.shape
    rows, pixels = len(lhs) * prod(positions), prod(sizes)
    # The few pixels of a sample in Winograd's products are copied slowly.
    is_one = rows <= min(_MAX_ROWS, pixels // 2) and rows * pixels <= _MAX_NUMBERS and pixels * batch >= MIN_PIXELS
    if (geometry.groups > 1 or geometry.batch_groups > 1 or filters < _MIN_FILTERS or prod(positions) > MAX_TERMS
            or not (is_one or pixels >= MIN_PIXELS)):
        return None
    rank = len(sizes)

    def met_along(axis: int, x: Array) -> Array:
        """The positions along a spatial axis as an axis after the features; this axis is then the window's."""
        stride, step = geometry.strides[axis], geometry.rhs_dilation[axis]
        reach = (sizes[axis] - 1) * step + 1
        return jnp.stack([lax.slice_in_dim(x, stride * n, stride * n + reach, step, axis=rank + 1)
                          for n in range(positions[axis])], axis=1)

    def parts(samples: Float[Array, "S C ..."]) -> Float[Array, "CP pixels"]:
        met = jnp.swapaxes(samples, 0, 1)
        for axis in reversed(range(rank)):
            met = no_inline(partial(met_along, axis))(met)  # a call, so that slices are copied as a whole
        return met.reshape(rows, -1)

    samples, windows = jnp.moveaxis(geometry.pad(lhs), -1, 0), jnp.moveaxis(rhs, -2, 0).reshape(batch, -1, filters)
    total: Array = parts(samples) @ windows.reshape(-1, filters) if is_one else lax.fori_loop(
        0, batch, lambda n, total: total + parts(samples[n][None]) @ windows[n], jnp.zeros((rows, filters), lhs.dtype))
    return total.reshape(len(lhs), *positions, filters)
