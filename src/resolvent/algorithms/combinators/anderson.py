"""Anderson acceleration, with the histories at the server or at the parties."""

from typing import Annotated, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
from typing_extensions import override

from resolvent.algorithms.algorithm import (
    Info,
    Part,
    PartyPart,
    Phase,
    Replies,
    Reply,
    ServerState,
)
from resolvent.algorithms.combinators.combinator import (
    Combinator,
    InnerServer,
    Wrapped,
    contains,
    innermost,
    one_phase_iterate,
)
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.anderson import Control, History, Rule
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle


class AndersonState(NamedTuple):
    """The accelerator's part of the server state.

    Attributes:
        history: the last points and their images.
        control: the weights of the next combination.
        shares: [N] weights of the inner product over parties, if the iterate has a part for each; else None.
    """

    history: History
    control: Control
    shares: Float[Array, " N"] | None


class Anderson(Combinator):
    """Anderson acceleration, type II, of the inner algorithm, on the server.

    Communication is that of the inner algorithm: the server stores the last iterates and their images, and sends the
    message that the inner algorithm makes of their combination. Source: operator-splitting paper, section 4, (27) and
    B.8; errata 14.

    The inner product is the paper's (6): parts of the iterate that belong to parties are weighted by lambda_k, so that
    for convex parties the plain residual never grows. For further guarantees see ``resolvent.math.anderson.Control``.

    Attributes:
        inner: an algorithm of one phase whose server holds the iterate (splitting, model aggregation).
        history_size: number of combined points, tau + 1; with 1 there is no acceleration.
        on: what is combined: the iterate (``u``: every u_k, or the shared model), or P_H(z) of a splitting scheme
            (``mean``, the paper's choice for nonconvex models), from which its next u_k follow.
        safeguard: a combination is undone if its residual exceeds the last one's by this factor.
        forward: how far a combination must go along the plain step, in plain steps; 1 keeps nonconvex runs from turning
            back, 0 lets maps that reflect (FedSplit) be accelerated.
        cutoff: relative cutoff of the least squares; default: the rounding unit times the history size.

    Raises:
        InputError: the inner algorithm's server holds no iterate, or is accelerated already.

    Example:
        >>> algorithm = rv.combinators.Anderson(rv.fedprox(rv.SGD(0.1), mu=1.0), history_size=3)
    """

    history_size: Annotated[int, "[1, inf)"] = eqx.field(static=True, default=3)
    on: Literal["u", "mean"] = eqx.field(static=True, default="u")
    safeguard: Annotated[float, "(0, inf)"] = 1.0
    forward: float = 1.0
    cutoff: float | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        iterate = one_phase_iterate(self.inner, "Anderson", "splitting(...), fedpi(...) or fedprox(...); if the "
                                    "parties hold the iterate, DecentralisedAnderson")
        if contains(self.inner, Anderson):
            raise InputError("Anderson got an algorithm that is accelerated already: use a larger history_size")
        if self.on == "mean" and iterate.mean is None:
            core = type(innermost(self.inner)).__name__
            raise InputError(f"Anderson(on='mean') needs a splitting scheme, got {core}: its iterate is the shared "
                             "model itself, use on='u'")

    @property
    def _iterate(self) -> Part:
        iterate = self.inner.iterate
        part = iterate and (iterate.mean if self.on == "mean" else iterate.server)
        assert part is not None
        return part

    @override
    def init_extra(self, inner: ServerState, w0: Vector, shares: Float[Array, " N"]) -> AndersonState:
        point, iterate = self._iterate.read(inner), self.inner.iterate
        by_party = self.on == "u" and iterate is not None and iterate.by_party
        return AndersonState(History.of(point, self.history_size), Control.first(self.history_size, tree.dtype(point)),
                             jnp.asarray(shares) if by_party else None)

    @override
    def server(self, inner: InnerServer, state: Wrapped, replies: Replies, key: Array,
               phase: int) -> tuple[Wrapped, Info]:
        after, info = inner(state.inner, replies, key)
        history, control, shares = state.extra
        row = control.row
        history = history.put(row, self._iterate.read(state.inner), self._iterate.read(after))
        rule = Rule(self.safeguard, self.forward, self.cutoff)
        control, undo = control.update(*history.inner_products(row, shares), rule)
        # Only the point is undone: states such as Compressed's shifts have moved at the parties as well.
        after = self._iterate.replace(after, history.combine(control.weights))
        info = {**info, "anderson_residual": control.residual, "anderson_undone": undo}
        return Wrapped(after, AndersonState(history, control, shares)), info


class Slots(eqx.Module):
    """The rounds that the rows of the histories stand for, from which a party knows the rows that it missed."""

    control: Control  # the server's decisions: the weights pi, the row of this round and the last accepted row
    rounds: Int[Array, " m"]  # [m] the round in which each row was written; -1 for none
    t: Int[Array, ""]  # number of this round

    def matches(self, rounds: Int[Array, " m"]) -> Bool[Array, " m"]:
        """[m] the rows that a party wrote in the same rounds as the server."""
        return rounds == self.rounds


class PartyHistory(NamedTuple):
    """The combinator's part of a party's state."""

    history: History  # the party's last points and images
    rounds: Int[Array, " m"]  # [m] the rounds in which it wrote them


class ServerHistory(NamedTuple):
    """The combinator's part of the server state."""

    history: History  # history of the server's part of the iterate
    slots: Slots  # the rows' rounds and the weights


class InnerProducts(NamedTuple):
    """A party's reply in the closing phase."""

    gram: Float[Array, "m m"]  # [m, m] inner products of its residuals
    advance: Float[Array, " m"]  # [m] inner products that the rule ``forward`` needs


class DecentralisedAnderson(Combinator):
    """Anderson acceleration, type II, with histories at the parties: of decentralised splitting and Fed+.

    A round has two phases. In the inner algorithm's own phase the server sends the weights pi of past images; each
    party combines its own images, works from that point and replies as in the inner algorithm. In a closing phase each
    party, which now knows the image of its point, replies the inner products of its residuals. The server sums them
    with the parties' lambda_k, which is the inner product (6) of the product space, and computes the next pi. With all
    parties present this is the centralised ``Anderson``, to rounding. Source: operator-splitting paper, section 4,
    decentralised implementation.

    A party that missed rounds uses its last image for the rows that it misses; one that missed the last round continues
    as in the inner algorithm. For splitting, the mean is sent twice a round because of such parties. A party sends the
    inner reply and m x m + m numbers.

    Attributes:
        inner: splitting(..., decentralised=True), or a Fed+ algorithm, whose joint iterate is every w_k and the centre.
        history_size: number of combined points, tau + 1; 1 is no acceleration.
        safeguard: a combination is undone if its residual exceeds the last one's by this factor.
        forward: how far a combination must go along the plain step, in plain steps; see ``Anderson``.
        cutoff: relative cutoff of the least squares; default: the rounding unit times the history size.

    Raises:
        InputError: the inner algorithm's parties do not hold the iterate.

    Example:
        >>> inner = rv.fedplus(rv.SGD(0.1), rv.penalties.L2Norm(), sigma=1.0, delta=0.1)
        >>> algorithm = rv.combinators.DecentralisedAnderson(inner, history_size=3)
    """

    history_size: Annotated[int, "[1, inf)"] = eqx.field(static=True, default=3)
    safeguard: Annotated[float, "(0, inf)"] = 1.0
    forward: float = 1.0
    cutoff: float | None = eqx.field(static=True, default=None)
    replies_models: ClassVar[bool] = False  # the replies of the last phase are inner products

    def __check_init__(self) -> None:
        iterate = self.inner.iterate
        if iterate is None or iterate.party is None or len(self.inner.phases) != 1:
            raise InputError(f"DecentralisedAnderson needs an algorithm whose parties hold the iterate, got "
                             f"{type(self.inner).__name__}: use splitting(..., decentralised=True) or a Fed+ algorithm "
                             "with a sigma over the active parties, or Anderson if the server holds it")

    @property
    def _iterate(self) -> PartyPart:
        iterate = self.inner.iterate
        assert iterate is not None
        assert iterate.party is not None
        return iterate.party

    @property
    def _shared(self) -> Part:
        """The server's part of the point, which is empty if it has none."""
        iterate = self.inner.iterate
        return (iterate and iterate.server) or Part(lambda state: jnp.zeros(0), lambda state, part: state)

    @override
    def init_extra(self, inner: ServerState, w0: Vector, shares: Float[Array, " N"]) -> ServerHistory:
        slots = Slots(Control.first(self.history_size, tree.dtype(w0)), jnp.full(self.history_size, -1), jnp.array(0))
        return ServerHistory(History.of(self._shared.read(inner), self.history_size), slots)

    @override
    def init_party_extra(self, w0: Vector, oracle: Oracle, key: Array) -> PartyHistory:
        return PartyHistory(History.of(w0, self.history_size), jnp.full(self.history_size, -1))

    @override
    def message_extra(self, state: Wrapped, k: Int[Array, ""], phase: int) -> Slots:
        slots: Slots = state.extra.slots
        return slots

    @property
    @override
    def phases(self) -> tuple[Phase, ...]:
        (phase,) = self.inner.phases

        def work_message(state: Wrapped, k: Int[Array, ""]) -> Wrapped:
            return self.message(phase.message, state, k, 0)

        def closing_message(state: Wrapped, k: Int[Array, ""]) -> Wrapped:
            return self.message(lambda inner, k: self._iterate.closing_message(inner), state, k, 1)

        def aggregate(state: Wrapped, replies: Replies, key: Array) -> tuple[Wrapped, Info]:
            return self._aggregate(phase, state, replies, key)

        return Phase(work_message, self._work, aggregate), Phase(closing_message, self._inner_products, self._combine)

    def _point(self, state: Wrapped, message: Wrapped) -> Vector:
        """The party's part of the next point: combined, or as in the inner algorithm if it missed the last round."""
        slots, own = message.extra, state.extra
        matches, last = slots.matches(own.rounds), slots.control.last
        rows = jax.nn.one_hot(jnp.where(matches, jnp.arange(self.history_size), last), self.history_size)
        combined = own.history.combine(slots.control.weights @ rows)
        plain = self._iterate.read(state.inner, message.inner)
        return tree.where(matches[last], combined, plain)

    def _work(self, state: Wrapped, message: Wrapped, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[Wrapped, Reply, Info]:
        point, slots, own = self._point(state, message), message.extra, state.extra
        inner, reply, info = self._iterate.work(point, state.inner, message.inner, oracle, key, effort)
        row = slots.control.row
        history = own.history.put(row, point, point)
        return Wrapped(inner, PartyHistory(history, own.rounds.at[row].set(slots.t))), reply, info

    def _aggregate(self, phase: Phase, state: Wrapped, replies: Replies,
                   key: Array) -> tuple[Wrapped, Info]:
        after, info = phase.server(state.inner, replies, key)
        history, slots = state.extra
        row, read = slots.control.row, self._shared.read
        history = history.put(row, read(state.inner), read(after))
        slots = Slots(slots.control, slots.rounds.at[row].set(slots.t), slots.t)
        return Wrapped(after, ServerHistory(history, slots)), info

    def _inner_products(self, state: Wrapped, message: Wrapped, oracle: Oracle, key: Array,
                        effort: Float[Array, ""]) -> tuple[Wrapped, InnerProducts, Info]:
        slots, own = message.extra, state.extra
        row = slots.control.row
        image = self._iterate.read(state.inner, message.inner)
        history = own.history.put(row, own.history.point(row), image)
        gram, advance = history.inner_products(row)
        matches = slots.matches(own.rounds)
        both = matches[:, None] & matches[None, :]
        products = InnerProducts(jnp.where(both, gram, 0), jnp.where(matches, advance, 0))
        return Wrapped(state.inner, own._replace(history=history)), products, {}

    def _combine(self, state: Wrapped, replies: Replies, key: Array) -> tuple[Wrapped, Info]:
        history, slots = state.extra
        gram, advance = history.inner_products(slots.control.row)
        total: InnerProducts = replies.total(replies.payload)
        rule = Rule(self.safeguard, self.forward, self.cutoff)
        control, undo = slots.control.update(total.gram + gram, total.advance + advance, rule)
        inner = self._shared.replace(state.inner, history.combine(control.weights))
        info = {"anderson_residual": control.residual, "anderson_undone": undo}
        return Wrapped(inner, ServerHistory(history, Slots(control, slots.rounds, slots.t + 1))), info

    @override
    def model_message(self, state: Wrapped, k: Int[Array, ""]) -> Wrapped:
        return Wrapped(self.inner.model_message(state.inner, k), ())
