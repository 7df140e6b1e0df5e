r"""Penalties, their proximal operators and their Moreau envelopes.

For a convex penalty :math:`\varphi` and t > 0,

.. math::

    \mathrm{prox}_{t\varphi}(x) = \arg\min_\theta\; \varphi(\theta) + \tfrac1{2t}\|x-\theta\|^2, \qquad
    \mathrm{env}_{t\varphi}(x) = \min_\theta\; \varphi(\theta) + \tfrac1{2t}\|x-\theta\|^2 .

Fed+ writes its penalty as :math:`\Psi = \sigma\delta\varphi`, so that
:math:`\mathrm{prox}_\Psi^{1/\sigma} = \mathrm{prox}_{\delta\varphi}` does not depend on sigma.
Vectors are pytrees; a norm is taken over all leaves together. Source: Fed+ (newest notation), (6), (11),
(19) with the soft threshold in its odd form.
"""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Float, PyTree

from resolvent.math import tree
from resolvent.math.tree import Vector

__all__ = ["L1", "L2Norm", "OriginIndicator", "Penalty", "PerLayer", "Quadratic", "Scaled", "SquaredL2", "Zero"]


class Penalty(eqx.Module):
    """A convex function of a vector with a cheap proximal operator."""

    @property
    def bounded_pull(self) -> bool:
        """Whether the pull stays bounded, however far x is: then no point can carry a Moreau centre away by itself."""
        return False

    @abstractmethod
    def value(self, x: Vector) -> Float[Array, ""]:
        """The penalty at ``x``."""

    @abstractmethod
    def prox(self, x: Vector, t: ArrayLike) -> Vector:
        """The argmin over theta of ``value(theta) + |x - theta|^2 / (2t)``; t > 0."""

    def pull(self, x: Vector, t: ArrayLike) -> Vector:
        """``x - prox(x, t)``: t times the envelope's gradient, and t*prox of the conjugate at x/t (Moreau).

        Penalties give it in a form of its own where |x| >> t would make the difference cancel.
        """
        return tree.sub(x, self.prox(x, t))

    def curvature(self, x: Vector, t: ArrayLike) -> Vector:
        """Entrywise d in [0, 1]: the quadratic of curvature d/t that touches the envelope at x majorises it.

        The envelope is 1/t-smooth, so d = 1 always serves; radial penalties have the sharper
        d = (x - prox)/x of iteratively reweighted least squares, which is what makes medians fast to compute.
        """
        return jax.tree.map(jnp.ones_like, x)

    def envelope(self, x: Vector, t: ArrayLike) -> Float[Array, ""]:
        """Moreau envelope; its gradient is ``pull(x, t) / t``, also where the prox has kinks."""
        value: Array = _envelope(self, x, t)
        return value


@eqx.filter_custom_jvp
def _envelope(penalty: Penalty, x: Vector, t: ArrayLike) -> Array:
    value, size = penalty.value(penalty.prox(x, t)), tree.norm(penalty.pull(x, t))
    return value + (size * (size / (2 * t))).astype(value.dtype)


@_envelope.def_jvp  # type: ignore[untyped-decorator]
def _envelope_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
    # Danskin: the minimiser counts as constant. So no prox is differentiated, which at a kink is arbitrary.
    penalty, x, t = primals
    prox, pull = penalty.prox(x, t), penalty.pull(x, t)

    def at_prox(penalty: Penalty, y: Vector, t: ArrayLike) -> Array:
        value, gap = penalty.value(prox), tree.axpy(1, tree.sub(y, x), pull)
        return value + (tree.full_dot(gap, gap) / (2 * t)).astype(value.dtype)

    return _envelope(penalty, x, t), eqx.filter_jvp(at_prox, primals, tangents)[1]


class Zero(Penalty):
    """The penalty that is 0 everywhere: prox(x) = x. In Fed+ parties then never meet (local training)."""

    def value(self, x: Vector) -> Float[Array, ""]:
        """0."""
        return jnp.zeros((), tree.dtype(x))

    def prox(self, x: Vector, t: ArrayLike) -> Vector:
        """``x`` itself."""
        return x

    def curvature(self, x: Vector, t: ArrayLike) -> Vector:
        """0: the envelope is flat."""
        return jax.tree.map(jnp.zeros_like, x)


class OriginIndicator(Penalty):
    """0 at the origin and infinite elsewhere: prox(x) = 0. In Fed+ this is consensus (FedProx, FedAvg)."""

    def value(self, x: Vector) -> Float[Array, ""]:
        """0 where x = 0, infinity elsewhere."""
        size = tree.norm(x)
        return jnp.where(size == 0, jnp.zeros_like(size), jnp.inf)

    def prox(self, x: Vector, t: ArrayLike) -> Vector:
        """The zero vector."""
        return jax.tree.map(jnp.zeros_like, x)


class L1(Penalty):
    """Sum of absolute values: prox is the soft threshold sign(x)*max(|x| - t, 0); the envelope is Huber's."""

    @property
    def bounded_pull(self) -> bool:
        """It is."""
        return True

    def value(self, x: Vector) -> Float[Array, ""]:
        """Sum of |x_j|."""
        start = jnp.zeros((), tree.dtype(x))
        return sum((jnp.sum(jnp.abs(leaf)) for leaf in jax.tree.leaves(x)), start=start)

    def prox(self, x: Vector, t: ArrayLike) -> Vector:
        """Soft threshold, entry by entry. Source: Fed+ (19), errata 1."""
        return tree.sub(x, self.pull(x, t))     # the odd soft threshold, exact for |x| <= t

    def pull(self, x: Vector, t: ArrayLike) -> Vector:
        """``x`` clipped to [-t, t]."""
        return jax.tree.map(lambda a: jnp.clip(a, jnp.negative(t), t).astype(a.dtype), x)

    def curvature(self, x: Vector, t: ArrayLike) -> Vector:
        """min(1, t/|x_j|)."""
        return jax.tree.map(lambda a: (t / jnp.maximum(jnp.abs(a), t)).astype(a.dtype), x)


class L2Norm(Penalty):
    """Euclidean norm (not squared) of the whole vector: prox, the block soft threshold, shortens it by t."""

    @property
    def bounded_pull(self) -> bool:
        """It is."""
        return True

    def value(self, x: Vector) -> Float[Array, ""]:
        """|x|."""
        return tree.norm(x)

    def prox(self, x: Vector, t: ArrayLike) -> Vector:
        """max(0, 1 - t/|x|) * x. Source: Fed+, FedGeoMed+."""
        size = tree.norm(x)
        keep = jnp.where(size > t, 1 - t / jnp.maximum(size, t), 0)
        return jax.tree.map(lambda a: (keep * a).astype(a.dtype), x)

    def pull(self, x: Vector, t: ArrayLike) -> Vector:
        """``x``, or where it is longer than t the vector of length t along it."""
        size = jnp.maximum(tree.norm(x), t)
        return jax.tree.map(lambda a: (t * (a / size)).astype(a.dtype), x)

    def curvature(self, x: Vector, t: ArrayLike) -> Vector:
        """min(1, t/|x|), the same for every entry: Weiszfeld's weight."""
        d = t / jnp.maximum(tree.norm(x), t)
        return jax.tree.map(lambda a: jnp.broadcast_to(d, a.shape).astype(a.dtype), x)


class SquaredL2(Penalty):
    """|x|^2 / 2: prox(x) = x / (1 + t)."""

    def value(self, x: Vector) -> Float[Array, ""]:
        """|x|^2 / 2."""
        size = tree.norm(x)
        return size * size / 2

    def prox(self, x: Vector, t: ArrayLike) -> Vector:
        """``x / (1 + t)``. Source: Fed+, FedAvg+."""
        return jax.tree.map(lambda a: (a / (1 + t)).astype(a.dtype), x)

    def pull(self, x: Vector, t: ArrayLike) -> Vector:
        """``t*x / (1 + t)``."""
        return jax.tree.map(lambda a: (a * (t / (1 + t))).astype(a.dtype), x)

    def curvature(self, x: Vector, t: ArrayLike) -> Vector:
        """``t / (1 + t)``: the envelope is this quadratic."""
        return jax.tree.map(lambda a: jnp.full_like(a, t / (1 + t)), x)


class Quadratic(Penalty):
    """x'Qx / 2 for a symmetric positive semidefinite Q: a matrix over the flattened vector, or its diagonal.

    Attributes:
        weight: [d, d] (full Q) or [d] (its diagonal), d the total number of entries, in the order of
            ``jax.flatten_util.ravel_pytree``.
    """

    weight: Float[Array, "d d"] | Float[Array, " d"]

    def __check_init__(self) -> None:
        shape = jnp.shape(self.weight)
        if len(shape) not in (1, 2) or (len(shape) == 2 and shape[0] != shape[1]):
            raise ValueError(f"Quadratic(weight=...) needs a [d, d] matrix or its [d] diagonal, got {shape}")

    def _over(self, v: Float[Array, " d"]) -> Array:
        """The weight as it acts on ``v``: in its dtype, and of its size."""
        if jnp.shape(self.weight)[0] != v.size:
            raise ValueError(f"Quadratic has a weight of shape {jnp.shape(self.weight)}, "
                             f"but the vector has {v.size} entries")
        return jnp.asarray(self.weight, v.dtype)

    def value(self, x: Vector) -> Float[Array, ""]:
        """``x'Qx / 2``."""
        v, _ = ravel_pytree(x)
        return tree.full_dot(v, _times(self._over(v), v)) / 2

    def prox(self, x: Vector, t: ArrayLike) -> Vector:
        """``(I + tQ)^-1 x``."""
        v, unravel = ravel_pytree(x)
        scaled = jnp.asarray(t, v.dtype) * self._over(v)
        if scaled.ndim == 1:
            return unravel(v / (1 + scaled))
        return unravel(jax.scipy.linalg.solve(jnp.eye(v.size, dtype=v.dtype) + scaled, v, assume_a="pos"))

    def pull(self, x: Vector, t: ArrayLike) -> Vector:
        """``tQ prox(x)``."""
        p, unravel = ravel_pytree(self.prox(x, t))
        return unravel(jnp.asarray(t, p.dtype) * _times(self._over(p), p))


def _times(q: Array, v: Array) -> Array:
    return jnp.matmul(q, v, precision="highest") if q.ndim == 2 else q * v


class Scaled(Penalty):
    """``scale`` times a penalty: how a layer gets a delta of its own.

    Attributes:
        penalty: the inner penalty.
        scale: the factor, positive.
    """

    penalty: Penalty
    scale: ArrayLike

    @property
    def bounded_pull(self) -> bool:
        """As the inner penalty."""
        return self.penalty.bounded_pull

    def value(self, x: Vector) -> Float[Array, ""]:
        """The inner value times the scale."""
        value = self.penalty.value(x)
        return jnp.multiply(self.scale, value).astype(value.dtype)

    def prox(self, x: Vector, t: ArrayLike) -> Vector:
        """The inner prox with step scale * t."""
        return self.penalty.prox(x, self.scale * t)

    def pull(self, x: Vector, t: ArrayLike) -> Vector:
        """The inner pull with step scale * t."""
        return self.penalty.pull(x, self.scale * t)

    def curvature(self, x: Vector, t: ArrayLike) -> Vector:
        """The inner curvature with step scale * t."""
        return self.penalty.curvature(x, self.scale * t)


class PerLayer(Penalty):
    """A sum of penalties over layers: each top-level entry of a dict of parameters has its own.

    Source: Fed+, section 4.4.1 (hybridization). Example: ``PerLayer({"head": L1()}, default=SquaredL2())``
    keeps a sparse personal head on layers that are averaged softly.

    Attributes:
        layers: penalty by top-level key of the parameter dict.
        default: the penalty of the layers not named; required where any is left.
    """

    layers: dict[str, Penalty]
    default: Penalty | None = None

    @property
    def bounded_pull(self) -> bool:
        """Where every layer's is."""
        return all(p.bounded_pull for p in (*self.layers.values(), self.default) if p is not None)

    def _of(self, x: Vector) -> dict[str, Penalty]:
        if not isinstance(x, dict):
            raise TypeError(f"PerLayer needs parameters that are a dict of layers, got {type(x).__name__}")
        unknown = sorted(set(self.layers) - set(x))
        if unknown:
            raise KeyError(f"PerLayer names layer {unknown[0]!r}, but the parameters have {sorted(x)}")
        missing = sorted(set(x) - set(self.layers))
        if missing and self.default is None:
            raise KeyError(f"PerLayer has no penalty for layer {missing[0]!r}: name it or give default=")
        return {key: self.layers.get(key, self.default) for key in x}  # type: ignore[misc]

    def value(self, x: PyTree[Any]) -> Float[Array, ""]:
        """Sum of the layers' values."""
        start = jnp.zeros((), tree.dtype(x))
        return sum((p.value(x[key]).astype(start.dtype) for key, p in self._of(x).items()), start=start)

    def prox(self, x: PyTree[Any], t: ArrayLike) -> Vector:
        """Each layer's own prox."""
        return {key: p.prox(x[key], t) for key, p in self._of(x).items()}

    def pull(self, x: PyTree[Any], t: ArrayLike) -> Vector:
        """Each layer's own pull."""
        return {key: p.pull(x[key], t) for key, p in self._of(x).items()}

    def curvature(self, x: PyTree[Any], t: ArrayLike) -> Vector:
        """Each layer's own curvature."""
        return {key: p.curvature(x[key], t) for key, p in self._of(x).items()}
