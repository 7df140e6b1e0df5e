"""Availability: which parties can take part in a round at all, by the time of day, by chance, or by a record.

An availability is a wrapper: it draws the cohort of ``inner``, and the parties that are not available are absent.
``UniformAvailable`` around it selects among the available parties instead. Nested ones are independent of each other.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int
from typing_extensions import override

from resolvent.algorithms.cohort import Cohort
from resolvent.algorithms.keys import availability_key
from resolvent.algorithms.participation.rules import Full, Participation, ParticipationState, ParticipationWrapper
from resolvent.algorithms.per_party import as_numbers, check_length
from resolvent.errors import InputError, shorten


def _as_table(values: Any) -> Any:
    """Numbers as an array; what cannot be one is refused by ``AvailabilityTable``."""
    try:
        return np.asarray(values, np.float32)
    except (TypeError, ValueError, OverflowError):
        return ()


def _as_array(values: Any) -> Any:
    """Values as an array, or as they are if they form none."""
    try:
        return None if values is None else np.asarray(values)
    except (ValueError, OverflowError):
        return values


def _check_rounds(owner: str, **rounds: Any) -> None:
    """Refuse what is no array of real numbers, of any length, or one of them."""
    for name, values in rounds.items():
        if values is not None and (not isinstance(values, np.ndarray) or values.dtype.kind not in "biuf"):
            raise InputError(f"{owner}({name}={shorten(values)}) must be a number of a round, or one for each party")


class AvailabilityState(NamedTuple):
    """The state of an availability."""

    inner: ParticipationState  # the state of the wrapped participation
    process: Any  # the state of the availability itself


class Availability(ParticipationWrapper):
    """Base class of wrappers in whose rounds only some parties are available: ``available`` says which.

    Example:
        Parties with an even number in even rounds, the others in odd rounds:

        >>> class Alternating(rv.participation.Availability):
        ...     inner: rv.participation.Participation = rv.participation.Full()
        ...     def available(self, state, key, t, sizes):
        ...         return (jnp.arange(len(sizes)) + t) % 2 == 0, state
        >>> from resolvent.testing import check_participation
        >>> check_participation(Alternating())
    """

    def first(self, sizes: Int[Array, " N"], key: Array) -> Any:
        """The state of the availability before the first round, with a key of its own; by default there is none."""
        return ()

    @abstractmethod
    def available(self, state: Any, key: Array, t: Int[Array, ""],
                  sizes: Int[Array, " N"]) -> tuple[Bool[Array, " N"], Any]:
        """[N] whether each party is available in round t, and the state after the round; the key is its own."""

    @override
    def init(self, sizes: Int[Array, " N"], key: Array) -> AvailabilityState:
        return AvailabilityState(self.inner.init(sizes, key), self.first(sizes, availability_key(key, self._depth)))

    @override
    def draw(self, state: AvailabilityState, key: Array, t: Int[Array, ""],
             sizes: Int[Array, " N"]) -> tuple[Cohort, AvailabilityState]:
        cohort, inner = self.inner.draw(state.inner, key, t, sizes)
        available, process = self.available(state.process, availability_key(key, self._depth), t, sizes)
        return replace(cohort, alive=cohort.alive & available[cohort.index]), AvailabilityState(inner, process)

    @property
    def _depth(self) -> int:
        """The number of availabilities inside, so that nested ones have different keys."""
        depth, layer = 0, self.inner
        while isinstance(layer, ParticipationWrapper):
            depth, layer = depth + isinstance(layer, Availability), layer.inner
        return depth


class DayNight(Availability):
    """Parties in time zones, which are available by day, and less or not at all by night.

    Party k has the local time (t + offset_k) mod ``period``. It is day while this is less than ``day``. In each round a
    party is available with probability ``by_day`` or ``by_night``. Over a period, the mean probability of every party
    is (day * by_day + (period - day) * by_night) / period.

    Attributes:
        period: number of rounds of a day.
        day: number of rounds of a day in which it is day; default: half of them, rounded down.
        zones: number of time zones: offset_k = floor((k mod zones) * period / zones).
        offsets: [N] offset_k of each party, in rounds, instead of ``zones``.
        by_day: probability of a party by day, in [0, 1].
        by_night: probability of a party by night, in [0, 1].
        inner: draws the cohort.

    Raises:
        InputError: a number is outside its range, or ``offsets`` has not one number per party.

    Example:
        >>> participation = rv.participation.DayNight(period=24, zones=2)
        >>> state = participation.init(jnp.ones(4, int), jax.random.key(0))
        >>> participation.draw(state, jax.random.key(0), jnp.array(3), jnp.ones(4, int))[0].alive.tolist()
        [True, False, True, False]
    """

    period: Annotated[int, "[1, inf)"] = eqx.field(static=True, default=24)
    day: int | None = eqx.field(static=True, default=None)
    zones: Annotated[int, "[1, inf)"] = eqx.field(static=True, default=24)
    offsets: Int[ArrayLike, " N"] | None = eqx.field(default=None, converter=_as_array)
    by_day: Annotated[ArrayLike, "[0, 1]"] = 1.0
    by_night: Annotated[ArrayLike, "[0, 1]"] = 0.0
    inner: Participation = Full()

    def __check_init__(self) -> None:
        if self.day is not None and not 0 <= self.day <= self.period:
            raise InputError(f"DayNight(day={self.day}) must lie in 0 to period={self.period}")

    @override
    def check_fields(self, parties: int) -> None:
        if self.offsets is not None:
            check_length("DayNight(offsets=...)", self.offsets, parties)

    @override
    def available(self, state: Any, key: Array, t: Int[Array, ""],
                  sizes: Int[Array, " N"]) -> tuple[Bool[Array, " N"], Any]:
        ids = jnp.arange(len(sizes), dtype=jnp.int32)
        offsets = ids % self.zones * self.period // self.zones if self.offsets is None else jnp.asarray(self.offsets)
        is_day = (t + offsets) % self.period < (self.period // 2 if self.day is None else self.day)
        return _bernoulli(key, jnp.where(is_day, self.by_day, self.by_night)), state


class MarkovOnOff(Availability):
    """Each party is on or off, and changes between two rounds with its own probabilities, independently of the others.

    A party that is off turns on with probability p = ``on``, one that is on turns off with probability q = ``off``. The
    first state is drawn from the stationary distribution: a party is available in a share p/(p + q) of the rounds, and
    its availabilities in two rounds at a distance h have the correlation (1 - p - q)^h.

    Attributes:
        on: probability p in (0, 1]; or [N], one for each party.
        off: probability q in [0, 1]; or [N].
        inner: draws the cohort.

    Raises:
        InputError: a probability is outside its range, or there is not one per party.

    Example:
        >>> participation = rv.participation.MarkovOnOff(on=0.1, off=0.3)
        >>> participation.rate
        0.25
    """

    on: Annotated[ArrayLike, "(0, 1]"] = eqx.field(converter=as_numbers)
    off: Annotated[ArrayLike, "[0, 1]"] = eqx.field(converter=as_numbers)
    inner: Participation = Full()

    @override
    def check_fields(self, parties: int) -> None:
        check_length("MarkovOnOff(on=...)", self.on, parties)
        check_length("MarkovOnOff(off=...)", self.off, parties)

    @property
    def rate(self) -> Any:
        """p/(p + q), the share of rounds in which a party is available."""
        return self.on / (self.on + self.off)

    @override
    def first(self, sizes: Int[Array, " N"], key: Array) -> Bool[Array, " N"]:
        return _bernoulli(key, jnp.broadcast_to(jnp.asarray(self.rate), sizes.shape))

    @override
    def available(self, state: Bool[Array, " N"], key: Array, t: Int[Array, ""],
                  sizes: Int[Array, " N"]) -> tuple[Bool[Array, " N"], Bool[Array, " N"]]:
        return state, _next_of_markov(state, key, self.on, self.off)


class Outages(Availability):
    """Groups of parties, such as regions, whose parties are all unavailable during an outage of their group.

    A group without an outage has one in the next round with probability ``failure``, and an outage ends with
    probability ``repair``, as in ``MarkovOnOff``. Without an outage, a party is available with probability ``single``,
    independently of the others. With the share u = repair/(failure + repair) of rounds without an outage, a party is
    available with probability single * u, and two parties of one group have the correlation
    single (1 - u)/(1 - single * u); parties of different groups are independent.

    Attributes:
        groups: [N] the number of each party's group, from 0.
        failure: probability in [0, 1] that an outage begins.
        repair: probability in (0, 1] that an outage ends.
        single: probability of a party in (0, 1].
        inner: draws the cohort.

    Raises:
        InputError: a probability is outside its range, or there is not one group per party.

    Example:
        >>> participation = rv.participation.Outages([0, 0, 1], failure=0.1, repair=0.4)
    """

    groups: Int[ArrayLike, " N"] = eqx.field(converter=_as_array)
    failure: Annotated[ArrayLike, "[0, 1]"]
    repair: Annotated[ArrayLike, "(0, 1]"]
    single: Annotated[ArrayLike, "(0, 1]"] = 1.0
    inner: Participation = Full()

    @override
    def check_fields(self, parties: int) -> None:
        groups = self.groups
        if not isinstance(groups, np.ndarray) or groups.dtype.kind not in "iu" or groups.shape != (parties,) or (
                groups.min() < 0 or groups.max() >= parties):
            raise InputError(f"Outages(groups=...) needs the number of a group, 0 to {parties - 1}, for each of the "
                             f"{parties} parties, got {shorten(groups)}")

    @override
    def first(self, sizes: Int[Array, " N"], key: Array) -> Bool[Array, " N"]:
        share = jnp.asarray(self.repair / (self.failure + self.repair))
        return _bernoulli(key, jnp.broadcast_to(share, sizes.shape))  # one for each possible group

    @override
    def available(self, state: Bool[Array, " N"], key: Array, t: Int[Array, ""],
                  sizes: Int[Array, " N"]) -> tuple[Bool[Array, " N"], Bool[Array, " N"]]:
        of_groups, of_parties = jax.random.split(key)
        is_up = state[jnp.asarray(self.groups)]
        single = _bernoulli(of_parties, jnp.broadcast_to(jnp.asarray(self.single), sizes.shape))
        return is_up & single, _next_of_markov(state, of_groups, self.repair, self.failure)


class AvailabilityTable(Availability):
    """A record of availability: a table with a row for each round, which is repeated from the start after its last row.

    Attributes:
        table: [T, N] the probability that each party is available in each round: 0 and 1 for a recorded trace.
        inner: draws the cohort.

    Raises:
        InputError: an entry is outside [0, 1], or a row has not one entry per party.

    Example:
        >>> participation = rv.participation.AvailabilityTable([[1, 0, 1], [0, 1, 1]])
    """

    table: Annotated[Float[ArrayLike, "T N"], "[0, 1]"] = eqx.field(converter=_as_table)
    inner: Participation = Full()

    def __check_init__(self) -> None:
        if np.ndim(self.table) != 2 or not np.size(self.table):
            raise InputError(f"AvailabilityTable(table=...) needs a row per round and a column per party, got shape "
                             f"{np.shape(self.table)}")

    @override
    def check_fields(self, parties: int) -> None:
        if np.shape(self.table)[1] != parties:
            raise InputError(f"AvailabilityTable(table=...) has {np.shape(self.table)[1]} columns, but there are "
                             f"{parties} parties: give one column per party")

    @override
    def available(self, state: Any, key: Array, t: Int[Array, ""],
                  sizes: Int[Array, " N"]) -> tuple[Bool[Array, " N"], Any]:
        table = jnp.asarray(self.table)
        return _bernoulli(key, table[t % len(table)]), state


class AvailabilityFunction(Availability):
    """The probability of each party's availability as a function of the round.

    Attributes:
        function: (t, [N] numbers of samples) -> [N] probabilities. It is traced, and must be written with jax.numpy.
        inner: draws the cohort.

    Example:
        Parties that lose interest, at the rate 1/(1 + t/100):

        >>> def interest(t, sizes):
        ...     return jnp.full(len(sizes), 1 / (1 + t / 100))
        >>> participation = rv.participation.AvailabilityFunction(interest)
    """

    function: Callable[[Array, Array], Array] = eqx.field(static=True)
    inner: Participation = Full()

    @override
    def available(self, state: Any, key: Array, t: Int[Array, ""],
                  sizes: Int[Array, " N"]) -> tuple[Bool[Array, " N"], Any]:
        probability = jnp.asarray(self.function(t, sizes))
        if probability.shape != sizes.shape:
            raise InputError(f"AvailabilityFunction(function=...) returned shape {probability.shape}: return one "
                             f"probability for each of the {len(sizes)} parties")
        return _bernoulli(key, probability), state


class MembershipPeriods(Availability):
    """A federation that grows and shrinks: party k is a member in the rounds joins_k, ..., leaves_k - 1.

    Attributes:
        joins: [N] the first round of each party; or one number.
        leaves: [N] the round from which each party is absent; or one number. None: no party leaves.
        inner: draws the cohort.

    Raises:
        InputError: there is not one number per party, or a party leaves before it joins.

    Example:
        Ten parties at first, and another one every fifth round:

        >>> participation = rv.participation.MembershipPeriods(joins=jnp.maximum(0, 5 * (jnp.arange(30) - 9)))
    """

    joins: Int[ArrayLike, " N"] | int = eqx.field(default=0, converter=_as_array)
    leaves: Int[ArrayLike, " N"] | int | None = eqx.field(default=None, converter=_as_array)
    inner: Participation = Full()

    def __check_init__(self) -> None:
        _check_rounds("MembershipPeriods", joins=self.joins, leaves=self.leaves)
        if self.leaves is not None and np.ndim(self.leaves) == np.ndim(self.joins) == 1:
            check_length("MembershipPeriods(leaves=...)", self.leaves, len(np.asarray(self.joins)))
        if self.leaves is not None and bool(np.any(np.asarray(self.leaves) < np.asarray(self.joins))):
            raise InputError("MembershipPeriods(joins=..., leaves=...) has a party that leaves before it joins")

    @override
    def check_fields(self, parties: int) -> None:
        check_length("MembershipPeriods(joins=...)", self.joins, parties)
        if self.leaves is not None:
            check_length("MembershipPeriods(leaves=...)", self.leaves, parties)

    @override
    def available(self, state: Any, key: Array, t: Int[Array, ""],
                  sizes: Int[Array, " N"]) -> tuple[Bool[Array, " N"], Any]:
        is_member = t >= jnp.asarray(self.joins)
        if self.leaves is not None:
            is_member &= t < jnp.asarray(self.leaves)
        return jnp.broadcast_to(is_member, sizes.shape), state


def _bernoulli(key: Array, probability: Float[Array, " N"]) -> Bool[Array, " N"]:
    return jax.random.uniform(key, probability.shape, jnp.float32) < probability


def _next_of_markov(state: Bool[Array, " N"], key: Array, on: ArrayLike, off: ArrayLike) -> Bool[Array, " N"]:
    chance = jax.random.uniform(key, state.shape, jnp.float32)
    return jnp.where(state, chance >= off, chance < on)
