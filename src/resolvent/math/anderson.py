r"""Anderson acceleration, type II: the affine combination of past images whose residuals cancel best.

For a fixed-point map T and past points u_1, ..., u_m with residuals r_i = u_i - T u_i,

.. code-block:: text

    pi = argmin over pi'1 = 1 of |sum_i pi_i r_i|^2,      next point = sum_i pi_i T u_i.

Only inner products are needed, so histories can stay where they arise and m x m numbers be sent and summed.
Source: operator-splitting paper, (27); errata 14.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from resolvent.math.tree import Vector

__all__ = ["Control", "History", "Rule", "mixing_weights"]


class History(eqx.Module):
    """Points and their images, in rows.

    Attributes:
        points: leaves [m, ...].
        images: leaves [m, ...].
    """

    points: Vector
    images: Vector

    @classmethod
    def of(cls, point: Vector, memory: int) -> "History":
        """``memory`` rows that all hold one point, as if it were its own image."""
        def rows(leaf: Array) -> Array:
            return jnp.array(jnp.broadcast_to(leaf, (memory, *leaf.shape)))
        return cls(jax.tree.map(rows, point), jax.tree.map(rows, point))

    def put(self, row: Int[Array, ""], point: Vector, image: Vector) -> "History":
        """With a point and its image in a row."""
        def write(rows: Array, new: Array) -> Array:
            return rows.at[row].set(new.astype(rows.dtype))
        return History(jax.tree.map(write, self.points, point), jax.tree.map(write, self.images, image))

    def point(self, row: Int[Array, ""]) -> Vector:
        """The point of a row."""
        return jax.tree.map(lambda leaf: leaf[row], self.points)

    def products(self, row: Int[Array, ""],
                 weights: Float[Array, " N"] | None = None) -> tuple[Float[Array, "m m"], Float[Array, " m"]]:
        """The inner products that Anderson acceleration needs; those of rows that hold nothing mean nothing.

        Args:
            row: of the newest point u.
            weights: of the inner product: one for each entry of the points' first axis; none is the plain one.

        Returns:
            The Gram matrix <u_i - T u_i, u_j - T u_j>, and how far each image lies ahead, <T u_i - u, T u - u>.
        """
        def of_leaf(u: Array, t: Array) -> tuple[Array, Array]:
            scale = 1 if weights is None else jnp.sqrt(weights).reshape((1, -1) + (1,) * (u.ndim - 2)).astype(u.dtype)
            r, ahead = (((a - b) * scale).reshape(len(u), -1) for a, b in ((u, t), (t, u[row])))
            return jnp.matmul(r, r.T, precision="highest"), jnp.matmul(ahead, ahead[row], precision="highest")

        parts = [of_leaf(u, t) for u, t in zip(jax.tree.leaves(self.points), jax.tree.leaves(self.images), strict=True)]
        gram, advance = zip(*parts, strict=True)
        return jnp.sum(jnp.stack(gram), axis=0), jnp.sum(jnp.stack(advance), axis=0)

    def combined(self, weights: Float[Array, " m"]) -> Vector:
        """The images' combination; rows of weight zero may hold anything."""
        def of_leaf(t: Array) -> Array:
            used = (weights != 0).reshape((-1,) + (1,) * (t.ndim - 1))
            return jnp.tensordot(weights.astype(t.dtype), jnp.where(used, t, 0), axes=1, precision="highest")
        return jax.tree.map(of_leaf, self.images)


class Rule(eqx.Module):
    """When a combination is taken, and when a point is undone.

    Attributes:
        safeguard: by how much the residual of a combination may exceed the last one's.
        forward: how far a combination must go along the plain step, in plain steps.
        cutoff: of ``mixing_weights``.
    """

    safeguard: ArrayLike
    forward: ArrayLike
    cutoff: float | None = eqx.field(static=True, default=None)


class Control(eqx.Module):
    """What decides on the next point, wherever the histories are.

    Attributes:
        weights: [m] of the images that the coming round's point is combined from; they sum to one.
        filled: [m] which rows of the history count.
        last: row of the last point that was kept.
        residual: |u - T u| of that point; infinite before the first.
        plain: whether the coming round's point is that point's plain image.
        wait: how many more rounds are plain.
        patience: how many will be after the next point that is undone.
    """

    weights: Float[Array, " m"]
    filled: Bool[Array, " m"]
    last: Int[Array, ""]
    residual: Float[Array, ""]
    plain: Bool[Array, ""]
    wait: Int[Array, ""]
    patience: Int[Array, ""]

    @classmethod
    def first(cls, memory: int, dtype: Any) -> "Control":
        """Before the first round, whose point all rows of the history hold as their image."""
        last = jnp.array(memory - 1)
        return cls(jax.nn.one_hot(last, memory, dtype=dtype), jnp.zeros(memory, bool), last, jnp.array(jnp.inf, dtype),
                   jnp.array(True), jnp.array(0), jnp.array(1))

    @property
    def row(self) -> Int[Array, ""]:
        """Where the coming round's point belongs: behind the last one kept, in a ring."""
        return (self.last + 1) % len(self.weights)

    def judged(self, gram: Float[Array, "m m"], advance: Float[Array, " m"],
               rule: Rule) -> tuple["Control", Bool[Array, ""]]:
        """After a round: the next control, and whether the round's point is undone.

        * A combination whose residual grew by more than the safeguard allows is undone: the next point is the plain
          image of the last one kept, the only one still remembered. Then ``patience`` rounds are plain, and patience
          doubles: of T rounds no more than log2(T) + 1 are lost.
        * A plain image whose residual grew is kept, for the plain method would keep it; but the map is not nonexpansive
          there, so what came before is forgotten.
        * A new combination is taken if it goes at least ``forward`` times as far along the plain step as that step,
          <sum_i pi_i T u_i - u, T u - u> >= forward |T u - u|^2; otherwise the plain image is. Small residuals alone
          would lead back to where a nonconvex method came from, to saddles and plateaus.

        Args:
            gram: inner products of the residuals, with the round's point in its row.
            advance: <T u_i - u, T u - u>, see ``History.products``.
            rule: the numbers.
        """
        m, row, dtype = len(self.weights), self.row, self.weights.dtype
        residual = jnp.sqrt(gram[row, row]).astype(self.residual.dtype)
        fell = residual <= rule.safeguard * self.residual  # not where it is not a number
        undo = ~jnp.isfinite(residual) | ~(fell | self.plain)
        filled = (self.filled & fell).at[row].set(True)
        pi = mixing_weights(gram, filled, cutoff=rule.cutoff)
        onward = jnp.sum(jnp.where(pi != 0, pi * advance, 0)) >= rule.forward * gram[row, row]
        wait = jnp.maximum(self.wait - 1, 0)
        combine = (wait == 0) & (jnp.sum(filled) > 1) & onward
        kept = Control(jnp.where(combine, pi, jax.nn.one_hot(row, m)).astype(dtype), filled, row, residual, ~combine,
                       wait, self.patience)
        back = Control(jax.nn.one_hot(self.last, m, dtype=dtype), self.filled & (jnp.arange(m) == self.last), self.last,
                       self.residual, jnp.array(True), self.patience, 2 * self.patience)
        chosen: Control = jax.tree.map(lambda a, b: jnp.where(undo, a, b), back, kept)
        return chosen, undo


def mixing_weights(gram: Float[Array, "m m"], filled: Bool[Array, " m"], *,
                   cutoff: ArrayLike | None = None) -> Float[Array, " m"]:
    """The weights pi that sum to one over the filled rows and make pi' G pi least.

    The residuals are scaled to unit length first, so that rows of very different age weigh alike, and eigenvalues of
    the scaled matrix below ``cutoff`` times the largest are lifted to it: a direction in which the residuals cancel
    exactly is then used, not thrown away, as a plain pseudo-inverse would.

    Args:
        gram: G, [m, m].
        filled: which rows count; at least one.
        cutoff: relative; default: the dtype's rounding unit times m.
    """
    m = len(gram)
    floor = m * jnp.finfo(gram.dtype).eps if cutoff is None else cutoff  # type: ignore[no-untyped-call]
    size = jnp.sqrt(jnp.where(filled, jnp.diagonal(gram), 1))
    exact = filled & (size == 0)  # a fixed point: nothing is better than to stay there
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
