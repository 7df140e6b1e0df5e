"""Cohorts that were drawn before their rounds: whoever gathers the parties' data must know who will come."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from resolvent.algorithms import keys
from resolvent.algorithms.participation import Cohort, Participation
from resolvent.errors import InputError
from resolvent.math import tree

__all__ = ["PredrawnCohorts", "draw"]


class PredrawnCohorts(Participation):
    """The cohorts of some rounds, found by their rounds' keys.

    Attributes:
        keys: [R, words] the key of each round's cohort.
        cohorts: leaves [R, C].
    """

    keys: UInt32[Array, "R words"]
    cohorts: Cohort

    def capacity(self, parties: int) -> int:
        """C."""
        return int(self.cohorts.index.shape[1])

    def shares(self, sizes: Int[Array, " N"]) -> Float[Array, " N"]:
        """Refused: these cohorts know their members' shares alone.

        Raises:
            InputError: always.
        """
        raise InputError("cohorts that have been drawn know their members' shares alone: ask the participation that "
                         "they were drawn from")

    def __call__(self, key: Array, sizes: Int[Array, " N"]) -> Cohort:
        """The cohort that was drawn with ``key``."""
        same = jnp.all(self.keys == jax.random.key_data(key), axis=1)
        found: Cohort = tree.rows(self.cohorts, jnp.argmax(same))
        return found


@partial(jax.jit, static_argnames=("rounds",))
def draw(who: Participation, sizes: Int[Array, " N"], seed: Int[Array, ""], start: Int[Array, ""], *,
         rounds: int) -> PredrawnCohorts:
    """The cohorts of so many rounds from ``start`` on."""
    def of_round(t: Array) -> tuple[Array, Cohort]:
        key = keys.cohort_key(keys.round_key(keys.root_key(seed), t))
        return jax.random.key_data(key), who(key, sizes)

    return PredrawnCohorts(*jax.lax.map(of_round, start + jnp.arange(rounds)))
