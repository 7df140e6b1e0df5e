r"""Penalties, their proximal operators and their Moreau envelopes.

For a convex penalty :math:`\varphi` and t > 0,

.. math::

    \mathrm{prox}_{t\varphi}(x) = \underset{\theta}{\operatorname{argmin}} \varphi(\theta) + \tfrac1{2t}\|x-\theta\|^2,
    \qquad
    \mathrm{env}_{t\varphi}(x) = \min_\theta\; \varphi(\theta) + \tfrac1{2t}\|x-\theta\|^2 .

Fed+ writes its penalty as :math:`\Psi = \sigma\delta\varphi`, so that
:math:`\mathrm{prox}_\Psi^{1/\sigma} = \mathrm{prox}_{\delta\varphi}` does not depend on sigma.
Vectors are pytrees; a norm is over all leaves together. Values and envelopes of vectors in half precision are float32.
Source: Fed+ (newest notation), (6), (11) and (19), with the soft threshold as an odd function.

To write a penalty of your own, derive from ``Penalty`` and define ``value`` and ``prox``.
"""

import functools
from abc import abstractmethod
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Float, PyTree
from typing_extensions import override

from resolvent.arguments import CheckedArguments
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.tree import Vector

__all__ = ["L1", "L2Norm", "OriginIndicator", "Penalty", "PerLayer", "Quadratic", "Scaled", "SquaredL2", "Zero"]


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


class Zero(Penalty):
    """The penalty 0: prox(x) = x. In Fed+ it means local training.

    Example:
        >>> rv.penalties.Zero().prox(jnp.array([3.0, -1.0]), 0.5).tolist()
        [3.0, -1.0]
    """

    ignores_layers: ClassVar[bool] = True
    has_uniform_curvature: ClassVar[bool] = True

    @override
    def value(self, x: Vector) -> Float[Array, ""]:
        return jnp.zeros((), tree.dtype(x))

    @override
    def prox(self, x: Vector, t: ArrayLike) -> Vector:
        return x

    @override
    def curvature(self, x: Vector, t: ArrayLike) -> Vector:
        return jax.tree.map(jnp.zeros_like, x)


class OriginIndicator(Penalty):
    """0 at the origin and infinite elsewhere: prox(x) = 0. In Fed+ it means one shared model (FedProx, FedAvg).

    Example:
        >>> rv.penalties.OriginIndicator().prox(jnp.array([3.0, -1.0]), 0.5).tolist()
        [0.0, 0.0]
    """

    ignores_layers: ClassVar[bool] = True
    has_uniform_curvature: ClassVar[bool] = True

    @override
    def value(self, x: Vector) -> Float[Array, ""]:
        size = tree.norm(x)
        return jnp.where(size == 0, jnp.zeros_like(size), jnp.inf)

    @override
    def prox(self, x: Vector, t: ArrayLike) -> Vector:
        return jax.tree.map(jnp.zeros_like, x)


class L1(Penalty):
    """Sum of absolute values: prox is the soft threshold sign(x)*max(|x| - t, 0); the envelope is Huber's.

    Example:
        >>> rv.penalties.L1().prox(jnp.array([3.0, -1.0]), 0.5).tolist()
        [2.5, -0.5]
    """

    ignores_layers: ClassVar[bool] = True
    has_bounded_pull: ClassVar[bool] = True

    @override
    def value(self, x: Vector) -> Float[Array, ""]:
        start = jnp.zeros((), tree.dtype(x))
        return sum((jnp.sum(jnp.abs(leaf)) for leaf in jax.tree.leaves(tree.widen(x))), start=start)

    @override
    def prox(self, x: Vector, t: ArrayLike) -> Vector:
        """The soft threshold of each entry. Source: Fed+ (19), errata 1."""
        return tree.sub(x, self.pull(x, t))  # an odd function, and exact for |x| <= t

    @override
    def pull(self, x: Vector, t: ArrayLike) -> Vector:
        """``x`` clipped to [-t, t]."""
        return jax.tree.map(lambda a: jnp.clip(a, jnp.negative(t), t).astype(a.dtype), x)

    @override
    def curvature(self, x: Vector, t: ArrayLike) -> Vector:
        """min(1, t/|x_j|) for each coordinate j: 1 where the prox is 0, and smaller farther away."""
        return jax.tree.map(lambda a: (t / jnp.maximum(jnp.abs(tree.widen(a)), t)).astype(a.dtype), x)

    @override
    def threshold(self, x: Vector) -> Float[Array, ""]:
        """The largest absolute value."""
        start = jnp.zeros((), tree.dtype(x))
        return functools.reduce(jnp.maximum, (jnp.max(jnp.abs(leaf), initial=0) for leaf in
                                              jax.tree.leaves(tree.widen(x))), start)


class L2Norm(Penalty):
    """Euclidean norm (not squared) of the whole vector: prox is the block soft threshold, which shortens it by t.

    Example:
        >>> rv.penalties.L2Norm().prox(jnp.array([3.0, 4.0]), 2.5).tolist()
        [1.5, 2.0]
    """

    ignores_layers: ClassVar[bool] = True
    has_bounded_pull: ClassVar[bool] = True
    has_uniform_curvature: ClassVar[bool] = True

    @override
    def value(self, x: Vector) -> Float[Array, ""]:
        return tree.norm(x)

    @override
    def prox(self, x: Vector, t: ArrayLike) -> Vector:
        """max(0, 1 - t/|x|) * x. Source: Fed+, FedGeoMed+."""
        size = tree.norm(x)
        factor = jnp.where(size > t, 1 - t / jnp.maximum(size, t), 0)
        return tree.scale(factor, x)

    @override
    def pull(self, x: Vector, t: ArrayLike) -> Vector:
        """``x``, shortened to length t if it is longer."""
        size = jnp.maximum(tree.norm(x), t)
        return jax.tree.map(lambda a: (t * (a / size)).astype(a.dtype), x)

    @override
    def curvature(self, x: Vector, t: ArrayLike) -> Vector:
        """min(1, t/|x|) for every entry: Weiszfeld's weight."""
        d = t / jnp.maximum(tree.norm(x), t)
        return jax.tree.map(lambda a: jnp.broadcast_to(d, a.shape).astype(a.dtype), x)

    @override
    def threshold(self, x: Vector) -> Float[Array, ""]:
        """The length |x|."""
        return tree.norm(x)


class SquaredL2(Penalty):
    """|x|^2 / 2: prox(x) = x / (1 + t).

    Example:
        >>> rv.penalties.SquaredL2().prox(jnp.array([3.0, -1.0]), 1.0).tolist()
        [1.5, -0.5]
    """

    ignores_layers: ClassVar[bool] = True
    has_uniform_curvature: ClassVar[bool] = True

    @override
    def value(self, x: Vector) -> Float[Array, ""]:
        size = tree.norm(x)
        return size * size / 2

    @override
    def prox(self, x: Vector, t: ArrayLike) -> Vector:
        """``x / (1 + t)``. Source: Fed+, FedAvg+."""
        return jax.tree.map(lambda a: (a / (1 + t)).astype(a.dtype), x)

    @override
    def pull(self, x: Vector, t: ArrayLike) -> Vector:
        """``x - prox(x, t) = t*x / (1 + t)``: a quadratic pulls in proportion to the length."""
        return jax.tree.map(lambda a: (tree.widen(a) * (t / (1 + t))).astype(a.dtype), x)

    @override
    def curvature(self, x: Vector, t: ArrayLike) -> Vector:
        """``t / (1 + t)``, because the envelope is this quadratic."""
        return jax.tree.map(lambda a: jnp.full_like(a, t / (1 + t)), x)


class Quadratic(Penalty):
    """x'Qx / 2 for a symmetric positive semidefinite matrix Q over the flattened vector.

    Attributes:
        weight: Q, [d, d], or its diagonal, [d], with d the number of entries in the order of
            ``jax.flatten_util.ravel_pytree``.

    Raises:
        InputError: ``weight`` has another shape.

    Example:
        >>> rv.penalties.Quadratic(jnp.array([1.0, 3.0])).prox(jnp.array([2.0, 4.0]), 1.0).tolist()
        [1.0, 1.0]
    """

    weight: Float[Array, "d d"] | Float[Array, " d"]
    ignores_layers: ClassVar[bool] = True

    def __check_init__(self) -> None:
        shape = jnp.shape(self.weight)
        if len(shape) not in (1, 2) or (len(shape) == 2 and shape[0] != shape[1]):
            raise InputError(f"Quadratic(weight=...) needs a [d, d] matrix or its [d] diagonal, got {shape}")

    def _weight_for(self, v: Float[Array, " d"]) -> Array:
        """The weight in the dtype of ``v``, checked to have its size."""
        if jnp.shape(self.weight)[0] != v.size:
            raise InputError(f"Quadratic has a weight of shape {jnp.shape(self.weight)}, "
                             f"but the vector has {v.size} entries")
        return jnp.asarray(self.weight, v.dtype)

    @override
    def value(self, x: Vector) -> Float[Array, ""]:
        v, _ = ravel_pytree(tree.widen(x))
        return tree.full_dot(v, _multiply(self._weight_for(v), v)) / 2

    @override
    def prox(self, x: Vector, t: ArrayLike) -> Vector:
        """``(I + tQ)^-1 x``, by a Cholesky factorisation, or elementwise if Q is diagonal."""
        v, unravel = ravel_pytree(tree.widen(x))
        scaled = jnp.asarray(t, v.dtype) * self._weight_for(v)
        solution = (v / (1 + scaled) if scaled.ndim == 1 else
                    jax.scipy.linalg.solve(jnp.eye(v.size, dtype=v.dtype) + scaled, v, assume_a="pos"))
        return tree.cast(unravel(solution), x)

    @override
    def pull(self, x: Vector, t: ArrayLike) -> Vector:
        """``x - prox(x, t) = tQ prox(x, t)``, without the cancellation of the difference."""
        p, unravel = ravel_pytree(self.prox(tree.widen(x), t))
        return tree.cast(unravel(jnp.asarray(t, p.dtype) * _multiply(self._weight_for(p), p)), x)


def _multiply(q: Array, v: Array) -> Array:
    return jnp.matmul(q, v, precision="highest") if q.ndim == 2 else q * v


class Scaled(Penalty):
    """``scale`` times a penalty, for example to give a layer its own delta.

    Attributes:
        penalty: the inner penalty.
        scale: the factor, positive.

    Example:
        >>> rv.penalties.Scaled(rv.penalties.L1(), 2.0).prox(jnp.array([3.0, -1.0]), 0.5).tolist()
        [2.0, 0.0]
    """

    penalty: Penalty
    scale: ArrayLike

    @property
    @override
    def has_bounded_pull(self) -> bool:
        return self.penalty.has_bounded_pull

    @property
    @override
    def has_uniform_curvature(self) -> bool:
        return self.penalty.has_uniform_curvature

    @property
    @override
    def ignores_layers(self) -> bool:
        return self.penalty.ignores_layers

    @override
    def value(self, x: Vector) -> Float[Array, ""]:
        value = self.penalty.value(x)
        return jnp.multiply(self.scale, value).astype(value.dtype)

    @override
    def prox(self, x: Vector, t: ArrayLike) -> Vector:
        return self.penalty.prox(x, self.scale * t)

    @override
    def pull(self, x: Vector, t: ArrayLike) -> Vector:
        return self.penalty.pull(x, self.scale * t)

    @override
    def curvature(self, x: Vector, t: ArrayLike) -> Vector:
        return self.penalty.curvature(x, self.scale * t)

    @override
    def threshold(self, x: Vector) -> Float[Array, ""]:
        return self.penalty.threshold(x) / self.scale


class PerLayer(Penalty):
    """A sum of penalties over layers, which are the top-level entries of a dict of parameters.

    Attributes:
        layers: the penalty of each layer by its key.
        default: the penalty of all other layers; required if there are any.

    Raises:
        TypeError: at the first use: the parameters are not a dict.
        KeyError: at the first use: a layer does not exist, or a layer has no penalty.

    Example:
        Sparse differences of the head, small differences of all other layers:

        >>> penalty = rv.penalties.PerLayer({"head": rv.penalties.L1()}, default=rv.penalties.SquaredL2())

    References:
        Fed+, section 4.4.1 (hybridization).
    """

    layers: dict[str, Penalty]
    default: Penalty | None = None

    @property
    @override
    def has_bounded_pull(self) -> bool:
        return all(p.has_bounded_pull for p in (*self.layers.values(), self.default) if p is not None)

    def _by_layer(self, x: Vector) -> dict[str, Penalty]:
        if not isinstance(x, dict):
            raise TypeError(f"PerLayer needs parameters that are a dict of layers, got {type(x).__name__}")
        unknown = sorted(set(self.layers) - set(x))
        if unknown:
            raise KeyError(f"PerLayer names layer {unknown[0]!r}, but the parameters have {sorted(x)}")
        missing = sorted(set(x) - set(self.layers))
        if missing and self.default is None:
            raise KeyError(f"PerLayer has no penalty for layer {missing[0]!r}: name it or set default=")
        return {key: self.layers.get(key, self.default) for key in x}  # type: ignore[misc]

    @override
    def value(self, x: PyTree[Any]) -> Float[Array, ""]:
        start = jnp.zeros((), tree.dtype(x))
        return sum((p.value(x[key]).astype(start.dtype) for key, p in self._by_layer(x).items()), start=start)

    @override
    def prox(self, x: PyTree[Any], t: ArrayLike) -> Vector:
        return {key: p.prox(x[key], t) for key, p in self._by_layer(x).items()}

    @override
    def pull(self, x: PyTree[Any], t: ArrayLike) -> Vector:
        return {key: p.pull(x[key], t) for key, p in self._by_layer(x).items()}

    @override
    def curvature(self, x: PyTree[Any], t: ArrayLike) -> Vector:
        return {key: p.curvature(x[key], t) for key, p in self._by_layer(x).items()}

    @override
    def threshold(self, x: PyTree[Any]) -> Float[Array, ""]:
        """The largest of the layers' thresholds."""
        start = jnp.zeros((), tree.dtype(x))
        return functools.reduce(jnp.maximum, (p.threshold(x[key]) for key, p in self._by_layer(x).items()), start)
