"""Reductions over pixels and over the features of a group, as in group normalisation: first over the pixels.

XLA makes one loop of both, which adds the few features of a group one after the other.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from resolvent.xla.rewrites.deferred import Program, Rule

_barrier: Callable[[Array], Array] = lax.optimization_barrier  # a typed name: JAX's function has no types
_MIN_SIZE = 1024  # up to this size, XLA compiles a reduction into the loop around it


def _in_steps(reduce: Callable[..., Array]) -> Rule:
    """The rule of a reduction over the last axes and over others that are not next to them."""
    def rule(operand: Any, *, axes: tuple[int, ...], **_: Any) -> Program | None:
        fast = tuple(axis for axis in axes if {*range(axis, operand.ndim)} <= {*axes})
        slow = tuple(axis for axis in axes if axis not in fast)
        if not (slow and fast) or operand.size <= _MIN_SIZE or not np.issubdtype(operand.dtype, np.floating):
            return None

        def program(x: Array) -> Array:
            # The slow axes first: it runs over adjacent numbers. Without a barrier XLA would join both reductions.
            first = _barrier(reduce(x, slow))
            return reduce(first, tuple(axis - len(slow) for axis in fast))

        return program

    return rule


sum_in_steps, max_in_steps, min_in_steps = (_in_steps(reduce) for reduce in (jnp.sum, jnp.max, jnp.min))
