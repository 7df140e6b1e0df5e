"""The types of a participation: the draw of a round's cohort, with or without a state."""

from abc import abstractmethod
from typing import Any, TypeAlias

import equinox as eqx
from jaxtyping import Array, Float, Int, PyTree
from typing_extensions import override

from resolvent.algorithms.cohort import Cohort
from resolvent.arguments import CheckedArguments
from resolvent.errors import InputError

ParticipationState: TypeAlias = PyTree[Any]


class Participation(CheckedArguments, eqx.Module):
    """Draws the cohort of a round.

    A cohort that depends on the key of the round alone is the method ``__call__``. A cohort that depends on the number
    of the round, or on earlier draws, is the method ``draw`` of a ``StatefulParticipation``. ``simulate``, the
    checkpoints and a network call ``init`` and ``draw`` only.

    Example:
        The two largest parties, in every round:

        >>> import jax
        >>> class Largest(rv.participation.Participation):
        ...     def capacity(self, parties):
        ...         return 2
        ...     def shares(self, sizes):
        ...         return sizes / jnp.sum(sizes)
        ...     def __call__(self, key, sizes):
        ...         return rv.participation.Cohort.from_parties(jnp.argsort(-sizes)[:2], self.shares(sizes))
        >>> Largest()(jax.random.key(0), jnp.array([10, 30, 20])).index.tolist()
        [1, 2]
    """

    @abstractmethod
    def capacity(self, parties: int) -> int:
        """C, the number of rows of a cohort."""

    @abstractmethod
    def shares(self, sizes: Int[Array, " N"]) -> Float[Array, " N"]:
        """lambda_k, the weights of the objective sum_k lambda_k f_k."""

    @abstractmethod
    def __call__(self, key: Array, sizes: Int[Array, " N"]) -> Cohort:
        """Draw the cohort.

        Args:
            key: ``keys.cohort_key`` of the round.
            sizes: [N] number of training samples of each party.
        """

    def init(self, sizes: Int[Array, " N"], key: Array) -> ParticipationState:
        """The state before the first round; by default there is none.

        Args:
            sizes: [N] number of training samples of each party.
            key: ``keys.participation_key`` of the run.
        """
        return ()

    def draw(self, state: ParticipationState, key: Array, t: Int[Array, ""],
             sizes: Int[Array, " N"]) -> tuple[Cohort, ParticipationState]:
        """Draw the cohort of round t; by default with ``__call__``.

        Args:
            state: the state before the round.
            key: ``keys.cohort_key`` of the round.
            t: number of the round; 0 is the first one.
            sizes: [N] number of training samples of each party.

        Returns:
            The cohort, and the state after the round, of the same structure, shapes and dtypes.
        """
        return self(key, sizes), state

    def check(self, parties: int) -> None:
        """Refuse settings that do not fit the number of parties.

        Raises:
            InputError: the cohort is larger than the federation.
        """
        if self.capacity(parties) > parties:
            raise InputError(f"a cohort of {self.capacity(parties)} cannot be drawn from {parties} parties: "
                             f"set cohort={parties} or less")


class StatefulParticipation(Participation):
    """Draws the cohort of a round from its number and from a state, which ``init`` creates and ``draw`` replaces.

    Checkpoints store the state. A federation over a network does not store it: it replays the draws.

    Example:
        Every party in turn, from a party that is drawn at the start of the run:

        >>> import jax
        >>> class InTurn(rv.participation.StatefulParticipation):
        ...     def capacity(self, parties):
        ...         return 1
        ...     def shares(self, sizes):
        ...         return sizes / jnp.sum(sizes)
        ...     def init(self, sizes, key):
        ...         return jax.random.randint(key, (), 0, len(sizes), jnp.int32)
        ...     def draw(self, state, key, t, sizes):
        ...         cohort = rv.participation.Cohort.from_parties(state[None], self.shares(sizes))
        ...         return cohort, (state + 1) % len(sizes)
        >>> from resolvent.testing import check_participation
        >>> check_participation(InTurn())
    """

    @abstractmethod
    @override
    def init(self, sizes: Int[Array, " N"], key: Array) -> ParticipationState:
        """The state before the first round, see ``Participation.init``."""

    @abstractmethod
    @override
    def draw(self, state: ParticipationState, key: Array, t: Int[Array, ""],
             sizes: Int[Array, " N"]) -> tuple[Cohort, ParticipationState]:
        """Draw the cohort of round t, see ``Participation.draw``."""

    @override
    def __call__(self, key: Array, sizes: Int[Array, " N"]) -> Cohort:
        """Refused: the cohort depends on the round and on the state.

        Raises:
            InputError: always.
        """
        raise refuse_call(self)


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
    def __call__(self, key: Array, sizes: Int[Array, " N"]) -> Cohort:
        return self.modify(self.inner(key, sizes), key, sizes)

    @override
    def init(self, sizes: Int[Array, " N"], key: Array) -> ParticipationState:
        return self.inner.init(sizes, key)

    @override
    def draw(self, state: ParticipationState, key: Array, t: Int[Array, ""],
             sizes: Int[Array, " N"]) -> tuple[Cohort, ParticipationState]:
        cohort, after = self.inner.draw(state, key, t, sizes)
        return self.modify(cohort, key, sizes), after


def refuse_call(participation: Participation) -> InputError:
    """The error of ``__call__`` if a cohort depends on the number of the round or on a state."""
    return InputError(f"the cohorts of {type(participation).__name__} depend on the round and on a state: call "
                      "draw(state, key, t, sizes) with the state of init(sizes, key)")
