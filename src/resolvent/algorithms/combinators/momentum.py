"""Momentum at the parties: each sends an exponential average of its updates."""

from typing import Annotated, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, Reply
from resolvent.algorithms.combinators.combinator import Combinator, InnerParty, Wrapped, layers
from resolvent.algorithms.combinators.compressed import CompressedMessages
from resolvent.algorithms.method import update_origin
from resolvent.algorithms.round import reply_shapes
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.codecs import Codec
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle


class MomentumState(NamedTuple):
    """The combinator's part of a party's state."""

    average: Vector  # m_k
    has_worked: Bool[Array, ""]  # whether m_k has an update


class Momentum(Combinator):
    """The inner algorithm, whose parties send averages of their updates. A party stores its average.

    .. code-block:: text

        m_k <- (1 - decay) * update_k + decay * m_k        (m_k <- update_k at party k's first work)
        party k replies with m_k instead of update_k

    The averages of honest parties vary less from round to round than their updates. The server can therefore
    distinguish from noise the small errors of a malicious party, which add up over the rounds. Source: Karimireddy, He,
    Jaggi, *Learning from History for Byzantine Robust Optimization*, Algorithm 1.

    The update is the replied model minus the model that the party received. If the replies are not models, the update
    is the reply itself.

    Attributes:
        inner: an algorithm of one phase whose replies are numbers only.
        decay: weight of the old average, in [0, 1); with 0 it is the inner algorithm.

    Raises:
        InputError: the inner algorithm has several phases or encodes its replies.

    Example:
        >>> inner = rv.robust(rv.SGD(0.1, batch_size=20, epochs=1), rv.aggregators.TrimmedMean(share=0.4))
        >>> algorithm = rv.combinators.Momentum(inner, decay=0.9)
    """

    decay: Annotated[ArrayLike, "[0, 1)"] = eqx.field(kw_only=True, default=0.9)

    def __check_init__(self) -> None:
        if len(self.inner.phases) != 1:
            raise InputError(f"Momentum needs an algorithm of one phase, got {type(self.inner).__name__}: use "
                             "fedavg(...), robust(...) or dgd(...)")
        encoding = [layer for layer in layers(self.inner) if isinstance(getattr(layer, "codec", None), Codec)
                    and not isinstance(layer, CompressedMessages)]
        if encoding:
            raise InputError(f"Momentum averages replies, and those of {type(encoding[0]).__name__} are encoded: "
                             "encode the averages instead, Compressed(Momentum(...), codec)")

    @override
    def init_party_extra(self, w0: Vector, oracle: Oracle, key: Array) -> MomentumState:
        average = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), reply_shapes(self.inner, w0)[0])
        return MomentumState(average, jnp.array(False))

    @override
    def party(self, inner: InnerParty, state: Wrapped, message: Wrapped, oracle: Oracle, key: Array,
              effort: Float[Array, ""], phase: int) -> tuple[Wrapped, Reply, Info]:
        after, reply, info = inner(state.inner, message.inner, oracle, key, effort)
        origin = update_origin(self.inner, message.inner, reply, phase)
        decay = jnp.where(state.extra.has_worked, self.decay, 0)
        average = tree.lerp(tree.sub(reply, origin), state.extra.average, decay)
        return Wrapped(after, MomentumState(average, jnp.array(True))), tree.axpy(1, average, origin), info
