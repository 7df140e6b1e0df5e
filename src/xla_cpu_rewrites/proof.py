"""One comparison of rewritten programs with the original ones, in versions of JAX with which the tests were not run."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_TOLERANCE = 1e-4  # of the largest entry: both programs compute in float32
_OPERATIONS = frozenset(["conv_general_dilated", "reduce_window_max", "select_and_scatter_add"])


def obstacle_to_rewriting(rewrite: Callable[..., Any], operations: Callable[..., set[str]]) -> str:
    """Why rewriting cannot be used; empty if the gradient of a small network is rewritten and stays the same.

    Args:
        operations: maps a function and its arguments to the names of the operations that are replaced.
    """
    draw = np.random.default_rng(0).normal
    params = {"filters": jnp.asarray(draw(size=(3, 3, 2, 4)), jnp.float32),
              "recurrent": jnp.asarray(draw(size=(4, 4)), jnp.float32)}
    x = jnp.asarray(draw(size=(5, 8, 8, 2)), jnp.float32)
    gradient = jax.value_and_grad(_loss)
    try:
        if missing := _OPERATIONS - operations(gradient, params, x):
            return f"operations are not recognised: {', '.join(sorted(missing))}"
        results = jax.jit(lambda *args: (gradient(*args), rewrite(gradient)(*args)))(params, x)
    except Exception as error:  # whatever the other version changed: the original programs run, and the caller warns
        return f"rewriting fails: {type(error).__name__}: {str(error)[:200]}"
    plain, rewritten = ([np.asarray(leaf) for leaf in jax.tree.leaves(result)] for result in results)
    agree = all(np.abs(a - b).max() <= _TOLERANCE * np.abs(a).max() for a, b in zip(plain, rewritten, strict=True))
    return "" if agree else "rewritten programs and the original ones differ"


def _loss(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """A convolution, pooling, and a recurrent layer over the rows of the picture."""
    h = jax.lax.conv_general_dilated(x, params["filters"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    h = jax.lax.reduce_window(jnp.tanh(h), -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    def step(state: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = jnp.tanh(state @ params["recurrent"] + row)
        return state, state

    last, states = jax.lax.scan(step, jnp.zeros((5, 4), h.dtype), jnp.moveaxis(h.sum(axis=2), 1, 0))
    return jnp.sum(last**2) + jnp.sum(states)
