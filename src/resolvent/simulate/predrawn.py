"""Cohorts that are drawn before their rounds, because the data of their parties must be gathered first."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32
from typing_extensions import override

from resolvent.algorithms import keys
from resolvent.algorithms.participation import Cohort, Participation
from resolvent.errors import InputError
from resolvent.math import tree

__all__ = ["PredrawnCohorts", "draw_cohorts"]


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


@partial(jax.jit, static_argnames=("rounds",))
def draw_cohorts(participation: Participation, sizes: Int[Array, " N"], seed: Int[Array, ""], start: Int[Array, ""], *,
                 rounds: int) -> PredrawnCohorts:
    """The cohorts of the rounds start, ..., start+rounds-1."""
    def of_round(t: Array) -> tuple[Array, Cohort]:
        key = keys.cohort_key(keys.round_key(keys.root_key(seed), t))
        return jax.random.key_data(key), participation(key, sizes)

    return PredrawnCohorts(*jax.lax.map(of_round, start + jnp.arange(rounds)))
