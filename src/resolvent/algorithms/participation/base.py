"""The types of a participation: the draw of a round's cohort, also without a stored state."""

from abc import abstractmethod
from typing import Any, TypeAlias

import equinox as eqx
import jax
from jaxtyping import Array, Float, Int, PyTree
from typing_extensions import override

from resolvent.algorithms import keys
from resolvent.algorithms.cohort import Cohort
from resolvent.arguments import CheckedArguments
from resolvent.errors import InputError
from resolvent.math import tree

ParticipationState: TypeAlias = PyTree[Any]


class Participation(CheckedArguments, eqx.Module):
    """Draws the cohort of a round: from its key, its number, and a state, which ``init`` creates and ``draw`` replaces.

    Most have no state. A state is a function of the seed and the round: a run that is resumed, and a federation over a
    network, replay the draws.

    Example:
        The two largest parties, in every round:

        >>> import jax
        >>> class Largest(rv.participation.Participation):
        ...     def capacity(self, parties):
        ...         return 2
        ...     def shares(self, sizes):
        ...         return sizes / jnp.sum(sizes)
        ...     def draw(self, state, key, t, sizes):
        ...         return rv.participation.Cohort.from_parties(jnp.argsort(-sizes)[:2], self.shares(sizes)), state
        >>> Largest().draw((), jax.random.key(0), 0, jnp.array([10, 30, 20]))[0].index.tolist()
        [1, 2]

        Every party in turn, from a party that is drawn at the start of the run:

        >>> class InTurn(Largest):
        ...     def capacity(self, parties):
        ...         return 1
        ...     def init(self, sizes, key):
        ...         return jax.random.randint(key, (), 0, len(sizes), jnp.int32)
        ...     def draw(self, state, key, t, sizes):
        ...         cohort = rv.participation.Cohort.from_parties(state[None], self.shares(sizes))
        ...         return cohort, (state + 1) % len(sizes)
        >>> from resolvent.testing import check_participation
        >>> check_participation(InTurn())
    """

    @abstractmethod
    def capacity(self, parties: int) -> int:
        """C, the number of rows of a cohort."""

    @abstractmethod
    def shares(self, sizes: Int[Array, " N"]) -> Float[Array, " N"]:
        """lambda_k, the weights of the objective sum_k lambda_k f_k."""

    def init(self, sizes: Int[Array, " N"], key: Array) -> ParticipationState:
        """The state before the first round; by default there is none.

        Args:
            sizes: [N] number of training samples of each party.
            key: ``keys.participation_key`` of the run.
        """
        return ()

    @abstractmethod
    def draw(self, state: ParticipationState, key: Array, t: Int[Array, ""],
             sizes: Int[Array, " N"]) -> tuple[Cohort, ParticipationState]:
        """Draw the cohort of round t.

        Args:
            state: the state before the round; () if there is none.
            key: ``keys.cohort_key`` of the round.
            t: number of the round; 0 is the first one.
            sizes: [N] number of training samples of each party.

        Returns:
            The cohort, and the state after the round, of the same structure, shapes and dtypes.
        """

    def check(self, parties: int) -> None:
        """Refuse settings that do not fit the number of parties.

        Raises:
            InputError: the cohort is larger than the federation.
        """
        if self.capacity(parties) > parties:
            raise InputError(f"a cohort of {self.capacity(parties)} cannot be drawn from {parties} parties: "
                             f"set cohort={parties} or less")


class ParticipationWrapper(Participation):
    """Base class for wrappers that modify another participation's cohort, their field ``inner``."""

    @property
    @abstractmethod
    def inner(self) -> Participation:
        """The wrapped participation."""

    def modify(self, cohort: Cohort, key: Array, sizes: Int[Array, " N"]) -> Cohort:
        """The cohort that the wrapper makes of one of ``inner``; by default the same one.

        Args:
            cohort: the cohort that ``inner`` has drawn.
            key: ``keys.cohort_key`` of the round.
            sizes: [N] number of training samples of each party.
        """
        return cohort

    @override
    def check(self, parties: int) -> None:
        self.inner.check(parties)
        self.check_fields(parties)

    def check_fields(self, parties: int) -> None:
        """Refuse the wrapper's own settings that do not fit the number of parties; all fit by default."""

    @override
    def capacity(self, parties: int) -> int:
        return self.inner.capacity(parties)

    @override
    def shares(self, sizes: Int[Array, " N"]) -> Float[Array, " N"]:
        return self.inner.shares(sizes)

    @override
    def init(self, sizes: Int[Array, " N"], key: Array) -> ParticipationState:
        return self.inner.init(sizes, key)

    @override
    def draw(self, state: ParticipationState, key: Array, t: Int[Array, ""],
             sizes: Int[Array, " N"]) -> tuple[Cohort, ParticipationState]:
        cohort, after = self.inner.draw(state, key, t, sizes)
        return self.modify(cohort, key, sizes), after


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
