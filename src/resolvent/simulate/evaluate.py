"""Evaluation of models on every party's samples, and the measures of how much parties differ.

None of this depends on the algorithm, so each function is compiled once for all methods of a comparison.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from resolvent.algorithms.algorithm import Algorithm, PartyState
from resolvent.algorithms.participation import Full
from resolvent.math import centres, tree
from resolvent.math.tree import Vector
from resolvent.problem.problem import Problem
from resolvent.problem.solvers.lbfgs import lbfgs
from resolvent.simulate.engine import Federation

__all__ = [
    "Dissimilarity",
    "deployed",
    "dissimilarity",
    "evaluate",
    "evaluate_splits",
    "line",
    "pooled_optimum",
    "uses_shared_model",
]


@jax.jit
def deployed(algorithm: Algorithm, problem: Problem, state: Federation, index: Int[Array, " M"]) -> Vector:
    """The models that parties ``index`` would use now: leaves [M, ...]."""
    model_message = algorithm.model_message

    def of_party(k: Array) -> Vector:
        row: PartyState = tree.rows(state.parties, problem.row(k))
        return algorithm.personal_model(row, model_message(state.server, k), problem.oracle(k))

    return jax.vmap(of_party)(index)


@jax.jit
def evaluate(problem: Problem, models: Vector, which: Int[Array, " M"], index: Int[Array, " M"],
             split: Int[Array, ""]) -> tuple[Float[Array, " M"], Float[Array, " M"]]:
    """Mean loss and mean score of model which[i] on party index[i]'s samples of a split; nan where there are none."""
    def of_party(args: tuple[Array, Array]) -> tuple[Array, Array]:
        i, k = args
        return problem.evaluate_party(tree.rows(models, i), k, split)

    result: tuple[Array, Array] = jax.lax.map(of_party, (which, index))
    return result


@jax.jit
def evaluate_splits(problem: Problem, models: Vector,
                    index: Int[Array, " M"]) -> tuple[Float[Array, "M splits"], Float[Array, "M splits"]]:
    """Mean loss and mean score of model i on party index[i]'s samples of every split; nan where there are none.

    One call, and one wait, for an evaluation.
    """
    splits = jnp.arange(len(problem.splits))

    def of_party(args: tuple[Vector, Array]) -> tuple[Array, Array]:
        model, k = args
        result: tuple[Array, Array] = jax.lax.map(lambda split: problem.evaluate_party(model, k, split), splits)
        return result

    result: tuple[Array, Array] = jax.lax.map(of_party, (models, index))
    return result


def uses_shared_model(algorithm: Algorithm, problem: Problem, state: Federation) -> bool:
    """Whether the model that a party deploys is, for every party, the server's own: then one evaluation serves both.

    Told from a trace: what ``deploy`` returns are the very values that ``server_model`` returns.
    """
    found: list[bool] = []

    def trace(server: PyTree[Any], row: PartyState, k: Array) -> tuple[()]:
        shared = jax.tree.leaves(algorithm.server_model(server))
        own = jax.tree.leaves(algorithm.personal_model(row, algorithm.model_message(server, k), problem.oracle(k)))
        found.append(bool(shared) and len(own) == len(shared) and all(
            a is b for a, b in zip(own, shared, strict=True)))
        return ()

    jax.eval_shape(trace, state.server, tree.rows(state.parties, 0), jnp.array(0))
    return found[0]


@partial(jax.jit, static_argnames=("points",))
def line(problem: Problem, local: Vector, shared: Vector, index: Int[Array, " C"], split: Int[Array, ""],
         *, points: int = 11) -> Float[Array, "C points"]:
    """Each party's loss along the line (1 - s) local + s shared, s from 0 to 1. Source: Fed+, Figure 3."""
    steps = jnp.linspace(0, 1, points)

    def of_party(args: tuple[Vector, Array]) -> Array:
        own, k = args
        losses: Array = jax.lax.map(lambda s: problem.evaluate_party(tree.lerp(own, shared, s), k, split)[0], steps)
        return losses

    result: Array = jax.lax.map(of_party, (local, index))
    return result


class Dissimilarity(NamedTuple):
    """How much the parties' gradients differ at one point.

    Attributes:
        b: B(w) = sqrt(E |grad F_k|^2 / |grad f|^2), 1 where all agree. Source: FedProx, Definition 3.
        gradient_variance: E |grad F_k - grad f|^2. Source: FedProx, Figure 2 and Corollary 10.
        heterogeneity: mean of |grad f_k|^2 with equal weights; at a minimiser of the average loss it is H of the
            operator-splitting paper (A.1).
    """

    b: Float[Array, ""]
    gradient_variance: Float[Array, ""]
    heterogeneity: Float[Array, ""]


@jax.jit
def dissimilarity(problem: Problem, w: Vector) -> Dissimilarity:
    """Measure the parties' dissimilarity at ``w``; expectations are with masses n_k/n."""
    weights = Full().shares(problem.sizes)
    grads = jax.lax.map(lambda k: problem.oracle(k).grad(w), jnp.arange(problem.parties))
    mean = centres.mean(grads, weights)
    squares = jax.vmap(lambda g: tree.norm(g) ** 2)(grads)
    spread = weights @ jax.vmap(lambda g: tree.norm(tree.sub(g, mean)) ** 2)(grads)
    second, of_mean = weights @ squares, tree.norm(mean) ** 2
    # Where every gradient vanishes all parties agree, and B is 1 by definition (FedProx, footnote 2).
    b = jnp.where(second > 0, jnp.sqrt(second / of_mean), 1)
    return Dissimilarity(b, spread, jnp.mean(squares))


@partial(jax.jit, static_argnames=("max_iterations",))
def pooled_optimum(problem: Problem, w: Vector, *, tolerance: float = 1e-6,
                   max_iterations: int = 500) -> tuple[Vector, Float[Array, ""], Int[Array, ""]]:
    """A minimiser of the average loss sum_k lambda_k f_k, by L-BFGS from ``w``.

    Returns:
        The point, the norm of the gradient there and the number of iterations: the caller judges whether it converged.
    """
    weights = Full().shares(problem.sizes)
    everyone = jnp.arange(problem.parties)

    def value(v: Vector) -> Array:
        losses: Array = jax.lax.map(lambda k: problem.oracle(k).value(v), everyone)
        return weights @ losses

    def grad(v: Vector) -> Vector:
        return centres.mean(jax.lax.map(lambda k: problem.oracle(k).grad(v), everyone), weights)

    return lbfgs(value, grad, w, steps=max_iterations, tolerance=tolerance)
