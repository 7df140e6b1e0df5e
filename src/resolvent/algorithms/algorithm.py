"""The types that every federated algorithm is made of.

A round is one or more phases, and a phase is three pure functions: what the server sends to party k, what the
party computes and keeps, what the server does with the replies. An algorithm never changes: state goes in and
comes out. Nothing here knows about simulation or networks.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from resolvent.math import centres
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.problem.subproblem import Subproblem

__all__ = [
    "Algorithm",
    "Info",
    "Message",
    "Method",
    "PartyState",
    "Phase",
    "Replies",
    "ServerState",
    "SharedModelMethod",
    "StragglerPolicy",
    "local_work",
]

ServerState: TypeAlias = Any
PartyState: TypeAlias = Any
Message: TypeAlias = Any
Reply: TypeAlias = Any
Info = dict[str, Any]
StragglerPolicy = Literal["drop", "keep"]


class Replies(eqx.Module):
    """What the server holds at the end of a phase.

    Attributes:
        payload: leaves [C, ...]: the replies of the cohort; rows that did not arrive are zero.
        weight: [C] aggregation weights; zero for rows that did not arrive. They need not sum to one.
        index: [C] the parties' numbers.
        alive: [C] whether the reply arrived in time.
        shares: [C] lambda_k, which sum to one over all N; zero for rows that did not arrive. They keep server memories
            such as Scaffold's c = sum_k lambda_k c_k exact under any sampling.
    """

    payload: Reply
    weight: Float[Array, " C"]
    index: Int[Array, " C"]
    alive: Bool[Array, " C"]
    shares: Float[Array, " C"]

    def column(self, like: Array) -> Bool[Array, "C ..."]:
        """``alive``, shaped to be broadcast against rows like these [C, ...]."""
        return self.alive.reshape((-1,) + (1,) * (like.ndim - 1))

    def mean(self, x: PyTree[Any] | None = None) -> PyTree[Any]:
        """Weighted mean of ``x`` (leaves [C, ...]; default: the payload) over the replies that arrived."""
        return centres.mean(self.payload if x is None else x, self.weight)

    def total(self, x: PyTree[Any]) -> PyTree[Any]:
        """Sum of lambda_k x_k over the replies that arrived: what they add to a mean over all N."""
        def of_leaf(leaf: Array) -> Array:
            return jnp.tensordot(self.shares, leaf, axes=1, precision="highest").astype(leaf.dtype)
        return jax.tree.map(of_leaf, x)


class Phase(NamedTuple):
    """One exchange: message -> party -> server.

    Attributes:
        message: (server state, k) -> what party k is sent.
        party: (party state, message, oracle, key, effort) -> (party state, reply, info). Under info,
            ``model`` is the party's model at the end of its local work; scalars can be recorded per party
            and round. What nobody records is never computed: the compiler removes it.
        server: (server state, replies, key) -> (server state, info).
    """

    message: Callable[[ServerState, Int[Array, ""]], Message]
    party: Callable[[PartyState, Message, Oracle, Array, Float[Array, ""]], tuple[PartyState, Reply, Info]]
    server: Callable[[ServerState, Replies, Array], tuple[ServerState, Info]]


class Algorithm(eqx.Module):
    """A federated algorithm."""

    @property
    @abstractmethod
    def replies_models(self) -> bool:
        """Whether each reply is the party's model, so that the first model can stand for one that never came."""

    @property
    @abstractmethod
    def straggler_policy(self) -> StragglerPolicy:
        """Whether the work of parties that cannot do all of it in time is kept or dropped."""

    @abstractmethod
    def init(self, w0: Vector, weights: Float[Array, " N"]) -> ServerState:
        """The server's first state; ``weights`` are the lambda_k of all N parties, summing to one."""

    @abstractmethod
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> PartyState:
        """A party's first state."""

    @property
    @abstractmethod
    def phases(self) -> tuple[Phase, ...]:
        """The phases of a round, in order."""

    def model_message(self, state: ServerState, k: Int[Array, ""]) -> Message:
        """What party k is sent when it wants a model to use: as in the first phase, unless that starts elsewhere."""
        return self.phases[0].message(state, k)

    @abstractmethod
    def personal_model(self, state: PartyState, message: Message, oracle: Oracle) -> Vector:
        """The model that a party uses, from its state and what it was offered."""

    @abstractmethod
    def server_model(self, state: ServerState) -> Vector | None:
        """The shared model, or None where there is none."""

    @property
    def needs_individual_replies(self) -> str | None:
        """What in the server reads single replies, where a memory of their mean would not do; None where nothing does.

        The aggregator answers where there is one. Without, an algorithm that takes replies through ``Replies.mean`` and
        ``Replies.total`` alone says None.
        """
        aggregator = getattr(self, "aggregator", None)
        if aggregator is None:
            return type(self).__name__
        return None if aggregator.linear else type(aggregator).__name__

    def reply_like(self, w0: Vector) -> tuple[Reply, ...]:
        """For each phase something of a reply's shape, for memories of replies; by default each is like a model."""
        return (w0,) * len(self.phases)


class Method(Algorithm):
    """An algorithm that is no combinator: it says itself what becomes of partial work.

    Attributes:
        stragglers: ``drop`` or ``keep`` the work of parties that could not do all of it in time.
    """

    stragglers: StragglerPolicy = eqx.field(static=True, default="keep", kw_only=True)

    @property
    def straggler_policy(self) -> StragglerPolicy:
        """As told."""
        return self.stragglers


class SharedModelMethod(Method):
    """An algorithm of one phase whose server holds one model, sends it as it is, and replaces it.

    An algorithm of this kind says what a party keeps and does, and what the server makes of the replies.
    """

    def init(self, w0: Vector, weights: Float[Array, " N"]) -> Vector:
        """The shared model."""
        return w0

    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> PartyState:
        """A party keeps nothing."""
        return ()

    @property
    def phases(self) -> tuple[Phase, ...]:
        """One phase."""
        return (Phase(lambda shared, k: shared, self.party, self.server),)

    @abstractmethod
    def party(self, own: PartyState, shared: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[PartyState, Reply, Info]:
        """What a party does with the shared model."""

    @abstractmethod
    def server(self, shared: Vector, replies: Replies, key: Array) -> tuple[Vector, Info]:
        """The next shared model."""

    def personal_model(self, state: PartyState, message: Vector, oracle: Oracle) -> Vector:
        """The shared model."""
        return message

    def server_model(self, state: Vector) -> Vector:
        """The shared model."""
        return state

    def iterate(self, state: Vector) -> Vector:
        """The shared model, which a round maps to the next."""
        return state

    def with_iterate(self, state: Vector, point: Vector) -> Vector:
        """The shared model at another point."""
        return point


def local_work(solver: LocalSolver, subproblem: Subproblem, start: Vector, key: Array,
               effort: Float[Array, ""]) -> tuple[Vector, Info]:
    """Solve a subproblem and say how it went: ``model``, ``steps``, and FedProx's ``inexactness``.

    Inexactness is gamma = |grad h(w)| / |grad h(start)|. Source: FedProx, Definition 2.
    """
    w, steps = solver(subproblem, start, key, effort)
    scalar = jnp.result_type(*jax.tree.leaves(w))
    return w, {"model": w, "steps": steps.astype(scalar), "inexactness": subproblem.inexactness(w, start)}
