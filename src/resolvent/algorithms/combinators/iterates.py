"""What accelerators and server optimizers need of an algorithm: the point that a round maps to the next one.

``server_iterate`` says how to read and replace that point in the server's state, ``party_iterate`` does the same where
the parties hold it. Both are single-dispatch functions: an algorithm defined elsewhere registers its own rule with
``server_iterate.register``. Subclasses of ``SharedModelMethod`` need no rule: their iterate is the shared model.
"""

from collections.abc import Callable
from functools import singledispatch
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from resolvent.algorithms.algorithm import Algorithm, Info, Message, PartyState, Reply, ServerState, SharedModelMethod
from resolvent.algorithms.combinators.combinator import Combinator, innermost
from resolvent.algorithms.methods.fedplus import FedPlus
from resolvent.algorithms.methods.splitting import DecentralisedSplitting, Splitting, SplittingState
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle


class ServerIterate(NamedTuple):
    """How to read and replace the point in the server's state.

    Attributes:
        read: server state -> point.
        replace: (server state, point) -> the same state at another point.
        by_party: whether the leaves of the point are [N, ...], one part for each party.
    """

    read: Callable[[ServerState], Vector]
    replace: Callable[[ServerState, Vector], ServerState]
    by_party: bool = False


_WHOLE_STATE = ServerIterate(lambda state: state, lambda state, point: point)


@singledispatch
def server_iterate(algorithm: Algorithm) -> ServerIterate | None:
    """The point of the server that a round maps to the next one, or None if there is none."""
    return None


@server_iterate.register
def _(algorithm: SharedModelMethod) -> ServerIterate:
    return _WHOLE_STATE


@server_iterate.register
def _(algorithm: Splitting) -> ServerIterate:
    return ServerIterate(lambda state: state.u, lambda state, u: state._replace(u=u), by_party=True)


@server_iterate.register
def _(algorithm: Combinator) -> ServerIterate | None:
    inner = server_iterate(algorithm.inner)
    return None if inner is None else through_combinator(inner)


@singledispatch
def server_mean(algorithm: Algorithm) -> ServerIterate | None:
    """P_H(z) of a splitting scheme, from which the next u_k follow; None for other algorithms."""
    return None


@server_mean.register
def _(algorithm: Splitting) -> ServerIterate:
    def replace(state: SplittingState, mean: Vector) -> SplittingState:
        # The state that (25) and (26) would have led to from another P_H(z). Source: splitting paper, B.8.
        _, _, beta, gamma = algorithm.relaxation.at(jnp.maximum(state.t - 1, 0))
        shift = tree.sub(mean, state.mean)
        u = jax.vmap(lambda u_k: tree.axpy(beta * gamma, shift, u_k))(state.u)
        return state._replace(u=u, mean=mean)

    return ServerIterate(lambda state: state.mean, replace)


@server_mean.register
def _(algorithm: Combinator) -> ServerIterate | None:
    inner = server_mean(algorithm.inner)
    return None if inner is None else through_combinator(inner)


@singledispatch
def server_centre(algorithm: Algorithm) -> ServerIterate | None:
    """The centre of Fed+, which a round maps to the next one together with the parties' models; None: there is none."""
    return None


@server_centre.register
def _(algorithm: FedPlus) -> ServerIterate:
    return _WHOLE_STATE


@server_centre.register
def _(algorithm: Combinator) -> ServerIterate | None:
    inner = server_centre(algorithm.inner)
    return None if inner is None else through_combinator(inner)


def through_combinator(inner: ServerIterate) -> ServerIterate:
    """The point of the inner algorithm, in a combinator's state."""
    return ServerIterate(lambda state: inner.read(state.inner),
                         lambda state, point: state._replace(inner=inner.replace(state.inner, point)), inner.by_party)


def one_phase_iterate(algorithm: Algorithm, combinator: str, instead: str) -> ServerIterate:
    """The server's iterate of an algorithm of one phase."""
    iterate = server_iterate(algorithm)
    if iterate is None or len(algorithm.phases) != 1:
        raise InputError(f"{combinator} needs an algorithm of one phase whose server holds the iterate, got "
                         f"{type(algorithm).__name__}: use {instead}{advice_for_own(algorithm)}")
    return iterate


def advice_for_own(algorithm: Algorithm) -> str:
    """The end of an error for an algorithm without an iterate that is not a part of the library; otherwise empty."""
    kind = type(innermost(algorithm))
    if kind.__module__.startswith("resolvent."):
        return ""
    return (f". Or register the iterate of {kind.__name__} with "
            "resolvent.algorithms.combinators.iterates.server_iterate.register")


PartyWork: TypeAlias = Callable[[Vector, PartyState, Message, Oracle, Array, Float[Array, ""]],
                                tuple[PartyState, Reply, Info]]


class PartyIterate(NamedTuple):
    """How to read and replace the point of an algorithm of one phase whose parties each hold a part of it.

    Attributes:
        read: (party state, message or closing message) -> the party's part.
        work: (part, party state, message, oracle, key, effort) -> the party's work from that part.
        closing_message: server state after the server's step -> what a party needs to know its next part.
        shared: the server's part of the point; empty if it has none.
    """

    read: Callable[[PartyState, Message], Vector]
    work: PartyWork
    closing_message: Callable[[ServerState], Message]
    shared: ServerIterate


@singledispatch
def party_iterate(algorithm: Algorithm) -> PartyIterate | None:
    """The parties' parts of the point that a round maps to the next one, or None if they hold none."""
    return None


def work_from_state(algorithm: Algorithm, replace: Callable[[PartyState, Vector], PartyState]) -> PartyWork:
    """The work of parties whose part of the point is in their state; ``replace`` puts another part there."""
    def work(point: Vector, state: PartyState, message: Message, oracle: Oracle, key: Array,
             effort: Float[Array, ""]) -> tuple[PartyState, Reply, Info]:
        return algorithm.phases[0].party(replace(state, point), message, oracle, key, effort)

    return work


@party_iterate.register
def _(algorithm: FedPlus) -> PartyIterate:
    return PartyIterate(
        read=lambda model, message: model,
        work=work_from_state(algorithm, lambda model, point: point),
        closing_message=lambda centre: (),
        shared=_WHOLE_STATE,
    )


@party_iterate.register
def _(algorithm: DecentralisedSplitting) -> PartyIterate:
    def work(point: Vector, state: PartyState, message: Message, oracle: Oracle, key: Array,
             effort: Float[Array, ""]) -> tuple[PartyState, Vector, Info]:
        return algorithm.proximal_step(point, message, oracle, key, effort)

    return PartyIterate(
        read=algorithm.relaxed,
        work=work,
        closing_message=lambda state: state,
        # The mean follows from the z_k: the server has no part of its own.
        shared=ServerIterate(lambda state: jnp.zeros(0), lambda state, point: state),
    )
