"""The first state of a participation, and the cohort of any round without a stored state."""

import jax
from jaxtyping import Array, Int

from resolvent.algorithms import keys
from resolvent.algorithms.cohort import Cohort
from resolvent.algorithms.participation.base import Participation, ParticipationState
from resolvent.math import tree


def first_state(participation: Participation, sizes: Int[Array, " N"], root: Array) -> ParticipationState:
    """The participation's state before the first round of a run with this ``keys.root_key``."""
    return tree.strongly_typed(participation.init(sizes, keys.participation_key(root)))


def has_state(participation: Participation, parties: int) -> bool:
    """Whether the cohorts of a federation of this size depend on earlier draws."""
    sizes = jax.ShapeDtypeStruct((parties,), "int32")  # type: ignore[no-untyped-call]
    state = jax.eval_shape(lambda n: first_state(participation, n, keys.root_key(0)), sizes)
    return bool(jax.tree.leaves(state))


def draw_of_round(participation: Participation, state: ParticipationState, sizes: Int[Array, " N"], root: Array,
                  t: Int[Array, ""]) -> tuple[Cohort, ParticipationState]:
    """The cohort of round t and the state after it, from the state before it."""
    return participation.draw(state, keys.cohort_key(keys.round_key(root, t)), t, sizes)


def state_before(participation: Participation, sizes: Int[Array, " N"], root: Array,
                 t: Int[Array, ""]) -> ParticipationState:
    """The participation's state before round t: the draws of the earlier rounds are repeated, if it has a state."""
    state = first_state(participation, sizes, root)
    if not jax.tree.leaves(state):
        return state
    replayed: ParticipationState = jax.lax.fori_loop(
        0, t, lambda s, before: draw_of_round(participation, before, sizes, root, s)[1], state)
    return replayed


def draw_cohort(participation: Participation, sizes: Int[Array, " N"], root: Array,
                t: Int[Array, ""]) -> tuple[Array, Cohort]:
    """The key of round t and its cohort, without a stored state, see ``state_before``.

    Args:
        sizes: [N] number of training samples of each party.
        root: ``keys.root_key`` of the run.
    """
    state = state_before(participation, sizes, root, t)
    return keys.round_key(root, t), draw_of_round(participation, state, sizes, root, t)[0]
