"""Convolutions in the one form that XLA's CPU backend computes with a library: NHWC, HWIO, without reversed windows.

XLA brings convolutions outside of loops into this form, but not those inside of loops: these run as plain nested loops
and take 10 to 50 times as long. The gradients of a convolution are convolutions as well, with batch and channels
exchanged or with dilated operands, so the same rule holds for them.

``FORMS`` are tried in order. A new form is a function in a file of this folder, an entry there, and an example in the
tests.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from xla_cpu_rewrites.convolutions.depth import depth_as_features
from xla_cpu_rewrites.convolutions.depthwise import depthwise, depthwise_filter_gradient
from xla_cpu_rewrites.convolutions.dilation import phases, phases_as_samples, strided_slices
from xla_cpu_rewrites.convolutions.few_filters import columns_with_features, few_filters
from xla_cpu_rewrites.convolutions.geometry import NUMBERS, Convolution, Convolve, Form
from xla_cpu_rewrites.convolutions.groups import (
    batch_groups,
    blocks_of_groups,
    few_features,
    sums_by_filter,
    sums_for_filters,
)
from xla_cpu_rewrites.convolutions.positions import few_positions, parts_of_samples, products_of_samples
from xla_cpu_rewrites.convolutions.winograd import (
    winograd,
    winograd_filter_gradient,
    winograd_filter_gradient_of_phases,
    winograd_products_of_samples,
)
from xla_cpu_rewrites.deferred import Program
from xla_cpu_rewrites.small_call import no_inline
from xla_cpu_rewrites.values import inverse


def library(lhs: Array, rhs: Array, geometry: Convolution, convolve: Convolve) -> Array:
    """The library's convolution, which is faster for two spatial axes than for one."""
    if len(geometry.strides) == 1 and len(rhs) > 1:
        image = Convolution(geometry.groups, geometry.batch_groups, (1, *geometry.strides), ((0, 0), *geometry.padding),
                            (1, *geometry.lhs_dilation), (1, *geometry.rhs_dilation), geometry.params)
        return library(lhs[:, None], rhs[None], image, convolve)[:, 0]
    return lax.conv_general_dilated(
        lhs, rhs, geometry.strides, geometry.padding, geometry.lhs_dilation, geometry.rhs_dilation,
        NUMBERS[len(geometry.strides)], feature_group_count=geometry.groups, **geometry.params)


FORMS: tuple[Form, ...] = (winograd_filter_gradient_of_phases, few_positions, strided_slices, phases,
                           depthwise_filter_gradient, sums_by_filter, batch_groups, depthwise, sums_for_filters,
                           few_features, blocks_of_groups, winograd_products_of_samples, parts_of_samples, winograd,
                           winograd_filter_gradient, depth_as_features, products_of_samples, phases_as_samples,
                           columns_with_features, few_filters, library)


def convolve(lhs: Array, rhs: Array, geometry: Convolution) -> Array:
    """[batch, *spatial, filters], by the first form for these shapes."""
    return next(out for form in FORMS if (out := form(lhs, rhs, geometry, convolve)) is not None)


def convolution(lhs: Any, rhs: Any, *, window_strides: Sequence[int], padding: Sequence[tuple[int, int]],
                lhs_dilation: Sequence[int], rhs_dilation: Sequence[int], dimension_numbers: Any,
                feature_group_count: int, batch_group_count: int, **params: Any) -> Program | None:
    """The rule of ``conv_general_dilated`` with one to three spatial dimensions, in float32 or float64."""
    is_supported = len(window_strides) in NUMBERS and lhs.dtype == rhs.dtype and lhs.dtype in (np.float32, np.float64)
    if not is_supported or 0 in (*lhs.shape, *rhs.shape):
        return None
    lhs_spec, rhs_spec, out_spec = dimension_numbers
    geometry = Convolution(feature_group_count, batch_group_count, tuple(window_strides), tuple(padding),
                           tuple(lhs_dilation), tuple(rhs_dilation), params)

    def program(lhs: Array, rhs: Array) -> Array:
        lhs = jnp.transpose(lhs, (lhs_spec[0], *lhs_spec[2:], lhs_spec[1]))
        rhs = jnp.transpose(rhs, (*rhs_spec[2:], rhs_spec[1], rhs_spec[0]))
        out = convolve(lhs, rhs, geometry)
        return jnp.transpose(out, inverse((out_spec[0], *out_spec[2:], out_spec[1])))

    # A call, because XLA would compute the operands again, up to the convolutions of earlier layers, in its transposes.
    return no_inline(program)
