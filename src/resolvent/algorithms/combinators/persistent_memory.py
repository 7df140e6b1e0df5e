"""Memory of local work: what a party's solver and oracle hand on from one round to the next.

The moments of Adam, or the last outputs of a policy, belong to a party's local work: no method's formula has them, and
they are never sent. ``simulate`` adds this combinator around an algorithm whose solver or problem has a memory, so that
every method works with them unchanged. Without a memory, algorithms stay as they are.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree
from typing_extensions import override

from resolvent.algorithms.algorithm import Algorithm, Info, Message, PartyState, Reply, local_solvers
from resolvent.algorithms.combinators.combinator import Combinator, InnerParty, contains, innermost, layers
from resolvent.algorithms.combinators.model_state import ModelState, PartyWithModelState
from resolvent.algorithms.combinators.warm_start import WarmStart
from resolvent.algorithms.description import Description, describe_on
from resolvent.algorithms.keys import key_shape
from resolvent.algorithms.round import Private
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.models.stateful import ParamsAndState, params_of
from resolvent.problem.oracle import Oracle, PartyMemory, remembering
from resolvent.problem.problem import Problem
from resolvent.xla.shapes import shapes_of

__all__ = ["PersistentMemory", "PersistentMemoryState", "Prepared", "prepare", "with_memory"]


class PersistentMemoryState(NamedTuple):
    """A party's state."""

    inner: PartyState
    memory: Private  # a ``PartyMemory``; private, so that a refused reply does not reset it


class PersistentMemory(Combinator):
    """The inner algorithm; each party keeps the memory of its local work between rounds.

    An absent party keeps its memory, and so does one whose late work is dropped. The memory of a party whose reply is
    refused is new. A memory that is not finite is not stored: the party keeps the one before it, so that a diverged
    round does not spoil the following ones.

    Attributes:
        inner: an algorithm that works at most once in each phase with a local solver.

    Raises:
        InputError: the inner algorithm keeps its memory already.
    """

    def __check_init__(self) -> None:
        if contains(self.inner, PersistentMemory):
            raise InputError("PersistentMemory got an algorithm that keeps its memory already: use it once")

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> PersistentMemoryState:
        memory = PartyMemory(oracle.init_memory(w0), _solver_memory(self.inner, w0))
        return PersistentMemoryState(self.inner.init_party(w0, oracle, key), Private(memory))

    @override
    def party(self, inner: InnerParty, state: PersistentMemoryState, message: Message, oracle: Oracle, key: Array,
              effort: Float[Array, ""], phase: int) -> tuple[PersistentMemoryState, Reply, Info]:
        memory: PartyMemory = state.memory.value
        if oracle.memory is not None:  # the state of the model, see ``ModelState``, which keeps it itself
            memory = memory._replace(oracle=oracle.memory.oracle)
        after, reply, info = inner(state.inner, message, remembering(oracle, memory), key, effort)
        new = info.get("memory", memory)
        is_finite = tree.finite([x for x in jax.tree.leaves(new) if jnp.issubdtype(x.dtype, jnp.inexact)])
        stored = tree.where(is_finite, new, memory)
        if oracle.memory is not None:
            stored = stored._replace(oracle=state.memory.value.oracle)
        return PersistentMemoryState(after, Private(stored)), reply, info

    @override
    def personal_model(self, state: PersistentMemoryState, message: Message, oracle: Oracle) -> Vector:
        return self.inner.personal_model(state.inner, message, oracle)


class Prepared(NamedTuple):
    """An algorithm as it runs on a problem."""

    algorithm: Algorithm  # the algorithm itself, or with ``PersistentMemory``
    description: Description  # its description


def with_memory(algorithm: Algorithm, source: Problem | Callable[[Array], Vector]) -> Algorithm:
    """The algorithm itself, or with ``PersistentMemory`` if its solver or the problem's oracles have a memory.

    For a model with a state, with ``ModelState``.

    Raises:
        InputError: the algorithm cannot keep the memory: it works several times in a phase, or in loops of its own.
    """
    w0 = shapes_of(source.init if isinstance(source, Problem) else source, key_shape())
    if isinstance(w0, ParamsAndState) or _has_memory(algorithm, source):
        parties = source.parties if isinstance(source, Problem) else 1
        return prepare(algorithm, source, parties=parties).algorithm
    return algorithm


def prepare(algorithm: Algorithm, source: Problem | Callable[[Array], Vector], *, parties: int = 1,
            oracle: Callable[[], Oracle] | None = None) -> Prepared:
    """As ``with_memory``, and the description of the algorithm by ``describe_on``, for which it is traced once."""
    w0 = shapes_of(source.init if isinstance(source, Problem) else source, key_shape())
    has_memory = _has_memory(algorithm, source)
    prepared = _with_model_state(algorithm, w0, parties, has_memory=has_memory) if isinstance(
        w0, ParamsAndState) else PersistentMemory(algorithm) if has_memory else algorithm
    description = describe_on(prepared, source, parties=parties, oracle=oracle)
    if prepared is not algorithm:
        _check_local_work(prepared, description)
    return Prepared(prepared, description)


def _with_model_state(algorithm: Algorithm, w0: ParamsAndState, parties: int, *, has_memory: bool) -> Algorithm:
    """The algorithm with ``ModelState``, and inside it with ``PersistentMemory`` if its solver has a memory."""
    if isinstance(algorithm, WarmStart):
        return replace(algorithm, inner=_with_model_state(algorithm.inner, w0, parties, has_memory=has_memory))
    inner = algorithm.inner if isinstance(algorithm, ModelState) else algorithm
    if contains(inner, ModelState):
        raise InputError(f"{type(inner).__name__} has ModelState inside: put ModelState around all other combinators")
    if isinstance(algorithm, ModelState):
        return replace(algorithm, inner=PersistentMemory(inner)) if has_memory else algorithm
    shares = jnp.full(parties, 1 / parties)
    shared = jax.eval_shape(lambda w: inner.server_model(inner.init(w, shares)), w0.params)
    return ModelState(PersistentMemory(inner) if has_memory else inner, "private" if shared is None else "average")


def _has_memory(algorithm: Algorithm, source: Problem | Callable[[Array], Vector]) -> bool:
    """Whether a solver of the algorithm or an oracle has a memory that the algorithm does not keep yet."""
    if contains(algorithm, PersistentMemory):
        return False
    w0 = params_of(shapes_of(source.init if isinstance(source, Problem) else source, key_shape()))
    k = jax.eval_shape(lambda: jnp.array(0))
    of_oracle = shapes_of(shapes_of(shapes_of(source.at, k).oracle, k).init_memory, w0) if isinstance(
        source, Problem) else ()
    return bool(jax.tree.leaves((of_oracle, jax.eval_shape(lambda w: _solver_memory(algorithm, w), w0))))


def _solver_memory(algorithm: Algorithm, w0: Vector) -> PyTree[Any]:
    """The memory of the algorithm's local solver before the first round."""
    memories = [memory for solver in local_solvers(algorithm) if jax.tree.leaves(memory := solver.init_memory(w0))]
    if len(memories) > 1:
        raise InputError(f"{type(innermost(algorithm)).__name__} has {len(memories)} local solvers with a memory, and "
                         "a party keeps that of one: set keep=False for all but one")
    return memories[0] if memories else ()


def _check_local_work(algorithm: Algorithm, description: Description) -> None:
    """Refuse an algorithm that does not hand on the memory of its local work."""
    title, calls = type(innermost(algorithm)).__name__, max(description.local_work)
    memories = [part for part in tree.parts(description.party, PersistentMemoryState)
                if jax.tree.leaves(part.memory.value.solver)]
    has_solver_memory, of_model = bool(memories), tree.parts(description.party, PartyWithModelState)
    policy = next((layer.policy for layer in layers(algorithm) if isinstance(layer, ModelState)), None)
    if policy == "frozen" and not has_solver_memory:
        return
    advice = ("set keep=False for the solver" if has_solver_memory
              else "use ModelState(policy='frozen'), or layers without statistics, such as GroupNorm" if of_model
              else "use a problem whose oracles have no memory, such as a portfolio with memory='recomputed'")
    if calls > 1:
        raise InputError(f"{title} works {calls} times with a local solver in one phase, so that a party cannot keep "
                         f"one memory: {advice}")
    if (has_solver_memory or of_model) and not description.returns_memory:
        raise InputError(f"{title} does not hand on the memory of its local {'solver' if has_solver_memory else 'work'}"
                         f": {advice}")
