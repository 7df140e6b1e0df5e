"""The contract of participations: what every rule that draws cohorts must satisfy."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from resolvent.algorithms import keys
from resolvent.algorithms.cohort import Cohort, check_cohort
from resolvent.algorithms.participation.rules import Participation, ParticipationState, first_state
from resolvent.errors import InputError
from resolvent.simulator.storage.tree_files import digest
from resolvent.testing.example import SIZES, require, types_of

_ROUNDS = 64


def check_participation(participation: Participation, sizes: tuple[int, ...] = SIZES) -> None:
    """Check that a participation draws correct cohorts, in 64 rounds.

    All entries have the length of its capacity; the ids are different parties; weights are finite and not negative;
    efforts are in (0, 1]; shares are those of all parties, which sum to 1. A cohort is a function of the key, the round
    and the state, can be drawn inside a compiled program, and is the same in float32 and float64. A state keeps its
    shapes and dtypes.

    Args:
        participation: the participation.
        sizes: [N] numbers of training samples of the parties.

    Raises:
        AssertionError: a property does not hold. The message says what was expected and what to do.

    Example:
        >>> check_participation(rv.participation.Uniform(4))
    """
    owner, parties = type(participation).__name__, len(sizes)
    participation.check(parties)
    with jax.enable_x64(False):
        single, again, shares = (*(_draw(participation, sizes) for _ in range(2)), _shares(participation, sizes))
    with jax.enable_x64(True):
        double = _draw(participation, sizes)
    try:
        check_cohort(single, rows=participation.capacity(parties), parties=parties, owner=owner)
    except InputError as error:
        raise AssertionError(str(error)) from error
    require(digest(single) == digest(again), f"{owner} draws two cohorts from one key: draw every random number from "
                                             "the key, and store nothing")
    require(bool(np.all(np.asarray(single.effort) > 0)),
            f"{owner} draws an effort of 0: set alive to False for parties that do no work")
    require(bool(np.isclose(shares.sum(), 1)), f"the shares of {owner} sum to {shares.sum()} over all parties: not 1")
    require(bool(np.allclose(single.shares, shares[np.asarray(single.index)])),
            f"{owner} draws cohorts whose shares are not the entries of shares(sizes) at index")
    for name in ("index", "alive", "late", "weight", "effort"):
        a, b = np.asarray(getattr(single, name)), np.asarray(getattr(double, name))
        require(bool(np.allclose(a, b, rtol=1e-5)), f"{owner} draws another {name} in float64 than in float32: draw "
                                                    "random numbers in float32 in both precisions")


def _draw(participation: Participation, sizes: tuple[int, ...]) -> Cohort:
    """The cohorts of all rounds, leaves [R, C]."""
    root, samples = keys.root_key(0), jnp.asarray(sizes, jnp.int32)

    def of_round(state: ParticipationState, t: Array) -> tuple[ParticipationState, Cohort]:
        cohort, after = participation.draw(state, keys.cohort_key(keys.round_key(root, t)), t, samples)
        return after, cohort

    state = first_state(participation, samples, root)
    (after, _), t = jax.eval_shape(of_round, state, jnp.array(0)), jnp.arange(_ROUNDS)
    require(types_of(after) == types_of(state), f"{type(participation).__name__}.draw returns a state of another "
                                                "structure, shape or dtype than that of init")
    cohorts: Cohort = jax.jit(lambda rounds: jax.lax.scan(of_round, state, rounds)[1])(t)
    return cohorts


def _shares(participation: Participation, sizes: tuple[int, ...]) -> np.ndarray:
    return np.asarray(participation.shares(jnp.asarray(sizes, jnp.int32)))
