r"""Objectives composed with a map: f_k(T_k(w)), from which personalised and meta-learning objectives are made.

FedMix mixes the shared model with the party's own optimum, T(w) = a w + (1-a) x_k; MAML and PerFedAvg look one gradient
step ahead, T(w) = w - gamma grad f_k(w). By the chain rule the gradient is T'(w)^T grad f_k(T(w)).
"""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle, QuadraticOracle, ShapeOracle

__all__ = ["Composed", "GradientStep", "Map", "Mixture", "through"]

Gradient = Callable[[Vector], Vector]


class Map(eqx.Module):
    """A map T of the parameters, which may ask for gradients of the objective that it is composed with."""

    @property
    def hands(self) -> int:
        """Into how many parts a minibatch is dealt: for T, the gradient at T(w) and the pullback; 1 shares it."""
        return 1

    @abstractmethod
    def __call__(self, w: Vector, grad: Gradient) -> Vector:
        """T(w); ``grad`` is the objective's gradient, over all samples or a minibatch."""

    @abstractmethod
    def pullback(self, w: Vector, g: Vector, grad: Gradient) -> Vector:
        """T'(w)^T g."""


class Mixture(Map):
    """T(w) = share w + (1 - share) own. Source: FedMix, (FedMix).

    Attributes:
        share: FedMix's alpha_k, in [0, 1]: 1 is the shared model, 0 the own one.
        own: x_k, the party's own optimum.
    """

    share: ArrayLike
    own: Vector

    def __call__(self, w: Vector, grad: Gradient) -> Vector:
        """The mixture."""
        return tree.lerp(self.own, w, self.share)

    def pullback(self, w: Vector, g: Vector, grad: Gradient) -> Vector:
        """Share times g."""
        return jax.tree.map(lambda leaf: (self.share * leaf).astype(leaf.dtype), g)


class GradientStep(Map):
    """T(w) = w - rate grad f(w). Source: MAML (Finn et al.); FedMix, (1).

    Attributes:
        rate: gamma, the length of the step.
        second_order: whether the pullback has its Hessian term, g - rate H g; without it T' counts as the identity.
        delta: H g as the central difference (grad f(w + delta g) - grad f(w - delta g)) / (2 delta), which is off by
            O(delta^2 |g|^3) where f has four derivatives; None: the exact derivative.
        independent: whether T, the gradient at T(w) and the Hessian each see samples of their own: a third of every
            minibatch (half without the Hessian), as Per-FedAvg's three batches D, D', D''.
    """

    rate: ArrayLike
    second_order: bool = eqx.field(static=True, default=True)
    delta: ArrayLike | None = None
    independent: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        for name in ("rate", "delta"):
            value = getattr(self, name)
            if isinstance(value, int | float) and not value > 0:
                raise ValueError(f"GradientStep({name}={value}) must be positive")

    @property
    def hands(self) -> int:
        """Three, two without the Hessian, or one for all."""
        if not self.independent:
            return 1
        return 3 if self.second_order else 2

    def __call__(self, w: Vector, grad: Gradient) -> Vector:
        """One step ahead."""
        return tree.axpy(-jnp.asarray(self.rate), grad(w), w)

    def pullback(self, w: Vector, g: Vector, grad: Gradient) -> Vector:
        """G - rate H(w) g: H is symmetric, so a forward derivative of the gradient will do."""
        if not self.second_order:
            return g
        if self.delta is None:
            return tree.axpy(-jnp.asarray(self.rate), jax.jvp(grad, (w,), (g,))[1], g)
        delta = jnp.asarray(self.delta)
        difference = tree.sub(grad(tree.axpy(delta, g, w)), grad(tree.axpy(-delta, g, w)))
        return tree.axpy(-jnp.asarray(self.rate) / (2 * delta), difference, g)


class Composed(Oracle):
    """The objective w -> f(T(w)).

    Attributes:
        inner: f.
        map: T.
    """

    inner: Oracle
    map: Map

    def value(self, w: Vector) -> Float[Array, ""]:
        """f(T(w))."""
        return self.inner.value(self.map(w, self.inner.grad))

    def grad(self, w: Vector) -> Vector:
        """T'(w)^T grad f(T(w))."""
        return self._chain(w, [self.inner.grad])

    def batch_grad(self, w: Vector, positions: Int[Array, " B"], mask: Bool[Array, " B"]) -> Vector:
        """The same over a minibatch, which the map's gradients share or are dealt parts of."""
        hands = _deal(positions, mask, self.map.hands)
        return self._chain(w, [partial(self.inner.batch_grad, positions=p, mask=m) for p, m in hands])

    def held_out(self, w: Vector) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Held-out loss and score of T(w); T itself asks the training samples."""
        return self.inner.held_out(self.map(w, self.inner.grad))

    def _chain(self, w: Vector, grads: list[Gradient]) -> Vector:
        ahead, at, back = (grads * 3)[:3]
        return self.map.pullback(w, at(self.map(w, ahead)), back)


def _deal(positions: Int[Array, " B"], mask: Bool[Array, " B"],
          hands: int) -> list[tuple[Int[Array, " P"], Bool[Array, " P"]]]:
    """A minibatch dealt out like cards; a hand that would be empty is the first one, which never is."""
    def cards(x: Array) -> Array:
        return jnp.pad(x, (0, -len(x) % hands)).reshape(-1, hands).T

    own, valid = cards(positions), cards(mask)
    has = jnp.any(valid, axis=1, keepdims=True)
    return list(zip(jnp.where(has, own, own[:1]), jnp.where(has, valid, valid[:1]), strict=True))


def through(oracle: Oracle, map: Map) -> Oracle:
    """The oracle of f(T(w)).

    A quadratic through a mixture stays a quadratic, so that it has an exact proximal point; an oracle that has only
    shapes stays as it is, for T keeps shapes.
    """
    if isinstance(oracle, ShapeOracle):
        return oracle
    if isinstance(oracle, QuadraticOracle) and isinstance(map, Mixture):
        a = jnp.asarray(map.share)
        constant_part = (1 - a) * map.own
        return QuadraticOracle(oracle.samples, a**2 * oracle.hessian,
                               a * (oracle.linear - oracle.hessian @ constant_part), oracle.value(constant_part))
    return Composed(oracle.samples, oracle, map)
