"""The state of models, such as BatchNorm's statistics: where it is, and what happens to it in a round."""

from dataclasses import replace
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, Message, PartyState, Replies, Reply, local_solvers
from resolvent.algorithms.combinators.combinator import (
    Combinator,
    CombinatorState,
    InnerMessage,
    InnerParty,
    InnerServer,
    contains,
    innermost,
)
from resolvent.algorithms.combinators.private_parties import PrivateParties
from resolvent.algorithms.description import are_same
from resolvent.algorithms.round import Private
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.problem.models.stateful import ParamsAndState
from resolvent.problem.oracle import Oracle, PartyMemory, ShapeOracle, remembering

ModelStatePolicy = Literal["average", "private", "frozen"]


class WithModelState(NamedTuple):
    """A message or a reply of the inner algorithm, with a model's state."""

    inner: Any
    state: dict[str, Any]


class PartyWithModelState(NamedTuple):
    """A party's state."""

    inner: PartyState
    state: Private | None  # the model's state; None if the server has it


class ModelState(Combinator):
    """The inner algorithm on the parameters of a model that has a state, such as the statistics of BatchNorm.

    .. code-block:: text

        average   the state is sent with the message and the reply, and the server takes the weighted mean
        private   every party keeps its own state: FedBN and SiloBN
        frozen    the first state stays: training and evaluation use it as it is

    The state is no parameter: gradients, proximal terms, codecs, centres and robust aggregators get the parameters
    alone. A training step computes with the statistics of its minibatch and changes the state; value and gradient over
    all samples use the state with which the work began. Evaluations and predictions use the state of the policy. The
    mean is over the replies that count; integers and booleans are rounded.

    ``simulate`` and the federation add it around every algorithm whose model has a state: with ``average``, or with
    ``private`` if the algorithm has no shared model. State another policy by this combinator, as the outermost one.

    A minibatch with fewer samples than the batch size, at the end of an epoch, is filled with its own samples in turn,
    so that statistics are of these samples only; the loss counts each of them once.

    Source of ``private``: Li, Jiang, Zhang, Kamp, Dou, *FedBN: Federated Learning on Non-IID Features via Local Batch
    Normalization*, ICLR 2021; Andreux, du Terrail, Beguier, Tramel, *Siloed Federated Learning for Multi-Centric
    Histopathology Datasets*, 2020.

    Attributes:
        inner: an algorithm whose parties work once in a phase, with ``SGD`` or an optax optimizer. ``frozen`` works
            with all algorithms and solvers.
        policy: ``average``, ``private`` or ``frozen``.

    Raises:
        InputError: the policy does not exist; or ``average`` with an algorithm that protects its replies by noise,
            which would not cover the statistics. When it runs: the local work does not hand on the state.

    Example:
        >>> algorithm = rv.combinators.ModelState(rv.fedavg(rv.SGD(0.1, batch_size=20, epochs=1)), "private")
    """

    policy: ModelStatePolicy = eqx.field(static=True, default="average")

    def __check_init__(self) -> None:
        adds_noise = contains(self.inner, PrivateParties) or any(s.adds_noise for s in local_solvers(self.inner))
        if self.policy == "average" and adds_noise:
            raise InputError("ModelState(policy='average') would send statistics of samples that the noise of the "
                             "algorithm does not protect: use policy='private' or 'frozen', or layers without "
                             "statistics, such as GroupNorm")

    @override
    def init(self, w0: ParamsAndState, shares: Float[Array, " N"]) -> CombinatorState:
        self._check_model(w0)
        return CombinatorState(self.inner.init(w0.params, shares), () if self.policy == "private" else w0.state)

    @override
    def init_party(self, w0: ParamsAndState, oracle: Oracle, key: Array) -> PartyWithModelState:
        self._check_model(w0)
        inner = self.inner.init_party(w0.params, oracle.with_model_state(w0.state), key)
        return PartyWithModelState(inner, None if self.policy == "average" else Private(w0.state))

    @override
    def message(self, inner: InnerMessage, state: CombinatorState, k: Int[Array, ""], phase: int) -> Message:
        message = inner(state.inner, k)
        return WithModelState(message, state.extra) if self.policy == "average" else message

    @override
    def party(self, inner: InnerParty, state: PartyWithModelState, message: Message, oracle: Oracle, key: Array,
              effort: Float[Array, ""], phase: int) -> tuple[PartyWithModelState, Reply, Info]:
        before, of_inner = self._state_and_message(state, message)
        if self.policy == "frozen":
            after, reply, info = inner(state.inner, of_inner, oracle.with_model_state(before), key, effort)
            return PartyWithModelState(after, state.state), reply, info
        on_state = remembering(oracle.with_model_state(before, changes=True), PartyMemory(oracle=before))
        after, reply, info = inner(state.inner, of_inner, on_state, key, effort)
        memory: PartyMemory | None = info.get("memory")
        new = before if memory is None else memory.oracle  # a phase without local work leaves the state as it is
        if memory is not None and not isinstance(oracle, ShapeOracle) and are_same(new, before):
            raise InputError(f"{type(innermost(self.inner)).__name__} has a local solver that does not change the "
                             "model's state: use SGD or an optax optimizer, or ModelState(policy='frozen')")
        if self.policy == "average":
            return PartyWithModelState(after, None), WithModelState(reply, tree.cast(new, before)), info
        is_finite = tree.finite(eqx.filter(new, eqx.is_inexact_array))
        return PartyWithModelState(after, Private(tree.where(is_finite, new, before))), reply, info

    @override
    def server(self, inner: InnerServer, state: CombinatorState, replies: Replies, key: Array,
               phase: int) -> tuple[CombinatorState, Info]:
        if self.policy != "average":
            after, info = inner(state.inner, replies, key)
            return CombinatorState(after, state.extra), info
        after, info = inner(state.inner, replace(replies, payload=replies.payload.inner), key)
        return CombinatorState(after, _mean_state(replies, state.extra)), info

    @override
    def personal_model(self, state: PartyWithModelState, message: Message, oracle: Oracle) -> ParamsAndState:
        of_model, of_inner = self._state_and_message(state, message)
        params = self.inner.personal_model(state.inner, of_inner, oracle.with_model_state(of_model))
        return ParamsAndState(params, of_model)

    @override
    def server_model(self, state: CombinatorState) -> ParamsAndState | None:
        """The shared parameters with the shared state; None if the parties have their own states."""
        params = self.inner.server_model(state.inner)
        return None if params is None or self.policy == "private" else ParamsAndState(params, state.extra)

    def _state_and_message(self, state: PartyWithModelState, message: Message) -> tuple[dict[str, Any], Message]:
        """The model's state, and the inner algorithm's message."""
        if self.policy == "average":
            of_model: dict[str, Any] = message.state
            return of_model, message.inner
        assert state.state is not None
        of_party: dict[str, Any] = state.state.value
        return of_party, message

    def _check_model(self, w0: Any) -> None:
        if not isinstance(w0, ParamsAndState):
            raise InputError("ModelState is for models with a state, such as BatchNorm's statistics, and this model "
                             "has none: leave ModelState out")


def _mean_state(replies: Replies, before: dict[str, Any]) -> dict[str, Any]:
    """The weighted mean of the states of the replies; of no replies the state before."""
    def of_leaf(rows: Array, like: Array) -> Array:
        if jnp.issubdtype(like.dtype, jnp.inexact):
            mean: Array = replies.mean(rows)
        else:
            mean = jnp.round(replies.mean(rows.astype(jnp.result_type(float))))
        return jnp.where(jnp.any(replies.alive), mean.astype(like.dtype), like)

    mean_state: dict[str, Any] = jax.tree.map(of_leaf, replies.payload.state, before)
    return mean_state
