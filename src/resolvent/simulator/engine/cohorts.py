"""Cohorts are drawn before their rounds: all methods of a comparison draw with one program, and rounds draw nothing."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from resolvent.algorithms import keys
from resolvent.algorithms.cohort import Cohort, check_cohort
from resolvent.algorithms.participation import Participation, ParticipationWrapper
from resolvent.algorithms.participation.base import ParticipationState
from resolvent.algorithms.participation.draws import first_state

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


def draw_cohorts(participation: Participation, sizes: Int[Array, " N"], seed: ArrayLike, start: ArrayLike, *,
                 rounds: int, capacity: int | None = None,
                 state: ParticipationState | None = None) -> tuple[DrawnCohorts, ParticipationState]:
    """The cohorts of the rounds start, ..., start+rounds-1, and the participation's state after them.

    Args:
        sizes: [N] numbers of samples.
        rounds: number of rounds; up to ``capacity``, another number does not compile again.
        capacity: R, the number of rows of the result; those beyond ``rounds`` are zero. Default: ``rounds``.
        state: the participation's state before round ``start``; default: its first state.
    """
    if state is None:
        state = first_state(participation, sizes, keys.root_key(seed))
    drawn: tuple[DrawnCohorts, ParticipationState] = _draw(
        participation, sizes, state, jnp.asarray(seed), jnp.asarray(start), jnp.array(rounds),
        capacity=rounds if capacity is None else capacity)
    return drawn


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
        cohorts, _ = draw_cohorts(participation, sizes, seed, 0, rounds=_CHECKED_ROUNDS)
        check_cohorts(cohorts, 0, _CHECKED_ROUNDS, participation, len(sizes))


def _is_of_package(participation: Participation) -> bool:
    return type(participation).__module__.startswith(f"{_PACKAGE}.")


@partial(jax.jit, static_argnames=("capacity",))
def _draw(participation: Participation, sizes: Int[Array, " N"], state: ParticipationState, seed: Int[Array, ""],
          start: Int[Array, ""], rounds: Int[Array, ""], *, capacity: int) -> tuple[DrawnCohorts, ParticipationState]:
    root = keys.root_key(seed)

    def draw(t: Array, state: ParticipationState) -> tuple[Cohort, ParticipationState]:
        return participation.draw(state, keys.cohort_key(keys.round_key(root, t)), t, sizes)

    def body(i: Array, carry: tuple[Cohort, ParticipationState]) -> tuple[Cohort, ParticipationState]:
        rows, state = carry
        cohort, after = draw(start + i, state)
        return jax.tree.map(lambda column, value: column.at[i].set(value), rows, cohort), after

    shapes = jax.eval_shape(draw, start, state)[0]
    rows = jax.tree.map(lambda s: jnp.zeros((capacity, *s.shape), s.dtype), shapes)
    cohorts, after = jax.lax.fori_loop(0, rounds, body, (rows, state))
    return DrawnCohorts(cohorts, participation.shares(sizes)), after
