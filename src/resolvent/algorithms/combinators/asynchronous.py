"""Asynchronous servers: each reply enters when it arrives, with a weight for its staleness."""

from dataclasses import replace
from typing import Annotated, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, Replies, Reply, ServerState
from resolvent.algorithms.combinators.combinator import (
    Combinator,
    InnerMessage,
    InnerParty,
    InnerServer,
    Wrapped,
)
from resolvent.algorithms.keys import substep_key
from resolvent.algorithms.method import update_origin
from resolvent.algorithms.participation.arrivals import Arrivals
from resolvent.algorithms.participation.rules import Participation
from resolvent.algorithms.round import reply_shapes
from resolvent.errors import InputError, check_range
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.problem import Problem

__all__ = ["Asynchronous", "AsynchronousState"]

Anchor = Literal["start", "current"]


class AsynchronousState(NamedTuple):
    """What an asynchronous server stores next to the inner algorithm's state."""

    history: ServerState  # leaves [H, ...], the inner states; version v is in row v mod H
    version: Int[Array, ""]  # number of steps so far
    started: Int[Array, " lanes"]  # version of the message with which each lane works
    buffer: Replies  # the K replies of the next step
    waiting: Int[Array, ""]  # how many of them have arrived


class Asynchronous(Combinator):
    """The inner algorithm with a server that does not wait: each reply enters as it arrives, and may be stale.

    A reply that was computed from version v of the server's state has the staleness tau = (present version) - v. A
    reply of a model w_k that began at w_v enters as

    .. code-block:: text

        s(tau) = mixing * (1 + slope * max(0, tau - grace))^(-power)
        anchor start:    w~ + s(tau) (w_k - w_v)
        anchor current:  w~ + s(tau) (w_k - w~)

    and a reply that is no model enters as it is. After ``buffer`` such replies, the inner server makes its step with
    them, and the version increases by one. A party that has replied begins at once with the present version. Replies
    with tau > ``max_staleness`` do not count, and leave the party's state as it was.

    The norms of updates are not compared, because they began at different versions.

    What a party does is the inner algorithm's: FedAvg inside is FedAsync (anchor current, buffer 1) or FedBuff (anchor
    start). With buffer 1 and mixing 1, a single party makes the steps of the inner algorithm. The server stores the
    last ``max_staleness`` + 1 versions. Run it with ``rv.participation.Arrivals`` and the same concurrency; each round
    records ``staleness``. With a synchronous participation, a party works with the version after its last reply. Over a
    network with a quorum, a site that has not answered keeps its message, and its late reply counts.

    Source: Xie, Koyejo, Gupta: Asynchronous Federated Optimization, 2019, Algorithm 1; Nguyen, Malik, Zhan,
    Yousefpour, Rabbat, Malek, Huba: Federated Learning with Buffered Asynchronous Aggregation, AISTATS 2022,
    Algorithm 1.

    Attributes:
        inner: an algorithm of one phase.
        buffer: K, the number of replies of a step.
        anchor: what a reply is compared with.
        mixing: factor of all weights, positive; with the anchor ``current`` at most 1.
        power: exponent of the weights, at least 0; 0: no weights.
        slope: positive.
        grace: staleness without a loss of weight, at least 0.
        max_staleness: the largest staleness that counts, at least 0.
        concurrency: number of parties that work at the same time; default: all.

    Raises:
        InputError: a number is outside its range, the inner algorithm has several phases, or its replies are no models
            and would be weighed.

    Example:
        >>> algorithm = rv.combinators.Asynchronous(rv.fedprox(rv.SGD(0.1), mu=0.1), buffer=4, power=0.5)
    """

    buffer: Annotated[int, "[1, inf)"] = eqx.field(static=True, kw_only=True, default=1)
    anchor: Anchor = eqx.field(static=True, kw_only=True, default="start")
    mixing: ArrayLike = eqx.field(kw_only=True, default=1.0)
    power: Annotated[ArrayLike, "[0, inf)"] = eqx.field(kw_only=True, default=0.0)
    slope: Annotated[ArrayLike, "(0, inf)"] = eqx.field(kw_only=True, default=1.0)
    grace: Annotated[ArrayLike, "[0, inf)"] = eqx.field(kw_only=True, default=0.0)
    max_staleness: Annotated[int, "[0, inf)"] = eqx.field(static=True, kw_only=True, default=100)
    concurrency: Annotated[int | None, "[1, inf)"] = eqx.field(static=True, kw_only=True, default=None)
    needs_individual_replies: ClassVar[bool] = True
    norm_multiple: ClassVar[None] = None
    steps_without_replies: ClassVar[bool] = True  # so that the history is not copied; such a round changes nothing

    def __check_init__(self) -> None:
        check_range(self, "(0, 1]" if self.anchor == "current" else "(0, inf)", mixing=self.mixing)
        name = type(self.inner).__name__
        if len(self.inner.phases) != 1 or self.inner.steps_without_replies:
            raise InputError(f"Asynchronous needs an algorithm of one phase whose server steps with replies only, got "
                             f"{name}: use fedavg, fedprox, fedvarp or another one")
        is_weighed = any(isinstance(x, int | float) and x != plain for x, plain in ((self.mixing, 1), (self.power, 0)))
        if is_weighed and not self.inner.replies_models:
            raise InputError(f"Asynchronous(mixing={self.mixing}, power={self.power}) of {name}, whose replies are no "
                             "models: weights would make its sums wrong. Use mixing=1 and power=0")
        if self.anchor == "current" and (self.buffer != 1 or not self.inner.replies_models):
            raise InputError(f"Asynchronous(anchor='current', buffer={self.buffer}) of {name} needs buffer=1 and "
                             "replies that are models: use anchor='start'")

    @override
    def check_participation(self, participation: Participation, parties: int, problem: Problem | None = None) -> None:
        """Refuse lanes that differ from the server's."""
        if not isinstance(participation, Arrivals):
            if self.concurrency not in (None, parties):
                raise InputError(f"the algorithm has concurrency={self.concurrency}, which needs replies that arrive "
                                 f"one after the other: give participation=rv.participation.Arrivals(..., concurrency="
                                 f"{self.concurrency})")
            super().check_participation(participation, parties, problem)
        elif (self.concurrency or parties) != (participation.concurrency or parties):
            raise InputError(f"the algorithm has concurrency={self.concurrency or parties} and Arrivals have "
                             f"{participation.concurrency or parties}: give both the same number, so that the server "
                             "knows with which version each party began")

    @override
    def init_extra(self, inner: ServerState, w0: Vector, shares: Float[Array, " N"]) -> AsynchronousState:
        payload = reply_shapes(self.inner, w0)[0]
        if not all(jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in jax.tree.leaves(payload)):
            raise InputError(f"Asynchronous needs replies of floating-point numbers, which those of "
                             f"{type(self.inner).__name__} are not: use Compressed around Asynchronous")
        size, zero = self.buffer, jnp.zeros((), jnp.int32)
        rows = jax.tree.map(lambda leaf: jnp.zeros((size, *leaf.shape), leaf.dtype), payload)
        weights = jnp.zeros(size, shares.dtype)
        lanes = len(shares) if self.concurrency is None else self.concurrency
        history = jax.tree.map(lambda leaf: jnp.repeat(jnp.asarray(leaf)[None], self.max_staleness + 1, axis=0), inner)
        buffer = Replies(rows, weights, jnp.zeros(size, jnp.int32), jnp.zeros(size, bool), weights)
        return AsynchronousState(history, zero, jnp.zeros(lanes, jnp.int32), buffer, zero)

    @override
    def message(self, inner: InnerMessage, state: Wrapped, k: Int[Array, ""], phase: int) -> Wrapped:
        """The message of the version with which the party began, and whether its reply will count."""
        before, staleness = self._began_with(state.extra, k)
        return Wrapped(inner(before, k), staleness <= self.max_staleness)

    @override
    def model_message(self, state: Wrapped, k: Int[Array, ""]) -> Wrapped:
        return Wrapped(self.inner.model_message(state.inner, k), jnp.array(True))

    @override
    def party(self, inner: InnerParty, state: Wrapped, message: Wrapped, oracle: Oracle, key: Array,
              effort: Float[Array, ""], phase: int) -> tuple[Wrapped, Reply, Info]:
        after, reply, info = super().party(inner, state, message, oracle, key, effort, phase)
        return tree.where(message.extra, after, state), reply, info

    @override
    def server(self, inner: InnerServer, state: Wrapped, replies: Replies, key: Array,
               phase: int) -> tuple[Wrapped, Info]:
        """The replies of a round enter one after the other, in the order of the cohort."""
        staleness = state.extra.version - state.extra.started[self._lane(state.extra, replies.index)]
        mean = jnp.sum(jnp.where(replies.alive, staleness, 0)) / jnp.maximum(jnp.sum(replies.alive), 1)
        if len(replies.index) == 1:
            return self._add(inner, state, replies, key), {"staleness": mean}

        def add(i: Array, state: Wrapped) -> Wrapped:
            row: Replies = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, i, 1), replies)
            return self._add(inner, state, row, substep_key(key, i))

        return jax.lax.fori_loop(0, len(replies.index), add, state), {"staleness": mean}

    def _add(self, inner: InnerServer, state: Wrapped, reply: Replies, key: Array) -> Wrapped:
        """The state after one reply, leaves [1, ...]."""
        extra: AsynchronousState = state.extra
        k, alive = reply.index[0], reply.alive[0]
        before, staleness = self._began_with(extra, k)
        is_fresh = alive & (staleness <= self.max_staleness)
        entering = self._entering(state.inner, before, reply, staleness)
        buffer = jax.tree.map(
            lambda rows, row: rows.at[extra.waiting].set(
                jnp.where(is_fresh, row[0].astype(rows.dtype), rows[extra.waiting])),
            extra.buffer, entering)
        waiting = extra.waiting + is_fresh
        is_step = waiting == self.buffer
        after = self._step(inner, state.inner, buffer, is_step, key)
        version = extra.version + is_step
        row = version % (self.max_staleness + 1)  # without a step, this row has the present state already
        history = jax.tree.map(lambda rows, leaf: rows.at[row].set(leaf), extra.history, after)
        lane = self._lane(extra, k)
        started = extra.started.at[lane].set(jnp.where(alive, version, extra.started[lane]))
        return Wrapped(after, AsynchronousState(history, version, started, buffer,
                                                        jnp.where(is_step, 0, waiting)))

    def _step(self, inner: InnerServer, state: ServerState, buffer: Replies, is_step: Bool[Array, ""],
              key: Array) -> ServerState:
        """The inner server's state after its step with the buffer, if there is a step."""
        def step() -> ServerState:
            return inner(state, buffer, key)[0]

        if self.buffer == 1:  # almost every reply is a step
            return tree.where(is_step, step(), state)
        return jax.lax.cond(is_step, lambda: tree.strongly_typed(step()), lambda: state)

    def _entering(self, state: ServerState, before: ServerState, reply: Replies, staleness: Int[Array, ""]) -> Replies:
        """The reply as it enters the buffer."""
        if not self.inner.replies_models:
            return reply
        message, payload = self.inner.phases[0].message, jax.tree.map(lambda leaf: leaf[0], reply.payload)
        latest, began = (update_origin(self.inner, message(s, reply.index[0]), payload, 0) for s in (state, before))
        weight = self._weight(staleness)
        moved = tree.axpy(weight, tree.sub(payload, latest if self.anchor == "current" else began), latest)
        return replace(reply, payload=jax.tree.map(lambda leaf, like: leaf.astype(like.dtype)[None], moved, payload))

    def _weight(self, staleness: Int[Array, ""]) -> Float[Array, ""]:
        """s(tau)."""
        late = jnp.maximum(0, staleness - jnp.asarray(self.grace))
        weight: Array = jnp.asarray(self.mixing) * (1 + jnp.asarray(self.slope) * late) ** -jnp.asarray(self.power)
        return weight

    def _began_with(self, extra: AsynchronousState, k: Int[Array, ""]) -> tuple[ServerState, Int[Array, ""]]:
        """The inner state with which party k began, if it is still stored, and its staleness."""
        version = extra.started[self._lane(extra, k)]
        return tree.rows(extra.history, version % (self.max_staleness + 1)), extra.version - version

    def _lane(self, extra: AsynchronousState, k: Int[Array, "..."]) -> Int[Array, "..."]:
        return k % len(extra.started)
