"""Winograd's forms of windows of three: outputs in tiles of two along each axis, by four products instead of six.

An input tile of four entries d and a filter w give the outputs A'[(G w) * (B' d)]. With two axes there are 16 products
of matrices instead of 36, each a product over the features of all tiles. The gradient by the filter is the transpose,
G'[(A dy) * (B' d)]. The matrices have entries 0, 1, -1 and 1/2, so rounding errors grow by a factor of about two.

Lavin, Gray: Fast algorithms for convolutional neural networks, CVPR 2016, F(2x2, 3x3).
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from math import prod

import jax.numpy as jnp
from jaxtyping import Array, Float

from resolvent.xla.rewrites.convolutions.geometry import Convolution, Convolve, strided
from resolvent.xla.small_call import no_inline

_WINDOW, _OUTPUTS, _TILE = 3, 2, 4
# Features and filters: with fewer, the transforms take longer than the products that they save.
_MIN_CHANNELS, _MIN_GRADIENT_CHANNELS = 32, 128
_MAX_PRODUCTS = 0.6  # multiplications of a form, as a fraction of the convolution's


def winograd(lhs: Float[Array, "B ... C"], rhs: Float[Array, "... C F"], geometry: Convolution,
             convolve: Convolve) -> Array | None:
    """A convolution with windows of three and stride 1."""
    sizes, (features, filters) = geometry.output_sizes(lhs, rhs), rhs.shape[-2:]
    if not _is_faster(geometry, rhs.shape[:-2], sizes, min(features, filters) >= _MIN_CHANNELS):
        return None
    tiles, rank = _tiles(sizes), len(sizes)

    def of_filter(w: Array) -> list[Array]:
        return _transform([w[index] for index in product(range(_WINDOW), repeat=rank)], rank, _filter_line)

    def collect(products: list[Array]) -> Array:
        parts = [part.reshape(len(lhs), *tiles, filters) for part in _transform(products, rank, _output_line)]
        stacked = jnp.stack(parts, axis=-2).reshape(len(lhs), *tiles, *[_OUTPUTS] * rank, filters)
        order = [n for axis in range(1, rank + 1) for n in (axis, rank + axis)]
        images = jnp.transpose(stacked, (0, *order, 2 * rank + 1))
        return images.reshape(len(lhs), *[_OUTPUTS * n for n in tiles], filters)[(slice(None), *map(slice, sizes))]

    # Calls: otherwise XLA would compute the sums again in each product.
    inputs, filter_sums = no_inline(partial(_input_tiles, tiles))(geometry.pad(lhs)), no_inline(of_filter)(rhs)
    out: Array = no_inline(collect)([x @ w for x, w in zip(inputs, filter_sums, strict=True)])
    return out


def winograd_filter_gradient(lhs: Float[Array, "C ... B"], rhs: Float[Array, "... B F"], geometry: Convolution,
                             convolve: Convolve) -> Array | None:
    """The gradient of such a convolution by its filter: a convolution with three positions along each axis."""
    positions, filters = geometry.output_sizes(lhs, rhs), rhs.shape[-1]
    if not _is_faster(geometry, positions, rhs.shape[:-2], min(len(lhs), filters) >= _MIN_GRADIENT_CHANNELS):
        return None
    tiles, rank = _tiles(rhs.shape[:-2]), len(positions)

    def of_gradient(g: Array) -> list[Array]:
        fill = [(0, _OUTPUTS * n - size) for n, size in zip(tiles, g.shape[1:-1], strict=True)]
        whole = jnp.pad(g, [(0, 0), *fill, (0, 0)])
        parts = [whole[(slice(None), *[slice(i, None, _OUTPUTS) for i in index])].reshape(-1, filters)
                 for index in product(range(_OUTPUTS), repeat=rank)]
        return _transform(parts, rank, _output_transpose)

    def collect(products: list[Array]) -> Array:
        return jnp.stack(_transform(products, rank, _filter_transpose), axis=1)

    inputs = no_inline(partial(_input_tiles, tiles))(jnp.swapaxes(geometry.pad(lhs), 0, -1))
    gradients = no_inline(of_gradient)(jnp.moveaxis(rhs, -2, 0))
    out: Array = no_inline(collect)([x.T @ g for x, g in zip(inputs, gradients, strict=True)])
    return out.reshape(len(lhs), *positions, filters)


def _is_faster(geometry: Convolution, window: Sequence[int], sizes: Sequence[int], has_channels: bool) -> bool:
    """Whether it is a plain convolution with windows of three, whose tiles save enough multiplications."""
    if not has_channels or set(window) != {_WINDOW} or geometry.groups * geometry.batch_groups > 1:
        return False
    is_plain = {*geometry.strides, *geometry.lhs_dilation, *geometry.rhs_dilation} == {1}
    return is_plain and prod(_TILE * n for n in _tiles(sizes)) <= _MAX_PRODUCTS * prod(_WINDOW * n for n in sizes)


def _tiles(sizes: Sequence[int]) -> list[int]:
    """The number of tiles of outputs along each axis."""
    return [-(-size // _OUTPUTS) for size in sizes]


def _input_tiles(tiles: Sequence[int], x: Float[Array, "B ... C"]) -> list[Float[Array, "BT C"]]:
    """B' d: for each entry of a tile, the sums of all tiles."""
    fill = [(0, max(0, _OUTPUTS * n + _OUTPUTS - size)) for n, size in zip(tiles, x.shape[1:-1], strict=True)]
    whole = jnp.pad(x, [(0, 0), *fill, (0, 0)])
    parts = [strided(whole, index, tiles, [_OUTPUTS] * len(tiles)).reshape(-1, x.shape[-1])
             for index in product(range(_TILE), repeat=len(tiles))]
    return _transform(parts, len(tiles), _input_line)


def _input_line(d: Sequence[Array]) -> list[Array]:
    return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]


def _filter_line(w: Sequence[Array]) -> list[Array]:
    return [w[0], (w[0] + w[1] + w[2]) / 2, (w[0] - w[1] + w[2]) / 2, w[2]]


def _filter_transpose(n: Sequence[Array]) -> list[Array]:
    return [n[0] + (n[1] + n[2]) / 2, (n[1] - n[2]) / 2, (n[1] + n[2]) / 2 + n[3]]


def _output_line(m: Sequence[Array]) -> list[Array]:
    return [m[0] + m[1] + m[2], m[1] - m[2] - m[3]]


def _output_transpose(y: Sequence[Array]) -> list[Array]:
    return [y[0], y[0] + y[1], y[0] - y[1], -y[1]]


def _transform(parts: Sequence[Array], rank: int, of_line: Callable[[Sequence[Array]], list[Array]]) -> list[Array]:
    """``of_line`` along each axis of a table of arrays with ``rank`` axes of one length, in row-major order."""
    size = round(len(parts) ** (1 / rank))
    for _ in range(rank):  # the first axis becomes the last one
        lines = [of_line(parts[n::len(parts) // size]) for n in range(len(parts) // size)]
        parts = [part for line in lines for part in line]
    return [*parts]
