"""Values that are stored as arrays with another order of their axes."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array


@dataclass(frozen=True)
class Factor:
    """A factor of a dimension: a dimension of 8 channels may have the factors 2 (groups) and 4.

    Attributes:
        size: number of entries, at least 2.
        axis: the axis of the stored array; None if the value does not depend on it.
    """

    size: int
    axis: int | None


Dimensions = tuple[tuple[Factor, ...], ...]
Position = tuple[int, int]  # number of a dimension, number of one of its factors


@dataclass(frozen=True)
class Value:
    """A value that is stored with another order of its axes.

    Attributes:
        array: one axis for each factor that the value depends on, in any order.
        dimensions: for each dimension its factors, the slowest first; none for a dimension of size 1.
    """

    array: Array
    dimensions: Dimensions

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the dimensions."""
        return tuple(math.prod(factor.size for factor in factors) for factors in self.dimensions)

    @property
    def sizes(self) -> list[list[int]]:
        """The sizes of the factors of each dimension."""
        return [[factor.size for factor in factors] for factors in self.dimensions]

    def stored(self) -> list[Position]:
        """The positions of the factors that the value depends on, in the order of the axes."""
        axes = {factor.axis: (d, j) for d, factors in enumerate(self.dimensions) for j, factor in enumerate(factors)}
        return [axes[axis] for axis in range(self.array.ndim)]

    def split(self, sizes: Sequence[Sequence[int]]) -> "Value":
        """The value with factors of these sizes, of which the present factors are products."""
        parts = [parts_of(factors, wanted) for factors, wanted in zip(self.dimensions, sizes, strict=True)]
        of_axis = {factor.axis: part for factors, of_dimension in zip(self.dimensions, parts, strict=True)
                   for factor, part in zip(factors, of_dimension, strict=True)}
        shape: list[int] = []
        first: dict[int | None, int] = {}
        for axis in range(self.array.ndim):
            first[axis] = len(shape)
            shape += of_axis[axis]
        dimensions = tuple(
            tuple(Factor(size, None if factor.axis is None else first[factor.axis] + i)
                  for factor, part in zip(factors, of_dimension, strict=True) for i, size in enumerate(part))
            for factors, of_dimension in zip(self.dimensions, parts, strict=True))
        return Value(_reshape(self.array, shape), dimensions)

    def arrange(self, positions: Sequence[Position]) -> Array:
        """The array with these factors as its axes; all factors that the value depends on must be among them."""
        factors = [self.dimensions[d][j] for d, j in positions]
        axes = [factor.axis for factor in factors if factor.axis is not None]
        array = self.array if axes == sorted(axes) else jnp.transpose(self.array, axes)
        if len(axes) == len(factors):
            return array
        return lax.broadcast_in_dim(array, [factor.size for factor in factors],
                                    [i for i, factor in enumerate(factors) if factor.axis is not None])

    def order(self) -> list[int]:
        """The dimensions in the order of their first axes; those without an axis first."""
        def first(d: int) -> int:
            return min((factor.axis for factor in self.dimensions[d] if factor.axis is not None), default=-1)

        return sorted(range(len(self.dimensions)), key=first)

    def in_order(self, order: Sequence[int]) -> Array:
        """The array with one axis for each dimension, in this order."""
        array = self.arrange([(d, j) for d in order for j in range(len(self.dimensions[d]))])
        return _reshape(array, [self.shape[d] for d in order])

    def plain(self) -> Array:
        """The array with the dimensions as its axes."""
        return self.in_order(range(len(self.dimensions)))


def _reshape(array: Array, shape: Sequence[int]) -> Array:
    return array if list(array.shape) == list(shape) else lax.reshape(array, tuple(shape))


def parts_of(factors: Sequence[Factor], sizes: Sequence[int]) -> list[list[int]]:
    """The sizes, divided into those of each factor."""
    parts, remaining = [], iter(sizes)
    for factor in factors:
        part: list[int] = []
        while math.prod(part) < factor.size:
            part.append(next(remaining))
        parts.append(part)
    return parts


def common_sizes(*sizes: Sequence[int]) -> list[int] | None:
    """The largest sizes of factors into which all of these can be split, or None if there are none."""
    ends = sorted({1, *(math.prod(of_value[i:]) for of_value in sizes for i in range(len(of_value)))})
    if any(b % a for a, b in pairwise(ends)):
        return None
    return [b // a for a, b in pairwise(ends)][::-1]


def from_order(array: Array, order: Sequence[int]) -> Value:
    """The value whose dimensions ``order`` are the axes of the array."""
    axes = iter(range(array.ndim))
    factors = {d: (Factor(size, next(axes)),) if size > 1 else () for d, size in zip(order, array.shape, strict=True)}
    return Value(_reshape(array, [n for n in array.shape if n > 1]), tuple(factors[d] for d in range(len(order))))


def as_value(x: Any) -> Value:
    """An array, or a value as it is."""
    return x if isinstance(x, Value) else from_order(jnp.asarray(x), range(np.ndim(x)))


def plain(values: Iterable[Any]) -> list[Any]:
    """The values as arrays with their dimensions as axes."""
    return [x.plain() if hasattr(x, "plain") else x for x in values]


def inverse(order: Sequence[int]) -> list[int]:
    """The inverse of a permutation."""
    return [int(i) for i in np.argsort(order)]
