"""Cohorts are drawn before their rounds: all methods of a comparison draw with one program, and rounds draw nothing."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from resolvent.algorithms import keys
from resolvent.algorithms.cohort import Cohort, check_cohort
from resolvent.algorithms.participation.rules import (
    Participation,
    ParticipationState,
    ParticipationWrapper,
    draw_of_round,
    first_state,
    state_before,
)

_CHECKED_ROUNDS = 8
_PACKAGE = "resolvent.algorithms.participation"


class DrawnCohorts(NamedTuple):
    """The cohorts of a chunk of rounds.

    Attributes:
        rounds: leaves [R, C]. R is the same for all chunks of a run; rows after the last round of a chunk are zero.
        shares: [N] lambda_k of all parties.
    """

    rounds: Cohort
    shares: Float[Array, " N"]


class CohortDraws:
    """Draws the cohorts of a run, chunk after chunk. A chunk that does not follow the last one replays earlier draws.

    Args:
        sizes: [N] numbers of samples.
        capacity: R, the number of rounds for which a result has rows.
    """

    def __init__(self, participation: Participation, sizes: Int[Array, " N"], seed: ArrayLike, capacity: int) -> None:
        self._participation, self._sizes, self._seed, self._capacity = participation, sizes, jnp.asarray(seed), capacity
        self._end = -1  # the round after the last chunk
        self._state: ParticipationState = ()  # the participation's state before it

    def __call__(self, start: int, rounds: int) -> DrawnCohorts:
        """The cohorts of the rounds start, ..., start+rounds-1; up to R rounds, another number does not compile again.

        All methods of a comparison draw with one program, and their programs of rounds have no draws.
        """
        arguments = self._participation, self._sizes, self._seed, jnp.asarray(start)
        state = self._state if start == self._end else _state_before(*arguments)
        drawn: tuple[DrawnCohorts, ParticipationState] = _draw(*arguments, state, jnp.array(rounds),
                                                               capacity=self._capacity)
        self._state, self._end = drawn[1], start + rounds
        return drawn[0]


def draw_cohorts(participation: Participation, sizes: Int[Array, " N"], seed: ArrayLike, start: ArrayLike, *,
                 rounds: int, capacity: int | None = None) -> DrawnCohorts:
    """The cohorts of the rounds start, ..., start+rounds-1, see ``CohortDraws``; all arguments but numbers of rounds
    may be traced.
    """
    arguments = participation, sizes, jnp.asarray(seed), jnp.asarray(start)
    cohorts: DrawnCohorts = _draw(*arguments, _state_before(*arguments), jnp.array(rounds),
                                  capacity=rounds if capacity is None else capacity)[0]
    return cohorts


def check_cohorts(cohorts: DrawnCohorts, start: int, rounds: int, participation: Participation, parties: int) -> None:
    """Refuse the first ``rounds`` of these cohorts if a party is in one of them twice, or one is wrong otherwise.

    Raises:
        InputError: see ``check_cohort``.
    """
    check_cohort(jax.tree.map(lambda leaf: np.asarray(leaf)[:rounds], cohorts.rounds),
                 rows=participation.capacity(parties), parties=parties, owner=type(participation).__name__, start=start)


def check_first_cohorts(participation: Participation, sizes: Int[Array, " N"], seed: ArrayLike) -> None:
    """Refuse a participation whose first cohorts are wrong, before anything runs.

    The participations of this package have tests, so only those of a user are drawn: to compile a draw takes time.

    Raises:
        InputError: see ``check_cohort``.
    """
    layer = participation
    while _is_of_package(layer) and isinstance(layer, ParticipationWrapper):
        layer = layer.inner
    if not _is_of_package(layer):
        cohorts = draw_cohorts(participation, sizes, seed, 0, rounds=_CHECKED_ROUNDS)
        check_cohorts(cohorts, 0, _CHECKED_ROUNDS, participation, len(sizes))


def _is_of_package(participation: Participation) -> bool:
    return type(participation).__module__.startswith(f"{_PACKAGE}.")


def _state_before(participation: Participation, sizes: Int[Array, " N"], seed: Int[Array, ""],
                  start: Int[Array, ""]) -> ParticipationState:
    """The participation's state before a round; nothing is compiled if it has none."""
    shapes = jax.eval_shape(lambda: first_state(participation, sizes, keys.root_key(seed)))
    return _replay(participation, sizes, seed, start) if jax.tree.leaves(shapes) else shapes


@jax.jit
def _replay(participation: Participation, sizes: Int[Array, " N"], seed: Int[Array, ""],
            start: Int[Array, ""]) -> ParticipationState:
    return state_before(participation, sizes, keys.root_key(seed), start)


@partial(jax.jit, static_argnames=("capacity",))
def _draw(participation: Participation, sizes: Int[Array, " N"], seed: Int[Array, ""], start: Int[Array, ""],
          state: ParticipationState, rounds: Int[Array, ""], *,
          capacity: int) -> tuple[DrawnCohorts, ParticipationState]:
    root = keys.root_key(seed)

    def body(i: Array, carry: tuple[Cohort, ParticipationState]) -> tuple[Cohort, ParticipationState]:
        rows, state = carry
        cohort, after = draw_of_round(participation, state, sizes, root, start + i)
        return jax.tree.map(lambda column, value: column.at[i].set(value), rows, cohort), after

    shapes = jax.eval_shape(partial(draw_of_round, participation), state, sizes, root, start)[0]
    rows = jax.tree.map(lambda s: jnp.zeros((capacity, *s.shape), s.dtype), shapes)
    cohorts, after = jax.lax.fori_loop(0, rounds, body, (rows, state))
    return DrawnCohorts(cohorts, participation.shares(sizes)), after
