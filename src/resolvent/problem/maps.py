"""Objectives composed with a map, f_k(T_k(w)): the objectives of personalisation and meta-learning.

FedMix mixes the shared model with the party's own optimum, T(w) = alpha w + (1-alpha) x_k. MAML and Per-FedAvg look one
gradient step ahead, T(w) = w - gamma grad f_k(w). By the chain rule the gradient is T'(w)^T grad f_k(T(w)).
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PyTree
from typing_extensions import override

from resolvent.arguments import CheckedArguments
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.models.model import Model
from resolvent.problem.models.stateful import ParamsAndState
from resolvent.problem.objective import Batch, LocalObjective
from resolvent.problem.oracle import Oracle, ShapeOracle
from resolvent.problem.quadratic import QuadraticOracle

__all__ = ["Ascent", "Composed", "GradientStep", "Map", "Mixture", "OnlyLayers", "through"]

Gradient = Callable[[Vector], Vector]


class Map(CheckedArguments, eqx.Module):
    """A map T of the parameters, which may use gradients of the objective that it is composed with."""

    @property
    def minibatch_parts(self) -> int:
        """Number of parts of a minibatch: for T, for the gradient at T(w) and for the pullback. 1: all use all of
        it.
        """
        return 1

    @abstractmethod
    def __call__(self, w: Vector, grad: Gradient) -> Vector:
        """T(w); ``grad`` is the objective's gradient, over all samples or a minibatch."""

    @abstractmethod
    def pullback(self, w: Vector, g: Vector, grad: Gradient) -> Vector:
        """T'(w)^T g: the transposed Jacobian of T at w times a vector g, for the chain rule."""


class Mixture(Map):
    """T(w) = alpha w + (1 - alpha) fixed. Source: FedMix, (FedMix).

    Attributes:
        alpha: the weight of w, in [0, 1].
        fixed: the other model: in FedMix x_k, the party's own optimum.
    """

    alpha: ArrayLike
    fixed: Vector

    @override
    def __call__(self, w: Vector, grad: Gradient) -> Vector:
        return tree.lerp(self.fixed, w, self.alpha)

    @override
    def pullback(self, w: Vector, g: Vector, grad: Gradient) -> Vector:
        return jax.tree.map(lambda leaf: (self.alpha * leaf).astype(leaf.dtype), g)


class GradientStep(Map):
    """T(w) = w - rate grad f(w). Source: MAML (Finn et al.); FedMix, (1).

    Attributes:
        rate: gamma, the step size.
        second_order: whether the pullback has its Hessian term, g - rate H g; without it T' is taken as the identity.
        delta: if set, H g is the central difference (grad f(w + delta g) - grad f(w - delta g)) / (2 delta), with an
            error of O(delta^2 |g|^3) for four times differentiable f; None: the exact derivative.
        independent: whether T, the gradient at T(w) and the Hessian each use samples of their own, a third of every
            minibatch (half without the Hessian), as Per-FedAvg's batches D, D', D''.

    Raises:
        InputError: ``rate`` or ``delta`` is not positive.

    Example:
        >>> step = rv.problems.GradientStep(0.5)
        >>> step(jnp.array([2.0]), grad=lambda w: w).tolist()
        [1.0]
    """

    rate: Annotated[ArrayLike, "(0, inf)"]
    second_order: bool = eqx.field(static=True, default=True)
    delta: Annotated[ArrayLike | None, "(0, inf)"] = None
    independent: bool = eqx.field(static=True, default=False)

    @property
    @override
    def minibatch_parts(self) -> int:
        if not self.independent:
            return 1
        return 3 if self.second_order else 2

    @override
    def __call__(self, w: Vector, grad: Gradient) -> Vector:
        return tree.axpy(-jnp.asarray(self.rate), grad(w), w)

    @override
    def pullback(self, w: Vector, g: Vector, grad: Gradient) -> Vector:
        """g - rate H(w) g, with a forward derivative of the gradient, because H is symmetric."""
        if not self.second_order:
            return g
        if self.delta is None:
            return tree.axpy(-jnp.asarray(self.rate), jax.jvp(grad, (w,), (g,))[1], g)
        delta = jnp.asarray(self.delta)
        difference = tree.sub(grad(tree.axpy(delta, g, w)), grad(tree.axpy(-delta, g, w)))
        return tree.axpy(-jnp.asarray(self.rate) / (2 * delta), difference, g)


class Ascent(Map):
    """T(w) = w + radius grad f(w) / |grad f(w)|, with T' taken as the identity: the step of SAM.

    T(w) = w at grad f = 0.

    The gradient of f at T(w) approximates that of max over |e| <= radius of f(w + e).

    Attributes:
        radius: rho, the distance to the point whose gradient is used.

    Raises:
        InputError: ``radius`` is not positive.

    Example:
        >>> rv.problems.Ascent(5.0)(jnp.array([3.0, 4.0]), grad=lambda w: w).tolist()
        [6.0, 8.0]

    References:
        Foret, Kleiner, Mobahi, Neyshabur: Sharpness-Aware Minimization for Efficiently Improving Generalization, ICLR
        2021, Algorithm 1.
    """

    radius: Annotated[ArrayLike, "(0, inf)"]

    @override
    def __call__(self, w: Vector, grad: Gradient) -> Vector:
        g = grad(w)
        norm = tree.norm(g)
        return tree.axpy(self.radius / jnp.where(norm > 0, norm, 1), g, w)

    @override
    def pullback(self, w: Vector, g: Vector, grad: Gradient) -> Vector:
        return g


class OnlyLayers(Map):
    """T(w) = w, with T' taken as the projection on some leaves, so that steps along the gradient change only these.

    Attributes:
        layers: patterns of the paths of leaves, see ``resolvent.math.tree.matches``.
        selected: whether the leaves that match change, or all others.
    """

    layers: tuple[str, ...] = eqx.field(static=True)
    selected: bool = eqx.field(static=True, default=True)

    @override
    def __call__(self, w: Vector, grad: Gradient) -> Vector:
        return w

    @override
    def pullback(self, w: Vector, g: Vector, grad: Gradient) -> Vector:
        leaves = [leaf if tree.is_selected(self.layers, path) == self.selected else jnp.zeros_like(leaf)
                  for path, leaf in tree.named_leaves(g)]
        return jax.tree.unflatten(jax.tree.structure(g), leaves)


def as_patterns(layers: str | list[str] | tuple[str, ...] | None) -> tuple[str, ...] | None:
    """One or several patterns of the paths of leaves as a tuple; None stays."""
    return (layers,) if isinstance(layers, str) else layers if layers is None else tuple(layers)


def check_patterns(owner: str, patterns: tuple[str, ...], w: Vector) -> None:
    """Refuse patterns of which one matches no parameter of a model."""
    paths = [path for path, _ in tree.named_leaves(w)]
    if unused := [pattern for pattern in patterns if not any(tree.matches(pattern, path) for path in paths)]:
        layers = dict.fromkeys(path.rpartition(".")[0] or path for path in paths)
        raise InputError(f"{owner}(layers={list(patterns)}): {unused[0]!r} matches no parameter: give layers= names "
                         f"of these layers, or patterns of them: {', '.join(layers)[:600]}")


class Composed(Oracle):
    """The objective w -> f(T(w)).

    Attributes:
        inner: f.
        map: T.
    """

    inner: Oracle
    map: Map

    @property
    @override
    def has_random_layers(self) -> bool:
        return self.inner.has_random_layers

    @override
    def with_objective(self, objective: LocalObjective, **values: Any) -> "Composed":
        """The map of the objective; the context's values are not mapped."""
        return replace(self, inner=self.inner.with_objective(objective, **values))

    @override
    def total(self, f: Callable[[Batch, Model], PyTree[Any]], zero: PyTree[Any]) -> PyTree[Any]:
        return self.inner.total(f, zero)

    @override
    def init_memory(self, w: Vector) -> PyTree[Any]:
        return self.inner.init_memory(w)

    @property
    @override
    def model_state(self) -> dict[str, Any] | None:
        return self.inner.model_state

    @override
    def at_step(self, key: Array) -> "Composed":
        """All gradients of the step have the same random layers, so that it descends one function."""
        return replace(self, inner=self.inner.at_step(key))

    @override
    def value(self, w: Vector) -> Float[Array, ""]:
        return self.inner.value(self.map(w, self.inner.grad))

    @override
    def grad(self, w: Vector) -> Vector:
        """The gradient of w -> f(T(w)) by the chain rule: T'(w)^T grad f(T(w))."""
        return self.map.pullback(w, self.inner.grad(self.map(w, self.inner.grad)), self.inner.grad)

    @override
    def batch_grad(self, w: Vector, positions: Int[Array, " B"], mask: Bool[Array, " B"],
                   memory: PyTree[Any] = ()) -> tuple[Vector, PyTree[Any]]:
        """An estimate of the gradient from a minibatch, or from its parts (``Map.minibatch_parts``).

        The memory after it is that of the gradient at T(w).
        """
        parts = _split_minibatch(positions, mask, self.map.minibatch_parts)
        of_map, outer, of_pullback = ([partial(self.inner.batch_grad, positions=p, mask=m, memory=memory)
                                       for p, m in parts] * 3)[:3]
        gradient, after = outer(self.map(w, lambda v: of_map(v)[0]))
        return self.map.pullback(w, gradient, lambda v: of_pullback(v)[0]), after

    @override
    def held_out(self, w: Vector) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Held-out loss and score of T(w); T itself uses the training samples."""
        if isinstance(w, ParamsAndState):
            return replace(self, inner=self.inner.with_model_state(w.state)).held_out(w.params)
        return self.inner.held_out(self.map(w, self.inner.grad))


def _split_minibatch(positions: Int[Array, " B"], mask: Bool[Array, " B"],
                     parts: int) -> list[tuple[Int[Array, " P"], Bool[Array, " P"]]]:
    """Split a minibatch into parts, sample by sample in turn. An empty part is replaced by the first, never empty,
    one.
    """
    def distribute(x: Array) -> Array:
        return jnp.pad(x, (0, -len(x) % parts)).reshape(-1, parts).T

    of_parts, valid = distribute(positions), distribute(mask)
    has_samples = jnp.any(valid, axis=1, keepdims=True)
    of_parts, valid = (jnp.where(has_samples, x, x[:1]) for x in (of_parts, valid))
    return list(zip(of_parts, valid, strict=True))


def through(oracle: Oracle, map: Map) -> Oracle:
    """The oracle of f(T(w)).

    A quadratic through a mixture stays a quadratic, so that it has an exact proximal point; an oracle that has only
    shapes stays as it is, for T keeps shapes.
    """
    if isinstance(oracle, ShapeOracle):
        return oracle
    if isinstance(oracle, QuadraticOracle) and isinstance(map, Mixture):
        alpha = jnp.asarray(map.alpha)
        constant_part = (1 - alpha) * map.fixed
        return QuadraticOracle(oracle.samples, alpha**2 * oracle.hessian,
                               alpha * (oracle.linear - oracle.hessian @ constant_part), oracle.value(constant_part),
                               memory=oracle.memory, recording=oracle.recording)
    return Composed(oracle.samples, oracle, map, memory=oracle.memory, recording=oracle.recording)
