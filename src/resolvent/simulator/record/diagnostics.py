"""Measures of how much the parties differ, and of what an aggregation does to their losses."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from resolvent.math import centres, tree
from resolvent.math.tree import Vector
from resolvent.problem.problem import Problem, shares_by_size

LINE_POINTS = 11


class Dissimilarity(NamedTuple):
    """How much the parties' gradients differ at a point.

    Attributes:
        b: B(w) = sqrt(E |grad F_k|^2 / |grad f|^2), with expectations over shares n_k/n; 1 if all gradients are equal.
            Source: FedProx, Definition 3.
        gradient_variance: E |grad F_k - grad f|^2. Source: FedProx, Figure 2 and Corollary 10.
        heterogeneity: mean of |grad f_k|^2 with equal weights; at a minimiser of the average loss it is H of the
            operator-splitting paper (A.1).
    """

    b: Float[Array, ""]
    gradient_variance: Float[Array, ""]
    heterogeneity: Float[Array, ""]


@jax.jit
def dissimilarity(problem: Problem, w: Vector) -> Dissimilarity:
    """The dissimilarity of the parties' gradients at ``w``."""
    shares = shares_by_size(problem.sizes)
    grads = jax.lax.map(lambda k: problem.oracle(k).grad(w), jnp.arange(problem.parties))
    mean = centres.mean(grads, shares)
    squares = jax.vmap(lambda g: tree.norm(g) ** 2)(grads)
    variance = shares @ jax.vmap(lambda g: tree.norm(tree.sub(g, mean)) ** 2)(grads)
    second_moment, square_of_mean = shares @ squares, tree.norm(mean) ** 2
    # Where every gradient vanishes all parties agree, and B is 1 by definition (FedProx, footnote 2).
    b = jnp.where(second_moment > 0, jnp.sqrt(second_moment / square_of_mean), 1)
    return Dissimilarity(b, variance, jnp.mean(squares))


@jax.jit
def loss_along_line(problem: Problem, models: Vector, shared: Vector, index: Int[Array, " C"],
                    split: Int[Array, ""]) -> Float[Array, "C points"]:
    """The loss of party index[i] along the line (1 - s) models[i] + s shared, s from 0 to 1. Source: Fed+, Figure 3."""
    steps = jnp.linspace(0, 1, LINE_POINTS)

    def of_party(args: tuple[Vector, Array]) -> Array:
        model, k = args
        losses: Array = jax.lax.map(lambda s: problem.evaluate_party(tree.lerp(model, shared, s), k, split)[0], steps)
        return losses

    losses: Array = jax.lax.map(of_party, (models, index))
    return losses
