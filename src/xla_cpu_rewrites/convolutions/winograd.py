"""Winograd's forms of windows of 2, 3, 5 and 7: tiles of outputs along one axis, by fewer products.

An input tile d and a filter w give the outputs A'[(G w) * (B d)], where * multiplies entry by entry: 6 products instead
of 12 for 4 outputs of a window of 3. Each product is a convolution whose window has one entry along this axis. A window
of 7 is one of 2 windows of 4, with 14 products instead of 28. The gradient by the filter is the transpose,
G'[(A dy) * (B d)]. A and G evaluate polynomials, B interpolates them. Rounding errors grow by a factor of 2 to 4. With
tiles along a second axis they would grow again, without a gain in time.

Lavin, Gray: Fast algorithms for convolutional neural networks, CVPR 2016.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial, reduce
from math import prod

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float
from numpy.typing import NDArray

from xla_cpu_rewrites.convolutions.geometry import Convolution, Convolve, choose
from xla_cpu_rewrites.convolutions.positions import MIN_PIXELS
from xla_cpu_rewrites.small_call import no_inline

_OUTPUTS = 4  # of a tile, of up to 8 entries: more have large rounding errors
_TAPS = {2: 2, 3: 3, 5: 5, 7: 4}  # window -> entries of its parts; a window of 7 has two, filled up with a zero
_POINTS = (0, 1, -1, 2, -2, 0.5, -0.5)  # the last point is infinity
# Products that are saved, per number of the transformed arrays: with fewer, their sums take longer.
_MIN_SAVED = 30
_MIN_SAVED_BY_FILTER = 45
_MAX_PRODUCTS = 0.75  # multiplications of a form, as a fraction of the convolution's
_MAX_ROWS = 47  # of products of samples: more are faster without copies, by the library
_MIN_ENTRIES = 256  # of products of samples: smaller ones are slow
_JOINED_FILTERS = 32  # of one or two adjacent columns, which products of samples need
_REGISTER = 16  # numbers of a vector register, which the rows of patches fill: others are copied slowly
_NUMBERS_OF_SAMPLES = 2**16  # so that the samples, their transforms and patches stay in the second cache
_NUMBERS_OF_IMAGES = 2**17  # of a part of the samples, without patches; parts of fewer than half of it are slow


@dataclass(frozen=True)
class _Tiling:
    """The tiles along one spatial axis, whose entries have the distance of those of a dilated window.

    Attributes:
        window: size of the window along this axis.
        dilation: of the window; tiles that begin at as many adjacent entries are stored next to each other.
        taps: entries of a part of the window. Each part meets the inputs one tile after the part before it.
        tiles: number of tiles that begin at each of these entries.
    """

    axis: int
    window: int
    dilation: int
    taps: int
    tiles: int

    @property
    def parts(self) -> int:
        """Parts of the window."""
        return -(-self.window // self.taps)

    @property
    def entries(self) -> int:
        """Entries of a tile of inputs, and number of its products."""
        return _OUTPUTS + self.taps - 1

    def products(self, sizes: Sequence[int]) -> float:
        """The products for outputs of these sizes, as a fraction of those of the convolution."""
        return self.parts * self.tiles * self.dilation * self.entries / (sizes[self.axis] * self.window)

    def saved(self, windows: Sequence[int], sizes: Sequence[int], channels: Sequence[int]) -> float:
        """The products that are saved, per number of the transformed arrays."""
        return prod(channels) / sum(channels) * prod(windows) * (1 - self.products(sizes))


def winograd(lhs: Float[Array, "B ... C"], rhs: Float[Array, "... C F"], geometry: Convolution,
             convolve: Convolve) -> Array | None:
    """A convolution with a small window and stride 1; of large images, of a few samples at a time."""
    sizes = geometry.output_sizes(lhs, rhs)
    tiling = _tiling(geometry, rhs.shape[:-2], geometry.rhs_dilation, sizes, rhs.shape[-2:], _MIN_SAVED)
    if tiling is None or set(geometry.strides) != {1}:
        return None
    numbers = max(prod(lhs.shape[1:]), prod(sizes) * rhs.shape[-1])
    samples = _samples_of_part(len(lhs), numbers, _NUMBERS_OF_IMAGES)
    is_large = len(lhs) * numbers >= 4 * _NUMBERS_OF_IMAGES
    if is_large and samples < len(lhs) and samples * numbers >= _NUMBERS_OF_IMAGES // 2:
        images = lhs.reshape(-1, samples, *lhs.shape[1:])
        parts: Array = lax.map(lambda x: winograd(x, rhs, geometry, convolve), images)
        return parts.reshape(len(lhs), *parts.shape[2:])
    axis, (of_outputs, of_filter, _) = tiling.axis, _matrices(tiling.taps, _OUTPUTS)
    factors = _transform(of_filter, rhs, axis, tiling.parts, tiling.taps, 1)
    # The axes after the tiled one as one: XLA's loops along 16 features compute one number after the other.
    inputs = _sums_of_inputs(tiling, lhs.reshape(*lhs.shape[:axis + 2], -1), geometry)
    products = [convolve(x.reshape(*x.shape[:-1], *lhs.shape[axis + 2:]), w, _product(tiling, geometry))
                for x, w in zip(inputs, factors, strict=True)]
    out = _join(of_outputs.T, [x.reshape(*x.shape[:axis + 2], -1) for x in products], axis + 1, tiling.dilation,
                sizes[axis])
    return out.reshape(len(lhs), *sizes, -1)


def winograd_filter_gradient(lhs: Float[Array, "C ... B"], rhs: Float[Array, "... B F"], geometry: Convolution,
                             convolve: Convolve) -> Array | None:
    """The gradient of such a convolution by its filter: a convolution with few positions."""
    positions = geometry.output_sizes(lhs, rhs)
    tiling = _tiling(geometry, positions, geometry.strides, rhs.shape[:-2], (len(lhs), rhs.shape[-1]),
                     _MIN_SAVED_BY_FILTER)
    if tiling is None or set(geometry.rhs_dilation) != {1}:
        return None
    axis, (of_outputs, of_filter, _) = tiling.axis, _matrices(tiling.taps, _OUTPUTS)
    # In the order in which arrays of features are stored: the sums run over adjacent numbers.
    inputs = _sums_of_inputs(tiling, jnp.swapaxes(lhs, 0, -1), geometry)
    factors = _transform(of_outputs, jnp.moveaxis(rhs, -2, 0), axis + 1, tiling.tiles, _OUTPUTS, tiling.dilation)
    products = _products_by_filter(inputs, factors, _product(tiling, geometry), convolve)
    return _join(of_filter.T, products, axis + 1, 1, positions[axis])


def winograd_filter_gradient_of_phases(lhs: Float[Array, "C ... B"], rhs: Float[Array, "... B F"],
                                       geometry: Convolution, convolve: Convolve) -> Array | None:
    """The gradient of a transposed convolution by its filter: tiles of lhs for each phase of the filter."""
    positions, sizes = geometry.output_sizes(lhs, rhs), lhs.shape[1:-1]
    is_plain = {*geometry.strides, *geometry.rhs_dilation, geometry.groups, geometry.batch_groups} == {1}
    # A window of one entry for each phase is that of a product of this form.
    if not is_plain or any(n <= dilation for n, dilation in zip(positions, geometry.lhs_dilation, strict=True)):
        return None
    tiling = next((_Tiling(axis, taps, 1, taps, sizes[axis] // _OUTPUTS)
                   for axis, (n, dilation) in enumerate(zip(positions, geometry.lhs_dilation, strict=True))
                   if dilation > 1 and (taps := n // dilation) * dilation == n and _TAPS.get(taps) == taps
                   and sizes[axis] % _OUTPUTS == 0), None)
    if tiling is None or tiling.saved(positions, sizes, (len(lhs), rhs.shape[-1])) < _MIN_SAVED_BY_FILTER:
        return None
    axis, tiles, (of_outputs, of_filter, of_inputs) = tiling.axis, tiling.tiles, _matrices(tiling.taps, _OUTPUTS)
    dilation, before = geometry.lhs_dilation[axis], positions[axis] - 1 - geometry.padding[axis][0]
    inputs = _transform(of_outputs, jnp.swapaxes(lhs, 0, -1), axis + 1, tiles, _OUTPUTS, 1)
    factors = _transform(of_inputs, jnp.moveaxis(rhs, -2, 0), axis + 1, tiles, _OUTPUTS, dilation, before)
    # An entry meets the phases of one tile, the last one first.
    product = replace(geometry, padding=choose([n == axis for n in range(len(positions))],
                                               (dilation - 1, dilation - 1), geometry.padding))
    products = _products_by_filter(inputs, factors, product, convolve)
    return _join(of_filter.T[::-1], products, axis + 1, dilation, positions[axis])


def winograd_products_of_samples(lhs: Float[Array, "C H W B"], rhs: Float[Array, "H W B F"], geometry: Convolution,
                                 convolve: Convolve) -> Array | None:
    """The same with few features: matrix products of a few samples at a time, which stay in a cache with their sums.

    A row of a product is a feature, a part of the window's rows, and a column of the window. Two adjacent columns of
    rhs are two filters of a window with one more column, which takes half as many copies of lhs.
    """
    positions = geometry.output_sizes(lhs, rhs)
    tiling = next((t for t in _tilings(geometry, positions, geometry.strides, rhs.shape[:-2]) if t.axis == 0), None)
    is_plain = lhs.ndim == 4 and {*geometry.strides, *geometry.rhs_dilation} == {1}
    if tiling is None or not is_plain or prod(rhs.shape[:2]) <= prod(positions):
        return None
    (height, width, batch, filters), rows = rhs.shape, len(lhs) * tiling.parts * positions[1]
    joined = 2 if filters <= _JOINED_FILTERS and width % (2 * _REGISTER) == 0 else 1
    # rhs would be copied to fill up the last tile
    if (rows > _MAX_ROWS or rows * filters < _MIN_ENTRIES or height % _OUTPUTS or width % _REGISTER
            or height * width < MIN_PIXELS or joined * filters < _JOINED_FILTERS):
        return None
    columns, tiles, rows = positions[1] + joined - 1, tiling.tiles, rows // positions[1] * (positions[1] + joined - 1)
    of_outputs, of_filter, of_inputs = _matrices(tiling.taps, _OUTPUTS)
    samples = _samples_of_part(batch, height * width * filters, _NUMBERS_OF_SAMPLES)

    (before, _), of_tiles = geometry.padding[0], tiles + tiling.parts
    x = lax.pad(jnp.moveaxis(lhs, -1, 0), jnp.zeros((), lhs.dtype), [(0, 0, 0), (0, 0, 0), (
        before, of_tiles * _OUTPUTS - before - lhs.shape[1], 0), (*geometry.padding[1], 0)])
    x = x.reshape(-1, samples, len(lhs), of_tiles, _OUTPUTS, x.shape[-1])
    g = jnp.moveaxis(rhs, 2, 0).reshape(len(x), samples * tiles, _OUTPUTS, -1)

    def inputs(weights: NDArray[np.float64], x: Array) -> Array:
        return _combine(weights, [x[:, :, j // _OUTPUTS:of_tiles - 1 + j // _OUTPUTS, j % _OUTPUTS]
                                  for j in range(tiling.entries)])[0]

    def gradients(weights: NDArray[np.float64], g: Array, n: Array) -> Array:
        return _combine(weights, [g[n, :, j] for j in range(_OUTPUTS)])[0]

    def met_columns(x: Array) -> Array:
        return jnp.stack([jnp.swapaxes(x[..., q:q + width - joined + 1:joined], 0, 1) for q in range(columns)], axis=1)

    def met_rows(x: Array) -> Array:
        return jnp.stack([x[:, :, :, p:p + tiles] for p in range(tiling.parts)], axis=1)

    def add(n: Array, totals: list[Array]) -> list[Array]:
        out, of_samples = [], no_inline(lambda x, n: x[n])(x, n)
        for i, total in enumerate(totals):  # calls, so that the sums and the copies are each computed once
            met = no_inline(met_rows)(no_inline(met_columns)(no_inline(partial(inputs, of_inputs[[i]]))(of_samples)))
            factor = no_inline(partial(gradients, of_outputs[[i]]))(g, n)
            out.append(total + met.reshape(rows, -1) @ factor.reshape(-1, joined * filters))
        return out

    totals = lax.fori_loop(0, len(x), add, [jnp.zeros((rows, joined * filters), x.dtype)] * tiling.entries)
    products = [total.reshape(len(lhs), tiling.parts, columns, joined, filters) for total in totals]
    out = _join(of_filter.T, products, 1, 1, positions[0])
    return reduce(jnp.add, [out[:, :, j:j + positions[1], j] for j in range(joined)])


def _samples_of_part(batch: int, numbers: int, of_part: int) -> int:
    """The largest number of samples that divides the batch and has at most ``of_part`` numbers, but at least one."""
    return max(n for n in range(1, batch + 1) if batch % n == 0 and n * numbers <= max(of_part, numbers))


def _products_by_filter(inputs: Sequence[Float[Array, "B ... C"]], factors: Sequence[Float[Array, "B ... F"]],
                        product: Convolution, convolve: Convolve) -> list[Array]:
    """The gradients of such products by the filter, from arrays in the order in which features are stored."""
    return [convolve(jnp.swapaxes(x, 0, -1), jnp.moveaxis(g, 0, -2), product)
            for x, g in zip(inputs, factors, strict=True)]


def _sums_of_inputs(tiling: _Tiling, x: Float[Array, "B ... C"], geometry: Convolution) -> list[Array]:
    """The sums of the entries of each tile of inputs that are multiplied."""
    return _transform(_matrices(tiling.taps, _OUTPUTS)[2], x, tiling.axis + 1, tiling.tiles + tiling.parts - 1,
                      _OUTPUTS, tiling.dilation, geometry.padding[tiling.axis][0])


def _product(tiling: _Tiling, geometry: Convolution) -> Convolution:
    """The convolution of such sums, whose window has one entry along this axis for each part."""
    is_tiled = [n == tiling.axis for n in range(len(geometry.strides))]
    product = replace(geometry.unpadded(is_tiled), is_winograd_product=True)
    if tiling.parts > 1:
        return product
    return replace(product, strides=choose(is_tiled, 1, geometry.strides),
                   rhs_dilation=choose(is_tiled, 1, geometry.rhs_dilation))


def _transform(matrix: NDArray[np.float64], x: Array, axis: int, tiles: int, step: int, dilation: int,
               before: int = 0) -> list[Array]:
    """The sums of the entries of each tile, weighted by each row of the matrix."""
    entries, reach, shape = matrix.shape[1], (tiles - 1) * step + 1, x.shape
    after = (reach + entries - 1) * dilation - before - shape[axis]
    padded = lax.pad(x, jnp.zeros((), x.dtype), [(before, after, 0) if n == axis else (0, 0, 0) for n in range(x.ndim)])

    def sums(padded: Array) -> list[Array]:
        by_phase = padded.reshape(*shape[:axis], -1, dilation, *shape[axis + 1:])
        return _combine(matrix, [lax.slice_in_dim(by_phase, n, n + reach, step, axis=axis).reshape(
            *shape[:axis], -1, *shape[axis + 1:]) for n in range(entries)])

    # A call: otherwise XLA would compute the sums again in each product.
    of_tiles: list[Array] = no_inline(sums)(padded)
    return of_tiles


def _join(matrix: NDArray[np.float64], products: Sequence[Array], axis: int, dilation: int, size: int) -> Array:
    """The sums of the products, weighted by each row of the matrix, as entries of a tile along the axis."""
    def join(products: Sequence[Array]) -> Array:
        shape = products[0].shape
        by_phase = [x.reshape(*shape[:axis], -1, dilation, *shape[axis + 1:]) for x in _combine(matrix, products)]
        out = jnp.stack(by_phase, axis=axis + 1).reshape(*shape[:axis], -1, *shape[axis + 1:])
        return lax.slice_in_dim(out, 0, size, axis=axis)

    out: Array = no_inline(join)(products)
    return out


def _tilings(geometry: Convolution, windows: Sequence[int], dilations: Sequence[int],
             sizes: Sequence[int]) -> list[_Tiling]:
    """The tiles along each axis of a plain convolution that have fewer products, those with the fewest first."""
    is_plain = (set(geometry.lhs_dilation) == {1} and geometry.groups * geometry.batch_groups == 1
                and not geometry.is_winograd_product)
    # A window of one entry along an axis, or of two along one axis alone, is that of a product of such a form.
    if not is_plain or (min(windows) < 3 and {*windows} != {2}):
        return []
    tilings = [_Tiling(axis, window, dilation, taps, -(-size // (_OUTPUTS * dilation)))
               for axis, (window, dilation, size) in enumerate(zip(windows, dilations, sizes, strict=True))
               if (taps := _TAPS.get(window))]

    fitting = [tiling for tiling in tilings if tiling.products(sizes) <= _MAX_PRODUCTS]
    return sorted(fitting, key=lambda tiling: tiling.products(sizes))


def _tiling(geometry: Convolution, windows: Sequence[int], dilations: Sequence[int], sizes: Sequence[int],
            channels: Sequence[int], min_saved: float) -> _Tiling | None:
    """The tiles with the fewest products, or None if they do not save enough."""
    best = next(iter(_tilings(geometry, windows, dilations, sizes)), None)
    return best if best and best.saved(windows, sizes, channels) >= min_saved else None


@cache
def _matrices(taps: int, outputs: int) -> tuple[NDArray[np.float64], ...]:
    """A and G, the values of polynomials at the points, and B, the coefficients of the product from its values."""
    points = np.array(_POINTS[:outputs + taps - 2])
    others = [np.delete(points, n) for n in range(len(points))]
    scales = [np.prod(point - roots) for point, roots in zip(points, others, strict=True)]

    def values(size: int) -> NDArray[np.float64]:
        return np.vstack([np.vander(points, size, increasing=True), np.eye(size)[-1]])

    of_inputs = np.vstack([[*np.poly(roots)[::-1], 0] for roots in others] + [np.poly(points)[::-1]])
    return values(outputs), values(taps) / np.array([*scales, 1])[:, None], of_inputs


def _combine(matrix: NDArray[np.float64], parts: Sequence[Array]) -> list[Array]:
    """The sums of the parts, weighted by each row of the matrix."""
    return [reduce(jnp.add, [part * float(weight) for weight, part in zip(row, parts, strict=True) if weight])
            for row in matrix]
