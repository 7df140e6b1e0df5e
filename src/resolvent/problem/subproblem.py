"""The one subproblem that all local work is."""

import equinox as eqx
import jax
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle

__all__ = ["Subproblem"]


class Subproblem(eqx.Module):
    r"""min over w of h(w) = f_k(w) + <linear, w> + weight/2 |w - center|^2.

    FedAvg: weight 0. FedProx: center w~, weight mu. Fed+: center w~ + theta_k, weight sigma. Operator
    splitting: center u_k, weight 1/eta. Scaffold and FedDANE: a linear term.

    Attributes:
        oracle: f_k.
        center: the anchor of the proximal term.
        weight: its strength; 0 for none.
        linear: a linear correction, or None.
    """

    oracle: Oracle
    center: Vector
    weight: ArrayLike = 0.0
    linear: Vector | None = None

    def value(self, w: Vector) -> Float[Array, ""]:
        """h(w)."""
        gap = tree.sub(w, self.center)
        extra = 0.0 if self.linear is None else tree.full_dot(self.linear, w)
        return self.oracle.value(w) + extra + self.weight / 2 * tree.full_dot(gap, gap)

    def grad(self, w: Vector) -> Vector:
        """Gradient of h over all of the party's samples."""
        return self.pull(self.smooth(w), w)

    def smooth(self, w: Vector) -> Vector:
        """Gradient of f_k + <linear, .>: all of h but the proximal term."""
        return self._corrected(self.oracle.grad(w))

    def batch_smooth(self, w: Vector, positions: Int[Array, " B"], mask: Bool[Array, " B"]) -> Vector:
        """A minibatch estimate of ``smooth``."""
        return self._corrected(self.oracle.batch_grad(w, positions, mask))

    def pull(self, g: Vector, w: Vector) -> Vector:
        """G + weight*(w - center): add the proximal term's gradient."""
        return tree.axpy(self.weight, tree.sub(w, self.center), g)

    def inexactness(self, w: Vector, start: Vector) -> Float[Array, ""]:
        """Gamma = |grad h(w)| / |grad h(start)|: how far the work got; 0 is exact. Source: FedProx, Definition 2."""
        before = tree.norm(self.grad(start))
        return tree.norm(self.grad(w)) / jax.numpy.where(before > 0, before, 1)

    def _corrected(self, g: Vector) -> Vector:
        return g if self.linear is None else tree.axpy(1, self.linear, g)
