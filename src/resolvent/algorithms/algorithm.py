"""The types of an exchange between server and parties, and the one class of an algorithm.

A round is one or more phases, and a phase is three pure functions: what the server sends to party k, what the party
computes and keeps, and what the server does with the replies. An algorithm never changes: state goes in and comes out.
Nothing in this file knows about simulation or networks.
"""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from resolvent.algorithms.cohort import StragglerPolicy
from resolvent.arguments import CheckedArguments
from resolvent.errors import InputError, shorten
from resolvent.math import centres, tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.problem import Problem

if TYPE_CHECKING:
    from resolvent.algorithms.participation.rules import Participation

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
    def pools_data(self) -> bool:
        """Whether one party has the training samples of all, see ``combinators.PooledData``."""
        return False

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

    def check_participation(self, participation: "Participation", parties: int, problem: Problem | None = None) -> None:
        """Refuse a participation that does not fit; by default all fit but arrivals, which need another server.

        Args:
            parties: number of parties.
            problem: the problem of all parties; None: a model on data, whose parties know their numbers of samples.

        Raises:
            InputError: what does not fit.
        """
        if participation.is_asynchronous:
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


# Checks of what the functions of an algorithm return, made when they are traced. Without them a missing value would be
# an error of JAX far from its origin. A scalar where a state has a vector would be broadcast, and a fraction where a
# state has an integer would be rounded, both without an error.
_KINDS = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)  # each can hold the numbers of those before it
_NUMBERS = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)


def checked_phases(algorithm: Algorithm) -> tuple[Phase, ...]:
    """The phases of the algorithm."""
    phases: Any = algorithm.phases
    if not isinstance(phases, tuple) or isinstance(phases, Phase) or not all(isinstance(p, Phase) for p in phases):
        raise InputError(f"{type(algorithm).__name__}.phases is {_in_words(phases)}: make it a property that returns a "
                         "tuple of phases, such as `return (Phase(message, party, server),)`")
    if algorithm.replies_models and phases[-1].origin is None:
        raise InputError(f"{type(algorithm).__name__}: replies_models is True, so the last phase needs an origin, the "
                         "model of which a reply is an update: Phase(message, party, server, lambda message: message)")
    return phases


def check_models(algorithm: Algorithm, w0: Vector, personal: Vector, shared: Vector | None) -> None:
    """Refuse a personal or a shared model that does not have the structure and the shapes of the first model."""
    for function, model in (("personal_model", personal), ("server_model", w0 if shared is None else shared)):
        title = f"{type(algorithm).__name__}.{function}"
        if not _same_structure(model, w0):
            raise InputError(f"{title} returned {_contents(model)}, but the first model is {_contents(w0)}: return "
                             "parameters like those that init gets" + ", or None if there is no shared model" * (
                                 function == "server_model"))
        for (label, leaf), (_, like) in zip(tree.named_leaves(model), tree.named_leaves(w0), strict=True):
            if jnp.shape(leaf) != jnp.shape(like):
                raise InputError(f"{title} returned a model in which {_leaf(label)} is {_in_words(leaf)}, but it has "
                                 f"shape {list(jnp.shape(like))} in a model")


def party_work(phase: Phase, state: PartyState, message: Message, oracle: Oracle, key: Array,
               effort: Float[Array, ""]) -> tuple[PartyState, Reply, Info]:
    """The results of the phase's party function, checked."""
    return checked_work(phase, state, phase.party(state, message, oracle, key, effort))


def checked_work(phase: Phase, state: PartyState, results: Any) -> tuple[PartyState, Reply, Info]:
    """What the phase's party function returned for this state, or an error that names what is wrong."""
    name = _name(phase.party)
    if not isinstance(results, tuple) or len(results) != 3:
        raise InputError(f"{name} returned {_in_words(results)}: return the party's state, its reply and a dictionary "
                         "with what a run can record, as `return state, reply, info`")
    after, reply, info = results
    _check_info(name, info)
    _check_state(name, after, state, first="init_party")
    check_arrays(f"the reply of {name}", reply)
    return after, reply, info


def server_work(phase: Phase, state: ServerState, replies: Replies, key: Array) -> tuple[ServerState, Info]:
    """The results of the phase's server function."""
    results, name = phase.server(state, replies, key), _name(phase.server)
    if not isinstance(results, tuple) or len(results) != 2:
        raise InputError(f"{name} returned {_in_words(results)}: return the server's state and a dictionary with what "
                         "a run can record, as `return state, {}`")
    after, info = results
    _check_info(name, info)
    _check_state(name, after, state, first="init")
    for label, value in info.items():
        if not isinstance(value, _NUMBERS) or jnp.shape(value):
            raise InputError(f"{name} returned info in which {label!r} is {_in_words(value)}: a run records numbers, "
                             "one for each round. Return a number, such as a norm or a mean")
    return after, info


def check_arrays(title: str, x: PyTree[Any]) -> None:
    """Refuse a tree with a leaf that is neither an array nor a number."""
    for label, leaf in tree.named_leaves(x):
        if not isinstance(leaf, _NUMBERS):
            raise InputError(f"{title} has {_leaf(label)}, which is {_in_words(leaf)}: only arrays and numbers can be "
                             "sent. What never changes is a static field of the algorithm")


def _check_info(name: str, info: Any) -> None:
    if not isinstance(info, dict):
        raise InputError(f"{name} returned info that is {_in_words(info)}: return a dictionary from names to what a "
                         "run can record, or an empty one")


def _check_state(name: str, after: PyTree[Any], before: PyTree[Any], *, first: str) -> None:
    """Refuse a state that differs from the state before in structure, shapes or kinds of numbers."""
    end = f"a state keeps the structure, the shapes and the kinds of numbers with which {first} creates it"
    if not _same_structure(after, before):
        raise InputError(f"{name} returned as state {_contents(after)}, and the state before was {_contents(before)}: "
                         f"{end}")
    for (label, new), (_, old) in zip(tree.named_leaves(after), tree.named_leaves(before), strict=True):
        if not isinstance(new, _NUMBERS) or jnp.shape(new) != jnp.shape(old) or _loses_numbers(new, old):
            raise InputError(f"{name} returned a state in which {_leaf(label)} is {_in_words(new)}, and before it was "
                             f"{_in_words(old)}: {end}")


def _same_structure(x: PyTree[Any], y: PyTree[Any]) -> bool:
    return bool(jax.tree.structure(x) == jax.tree.structure(y))  # type: ignore[operator]


def _loses_numbers(new: Any, old: Any) -> bool:
    """Whether the kind of ``old`` cannot hold the numbers of ``new``, such as an integer and a fraction."""
    kinds = [[i for i, kind in enumerate(_KINDS) if jnp.issubdtype(_dtype(x), kind)] for x in (new, old)]
    return kinds[0] > kinds[1]  # random keys have no kind


def _dtype(x: Any) -> Any:
    return x.dtype if hasattr(x, "dtype") else jnp.result_type(x)


def _leaf(label: str) -> str:
    return f"the entry {label!r}" if label else "the only entry"


def _in_words(x: Any) -> str:
    """Such as ``an array of float32 with shape [3]`` or ``a tuple of 2 values``."""
    if isinstance(x, tuple):
        return f"a {type(x).__name__} of {len(x)} value{'s' * (len(x) != 1)}"
    if isinstance(x, _NUMBERS):
        return f"an array of {_dtype(x)} with shape {list(jnp.shape(x))}"
    return "None" if x is None else f"a value of type {type(x).__name__}"


def _contents(x: PyTree[Any]) -> str:
    """The structure of a tree for an error, such as ``{'w': array, 'c': array}``."""
    return shorten(jax.tree.unflatten(jax.tree.structure(x), [_Array()] * len(jax.tree.leaves(x))))


class _Array:
    def __repr__(self) -> str:
        return "array"


def _name(function: Callable[..., Any]) -> str:
    """Such as ``FedProto.party``, with the aggregator that it calls, if any."""
    if isinstance(function, partial):
        return _name(function.func)
    owner, method = getattr(function, "__self__", None), getattr(function, "__func__", None)
    name = getattr(function, "__qualname__", type(function).__name__) if method is None else (
        f"{type(owner).__name__}.{method.__name__}")  # the class of the object, which may have inherited the method
    aggregator = getattr(owner, "aggregator", None)
    return name if aggregator is None else f"{name} with {type(aggregator).__name__}"
