"""Forms of depthwise convolutions: each feature has filters of its own.

The last spatial axis and the features are one axis, so that the inner loops run over many adjacent numbers. With a
stride along this axis, all columns are computed: to bring the needed ones together takes longer.
"""

import math
from collections.abc import Sequence
from functools import partial, reduce

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from xla_cpu_rewrites.convolutions.geometry import MAX_TERMS, Convolution, Convolve, strided
from xla_cpu_rewrites.small_call import allow_small_calls, no_inline, repeat

__all__ = ["depthwise", "depthwise_filter_gradient"]

_MAX_SUMS = 9  # sums of one loop, which should stay in the fastest cache
_MAX_TERMS_OF_LOOP = 9  # products that one loop adds; with more, it reads from more places than the processor follows
_MIN_NUMBERS_OF_LOOP = 64  # of adjacent columns, so that a loop is long; to read more of the filter takes longer


def depthwise(lhs: Float[Array, "B ... G"], rhs: Float[Array, "... 1 F"], geometry: Convolution,
              convolve: Convolve) -> Array | None:
    """A sum over the entries of the window."""
    if geometry.groups == 1 or rhs.shape[-2] != 1 or np.prod(rhs.shape[:-2]) > MAX_TERMS:
        return None
    (*sizes, columns), filters = geometry.output_sizes(lhs, rhs), rhs.shape[-1]
    padded, steps = geometry.pad_rows(jnp.repeat(lhs, filters // geometry.groups, axis=-1)), (*geometry.strides[:-1], 1)
    width = (columns - 1) * geometry.strides[-1] + 1
    adjacent = _adjacent(width, filters)
    # A call: otherwise XLA computes the tiled filter again for each number that reads it.
    tiled = no_inline(lambda taps: jnp.tile(taps, (1, adjacent)))(rhs.reshape(-1, filters))
    firsts = [[t * dilation for t, dilation in zip(tap, geometry.rhs_dilation, strict=True)]
              for tap in np.ndindex(*rhs.shape[:-2])]

    def met(first: Sequence[int]) -> Array:
        entries = strided(padded, first, [*sizes, width], steps)
        return entries.reshape(*entries.shape[:-2], -1, adjacent * filters)

    def add(begin: int, tiled: Array, *total: Array) -> Array:
        terms = [met(firsts[n]) * tiled[n] for n in range(len(firsts))[begin:begin + _MAX_TERMS_OF_LOOP]]
        return reduce(jnp.add, [*total, *terms])

    total = no_inline(partial(add, 0))(tiled)
    for begin in range(_MAX_TERMS_OF_LOOP, len(firsts), _MAX_TERMS_OF_LOOP):
        total = no_inline(partial(add, begin))(tiled, total)
    out: Array = total.reshape(len(lhs), *sizes, width, filters)[..., ::geometry.strides[-1], :]
    return out


def depthwise_filter_gradient(lhs: Float[Array, "G ... B"], rhs: Float[Array, "... B F"], geometry: Convolution,
                              convolve: Convolve) -> Array | None:
    """The gradient by the filter: for each output position, a sum over batch and pixels.

    A loop over the rows of pixels adds the products of a row of the output's gradient with the rows that it meets.
    """
    positions = geometry.output_sizes(lhs, rhs)
    if (geometry.batch_groups == 1 or len(lhs) != geometry.batch_groups or set(geometry.lhs_dilation) != {1}
            or np.prod(positions) > MAX_TERMS):
        return None
    filters, (*steps, dilation) = rhs.shape[-1], geometry.rhs_dilation
    inputs = geometry.pad_rows(jnp.repeat(jnp.moveaxis(lhs, (0, -1), (-1, 0)), filters // len(lhs), axis=-1))
    # Zeros between the columns of the gradient, for long loops; not if a loop over one column is long enough.
    distance = dilation if filters >= _MIN_NUMBERS_OF_LOOP and rhs.shape[-3] <= MAX_TERMS else 1
    dilated = [(0, 0, dilation // distance - 1 if axis == rhs.ndim - 2 else 0) for axis in range(rhs.ndim)]
    gradients = lax.pad(jnp.moveaxis(rhs, -2, 0), jnp.zeros((), rhs.dtype), dilated)
    rows = gradients.shape[:-2]
    firsts = [[p * stride for p, stride in zip(position, geometry.strides, strict=True)]
              for position in np.ndindex(*positions)]
    # A call, whose operands XLA stores: it would otherwise compute them again for each position.
    sums = no_inline(partial(_sums_of_products, rows=rows, steps=(*steps, distance), filters=filters, firsts=firsts))(
        inputs.reshape(*inputs.shape[:-2], -1), gradients.reshape(math.prod(rows), -1))
    return jnp.stack([jnp.sum(total.reshape(-1, filters), axis=0) for total in sums]).reshape(1, *positions, filters)


def _sums_of_products(inputs: Float[Array, "B ... columns*F"], gradients: Float[Array, "rows width"], *,
                      rows: Sequence[int], steps: Sequence[int], filters: int,
                      firsts: Sequence[Sequence[int]]) -> list[Float[Array, " part"]]:
    """For each first entry, the sum over all rows of the window that begins there, times the gradients.

    The parts of a row are added up as well, so that the sums are short.
    """
    width, (*steps, distance) = gradients.shape[-1], steps
    part = filters * (_adjacent(width // filters, filters, _MAX_TERMS_OF_LOOP) if distance == 1 else 1)

    def add(n: Array, totals: list[Array], firsts: Sequence[Sequence[int]]) -> list[Array]:
        gradient = lax.dynamic_index_in_dim(gradients, n, keepdims=False)
        sample, *row = jnp.unravel_index(n, rows)

        def products(first: Sequence[int]) -> list[Array]:
            moved = [r * step + f for r, step, f in zip(row, steps, first[:-1], strict=True)]
            start: list[Array | int] = [sample, *moved, first[-1] * filters]
            size = (width - part) * distance + part
            met = lax.dynamic_slice(inputs, start, [*[1] * (inputs.ndim - 1), size]).reshape(size)
            return [met[k * distance:k * distance + part] * gradient[k:k + part] for k in range(0, width, part)]

        return [total + reduce(jnp.add, products(first)) for total, first in zip(totals, firsts, strict=True)]

    sums: list[Array] = []
    for begin in range(0, len(firsts), _MAX_SUMS):
        of_loop = firsts[begin:begin + _MAX_SUMS]
        with allow_small_calls():  # all data are arguments of the call
            sums += repeat(jnp.asarray(len(gradients)), partial(add, firsts=of_loop),
                           [jnp.zeros(part, gradients.dtype)] * len(of_loop))
    return sums


def _adjacent(columns: int, filters: int, max_parts: float = math.inf) -> int:
    """The smallest number of adjacent columns for a loop, which divides them into at most ``max_parts`` parts."""
    return next(n for n in range(1, columns + 1) if n == columns or (
        columns % n == 0 and columns // n <= max_parts and n * filters >= _MIN_NUMBERS_OF_LOOP))
