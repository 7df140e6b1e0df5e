"""Anderson acceleration where the parties hold the iterate: histories stay with them, m x m numbers travel.

A round has two phases. The inner algorithm's own: the server says with which weights pi to combine past images, each
party combines its own, works from there and replies as ever. Then a closing one: each party, knowing the image of its
point, replies the inner products of its own residuals; the server sums them with the parties' lambda_k, which is the
inner product (6) of the product space, and finds the next pi. With every party present that is the centralised
``Anderson``, to rounding. Source: operator-splitting paper, section 4, decentralised implementation.
"""

from typing import ClassVar, Protocol, cast, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from resolvent.algorithms.algorithm import Info, Message, PartyState, Phase, Replies, Reply, ServerState
from resolvent.algorithms.combinators.anderson import check_anderson
from resolvent.algorithms.combinators.combinator import Combinator, Memory
from resolvent.math import tree
from resolvent.math.anderson import Control, History, Rule
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle

__all__ = ["DecentralisedAnderson", "PartiesHoldIterate"]

Products = tuple[Float[Array, "m m"], Float[Array, " m"]]


@runtime_checkable
class PartiesHoldIterate(Protocol):
    """An algorithm of one phase whose parties each hold a part of the point that a round maps to the next."""

    def own_iterate(self, own: PartyState, message: Message) -> Vector:
        """The party's part, from its state and the phase's message or the closing one."""

    def work(self, point: Vector, own: PartyState, message: Message, oracle: Oracle, key: Array,
             effort: Float[Array, ""]) -> tuple[PartyState, Reply, Info]:
        """The party's work from that part."""

    def closing(self, state: ServerState) -> Message:
        """What a party must be told after the server's step to know its next part."""

    def shared_iterate(self, state: ServerState) -> Vector:
        """The server's part, empty where it has none."""

    def with_shared_iterate(self, state: ServerState, point: Vector) -> ServerState:
        """The same state with another part."""


class Slots(eqx.Module):
    """Which round each row of the histories stands for, so that a party knows which rows it missed.

    Attributes:
        control: the server's decisions: the weights pi, the row of this round, of the last one kept.
        rounds: [m] the round that each row was written in; -1 for none.
        now: the number of this round.
    """

    control: Control
    rounds: Int[Array, " m"]
    now: Int[Array, ""]

    def held(self, own: Int[Array, " m"]) -> Bool[Array, " m"]:
        """Which rows a party that wrote in these rounds holds as the others do."""
        return own == self.rounds


class OwnHistory(eqx.Module):
    """A party's memory: the inner algorithm's, its last points and images, and the rounds it wrote them in."""

    inner: PartyState
    history: History
    rounds: Int[Array, " m"]


class SharedHistory(Memory):
    """The server's memory: the inner state, its own part's history, and the slots."""

    history: History
    slots: Slots


class DecentralisedAnderson(Combinator):
    """Anderson acceleration, type II, with histories at the parties: of decentralised splitting and Fed+.

    A party that missed rounds uses its last image for those that it has not; one that missed the last round goes on as
    the inner algorithm would. Of splitting, the mean travels down twice a round for their sake. Up go the inner reply
    and m x m + m numbers.

    Attributes:
        inner: splitting(..., decentralised=True) or a Fed+ algorithm, whose joint iterate is every w_k and the centre.
        memory: how many points are combined, tau + 1; 1 is no acceleration.
        safeguard: a combination whose residual exceeds the last one's this many times is undone.
        forward: how far a combination must go along the plain step, in plain steps; see ``Anderson``.
        cutoff: relative cut-off of the least squares; default: the rounding unit times the memory.
    """

    memory: int = eqx.field(static=True, default=3)
    safeguard: float = 1.0
    forward: float = 1.0
    cutoff: float | None = eqx.field(static=True, default=None)
    remembers: ClassVar[bool] = True

    def __check_init__(self) -> None:
        if not isinstance(self.inner, PartiesHoldIterate) or len(self.inner.phases) != 1:
            raise TypeError(f"DecentralisedAnderson needs an algorithm whose parties hold the iterate, got "
                            f"{type(self.inner).__name__}: use splitting(..., decentralised=True) or a Fed+ algorithm "
                            "over the active parties, or Anderson where the server holds it")
        check_anderson(self)

    @property
    def _held(self) -> PartiesHoldIterate:
        return cast(PartiesHoldIterate, self.inner)

    def init(self, w0: Vector, weights: Float[Array, " N"]) -> SharedHistory:
        """Weight one on rows that all hold the first point."""
        inner = self.inner.init(w0, weights)
        slots = Slots(Control.first(self.memory, tree.dtype(w0)), jnp.full(self.memory, -1), jnp.array(0))
        return SharedHistory(inner, History.of(self._held.shared_iterate(inner), self.memory), slots)

    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> OwnHistory:
        """Rows that all hold the first point."""
        return OwnHistory(self.inner.init_party(w0, oracle, key), History.of(w0, self.memory),
                          jnp.full(self.memory, -1))

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The inner phase from combined points, and the closing one."""
        (phase,) = self.inner.phases
        return (Phase(lambda state, k: (phase.message(state.inner, k), state.slots), self._work,
                      lambda state, replies, key: self._aggregate(phase, state, replies, key)),
                Phase(lambda state, k: (self._held.closing(state.inner), state.slots), self._measure, self._mix))

    def _point(self, own: OwnHistory, message: tuple[Message, Slots]) -> Vector:
        inner, slots = message
        held, last = slots.held(own.rounds), slots.control.last
        rows = jax.nn.one_hot(jnp.where(held, jnp.arange(self.memory), last), self.memory)
        ahead = own.history.combined(slots.control.weights @ rows)
        plain = self._held.own_iterate(own.inner, inner)
        return jax.tree.map(lambda a, b: jnp.where(held[last], a, b), ahead, plain)

    def _work(self, own: OwnHistory, message: tuple[Message, Slots], oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[OwnHistory, Reply, Info]:
        point, (inner, slots) = self._point(own, message), message
        state, reply, info = self._held.work(point, own.inner, inner, oracle, key, effort)
        row = slots.control.row
        return OwnHistory(state, own.history.put(row, point, point), own.rounds.at[row].set(slots.now)), reply, info

    def _aggregate(self, phase: Phase, state: SharedHistory, replies: Replies,
                   key: Array) -> tuple[SharedHistory, Info]:
        after, info = phase.server(state.inner, replies, key)
        row = state.slots.control.row
        history = state.history.put(row, self._held.shared_iterate(state.inner), self._held.shared_iterate(after))
        slots = Slots(state.slots.control, state.slots.rounds.at[row].set(state.slots.now), state.slots.now)
        return SharedHistory(after, history, slots), info

    def _measure(self, own: OwnHistory, message: tuple[Message, Slots], oracle: Oracle, key: Array,
                 effort: Float[Array, ""]) -> tuple[OwnHistory, Products, Info]:
        closing, slots = message
        row = slots.control.row
        image = self._held.own_iterate(own.inner, closing)
        history = own.history.put(row, own.history.point(row), image)
        gram, advance = history.products(row)
        held = slots.held(own.rounds)
        both = held[:, None] & held[None, :]
        return (OwnHistory(own.inner, history, own.rounds),
                (jnp.where(both, gram, 0), jnp.where(held, advance, 0)), {})

    def _mix(self, state: SharedHistory, replies: Replies, key: Array) -> tuple[SharedHistory, Info]:
        row = state.slots.control.row
        gram, advance = jax.tree.map(jnp.add, replies.total(replies.payload), state.history.products(row))
        control, undo = state.slots.control.judged(gram, advance, Rule(self.safeguard, self.forward, self.cutoff))
        inner = self._held.with_shared_iterate(state.inner, state.history.combined(control.weights))
        slots = Slots(control, state.slots.rounds, state.slots.now + 1)
        info = {"anderson_residual": control.residual, "anderson_undone": undo}
        return SharedHistory(inner, state.history, slots), info

    def model_message(self, state: SharedHistory, k: Int[Array, ""]) -> Message:
        """As the inner algorithm."""
        return self.inner.model_message(state.inner, k)

    def personal_model(self, state: OwnHistory, message: Message, oracle: Oracle) -> Vector:
        """As the inner algorithm, from what the party's last work left."""
        return self.inner.personal_model(state.inner, message, oracle)
