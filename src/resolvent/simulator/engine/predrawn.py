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
from resolvent.errors import InputError
from resolvent.math import tree

__all__ = ["PredrawnCohorts", "check_first_cohorts", "draw_cohorts"]

_CHECKED_ROUNDS = 8


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
        """Refused: the cohorts hold the shares of their own parties only.

        Raises:
            InputError: always.
        """
        raise InputError("predrawn cohorts know the shares of their own parties only: use the participation from which "
                         "they were drawn")

    @override
    def __call__(self, key: Array, sizes: Int[Array, " N"]) -> Cohort:
        is_round = jnp.all(self.keys == jax.random.key_data(key), axis=1)
        cohort: Cohort = tree.rows(self.cohorts, jnp.argmax(is_round))
        return cohort


def draw_cohorts(participation: Participation, sizes: Int[Array, " N"], seed: ArrayLike, start: int, *,
                 rounds: int, capacity: int | None = None) -> PredrawnCohorts:
    """The cohorts of the rounds start, ..., start+rounds-1.

    Args:
        participation: draws the cohorts.
        sizes: [N] numbers of samples.
        seed: seed of all random numbers.
        start: number of the first round.
        rounds: number of rounds; up to ``capacity``, another number does not compile again.
        capacity: R, the number of rows of the result; those beyond ``rounds`` are zero. Default: ``rounds``.

    Raises:
        InputError: the participation draws a party twice in a round, or a cohort that is wrong otherwise.
    """
    drawn: PredrawnCohorts = _draw(participation, sizes, jnp.asarray(seed), jnp.array(start), jnp.array(rounds),
                                   capacity=rounds if capacity is None else capacity)
    check_cohort(jax.tree.map(lambda leaf: np.asarray(leaf)[:rounds], drawn.cohorts),
                 rows=participation.capacity(len(sizes)), parties=len(sizes), owner=type(participation).__name__,
                 start=start)
    return drawn


def check_first_cohorts(participation: Participation, sizes: Int[Array, " N"], seed: ArrayLike) -> None:
    """Refuse a participation whose first cohorts are wrong, before anything runs.

    The participations of this package have tests, so only those of a user are drawn: to compile a draw takes time.

    Raises:
        InputError: as ``draw_cohorts``.
    """
    layer = participation
    while type(layer).__module__ == Participation.__module__ and isinstance(layer, ParticipationWrapper):
        layer = layer.inner
    if type(layer).__module__ != Participation.__module__:
        draw_cohorts(participation, sizes, seed, 0, rounds=_CHECKED_ROUNDS)


@partial(jax.jit, static_argnames=("capacity",))
def _draw(participation: Participation, sizes: Int[Array, " N"], seed: Int[Array, ""], start: Int[Array, ""],
          rounds: Int[Array, ""], *, capacity: int) -> PredrawnCohorts:
    def of_round(t: Array) -> PredrawnCohorts:
        key = keys.cohort_key(keys.round_key(keys.root_key(seed), t))
        return PredrawnCohorts(jax.random.key_data(key), participation(key, sizes))

    def body(i: Array, rows: PredrawnCohorts) -> PredrawnCohorts:
        filled: PredrawnCohorts = jax.tree.map(lambda column, value: column.at[i].set(value), rows, of_round(start + i))
        return filled

    rows = jax.tree.map(lambda s: jnp.zeros((capacity, *s.shape), s.dtype), jax.eval_shape(of_round, start))
    cohorts: PredrawnCohorts = jax.lax.fori_loop(0, rounds, body, rows)
    return cohorts
