"""Oracles: what can be asked of one party's objective f_k.

A local solver sees an oracle and nothing else, so the same solver serves samples, quadratics and whatever a
user brings.
"""

from abc import abstractmethod
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PyTree
from typing_extensions import override

from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.models.model import Model

__all__ = ["Oracle", "QuadraticOracle", "SampleOracle", "ShapeOracle"]


class Oracle(eqx.Module):
    """One party's objective f_k.

    Attributes:
        samples: n_k, the number of samples that minibatches are drawn from; at least 1.
    """

    samples: Int[Array, ""]

    @abstractmethod
    def value(self, w: Vector) -> Float[Array, ""]:
        """f_k(w)."""

    @abstractmethod
    def grad(self, w: Vector) -> Vector:
        """The gradient of f_k at w, over all of the party's samples."""

    @abstractmethod
    def batch_grad(self, w: Vector, positions: Int[Array, " B"], mask: Bool[Array, " B"]) -> Vector:
        """The mean gradient over the samples at ``positions`` (in [0, samples)) where ``mask`` holds."""

    def proximal_point(self, center: Vector, weight: ArrayLike, linear: Vector | None) -> Vector:
        """The exact minimiser over w of f_k(w) + <linear, w> + weight/2 |w - center|^2.

        Args:
            center: the centre of the proximal term.
            weight: the weight of the proximal term; 0 for the minimiser of f_k + <linear, .>.
            linear: the linear term; None for zero.

        Raises:
            TypeError: this kind of oracle has no exact minimiser in closed form.
        """
        raise TypeError(f"the exact minimiser needs a quadratic problem, got {type(self).__name__}: use the solver "
                        "SGD or GD")

    def held_out(self, w: Vector) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Mean loss, and mean score where larger is better, on samples that are not trained on; nan without any.

        Raises:
            TypeError: this kind of oracle does not say which samples are held out.
        """
        raise TypeError(f"{type(self).__name__} holds no samples out, by which a choice could be made: give it a "
                        "method held_out()")


class SampleOracle(Oracle):
    """f_k(w) = mean over the party's samples of loss(apply(w, x), y) + l2/2 |w|^2, over packed arrays.

    Attributes:
        model: the predictor and its loss.
        x: [total, ...] everybody's inputs, packed; only rows offset to offset+samples are this party's.
        y: [total] labels.
        offset: the party's first row.
        block: rows per step of a pass over all samples.
        validation: the first row and the number of the party's held-out samples, or None where there are none.
    """

    model: Model
    x: Float[Array, "total ..."]
    y: Array
    offset: Int[Array, ""]
    block: int = eqx.field(static=True)
    validation: tuple[Int[Array, ""], Int[Array, ""]] | None = None

    def _sums(self, w: PyTree[Any], positions: Array, mask: Array) -> tuple[Array, Array]:
        """Sums of loss and score over the masked samples."""
        at = self.offset + jnp.where(mask, positions, 0)
        outputs = self.model.apply(w, self.x[at])
        loss = jnp.where(mask, self.model.loss.loss(outputs, self.y[at]), 0)
        score = jnp.where(mask, self.model.loss.score(outputs, self.y[at]), 0)
        return jnp.sum(loss), jnp.sum(score)

    def _pass(self, part: Any, zero: PyTree[Any]) -> PyTree[Any]:
        """Add ``part(positions, mask)`` up over all of the party's samples, block by block."""
        def add(i: Array, total: PyTree[Any]) -> PyTree[Any]:
            positions = i * self.block + jnp.arange(self.block)
            return jax.tree.map(jnp.add, total, part(positions, positions < self.samples))
        return jax.lax.fori_loop(0, (self.samples + self.block - 1) // self.block, add, zero)

    def sums(self, w: Vector) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Sum of the losses (without l2) and sum of the scores over all samples."""
        dtype = jax.tree.leaves(w)[0].dtype
        zero = jnp.zeros((), dtype)
        total: tuple[Array, Array] = self._pass(
            lambda p, m: jax.tree.map(lambda s: s.astype(dtype), self._sums(w, p, m)), (zero, zero))
        return total

    def value(self, w: Vector) -> Float[Array, ""]:
        """Mean loss + l2/2 |w|^2."""
        return self.sums(w)[0] / self.samples + self.model.l2 / 2 * tree.full_dot(w, w)

    def grad(self, w: Vector) -> Vector:
        """Gradient of ``value``."""
        loss_grad = jax.grad(lambda v, p, m: self._sums(v, p, m)[0])
        total = self._pass(lambda p, m: loss_grad(w, p, m), jax.tree.map(jnp.zeros_like, w))
        return tree.axpy(self.model.l2, w, jax.tree.map(lambda g: g / self.samples, total))

    def batch_grad(self, w: Vector, positions: Int[Array, " B"], mask: Bool[Array, " B"]) -> Vector:
        """Mean gradient over the masked positions, with l2."""
        at = self.offset + jnp.where(mask, positions, 0)
        return tree.axpy(self.model.l2, w, self.model.batch_gradient(w, self.x, self.y, at, mask))

    def held_out(self, w: Vector) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Mean loss (without l2) and mean score, larger being better, on the validation samples."""
        if self.validation is None:
            return jnp.full((), jnp.nan, tree.dtype(w)), jnp.full((), jnp.nan, tree.dtype(w))
        offset, length = self.validation
        loss, score = replace(self, offset=offset, samples=length, validation=None).sums(w)
        n = jnp.where(length > 0, length, jnp.nan).astype(loss.dtype)
        return loss / n, (score if self.model.loss.higher_is_better else -score) / n


class QuadraticOracle(Oracle):
    """f_k(w) = w'Hw/2 - g'w + c for a vector w: the textbook problem, with everything in closed form.

    Attributes:
        hessian: H, [d, d], symmetric positive semidefinite.
        linear: g, [d].
        constant: c.
    """

    hessian: Float[Array, "d d"]
    linear: Float[Array, " d"]
    constant: Float[Array, ""]

    def value(self, w: Vector) -> Float[Array, ""]:
        """w'Hw/2 - g'w + c."""
        value: Array = w @ (self.hessian @ w) / 2 - self.linear @ w + self.constant
        return value

    def grad(self, w: Vector) -> Vector:
        """Hw - g."""
        return self.hessian @ w - self.linear

    def batch_grad(self, w: Vector, positions: Int[Array, " B"], mask: Bool[Array, " B"]) -> Vector:
        """The full gradient: a quadratic has no samples to draw from."""
        return self.grad(w)

    @override
    def proximal_point(self, center: Vector, weight: ArrayLike, linear: Vector | None) -> Vector:
        """The solution of (H + weight I) w = g - linear + weight center."""
        right = self.linear + weight * center
        if linear is not None:
            right = right - linear
        system = self.hessian + weight * jnp.eye(right.size, dtype=right.dtype)
        return jax.scipy.linalg.solve(system, right, assume_a="pos")

    def held_out(self, w: Vector) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """f_k(w), and -f_k(w): an objective that is known exactly holds nothing out."""
        value = self.value(w)
        return value, -value


class ShapeOracle(Oracle):
    """An oracle without data: every answer is zero and has the right shape and dtype.

    It is for tracing an algorithm with ``jax.eval_shape`` where no data exist: a server that needs the shapes of the
    parties' replies has none.
    """

    def __init__(self) -> None:
        self.samples = jnp.array(1)

    @override
    def value(self, w: Vector) -> Float[Array, ""]:
        return jnp.zeros((), tree.dtype(w))

    @override
    def grad(self, w: Vector) -> Vector:
        return jax.tree.map(jnp.zeros_like, w)

    @override
    def batch_grad(self, w: Vector, positions: Int[Array, " B"], mask: Bool[Array, " B"]) -> Vector:
        return jax.tree.map(jnp.zeros_like, w)

    @override
    def proximal_point(self, center: Vector, weight: ArrayLike, linear: Vector | None) -> Vector:
        return jax.tree.map(jnp.zeros_like, center)

    @override
    def held_out(self, w: Vector) -> tuple[Float[Array, ""], Float[Array, ""]]:
        zero = jnp.zeros((), tree.dtype(w))
        return zero, zero
