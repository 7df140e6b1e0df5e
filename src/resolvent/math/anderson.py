r"""Anderson acceleration, type II: the affine combination of past images whose residuals cancel best.

For a fixed-point map T and past points u_1, ..., u_m with residuals r_i = u_i - T u_i,

.. code-block:: text

    pi = argmin over pi'1 = 1 of |sum_i pi_i r_i|^2,      next point = sum_i pi_i T u_i.

Only the Gram matrix of the residuals is needed, so parties can keep their histories and send m x m numbers.
Source: operator-splitting paper, (27); errata 14.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from resolvent.math.tree import Vector

__all__ = ["History", "mixing_weights"]


class History(eqx.Module):
    """The last m points and their images, in a ring.

    Attributes:
        points: leaves [m, ...].
        images: leaves [m, ...].
        count: how many have been written since the last restart.
    """

    points: Vector
    images: Vector
    count: Int[Array, ""]

    @classmethod
    def empty(cls, like: Vector, memory: int) -> "History":
        """Room for ``memory`` points shaped like ``like``."""
        room = jax.tree.map(lambda leaf: jnp.zeros((memory, *leaf.shape), leaf.dtype), like)
        return cls(room, jax.tree.map(jnp.zeros_like, room), jnp.array(0))

    @property
    def memory(self) -> int:
        """The room, m."""
        return int(jax.tree.leaves(self.points)[0].shape[0])

    @property
    def filled(self) -> Bool[Array, " m"]:
        """Which rows hold a point."""
        return jnp.arange(self.memory) < self.count

    def push(self, point: Vector, image: Vector) -> "History":
        """With one more point, in place of the oldest where there is no room."""
        row = self.count % self.memory

        def put(rows: Array, new: Array) -> Array:
            return rows.at[row].set(new)

        return History(jax.tree.map(put, self.points, point), jax.tree.map(put, self.images, image), self.count + 1)

    def restarted(self, when: Bool[Array, ""]) -> "History":
        """Empty where ``when`` holds."""
        return History(self.points, self.images, jnp.where(when, 0, self.count))

    def gram(self) -> Float[Array, "m m"]:
        """Inner products of the residuals of all rows; those of empty rows mean nothing."""
        def of_leaf(u: Array, t: Array) -> Array:
            r = (u - t).reshape(len(u), -1)
            return jnp.matmul(r, r.T, precision="highest")
        parts = [of_leaf(u, t) for u, t in zip(jax.tree.leaves(self.points), jax.tree.leaves(self.images), strict=True)]
        return jnp.sum(jnp.stack(parts), axis=0)

    def combined(self, weights: Float[Array, " m"]) -> Vector:
        """The images' combination with these weights."""
        return jax.tree.map(lambda t: jnp.tensordot(weights, t, axes=1).astype(t.dtype), self.images)


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
