"""Forms of depthwise convolutions: each feature has filters of its own."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from resolvent.xla.rewrites.convolutions.geometry import MAX_TERMS, Convolution, Convolve, strided

__all__ = ["depthwise", "depthwise_filter_gradient"]


def depthwise(lhs: Float[Array, "B ... G"], rhs: Float[Array, "... 1 F"], geometry: Convolution,
              convolve: Convolve) -> Array | None:
    """A sum over the entries of the window."""
    if geometry.groups == 1 or rhs.shape[-2] != 1 or np.prod(rhs.shape[:-2]) > MAX_TERMS:
        return None
    sizes, padded, terms = geometry.output_sizes(lhs, rhs), geometry.pad(lhs), []
    for tap in np.ndindex(*rhs.shape[:-2]):
        first = [t * dilation for t, dilation in zip(tap, geometry.rhs_dilation, strict=True)]
        window = strided(padded, first, sizes, geometry.strides)
        terms.append(jnp.repeat(window, rhs.shape[-1] // geometry.groups, axis=-1) * rhs[tap][0])
    return sum(terms[1:], terms[0])


def depthwise_filter_gradient(lhs: Float[Array, "G ... B"], rhs: Float[Array, "... B F"], geometry: Convolution,
                              convolve: Convolve) -> Array | None:
    """The gradient by the filter: for each output position, a sum over batch and pixels."""
    positions = geometry.output_sizes(lhs, rhs)
    if (geometry.batch_groups == 1 or len(lhs) != geometry.batch_groups or set(geometry.lhs_dilation) != {1}
            or np.prod(positions) > MAX_TERMS):
        return None
    padded, sums = geometry.pad(lhs), []
    for position in np.ndindex(*positions):
        first = [p * stride for p, stride in zip(position, geometry.strides, strict=True)]
        window = jnp.moveaxis(strided(padded, first, rhs.shape[:-2], geometry.rhs_dilation), 0, -1)
        products = jnp.repeat(window, rhs.shape[-1] // len(lhs), axis=-1) * rhs
        sums.append(jnp.sum(products, axis=tuple(range(rhs.ndim - 1))))
    return jnp.stack(sums).reshape(1, *positions, -1)
