"""Anderson acceleration, type II: the affine combination of past images whose residual is smallest.

For a fixed-point map T and past points u_1, ..., u_m with residuals r_i = u_i - T u_i,

.. code-block:: text

    pi = argmin over pi'1 = 1 of |sum_i pi_i r_i|^2,      next point = sum_i pi_i T u_i.

Only inner products are needed. Each party can therefore keep its own history, and m x m numbers are sent and summed.
Source: operator-splitting paper, (27); errata 14.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from resolvent.math import tree
from resolvent.math.tree import Vector

__all__ = ["Control", "History", "Rule", "mixing_weights"]


class History(eqx.Module):
    """The last m points and their images under the map.

    Attributes:
        points: leaves [m, ...].
        images: leaves [m, ...].
    """

    points: Vector
    images: Vector

    @classmethod
    def of(cls, point: Vector, history_size: int) -> "History":
        """A history of ``history_size`` rows, each with this point as its point and as its image."""
        def rows(leaf: Array) -> Array:
            return jnp.array(jnp.broadcast_to(leaf, (history_size, *leaf.shape)))
        return cls(jax.tree.map(rows, point), jax.tree.map(rows, point))

    def put(self, row: Int[Array, ""], point: Vector, image: Vector) -> "History":
        """The history with a point and its image written to a row."""
        def write(rows: Array, new: Array) -> Array:
            return rows.at[row].set(new.astype(rows.dtype))
        return History(jax.tree.map(write, self.points, point), jax.tree.map(write, self.images, image))

    def point(self, row: Int[Array, ""]) -> Vector:
        """The point in a row, leaves [...]."""
        return jax.tree.map(lambda leaf: leaf[row], self.points)

    def inner_products(self, row: Int[Array, ""],
                       weights: Float[Array, " N"] | None = None) -> tuple[Float[Array, "m m"], Float[Array, " m"]]:
        """The inner products that Anderson acceleration needs. Products of rows that are not filled are arbitrary.

        Args:
            row: row of the newest point u.
            weights: weights of the inner product, for each entry of the points' first axis; None: the plain one.

        Returns:
            The Gram matrix <u_i - T u_i, u_j - T u_j>, and the progress of each image along the plain step,
            <T u_i - u, T u - u>.
        """
        def of_leaf(u: Array, t: Array) -> tuple[Array, Array]:
            u, t = tree.widen(u), tree.widen(t)
            scale = 1 if weights is None else jnp.sqrt(weights).reshape((1, -1) + (1,) * (u.ndim - 2)).astype(u.dtype)
            residual, step = (((a - b) * scale).reshape(len(u), -1) for a, b in ((u, t), (t, u[row])))
            return (jnp.matmul(residual, residual.T, precision="highest"),
                    jnp.matmul(step, step[row], precision="highest"))

        parts = [of_leaf(u, t) for u, t in zip(jax.tree.leaves(self.points), jax.tree.leaves(self.images), strict=True)]
        gram, advance = zip(*parts, strict=True)
        return jnp.sum(jnp.stack(gram), axis=0), jnp.sum(jnp.stack(advance), axis=0)

    def combine(self, weights: Float[Array, " m"]) -> Vector:
        """The weighted sum of the images; rows of weight zero may have any values, also nan."""
        def of_leaf(t: Array) -> Array:
            used = tree.widen(jnp.where(tree.column(weights != 0, t), t, 0))
            return jnp.tensordot(weights.astype(used.dtype), used, axes=1, precision="highest").astype(t.dtype)
        return jax.tree.map(of_leaf, self.images)


class Rule(eqx.Module):
    """When a combination is accepted, and when a point is undone.

    Attributes:
        safeguard: largest ratio of the residual after a combination to the residual before it.
        forward: smallest progress of a combination along the plain step, in plain steps.
        cutoff: the cutoff of ``mixing_weights``.
    """

    safeguard: ArrayLike
    forward: ArrayLike
    cutoff: float | None = eqx.field(static=True, default=None)


class Control(eqx.Module):
    """The state that decides on the next point. It does not depend on where the histories are.

    Attributes:
        weights: [m] weights of the images in the next round's point; they sum to one.
        filled: [m] which rows of the history are valid.
        last: row of the last accepted point.
        residual: |u - T u| of that point; infinite before the first.
        plain: whether the next round's point is the image of that point, without a combination.
        wait: number of further rounds without a combination.
        patience: the next value of ``wait``, after the next point that is undone.
    """

    weights: Float[Array, " m"]
    filled: Bool[Array, " m"]
    last: Int[Array, ""]
    residual: Float[Array, ""]
    plain: Bool[Array, ""]
    wait: Int[Array, ""]
    patience: Int[Array, ""]

    @classmethod
    def first(cls, history_size: int, dtype: Any) -> "Control":
        """The state before the first round, for a history made by ``History.of`` from the first point."""
        last = jnp.array(history_size - 1)
        return cls(jax.nn.one_hot(last, history_size, dtype=dtype), jnp.zeros(history_size, bool), last,
                   jnp.array(jnp.inf, dtype), jnp.array(True), jnp.array(0), jnp.array(1))

    @property
    def row(self) -> Int[Array, ""]:
        """The row of the next round's point: the one after the last accepted point, in a ring."""
        return (self.last + 1) % len(self.weights)

    def update(self, gram: Float[Array, "m m"], advance: Float[Array, " m"],
               rule: Rule) -> tuple["Control", Bool[Array, ""]]:
        """The state after a round, and whether the round's point is undone.

        * If the residual of a combination grew by more than the safeguard allows, the point is undone: the next point
          is the plain image of the last accepted one, and only that one stays in the history. Then ``patience`` rounds
          have no combination, and patience doubles. At most log2(T) + 1 of T rounds are lost.
        * If the residual of a plain image grew, the point is accepted, as in the plain method. But the map is not
          nonexpansive at this point, so the earlier points are removed from the history.
        * A new combination is accepted if its progress along the plain step is at least ``forward`` times that step,
          <sum_i pi_i T u_i - u, T u - u> >= forward |T u - u|^2; otherwise the next point is the plain image. A small
          residual alone is not enough: on nonconvex problems it leads back to earlier saddle points and plateaus.

        Args:
            gram: inner products of the residuals, with the round's point in its row.
            advance: <T u_i - u, T u - u>, see ``History.inner_products``.
            rule: the thresholds.
        """
        m, row, dtype = len(self.weights), self.row, self.weights.dtype
        residual = jnp.sqrt(gram[row, row]).astype(self.residual.dtype)
        fell = residual <= rule.safeguard * self.residual  # false for nan
        undo = ~jnp.isfinite(residual) | ~(fell | self.plain)
        filled = (self.filled & fell).at[row].set(True)
        pi = mixing_weights(gram, filled, cutoff=rule.cutoff)
        is_forward = jnp.sum(jnp.where(pi != 0, pi * advance, 0)) >= rule.forward * gram[row, row]
        wait = jnp.maximum(self.wait - 1, 0)
        combine = (wait == 0) & (jnp.sum(filled) > 1) & is_forward
        accepted = Control(jnp.where(combine, pi, jax.nn.one_hot(row, m)).astype(dtype), filled, row, residual,
                           ~combine, wait, self.patience)
        undone = Control(jax.nn.one_hot(self.last, m, dtype=dtype), self.filled & (jnp.arange(m) == self.last),
                         self.last, self.residual, jnp.array(True), self.patience, 2 * self.patience)
        chosen: Control = tree.where(undo, undone, accepted)
        return chosen, undo


def mixing_weights(gram: Float[Array, "m m"], filled: Bool[Array, " m"], *,
                   cutoff: ArrayLike | None = None) -> Float[Array, " m"]:
    """The weights pi that sum to one over the filled rows and minimise pi' G pi.

    The residuals are first scaled to unit length, so that old, large ones do not dominate. Eigenvalues of the scaled
    matrix below ``cutoff`` times the largest are raised to this value. Directions in which the residuals cancel exactly
    are therefore used; a pseudo-inverse would drop them.

    Args:
        gram: G, [m, m].
        filled: [m] which rows are valid; at least one.
        cutoff: smallest eigenvalue relative to the largest; default: m times the rounding unit of the dtype.
    """
    m = len(gram)
    floor = m * jnp.finfo(gram.dtype).eps if cutoff is None else cutoff  # type: ignore[no-untyped-call]
    size = jnp.sqrt(jnp.where(filled, jnp.diagonal(gram), 1))
    exact = filled & (size == 0)  # fixed points, which are optimal
    size = jnp.where(size > 0, size, 1)
    scaled = jnp.where(filled[:, None] & filled[None, :], gram / (size[:, None] * size[None, :]), jnp.eye(m))
    values, vectors = jnp.linalg.eigh(scaled)
    values = jnp.maximum(values, floor * values[-1])
    ones = jnp.where(filled, 1 / size, 0)
    scale = jnp.max(ones)
    y = vectors @ ((vectors.T @ (ones / scale)) / values)
    pi = jnp.where(filled, y / size, 0)
    pi = pi / jnp.sum(pi)
    return jnp.where(jnp.any(exact), exact / jnp.maximum(jnp.sum(exact), 1), pi).astype(gram.dtype)
