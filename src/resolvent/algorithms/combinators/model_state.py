"""The memory of local work, which no method's formula has: a model's state, and what solvers keep between rounds.

The statistics of BatchNorm, the moments of Adam and the last outputs of a policy belong to a party's local work. Each
local work of a party has its own: ``local_work`` begins with it and hands on the one after it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, Message, PartyState, Replies, Reply
from resolvent.algorithms.combinators.combinator import (
    Combinator,
    InnerParty,
    InnerServer,
    Wrapped,
    contains,
    innermost,
)
from resolvent.algorithms.description import are_same
from resolvent.algorithms.method import local_solvers, solver_memories
from resolvent.algorithms.round import Private
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.models.stateful import ParamsAndState
from resolvent.problem.oracle import Oracle, PartyMemory, ShapeOracle, recording, remembering

ModelStatePolicy = Literal["average", "private", "frozen"]


class KeptMemory(NamedTuple):
    """The combinator's part of a party's state. It is private, so that a refused reply does not reset it."""

    state: Private | None  # the model's state; None if the server has it, or there is none
    memory: Private  # name of a local work -> ``PartyMemory``


class ModelState(Combinator):
    """The inner algorithm on the parameters of a model that has a state, such as the statistics of BatchNorm.

    .. code-block:: text

        average   the state is sent with the message and the reply, and the server takes the weighted mean
        private   every party keeps its own state: FedBN and SiloBN
        frozen    the first state stays: training and evaluation use it as it is
        None      the model has no state; parties keep the memory of their solvers and oracles

    The state is no parameter: gradients, proximal terms, codecs, centres and robust aggregators get the parameters
    alone. A training step computes with the statistics of its minibatch and changes the state; value and gradient over
    all samples use the state with which the work began. Evaluations and predictions use the state of the policy. The
    mean is over the replies that count; integers and booleans are rounded.

    If a party trains several models, as with Ditto, the state of the model that it sends follows the policy. Each other
    model has a state of its own, which stays at the party. A mixture of two models has the mixture of their states.

    What a solver or an oracle keeps between rounds, such as the moments of Adam, stays at the party too. An absent
    party keeps its memory, and so does one whose late work is dropped. The memory of a party whose reply is refused is
    new. A memory that is not finite is not stored: the party keeps the one before it, so that a diverged round does not
    spoil the following ones.

    ``simulate`` and the federation add it around every algorithm whose model has a state: with ``average``, or with
    ``private`` if the algorithm has no shared model. State another policy by this combinator, as the outermost one.
    They also add it, with None, if a solver or an oracle has a memory.

    A minibatch with fewer samples than the batch size, at the end of an epoch, is filled with its own samples in turn,
    so that statistics are of these samples only; the loss counts each of them once.

    Source of ``private``: Li, Jiang, Zhang, Kamp, Dou, *FedBN: Federated Learning on Non-IID Features via Local Batch
    Normalization*, ICLR 2021; Andreux, du Terrail, Beguier, Tramel, *Siloed Federated Learning for Multi-Centric
    Histopathology Datasets*, 2020.

    Attributes:
        inner: an algorithm whose parties work with ``SGD`` or an optax optimizer. ``frozen`` works with all algorithms
            and solvers.
        policy: ``average``, ``private``, ``frozen``, or None.

    Raises:
        InputError: the policy does not exist; or ``average`` with an algorithm that protects its replies by noise,
            which would not cover the statistics. When it runs: the local work does not hand on its memory.

    Example:
        >>> algorithm = rv.combinators.ModelState(rv.fedavg(rv.SGD(0.1, batch_size=20, epochs=1)), "private")
    """

    policy: ModelStatePolicy | None = eqx.field(static=True, default="average")

    def __check_init__(self) -> None:
        if self.policy != "average":
            return
        from resolvent.algorithms.combinators.private_parties import PrivateParties  # few models have a state

        if contains(self.inner, PrivateParties) or any(s.adds_noise for s in local_solvers(self.inner)):
            raise InputError("ModelState(policy='average') would send statistics of samples that the noise of the "
                             "algorithm does not protect: use policy='private' or 'frozen', or layers without "
                             "statistics, such as GroupNorm")

    @override
    def init(self, w0: Vector, shares: Float[Array, " N"]) -> Wrapped:
        params, state = self._divided(w0)
        return Wrapped(self.inner.init(params, shares), () if self.policy in ("private", None) else state)

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> Wrapped:
        params, state = self._divided(w0)
        inner = self.inner.init_party(params, self._bound(oracle, state), key)
        memory = self._first_memory(params, inner, self._bound(oracle, state, changes=True), key)
        kept = Private(state) if self.policy in ("private", "frozen") else None
        return Wrapped(inner, KeptMemory(kept, Private(self._stored(memory))))

    @override
    def message_extra(self, state: Wrapped, k: Int[Array, ""], phase: int) -> dict[str, Any] | tuple[()]:
        """The model's state, if it is averaged."""
        shared: dict[str, Any] = state.extra
        return shared if self.policy == "average" else ()

    @override
    def origin(self, inner: Callable[[Message], Vector], message: Wrapped) -> Vector:
        origin = inner(message.inner)
        return Wrapped(origin, message.extra) if self.policy == "average" else origin

    @override
    def party(self, inner: InnerParty, state: Wrapped, message: Wrapped, oracle: Oracle, key: Array,
              effort: Float[Array, ""], phase: int) -> tuple[Wrapped, Reply, Info]:
        before = self._of_model(state, message)
        memory = self._of_party(state, before)
        on_memory = remembering(self._bound(oracle, before, changes=True), memory)
        after, reply, info = inner(state.inner, message.inner, on_memory, key, effort)
        new = memory | info.pop("memory", {})
        if not isinstance(oracle, ShapeOracle) and any(
                new[name] is not memory[name] and are_same(new[name].oracle, memory[name].oracle) for name in memory
                if self.policy is not None):
            raise InputError(f"{type(innermost(self.inner)).__name__} has a local solver that does not change the "
                             "model's state: use SGD or an optax optimizer, or ModelState(policy='frozen')")
        stored = {name: _if_finite(new[name], memory[name]) for name in memory}
        kept = state.extra.state
        if self._state_changes and "" in new:  # a phase without local work leaves the state as it is
            if self.policy == "average":
                before = tree.cast(new[""].oracle, before)
            else:
                kept = Private(_if_finite(new[""].oracle, before))
        if self.policy == "average":
            reply = Wrapped(reply, before)
        return Wrapped(after, KeptMemory(kept, Private(self._stored(stored)))), reply, info

    @override
    def server(self, inner: InnerServer, state: Wrapped, replies: Replies, key: Array,
               phase: int) -> tuple[Wrapped, Info]:
        if self.policy != "average":
            return super().server(inner, state, replies, key, phase)
        after, info = inner(state.inner, replace(replies, payload=replies.payload.inner), key)
        return Wrapped(after, _mean_state(replies, state.extra)), info

    @override
    def personal_model(self, state: Wrapped, message: Wrapped, oracle: Oracle) -> Vector:
        of_model = self._of_model(state, message)
        oracle = remembering(self._bound(oracle, of_model), self._of_party(state, of_model))
        model = super().personal_model(state, message, oracle)
        is_complete = self.policy is None or isinstance(model, ParamsAndState)
        return model if is_complete else ParamsAndState(model, of_model)

    @override
    def server_model(self, state: Wrapped) -> Vector | None:
        """The shared parameters with the shared state; None if the parties have their own states."""
        params = self.inner.server_model(state.inner)
        if params is None or self.policy is None:
            return params
        return None if self.policy == "private" else ParamsAndState(params, state.extra)

    @property
    def _state_changes(self) -> bool:
        return self.policy in ("average", "private")

    def _bound(self, oracle: Oracle, state: dict[str, Any], *, changes: bool = False) -> Oracle:
        """The oracle of the parameters, with a state of the model."""
        if self.policy is None:
            return oracle
        return oracle.with_model_state(state, changes=changes and self._state_changes)

    def _first_memory(self, params: Vector, state: PartyState, oracle: Oracle, key: Array) -> dict[str, PartyMemory]:
        """The memory with which each local work of a round begins before the first round."""
        server = self.inner.init(params, jnp.ones(1))
        memory: dict[str, PartyMemory] = {}
        for phase in self.inner.phases:
            works: list[str] = []
            asked = recording(oracle, on_work=works.append)
            _, _, info = phase.party(state, phase.message(server, jnp.array(0)), asked, key, jnp.zeros(()))
            memory |= info.get("memory", {})
            if len(set(works)) < len(works):
                raise InputError(f"{type(innermost(self.inner)).__name__} works {len(works)} times with a local solver "
                                 "in one phase, and two works have one name: give each a name, such as "
                                 "local_work(..., name='personal')")
        if not memory and (self.policy != "frozen" or solver_memories(self.inner, params)):
            raise InputError(f"{type(innermost(self.inner)).__name__} does not hand on the memory of its local work: "
                             "work by local_work, and return its info; or set keep=False for the solver, or use "
                             "ModelState(policy='frozen') or layers without statistics, such as GroupNorm")
        return memory

    def _stored(self, memory: dict[str, PartyMemory]) -> dict[str, PartyMemory]:
        """What a party stores: the memory without the state of the model that it sends, which the policy places."""
        return {name: of_work._replace(oracle=()) if self._state_changes and name == "" else of_work
                for name, of_work in memory.items()}

    def _of_party(self, state: Wrapped, of_model: dict[str, Any]) -> dict[str, PartyMemory]:
        """The memory with which a party's works begin."""
        memory: dict[str, PartyMemory] = state.extra.memory.value
        return {name: of_work._replace(oracle=of_model) if self._state_changes and name == "" else of_work
                for name, of_work in memory.items()}

    def _of_model(self, state: Wrapped, message: Wrapped) -> dict[str, Any]:
        """The model's state, which the server or the party has."""
        kept = state.extra.state
        of_model: dict[str, Any] = message.extra if self.policy == "average" else {} if kept is None else kept.value
        return of_model

    def _divided(self, w0: Any) -> tuple[Vector, dict[str, Any]]:
        """The parameters and the state of a model."""
        if self.policy is None:
            return w0, {}
        if not isinstance(w0, ParamsAndState):
            raise InputError("ModelState is for models with a state, such as BatchNorm's statistics, and this model "
                             "has none: leave ModelState out")
        return w0.params, w0.state


def _if_finite(new: PyTree[Any], before: PyTree[Any]) -> PyTree[Any]:
    return tree.where(tree.finite(eqx.filter(new, eqx.is_inexact_array)), new, before)


def _mean_state(replies: Replies, before: dict[str, Any]) -> dict[str, Any]:
    """The weighted mean of the states of the replies; of no replies the state before."""
    def of_leaf(rows: Array, like: Array) -> Array:
        if jnp.issubdtype(like.dtype, jnp.inexact):
            mean: Array = replies.mean(rows)
        else:
            mean = jnp.round(replies.mean(rows.astype(jnp.result_type(float))))
        return jnp.where(jnp.any(replies.alive), mean.astype(like.dtype), like)

    mean_state: dict[str, Any] = jax.tree.map(of_leaf, replies.payload.extra, before)
    return mean_state
