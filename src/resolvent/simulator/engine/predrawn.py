"""Cohorts that are drawn before their rounds: to gather the data of their parties first, or to check them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, UInt32
from typing_extensions import override

from resolvent.algorithms import keys
from resolvent.algorithms.cohort import Cohort, check_cohort
from resolvent.algorithms.participation import Participation, ParticipationWrapper
from resolvent.algorithms.participation.base import ParticipationState
from resolvent.algorithms.participation.draws import first_state
from resolvent.errors import InputError
from resolvent.math import tree

_CHECKED_ROUNDS = 8
_PACKAGE = "resolvent.algorithms.participation"


class PredrawnCohorts(Participation):
    """The cohorts of some rounds, which are looked up by the key of the round.

    Attributes:
        keys: [R, words] the data of each round's ``keys.cohort_key``.
        cohorts: leaves [R, C].
    """

    keys: UInt32[Array, "R words"]
    cohorts: Cohort

    @override
    def capacity(self, parties: int) -> int:
        return int(self.cohorts.index.shape[1])

    @override
    def shares(self, sizes: Int[Array, " N"]) -> Float[Array, " N"]:
        """Refused: the cohorts hold the shares of their own parties only."""
        raise InputError("predrawn cohorts know the shares of their own parties only: use the participation from which "
                         "they were drawn")

    @override
    def __call__(self, key: Array, sizes: Int[Array, " N"]) -> Cohort:
        is_round = jnp.all(self.keys == jax.random.key_data(key), axis=1)
        cohort: Cohort = tree.rows(self.cohorts, jnp.argmax(is_round))
        return cohort


def draw_cohorts(participation: Participation, sizes: Int[Array, " N"], seed: ArrayLike, start: int, *,
                 rounds: int, capacity: int | None = None,
                 state: ParticipationState | None = None) -> tuple[PredrawnCohorts, ParticipationState]:
    """The cohorts of the rounds start, ..., start+rounds-1, and the participation's state after them.

    Args:
        sizes: [N] numbers of samples.
        rounds: number of rounds; up to ``capacity``, another number does not compile again.
        capacity: R, the number of rows of the result; those beyond ``rounds`` are zero. Default: ``rounds``.
        state: the participation's state before round ``start``; default: its first state.

    Raises:
        InputError: the participation draws a party twice in a round, or a cohort that is wrong otherwise.
    """
    if state is None:
        state = first_state(participation, sizes, keys.root_key(seed))
    drawn, after = _draw(participation, sizes, state, jnp.asarray(seed), jnp.array(start), jnp.array(rounds),
                         capacity=rounds if capacity is None else capacity)
    check_cohort(jax.tree.map(lambda leaf: np.asarray(leaf)[:rounds], drawn.cohorts),
                 rows=participation.capacity(len(sizes)), parties=len(sizes), owner=type(participation).__name__,
                 start=start)
    return drawn, after


def check_first_cohorts(participation: Participation, sizes: Int[Array, " N"], seed: ArrayLike) -> None:
    """Refuse a participation whose first cohorts are wrong, before anything runs.

    The participations of this package have tests, so only those of a user are drawn: to compile a draw takes time.

    Raises:
        InputError: as ``draw_cohorts``.
    """
    layer = participation
    while _is_of_package(layer) and isinstance(layer, ParticipationWrapper):
        layer = layer.inner
    if not _is_of_package(layer):
        draw_cohorts(participation, sizes, seed, 0, rounds=_CHECKED_ROUNDS)


def _is_of_package(participation: Participation) -> bool:
    return type(participation).__module__.startswith(f"{_PACKAGE}.")


@partial(jax.jit, static_argnames=("capacity",))
def _draw(participation: Participation, sizes: Int[Array, " N"], state: ParticipationState, seed: Int[Array, ""],
          start: Int[Array, ""], rounds: Int[Array, ""], *, capacity: int) -> tuple[PredrawnCohorts,
                                                                                   ParticipationState]:
    def of_round(t: Array, state: ParticipationState) -> tuple[PredrawnCohorts, ParticipationState]:
        key = keys.cohort_key(keys.round_key(keys.root_key(seed), t))
        cohort, after = participation.draw(state, key, t, sizes)
        return PredrawnCohorts(jax.random.key_data(key), cohort), after

    def body(i: Array, carry: tuple[PredrawnCohorts, ParticipationState]) -> tuple[PredrawnCohorts, ParticipationState]:
        rows, state = carry
        drawn, after = of_round(start + i, state)
        return jax.tree.map(lambda column, value: column.at[i].set(value), rows, drawn), after

    shapes = jax.eval_shape(of_round, start, state)[0]
    rows = jax.tree.map(lambda s: jnp.zeros((capacity, *s.shape), s.dtype), shapes)
    drawn: tuple[PredrawnCohorts, ParticipationState] = jax.lax.fori_loop(0, rounds, body, (rows, state))
    return drawn
