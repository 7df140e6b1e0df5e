"""Winograd's forms of windows of 3, 5 and 7: tiles of outputs along one axis, by fewer products.

An input tile d and a filter w give the outputs A'[(G w) * (B d)], where * multiplies entry by entry: 6 products instead
of 12 for 4 outputs of a window of 3. Each product is a convolution whose window has one entry along this axis. The
gradient by the filter is the transpose, G'[(A dy) * (B d)]. A and G evaluate polynomials, B interpolates them. Rounding
errors grow by a factor of 2 to 6. With tiles along a second axis they would grow again, without a gain in time.

Lavin, Gray: Fast algorithms for convolutional neural networks, CVPR 2016.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, reduce
from math import prod

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float
from numpy.typing import NDArray

from resolvent.xla.rewrites.convolutions.geometry import Convolution, Convolve, choose
from resolvent.xla.small_call import no_inline

_OUTPUTS = {3: 4, 5: 4, 7: 2}  # window -> outputs of a tile, of up to 8 entries: more have large rounding errors
_POINTS = (0, 1, -1, 2, -2, 0.5, -0.5)  # the last point is infinity
# Products that are saved, per number of the transformed arrays: with fewer, their sums take longer.
_MIN_SAVED = 60
_MAX_PRODUCTS = 0.75  # multiplications of a form, as a fraction of the convolution's


@dataclass(frozen=True)
class _Tiling:
    """The tiles along one spatial axis, whose entries have the distance of those of a dilated window.

    Attributes:
        window: size of the window along this axis.
        dilation: of the window; tiles that begin at as many adjacent entries are stored next to each other.
        outputs: outputs of a tile.
        tiles: number of tiles that begin at each of these entries.
    """

    axis: int
    window: int
    dilation: int
    outputs: int
    tiles: int

    @property
    def entries(self) -> int:
        """Entries of a tile of inputs, and number of its products."""
        return self.outputs + self.window - 1

    def pad(self, x: Array, axis: int, entries: int, before: int = 0) -> Array:
        """The array, filled with zeros to whole tiles of this number of entries."""
        after = (self.tiles * self.outputs + entries - self.outputs) * self.dilation - before - x.shape[axis]
        config = [(before, after, 0) if n == axis else (0, 0, 0) for n in range(x.ndim)]
        return lax.pad(x, jnp.zeros((), x.dtype), config)

    def split(self, padded: Array, axis: int, entries: int) -> list[Array]:
        """The first entries of all tiles, the second entries, and so on."""
        reach, shape = (self.tiles - 1) * self.outputs + 1, padded.shape
        by_phase = padded.reshape(*shape[:axis], -1, self.dilation, *shape[axis + 1:])
        return [lax.slice_in_dim(by_phase, n, n + reach, self.outputs, axis=axis).reshape(
            *shape[:axis], -1, *shape[axis + 1:]) for n in range(entries)]

    def join(self, outputs: Sequence[Array], axis: int) -> Array:
        """The outputs in the order of the axis, from the first ones of all tiles, the second ones, and so on."""
        shape = outputs[0].shape
        by_phase = [out.reshape(*shape[:axis], self.tiles, self.dilation, *shape[axis + 1:]) for out in outputs]
        return jnp.stack(by_phase, axis=axis + 1).reshape(*shape[:axis], -1, *shape[axis + 1:])


def winograd(lhs: Float[Array, "B ... C"], rhs: Float[Array, "... C F"], geometry: Convolution,
             convolve: Convolve) -> Array | None:
    """A convolution with a small window and stride 1."""
    sizes = geometry.output_sizes(lhs, rhs)
    tiling = _tiling(geometry, rhs.shape[:-2], geometry.rhs_dilation, sizes, rhs.shape[-2:])
    if tiling is None or set(geometry.strides) != {1}:
        return None
    axis, (of_outputs, of_filter, _) = tiling.axis, _matrices(tiling.window, tiling.outputs)

    def filters(rhs: Array) -> list[Array]:
        return _combine(of_filter, [lax.slice_in_dim(rhs, n, n + 1, axis=axis) for n in range(tiling.window)])

    def collect(products: list[Array]) -> Array:
        joined = tiling.join(_combine(of_outputs.T, products), axis + 1)
        return lax.slice_in_dim(joined, 0, sizes[axis], axis=axis + 1)

    out: Array = no_inline(collect)(_products(tiling, lhs, no_inline(filters)(rhs), geometry, convolve))
    return out


def winograd_filter_gradient(lhs: Float[Array, "C ... B"], rhs: Float[Array, "... B F"], geometry: Convolution,
                             convolve: Convolve) -> Array | None:
    """The gradient of such a convolution by its filter: a convolution with few positions."""
    positions = geometry.output_sizes(lhs, rhs)
    tiling = _tiling(geometry, positions, geometry.strides, rhs.shape[:-2], (len(lhs), rhs.shape[-1]))
    if tiling is None or set(geometry.rhs_dilation) != {1}:
        return None
    axis, (of_outputs, of_filter, _) = tiling.axis, _matrices(tiling.window, tiling.outputs)

    padded = tiling.pad(rhs, axis, tiling.outputs)

    def gradients(padded: Array) -> list[Array]:
        return _combine(of_outputs, tiling.split(padded, axis, tiling.outputs))

    def collect(products: list[Array]) -> Array:
        return jnp.concatenate(_combine(of_filter.T, products), axis=axis + 1)

    out: Array = no_inline(collect)(_products(tiling, lhs, no_inline(gradients)(padded), geometry, convolve))
    return out


def _products(tiling: _Tiling, lhs: Array, factors: Sequence[Array], geometry: Convolution,
              convolve: Convolve) -> list[Array]:
    """The convolutions of the sums of inputs with these factors."""
    axis, of_inputs = tiling.axis, _matrices(tiling.window, tiling.outputs)[2]

    padded = tiling.pad(lhs, axis + 1, tiling.entries, geometry.padding[axis][0])

    def inputs(padded: Array) -> list[Array]:
        return _combine(of_inputs, tiling.split(padded, axis + 1, tiling.entries))

    is_tiled = [n == axis for n in range(len(geometry.strides))]
    product = replace(geometry.unpadded(is_tiled), strides=choose(is_tiled, 1, geometry.strides),
                      rhs_dilation=choose(is_tiled, 1, geometry.rhs_dilation))
    # Calls: otherwise XLA would compute the sums again in each product.
    return [convolve(x, factor, product) for x, factor in zip(no_inline(inputs)(padded), factors, strict=True)]


def _tiling(geometry: Convolution, windows: Sequence[int], dilations: Sequence[int], sizes: Sequence[int],
            channels: Sequence[int]) -> _Tiling | None:
    """The tiles with the fewest products, or None if they do not save enough."""
    is_plain = set(geometry.lhs_dilation) == {1} and geometry.groups * geometry.batch_groups == 1
    # A window of one entry along an axis is that of a product of such a form.
    if not is_plain or 1 in windows:
        return None
    tilings = [_Tiling(axis, window, dilation, outputs, -(-size // (outputs * dilation)))
               for axis, (window, dilation, size) in enumerate(zip(windows, dilations, sizes, strict=True))
               if (outputs := _OUTPUTS.get(window))]

    def products(tiling: _Tiling) -> float:
        """As a fraction of those of the convolution."""
        return tiling.tiles * tiling.dilation * tiling.entries / (sizes[tiling.axis] * tiling.window)

    best = min(tilings, key=products, default=None)
    if best is None or products(best) > _MAX_PRODUCTS:
        return None
    saved = prod(channels) / sum(channels) * prod(windows) * (1 - best.entries / (best.window * best.outputs))
    return best if saved >= _MIN_SAVED else None


@cache
def _matrices(window: int, outputs: int) -> tuple[NDArray[np.float64], ...]:
    """A and G, the values of polynomials at the points, and B, the coefficients of the product from its values."""
    points = np.array(_POINTS[:window + outputs - 2])
    others = [np.delete(points, n) for n in range(len(points))]
    scales = [np.prod(point - roots) for point, roots in zip(points, others, strict=True)]

    def values(size: int) -> NDArray[np.float64]:
        return np.vstack([np.vander(points, size, increasing=True), np.eye(size)[-1]])

    of_inputs = np.vstack([[*np.poly(roots)[::-1], 0] for roots in others] + [np.poly(points)[::-1]])
    return values(outputs), values(window) / np.array([*scales, 1])[:, None], of_inputs


def _combine(matrix: NDArray[np.float64], parts: Sequence[Array]) -> list[Array]:
    """The sums of the parts, weighted by each row of the matrix."""
    return [reduce(jnp.add, [part * float(weight) for weight, part in zip(row, parts, strict=True) if weight])
            for row in matrix]
