"""The types of an exchange between server and parties, and the one class of an algorithm.

A round is one or more phases, and a phase is three pure functions: what the server sends to party k, what the party
computes and keeps, and what the server does with the replies. An algorithm never changes: state goes in and comes out.
Nothing in this file knows about simulation or networks.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from resolvent.algorithms.cohort import StragglerPolicy
from resolvent.algorithms.participation.arrivals import Arrivals
from resolvent.algorithms.participation.rules import Participation
from resolvent.arguments import CheckedArguments
from resolvent.errors import InputError
from resolvent.math import centres, tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.problem import Problem

DEFAULT_NORM_MULTIPLE = 10_000.0
_MAX_REPR = 300  # characters

ServerState: TypeAlias = Any
PartyState: TypeAlias = Any
Message: TypeAlias = Any
Reply: TypeAlias = Any
Info = dict[str, Any]


class Replies(eqx.Module):
    """The replies that the server has at the end of a phase.

    Attributes:
        payload: leaves [C, ...]: the replies of the cohort; rows that did not arrive are zero.
        weight: [C] aggregation weights; zero for rows that did not arrive. They need not sum to one.
        index: [C] party ids.
        alive: [C] whether the reply arrived in time and counts.
        shares: [C] lambda_k, which sum to one over all N; zero for rows that did not arrive. They keep sums that the
            server stores, such as Scaffold's c = sum_k lambda_k c_k, exact under any sampling.

    Example:
        >>> models, shares = jnp.array([[0.0], [4.0]]), jnp.array([0.25, 0.75])
        >>> replies = rv.Replies(models, weight=shares, index=jnp.arange(2), alive=jnp.ones(2, bool), shares=shares)
        >>> replies.mean().tolist()
        [3.0]
    """

    payload: Reply
    weight: Float[Array, " C"]
    index: Int[Array, " C"]
    alive: Bool[Array, " C"]
    shares: Float[Array, " C"]

    def column(self, like: Array) -> Bool[Array, "C ..."]:
        """``alive``, reshaped to broadcast against rows [C, ...]."""
        return tree.column(self.alive, like)

    def mean(self, x: PyTree[Any] | None = None) -> PyTree[Any]:
        """Weighted mean of ``x`` (leaves [C, ...]; default: the payload) over the replies that arrived."""
        return centres.mean(self.payload if x is None else x, self.weight)

    def total(self, x: PyTree[Any]) -> PyTree[Any]:
        """Sum of lambda_k x_k over the replies that arrived: their part of a mean over all N."""
        def of_leaf(leaf: Array) -> Array:
            return jnp.tensordot(self.shares, leaf, axes=1, precision="highest").astype(leaf.dtype)
        return jax.tree.map(of_leaf, x)

    def write(self, rows: PyTree[Any], stored: PyTree[Any]) -> PyTree[Any]:
        """What the server stores of all parties, leaves [N, ...], with new rows for the replies that arrived."""
        new = tree.where(self.alive, rows, tree.rows(stored, self.index))
        return jax.tree.map(lambda leaf, row: leaf.at[self.index].set(row), stored, new)


class Phase(NamedTuple):
    """One exchange: message -> party -> server.

    Attributes:
        message: (server state, k) -> the message to party k.
        party: (party state, message, oracle, key, effort) -> (party state, reply, info). Under info, ``model`` is the
            party's model at the end of its local work; scalars can be recorded per party and round. The compiler
            removes what is not recorded, and ``inexactness`` is missing then. ``memory`` is what local work hands on.
        server: (server state, replies, key) -> (server state, info).
        origin: message -> the model of which the reply is an update: norms, attacks, clipping and momentum are of the
            reply minus this model. None if the reply is no model, but an update or another number itself.

    Example:
        >>> phase = rv.Phase(message=lambda state, k: state.model, party=train, server=average)  # doctest: +SKIP
    """

    message: Callable[[ServerState, Int[Array, ""]], Message]
    party: Callable[[PartyState, Message, Oracle, Array, Float[Array, ""]], tuple[PartyState, Reply, Info]]
    server: Callable[[ServerState, Replies, Array], tuple[ServerState, Info]]
    origin: Callable[[Message], Vector] | None = None


class Part(NamedTuple):
    """How to read and replace a part of the server's state.

    Attributes:
        read: server state -> the part.
        replace: (server state, part) -> the same state with another part.
    """

    read: Callable[[ServerState], Vector] = lambda state: state
    replace: Callable[[ServerState, Vector], ServerState] = lambda state, part: part


class PartyPart(NamedTuple):
    """How to read and replace a party's part of the iterate, of an algorithm of one phase.

    Attributes:
        read: (party state, message or closing message) -> the party's part.
        work: (part, party state, message, oracle, key, effort) -> the party's work from that part.
        closing_message: server state after the server's step -> what a party needs to know its next part.
    """

    read: Callable[[PartyState, Message], Vector]
    work: Callable[[Vector, PartyState, Message, Oracle, Array, Float[Array, ""]], tuple[PartyState, Reply, Info]]
    closing_message: Callable[[ServerState], Message]


class Iterate(NamedTuple):
    """The point that a round maps to the next one: what accelerators and server optimizers read and replace.

    Attributes:
        server: the server's part of the point; None if it has none.
        is_whole: whether the server's part is the whole point; otherwise the parties hold parts of it.
        by_party: whether the leaves of the server's part are [N, ...], one part for each party.
        party: the part that a party holds; None if it holds none, or a combinator has changed the parties' states.
        mean: P_H(z) of a splitting scheme, from which the next u_k follow; None for other algorithms.
    """

    server: Part | None = Part()
    is_whole: bool = True
    by_party: bool = False
    party: PartyPart | None = None
    mean: Part | None = None


class Algorithm(CheckedArguments, eqx.Module):
    """A federated algorithm: a frozen pytree whose numbers are leaves and whose structure is static.

    A round calls its functions, and a trace describes them. ``Method`` and ``Combinator`` are the bases to begin with.
    """

    def __repr__(self) -> str:
        """Its parts and settings on one line; arrays by their shapes."""
        text = " ".join(eqx.tree_pformat(self, width=10**6, short_arrays=True).split())
        return text if len(text) <= _MAX_REPR else f"{text[:_MAX_REPR]}..."

    @property
    @abstractmethod
    def replies_models(self) -> bool:
        """Whether each reply of the last phase is the party's model, as opposed to a gradient or a difference."""

    @property
    @abstractmethod
    def needs_individual_replies(self) -> bool:
        """Whether the server needs each reply, and not only ``Replies.mean`` and ``Replies.total``."""

    @property
    def straggler_policy(self) -> StragglerPolicy | None:
        """Whether the partial work of stragglers is kept or dropped, in any run; None: as the run says."""
        return None

    @property
    @abstractmethod
    def steps_without_replies(self) -> bool:
        """Whether the server makes its step also in a phase in which no reply counts, such as to release noise."""

    @property
    def norm_multiple(self) -> float | None:
        """A reply whose update is longer than this multiple of the median does not count (``admission``); None: any."""
        return DEFAULT_NORM_MULTIPLE

    @property
    def max_share(self) -> float | None:
        """The largest share of a round's weight that one party has in the server's step; None: as the aggregators say.

        A party's weight is the number of rows that it says it has. See ``Aggregator.max_share``.
        """
        return None

    @property
    def works_without_held_out(self) -> bool:
        """Whether an algorithm that chooses by held-out samples also works if no party has any."""
        return False

    @property
    def iterate(self) -> Iterate | None:
        """The point that a round maps to the next one; None if the algorithm has none."""
        return None

    def check(self, parties: int) -> None:
        """Refuse settings that do not fit the number of parties; by default all settings fit.

        Raises:
            InputError: naming the setting.
        """

    def check_participation(self, participation: Participation, parties: int, problem: Problem | None = None) -> None:
        """Refuse a participation that does not fit; by default all fit but arrivals, which need another server.

        Args:
            parties: number of parties.
            problem: the problem of all parties; None: a model on data, whose parties know their numbers of samples.

        Raises:
            InputError: what does not fit.
        """
        if isinstance(participation, Arrivals):
            raise InputError("Arrivals are replies that arrive one after the other, and the server of this algorithm "
                             "waits for a cohort: use rv.fedasync, rv.fedbuff, rv.ca2fl or rv.combinators.Asynchronous")

    @abstractmethod
    def init(self, w0: Vector, shares: Float[Array, " N"]) -> ServerState:
        """The server's first state, from the first model and the lambda_k of all N parties, which sum to one."""

    @abstractmethod
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> PartyState:
        """A party's first state, before its first round; an empty tuple if it stores nothing."""

    @property
    @abstractmethod
    def phases(self) -> tuple[Phase, ...]:
        """The phases of a round, in order."""

    def model_message(self, state: ServerState, k: Int[Array, ""]) -> Message:
        """The message to party k when it wants its personal model; by default that of the first phase."""
        return self.phases[0].message(state, k)

    @abstractmethod
    def personal_model(self, state: PartyState, message: Message, oracle: Oracle) -> Vector:
        """The model that a party uses, from its state and the ``model_message``."""

    @abstractmethod
    def server_model(self, state: ServerState) -> Vector | None:
        """The shared model, or None if the algorithm has none."""
