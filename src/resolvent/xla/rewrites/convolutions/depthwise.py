"""Forms of depthwise convolutions: each feature has filters of its own.

The last spatial axis and the features are one axis, so that the inner loops run over many adjacent numbers.
"""

import math
from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from resolvent.xla.rewrites.convolutions.geometry import MAX_TERMS, Convolution, Convolve
from resolvent.xla.small_call import allow_small_calls, no_inline, repeat

__all__ = ["depthwise", "depthwise_filter_gradient"]

_MAX_SUMS = 9  # sums of one loop, which should stay in the fastest cache
_MAX_TERMS_OF_LOOP = 7  # products that one loop adds; with more, it reads from more places than the processor follows


def depthwise(lhs: Float[Array, "B ... G"], rhs: Float[Array, "... 1 F"], geometry: Convolution,
              convolve: Convolve) -> Array | None:
    """A sum over the entries of the window."""
    if geometry.groups == 1 or rhs.shape[-2] != 1 or np.prod(rhs.shape[:-2]) > MAX_TERMS:
        return None
    sizes, filters = geometry.output_sizes(lhs, rhs), rhs.shape[-1]
    padded = jnp.repeat(geometry.pad(lhs), filters // geometry.groups, axis=-1)
    windows = _Windows(padded, geometry.strides)
    # A call: otherwise XLA computes the tiled filter again for each number that reads it.
    tiled = no_inline(lambda taps: jnp.tile(taps, (1, sizes[-1])))(rhs.reshape(-1, filters))
    firsts = [[t * dilation for t, dilation in zip(tap, geometry.rhs_dilation, strict=True)]
              for tap in np.ndindex(*rhs.shape[:-2])]
    of_loop = min(rhs.shape[-3], _MAX_TERMS_OF_LOOP)

    def add(begin: int, tiled: Array, *total: Array) -> Array:
        terms = [windows.at(firsts[n], sizes) * tiled[n] for n in range(len(firsts))[begin:begin + of_loop]]
        return reduce(jnp.add, [*total, *terms])

    total = no_inline(partial(add, 0))(tiled)
    for begin in range(of_loop, len(firsts), of_loop):
        total = no_inline(partial(add, begin))(tiled, total)
    out: Array = total.reshape(len(lhs), *sizes, filters)
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
    filters = rhs.shape[-1]
    inputs = jnp.repeat(jnp.moveaxis(geometry.pad(lhs), (0, -1), (-1, 0)), filters // len(lhs), axis=-1)
    gradients = jnp.moveaxis(rhs, -2, 0)
    rows = gradients.shape[:-2]
    firsts = [[p * stride for p, stride in zip(position, geometry.strides, strict=True)]
              for position in np.ndindex(*positions)]
    # A call, whose operands XLA stores: it would otherwise compute them again for each position.
    sums = no_inline(partial(_sums_of_products, strides=geometry.rhs_dilation, firsts=firsts,
                             sizes=rhs.shape[:-2]))(inputs, gradients.reshape(math.prod(rows), -1))
    return jnp.stack([jnp.sum(total.reshape(-1, filters), axis=0) for total in sums]).reshape(1, *positions, filters)


def _sums_of_products(inputs: Float[Array, "N ... C"], gradients: Float[Array, "rows width"], *, strides: Sequence[int],
                      firsts: Sequence[Sequence[int]], sizes: Sequence[int]) -> list[Float[Array, " width"]]:
    """For each first entry, the sum over all rows of the window that begins there, times the gradients."""
    windows = _Windows(inputs, strides)

    def add(n: Array, totals: list[Array], firsts: Sequence[Sequence[int]]) -> list[Array]:
        gradient = lax.dynamic_index_in_dim(gradients, n, keepdims=False)
        row = jnp.unravel_index(n, (len(inputs), *sizes[:-1]))
        return [total + windows.row(first, row, sizes[-1]) * gradient
                for total, first in zip(totals, firsts, strict=True)]

    sums: list[Array] = []
    for begin in range(0, len(firsts), _MAX_SUMS):
        part = firsts[begin:begin + _MAX_SUMS]
        with allow_small_calls():  # all data are arguments of the call
            sums += repeat(jnp.asarray(len(gradients)), partial(add, firsts=part),
                           [jnp.zeros_like(gradients[0])] * len(part))
    return sums


class _Windows:
    """Every s-th entry along each spatial axis, from any first one, of an array [N, *spatial, C].

    Entries with the same remainder of the division by s are adjacent in memory.
    """

    def __init__(self, x: Array, strides: Sequence[int]) -> None:
        self.strides, self.features = strides, x.shape[-1]
        fill = [(0, -size % stride) for size, stride in zip(x.shape[1:-1], strides, strict=True)]
        padded = jnp.pad(x, [(0, 0), *fill, (0, 0)])
        if set(strides) == {1}:
            self._phases = padded.reshape(*[1] * len(strides), *padded.shape[:-2], -1)
            return
        split = [n for size, stride in zip(padded.shape[1:-1], strides, strict=True) for n in (size // stride, stride)]
        rank = len(strides)
        order = [*range(2, 2 * rank + 1, 2), 0, *range(1, 2 * rank, 2), 2 * rank + 1]
        # A call, because XLA would otherwise reorder the numbers again for each window.
        reordered = no_inline(lambda a: jnp.transpose(a.reshape(len(a), *split, a.shape[-1]), order))(padded)
        self._phases = reordered.reshape(*reordered.shape[:-2], -1)

    def at(self, first: Sequence[int], sizes: Sequence[int]) -> Float[Array, "N ... last*C"]:
        """Entries first, first + s, ..., ``sizes`` of them; the last spatial axis and the features are one axis."""
        phase, begin = self._phase_and_begin(first)
        end = [b + size for b, size in zip(begin, sizes, strict=True)]
        last = slice(begin[-1] * self.features, end[-1] * self.features)
        return self._phases[(*phase, slice(None), *map(slice, begin[:-1], end[:-1]), last)]

    def row(self, first: Sequence[int], row: Sequence[Array], size: int) -> Float[Array, " size*C"]:
        """One row of ``at``: its number in N, and along each spatial axis but the last."""
        phase, begin = self._phase_and_begin(first)
        number, *of_axes = row
        moved = [r + b for r, b in zip(of_axes, begin[:-1], strict=True)]
        start: list[Any] = [*phase, number, *moved, begin[-1] * self.features]
        width = size * self.features
        return lax.dynamic_slice(self._phases, start, [*[1] * (len(start) - 1), width]).reshape(width)

    def _phase_and_begin(self, first: Sequence[int]) -> tuple[tuple[int, ...], list[int]]:
        return (tuple(f % stride for f, stride in zip(first, self.strides, strict=True)),
                [f // stride for f, stride in zip(first, self.strides, strict=True)])
