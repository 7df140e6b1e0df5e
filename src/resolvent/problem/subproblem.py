"""The subproblem that a party solves in every algorithm."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PyTree

from resolvent.math import tree
from resolvent.math.penalties import L2Norm
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle

__all__ = ["Subproblem"]


class Subproblem(eqx.Module):
    r"""min over w of h(w) = f_k(w) + <linear, w> + weight/2 |w - center|^2.

    FedAvg: weight 0. FedProx: center w~, weight mu. Fed+: center w~ + theta_k, weight sigma. Operator
    splitting: center u_k, weight 1/eta. Scaffold and FedDANE: a linear term.

    Attributes:
        oracle: f_k.
        center: the centre of the proximal term.
        weight: the weight of the proximal term; 0 for none.
        linear: the linear term; None for zero.

    Example:
        >>> problem = rv.problems.QuadraticProblem(jnp.array([[[1.0]]]), jnp.array([[1.0]]))
        >>> subproblem = rv.problems.Subproblem(problem.oracle(0), center=jnp.array([2.0]), weight=0.5)
        >>> subproblem.grad(jnp.array([3.0])).tolist()
        [2.5]
    """

    oracle: Oracle
    center: Vector
    weight: ArrayLike = 0.0
    linear: Vector | None = None

    def value(self, w: Vector) -> Float[Array, ""]:
        """h(w) = f_k(w) + <linear, w> + weight/2 |w - center|^2."""
        difference = tree.sub(w, self.center)
        linear_term = 0.0 if self.linear is None else tree.full_dot(self.linear, w)
        return self.oracle.value(w) + linear_term + self.weight / 2 * tree.full_dot(difference, difference)

    def grad(self, w: Vector) -> Vector:
        """The gradient of h over all of the party's samples."""
        return self.pull(self.smooth(w), w)

    def smooth(self, w: Vector) -> Vector:
        """The gradient of f_k + <linear, .>, which is h without the proximal term."""
        return self._add_linear(self.oracle.grad(w))

    def batch_smooth(self, w: Vector, positions: Int[Array, " B"], mask: Bool[Array, " B"],
                     memory: PyTree[Any] = (), *, clip: ArrayLike | None = None) -> tuple[Vector, PyTree[Any]]:
        """A minibatch estimate of ``smooth``, and the oracle's memory after it, see ``Oracle.batch_grad``.

        Args:
            clip: the largest norm of the gradient of f_k; None: any.
        """
        gradient, after = self.oracle.batch_grad(w, positions, mask, memory)
        if clip is not None:
            gradient = tree.cast(L2Norm().pull(tree.widen(gradient), jnp.asarray(clip)), gradient)
        return self._add_linear(gradient), after

    def at_step(self, key: Array) -> "Subproblem":
        """The subproblem of one minibatch step, see ``Oracle.at_step``."""
        return replace(self, oracle=self.oracle.at_step(key))

    def pull(self, g: Vector, w: Vector) -> Vector:
        """g + weight*(w - center): add the gradient of the proximal term at w to g."""
        return tree.axpy(self.weight, tree.sub(w, self.center), g)

    def inexactness(self, w: Vector, start: Vector) -> Float[Array, ""]:
        """gamma = |grad h(w)| / |grad h(start)|; 0 for an exact solution w. Source: FedProx, Definition 2."""
        at_start = tree.norm(self.grad(start))
        return tree.norm(self.grad(w)) / jnp.where(at_start > 0, at_start, 1)

    def _add_linear(self, g: Vector) -> Vector:
        return g if self.linear is None else tree.axpy(1, self.linear, g)
