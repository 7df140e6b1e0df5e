r"""Attacks: what malicious parties send.

An attack changes *updates*. If replies are models, the update is the difference between the reply and the model that
the party received; if they are something else (gradients, differences), it is the reply itself. One attack therefore
means the same for every algorithm. With u_k the update that party k would send if it were honest, a malicious party
sends

.. code-block:: text

    sign flip   -scale u_k              gaussian    std N(0, I)           NaN    not a number
    scaled      factor u_k              label flip  u_k trained on the labels classes - 1 - y
    ALIE        mean - z std            IPM         -strength mean
    min-max     mean - g std            mimic       the honest update farthest from the mean
    adaptive    mean - g mean or mean - g std, whichever moves the known aggregator most

with mean and std over the honest updates of the round. The attacks of the last three lines assume that the malicious
parties know these; they then all send the same update.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float
from typing_extensions import override

from resolvent.algorithms.aggregators.aggregator import Aggregator
from resolvent.algorithms.algorithm import Replies
from resolvent.arguments import CheckedArguments
from resolvent.math import tree
from resolvent.math.robust import distances
from resolvent.math.tree import Vector
from resolvent.problem.models.losses import BinaryCrossEntropy, CrossEntropy, Loss, WeightedLoss
from resolvent.problem.oracle import Oracle, ShapeOracle
from resolvent.problem.sample_oracle import SampleOracle

__all__ = ["ALIE", "IPM", "Adaptive", "Attack", "Gaussian", "LabelFlip", "Mimic", "MinMax", "NaN", "Scaled", "SignFlip"]


class Attack(CheckedArguments, eqx.Module):
    """What malicious parties do. By default they are honest; an attack overrides the method that it changes.

    Example:
        >>> rv.attacks.Attack().update(jnp.array([1.0]), jax.random.key(0)) is None
        True
    """

    def oracle(self, oracle: Oracle, malicious: Bool[Array, ""]) -> Oracle:
        """The objective of a party, which differs from the honest one if ``malicious``."""
        return oracle

    def update(self, update: Vector, key: Array) -> Vector | None:
        """The update that a malicious party sends instead of its honest one; None: the honest one."""
        return None

    def collude(self, updates: Vector, honest: Bool[Array, " C"], malicious: Bool[Array, " C"]) -> Vector | None:
        """The update that all malicious parties of a round send, from all updates [C, ...]; None: their own."""
        return None


class SignFlip(Attack):
    """Malicious parties send their updates with the opposite sign.

    Attributes:
        scale: the update is also multiplied by this number.

    Example:
        >>> rv.attacks.SignFlip().update(jnp.array([1.0, -2.0]), jax.random.key(0)).tolist()
        [-1.0, 2.0]
    """

    scale: ArrayLike = 1.0

    @override
    def update(self, update: Vector, key: Array) -> Vector:
        return tree.scale(jnp.negative(self.scale), update)


class Scaled(Attack):
    """Malicious parties send a multiple of their updates.

    Attributes:
        factor: the multiple.

    Example:
        >>> rv.attacks.Scaled(10.0).update(jnp.array([1.0, -2.0]), jax.random.key(0)).tolist()
        [10.0, -20.0]
    """

    factor: ArrayLike = 10.0

    @override
    def update(self, update: Vector, key: Array) -> Vector:
        return tree.scale(self.factor, update)


class Gaussian(Attack):
    """Malicious parties send normal noise instead of their updates.

    Source: Blanchard, El Mhamdi, Guerraoui, Stainer, *Machine Learning with Adversaries*.

    Attributes:
        std: the standard deviation of each coordinate.

    Example:
        >>> rv.attacks.Gaussian().update(jnp.array([1.0, -2.0]), jax.random.key(0)).shape
        (2,)
    """

    std: ArrayLike = 1.0

    @override
    def update(self, update: Vector, key: Array) -> Vector:
        leaves, structure = jax.tree.flatten(update)
        keys = jax.random.split(key, max(len(leaves), 1))
        noise = [(self.std * jax.random.normal(k, leaf.shape, leaf.dtype)).astype(leaf.dtype)
                 for k, leaf in zip(keys, leaves, strict=False)]
        return jax.tree.unflatten(structure, noise)


class NaN(Attack):
    """Malicious parties send replies that are not a number, which the server must refuse.

    Example:
        >>> rv.attacks.NaN().update(jnp.array([1.0, -2.0]), jax.random.key(0)).tolist()
        [nan, nan]
    """

    @override
    def update(self, update: Vector, key: Array) -> Vector:
        return jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), update)


class LabelFlip(Attack):
    """Malicious parties train on the labels classes - 1 - y.

    Example:
        >>> algorithm = rv.attacked(rv.fedavg(rv.SGD(0.1)), rv.attacks.LabelFlip(), share=0.2)
    """

    @override
    def oracle(self, oracle: Oracle, malicious: Bool[Array, ""]) -> Oracle:
        """The oracle with flipped labels.

        Raises:
            TypeError: the party's objective has no class labels.
        """
        if isinstance(oracle, ShapeOracle):
            return oracle  # labels do not change shapes
        weighted = oracle.model.loss if isinstance(oracle, SampleOracle) else oracle
        loss = weighted.inner if isinstance(weighted, WeightedLoss) else weighted
        if not isinstance(oracle, SampleOracle) or not isinstance(loss, CrossEntropy | BinaryCrossEntropy):
            raise TypeError(f"LabelFlip needs a party's own samples with class labels (cross-entropy), got "
                            f"{type(loss).__name__}: use SignFlip, or put attacked(...) around the algorithm that "
                            "changes the objective instead of inside it")
        flipped: Loss = _FlippedLabels(loss, malicious)
        if isinstance(weighted, WeightedLoss):
            flipped = WeightedLoss(flipped)
        return replace(oracle, model=replace(oracle.model, loss=flipped))


class ALIE(Attack):
    """A Little Is Enough: malicious parties hide within the spread of the honest updates.

    They send mean - z std of the honest updates in each coordinate. By default z is the largest value for which enough
    honest updates are expected to lie beyond it that these and the malicious ones form the majority:
    Phi(z) = (n - m - s)/(n - m), with m of n parties malicious and s = floor(n/2 + 1) - m. Source: Baruch, Baruch,
    Goldberg, *A Little Is Enough*, Algorithm 3, in which the malicious parties estimate mean and std from their own
    updates; here both are those of the honest parties.

    Attributes:
        z: the number of standard deviations; default: from the numbers of honest and malicious parties, at least 0.

    Example:
        >>> updates = jnp.array([[1.0], [3.0], [0.0]])
        >>> honest = jnp.array([True, True, False])
        >>> rv.attacks.ALIE(z=1.0).collude(updates, honest, ~honest).tolist()
        [1.0]
    """

    z: ArrayLike | None = None

    @override
    def collude(self, updates: Vector, honest: Bool[Array, " C"], malicious: Bool[Array, " C"]) -> Vector:
        mean = _mean_of_honest(updates, honest)
        z = self._largest_z(honest, malicious, tree.dtype(updates)) if self.z is None else self.z
        return tree.map2(lambda m, s: m - z * s, mean, _std_of_honest(updates, honest))

    def _largest_z(self, honest: Bool[Array, " C"], malicious: Bool[Array, " C"], dtype: Any) -> Float[Array, ""]:
        n, m = jnp.sum(honest | malicious), jnp.sum(malicious)
        supporters = n // 2 + 1 - m
        probability = ((n - m - supporters) / jnp.maximum(n - m, 1)).astype(dtype)
        z: Array = jax.scipy.special.ndtri(jnp.clip(probability, 0.5, 0.999))
        return z


class IPM(Attack):
    """Inner-product manipulation: malicious parties send a negative multiple of the mean honest update.

    A small strength is hard to detect and slows training down. A strength above (1 - a)/a, with a the share of
    malicious parties, reverses the sign of the mean of all updates. Source: Xie, Koyejo, Gupta, *Fall of Empires*.

    Attributes:
        strength: epsilon, the length of the update relative to the mean honest update.

    Example:
        >>> updates = jnp.array([[1.0], [3.0], [0.0]])
        >>> honest = jnp.array([True, True, False])
        >>> rv.attacks.IPM(0.5).collude(updates, honest, ~honest).tolist()
        [-1.0]
    """

    strength: ArrayLike = 0.5

    @override
    def collude(self, updates: Vector, honest: Bool[Array, " C"], malicious: Bool[Array, " C"]) -> Vector:
        return tree.scale(jnp.negative(self.strength), _mean_of_honest(updates, honest))


class Mimic(Attack):
    """Malicious parties all send the honest update that is farthest from the mean of the honest updates.

    No reply is unusual, but the copied party has the weight of many. Source: Karimireddy, He, Jaggi, *Byzantine-Robust
    Learning on Heterogeneous Datasets via Bucketing*, section 3.3, whose attackers choose one party for all rounds.

    Example:
        >>> algorithm = rv.attacked(rv.fedavg(rv.SGD(0.1)), rv.attacks.Mimic(), share=0.2)
    """

    @override
    def collude(self, updates: Vector, honest: Bool[Array, " C"], malicious: Bool[Array, " C"]) -> Vector:
        mean = _mean_of_honest(updates, honest)
        lengths = jax.vmap(lambda u: tree.norm(tree.sub(u, mean)))(updates)
        return tree.rows(updates, jnp.argmax(jnp.where(honest, lengths, -1)))


class MinMax(Attack):
    """Malicious parties send mean - g std of the honest updates, with the largest g that keeps it inconspicuous.

    std is the standard deviation of each coordinate, and g is the largest number for which the distance of the update
    from every honest update is at most the largest distance between two honest updates. Source: Shejwalkar, Houmansadr,
    *Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for Federated Learning*, the Min-Max
    attack with the deviation "inverse standard deviation".

    Example:
        >>> algorithm = rv.attacked(rv.fedavg(rv.SGD(0.1)), rv.attacks.MinMax(), share=0.2)
    """

    @override
    def collude(self, updates: Vector, honest: Bool[Array, " C"], malicious: Bool[Array, " C"]) -> Vector:
        mean, std = _mean_of_honest(updates, honest), _std_of_honest(updates, honest)
        pairs = honest[:, None] & honest[None, :]
        bound = jnp.max(jnp.where(pairs, distances(updates), 0))

        def is_hidden(g: Array) -> Bool[Array, ""]:
            lengths = jax.vmap(lambda u: tree.norm(tree.sub(u, tree.axpy(-g, std, mean))))(updates)
            return jnp.max(jnp.where(honest, lengths, 0)) <= bound

        return tree.axpy(-_largest(is_hidden, tree.dtype(updates)), std, mean)


class Adaptive(Attack):
    """Malicious parties know the aggregator, and send the update that moves its result farthest.

    They try mean - g d for 16 values of g between 0.1 and 20, equally spaced on a logarithmic scale, and for two
    directions d: the mean of the honest updates and their standard deviation in each coordinate. They send the update
    for which the aggregate of all updates is farthest from the mean of the honest ones. Source: Fang, Cao, Jia, Gong,
    *Local Model Poisoning Attacks to Byzantine-Robust Federated Learning*, the case of full knowledge; here by search,
    so that it applies to every aggregator.

    Attributes:
        aggregator: the defence that the malicious parties know. It aggregates updates of equal weight, without a
            server's model.

    Example:
        >>> attack = rv.attacks.Adaptive(rv.aggregators.CoordinateMedian())
        >>> algorithm = rv.attacked(rv.fedavg(rv.SGD(0.1)), attack, share=0.2)
    """

    aggregator: Aggregator

    @override
    def collude(self, updates: Vector, honest: Bool[Array, " C"], malicious: Bool[Array, " C"]) -> Vector:
        mean, std = _mean_of_honest(updates, honest), _std_of_honest(updates, honest)
        strengths = jnp.geomspace(0.1, 20, 16)

        def along_both(m: Array, s: Array) -> Array:
            steps = strengths.reshape(-1, *[1] * m.ndim)
            return jnp.concatenate([m - steps * direction for direction in (m, s)]).astype(m.dtype)

        candidates = jax.tree.map(along_both, mean, std)
        alive = honest | malicious
        weight = alive.astype(tree.dtype(updates))

        def damage(candidate: Vector) -> Float[Array, ""]:
            rows = tree.where(malicious, candidate, updates)
            replies = Replies(rows, weight, jnp.arange(len(alive)), alive, weight)
            return tree.norm(tree.sub(self.aggregator(replies)[0], mean))

        return tree.rows(candidates, jnp.argmax(jax.lax.map(damage, candidates)))


class _FlippedLabels(Loss):
    """A classification loss whose labels y are replaced by classes - 1 - y if ``malicious``."""

    inner: Loss
    malicious: Bool[Array, ""]
    score_name: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True

    def _flip(self, outputs: Array, y: Array) -> Array:
        classes = outputs.shape[-1] if isinstance(self.inner, CrossEntropy) else 2
        return jnp.where(self.malicious, classes - 1 - y, y)

    @override
    def loss(self, outputs: Float[Array, "B ..."], y: Array) -> Float[Array, " B"]:
        return self.inner.loss(outputs, self._flip(outputs, y))

    @override
    def score(self, outputs: Float[Array, "B ..."], y: Array) -> Float[Array, " B"]:
        return self.inner.score(outputs, self._flip(outputs, y))


def _mean_of_honest(x: Vector, honest: Bool[Array, " C"]) -> Vector:
    """The unweighted mean of the honest rows; zero if there are none."""
    count = jnp.maximum(jnp.sum(honest), 1)
    return jax.tree.map(lambda leaf: (jnp.tensordot(honest.astype(leaf.dtype), leaf, axes=1, precision="highest")
                                      / count).astype(leaf.dtype), x)


def _std_of_honest(x: Vector, honest: Bool[Array, " C"]) -> Vector:
    """The unweighted standard deviation of each coordinate over the honest rows; zero if there are none."""
    mean, count = _mean_of_honest(x, honest), jnp.maximum(jnp.sum(honest), 1)

    def of_leaf(leaf: Array, m: Array) -> Array:
        differences = jnp.where(tree.column(honest, leaf), leaf - m, 0)
        largest = jnp.max(jnp.abs(differences), axis=0)
        scale = jnp.where(largest > 0, largest, 1)  # squares of small or large differences leave the number range
        return (scale * jnp.sqrt(jnp.sum(jnp.square(differences / scale), axis=0) / count)).astype(leaf.dtype)

    return jax.tree.map(of_leaf, x, mean)


def _largest(holds: Callable[[Array], Bool[Array, ""]], dtype: Any) -> Float[Array, ""]:
    """The largest g in [0, 1000] with ``holds(g)``, which is true up to some g and false after; 40 bisections."""
    def halve(_: Array, interval: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = interval
        middle = (low + high) / 2
        does_hold = holds(middle)
        return jnp.where(does_hold, middle, low), jnp.where(does_hold, high, middle)

    low: Array
    low, _ = jax.lax.fori_loop(0, 40, halve, (jnp.zeros((), dtype), jnp.full((), 1000, dtype)))
    return low
