r"""Attacks: what bad parties make of their work.

An attack sees *updates*: the difference of a reply from what the party was sent where replies are models, the reply
itself where they are something else (gradients, differences). So one attack means the same for every algorithm: with
u_k the update that party k would honestly send, it sends

.. code-block:: text

    sign flip   -scale u_k              gaussian    std N(0, I)           NaN    not a number
    scaled      factor u_k              label flip  u_k trained on the labels classes - 1 - y
    ALIE        mean - z std            IPM         -strength mean

with mean and std over the good updates of the round: these two know them, and all bad parties send the same.
"""

from dataclasses import replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float

from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.models.losses import BinaryCrossEntropy, CrossEntropy, Loss
from resolvent.problem.oracle import Oracle, SampleOracle

__all__ = ["ALIE", "IPM", "Attack", "Gaussian", "LabelFlip", "NaN", "Scaled", "SignFlip"]


class Attack(eqx.Module):
    """What bad parties do. Each method here is honest; an attack says only what it changes."""

    def oracle(self, oracle: Oracle, bad: Bool[Array, ""]) -> Oracle:
        """The objective that a party works on, where it is bad."""
        return oracle

    def update(self, update: Vector, key: Array) -> Vector | None:
        """What a bad party sends in place of its update; None: the update."""
        return None

    def collude(self, updates: Vector, good: Bool[Array, " C"], bad: Bool[Array, " C"]) -> Vector | None:
        """What all bad parties of a round send, given everybody's updates (leaves [C, ...]); None: what they would."""
        return None


class SignFlip(Attack):
    """Bad parties send their updates with the opposite sign.

    Attributes:
        scale: and this much longer.
    """

    scale: ArrayLike = 1.0

    def update(self, update: Vector, key: Array) -> Vector:
        """-scale u."""
        return _times(jnp.negative(self.scale), update)


class Scaled(Attack):
    """Bad parties send a multiple of their updates.

    Attributes:
        factor: the multiple.
    """

    factor: ArrayLike = 10.0

    def update(self, update: Vector, key: Array) -> Vector:
        """Factor u."""
        return _times(self.factor, update)


class Gaussian(Attack):
    """Bad parties send normal noise in place of their updates. Source: Blanchard et al.

    Attributes:
        std: its standard deviation in each coordinate.
    """

    std: ArrayLike = 1.0

    def update(self, update: Vector, key: Array) -> Vector:
        """Std N(0, I)."""
        leaves, structure = jax.tree.flatten(update)
        keys = jax.random.split(key, max(len(leaves), 1))
        noise = [(self.std * jax.random.normal(k, leaf.shape, leaf.dtype)).astype(leaf.dtype)
                 for k, leaf in zip(keys, leaves, strict=False)]
        return jax.tree.unflatten(structure, noise)


class NaN(Attack):
    """Bad parties send what is not a number; the server must refuse it."""

    def update(self, update: Vector, key: Array) -> Vector:
        """Not a number."""
        return jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), update)


class LabelFlip(Attack):
    """Bad parties train on the labels classes - 1 - y."""

    def oracle(self, oracle: Oracle, bad: Bool[Array, ""]) -> Oracle:
        """The oracle with the labels turned round.

        Raises:
            TypeError: it has no classes.
        """
        loss = oracle.model.loss if isinstance(oracle, SampleOracle) else oracle
        if not isinstance(oracle, SampleOracle) or not isinstance(loss, CrossEntropy | BinaryCrossEntropy):
            raise TypeError(f"LabelFlip needs a party's own samples with classes (cross-entropy), got "
                            f"{type(loss).__name__}: use SignFlip, and put attacked(...) around an algorithm that "
                            "personalises, not inside it")
        return replace(oracle, model=eqx.tree_at(_loss_of, oracle.model, _FlippedLabels(loss, bad), is_leaf=_is_loss))


class ALIE(Attack):
    """A little is enough: bad parties hide within the spread of the good ones.

    They send mean - z std of the good updates in each coordinate. Left out, z is the largest for which so many good
    ones are expected to lie beyond that with the bad ones they are the majority: Phi(z) = (n - m - s)/(n - m), m of n
    bad and s = floor(n/2 + 1) - m. Source: Baruch, Baruch, Goldberg, *A Little Is Enough*, Algorithm 3; here mean and
    deviation are those of the good parties, which bad ones there estimate from their own.

    Attributes:
        z: how many standard deviations; left out, by the numbers of good and bad parties, at least 0.
    """

    z: ArrayLike | None = None

    def collude(self, updates: Vector, good: Bool[Array, " C"], bad: Bool[Array, " C"]) -> Vector:
        """Mean - z std."""
        mean = _mean(updates, good)
        spread = _mean(jax.tree.map(lambda u, m: jnp.square(u - m), updates, mean), good)
        z = self._enough(good, bad, tree.dtype(updates)) if self.z is None else self.z
        return tree.map2(lambda m, s: m - z * jnp.sqrt(s), mean, spread)

    def _enough(self, good: Bool[Array, " C"], bad: Bool[Array, " C"], dtype: Any) -> Float[Array, ""]:
        n, m = jnp.sum(good | bad), jnp.sum(bad)
        supporters = n // 2 + 1 - m
        part = ((n - m - supporters) / jnp.maximum(n - m, 1)).astype(dtype)
        z: Array = jax.scipy.special.ndtri(jnp.clip(part, 0.5, 0.999))
        return z


class IPM(Attack):
    """Inner-product manipulation: bad parties send the good ones' mean update turned round.

    A small strength hides among the good ones and slows down; one above (1 - a)/a, a the bad share, turns the mean of
    all round. Source: Xie, Koyejo, Gupta, *Fall of Empires*.

    Attributes:
        strength: epsilon, how long it is against the mean.
    """

    strength: ArrayLike = 0.5

    def collude(self, updates: Vector, good: Bool[Array, " C"], bad: Bool[Array, " C"]) -> Vector:
        """-strength mean."""
        return _times(jnp.negative(self.strength), _mean(updates, good))


class _FlippedLabels(Loss):
    """A loss of class labels that are turned round where ``bad``."""

    inner: Loss
    bad: Bool[Array, ""]
    score_name: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True

    def _turned(self, outputs: Array, y: Array) -> Array:
        classes = outputs.shape[-1] if isinstance(self.inner, CrossEntropy) else 2
        return jnp.where(self.bad, classes - 1 - y, y)

    def loss(self, outputs: Float[Array, "B ..."], y: Array) -> Float[Array, " B"]:
        return self.inner.loss(outputs, self._turned(outputs, y))

    def score(self, outputs: Float[Array, "B ..."], y: Array) -> Float[Array, " B"]:
        return self.inner.score(outputs, self._turned(outputs, y))


def _loss_of(model: Any) -> Any:
    return model.loss


def _is_loss(x: Any) -> bool:
    return isinstance(x, Loss)


def _times(a: ArrayLike, x: Vector) -> Vector:
    return jax.tree.map(lambda leaf: (a * leaf).astype(leaf.dtype), x)


def _mean(x: Vector, good: Bool[Array, " C"]) -> Vector:
    """The plain mean of the good rows; zero where there are none."""
    count = jnp.maximum(jnp.sum(good), 1)
    return jax.tree.map(lambda leaf: (jnp.tensordot(good.astype(leaf.dtype), leaf, axes=1, precision="highest")
                                      / count).astype(leaf.dtype), x)
