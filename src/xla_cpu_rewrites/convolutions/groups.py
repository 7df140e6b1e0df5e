"""Forms of convolutions in groups of features or of the batch: sums, and blocks of adjacent groups."""

import math
from dataclasses import replace
from functools import partial, reduce

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from xla_cpu_rewrites.convolutions.geometry import Convolution, Convolve, add_terms, strided
from xla_cpu_rewrites.small_call import no_inline

_MAX_TERMS = 100  # of a sum: blocks of more features have products that are fast enough
_TERMS_OF_LOOP = 18  # with more, the entries of the filter are not in registers
_FILTERS = 8  # of a group, which fill a vector register
_MIN_COLUMNS = 16  # with fewer products in a loop, XLA computes one filter after the other
_MIN_FEATURES = 8  # features of a block: with fewer, the library's products are slow


def sums_for_filters(lhs: Float[Array, "B ... C"], rhs: Float[Array, "... c F"], geometry: Convolution,
                     convolve: Convolve) -> Array | None:
    """Sums over the features of a group and the window, in loops along its filters.

    The entries of the filter stay in registers along the columns, and a number of lhs is read once for all filters.
    With fewer terms in a loop, XLA computes one filter after the other.
    """
    groups, (*window, features, filters) = geometry.groups, rhs.shape
    entries = [*np.ndindex(*window, features)]
    if groups == 1 or filters != groups * _FILTERS or not _TERMS_OF_LOOP <= len(entries) <= _MAX_TERMS:
        return None
    sizes, of_loop = geometry.output_sizes(lhs, rhs), math.ceil(len(entries) / (len(entries) // _TERMS_OF_LOOP))

    def add(begin: int, padded: Array, rhs: Array, *total: Array) -> Array:
        factors, terms = rhs.reshape(*window, features, groups, 1, _FILTERS), []
        for *tap, feature in entries[begin:begin + of_loop]:
            first = [t * dilation for t, dilation in zip(tap, geometry.rhs_dilation, strict=True)]
            met = strided(padded[..., feature::features], first, sizes, geometry.strides)
            terms.append(jnp.swapaxes(met, -1, -2)[..., None] * factors[(*tap, feature)])
        return reduce(jnp.add, [*total, add_terms(terms)])

    padded, total = geometry.pad_rows(lhs), list[Array]()
    for begin in range(0, len(entries), of_loop):
        total = [no_inline(partial(add, begin))(padded, rhs, *total)]
    out: Array = no_inline(partial(jnp.swapaxes, axis1=-2, axis2=-3))(*total)
    return out.reshape(len(lhs), *sizes, filters)


def sums_by_filter(lhs: Float[Array, "C ... B"], rhs: Float[Array, "... B F"], geometry: Convolution,
                   convolve: Convolve) -> Array | None:
    """The gradient by such a filter: sums over the columns of a row of pixels, and in a loop over the rows.

    The entries of a row of the output's gradient stay in registers along the window and the features.
    """
    groups, positions, (*rows, columns, batch, filters) = (
        geometry.batch_groups, geometry.output_sizes(lhs, rhs), rhs.shape)
    features = len(lhs) // groups
    if (groups == 1 or filters != groups * _FILTERS or columns < _MIN_COLUMNS
            or features * math.prod(positions) > _MAX_TERMS):
        return None
    of_loop = math.ceil(columns / (columns // _MIN_COLUMNS))
    reach = [(size - 1) * stride + 1 for size, stride in zip(positions, geometry.strides, strict=True)]

    def add(begin: int, n: Array, padded: Array, gradients: Array, total: Array) -> Array:
        row = jnp.unravel_index(n, rows)
        starts = [r * dilation for r, dilation in zip(row, geometry.rhs_dilation[:-1], strict=True)]
        met = lax.dynamic_slice(padded, [0, *starts, 0, 0, 0], (batch, *reach[:-1], *padded.shape[-3:]))
        gradient = lax.dynamic_slice(gradients, [0, *row, 0, 0, 0], (batch, *[1] * len(rows), *gradients.shape[-3:]))
        terms = []
        for column in range(begin, min(begin + of_loop, columns)):
            firsts = [0] * len(rows) + [column * geometry.rhs_dilation[-1]]
            window = [slice(first, first + size, stride)
                      for first, size, stride in zip(firsts, reach, geometry.strides, strict=True)]
            entries = jnp.moveaxis(met[:, *window], -2, 1)[..., None]
            terms.append(entries * gradient[(slice(None), *[0] * len(rows), column)].reshape(
                batch, groups, *[1] * (len(positions) + 1), _FILTERS))
        return total + add_terms(terms)

    def add_row(n: Array, total: Array) -> Array:
        for begin in range(0, columns, of_loop):
            total = no_inline(partial(add, begin))(n, padded, gradients, total)
        return total

    padded, gradients = geometry.pad_rows(jnp.moveaxis(lhs, (0, -1), (-1, 0))), jnp.moveaxis(rhs, -2, 0)
    padded, gradients = (x.reshape(*x.shape[:-1], groups, -1) for x in (padded, gradients))
    total = lax.fori_loop(0, math.prod(rows), add_row,
                          jnp.zeros((batch, groups, *positions, features, _FILTERS), lhs.dtype))
    return jnp.moveaxis(jnp.sum(total, 0), (0, -2), (-2, 0)).reshape(features, *positions, filters)


def few_features(lhs: Float[Array, "B ... C"], rhs: Float[Array, "... c F"], geometry: Convolution,
                 convolve: Convolve) -> Array | None:
    """Sums over the features of a group and the window, in loops along the columns of images with the features first.

    In such a loop the entries of the filter are constant.
    """
    groups, (*window, features, filters) = geometry.groups, rhs.shape
    is_strided = geometry.strides[-1] > 1  # a loop along strided columns is slow
    if groups == 1 or is_strided or features * math.prod(window) > _MAX_TERMS:
        return None
    sizes, strides = geometry.output_sizes(lhs, rhs), (1, 1, *geometry.strides)
    entries = [*np.ndindex(features, *window)]
    loops = math.ceil(len(entries) / _TERMS_OF_LOOP)
    of_loop = math.ceil(len(entries) / loops)

    def pad(images: Array) -> Array:
        return geometry.pad(images.reshape(-1, *lhs.shape[1:-1], 1))

    def add(begin: int, padded: Array, rhs: Array, *total: Array) -> Array:
        padded = padded.reshape(len(lhs), groups, features, *padded.shape[1:])
        factors = rhs.reshape(*window, features, groups, -1, *[1] * rhs.ndim)[..., 0]
        terms = []
        for feature, *tap in entries[begin:begin + of_loop]:
            first = [t * dilation for t, dilation in zip(tap, geometry.rhs_dilation, strict=True)]
            met = strided(padded, (0, feature, *first), (groups, 1, *sizes), strides)
            terms.append(met * factors[(*tap, feature)])
        return reduce(jnp.add, [*total, add_terms(terms).reshape(len(lhs), filters, *sizes)])

    # Calls: XLA is fast at transposing alone, not together with other operations.
    padded, total = no_inline(pad)(jnp.moveaxis(lhs, -1, 1)), list[Array]()
    for begin in range(0, len(entries), of_loop):
        total = [no_inline(partial(add, begin))(padded, rhs, *total)]
    return jnp.moveaxis(total[0], 1, -1)


def batch_groups(lhs: Array, rhs: Array, geometry: Convolution, convolve: Convolve) -> Array | None:
    """The gradient of a grouped convolution by its filter: of a block's result, the parts with one group."""
    groups = geometry.batch_groups
    if groups == 1:
        return None
    batch, filters = len(lhs) // groups, rhs.shape[-1] // groups
    blocks = _number_of_blocks(groups, batch)

    def split(images: Array) -> list[Array]:
        return [jnp.moveaxis(part, (-1, 0), (0, -1)) for part in jnp.split(images, blocks, axis=-1)]

    # A call: otherwise XLA would read all of lhs again before the convolution of each block.
    block_lhs = no_inline(split)(jnp.moveaxis(lhs, (0, -1), (-1, 0)))
    outs = []
    for part, block_rhs in zip(block_lhs, jnp.split(rhs, blocks, axis=-1), strict=True):
        out = convolve(part, block_rhs, replace(geometry, batch_groups=1))
        of_group = out.reshape(-1, batch, *out.shape[1:-1], groups // blocks, filters)
        outs.append(jnp.diagonal(of_group, axis1=0, axis2=-2))
    joined = jnp.moveaxis(jnp.concatenate(outs, axis=-1), -1, -2)
    return joined.reshape(*joined.shape[:-2], -1)


def blocks_of_groups(lhs: Array, rhs: Array, geometry: Convolution, convolve: Convolve) -> Array | None:
    """Blocks with a dense filter that is zero between different groups."""
    groups, (features, filters) = geometry.groups, rhs.shape[-2:]
    if groups == 1:
        return None
    blocks = _number_of_blocks(groups, features)
    of_block = groups // blocks  # groups in a block
    same = jnp.eye(of_block, dtype=bool)[:, None, :, None]
    outs = []
    for block_lhs, block_rhs in zip(jnp.split(lhs, blocks, axis=-1), jnp.split(rhs, blocks, axis=-1), strict=True):
        of_group = block_rhs.reshape(*rhs.shape[:-2], 1, features, of_block, filters // groups)
        dense = jnp.where(same, of_group, 0).reshape(*rhs.shape[:-2], of_block * features, filters // blocks)
        outs.append(convolve(block_lhs, dense, replace(geometry, groups=1)))
    return jnp.concatenate(outs, axis=-1)


def _number_of_blocks(groups: int, features: int) -> int:
    of_block = min(groups, -(-_MIN_FEATURES // features))
    return next(n for n in range(groups // of_block, 0, -1) if groups % n == 0)
