"""The types of a federated algorithm.

A round is one or more phases, and a phase is three pure functions: what the server sends to party k, what the party
computes and keeps, and what the server does with the replies. An algorithm never changes: state goes in and comes out.
Nothing in this file knows about simulation or networks.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree
from typing_extensions import override

from resolvent.arguments import CheckedArguments
from resolvent.math import centres, tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers import LocalSolver
from resolvent.problem.subproblem import Subproblem

__all__ = [
    "DEFAULT_NORM_MULTIPLE",
    "Algorithm",
    "Info",
    "Message",
    "Method",
    "PartyState",
    "Phase",
    "Replies",
    "Reply",
    "ServerState",
    "SharedModelMethod",
    "StragglerPolicy",
    "algorithm_of_round",
    "inexactness_if_recorded",
    "local_solvers",
    "local_work",
    "record_info",
    "record_local_work",
]

_MAX_REPR = 300  # characters
DEFAULT_NORM_MULTIPLE = 10_000.0

ServerState: TypeAlias = Any
PartyState: TypeAlias = Any
Message: TypeAlias = Any
Reply: TypeAlias = Any
Info = dict[str, Any]
StragglerPolicy = Literal["drop", "keep"]
_local_work: ContextVar[list[LocalSolver] | None] = ContextVar("local_work", default=None)
_recorded: ContextVar[tuple[str, ...]] = ContextVar("recorded", default=())


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


class Phase(NamedTuple):
    """One exchange: message -> party -> server.

    Attributes:
        message: (server state, k) -> the message to party k.
        party: (party state, message, oracle, key, effort) -> (party state, reply, info). Under info, ``model`` is the
            party's model at the end of its local work; scalars can be recorded per party and round. The compiler
            removes what is not recorded, and ``inexactness`` is missing then. ``memory`` is that of ``local_work``.
        server: (server state, replies, key) -> (server state, info).

    Example:
        >>> phase = rv.Phase(message=lambda state, k: state.model, party=train, server=average)  # doctest: +SKIP
    """

    message: Callable[[ServerState, Int[Array, ""]], Message]
    party: Callable[[PartyState, Message, Oracle, Array, Float[Array, ""]], tuple[PartyState, Reply, Info]]
    server: Callable[[ServerState, Replies, Array], tuple[ServerState, Info]]


class Algorithm(CheckedArguments, eqx.Module):
    """A federated algorithm: a frozen pytree whose numbers are leaves and whose structure is static."""

    @property
    @abstractmethod
    def replies_models(self) -> bool:
        """Whether each reply of the last phase is the party's model, as opposed to a gradient or a difference."""

    @property
    @abstractmethod
    def needs_individual_replies(self) -> bool:
        """Whether the server needs each reply, and not only ``Replies.mean`` and ``Replies.total``."""

    @property
    @abstractmethod
    def straggler_policy(self) -> StragglerPolicy:
        """Whether the work of parties that cannot finish in time is kept or dropped."""

    @property
    @abstractmethod
    def steps_without_replies(self) -> bool:
        """Whether the server makes its step also in a phase in which no reply counts, such as to release noise."""

    @property
    def norm_multiple(self) -> float | None:
        """A reply whose update is longer than this multiple of the median does not count (``admission``); None: any."""
        return DEFAULT_NORM_MULTIPLE

    def __repr__(self) -> str:
        """Its parts and settings on one line; arrays by their shapes."""
        text = " ".join(eqx.tree_pformat(self, width=10**6, short_arrays=True).split())
        return text if len(text) <= _MAX_REPR else f"{text[:_MAX_REPR]}..."

    def _repr_html_(self) -> str:
        from resolvent.algorithms.overview import overview_html

        return overview_html(self)

    def check(self, parties: int) -> None:
        """Refuse settings that do not fit the number of parties; by default all settings fit.

        Raises:
            InputError: naming the setting.
        """

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


class Method(Algorithm):
    """An algorithm that is not a combinator around another one. By default a party stores nothing between rounds.

    Attributes:
        stragglers: ``drop`` or ``keep`` the work of parties that could not finish in time.
    """

    stragglers: StragglerPolicy = eqx.field(static=True, default="keep", kw_only=True)

    @property
    @override
    def straggler_policy(self) -> StragglerPolicy:
        return self.stragglers

    @property
    @override
    def steps_without_replies(self) -> bool:
        return False

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> PartyState:
        return ()


class SharedModelMethod(Method):
    """A method of one phase whose server state is one model, which it sends unchanged and replaces.

    A subclass defines ``party`` and ``server``, and ``init_party`` and ``personal_model`` if parties keep a state.
    """

    @override
    def init(self, w0: Vector, shares: Float[Array, " N"]) -> Vector:
        return w0

    @property
    @override
    def phases(self) -> tuple[Phase, ...]:
        return (Phase(lambda shared, k: shared, self.party, self.server),)

    @abstractmethod
    def party(self, state: PartyState, shared: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[PartyState, Reply, Info]:
        """A party's work from the shared model."""

    @abstractmethod
    def server(self, shared: Vector, replies: Replies, key: Array) -> tuple[Vector, Info]:
        """The next shared model, from the last one and the parties' replies; and what a run can record."""

    @override
    def personal_model(self, state: PartyState, message: Vector, oracle: Oracle) -> Vector:
        return message

    @override
    def server_model(self, state: Vector) -> Vector:
        return state


def local_work(solver: LocalSolver, subproblem: Subproblem, start: Vector, key: Array,
               effort: Float[Array, ""]) -> tuple[Vector, Info]:
    """Solve a subproblem; the info has ``model`` and ``steps``, and ``inexactness`` if it is recorded.

    If the party has a memory (``Oracle.memory``), the work begins with it, and ``memory`` is the one after it.
    """
    if (work := _local_work.get()) is not None:
        work.append(solver)
    memory, after = subproblem.oracle.memory, {}
    if memory is None:
        w, steps = solver(subproblem, start, key, effort)
    else:
        w, steps, after["memory"] = solver.solve_with_memory(subproblem, start, key, effort, memory)
    return w, {"model": w, "steps": steps.astype(tree.dtype(w)), **inexactness_if_recorded(subproblem, w, start),
               **after}


def inexactness_if_recorded(subproblem: Subproblem, w: Vector, start: Vector) -> Info:
    """``inexactness`` within ``record_info`` of this name, otherwise nothing.

    Inexactness is gamma = |grad h(w)| / |grad h(start)|. Source: FedProx, Definition 2. Its two gradients over all
    samples take most of the time in which local work is traced.
    """
    return {"inexactness": subproblem.inexactness(w, start)} if "inexactness" in _recorded.get() else {}


@contextmanager
def record_info(names: tuple[str, ...]) -> Iterator[None]:
    """Compute the info of these names in what is traced within, even if no party needs it for its reply."""
    token = _recorded.set(names)
    try:
        yield
    finally:
        _recorded.reset(token)


@contextmanager
def record_local_work() -> Iterator[list[LocalSolver]]:
    """The solvers of all ``local_work`` that is traced within, in order; a loop counts once."""
    work: list[LocalSolver] = []
    token = _local_work.set(work)
    try:
        yield work
    finally:
        _local_work.reset(token)


def algorithm_of_round(algorithm: Algorithm, t: Int[Array, ""]) -> Algorithm:
    """The algorithm with the learning rates that the schedules of its local solvers have in round t."""
    solvers = local_solvers(algorithm)
    if all(solver.at(t) is solver for solver in solvers):
        return algorithm
    of_round: Algorithm = jax.tree.map(lambda part: part.at(t) if isinstance(part, LocalSolver) else part, algorithm,
                                       is_leaf=lambda part: isinstance(part, LocalSolver))
    return of_round


def local_solvers(algorithm: Algorithm) -> list[LocalSolver]:
    """All local solvers of an algorithm and of those inside it."""
    def is_solver(part: Any) -> bool:
        return isinstance(part, LocalSolver)

    return [part for part in jax.tree.leaves(algorithm, is_leaf=is_solver) if is_solver(part)]
