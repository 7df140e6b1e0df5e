"""Which replies the server aggregates: those below another limit of length, and the last ones of absent parties."""

from typing import Annotated, Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree
from typing_extensions import override

from resolvent.algorithms.aggregators.aggregator import with_limited_shares
from resolvent.algorithms.algorithm import Info, Replies, ServerState
from resolvent.algorithms.combinators.combinator import Combinator, InnerServer, Wrapped, contains
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.tree import Vector


class NormLimit(Combinator):
    """The inner algorithm, in which a reply counts if its update is at most ``multiple`` times as long as the median.

    Without this combinator the multiple is 10,000. A reply that does not count is reported with the name of its party,
    in a simulation and over a network; see ``algorithms.admission`` for the rule. ``PrivateParties`` inside has no
    bound, because it clips.

    Attributes:
        inner: any algorithm.
        multiple: the largest norm that counts, in multiples of the median norm of the round; at least 1. None: every
            reply counts that is finite.

    Example:
        >>> algorithm = rv.combinators.NormLimit(rv.fedavg(rv.SGD(0.1)), multiple=20.0)
    """

    multiple: Annotated[float | None, "[1, inf)"] = eqx.field(static=True)

    @property
    @override
    def norm_multiple(self) -> float | None:
        return None if self.inner.norm_multiple is None else self.multiple


class ShareLimit(Combinator):
    """The inner algorithm, in which no party has more than ``largest`` of the weight of a round.

    Without this combinator the limit is 0.3 for robust aggregators and none for means, see ``Aggregator.max_share``. A
    weight is the number of rows that a party says it has, which nobody can check.

    Attributes:
        inner: any algorithm.
        largest: the largest share; 1: any. A cohort of too few parties for it, such as three for 0.3, has no limit.

    Example:
        >>> algorithm = rv.combinators.ShareLimit(rv.rfa(rv.SGD(0.1)), largest=0.5)
    """

    largest: Annotated[float, "(0, 1]"] = eqx.field(static=True)

    @property
    @override
    def max_share(self) -> float:
        return self.largest


class StaleRepliesState(NamedTuple):
    """The stored replies."""

    replies: PyTree[Any]  # leaves [N, ...], every party's last reply
    shares: Float[Array, " N"]  # [N] lambda_k


class StaleReplies(Combinator):
    """The server stores every party's last model and aggregates all of them; at first, the first model.

    This is Algorithm 1 of Fed+ as printed: A(W) over all N with w_k unchanged for absent parties. The server stores N
    models, and the aggregation of a round costs N.

    Attributes:
        inner: an algorithm of one phase whose replies are models.

    Raises:
        InputError: the replies are not models, so that the first model cannot replace a missing first reply.

    Example:
        >>> algorithm = rv.combinators.StaleReplies(rv.fedavg(rv.SGD(0.1)))
    """

    needs_individual_replies: ClassVar[bool] = True

    def __check_init__(self) -> None:
        if not self.inner.replies_models or len(self.inner.phases) != 1:
            raise InputError(f"StaleReplies needs an algorithm of one phase whose replies are models, got "
                             f"{type(self.inner).__name__}: there is no reply to use for a party that has not replied "
                             "yet")
        if contains(self.inner, StaleReplies):
            raise InputError("StaleReplies got an algorithm whose server stores every reply already: use it once")

    @override
    def init_extra(self, inner: ServerState, w0: Vector, shares: Float[Array, " N"]) -> StaleRepliesState:
        return StaleRepliesState(jax.tree.map(jnp.array, tree.stack(w0, len(shares))), shares)

    @override
    def server(self, inner: InnerServer, state: Wrapped, replies: Replies, key: Array,
               phase: int) -> tuple[Wrapped, Info]:
        stored, shares = state.extra
        stored = replies.write(replies.payload, stored)
        n = len(shares)
        everyone = Replies(stored, with_limited_shares(self, shares), jnp.arange(n), jnp.ones(n, bool), shares)
        after, info = inner(state.inner, everyone, key)
        return Wrapped(after, StaleRepliesState(stored, shares)), info
