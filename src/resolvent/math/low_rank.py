"""Matrices of low rank as a product of two factors, and the mean of such matrices."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Factors(NamedTuple):
    """The matrix B A.

    Attributes:
        A: [rank, columns]; None if it is a constant that is stored elsewhere.
        B: [rows, rank].
    """

    A: Float[Array, "*batch rank columns"] | None
    B: Float[Array, "*batch rows rank"]


def mean_of_products(factors: Factors, weights: Float[Array, " C"]) -> tuple[Factors, Float[Array, ""]]:
    """The best approximation of sum_k weights_k B_k A_k of the same rank, in the Frobenius norm.

    The sum is the product of [B_1 ... B_C] and the stack of the A_k, each times the root of its weight. QR
    decompositions of the two leave a matrix of at most C * rank rows, whose singular value decomposition is truncated.
    So no matrix of the size of the weights is formed. Singular values are divided equally between the new factors.

    Args:
        factors: A [C, rank, columns] and B [C, rows, rank].
        weights: [C] non-negative weights.

    Returns:
        The factors, and the relative error of their product: the root of the share of the squared singular values that
        were left out.

    Example:
        >>> a, b = jnp.array([[[1.0, 0.0]], [[0.0, 1.0]]]), jnp.array([[[3.0], [0.0]], [[0.0], [4.0]]])
        >>> mean, error = mean_of_products(Factors(a, b), jnp.full(2, 0.5))  # of diag(3, 0) and diag(0, 4)
        >>> jnp.round(mean.B @ mean.A, 5).tolist(), round(float(error), 5)
        ([[0.0, 0.0], [0.0, 2.0]], 0.6)
    """
    assert factors.A is not None
    matrices, rank, columns = factors.A.shape
    roots = jnp.sqrt(weights)[:, None, None].astype(factors.B.dtype)
    left = jnp.moveaxis(roots * factors.B, 0, 1).reshape(-1, matrices * rank)
    right = (roots.astype(factors.A.dtype) * factors.A).reshape(matrices * rank, columns)
    (left_basis, left_core), (right_basis, right_core) = jnp.linalg.qr(left), jnp.linalg.qr(right.T)
    with jax.default_matmul_precision("highest"):
        u, values, vt = jnp.linalg.svd(left_core @ right_core.T, full_matrices=False)
        spread = jnp.sqrt(values[:rank])
        mean = Factors((spread[:, None] * vt[:rank]) @ right_basis.T, left_basis @ (u[:, :rank] * spread))
    total = jnp.sum(values**2)
    return mean, jnp.sqrt(jnp.sum(values[rank:]**2) / jnp.where(total > 0, total, 1))
