r"""FedMix's objectives as a problem whose minimiser is known, so that methods on them can be told by their gap.

.. code-block:: text

    f~(w) = sum_k lambda_k f_k(alpha w + (1 - alpha) x_k),   x_k = argmin f_k

The preset ``fedmix`` makes any algorithm work on these objectives; here they are the problem, and the algorithm is
itself. Quadratics stay quadratics: f~_k = alpha^2 f_k + (1 - alpha^2) min f_k, with the minimiser of alpha = 1.
Source: FedMix poster, (FedMix).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from resolvent.errors import InputError
from resolvent.math import centres, tree
from resolvent.math.tree import Vector
from resolvent.problem.maps import Mixture, through
from resolvent.problem.oracle import Oracle
from resolvent.problem.problem import Problem, QuadraticProblem, SolvedProblem
from resolvent.problem.solvers.lbfgs import lbfgs

__all__ = ["MixedProblem", "mixed"]

_STEPS = 3000  # of L-BFGS, to a minimiser


class MixedProblem(SolvedProblem):
    """The objectives f_k(alpha w + (1 - alpha) x_k), with the minimiser for weights by size.

    Args:
        inner: the problem of the f_k, each with one minimiser.
        alpha: the share of the shared model, in (0, 1]; 1 is the problem itself.

    Raises:
        InputError: a minimiser is not found: an objective has none, or the precision is too low.
    """

    inner: Problem
    alpha: float
    own: Vector
    minimiser: Vector

    def __init__(self, inner: Problem, alpha: float = 1.0) -> None:
        if not 0 < alpha <= 1:
            raise InputError(f"alpha={alpha} must lie in (0, 1]: with alpha = 0 every model is a minimiser")
        self.inner, self.alpha, self.sizes = inner, alpha, inner.sizes
        self.splits, self.score_name, self.higher_is_better = inner.splits, inner.score_name, inner.higher_is_better
        tolerance = 1e-9 if jnp.zeros(()).dtype == jnp.float64 else 1e-4
        w0 = inner.init(jax.random.key(0))
        self.own = tree.stack(w0, inner.parties)
        if alpha < 1:
            self.own, left = _own_minimisers(inner, w0, tolerance, _STEPS)
            _check(float(jnp.max(left)), tolerance, f"objective f_{int(jnp.argmax(left))}")
        self.minimiser, rest = _minimiser(self, w0, tolerance, _STEPS)
        _check(float(rest), tolerance, "mixed objective")

    def init(self, key: Array) -> Vector:
        """As the problem of the f_k."""
        return self.inner.init(key)

    def oracle(self, k: Int[Array, ""]) -> Oracle:
        """f_k(alpha w + (1 - alpha) x_k)."""
        return through(self.inner.oracle(k), self._mixture(k))

    def split_sizes(self, split: int) -> Int[Array, " N"]:
        """As the problem of the f_k."""
        return self.inner.split_sizes(split)

    def evaluate(self, w: Vector, k: Int[Array, ""], split: Int[Array, ""]) -> tuple[Array, Array]:
        """Loss and score of the party's mixture."""
        return self.inner.evaluate(tree.lerp(tree.rows(self.own, k), w, self.alpha), k, split)

    def optimum(self, shares: Float[Array, " N"]) -> Vector:
        """The minimiser for weights by size, found when the problem was made."""
        return self.minimiser

    def gap(self, w: Vector, shares: Float[Array, " N"]) -> Float[Array, ""]:
        """f~(w) - f~*, as the parties' divergences from the minimiser; for weights by size, whatever the shares."""
        def divergence(k: Array) -> Array:
            f = self.oracle(k)
            slope = tree.full_dot(f.grad(self.minimiser), tree.sub(w, self.minimiser))
            return f.value(w) - f.value(self.minimiser) - slope

        weights = self.sizes / jnp.sum(self.sizes)
        apart: Array = jax.lax.map(divergence, jnp.arange(self.parties))
        return jnp.maximum(weights.astype(apart.dtype) @ apart, 0)

    def _mixture(self, k: Int[Array, ""]) -> Mixture:
        return Mixture(self.alpha, tree.rows(self.own, k))


def mixed(problem: Problem, alpha: float) -> SolvedProblem:
    """FedMix's objectives of a problem: of a quadratic one in closed form, else a ``MixedProblem``.

    Raises:
        InputError: an alpha outside of (0, 1], or an objective without a single minimiser.
    """
    if not isinstance(problem, QuadraticProblem):
        return MixedProblem(problem, alpha)
    if not 0 < alpha <= 1:
        raise InputError(f"alpha={alpha} must lie in (0, 1]: with alpha = 0 every model is a minimiser")
    own = jax.vmap(lambda h, g: jax.scipy.linalg.solve(h, g, assume_a="pos"))(problem.hessians, problem.linears)
    if alpha < 1 and not bool(jnp.all(jnp.isfinite(own))):
        raise InputError(f"alpha={alpha} needs parties with one minimiser each, and some have none: give them at "
                         "least as many samples as there are features")
    least = problem.constants - jnp.einsum("kd,kd->k", own, problem.linears) / 2
    constants = problem.constants if alpha == 1 else alpha**2 * problem.constants + (1 - alpha**2) * least
    return QuadraticProblem(alpha**2 * problem.hessians, alpha**2 * problem.linears, constants, problem.sizes)


@jax.jit
def _own_minimisers(problem: Problem, w0: Vector, tolerance: float, steps: int) -> tuple[Vector, Float[Array, " N"]]:
    """The parties' x_k, and the norms of their gradients there."""
    def of_party(k: Array) -> tuple[Vector, Array]:
        f = problem.oracle(k)
        return lbfgs(f.value, f.grad, w0, steps=steps, tolerance=tolerance)[:2]

    found: tuple[Vector, Array] = jax.lax.map(of_party, jnp.arange(problem.parties))
    return found


@jax.jit
def _minimiser(problem: Problem, w0: Vector, tolerance: float, steps: int) -> tuple[Vector, Float[Array, ""]]:
    """The minimiser of the mean by size, and the norm of the gradient there."""
    weights, everyone = (problem.sizes / jnp.sum(problem.sizes)).astype(tree.dtype(w0)), jnp.arange(problem.parties)

    def value(w: Vector) -> Array:
        of_party: Array = jax.lax.map(lambda k: problem.oracle(k).value(w), everyone)
        return weights @ of_party

    def grad(w: Vector) -> Vector:
        return centres.mean(jax.lax.map(lambda k: problem.oracle(k).grad(w), everyone), weights)

    return lbfgs(value, grad, w0, steps=steps, tolerance=tolerance)[:2]


def _check(left: float, tolerance: float, what: str) -> None:
    if not left <= 100 * tolerance:
        raise InputError(f"no minimiser of the {what} was found (its gradient's norm is still {left:.2g}): give the "
                         "model a positive l2, and the experiment precision: float64")
