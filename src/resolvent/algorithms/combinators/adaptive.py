"""Settings that adapt during a run: FedProx's mu, Fed+'s delta, and parties of Fed+ that abstain."""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int
from typing_extensions import override

from resolvent.algorithms.aggregators.aggregator import MoreauCentre, median_threshold
from resolvent.algorithms.algorithm import (
    Algorithm,
    Info,
    Iterate,
    Message,
    PartyState,
    Replies,
    Reply,
    ServerState,
)
from resolvent.algorithms.combinators.combinator import (
    Combinator,
    CombinatorState,
    InnerMessage,
    InnerParty,
    InnerServer,
    iterate_within,
)
from resolvent.algorithms.methods.aggregation import ModelAggregation
from resolvent.algorithms.methods.fedplus import AnchorMessage, FedPlus, ProxAnchor
from resolvent.algorithms.methods.personal_splitting import PersonalSplitting
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle

__all__ = ["Abstention", "AbstentionState", "AdaptiveMu", "AdaptiveMuState", "MuMessage", "MuReply", "MuRule",
           "RelativeDelta", "RelativeDeltaMessage"]


class MuRule(eqx.Module):
    """The proximal weight and the state of its rule."""

    mu: Float[Array, ""]
    loss: Float[Array, ""]  # the last loss; infinite before the first
    streak: Int[Array, ""]  # number of consecutive decreases since the last change of mu

    def update(self, loss: Float[Array, ""], step: ArrayLike, patience: ArrayLike) -> "MuRule":
        """The rule after the next loss; a loss that is not a number counts as an increase."""
        is_first = jnp.isinf(self.loss)
        grew = ~is_first & ~(loss <= self.loss)
        streak = jnp.where(~is_first & (loss < self.loss), self.streak + 1, 0)
        enough = streak >= patience
        change = jnp.where(grew, step, jnp.where(enough, -jnp.asarray(step), 0))
        return MuRule(jnp.maximum(self.mu + change, 0).astype(self.mu.dtype),
                      jnp.where(jnp.isnan(loss), self.loss, loss).astype(self.loss.dtype),
                      jnp.where(enough, 0, streak))


class AdaptiveMuState(NamedTuple):
    """The combinator's part of the server state."""

    rule: MuRule
    last: tuple[Vector, ...]  # the last round's model if losses are paired, else ()


class MuMessage(NamedTuple):
    """The message to a party."""

    model: Vector  # the shared model
    mu: Float[Array, ""]  # the proximal weight
    last: tuple[Vector, ...]  # the last round's model if losses are paired, else ()


class MuReply(NamedTuple):
    """A party's reply."""

    model: Vector  # w_k
    # f_k at the shared model and, if losses are paired, at the last round's model; or |w_k - w~|^2, if mu follows the
    # dissimilarity
    numbers: tuple[Float[Array, ""], ...]


class AdaptiveMu(Combinator):
    """Model aggregation whose mu the server adapts; the inner algorithm's mu is the first value.

    .. code-block:: text

        party:   w_k = argmin f_k(w) + mu/2 |w - w~|^2;   it replies w_k and f_k(w~)
        server:  F = sum_k weight_k f_k(w~);   mu <- mu + step                if F has grown
                                               mu <- max(mu - step, 0)        after ``patience`` consecutive decreases

    The loss of the model sent in round t arrives with the replies of round t, so mu follows it one round later than
    with a separate exchange for the loss. A party sends one number in addition to the model. With cohorts drawn in each
    round, F is of different parties in every round and fluctuates if they are heterogeneous, which raises mu.
    ``paired`` instead compares f_k at this round's and at the last round's model in the same parties, and sends one
    more model to them.

    With ``per_dissimilarity`` mu follows the measured dissimilarity instead, as the theory has it (mu = 6 L B^2 after
    Theorem 4), but is 0 where the parties' updates agree:

    .. code-block:: text

        B^2 = sum_k weight_k |w_k - w~|^2 / |sum_k weight_k w_k - w~|^2;   mu <- per_dissimilarity * (B^2 - 1)

    For one gradient step this is the paper's B of the cohort. It sends no second model, and reads no loss.

    Source: FedProx (Li et al.), section 5.3.2, Figure 3 and appendix C.3.3; Definition 3 and Theorem 4.

    Attributes:
        inner: a ``ModelAggregation``: fedprox, with any aggregator.
        step: change of mu, at least 0.
        patience: number of consecutive decreases after which mu falls, at least 1.
        paired: compare the losses of this and the last round's model in the same parties.
        per_dissimilarity: mu divided by B^2 - 1; None: mu follows the loss.

    Raises:
        InputError: the inner algorithm has no proximal weight.

    Example:
        >>> algorithm = rv.combinators.AdaptiveMu(rv.fedprox(rv.SGD(0.1), mu=1.0), step=0.1, patience=5)
    """

    inner: ModelAggregation
    step: Annotated[ArrayLike, "[0, inf)"] = 0.1
    patience: Annotated[ArrayLike, "[1, inf)"] = 5
    paired: bool = eqx.field(static=True, default=False)
    per_dissimilarity: Annotated[ArrayLike | None, "[0, inf)"] = None
    replies_models: ClassVar[bool] = False

    def __check_init__(self) -> None:
        if self.per_dissimilarity is not None and self.paired:
            raise InputError("AdaptiveMu(paired=True, per_dissimilarity=...): the dissimilarity needs no losses: leave "
                             "one of the two out")

    @override
    def init_extra(self, inner: ServerState, w0: Vector, shares: Float[Array, " N"]) -> AdaptiveMuState:
        dtype = tree.dtype(w0)
        rule = MuRule(jnp.asarray(self.inner.mu, dtype), jnp.array(jnp.inf, dtype), jnp.array(0))
        return AdaptiveMuState(rule, (w0,) if self.paired else ())

    @override
    def message(self, inner: InnerMessage, state: CombinatorState, k: Int[Array, ""], phase: int) -> MuMessage:
        return MuMessage(inner(state.inner, k), state.extra.rule.mu, state.extra.last)

    @override
    def party(self, inner: InnerParty, state: PartyState, message: MuMessage, oracle: Oracle, key: Array,
              effort: Float[Array, ""], phase: int) -> tuple[PartyState, MuReply, Info]:
        with_mu = replace(self.inner, mu=message.mu)
        state, w, info = with_mu.party(state, message.model, oracle, key, effort)
        if self.per_dissimilarity is not None:
            return state, MuReply(w, (tree.norm(tree.sub(w, message.model)) ** 2,)), info
        return state, MuReply(w, tuple(oracle.value(v) for v in (message.model, *message.last))), info

    @override
    def server(self, inner: InnerServer, state: CombinatorState, replies: Replies, key: Array,
               phase: int) -> tuple[CombinatorState, Info]:
        after, info = inner(state.inner, replace(replies, payload=replies.payload.model), key)
        first, *paired = map(replies.mean, replies.payload.numbers)
        rule, _ = state.extra
        if self.per_dissimilarity is not None:
            mean = replies.mean(replies.payload.model)
            squared = tree.norm(tree.sub(mean, self.inner.server_model(state.inner))) ** 2
            b = jnp.sqrt(jnp.where(squared > 0, jnp.maximum(first / squared, 1), 1))  # rounding can make it below 1
            mu = (self.per_dissimilarity * (b**2 - 1)).astype(rule.mu.dtype)
            return (CombinatorState(after, AdaptiveMuState(replace(rule, mu=mu), ())),
                    {**info, "mu": rule.mu, "dissimilarity": b})
        for last_loss in paired:
            rule = replace(rule, loss=jnp.where(jnp.isinf(rule.loss), rule.loss, last_loss))
        rule = rule.update(first, self.step, self.patience)
        last = (self.inner.server_model(state.inner),) if self.paired else ()
        info = {**info, "mu": state.extra.rule.mu, "training_loss": first}
        return CombinatorState(after, AdaptiveMuState(rule, last)), info

    @override
    def personal_model(self, state: PartyState, message: MuMessage, oracle: Oracle) -> Vector:
        return self.inner.personal_model(state, message.model, oracle)


class RelativeDeltaMessage(NamedTuple):
    """The message to a party."""

    message: Message  # the inner algorithm's message
    delta: Float[Array, ""]  # the smoothing


class RelativeDelta(Combinator):
    """Fed+ or personal splitting, in which delta is a multiple of the parties' median distance from the centre.

    .. code-block:: text

        distance_k(w) = the smallest t for which prox_{t phi}(w_k - w) is zero: |w_k - w| for phi = |theta|
        server:  w~ <- the Moreau centre with delta = multiple * median_k distance_k(w~)
                 delta <- multiple * median_k distance_k(w~)                     from the new centre
        party:   the inner algorithm's work with this delta

    The median is weighted like the aggregate, so that parties with less than half of the weight cannot move it far. If
    all parameters are multiplied by a number, delta is multiplied by it too.

    The server stores delta and sends it with the centre; nothing else is sent. In the first round, in which all models
    are equal, it is zero.

    Attributes:
        inner: a ``FedPlus`` or ``PersonalSplitting`` with the anchor and the centre of one norm, or of norms of layers;
            its delta is the multiple. With 1, half of the parties are pulled to the centre completely.

    Raises:
        InputError: the inner algorithm has no such anchor and centre.

    Example:
        >>> multiple = rv.fedgeomed_plus(rv.SGD(0.1), sigma=0.5, delta=2.0)
        >>> algorithm = rv.combinators.RelativeDelta(multiple)  # 2 median distances
    """

    inner: FedPlus | PersonalSplitting

    def __check_init__(self) -> None:
        inner = self.inner
        if not (isinstance(inner.anchor, ProxAnchor) and isinstance(inner.aggregator, MoreauCentre)
                and inner.anchor.penalty.has_bounded_pull):
            raise InputError(f"RelativeDelta needs Fed+ or personal splitting with a norm as its penalty, got "
                             f"{type(inner).__name__}: use fedgeomed_plus(...) or fedcomed_plus(...) with a delta, and "
                             "put other combinators around")

    @override
    def init_extra(self, inner: ServerState, w0: Vector, shares: Float[Array, " N"]) -> Float[Array, ""]:
        return jnp.zeros((), tree.dtype(w0))

    @override
    def message(self, inner: InnerMessage, state: CombinatorState, k: Int[Array, ""],
                phase: int) -> RelativeDeltaMessage:
        return RelativeDeltaMessage(inner(state.inner, k), state.extra)

    @override
    def party(self, inner: InnerParty, state: PartyState, message: RelativeDeltaMessage, oracle: Oracle, key: Array,
              effort: Float[Array, ""], phase: int) -> tuple[PartyState, Reply, Info]:
        delta = jnp.maximum(message.delta, jnp.finfo(message.delta.dtype).tiny)  # type: ignore[no-untyped-call]
        return self._with(delta).phases[phase].party(state, message.message, oracle, key, effort)

    @override
    def server(self, inner: InnerServer, state: CombinatorState, replies: Replies, key: Array,
               phase: int) -> tuple[CombinatorState, Info]:
        delta = self._delta(replies, state.inner)
        after, info = self._with(delta).phases[phase].server(state.inner, replies, key)
        delta = self._delta(replies, after).astype(state.extra.dtype)
        return CombinatorState(after, delta), {**info, "delta": delta}

    @override
    def personal_model(self, state: PartyState, message: RelativeDeltaMessage, oracle: Oracle) -> Vector:
        return self.inner.personal_model(state, message.message, oracle)

    @property
    @override
    def iterate(self) -> Iterate | None:
        return _iterate(self, self.inner.iterate, lambda model, point: point)

    def _delta(self, replies: Replies, centre: Vector) -> Float[Array, ""]:
        """The multiple of the median distance of the replies from a centre."""
        anchor = self.inner.anchor
        assert isinstance(anchor, ProxAnchor)
        return median_threshold(anchor.penalty, replies, centre, anchor.delta)

    def _with(self, delta: Float[Array, ""]) -> Algorithm:
        """The inner algorithm with this delta; that of an anchor must be positive."""
        algorithm: Algorithm = eqx.tree_at(lambda a: (a.anchor.delta, a.aggregator.delta), self.inner, (delta, delta))
        return algorithm


class AbstentionState(NamedTuple):
    """A party's state."""

    inner: Vector  # w_k, the state of Fed+
    first_loss: Float[Array, ""]  # f_k(w0)


class Abstention(Combinator):
    """A party trains alone, and does not move the centre, in rounds whose centre is worse for it than the first model.

    .. code-block:: text

        party:   f_k(w~) <= f_k(w0):   the inner algorithm's work; it replies w_k
                 otherwise:            the same work with its own model as the centre; it replies w~

    A party with inverted images, for example, is never pulled to a centre that fits the other parties, and its own
    model, which is far away, does not pull the centre: a reply w~ is a vote for no change. The comparison does not
    depend on the scale of the parameters or of the loss. A loss that is not a number counts as worse. A party evaluates
    its loss once a round, and stores one number. The rule is this library's own.

    Attributes:
        inner: Fed+, or ``RelativeDelta`` around it.

    Raises:
        InputError: the inner algorithm is not Fed+, or its solver adds noise: the comparison would not be private.

    Example:
        >>> algorithm = rv.combinators.Abstention(rv.fedavg_plus(rv.SGD(0.1), sigma=0.5))
    """

    inner: FedPlus | RelativeDelta

    def __check_init__(self) -> None:
        method = self.inner.inner if isinstance(self.inner, RelativeDelta) else self.inner
        if not isinstance(method, FedPlus):
            raise InputError(f"Abstention needs Fed+, got {type(method).__name__}: use fedplus(...) with a sigma, and "
                             "put other combinators around")
        if method.solver.adds_noise:
            raise InputError(f"Abstention compares losses on the samples that {type(method.solver).__name__} protects: "
                             "use Fed+ without it, or another solver")

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> AbstentionState:
        return AbstentionState(self.inner.init_party(w0, oracle, key), oracle.value(w0))

    @override
    def party(self, inner: InnerParty, state: AbstentionState, message: Message, oracle: Oracle, key: Array,
              effort: Float[Array, ""], phase: int) -> tuple[AbstentionState, Reply, Info]:
        centre = _centre(message)
        takes_part = oracle.value(centre) <= state.first_loss
        message = _with_centre(message, tree.where(takes_part, centre, state.inner))
        model, reply, info = inner(state.inner, message, oracle, key, effort)
        return AbstentionState(model, state.first_loss), tree.where(takes_part, reply, centre), info

    @override
    def personal_model(self, state: AbstentionState, message: Message, oracle: Oracle) -> Vector:
        return self.inner.personal_model(state.inner, message, oracle)

    @property
    @override
    def iterate(self) -> Iterate | None:
        iterate = _iterate(self, self.inner.iterate,
                           lambda state, point: state._replace(inner=point))
        if iterate is None or iterate.party is None:
            return iterate
        read = iterate.party.read
        return iterate._replace(party=iterate.party._replace(read=lambda state, message: read(state.inner, message)))


def _centre(message: RelativeDeltaMessage | AnchorMessage) -> Vector:
    """w~ in the message to a party."""
    return _centre(message.message) if isinstance(message, RelativeDeltaMessage) else message.centre


def _with_centre(message: Any, centre: Vector) -> Any:
    if isinstance(message, RelativeDeltaMessage):
        return message._replace(message=_with_centre(message.message, centre))
    return message._replace(centre=centre)


def _iterate(algorithm: Algorithm, inner: Iterate | None,
             with_model: Callable[[PartyState, Vector], PartyState]) -> Iterate | None:
    """The iterate of a combinator around Fed+, whose parties work from another model in their state."""
    own = iterate_within(inner)
    if own is None or inner is None or inner.party is None:  # personal splitting stores more than a party's part
        return own
    closing_message = inner.party.closing_message
    return own._replace(party=inner.party._replace(
        work=lambda point, state, *inputs: algorithm.phases[0].party(with_model(state, point), *inputs),
        closing_message=lambda state: closing_message(state.inner)))
