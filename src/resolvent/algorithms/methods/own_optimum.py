"""A party's own optimum, and the curvature of its objective there."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float

from resolvent.algorithms.keys import substep_key
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers import LocalSolver
from resolvent.problem.subproblem import Subproblem

__all__ = ["curvature", "own_optimum"]


@jax.jit
def own_optimum(solver: LocalSolver, repeats: ArrayLike, w0: Vector, oracle: Oracle, key: Array) -> Vector:
    """x_k = argmin f_k, approximated by ``repeats`` consecutive runs of the solver from the first model."""
    def run(i: Array, x: Vector) -> Vector:
        return solver(Subproblem(oracle, x), x, substep_key(key, i), jnp.ones((), jnp.zeros(()).dtype))[0]

    optimum: Vector = jax.lax.fori_loop(0, repeats, run, w0)
    return optimum


class _PowerIteration(NamedTuple):
    """The loop state of the power iteration."""

    iteration: Array
    vector: Vector
    last_norm: Array
    norm: Array


@jax.jit
def curvature(oracle: Oracle, w: Vector, key: Array, *, tolerance: float = 1e-6,
              max_iterations: int = 1000) -> Float[Array, ""]:
    """The largest absolute eigenvalue of the Hessian at ``w``, by power iteration to a relative tolerance."""
    def apply_hessian(v: Vector) -> Vector:
        image: Vector = jax.jvp(oracle.grad, (w,), (v,))[1]
        return image

    def normalize(v: Vector) -> tuple[Vector, Array]:
        size = tree.norm(v)
        return jax.tree.map(lambda leaf: (leaf / jnp.where(size > 0, size, 1)).astype(leaf.dtype), v), size

    def iterate(carry: _PowerIteration) -> _PowerIteration:
        vector, norm = normalize(apply_hessian(carry.vector))
        return _PowerIteration(carry.iteration + 1, vector, carry.norm, norm)

    def changes(carry: _PowerIteration) -> Bool[Array, ""]:
        converged = jnp.abs(carry.norm - carry.last_norm) <= tolerance * carry.norm
        return (carry.iteration < max_iterations) & ~converged

    leaves, structure = jax.tree.flatten(w)
    start = jax.tree.unflatten(structure, [jax.random.normal(substep_key(key, i), leaf.shape, leaf.dtype)
                                           for i, leaf in enumerate(leaves)])
    unset = jnp.array(-1, tree.dtype(w))
    first = _PowerIteration(jnp.array(0), normalize(start)[0], unset, unset * 2)
    largest: Array = jax.lax.while_loop(changes, iterate, first).norm
    return largest
