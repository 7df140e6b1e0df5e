"""Who takes part in a round, with what weight, and how much work they can do.

A cohort depends on the seed and the round only, never on the algorithm: methods that are compared meet the same
cohorts and the same stragglers (errata 8 and 16), whatever the precision: all draws are in float32.
"""

from abc import abstractmethod
from dataclasses import replace
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from resolvent.errors import InputError, check_range
from resolvent.xla.shuffle import Shuffle

__all__ = ["Bernoulli", "BySize", "Cohort", "Dropout", "FixedEffort", "Full", "Participation", "Stragglers", "Uniform"]

Weighting = Literal["size", "uniform"]


class Cohort(eqx.Module):
    """The parties of one round.

    Attributes:
        index: [C] their numbers, all different.
        weight: [C] their aggregation weights.
        share: [C] their lambda_k, which sum to one over all N parties.
        alive: [C] whether they take part at all.
        effort: [C] the share of the solver's budget that each does, in (0, 1].
        late: [C] whether that is less than the party planned: its work is partial, and may be dropped.
    """

    index: Int[Array, " C"]
    weight: Float[Array, " C"]
    share: Float[Array, " C"]
    alive: Bool[Array, " C"]
    effort: Float[Array, " C"]
    late: Bool[Array, " C"]


class Participation(eqx.Module):
    """Draws the cohort of a round."""

    @abstractmethod
    def capacity(self, parties: int) -> int:
        """C, how many rows a cohort has."""

    @abstractmethod
    def shares(self, sizes: Int[Array, " N"]) -> Float[Array, " N"]:
        """lambda_k: the parties' weights in the objective sum_k lambda_k f_k that the rounds stand for."""

    @abstractmethod
    def __call__(self, key: Array, sizes: Int[Array, " N"]) -> Cohort:
        """The cohort; ``key`` belongs to the seed and the round, ``sizes`` are the parties' sample counts."""

    def check(self, parties: int) -> None:
        """Refuse a setting that does not fit the number of parties."""
        if self.capacity(parties) > parties:
            raise InputError(f"a cohort of {self.capacity(parties)} cannot be drawn from {parties} parties: "
                             f"give cohort={parties} or less")


class Full(Participation):
    """Everybody, every round.

    Attributes:
        weighting: aggregate by the number of samples, or every party alike (Fed+'s objective).
    """

    weighting: Weighting = eqx.field(static=True, default="size")

    def capacity(self, parties: int) -> int:
        """N."""
        return parties

    def shares(self, sizes: Int[Array, " N"]) -> Float[Array, " N"]:
        """By size, or alike."""
        return _shares(sizes, self.weighting)

    def __call__(self, key: Array, sizes: Int[Array, " N"]) -> Cohort:
        """All N."""
        return _cohort(jnp.arange(len(sizes)), self.shares(sizes))


class Uniform(Participation):
    """A cohort drawn uniformly without replacement: FedProx's scheme B when weighted by size.

    Its cost does not depend on N. Source: FedProx, section 5.1 and Figure 12; errata 9.

    Attributes:
        cohort: how many parties.
        weighting: aggregate by the number of samples, or every party alike.
    """

    cohort: int = eqx.field(static=True)
    weighting: Weighting = eqx.field(static=True, default="size")

    def __check_init__(self) -> None:
        _at_least_one(self)

    def capacity(self, parties: int) -> int:
        """The cohort's size."""
        return self.cohort

    def shares(self, sizes: Int[Array, " N"]) -> Float[Array, " N"]:
        """By size, or alike."""
        return _shares(sizes, self.weighting)

    def __call__(self, key: Array, sizes: Int[Array, " N"]) -> Cohort:
        """The first entries of a random permutation of the parties."""
        order = Shuffle.draw(key, jnp.array(len(sizes)))
        return _cohort(order(jnp.arange(self.cohort)), self.shares(sizes))


class BySize(Participation):
    """A cohort drawn party by party in proportion to size among those left, then averaged plainly.

    FedProx's scheme A. One number per party is drawn each round (the Gumbel trick), so its cost has a small part that
    grows with N. Source: FedProx, Algorithm 2; errata 9.

    Attributes:
        cohort: how many parties.
    """

    cohort: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        _at_least_one(self)

    def capacity(self, parties: int) -> int:
        """The cohort's size."""
        return self.cohort

    def shares(self, sizes: Int[Array, " N"]) -> Float[Array, " N"]:
        """By size: drawing stands for weighing."""
        return _shares(sizes, "size")

    def __call__(self, key: Array, sizes: Int[Array, " N"]) -> Cohort:
        """The largest of log(size) plus Gumbel noise."""
        noise = jax.random.gumbel(key, (len(sizes),), jnp.float32)
        index = jax.lax.top_k(jnp.log(sizes.astype(noise.dtype)) + noise, self.cohort)[1]
        shares = self.shares(sizes)
        return _cohort(index, shares, jnp.full(self.cohort, 1 / self.cohort, shares.dtype))


class Bernoulli(Participation):
    """Each party takes part with the same probability, independently of the others.

    Attributes:
        probability: in (0, 1].
        weighting: aggregate by the number of samples, or every party alike.
    """

    probability: ArrayLike
    weighting: Weighting = eqx.field(static=True, default="size")

    def __check_init__(self) -> None:
        check_range(self, "(0, 1]", probability=self.probability)

    def capacity(self, parties: int) -> int:
        """N: anybody may take part."""
        return parties

    def shares(self, sizes: Int[Array, " N"]) -> Float[Array, " N"]:
        """By size, or alike."""
        return _shares(sizes, self.weighting)

    def __call__(self, key: Array, sizes: Int[Array, " N"]) -> Cohort:
        """All N, of whom some are absent."""
        everyone = _cohort(jnp.arange(len(sizes)), self.shares(sizes))
        return replace(everyone, alive=jax.random.uniform(key, (len(sizes),), jnp.float32) < self.probability)


class _Around(Participation):
    """Another participation, of whose cohorts something is changed. Subclasses have it as ``inner``, a field of theirs
    where its place suits them.
    """

    @property
    @abstractmethod
    def inner(self) -> Participation:
        """The other participation."""

    def check(self, parties: int) -> None:
        """As the inner participation."""
        self.inner.check(parties)

    def capacity(self, parties: int) -> int:
        """As the inner participation."""
        return self.inner.capacity(parties)

    def shares(self, sizes: Int[Array, " N"]) -> Float[Array, " N"]:
        """As the inner participation."""
        return self.inner.shares(sizes)


class Stragglers(_Around):
    """A share of each round's cohort, or certain parties always, can do only a part of the work.

    The part is uniform on (0, 1], so that of E epochs a straggler makes ceil(u*E): uniform on 1, ..., E. What becomes
    of it is the algorithm's choice: FedAvg drops it, FedProx and Fed+ keep it. Source: FedProx, 5.2; errata 8.

    Attributes:
        inner: who takes part.
        share: of the cohort that straggles, drawn anew each round.
        parties: numbers of parties that always straggle.
    """

    inner: Participation = Full()
    share: ArrayLike = 0.0
    parties: tuple[int, ...] = eqx.field(static=True, default=())

    def __check_init__(self) -> None:
        check_range(self, "[0, 1]", share=self.share)

    def check(self, parties: int) -> None:
        """Refuse numbers of parties that are not there."""
        super().check(parties)
        for k in self.parties:
            if not 0 <= k < parties:
                raise InputError(f"Stragglers(parties=...) names party {k}, but they are numbered 0 to {parties - 1}")

    def __call__(self, key: Array, sizes: Int[Array, " N"]) -> Cohort:
        """The inner cohort, some of it slow."""
        cohort = self.inner(key, sizes)
        amount_key, who_key = jax.random.split(jax.random.fold_in(key, 1))
        n = cohort.index.shape[0]
        rank = jnp.argsort(jax.random.permutation(who_key, n))
        slow = rank < jnp.round(jnp.asarray(self.share) * n)
        always = jnp.zeros(n, bool)
        for k in self.parties:
            always |= cohort.index == k
        part = (1 - jax.random.uniform(amount_key, (n,), jnp.float32)).astype(cohort.effort.dtype)
        late = slow | always
        return replace(cohort, effort=jnp.where(late, cohort.effort * part, cohort.effort), late=late)


class FixedEffort(_Around):
    """Parties with budgets of their own: party k does effort[k] of the solver's work each round (Fed+'s E_k).

    Such work counts as whole: it is what the party planned, so no algorithm drops it.

    Attributes:
        effort: [N], in (0, 1].
        inner: who takes part.
    """

    effort: Float[Array, " N"]
    inner: Participation = Full()

    def check(self, parties: int) -> None:
        """Refuse another number of budgets than of parties."""
        super().check(parties)
        if jnp.shape(self.effort) != (parties,):
            raise InputError(f"FixedEffort(effort=...) needs one number per party, {parties}, got shape "
                             f"{jnp.shape(self.effort)}")

    def __call__(self, key: Array, sizes: Int[Array, " N"]) -> Cohort:
        """The inner cohort with its members' budgets."""
        cohort = self.inner(key, sizes)
        return replace(cohort, effort=cohort.effort * jnp.asarray(self.effort, cohort.effort.dtype)[cohort.index])


class Dropout(_Around):
    """Parties with unreliable devices: party k is away with a probability of its own, in each round anew.

    Attributes:
        probability: [N], in [0, 1).
        inner: who would take part.
    """

    probability: Float[Array, " N"]
    inner: Participation = Full()

    def check(self, parties: int) -> None:
        """Refuse another number of probabilities than of parties, and what is no probability."""
        super().check(parties)
        p = jnp.asarray(self.probability)
        if p.shape != (parties,) or not bool(jnp.all((p >= 0) & (p < 1))):
            raise InputError(f"Dropout(probability=...) needs one number in [0, 1) per party, {parties}, got "
                             f"{self.probability}")

    def __call__(self, key: Array, sizes: Int[Array, " N"]) -> Cohort:
        """The inner cohort without those who are away."""
        cohort = self.inner(key, sizes)
        chance = jax.random.uniform(jax.random.fold_in(key, 2), cohort.index.shape, jnp.float32)
        return replace(cohort, alive=cohort.alive & (chance >= jnp.asarray(self.probability)[cohort.index]))


def _shares(sizes: Int[Array, " N"], weighting: Weighting) -> Float[Array, " N"]:
    dtype = jnp.zeros(()).dtype
    return sizes.astype(dtype) / jnp.sum(sizes) if weighting == "size" else jnp.full(len(sizes), 1 / len(sizes), dtype)


def _cohort(index: Int[Array, " C"], shares: Float[Array, " N"], weight: Float[Array, " C"] | None = None) -> Cohort:
    """A cohort that is alive and able, weighted by its shares unless told otherwise."""
    ones, share = jnp.ones(index.shape, shares.dtype), shares[index]
    return Cohort(index, share if weight is None else weight, share, ones > 0, ones, ones < 0)


def _at_least_one(participation: Uniform | BySize) -> None:
    if participation.cohort < 1:
        raise ValueError(f"{type(participation).__name__}(cohort={participation.cohort}) must be at least 1")
