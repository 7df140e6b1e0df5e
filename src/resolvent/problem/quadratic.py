"""Problems with quadratic objectives."""

from typing import Any

import jax.numpy as jnp
import jax.scipy.linalg
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PyTree
from typing_extensions import override

from resolvent.errors import InputError
from resolvent.math.newton import SecondOrder
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.problem import SolvedProblem, shares_by_size


class QuadraticOracle(Oracle):
    """f_k(w) = w'Hw/2 - g'w + c for a vector w, with an exact proximal point.

    Attributes:
        hessian: H, [d, d], symmetric positive semidefinite.
        linear: g, [d].
    """

    hessian: Float[Array, "d d"]
    linear: Float[Array, " d"]
    constant: Float[Array, ""]

    @override
    def value(self, w: Vector) -> Float[Array, ""]:
        value: Array = w @ (self.hessian @ w) / 2 - self.linear @ w + self.constant
        return value

    @override
    def grad(self, w: Vector) -> Vector:
        return self.hessian @ w - self.linear

    @override
    def second_order(self, w: Vector) -> SecondOrder:
        return SecondOrder(self.value(w), self.grad(w), self.hessian)

    @override
    def batch_grad(self, w: Vector, positions: Int[Array, " B"], mask: Bool[Array, " B"],
                   memory: PyTree[Any] = ()) -> tuple[Vector, PyTree[Any]]:
        """The full gradient, because a quadratic has no samples."""
        return self.grad(w), memory

    @override
    def proximal_point(self, center: Vector, weight: ArrayLike, linear: Vector | None) -> Vector:
        """The solution of (H + weight I) w = g - linear + weight center."""
        right = self.linear + weight * center
        if linear is not None:
            right = right - linear
        system = self.hessian + weight * jnp.eye(right.size, dtype=right.dtype)
        return jax.scipy.linalg.solve(system, right, assume_a="pos")

    @override
    def held_out(self, w: Vector) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """f_k(w) and -f_k(w), because the objective itself is known."""
        value = self.value(w)
        return value, -value


class QuadraticProblem(SolvedProblem):
    """Quadratic objectives f_k(w) = w'H_k w/2 - g_k'w + c_k.

    Attributes:
        hessians: the H_k, [N, d, d], symmetric positive semidefinite.
        linears: the g_k, [N, d].
        constants: the c_k, [N]; default 0.
        sizes: [N] sizes of the parties, for shares by size; default 1 each.

    Raises:
        InputError: the shapes do not match.

    Example:
        >>> problem = rv.problems.QuadraticProblem(jnp.array([[[1.0]], [[1.0]]]), jnp.array([[1.0], [3.0]]))
        >>> problem.optimum(jnp.array([0.5, 0.5])).tolist()
        [2.0]
    """

    hessians: Float[Array, "N d d"]
    linears: Float[Array, "N d"]
    constants: Float[Array, " N"]

    def __init__(self, hessians: Float[Array, "N d d"], linears: Float[Array, "N d"],
                 constants: Float[Array, " N"] | None = None, sizes: Int[Array, " N"] | None = None) -> None:
        self.hessians, self.linears = jnp.asarray(hessians), jnp.asarray(linears)
        n, d = self.linears.shape
        if self.hessians.shape != (n, d, d):
            raise InputError(f"QuadraticProblem needs hessians [N, d, d] and linears [N, d], got {self.hessians.shape} "
                             f"and {self.linears.shape}")
        self.constants = jnp.zeros(n, self.linears.dtype) if constants is None else jnp.asarray(constants)
        self.sizes = jnp.ones(n, jnp.int32) if sizes is None else jnp.asarray(sizes)
        self.splits, self.score_name, self.higher_is_better = ("train",), "objective", False

    @classmethod
    def least_squares(cls, a: Float[Array, "N n d"], b: Float[Array, "N n"]) -> "QuadraticProblem":
        """f_k(w) = |A_k w - b_k|^2 / 2. Source: operator-splitting paper, A.1."""
        return cls(jnp.einsum("kni,knj->kij", a, a), jnp.einsum("kni,kn->ki", a, b),
                   jnp.sum(b * b, axis=1) / 2, jnp.full(a.shape[0], a.shape[1]))

    @override
    def init(self, key: Array) -> Vector:
        """The zero vector: runs of all seeds begin at the same point."""
        return jnp.zeros_like(self.linears[0])

    @override
    def oracle(self, k: Int[Array, ""]) -> Oracle:
        return QuadraticOracle(samples=jnp.array(1), hessian=self.hessians[k], linear=self.linears[k],
                               constant=self.constants[k])

    @override
    def pooled(self) -> "QuadraticProblem":
        shares = shares_by_size(self.sizes).astype(self.linears.dtype)
        hessian, linear, constant = (jnp.tensordot(shares, part, axes=1, precision="highest")[None]
                                     for part in (self.hessians, self.linears, self.constants))
        return QuadraticProblem(hessian, linear, constant, jnp.sum(self.sizes)[None])

    @override
    def optimum(self, shares: Float[Array, " N"]) -> Vector:
        """The solution of (sum_k shares_k H_k) w = sum_k shares_k g_k; nan if that matrix is singular."""
        return jax.scipy.linalg.solve(self._hessian(shares), shares @ self.linears, assume_a="pos")

    @override
    def gap(self, w: Vector, shares: Float[Array, " N"]) -> Float[Array, ""]:
        """(w - w*)'H(w - w*)/2, which is exact far below the rounding error of f itself."""
        error = w - self.optimum(shares)
        gap: Array = error @ (self._hessian(shares) @ error) / 2
        return gap

    def _hessian(self, shares: Float[Array, " N"]) -> Float[Array, "d d"]:
        return jnp.tensordot(shares, self.hessians, axes=1, precision="highest")


class LeastSquaresOracle(QuadraticOracle):
    """f_k(w) = |A_k w - b_k|^2 / 2, with minibatches of the rows.

    Attributes:
        rows: A_k, [n, d].
        labels: b_k, [n].
    """

    rows: Float[Array, "n d"]
    labels: Float[Array, " n"]

    @override
    def batch_grad(self, w: Vector, positions: Int[Array, " B"], mask: Bool[Array, " B"],
                   memory: PyTree[Any] = ()) -> tuple[Vector, PyTree[Any]]:
        """An unbiased estimate of the gradient: n times the mean over the minibatch."""
        positions = jnp.where(mask, positions, 0)
        rows = self.rows[positions]
        residual = jnp.where(mask, rows @ w - self.labels[positions], 0)
        return self.samples / jnp.maximum(jnp.sum(mask), 1) * (residual @ rows), memory


class LeastSquaresProblem(SolvedProblem):
    """Least squares whose samples are stored, so that solvers can draw minibatches of them.

    Everything but a minibatch's gradient is that of the ``QuadraticProblem`` of the same samples.

    Args:
        a: [N, n, d] the designs A_k.
        b: [N, n] the labels b_k.
    """

    quadratic: QuadraticProblem
    rows: Float[Array, "N n d"]
    labels: Float[Array, "N n"]

    def __init__(self, a: Float[Array, "N n d"], b: Float[Array, "N n"]) -> None:
        self.rows, self.labels = jnp.asarray(a), jnp.asarray(b)
        self.quadratic = QuadraticProblem.least_squares(self.rows, self.labels)
        self.sizes, self.splits = self.quadratic.sizes, self.quadratic.splits
        self.score_name, self.higher_is_better = self.quadratic.score_name, self.quadratic.higher_is_better

    @override
    def init(self, key: Array) -> Vector:
        return self.quadratic.init(key)

    @override
    def oracle(self, k: Int[Array, ""]) -> Oracle:
        return LeastSquaresOracle(self.sizes[k], hessian=self.quadratic.hessians[k], linear=self.quadratic.linears[k],
                                  constant=self.quadratic.constants[k], rows=self.rows[k], labels=self.labels[k])

    @override
    def optimum(self, shares: Float[Array, " N"]) -> Vector:
        return self.quadratic.optimum(shares)

    @override
    def gap(self, w: Vector, shares: Float[Array, " N"]) -> Float[Array, ""]:
        return self.quadratic.gap(w, shares)
