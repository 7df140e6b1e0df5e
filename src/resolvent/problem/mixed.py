"""FedMix's objectives as a problem with a known minimiser, so that algorithms on them have an optimality gap.

.. code-block:: text

    f~(w) = sum_k lambda_k f_k(alpha w + (1 - alpha) x_k),   x_k = argmin f_k

The preset ``fedmix`` makes any algorithm work on these objectives. Here they are the problem, and the algorithm is used
as it is. Quadratics stay quadratic: f~_k = alpha^2 f_k + (1 - alpha^2) min f_k, with the same minimiser as for alpha =
1.
Source: FedMix poster, (FedMix).
"""

from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from typing_extensions import override

from resolvent.arguments import checked
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.maps import Mixture, through
from resolvent.problem.oracle import Oracle
from resolvent.problem.problem import Problem, SolvedProblem, shares_by_size
from resolvent.problem.quadratic import QuadraticProblem
from resolvent.problem.solvers.lbfgs import lbfgs, pooled_optimum

_MAX_STEPS = 3000  # steps of L-BFGS for one minimiser


class MixedProblem(SolvedProblem):
    """The objectives f_k(alpha w + (1 - alpha) x_k), with the minimiser for shares by size.

    Args:
        inner: the problem of the f_k, each with a unique minimiser.
        alpha: FedMix's alpha, in (0, 1]; 1 is the inner problem.

    Attributes:
        optima: leaves [N, ...], the minimisers x_k.
    """

    inner: Problem
    alpha: float
    optima: Vector
    minimiser: Vector

    def __init__(self, inner: Problem, alpha: Annotated[float, "(0, 1]"] = 1.0) -> None:
        self.inner, self.alpha, self.sizes = inner, alpha, inner.sizes
        self.splits, self.score_name, self.higher_is_better = inner.splits, inner.score_name, inner.higher_is_better
        tolerance = 1e-9 if jnp.result_type(float) == jnp.float64 else 1e-4
        w0 = inner.init(jax.random.key(0))
        self.optima = tree.stack(w0, inner.parties)
        if alpha < 1:
            self.optima, residuals = _party_minimisers(inner, w0, tolerance, _MAX_STEPS)
            _check_converged(float(jnp.max(residuals)), tolerance, f"objective f_{int(jnp.argmax(residuals))}")
        self.minimiser, residual, _ = pooled_optimum(self, w0, tolerance, _MAX_STEPS)
        _check_converged(float(residual), tolerance, "mixed objective")

    @override
    def init(self, key: Array) -> Vector:
        return self.inner.init(key)

    @override
    def oracle(self, k: Int[Array, ""]) -> Oracle:
        return through(self.inner.oracle(k), Mixture(self.alpha, tree.rows(self.optima, k)))

    @override
    def split_sizes(self, split: int) -> Int[Array, " N"]:
        return self.inner.split_sizes(split)

    @override
    def evaluate_party(self, w: Vector, k: Int[Array, ""], split: Int[Array, ""]) -> tuple[Array, Array]:
        """Loss and score of the party's mixture alpha w + (1 - alpha) x_k."""
        return self.inner.evaluate_party(tree.lerp(tree.rows(self.optima, k), w, self.alpha), k, split)

    @override
    def report(self, w: Vector, k: Int[Array, ""], split: Int[Array, ""]) -> dict[str, Array]:
        return self.inner.report(tree.lerp(tree.rows(self.optima, k), w, self.alpha), k, split)

    @override
    def optimum(self, shares: Float[Array, " N"]) -> Vector:
        """The minimiser for shares by size, whatever ``shares`` are, computed on construction."""
        return self.minimiser

    @override
    def gap(self, w: Vector, shares: Float[Array, " N"]) -> Float[Array, ""]:
        """f~(w) - f~* for shares by size, whatever ``shares`` are, as a sum of Bregman divergences from the
        minimiser.
        """
        def divergence(k: Array) -> Array:
            f = self.oracle(k)
            slope = tree.full_dot(f.grad(self.minimiser), tree.sub(w, self.minimiser))
            return f.value(w) - f.value(self.minimiser) - slope

        divergences: Array = jax.lax.map(divergence, jnp.arange(self.parties))
        return jnp.maximum(shares_by_size(self.sizes).astype(divergences.dtype) @ divergences, 0)


@checked
def mixed(problem: Problem, alpha: Annotated[float, "(0, 1]"]) -> SolvedProblem:
    """FedMix's objectives of a problem: a quadratic problem for a quadratic one, else a ``MixedProblem``."""
    if not isinstance(problem, QuadraticProblem):
        return MixedProblem(problem, alpha)
    optima = jax.vmap(lambda h, g: jax.scipy.linalg.solve(h, g, assume_a="pos"))(problem.hessians, problem.linears)
    if alpha < 1 and not bool(jnp.all(jnp.isfinite(optima))):
        raise InputError(f"alpha={alpha} needs a unique minimiser of each party's objective, which some do not have: "
                         "give each party at least as many samples as there are features")
    minima = problem.constants - jnp.einsum("kd,kd->k", optima, problem.linears) / 2
    constants = problem.constants if alpha == 1 else alpha**2 * problem.constants + (1 - alpha**2) * minima
    return QuadraticProblem(alpha**2 * problem.hessians, alpha**2 * problem.linears, constants, problem.sizes)


@jax.jit
def _party_minimisers(problem: Problem, w0: Vector, tolerance: float, steps: int) -> tuple[Vector, Float[Array, " N"]]:
    """The minimisers x_k of all parties, leaves [N, ...], and the norms of the gradients at them."""
    def minimise(k: Array) -> tuple[Vector, Array]:
        f = problem.oracle(k)
        return lbfgs(f.value, f.grad, w0, steps=steps, tolerance=tolerance)[:2]

    minimisers: tuple[Vector, Array] = jax.lax.map(minimise, jnp.arange(problem.parties))
    return minimisers


def _check_converged(residual: float, tolerance: float, title: str) -> None:
    if not residual <= 100 * tolerance:
        raise InputError(f"no minimiser of the {title} was found (the norm of its gradient is still {residual:.2g}): "
                         "set a positive l2 for the model, and precision: float64 for the experiment")
