"""Attacked: any algorithm, some of whose parties are bad."""

from functools import partial
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PyTree

from resolvent.algorithms.algorithm import Info, Message, PartyState, Phase, Replies, Reply
from resolvent.algorithms.attacks import Attack
from resolvent.algorithms.combinators.combinator import Combinator, InnerMessage, InnerParty, Memory
from resolvent.errors import check_range
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle

__all__ = ["Attacked", "AttackedState"]


class AttackedState(Memory):
    """The inner server's state, and who is bad: [N]."""

    bad: Bool[Array, " N"]


class Order(NamedTuple):
    """What a party is sent: the inner algorithm's message, and whether it is bad."""

    message: Message
    bad: Bool[Array, ""]


class Attacked(Combinator):
    """An algorithm, some of whose parties are bad in every round that they take part in.

    Who they are depends on the seed here and on the number of parties only, so that methods that are compared meet the
    same. A bad party keeps the state that an honest one would. An update is what an attack changes: of a model that is
    replied (in the last phase of an algorithm whose replies are models), the difference from the model it was sent.

    Attributes:
        inner: the algorithm.
        attack: what bad parties do.
        share: of all N parties that are bad, in [0, 1]; round(share*N) are drawn.
        parties: numbers of parties that are bad whatever is drawn.
        seed: of the draw.
    """

    attack: Attack
    share: ArrayLike = 0.0
    parties: tuple[int, ...] = eqx.field(static=True, default=())
    seed: int = eqx.field(static=True, default=0)
    remembers: ClassVar[bool] = True

    def __check_init__(self) -> None:
        check_range(self, "[0, 1]", share=self.share)

    def init(self, w0: Vector, weights: Float[Array, " N"]) -> AttackedState:
        """Draw the bad parties.

        Raises:
            ValueError: a party is named that there is not.
        """
        n = len(weights)
        for k in self.parties:
            if not 0 <= k < n:
                raise ValueError(f"Attacked(parties=...) names party {k}, but they are numbered 0 to {n - 1}")
        place = jax.random.permutation(jax.random.key(self.seed), n)
        named = jnp.asarray(np.isin(np.arange(n), self.parties))
        return AttackedState(self.inner.init(w0, weights), named | (place < jnp.round(jnp.asarray(self.share) * n)))

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The inner phases, with bad parties."""
        last = len(self.inner.phases) - 1
        return tuple(self._phase(phase, self.replies_models and number == last)
                     for number, phase in enumerate(self.inner.phases))

    def _phase(self, phase: Phase, models: bool) -> Phase:
        return Phase(partial(self.message, phase.message), partial(self._attacked_party, phase.party, models),
                     partial(self._attacked_server, phase, models))

    def message(self, inner: InnerMessage, state: AttackedState, k: Int[Array, ""]) -> Order:
        """The inner message, and whether to be bad."""
        return Order(inner(state.inner, k), state.bad[k])

    def _attacked_party(self, inner: InnerParty, models: bool, state: PartyState, order: Order, oracle: Oracle,
                        key: Array, effort: Float[Array, ""]) -> tuple[PartyState, Reply, Info]:
        state, reply, info = inner(state, order.message, self.attack.oracle(oracle, order.bad), key, effort)
        numbers, rest = eqx.partition(reply, eqx.is_inexact_array)
        origin = _origin(order.message, numbers, models)
        false = self.attack.update(tree.sub(numbers, origin), jax.random.fold_in(key, 2**31 - 4))
        if false is not None:
            turned = tree.axpy(1, false, origin)
            numbers = jax.tree.map(lambda new, old: jnp.where(order.bad, new, old), turned, numbers)
        return state, eqx.combine(numbers, rest), info

    def _attacked_server(self, phase: Phase, models: bool, state: AttackedState, replies: Replies,
                         key: Array) -> tuple[AttackedState, Info]:
        bad = state.bad[replies.index] & replies.alive
        numbers, rest = eqx.partition(replies.payload, eqx.is_inexact_array)

        def origin_of(k: Array, row: Vector) -> Vector:
            return _origin(phase.message(state.inner, k), row, models)

        origins = jax.vmap(origin_of)(replies.index, numbers)
        false = self.attack.collude(tree.sub(numbers, origins), replies.alive & ~bad, bad)
        if false is not None:
            def turned(honest: Array, origin: Array, update: Array) -> Array:
                return jnp.where(bad.reshape((-1,) + (1,) * update.ndim), origin + update, honest)

            numbers = jax.tree.map(turned, numbers, origins, false)
            replies = eqx.tree_at(lambda r: r.payload, replies, eqx.combine(numbers, rest))
        after, info = phase.server(state.inner, replies, key)
        return AttackedState(after, state.bad), {**info, "bad_replies": jnp.sum(bad)}

    def personal_model(self, state: PartyState, message: Order, oracle: Oracle) -> Vector:
        """As the inner algorithm."""
        return self.inner.personal_model(state, message.message, oracle)


def _origin(message: Message, reply: PyTree[Any], models: bool) -> Vector:
    """The first part of a message that has the shape of the reply, where replies are models; else zero."""
    def alike(part: Any) -> bool:
        same: bool = jax.tree.structure(part) == jax.tree.structure(reply)  # type: ignore[operator]
        return same and all(a.shape == b.shape
                            for a, b in zip(jax.tree.leaves(part), jax.tree.leaves(reply), strict=True))

    found = [part for part in jax.tree.leaves(message, is_leaf=alike) if alike(part)] if models else []
    return found[0] if found else jax.tree.map(jnp.zeros_like, reply)
