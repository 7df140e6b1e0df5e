"""Shapes of results, from traces that are cached."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax


def shapes_of(function: Any, *args: Any) -> Any:
    """``jax.eval_shape``, which traces a method of an Equinox module once for each structure and shape in a process.

    Args:
        function: any function; traces of other functions than such methods are not cached, because they have no value
            by which to compare them.
    """
    if isinstance(function, eqx.Module):
        return _call.eval_shape(function, *args)  # type: ignore[no-untyped-call]
    return jax.eval_shape(function, *args)


@jax.jit
def _call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)
