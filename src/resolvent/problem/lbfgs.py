"""L-BFGS with a line search for functions that come with a gradient of their own."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.xla import loops

__all__ = ["lbfgs"]

State = tuple[Vector, Vector, Any, Array]


def lbfgs(value: Callable[[Vector], Array], grad: Callable[[Vector], Vector], start: Vector, *, steps: ArrayLike,
          tolerance: ArrayLike, memory: int = 10,
          cost: ArrayLike = 1) -> tuple[Vector, Float[Array, ""], Int[Array, ""]]:
    """Minimise by optax's L-BFGS: at most ``steps`` steps, until the gradient's norm is at most ``tolerance``.

    ``cost`` is that of a step, for queues (``math.loops``).

    Returns:
        The point, the norm of the gradient there and the number of steps: the caller judges whether it converged.
    """
    solver = optax.lbfgs(memory_size=memory)

    def both(v: Vector) -> Array:
        """``value`` as a function that reverse mode can differentiate, which a loop of dynamic length is not."""
        here = jax.lax.stop_gradient(v)
        return value(here) + tree.full_dot(jax.lax.stop_gradient(grad(here)), tree.sub(v, here))

    def go_on(state: State) -> Bool[Array, ""]:
        _, g, _, done = state
        return (tree.norm(g) > tolerance) & (done < steps)

    def step(state: State) -> State:
        v, g, kept, done = state
        update, kept = solver.update(g, kept, v, value=value(v), grad=g, value_fn=both)
        v = optax.apply_updates(v, update)
        return v, grad(v), kept, done + 1

    first = (start, grad(start), solver.init(start), jnp.array(0))
    v, g, _, done = loops.while_loop(go_on, step, first, work=cost * jnp.asarray(steps))
    return v, tree.norm(g), done
