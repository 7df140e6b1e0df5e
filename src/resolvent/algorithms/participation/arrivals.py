"""Arrivals: parties that work at the same time, and reply one after the other on a virtual clock."""

from dataclasses import replace
from typing import Annotated, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int, UInt32
from typing_extensions import override

from resolvent.algorithms.cohort import Cohort
from resolvent.algorithms.participation.rules import Participation, Weighting, shares_of
from resolvent.algorithms.per_party import as_numbers, check_length
from resolvent.errors import InputError

_TICKS_OF_SLOWEST = 2**22  # ticks of the mean job of the slowest party
_MAX_TICKS = 2**30  # of a job; differences of times modulo 2^32 are then unique
_NEVER = np.uint32(2**32 - 1)


class ArrivalsState(NamedTuple):
    """The running jobs, in B blocks of S lanes. Times are numbers of ticks modulo 2^32."""

    finish: UInt32[Array, "B S"]  # when the reply of each lane arrives
    first: UInt32[Array, " B"]  # the earliest of them in each block
    party: Int[Array, "B S"]  # which party works in the lane
    clock_ticks: UInt32[Array, ""]  # when the last reply arrived
    tick: Float[Array, ""]  # the seconds of a tick


class Arrivals(Participation):
    """Rounds of one reply each: that of the party whose job ends next on a virtual clock.

    ``concurrency`` parties work at the same time, each in a lane. When the reply of a lane arrives, the next party of
    the lane starts at once: lane j serves the parties j, j + concurrency, j + 2 concurrency, ..., and draws one of them
    uniformly. With as many lanes as parties, every party starts again when it has replied. A job of party k takes

        seconds_k * exp(jitter * z) * (1 + failures),   z ~ N(0, 1),   P(failures = n) = failure^n (1 - failure)

    seconds: a job that fails is repeated from the same model. The algorithm must be asynchronous, such as
    ``rv.fedasync`` or ``rv.fedbuff``, with the same concurrency. The metric ``simulated_seconds`` is the time since the
    last reply. The time of a round is exact to 2^-22 of the longest of the ``seconds``, also after 10^9 rounds. A draw
    costs O(sqrt(concurrency)).

    Attributes:
        seconds: [N] median seconds of a job of each party, without failures; or one number for all parties.
            ``VirtualClock.job_seconds`` computes them from steps and bytes.
        concurrency: number of parties that work at the same time; default: all.
        jitter: standard deviation of the logarithm of a job's seconds, at most 1.
        failure: probability in [0, 1) that an attempt fails.
        weighting: weights of replies that are averaged, by the number of samples (``size``), or equal (``uniform``).

    Raises:
        InputError: a number is outside its range, or there is not one per party.

    Example:
        >>> participation = rv.participation.Arrivals(jnp.array([1.0, 3.5]))
        >>> state, sizes = participation.init(jnp.ones(2, int), jax.random.key(0)), jnp.ones(2, int)
        >>> parties = []
        >>> for t in range(5):
        ...     cohort, state = participation.draw(state, jax.random.key(t), jnp.array(t), sizes)
        ...     parties.append(int(cohort.index[0]))
        >>> parties  # at 1, 2, 3, 3.5 and 4 seconds
        [0, 0, 0, 1, 0]
    """

    seconds: Annotated[ArrayLike, "(0, inf)"] = eqx.field(converter=as_numbers)
    concurrency: Annotated[int | None, "[1, inf)"] = eqx.field(static=True, default=None)
    jitter: Annotated[ArrayLike, "[0, 1]"] = 0.0
    failure: Annotated[ArrayLike, "[0, 1)"] = 0.0
    weighting: Weighting = eqx.field(static=True, default="uniform")
    is_asynchronous: ClassVar[bool] = True

    @override
    def check(self, parties: int) -> None:
        check_length("Arrivals(seconds=...)", self.seconds, parties)
        if self.concurrency is not None and self.concurrency > parties:
            raise InputError(f"Arrivals(concurrency={self.concurrency}) is more than the {parties} parties")

    @override
    def capacity(self, parties: int) -> int:
        return 1

    @override
    def shares(self, sizes: Int[Array, " N"]) -> Float[Array, " N"]:
        return shares_of(sizes, self.weighting)

    @override
    def init(self, sizes: Int[Array, " N"], key: Array) -> ArrivalsState:
        lanes = self._lanes(len(sizes))
        tick = jnp.max(jnp.asarray(self.seconds, jnp.float32)) / _TICKS_OF_SLOWEST
        party, ticks = self._job(key, lanes, len(sizes), tick)
        finish = jnp.where(_is_lane(lanes, self._count(len(sizes))), ticks, _NEVER)
        return ArrivalsState(finish, jnp.min(finish, axis=1), party, jnp.zeros((), jnp.uint32), tick)

    @override
    def draw(self, state: ArrivalsState, key: Array, t: Int[Array, ""],
             sizes: Int[Array, " N"]) -> tuple[Cohort, ArrivalsState]:
        parties = len(sizes)
        lanes, count = self._lanes(parties), self._count(parties)
        block = jnp.argmin(state.first - state.clock_ticks)
        is_lane = _is_lane(lanes[block], count)
        row = state.finish[block]
        column = jnp.argmin(jnp.where(is_lane, row - state.clock_ticks, _NEVER))
        clock_ticks, party = row[column], state.party[block, column]
        following, ticks = self._job(key, lanes[block, column][None], parties, state.tick)
        row = row.at[column].set(clock_ticks + ticks[0])
        first = clock_ticks + jnp.min(jnp.where(is_lane, row - clock_ticks, _NEVER))
        after = ArrivalsState(state.finish.at[block, column].set(row[column]), state.first.at[block].set(first),
                              state.party.at[block, column].set(following[0]), clock_ticks, state.tick)
        cohort = Cohort.from_parties(party[None], self.shares(sizes))
        elapsed = (clock_ticks - state.clock_ticks).astype(jnp.float32) * state.tick
        return replace(cohort, info={"simulated_seconds": elapsed.astype(cohort.weight.dtype)}), after

    def _count(self, parties: int) -> int:
        return parties if self.concurrency is None else self.concurrency

    def _lanes(self, parties: int) -> Int[Array, "B S"]:
        """The numbers of the lanes in blocks of about as many lanes as there are blocks; some at the end are none."""
        count = self._count(parties)
        width = int(np.ceil(np.sqrt(count)))
        blocks = -(-count // width)
        return jnp.arange(blocks * width, dtype=jnp.int32).reshape(blocks, width)

    def _job(self, key: Array, lanes: Int[Array, "..."], parties: int,
             tick: Float[Array, ""]) -> tuple[Int[Array, "..."], UInt32[Array, "..."]]:
        """The next party of each lane, and the ticks that its job takes."""
        count = self._count(parties)
        # All random bits of a job at once, because every call of the generator takes about a microsecond.
        choice, jitter, failures = jnp.moveaxis(jax.random.bits(key, (*lanes.shape, 3), jnp.uint32), -1, 0)
        lanes = jnp.minimum(lanes, count - 1)
        waiting = ((parties - 1 - lanes) // count + 1).astype(jnp.uint32)
        party = lanes + count * (choice % waiting).astype(jnp.int32)
        seconds = jnp.asarray(self.seconds, jnp.float32)
        seconds = seconds[party] if seconds.ndim else seconds
        normal = jax.scipy.special.ndtri(_uniform(jitter))
        failure = jnp.clip(jnp.asarray(self.failure, jnp.float32), 1e-30, 1)  # the logarithm of 0 is not finite
        failures = jnp.floor(jnp.log(_uniform(failures)) / jnp.log(failure))
        ticks = seconds / tick * jnp.exp(jnp.asarray(self.jitter, jnp.float32) * normal) * (1 + failures)
        return party, jnp.clip(jnp.round(ticks), 1, _MAX_TICKS).astype(jnp.uint32)


def _uniform(bits: UInt32[Array, "..."]) -> Float[Array, "..."]:
    """Numbers in (0, 1): the middles of 2^23 intervals of equal length, which float32 has exactly."""
    return ((bits >> 9).astype(jnp.float32) + 0.5) * np.float32(2**-23)


def _is_lane(lanes: Int[Array, " S"], count: int) -> Bool[Array, " S"]:
    return lanes < count
