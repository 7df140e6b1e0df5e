"""Attacked: any algorithm, with some malicious parties."""

import warnings
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int
from typing_extensions import override

from resolvent.algorithms.aggregators.aggregator import aggregators_of
from resolvent.algorithms.algorithm import Info, Replies, Reply, ServerState
from resolvent.algorithms.attacks import Attack
from resolvent.algorithms.combinators.combinator import (
    Combinator,
    InnerParty,
    InnerServer,
    Wrapped,
)
from resolvent.algorithms.keys import attack_key, root_key
from resolvent.algorithms.method import update_origin
from resolvent.algorithms.participation.rules import as_ids, check_ids_exist
from resolvent.errors import BreakdownWarning
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle


class Attacked(Combinator):
    """The inner algorithm, with parties that attack in every round in which they take part.

    Which parties attack depends only on the seed here and on the number of parties, so compared methods have the same
    malicious parties. A malicious party stores the state that an honest one would store. An attack changes the update:
    the difference of a replied model (in the last phase of an algorithm that replies models) from the model that the
    party was sent, and otherwise the reply itself.

    Attributes:
        inner: any algorithm.
        attack: what malicious parties do.
        share: fraction of all N parties that are malicious, in [0, 1]; round(share*N) are drawn.
        parties: ids of parties that are malicious in any case.
        seed: seed of the draw.

    Raises:
        InputError: the share is outside [0, 1]; when the run starts, a party id does not exist.

    Warns:
        BreakdownWarning: an aggregator of the inner algorithm has a breakdown point, and the share is beyond it. The
            share of ``parties`` is known, and compared, when the run starts.

    Example:
        >>> algorithm = rv.combinators.Attacked(rv.fedavg(rv.SGD(0.1)), rv.attacks.SignFlip(), share=0.2)
    """

    attack: Attack
    share: Annotated[ArrayLike, "[0, 1]"] = 0.0
    parties: tuple[int, ...] = eqx.field(static=True, default=(), converter=as_ids)
    seed: int = eqx.field(static=True, default=0)

    def __check_init__(self) -> None:
        self._check_breakdown(self.share)

    @override
    def check_settings(self, parties: int) -> None:
        check_ids_exist(self, self.parties, parties)
        self._check_breakdown(len(set(self.parties)) / parties)

    def _check_breakdown(self, share: ArrayLike) -> None:
        """Warn if the inner algorithm's aggregators tolerate some malicious replies, but not this share of them."""
        for aggregator in aggregators_of(self.inner):
            try:
                allowed, malicious = float(aggregator.breakdown_point), float(jnp.max(jnp.asarray(share)))
            except jax.errors.ConcretizationTypeError:
                continue  # a sweep traces one of them
            # 1e-6 allows for rounding: 0.2 in float32 is larger than 0.2 in float64.
            if allowed > 0 and (malicious > allowed + 1e-6 or malicious >= 0.5):
                warnings.warn(f"Attacked: {malicious:.3g} of the parties are malicious, but the breakdown point of "
                              f"{type(aggregator).__name__} is {allowed:.3g}: they can move the aggregate arbitrarily "
                              "far. Lower the share, or use an aggregator with a larger breakdown point; that of a "
                              "median is 0.5", BreakdownWarning, stacklevel=2)

    @override
    def init_extra(self, inner: ServerState, w0: Vector, shares: Float[Array, " N"]) -> Bool[Array, " N"]:
        """[N] which parties are malicious."""
        n = len(shares)
        position = jax.random.permutation(root_key(self.seed), n)
        named = jnp.asarray(np.isin(np.arange(n), self.parties))
        return named | (position < jnp.round(jnp.asarray(self.share) * n))

    @override
    def message_extra(self, state: Wrapped, k: Int[Array, ""], phase: int) -> Bool[Array, ""]:
        """Whether the party is malicious."""
        malicious: Bool[Array, ""] = state.extra[k]
        return malicious

    @override
    def party(self, inner: InnerParty, state: Wrapped, message: Wrapped, oracle: Oracle, key: Array,
              effort: Float[Array, ""], phase: int) -> tuple[Wrapped, Reply, Info]:
        malicious = message.extra
        state, reply, info = super().party(inner, state, message, self.attack.oracle(oracle, malicious), key, effort,
                                           phase)
        numbers, static = eqx.partition(reply, eqx.is_inexact_array)
        origin = eqx.filter(update_origin(self.inner, message.inner, reply, phase), eqx.is_inexact_array)
        update = self.attack.update(tree.sub(numbers, origin), attack_key(key))
        if update is not None:
            false = tree.axpy(1, update, origin)
            numbers = tree.where(malicious, false, numbers)
        return state, eqx.combine(numbers, static), info

    @override
    def server(self, inner: InnerServer, state: Wrapped, replies: Replies, key: Array,
               phase: int) -> tuple[Wrapped, Info]:
        malicious = state.extra[replies.index] & replies.alive
        numbers, static = eqx.partition(replies.payload, eqx.is_inexact_array)
        message = self.inner.phases[phase].message

        def origin_of(k: Array, row: Reply) -> Vector:
            origin: Vector = eqx.filter(update_origin(self.inner, message(state.inner, k), row, phase),
                                        eqx.is_inexact_array)
            return origin

        origins = jax.vmap(origin_of)(replies.index, replies.payload)
        # Parties that train alone reply nothing, so that there is no update to replace.
        updates = None if not jax.tree.leaves(numbers) else self.attack.collude(
            tree.sub(numbers, origins), replies.alive & ~malicious, malicious)
        if updates is not None:
            false_replies = jax.tree.map(lambda origin, update: origin + update, origins, updates)
            numbers = tree.where(malicious, false_replies, numbers)
            replies = eqx.tree_at(lambda r: r.payload, replies, eqx.combine(numbers, static))
        after, info = inner(state.inner, replies, key)
        return Wrapped(after, state.extra), {**info, "malicious_replies": jnp.sum(malicious)}
