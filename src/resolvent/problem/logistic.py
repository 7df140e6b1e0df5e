"""Sums of logistic losses with a known minimiser: the second convex problem of the operator-splitting paper."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree
from numpy.typing import NDArray
from typing_extensions import override

from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.problem import SolvedProblem


class LogisticOracle(Oracle):
    """f_k(w) = sum_j log(1 + exp(-b_j a_j'w)) + l2/2 |w|^2: a sum over samples, not a mean.

    Attributes:
        rows: [n, d] the b_j a_j.
        l2: the weight of |w|^2 / 2.
    """

    rows: Float[Array, "n d"]
    l2: float = eqx.field(static=True)

    @override
    def value(self, w: Vector) -> Float[Array, ""]:
        value: Array = jnp.sum(jax.nn.softplus(-(self.rows @ w))) + self.l2 / 2 * (w @ w)
        return value

    @override
    def grad(self, w: Vector) -> Vector:
        """-sum_j sigmoid(-b_j a_j'w) b_j a_j + l2 w."""
        return self.l2 * w - jax.nn.sigmoid(-(self.rows @ w)) @ self.rows

    @override
    def batch_grad(self, w: Vector, positions: Int[Array, " B"], mask: Bool[Array, " B"],
                   memory: PyTree[Any] = ()) -> tuple[Vector, PyTree[Any]]:
        """An unbiased estimate of the gradient: n times the mean over the minibatch, plus l2 w."""
        rows = self.rows[jnp.where(mask, positions, 0)]
        weight = jnp.where(mask, jax.nn.sigmoid(-(rows @ w)), 0)
        return self.l2 * w - self.samples / jnp.maximum(jnp.sum(mask), 1) * (weight @ rows), memory


class LogisticProblem(SolvedProblem):
    """Logistic regression without bias, f_k(w) = sum_j log(1 + exp(-b_kj a_kj'w)) + |w|^2 / (2 N n).

    Every party has n samples, so that shares by size are equal shares. Source: operator-splitting paper, A.1. The
    paper's objective is the sum over the parties; here, as everywhere in this package, it is their mean.

    Args:
        a: [N, n, d] the inputs.
        b: [N, n] the labels, -1 or 1.
    """

    rows: Float[Array, "N n d"]
    minimiser: Float[Array, " d"]
    l2: float = eqx.field(static=True)

    def __init__(self, a: NDArray[np.float64], b: NDArray[np.float64]) -> None:
        from sklearn.linear_model import LogisticRegression  # the import takes seconds

        parties, samples, features = a.shape
        # scikit-learn's objective is C times the losses plus |w|^2 / 2.
        fit = LogisticRegression(C=samples, fit_intercept=False, solver="newton-cholesky", tol=1e-13, max_iter=200)
        self.minimiser = jnp.asarray(fit.fit(a.reshape(-1, features), b.ravel()).coef_[0])
        self.rows = jnp.asarray(a * b[..., None])
        self.l2 = 1 / (parties * samples)
        self.sizes = jnp.full(parties, samples, jnp.int32)
        self.splits, self.score_name, self.higher_is_better = ("train",), "objective", False

    @override
    def init(self, key: Array) -> Vector:
        """The zero vector: runs of all seeds begin at the same point."""
        return jnp.zeros_like(self.minimiser)

    @override
    def oracle(self, k: Int[Array, ""]) -> Oracle:
        return LogisticOracle(samples=self.sizes[k], rows=self.rows[k], l2=self.l2)

    @override
    def optimum(self, shares: Float[Array, " N"]) -> Vector:
        """The minimiser for equal shares, whatever ``shares`` are, computed by Newton's method on construction."""
        return self.minimiser

    @override
    def gap(self, w: Vector, shares: Float[Array, " N"]) -> Float[Array, ""]:
        """f(w) - f*, as a sum of Bregman divergences of the losses: exact to about the rounding error of f."""
        margin, best = (jnp.tensordot(self.rows, x, axes=1) for x in (w, self.minimiser))
        losses = jax.nn.softplus(-margin) - jax.nn.softplus(-best) + jax.nn.sigmoid(-best) * (margin - best)
        error = w - self.minimiser
        gap: Array = shares @ jnp.sum(losses, axis=1) + self.l2 / 2 * (error @ error)
        return gap
