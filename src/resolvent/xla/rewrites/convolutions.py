"""Convolutions in the one form that XLA's CPU backend computes with a library: NHWC, HWIO, without reversed windows.

XLA brings convolutions outside of loops into this form, but not those inside of loops: these run as plain nested loops
and take 10 to 50 times as long. The gradients of a convolution are convolutions as well, with batch and channels
exchanged or with dilated operands, so the same rule holds for them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from resolvent.xla.rewrites.deferred import Program
from resolvent.xla.small_call import no_inline

__all__ = ["convolution", "inverse"]

_NUMBERS = {1: ("NWC", "WIO", "NWC"), 2: ("NHWC", "HWIO", "NHWC")}
_MAX_TERMS = 64  # terms of a sum that is written out
_MAX_DENSE_GROUPS = 4  # with more groups, the zeros of a dense filter cost more than they save
_MIN_FILTERS = 32  # filters that the library's matrix product needs for its full rate
_MAX_NEIGHBOURS = 4


@dataclass(frozen=True)
class _Convolution:
    """A convolution of lhs [batch, *spatial, features] with rhs [*spatial, features / groups, filters].

    Attributes:
        groups: number of groups of features.
        strides: strides of the windows, for each spatial axis.
        padding: numbers of zeros before and after each spatial axis; negative numbers crop.
        lhs_dilation: 1 + number of zeros between adjacent entries of lhs.
        rhs_dilation: 1 + number of zeros between adjacent entries of rhs.
        params: further parameters of ``lax.conv_general_dilated``.
    """

    groups: int
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    lhs_dilation: tuple[int, ...]
    rhs_dilation: tuple[int, ...]
    params: dict[str, Any]

    def __call__(self, lhs: Array, rhs: Array) -> Array:
        """[batch, *spatial, filters], by the library."""
        return lax.conv_general_dilated(
            lhs, rhs, self.strides, self.padding, self.lhs_dilation, self.rhs_dilation, _NUMBERS[len(self.strides)],
            feature_group_count=self.groups, **self.params)

    def output_sizes(self, lhs: Array, rhs: Array) -> list[int]:
        """The sizes of the spatial axes of the result."""
        return [(before + after + (size - 1) * inner + 1 - (window - 1) * outer - 1) // stride + 1
                for size, window, stride, (before, after), inner, outer in zip(
                    lhs.shape[1:-1], rhs.shape[:-2], self.strides, self.padding, self.lhs_dilation, self.rhs_dilation,
                    strict=True)]

    def is_plain(self, axis: int) -> bool:
        """Whether windows along this spatial axis are adjacent and nothing is dilated."""
        return (self.strides[axis], self.lhs_dilation[axis], self.rhs_dilation[axis]) == (1, 1, 1)


def convolution(lhs: Any, rhs: Any, *, window_strides: Sequence[int], padding: Sequence[tuple[int, int]],
                lhs_dilation: Sequence[int], rhs_dilation: Sequence[int], dimension_numbers: Any,
                feature_group_count: int, batch_group_count: int, **params: Any) -> Program | None:
    """The rule of ``conv_general_dilated`` with one or two spatial dimensions, in float32 or float64."""
    is_supported = len(window_strides) in _NUMBERS and lhs.dtype == rhs.dtype and lhs.dtype in (np.float32, np.float64)
    if not is_supported or 0 in (*lhs.shape, *rhs.shape):
        return None
    lhs_spec, rhs_spec, out_spec = dimension_numbers
    geometry = _Convolution(feature_group_count, tuple(window_strides), tuple(padding), tuple(lhs_dilation),
                            tuple(rhs_dilation), params)

    def program(lhs: Array, rhs: Array) -> Array:
        lhs = jnp.transpose(lhs, (lhs_spec[0], *lhs_spec[2:], lhs_spec[1]))
        rhs = jnp.transpose(rhs, (*rhs_spec[2:], rhs_spec[1], rhs_spec[0]))
        lhs, simple = _with_strided_slices(lhs, rhs, geometry)
        simple, config = _with_dilated_results(rhs, simple)
        lhs, plain = _without_negative_padding(lhs, simple)
        out = _convolve_batch_groups(lhs, rhs, batch_group_count, plain)
        if config is not None:
            out = lax.pad(out, jnp.zeros((), out.dtype), [(0, 0, 0), *config, (0, 0, 0)])
        return jnp.transpose(out, inverse((out_spec[0], *out_spec[2:], out_spec[1])))

    # A call, because XLA would compute the operands again, up to the convolutions of earlier layers, in its transposes.
    return no_inline(program)


def inverse(order: Sequence[int]) -> list[int]:
    """The inverse of a permutation."""
    return [int(i) for i in np.argsort(order)]


def _with_strided_slices(lhs: Array, rhs: Array, geometry: _Convolution) -> tuple[Array, _Convolution]:
    """Only the entries that a dilated window with one position reads, as in the gradient of a strided 1x1 one."""
    sizes = geometry.output_sizes(lhs, rhs)
    reads_all = [n != 1 or d == 1 for n, d in zip(sizes, geometry.rhs_dilation, strict=True)]
    if all(reads_all):
        return lhs, geometry
    keep = replace(geometry, padding=_choose(reads_all, (0, 0), geometry.padding),
                   lhs_dilation=_choose(reads_all, 1, geometry.lhs_dilation))
    padded = _pad(lhs, keep)
    windows = [size if reads else window for size, window, reads
               in zip(padded.shape[1:-1], rhs.shape[:-2], reads_all, strict=True)]
    sliced = _strided(padded, [0] * len(sizes), windows, _choose(reads_all, 1, geometry.rhs_dilation))
    others = [not reads for reads in reads_all]
    return sliced, replace(geometry, padding=_choose(others, (0, 0), geometry.padding),
                           lhs_dilation=_choose(others, 1, geometry.lhs_dilation),
                           rhs_dilation=_choose(others, 1, geometry.rhs_dilation))


def _with_dilated_results(rhs: Array, geometry: _Convolution) -> tuple[_Convolution, list[tuple[int, int, int]] | None]:
    """Where the window has one entry: the convolution of the array without dilation, and the padding of its result."""
    moved = [window == 1 and stride == 1 and dilation > 1 for window, stride, dilation
             in zip(rhs.shape[:-2], geometry.strides, geometry.lhs_dilation, strict=True)]
    if not any(moved):
        return geometry, None
    config = [(*pair, dilation - 1) if move else (0, 0, 0) for pair, dilation, move
              in zip(geometry.padding, geometry.lhs_dilation, moved, strict=True)]
    return replace(geometry, padding=_choose(moved, (0, 0), geometry.padding),
                   lhs_dilation=_choose(moved, 1, geometry.lhs_dilation)), config


def _choose(conditions: Sequence[bool], value: Any, others: Sequence[Any]) -> tuple[Any, ...]:
    """The value for each axis whose condition is true, and the other values for the others."""
    return tuple(value if condition else other for condition, other in zip(conditions, others, strict=True))


def _without_negative_padding(lhs: Array, geometry: _Convolution) -> tuple[Array, _Convolution]:
    """Crop lhs, after writing out its dilation where there is one."""
    if all(min(pair) >= 0 for pair in geometry.padding):
        return lhs, geometry
    crops = [min(pair) < 0 for pair in geometry.padding]
    config = [(min(before, 0), min(after, 0), dilation - 1 if crop else 0) for (before, after), dilation, crop
              in zip(geometry.padding, geometry.lhs_dilation, crops, strict=True)]
    return lax.pad(lhs, jnp.zeros((), lhs.dtype), [(0, 0, 0), *config, (0, 0, 0)]), replace(
        geometry, padding=tuple((max(before, 0), max(after, 0)) for before, after in geometry.padding),
        lhs_dilation=tuple(1 if crop else d for d, crop in zip(geometry.lhs_dilation, crops, strict=True)))


def _convolve_batch_groups(lhs: Array, rhs: Array, groups: int, geometry: _Convolution) -> Array:
    """A convolution in which group g of the batch meets group g of the filters: the gradient of a grouped one."""
    if groups == 1:
        return _convolve(lhs, rhs, geometry)
    batch, features = len(lhs) // groups, lhs.shape[-1]
    positions = geometry.output_sizes(lhs, rhs)
    if batch == 1 and set(geometry.lhs_dilation) == {1} and np.prod(positions) <= _MAX_TERMS:
        return _depthwise_filter_gradient(lhs, rhs, positions, geometry)
    grouped = jnp.moveaxis(lhs.reshape(groups, batch, *lhs.shape[1:]), 0, -2)
    return _convolve(grouped.reshape(batch, *lhs.shape[1:-1], groups * features), rhs,
                     replace(geometry, groups=groups))


def _convolve(lhs: Array, rhs: Array, geometry: _Convolution) -> Array:
    groups = geometry.groups
    if groups > 1 and rhs.shape[-2] == 1 and np.prod(rhs.shape[:-2]) <= _MAX_TERMS:
        return _depthwise(lhs, rhs, geometry)
    if 1 < groups <= _MAX_DENSE_GROUPS:
        return _convolve(lhs, _dense_filter(rhs, groups), replace(geometry, groups=1))
    neighbours = _number_of_neighbours(lhs, rhs, geometry)
    return geometry(lhs, rhs) if neighbours == 1 else _convolve_neighbours(lhs, rhs, neighbours, geometry)


def _dense_filter(rhs: Array, groups: int) -> Array:
    """The filter [..., groups * features, filters] that is zero between different groups."""
    features, filters = rhs.shape[-2:]
    of_group = rhs.reshape(*rhs.shape[:-2], 1, features, groups, filters // groups)
    same = jnp.eye(groups, dtype=bool)[:, None, :, None]
    return jnp.where(same, of_group, 0).reshape(*rhs.shape[:-2], groups * features, filters)


def _number_of_neighbours(lhs: Array, rhs: Array, geometry: _Convolution) -> int:
    """Number of adjacent outputs along the last spatial axis that are computed as further filters of one window."""
    columns, filters = geometry.output_sizes(lhs, rhs)[-1], rhs.shape[-1]
    if geometry.groups > 1 or not geometry.is_plain(-1) or rhs.shape[-3] == 1:
        return 1
    fitting = [m for m in (2, _MAX_NEIGHBOURS) if columns % m == 0 and m * filters <= _MIN_FILTERS]
    return max(fitting, default=1)


def _convolve_neighbours(lhs: Array, rhs: Array, neighbours: int, geometry: _Convolution) -> Array:
    """The convolution with few filters: a wider window has the filters of adjacent outputs, filled with zeros."""
    filters = rhs.shape[-1]
    shifted = [lax.pad(rhs, jnp.zeros((), rhs.dtype), [*[(0, 0, 0)] * (rhs.ndim - 3), (j, neighbours - 1 - j, 0),
                                                       (0, 0, 0), (0, 0, 0)]) for j in range(neighbours)]
    wide = replace(geometry, strides=(*geometry.strides[:-1], neighbours))
    out = wide(lhs, jnp.concatenate(shifted, axis=-1))
    return out.reshape(*out.shape[:-2], out.shape[-2] * neighbours, filters)


def _depthwise(lhs: Float[Array, "B ... G"], rhs: Float[Array, "... 1 F"], geometry: _Convolution) -> Array:
    """A convolution of each feature with filters of its own, as a sum over the entries of the window."""
    sizes = geometry.output_sizes(lhs, rhs)
    padded = _pad(lhs, geometry)
    terms = []
    for tap in np.ndindex(*rhs.shape[:-2]):
        first = [t * dilation for t, dilation in zip(tap, geometry.rhs_dilation, strict=True)]
        window = _strided(padded, first, sizes, geometry.strides)
        terms.append(jnp.repeat(window, rhs.shape[-1] // geometry.groups, axis=-1) * rhs[tap][0])
    return sum(terms[1:], terms[0])


def _depthwise_filter_gradient(lhs: Float[Array, "G ... B"], rhs: Float[Array, "... B F"], positions: list[int],
                               geometry: _Convolution) -> Array:
    """The gradient of a depthwise convolution by its filter: a sum over batch and pixels for each output position."""
    padded, sums = _pad(lhs, geometry), []
    for position in np.ndindex(*positions):
        first = [p * stride for p, stride in zip(position, geometry.strides, strict=True)]
        window = jnp.moveaxis(_strided(padded, first, rhs.shape[:-2], geometry.rhs_dilation), 0, -1)
        products = jnp.repeat(window, rhs.shape[-1] // len(lhs), axis=-1) * rhs
        sums.append(jnp.sum(products, axis=tuple(range(rhs.ndim - 1))))
    return jnp.stack(sums).reshape(1, *positions, -1)


def _pad(lhs: Array, geometry: _Convolution) -> Array:
    config = [(*pair, dilation - 1) for pair, dilation in zip(geometry.padding, geometry.lhs_dilation, strict=True)]
    return lax.pad(lhs, jnp.zeros((), lhs.dtype), [(0, 0, 0), *config, (0, 0, 0)])


def _strided(x: Array, first: Sequence[int], sizes: Sequence[int], strides: Sequence[int]) -> Array:
    """Entries first, first + stride, ... of each spatial axis, ``sizes`` of them."""
    limits = [f + (size - 1) * stride + 1 for f, size, stride in zip(first, sizes, strides, strict=True)]
    return lax.slice(x, (0, *first, 0), (len(x), *limits, x.shape[-1]), (1, *strides, 1))

