"""Cohorts that are drawn before their rounds: to gather the data of their parties first, or to check them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int
from typing_extensions import override

from resolvent.algorithms import keys
from resolvent.algorithms.cohort import Cohort, check_cohort
from resolvent.algorithms.participation import Participation, ParticipationWrapper
from resolvent.algorithms.participation.base import ParticipationState, StatefulParticipation
from resolvent.algorithms.participation.draws import first_state
from resolvent.math import tree

_CHECKED_ROUNDS = 8
_PACKAGE = "resolvent.algorithms.participation"


class PredrawnCohorts(StatefulParticipation):
    """The cohorts of some rounds.

    Attributes:
        start: number of the first of these rounds.
        cohorts: leaves [R, C].
        objective_shares: [N] the shares of all parties.
    """

    start: Int[Array, ""]
    cohorts: Cohort
    objective_shares: Float[Array, " N"]

    @override
    def capacity(self, parties: int) -> int:
        return int(self.cohorts.index.shape[1])

    @override
    def shares(self, sizes: Int[Array, " N"]) -> Float[Array, " N"]:
        return self.objective_shares

    @override
    def init(self, sizes: Int[Array, " N"], key: Array) -> ParticipationState:
        return ()

    @override
    def draw(self, state: ParticipationState, key: Array, t: Int[Array, ""],
             sizes: Int[Array, " N"]) -> tuple[Cohort, ParticipationState]:
        return tree.rows(self.cohorts, t - self.start), state


def draw_cohorts(participation: Participation, sizes: Int[Array, " N"], seed: ArrayLike, start: int, *,
                 rounds: int, capacity: int | None = None,
                 state: ParticipationState | None = None) -> tuple[PredrawnCohorts, ParticipationState]:
    """The cohorts of the rounds start, ..., start+rounds-1, and the participation's state after them.

    Args:
        sizes: [N] numbers of samples.
        rounds: number of rounds; up to ``capacity``, another number does not compile again.
        capacity: R, the number of rows of the result; those beyond ``rounds`` are zero. Default: ``rounds``.
        state: the participation's state before round ``start``; default: its first state.
    """
    if state is None:
        state = first_state(participation, sizes, keys.root_key(seed))
    drawn: tuple[PredrawnCohorts, ParticipationState] = _draw(
        participation, sizes, state, jnp.asarray(seed), jnp.array(start), jnp.array(rounds),
        capacity=rounds if capacity is None else capacity)
    return drawn


def check_cohorts(cohorts: PredrawnCohorts, rounds: int, participation: Participation, parties: int) -> None:
    """Refuse the first ``rounds`` of these cohorts if a party is in one of them twice, or one is wrong otherwise.

    Raises:
        InputError: see ``check_cohort``.
    """
    check_cohort(jax.tree.map(lambda leaf: np.asarray(leaf)[:rounds], cohorts.cohorts),
                 rows=participation.capacity(parties), parties=parties, owner=type(participation).__name__,
                 start=int(cohorts.start))


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
        cohorts, _ = draw_cohorts(participation, sizes, seed, 0, rounds=_CHECKED_ROUNDS)
        check_cohorts(cohorts, _CHECKED_ROUNDS, participation, len(sizes))


def _is_of_package(participation: Participation) -> bool:
    return type(participation).__module__.startswith(f"{_PACKAGE}.")


@partial(jax.jit, static_argnames=("capacity",))
def _draw(participation: Participation, sizes: Int[Array, " N"], state: ParticipationState, seed: Int[Array, ""],
          start: Int[Array, ""], rounds: Int[Array, ""], *, capacity: int) -> tuple[PredrawnCohorts,
                                                                                   ParticipationState]:
    def body(i: Array, carry: tuple[Cohort, ParticipationState]) -> tuple[Cohort, ParticipationState]:
        rows, state = carry
        cohort, after = draw_round(participation, sizes, state, seed, start + i)
        return jax.tree.map(lambda column, value: column.at[i].set(value), rows, cohort), after

    shapes = jax.eval_shape(draw_round, participation, sizes, state, seed, start)[0]
    rows = jax.tree.map(lambda s: jnp.zeros((capacity, *s.shape), s.dtype), shapes)
    cohorts, after = jax.lax.fori_loop(0, rounds, body, (rows, state))
    return PredrawnCohorts(start, cohorts, participation.shares(sizes)), after


@jax.jit
def draw_round(participation: Participation, sizes: Int[Array, " N"], state: ParticipationState, seed: Int[Array, ""],
               t: Int[Array, ""]) -> tuple[Cohort, ParticipationState]:
    """The cohort of round t, and the participation's state after it."""
    return participation.draw(state, keys.cohort_key(keys.round_key(keys.root_key(seed), t)), t, sizes)
