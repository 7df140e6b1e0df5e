"""The base class of combinators: whatever a combinator does not change is the inner algorithm's."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from jaxtyping import Array, Float, Int
from typing_extensions import override

from resolvent.algorithms.algorithm import (
    Algorithm,
    Info,
    Iterate,
    Message,
    Part,
    PartyState,
    Phase,
    Replies,
    Reply,
    ServerState,
    party_work,
    server_work,
)
from resolvent.algorithms.cohort import StragglerPolicy
from resolvent.errors import InputError
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.problem import Problem

if TYPE_CHECKING:
    from resolvent.algorithms.participation.rules import Participation

InnerMessage: TypeAlias = Callable[[ServerState, Int[Array, ""]], Message]
InnerParty: TypeAlias = Callable[[PartyState, Message, Oracle, Array, Float[Array, ""]], tuple[PartyState, Reply, Info]]
InnerServer: TypeAlias = Callable[[ServerState, Replies, Array], tuple[ServerState, Info]]


class Wrapped(NamedTuple):
    """A server state, a party state or a message of a combinator.

    Attributes:
        inner: the inner algorithm's.
        extra: the combinator's part; () if it has none.
    """

    inner: ServerState
    extra: Any


class Combinator(Algorithm):
    """An algorithm around another one.

    Its states and messages are the inner algorithm's, each with a part of the combinator (``Wrapped``). Every method
    here passes through to the inner algorithm. A subclass overrides those that it changes. ``message``, ``party`` and
    ``server`` get the inner function of the phase and the number of the phase.

    Attributes:
        inner: the inner algorithm.

    Example:
        A server that goes half of the inner algorithm's way:

        >>> class Halfway(rv.combinators.Combinator):
        ...     def server(self, inner, state, replies, key, phase):
        ...         after, info = inner(state.inner, replies, key)
        ...         half = jax.tree.map(lambda a, b: (a + b) / 2, state.inner, after)
        ...         return state._replace(inner=half), info
        >>> algorithm = Halfway(rv.fedavg(rv.SGD(0.1)))
    """

    inner: Algorithm

    def _repr_html_(self) -> str:
        from resolvent.algorithms.traits import overview_html  # for notebooks

        return overview_html(self)

    def message(self, inner: InnerMessage, state: Wrapped, k: Int[Array, ""], phase: int) -> Wrapped:
        """The message to party k; by default the inner algorithm's, with ``message_extra``."""
        return Wrapped(inner(state.inner, k), self.message_extra(state, k, phase))

    def party(self, inner: InnerParty, state: Wrapped, message: Wrapped, oracle: Oracle, key: Array,
              effort: Float[Array, ""], phase: int) -> tuple[Wrapped, Reply, Info]:
        """A party's work; by default the inner algorithm's."""
        after, reply, info = inner(state.inner, message.inner, oracle, key, effort)
        return Wrapped(after, state.extra), reply, info

    def origin(self, inner: Callable[[Message], Vector], message: Wrapped) -> Vector:
        """The model of which a reply is an update, see ``Phase``; by default the inner algorithm's of this message."""
        return inner(message.inner)

    def server(self, inner: InnerServer, state: Wrapped, replies: Replies, key: Array,
               phase: int) -> tuple[Wrapped, Info]:
        """The server's step; by default the inner algorithm's."""
        after, info = inner(state.inner, replies, key)
        return Wrapped(after, state.extra), info

    def init_extra(self, inner: ServerState, w0: Vector, shares: Float[Array, " N"]) -> Any:
        """The combinator's part of the first server state, given the inner algorithm's."""
        return ()

    def init_party_extra(self, w0: Vector, oracle: Oracle, key: Array) -> Any:
        """The combinator's part of a party's first state."""
        return ()

    def message_extra(self, state: Wrapped, k: Int[Array, ""], phase: int) -> Any:
        """The combinator's part of the message to party k."""
        return ()

    def check_settings(self, parties: int) -> None:
        """Refuse the combinator's own settings that do not fit the number of parties; by default all settings fit."""

    @override
    def check(self, parties: int) -> None:
        self.inner.check(parties)
        self.check_settings(parties)

    @override
    def check_participation(self, participation: "Participation", parties: int, problem: Problem | None = None) -> None:
        self.inner.check_participation(participation, parties, problem)

    @override
    def init(self, w0: Vector, shares: Float[Array, " N"]) -> Wrapped:
        inner = self.inner.init(w0, shares)
        return Wrapped(inner, self.init_extra(inner, w0, shares))

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> Wrapped:
        return Wrapped(self.inner.init_party(w0, oracle, key), self.init_party_extra(w0, oracle, key))

    @property
    @override
    def phases(self) -> tuple[Phase, ...]:
        return tuple(Phase(partial(self.message, inner.message, phase=phase),
                           partial(self.party, partial(party_work, inner), phase=phase),
                           partial(self.server, partial(server_work, inner), phase=phase),
                           partial(self.origin, inner.origin) if inner.origin and self.replies_models else None)
                     for phase, inner in enumerate(self.inner.phases))

    @property
    @override
    def straggler_policy(self) -> StragglerPolicy | None:
        return self.inner.straggler_policy

    @property
    @override
    def steps_without_replies(self) -> bool:
        return self.inner.steps_without_replies

    @property
    @override
    def replies_models(self) -> bool:
        return self.inner.replies_models

    @property
    @override
    def needs_individual_replies(self) -> bool:
        return self.inner.needs_individual_replies

    @property
    @override
    def norm_multiple(self) -> float | None:
        return self.inner.norm_multiple

    @property
    @override
    def max_share(self) -> float | None:
        return self.inner.max_share

    @property
    @override
    def pools_data(self) -> bool:
        return self.inner.pools_data

    @property
    @override
    def works_without_held_out(self) -> bool:
        return self.inner.works_without_held_out

    @property
    @override
    def iterate(self) -> Iterate | None:
        return iterate_within(self.inner.iterate)

    @override
    def model_message(self, state: Wrapped, k: Int[Array, ""]) -> Wrapped:
        return self.message(self.inner.model_message, state, k, 0)

    @override
    def personal_model(self, state: Wrapped, message: Wrapped, oracle: Oracle) -> Vector:
        return self.inner.personal_model(state.inner, message.inner, oracle)

    @override
    def server_model(self, state: Wrapped) -> Vector | None:
        return self.inner.server_model(state.inner)


def iterate_within(inner: Iterate | None) -> Iterate | None:
    """The inner algorithm's iterate, in a combinator's server state."""
    return inner and inner._replace(server=_within(inner.server), mean=_within(inner.mean), party=None)


def _within(part: Part | None) -> Part | None:
    """A part of the inner algorithm's server state, in a combinator's."""
    return part and Part(lambda state: part.read(state.inner),
                         lambda state, new: state._replace(inner=part.replace(state.inner, new)))


def one_phase_iterate(algorithm: Algorithm, combinator: str, instead: str) -> Iterate:
    """The iterate of an algorithm of one phase whose server holds it."""
    iterate = algorithm.iterate
    if iterate is None or not iterate.is_whole or len(algorithm.phases) != 1:
        raise InputError(f"{combinator} needs an algorithm of one phase whose server holds the iterate, got "
                         f"{type(algorithm).__name__}: use {instead}{advice_for_own(algorithm)}")
    return iterate


def advice_for_own(algorithm: Algorithm) -> str:
    """The end of an error for an algorithm without an iterate that is not a part of the library; otherwise empty."""
    kind = type(innermost(algorithm))
    is_own = not kind.__module__.startswith("resolvent.")
    return f". Or give {kind.__name__} the property iterate, see resolvent.extend.Iterate" if is_own else ""


def layers(algorithm: Algorithm) -> Iterator[Algorithm]:
    """The algorithm and those inside it, the outermost first."""
    yield algorithm
    while isinstance(algorithm, Combinator):
        algorithm = algorithm.inner
        yield algorithm


def innermost(algorithm: Algorithm) -> Algorithm:
    """The algorithm inside all combinators."""
    *_, core = layers(algorithm)
    return core


def contains(algorithm: Algorithm, kind: type[Combinator]) -> bool:
    """Whether the algorithm is a combinator of this kind or has one inside."""
    return any(isinstance(layer, kind) for layer in layers(algorithm))
