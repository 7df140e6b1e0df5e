"""The base class of penalties, with the Moreau envelope and its derivative."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from resolvent.arguments import CheckedArguments
from resolvent.math import tree
from resolvent.math.tree import Vector


class Penalty(CheckedArguments, eqx.Module):
    """A convex function of a vector with a cheap proximal operator."""

    @property
    def has_bounded_pull(self) -> bool:
        """Whether ``pull`` is bounded over all x: a single point then has bounded influence on a Moreau centre."""
        return False

    @property
    def has_uniform_curvature(self) -> bool:
        """Whether ``curvature`` is one number for all entries, so that its first entry is enough."""
        return False

    @property
    def ignores_layers(self) -> bool:
        """Whether the penalty of a tree is that of one array with all entries of the tree."""
        return False

    @abstractmethod
    def value(self, x: Vector) -> Float[Array, ""]:
        """phi(x), over all leaves together."""

    @abstractmethod
    def prox(self, x: Vector, t: ArrayLike) -> Vector:
        """The argmin over theta of ``value(theta) + |x - theta|^2 / (2t)``; t > 0."""

    def pull(self, x: Vector, t: ArrayLike) -> Vector:
        """``x - prox(x, t)``: t times the envelope's gradient, and t*prox of the conjugate at x/t (Moreau).

        Penalties override it where the difference would cancel for |x| >> t.
        """
        return tree.sub(x, self.prox(x, t))

    def curvature(self, x: Vector, t: ArrayLike) -> Vector:
        """d in [0, 1] for each entry, such that the quadratic with curvature d/t that touches the envelope at x
        majorises it.

        The envelope is 1/t-smooth, so d = 1 is always valid. Radial penalties have the sharper d = (x - prox)/x of
        iteratively reweighted least squares, with which medians are fast to compute.
        """
        return jax.tree.map(jnp.ones_like, x)

    def threshold(self, x: Vector) -> Float[Array, ""]:
        """The smallest t for which ``prox(x, t)`` is zero; of a norm it is the dual norm of x.

        Raises:
            TypeError: no t does that, or the penalty does not define it.
        """
        raise TypeError(f"{type(self).__name__} has no smoothing for which the proximal operator of a given vector is "
                        "zero: use a norm, such as L2Norm(), or give your penalty a method threshold()")

    def envelope(self, x: Vector, t: ArrayLike) -> Float[Array, ""]:
        """The Moreau envelope; its gradient is ``pull(x, t) / t``, also where the prox is not differentiable."""
        value: Array = _envelope(self, tree.widen(x), t)
        return value


@eqx.filter_custom_jvp
def _envelope(penalty: Penalty, x: Vector, t: ArrayLike) -> Array:
    value, size = penalty.value(penalty.prox(x, t)), tree.norm(penalty.pull(x, t))
    return value + (size * (size / (2 * t))).astype(value.dtype)


@_envelope.def_jvp  # type: ignore[untyped-decorator]
def _envelope_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
    # By Danskin's theorem the minimiser counts as a constant. The prox is not differentiated, because its derivative is
    # arbitrary at a kink.
    penalty, x, t = primals
    prox, pull = penalty.prox(x, t), penalty.pull(x, t)

    def at_prox(penalty: Penalty, y: Vector, t: ArrayLike) -> Array:
        value, difference = penalty.value(prox), tree.axpy(1, tree.sub(y, x), pull)
        return value + (tree.full_dot(difference, difference) / (2 * t)).astype(value.dtype)

    return _envelope(penalty, x, t), eqx.filter_jvp(at_prox, primals, tangents)[1]
