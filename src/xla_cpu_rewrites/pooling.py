"""Pooling as elementwise operations on slices.

XLA's CPU backend runs windowed reductions and their gradients entry by entry. Here the first entries of all windows are
a strided slice of the padded array, so are the second entries, and so on. The reduction combines these slices, which
XLA fuses into one loop. An axis without windows comes last, so that this loop runs over adjacent numbers. Where entries
of a window tie, the gradient belongs to the same entry as with JAX's own operations.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from xla_cpu_rewrites.deferred import Program
from xla_cpu_rewrites.small_call import no_inline
from xla_cpu_rewrites.values import inverse

_MAX_ENTRIES = 64  # entries of a window
_MAX_ENTRIES_ALONG_AXIS = 16


@dataclass(frozen=True)
class _Windows:
    """The windows of an array.

    Attributes:
        sizes: numbers of entries of a window, for each axis.
        strides: distances of adjacent windows.
        padding: numbers of entries before and after each axis; negative numbers crop.
        base_dilation: 1 + numbers of padding entries between adjacent entries of the array.
        window_dilation: distances of adjacent entries of a window.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    base_dilation: tuple[int, ...]
    window_dilation: tuple[int, ...]

    @property
    def order(self) -> list[int]:
        """The axes with an axis without windows last, if there is one."""
        plain = [axis for axis, size in enumerate(self.sizes) if size == 1]
        return [*plain[:-1], *(axis for axis, size in enumerate(self.sizes) if size > 1), *plain[-1:]]

    def transposed(self) -> "_Windows":
        """The windows of the array with its axes in this order."""
        def permuted(values: Sequence[Any]) -> tuple[Any, ...]:
            return tuple(values[axis] for axis in self.order)

        return _Windows(permuted(self.sizes), permuted(self.strides), permuted(self.padding),
                        permuted(self.base_dilation), permuted(self.window_dilation))

    def along(self, axis: int) -> "_Windows":
        """The same windows along one axis, and windows of one entry along the others, without padding."""
        def only(values: Sequence[Any], neutral: Any) -> tuple[Any, ...]:
            return tuple(value if i == axis else neutral for i, value in enumerate(values))
        return _Windows(only(self.sizes, 1), only(self.strides, 1), only(self.padding, (0, 0)),
                        only(self.base_dilation, 1), only(self.window_dilation, 1))

    @property
    def are_tiles(self) -> bool:
        """Whether adjacent windows touch and do not overlap."""
        return self.strides == self.sizes and set(self.window_dilation) == {1}

    def pad(self, x: Array, value: float) -> Array:
        config = [(*pair, dilation - 1) for pair, dilation in zip(self.padding, self.base_dilation, strict=True)]
        return lax.pad(x, jnp.asarray(value, x.dtype), config)

    def counts(self, padded: Sequence[int]) -> list[int]:
        """Numbers of windows along each axis of an array that has this shape after padding."""
        return [(length - (size - 1) * dilation - 1) // stride + 1 for length, size, dilation, stride
                in zip(padded, self.sizes, self.window_dilation, self.strides, strict=True)]

    def entries(self, padded: Array) -> list[Array]:
        """The first entries of all windows, then the second ones, and so on, each with the shape of the result."""
        counts = self.counts(padded.shape)
        entries = []
        for first in self._first_positions():
            limits = [f + (n - 1) * stride + 1 for f, n, stride in zip(first, counts, self.strides, strict=True)]
            entries.append(lax.slice(padded, first, limits, self.strides))
        return entries

    def scatter(self, selected: Array, source: Array, padded: Sequence[int]) -> Array:
        """The sum of arrays that have, for each window, its source at the position ``selected``, and are else 0."""
        return self._scatter_tiles(selected, source, padded) if self.are_tiles else self._scatter_overlapping(
            selected, source, padded)

    def _scatter_tiles(self, selected: Array, source: Array, padded: Sequence[int]) -> Array:
        positions = np.arange(np.prod(self.sizes), dtype=np.int8).reshape([n for size in self.sizes for n in (1, size)])
        within = tuple(range(1, 2 * source.ndim, 2))
        spread = jnp.where(jnp.expand_dims(selected, within) == positions, jnp.expand_dims(source, within), 0)
        tiles = spread.reshape([n * size for n, size in zip(source.shape, self.sizes, strict=True)])
        return lax.pad(tiles, jnp.zeros((), tiles.dtype),
                       [(0, length - covered, 0) for length, covered in zip(padded, tiles.shape, strict=True)])

    def _scatter_overlapping(self, selected: Array, source: Array, padded: Sequence[int]) -> Array:
        spread = []
        for i, first in enumerate(self._first_positions()):
            config = [(f, length - f - (n - 1) * stride - 1, stride - 1) for f, length, n, stride
                      in zip(first, padded, source.shape, self.strides, strict=True)]
            spread.append(lax.pad(jnp.where(selected == i, source, 0), jnp.zeros((), source.dtype), config))
        return reduce(jnp.add, spread)

    def _first_positions(self) -> list[list[int]]:
        return [[e * dilation for e, dilation in zip(entry, self.window_dilation, strict=True)]
                for entry in np.ndindex(*self.sizes)]


def _windows(operands: Sequence[Any], *, window_dimensions: Sequence[int], window_strides: Sequence[int],
             padding: Sequence[tuple[int, int]], base_dilation: Sequence[int] | None = None,
             window_dilation: Sequence[int] | None = None) -> _Windows | None:
    """The windows, or None if the operands are not floating numbers or the windows have only one entry."""
    if not all(np.issubdtype(x.dtype, np.floating) and x.size for x in operands) or set(window_dimensions) == {1}:
        return None
    ones = (1,) * len(window_dimensions)
    return _Windows(tuple(window_dimensions), tuple(window_strides), tuple((b, a) for b, a in padding),
                    tuple(base_dilation or ones), tuple(window_dilation or ones))


def window_max(operand: Any, **params: Any) -> Program | None:
    """The rule of ``reduce_window_max``."""
    return _window_reduction(operand, jnp.maximum, -np.inf, params)


def window_min(operand: Any, **params: Any) -> Program | None:
    """The rule of ``reduce_window_min``."""
    return _window_reduction(operand, jnp.minimum, np.inf, params)


def window_sum(operand: Any, **params: Any) -> Program | None:
    """The rule of ``reduce_window_sum``."""
    return _window_reduction(operand, jnp.add, 0, params)


def _window_reduction(operand: Any, combine: Callable[[Array, Array], Array], neutral: float,
                      params: dict[str, Any]) -> Program | None:
    """The reduction of windows, one axis after the other."""
    windows = _windows([operand], **params)
    if windows is None or max(windows.sizes) > _MAX_ENTRIES_ALONG_AXIS:
        return None
    transposed = windows.transposed()

    def program(x: Array) -> Array:
        x = transposed.pad(jnp.transpose(x, windows.order), neutral)
        for axis in range(x.ndim):
            without_padding = replace(transposed, padding=((0, 0),) * x.ndim, base_dilation=(1,) * x.ndim)
            x = reduce(combine, without_padding.along(axis).entries(x))
        return jnp.transpose(x, inverse(windows.order))

    return program


def select_and_scatter(source: Any, operand: Any, *, select_prim: Any, **params: Any) -> Program | None:
    """The rule of ``select_and_scatter_add``, the gradient of ``window_max``: the selected entry gets the source.

    The padding takes part in the selection, as in JAX's own program for CPUs.
    """
    windows = _windows([source, operand], **params)
    if windows is None or np.prod(windows.sizes) > _MAX_ENTRIES:
        return None
    transposed, neutral = windows.transposed(), -np.inf if select_prim is lax.ge_p else np.inf

    def program(source: Array, operand: Array) -> Array:
        source, operand = (jnp.transpose(x, windows.order) for x in (source, operand))
        padded = transposed.pad(operand, neutral)

        def select(padded: Array) -> Array:
            return _selected(transposed.entries(padded), select_prim)

        # The loop over overlapping windows has several readers, for each of which XLA would select again.
        selected = select(padded) if transposed.are_tiles else no_inline(select)(padded)
        spread = transposed.scatter(selected, source, padded.shape)
        cropped = lax.pad(spread, jnp.zeros((), spread.dtype), [(-b, -a, 0) for b, a in transposed.padding])
        return jnp.transpose(cropped, inverse(windows.order))

    return program


def select_and_gather(tangents: Any, operand: Any, *, select_prim: Any, **params: Any) -> Program | None:
    """The rule of ``select_and_gather_add``, the derivative of ``window_max``: the tangent of the selected entry."""
    windows = _windows([tangents, operand], **params)
    if windows is None or np.prod(windows.sizes) > _MAX_ENTRIES:
        return None
    transposed, neutral = windows.transposed(), -np.inf if select_prim is lax.ge_p else np.inf

    def program(tangents: Array, operand: Array) -> Array:
        entries, entry_tangents = (transposed.entries(transposed.pad(jnp.transpose(x, windows.order), value))
                                   for x, value in ((operand, neutral), (tangents, 0)))
        value, tangent = jnp.full_like(entries[0], neutral), jnp.zeros_like(entry_tangents[0])
        for entry, entry_tangent in zip(entries, entry_tangents, strict=True):
            stays = select_prim.bind(value, entry)
            value, tangent = jnp.where(stays, value, entry), jnp.where(stays, tangent, entry_tangent)
        return jnp.transpose(tangent, inverse(windows.order))

    return program


def _selected(entries: Sequence[Array], select_prim: Any) -> Array:
    """The number of the entry that ``select_prim`` prefers to all later ones, for each window, as int8."""
    value, selected = entries[0], jnp.zeros(entries[0].shape, jnp.int8)
    for i, entry in enumerate(entries[1:], 1):
        stays = select_prim.bind(value, entry)
        value, selected = jnp.where(stays, value, entry), jnp.where(stays, selected, jnp.int8(i))
    return selected
