r"""A robust centre computed from sums of replies, so that no single reply has to be seen.

Most robust aggregators read every reply. A Moreau centre and the medians do not have to: an iteration finds them from
weighted sums of bounded replies (``resolvent.math.centre_searches``). The last phase of the inner algorithm becomes
several ones. In the first a party works, stores its reply x_k and sends what it replies to the first step of the
iteration; in each of the others the server sends the point of the next step.

.. code-block:: text

    phase 1       the inner algorithm's message, w_0     local work; the party stores x_k; reply_k(w_0)
    phase 2..R    w_1, ..., w_{R-1}                      reply_k(w_r)
    server        w_r = step(w_{r-1}, mean of reply_k(w_{r-1})), and after the last step the inner server's step

w_0 is the server's model, the centre of the last round. If the penalty has a bounded pull, as norms have, a party moves
every w_r by no more than its weight allows, whatever it replied in the inner algorithm. Source: Fed+ (25) as an
iteration over sums; Pillutla, Kakade, Harchaoui (RFA) for the geometric median.
"""

from typing import Annotated, Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
from typing_extensions import override

from resolvent.algorithms.aggregators.aggregator import Mean
from resolvent.algorithms.algorithm import Info, Phase, Replies, Reply, ServerState
from resolvent.algorithms.combinators.combinator import Combinator, Wrapped
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.centre_searches import CentreSearch
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle


class StoredReply(NamedTuple):
    """The combinator's part of a party's state.

    Attributes:
        reply: x_k, what it would have replied in the inner algorithm.
        t: the round of the reply; -1 before the first.
    """

    reply: Reply
    t: Int[Array, ""]


class SearchMessage(NamedTuple):
    """The combinator's part of every message. The inner algorithm's part is () after the first phase.

    Attributes:
        point: w_r, where the party evaluates.
        t: number of this round; -2 if the first phase had no effect.
    """

    point: Vector
    t: Int[Array, ""]


class SearchState(NamedTuple):
    """The combinator's part of the server state.

    Attributes:
        search: the state of the iteration in this round.
        t: number of the next round; a round without a reply in its first phase has none.
        is_open: whether the round has begun its iteration and not ended it.
    """

    search: Any
    t: Int[Array, ""]
    is_open: Bool[Array, ""]


class CentreFromSums(Combinator):
    """A method with a robust aggregator, whose server sees only sums.

    It needs ``steps`` exchanges in a round. The centre is the one of the direct form for many steps; few suffice,
    because the iteration begins at the centre of the last round. A party that has no reply of this round counts as
    absent.

    Attributes:
        inner: a method of one phase whose server only aggregates, such as ``fedplus``, ``fedgeomed_plus`` with a
            ``delta``, ``rfa`` or ``coordinate_median``.
        steps: the steps of the iteration in a round, R.

    Raises:
        InputError: the inner algorithm is no such method, or its aggregator cannot be computed from sums; ``steps`` is
            below 1.

    Example:
        >>> algorithm = rv.combinators.CentreFromSums(rv.rfa(rv.SGD(0.1)), steps=4)
    """

    steps: Annotated[int, "[1, inf)"] = eqx.field(static=True, default=4)
    replies_models: ClassVar[bool] = False  # the replies are pulls or votes
    needs_individual_replies: ClassVar[bool] = False

    def __check_init__(self) -> None:
        aggregator = getattr(self.inner, "aggregator", None)
        if aggregator is None or len(self.inner.phases) != 1 or self._with_mean().needs_individual_replies:
            raise InputError(f"CentreFromSums needs a method of one phase with an aggregator, got "
                             f"{type(self.inner).__name__}: use fedplus(...), fedgeomed_plus(..., delta=0.1), rfa(...) "
                             "or robust(...), and put other combinators around it")
        if aggregator.linear:
            raise InputError("CentreFromSums needs an aggregator other than the mean, got "
                             f"{type(aggregator).__name__}: use the method itself, which needs one sum")
        if aggregator.search() is None:
            raise InputError("CentreFromSums needs an aggregator that can be computed from sums, got "
                             f"{type(aggregator).__name__}: use GeometricMedian(), CoordinateMedian() or "
                             "MoreauCentre(penalty, delta) with a delta that is not relative")

    def _with_mean(self) -> Any:
        return eqx.tree_at(lambda a: a.aggregator, self.inner, Mean())

    @property
    def _search(self) -> CentreSearch[Any]:
        search: CentreSearch[Any] = self.inner.aggregator.search()  # type: ignore[attr-defined]
        return search

    @property
    @override
    def norm_multiple(self) -> float | None:
        """None if pulls are bounded, as votes are; otherwise that of the inner algorithm."""
        is_bounded = self.inner.aggregator.breakdown_point > 0  # type: ignore[attr-defined]
        return None if is_bounded else self.inner.norm_multiple

    @override
    def init_extra(self, inner: ServerState, w0: Vector, shares: Float[Array, " N"]) -> SearchState:
        return SearchState(self._first(inner), jnp.array(0), jnp.array(False))

    def _start(self, inner: ServerState) -> Vector:
        """Where the iteration begins: the last centre; zero if the replies are no models."""
        model = self.inner.server_model(inner)
        assert model is not None
        return model if self.inner.replies_models else jax.tree.map(jnp.zeros_like, model)

    def _first(self, inner: ServerState) -> Any:
        return self._search.first(self._start(inner))

    @override
    def init_party_extra(self, w0: Vector, oracle: Oracle, key: Array) -> StoredReply:
        return StoredReply(w0, jnp.array(-1))

    @property
    @override
    def phases(self) -> tuple[Phase, ...]:
        (inner,) = self.inner.phases

        def first_message(state: Wrapped, k: Int[Array, ""]) -> Wrapped:
            search = SearchMessage(self._search.point(self._first(state.inner)), state.extra.t)
            return Wrapped(inner.message(state.inner, k), search)

        def work(state: Wrapped, message: Wrapped, oracle: Oracle, key: Array,
                 effort: Float[Array, ""]) -> tuple[Wrapped, Reply, Info]:
            after, reply, info = inner.party(state.inner, message.inner, oracle, key, effort)
            point, t = message.extra
            return Wrapped(after, StoredReply(reply, t)), self._search.reply(reply, point), info

        def first_step(state: Wrapped, replies: Replies, key: Array) -> tuple[Wrapped, Info]:
            begun = SearchState(self._first(state.inner), state.extra.t + 1, jnp.array(True))
            return self._step(Wrapped(state.inner, begun), replies, key)

        def last_step(state: Wrapped, replies: Replies, key: Array) -> tuple[Wrapped, Info]:
            return self._close(inner, self._step(state, replies, key)[0], replies, key)

        def only_step(state: Wrapped, replies: Replies, key: Array) -> tuple[Wrapped, Info]:
            return self._close(inner, first_step(state, replies, key)[0], replies, key)

        if self.steps == 1:
            return (Phase(first_message, work, only_step),)
        return (Phase(first_message, work, first_step),
                *(Phase(self._next_message, self._evaluate, self._step),) * (self.steps - 2),
                Phase(self._next_message, self._evaluate, last_step))

    def _next_message(self, state: Wrapped, k: Int[Array, ""]) -> Wrapped:
        t = jnp.where(state.extra.is_open, state.extra.t - 1, -2)
        return Wrapped((), SearchMessage(self._search.point(state.extra.search), t))

    def _evaluate(self, state: Wrapped, message: Wrapped, oracle: Oracle, key: Array,
                  effort: Float[Array, ""]) -> tuple[Wrapped, Reply, Info]:
        """A party's reply to a later step; zeros if its reply of this round is missing."""
        reply = self._search.reply(state.extra.reply, message.extra.point)
        has_reply = state.extra.t == message.extra.t
        return state, jax.tree.map(lambda a: jnp.where(has_reply, a, jnp.zeros_like(a)), reply), {}

    def _step(self, state: Wrapped, replies: Replies, key: Array) -> tuple[Wrapped, Info]:
        search = self._search.step(state.extra.search, replies.mean())
        return Wrapped(state.inner, state.extra._replace(search=search)), {}

    def _close(self, inner: Phase, state: Wrapped, replies: Replies,
               key: Array) -> tuple[Wrapped, Info]:
        """The inner server's step with the centre, which it gets as if it were the only reply."""
        search = state.extra.search
        centre = tree.cast(self._search.centre(search), self._start(state.inner))
        weight, share = jnp.sum(replies.weight)[None], jnp.sum(replies.shares)[None]
        only = Replies(jax.tree.map(lambda leaf: leaf[None], centre), weight, jnp.zeros(1, int), weight > 0, share)
        after, _ = inner.server(state.inner, only, key)
        return (Wrapped(after, state.extra._replace(is_open=jnp.array(False))),
                {"centre_residual": self._search.residual(search)})
