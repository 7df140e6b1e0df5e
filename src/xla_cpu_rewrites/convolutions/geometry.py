"""The geometry of a convolution in the order NHWC, HWIO, which all forms share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, TypeAlias

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

NUMBERS = {1: ("NWC", "WIO", "NWC"), 2: ("NHWC", "HWIO", "NHWC"), 3: ("NDHWC", "DHWIO", "NDHWC")}
MAX_TERMS = 64  # terms of a sum that is written out


@dataclass(frozen=True)
class Convolution:
    """A convolution of lhs [batch, *spatial, features] with rhs [*spatial, features / groups, filters].

    Attributes:
        batch_groups: number of groups of the batch, each with filters of its own; more than one in filter gradients.
        strides: strides of the windows, for each spatial axis.
        padding: numbers of zeros before and after each spatial axis; negative numbers crop.
        lhs_dilation: 1 + number of zeros between adjacent entries of lhs.
        rhs_dilation: 1 + number of zeros between adjacent entries of rhs.
        params: further parameters of ``lax.conv_general_dilated``.
        is_winograd_product: whether it is a product of Winograd's form, to which this form is not applied again.
    """

    groups: int
    batch_groups: int
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    lhs_dilation: tuple[int, ...]
    rhs_dilation: tuple[int, ...]
    params: dict[str, Any]
    is_winograd_product: bool = False

    def output_sizes(self, lhs: Array, rhs: Array) -> list[int]:
        """The sizes of the spatial axes of the result."""
        return [(before + after + (size - 1) * inner + 1 - (window - 1) * outer - 1) // stride + 1
                for size, window, stride, (before, after), inner, outer in zip(
                    lhs.shape[1:-1], rhs.shape[:-2], self.strides, self.padding, self.lhs_dilation, self.rhs_dilation,
                    strict=True)]

    def pad(self, lhs: Array) -> Array:
        """The array with its padding and the zeros between its entries written out."""
        config = [(*pair, dilation - 1) for pair, dilation in zip(self.padding, self.lhs_dilation, strict=True)]
        return lax.pad(lhs, jnp.zeros((), lhs.dtype), [(0, 0, 0), *config, (0, 0, 0)])

    def pad_rows(self, lhs: Array) -> Array:
        """The same, by one loop along columns and features: XLA's loops along few features are slow."""
        if self.lhs_dilation[-1] > 1:
            return self.pad(lhs)
        features, (*padding, of_columns) = lhs.shape[-1], self.padding
        before, after = (n * features for n in of_columns)
        rows = replace(self, padding=(*padding, (before, after))).pad(lhs.reshape(*lhs.shape[:-2], -1, 1))
        return rows.reshape(*rows.shape[:-2], -1, features)

    def unpadded(self, axes: Sequence[bool]) -> "Convolution":
        """The convolution without padding and dilation of lhs along the axes for which ``axes`` is true."""
        return replace(self, padding=choose(axes, (0, 0), self.padding),
                       lhs_dilation=choose(axes, 1, self.lhs_dilation))


Convolve: TypeAlias = Callable[[Array, Array, Convolution], Array]
# A form computes a convolution, possibly by another one, which its last argument computes by the form for its shape;
# or returns None: it is not for these shapes.
Form: TypeAlias = Callable[[Array, Array, Convolution, Convolve], Array | None]


def choose(conditions: Sequence[bool], value: Any, others: Sequence[Any]) -> tuple[Any, ...]:
    """The value for each axis whose condition is true, and the other values for the others."""
    return tuple(value if condition else other for condition, other in zip(conditions, others, strict=True))


def add_terms(terms: Sequence[Array]) -> Array:
    """Their sum, by two sums of which neither waits for the other's additions."""
    return reduce(jnp.add, [reduce(jnp.add, terms[n::2]) for n in range(min(2, len(terms)))])


def strided(x: Array, first: Sequence[int], sizes: Sequence[int], strides: Sequence[int]) -> Array:
    """Entries first, first + stride, ... of each spatial axis, ``sizes`` of them."""
    limits = [f + (size - 1) * stride + 1 for f, size, stride in zip(first, sizes, strides, strict=True)]
    return lax.slice(x, (0, *first, 0), (len(x), *limits, x.shape[-1]), (1, *strides, 1))
