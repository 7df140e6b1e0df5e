"""Gradients from the parties, steps at the server: gradient descent, MARINA and PAGE."""

from collections.abc import Callable
from typing import Annotated, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, PartyState, Replies, Reply
from resolvent.algorithms.keys import codec_key, substep_key
from resolvent.algorithms.method import OnePhaseMethod
from resolvent.algorithms.methods.aggregation import AggregatingMethod
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.codecs import Codec, Wire, wire_bits
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers.minibatches import Shuffled


class DistributedGradient(AggregatingMethod):
    """The distributed gradient method: parties send gradients, the server steps.

    .. code-block:: text

        w~ <- w~ - gamma * A(grad f_1(w~), ..., grad f_N(w~))

    On FedMix's mixtures it is (DGD) of the poster; with compression it is DCGD without shifts and DIANA with shifts.
    EF21-SGDM is ``Compressed`` around ``Momentum`` around its stochastic gradients.

    Gradient descent whose gradients are computed at the parties, whatever their effort.

    Attributes:
        batch_size: samples of each gradient; default: all samples of the party.
    """

    learning_rate: ArrayLike
    batch_size: Annotated[int | None, "[1, inf)"] = eqx.field(static=True, default=None)
    replies_models: ClassVar[bool] = False

    @override
    def party(self, state: PartyState, shared: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[PartyState, Vector, Info]:
        unit = jnp.ones((), tree.dtype(shared))
        gradient = draw_gradient(oracle, self.batch_size, key)(shared)
        return state, gradient, {"model": shared, "steps": unit, "inexactness": unit}

    @override
    def server(self, shared: Vector, replies: Replies, key: Array) -> tuple[Vector, Info]:
        gradient, info = self.aggregator(replies, key=key)
        return tree.axpy(-jnp.asarray(self.learning_rate), gradient, shared), info


def draw_gradient(oracle: Oracle, batch_size: int | None, key: Array) -> Callable[[Vector], Vector]:
    """The gradient of f_k as a function of the point: over all samples, or over one minibatch for all points.

    The key is that of the minibatch and of random layers.
    """
    if batch_size is None:
        return oracle.grad
    positions, mask = Shuffled().draw(key, jnp.zeros(1, jnp.int32), oracle.samples, batch_size)
    of_step = oracle.at_step(key) if oracle.has_random_layers else oracle
    return lambda w: of_step.batch_grad(w, positions[0], mask[0])[0]


class RecursiveMessage(NamedTuple):
    """The message to a party."""

    model: Vector  # w~
    previous: Vector  # v~, the model of the round before
    is_full: Bool[Array, ""]  # c, whether the parties reply whole gradients in this round


class RecursiveState(NamedTuple):
    """The server's state."""

    message: RecursiveMessage  # the message of the next round
    estimate: Vector  # g


class CoinReply(NamedTuple):
    """A party's reply if there is a codec. Only one part is used in a round, and the other is zero."""

    gradient: Vector  # the gradient
    difference: Wire  # the encoded difference of two gradients


class RecursiveGradient(OnePhaseMethod):
    """Recursive gradient estimates: MARINA and PAGE.

    .. code-block:: text

        coin:    c is 1 with probability p, and 1 in the first round; the server draws it for the next round
        party:   reply grad f_k(w~) if c = 1, otherwise C(grad f_k(w~) - grad f_k(v~)), v~ the model of the round before
        server:  g <- mean of the replies if c = 1, otherwise g + mean of the replies;   w~ <- w~ - gamma g

    MARINA has a codec C, which is unbiased, and gradients over all samples; PAGE has no codec, and gradients over a
    minibatch if c = 0. Both together are VR-MARINA. Between two rounds with c = 1 the errors of g add up, but each is
    in proportion to |w~ - v~|, so that they vanish where the method converges: a party stores nothing.

    Attributes:
        p: probability of whole gradients, in (0, 1]; default: 1/(1 + omega), with omega the codec's relative variance.
        codec: C, unbiased; default: none.
        batch_size: samples of the minibatch of a round with c = 0; default: all samples.
    """

    learning_rate: ArrayLike
    p: Annotated[ArrayLike | None, "(0, 1]"] = None
    codec: Codec | None = None
    batch_size: Annotated[int | None, "[1, inf)"] = eqx.field(static=True, default=None)
    replies_models: ClassVar[bool] = False

    def __check_init__(self) -> None:
        if self.p is None and self.codec is None:
            raise InputError("RecursiveGradient needs a probability p if there is no codec: set p, such as 0.1")
        if self.codec is not None and not self.codec.unbiased:
            raise InputError(f"RecursiveGradient needs an unbiased codec, got {type(self.codec).__name__}: use RandK, "
                             "QSGD or NaturalCompression; or for TopK Compressed(...), which is EF21")

    @property
    @override
    def needs_individual_replies(self) -> bool:
        return self.codec is not None

    @override
    def init(self, w0: Vector, shares: Float[Array, " N"]) -> RecursiveState:
        return RecursiveState(RecursiveMessage(w0, w0, jnp.array(True)), jax.tree.map(jnp.zeros_like, w0))

    @override
    def message(self, state: RecursiveState, k: Int[Array, ""]) -> RecursiveMessage:
        return state.message

    @override
    def party(self, state: PartyState, message: RecursiveMessage, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[PartyState, Reply, Info]:
        gradient = draw_gradient(oracle, self.batch_size, key)

        def difference() -> Vector:
            return tree.sub(gradient(message.model), gradient(message.previous))

        answer = jax.lax.cond(message.is_full, lambda: oracle.grad(message.model), difference)
        unit = jnp.ones((), tree.dtype(message.model))
        info = {"model": message.model, "steps": unit, "inexactness": unit}
        if self.codec is None:
            return state, answer, info
        wire = self.codec.encode(_if(~message.is_full, answer), codec_key(key))
        return state, CoinReply(_if(message.is_full, answer), wire), info

    @override
    def server(self, state: RecursiveState, replies: Replies, key: Array) -> tuple[RecursiveState, Info]:
        model, _, is_full = state.message
        info: Info = {}
        if self.codec is None:
            mean = replies.mean()
        else:
            payload: CoinReply = replies.payload
            decoded = jax.vmap(self.codec.decode)(payload.difference)
            mean = tree.axpy(1, replies.mean(decoded), replies.mean(payload.gradient))
            bits = jnp.where(is_full, wire_bits(model), self.codec.bits(model))
            info["reply_bits"] = bits.astype(tree.dtype(model))
        estimate = tree.axpy(1, mean, _if(~is_full, state.estimate))
        after = tree.axpy(-jnp.asarray(self.learning_rate), estimate, model)
        # In float32, so that the same coins are drawn in both precisions.
        coin = jax.random.bernoulli(substep_key(key, 0), jnp.asarray(self._probability(model), jnp.float32))
        return RecursiveState(RecursiveMessage(after, model, coin), estimate), info

    def _probability(self, model: Vector) -> ArrayLike:
        if self.p is not None:
            return self.p
        assert self.codec is not None  # checked when the method was built
        return self.codec.step(sum(leaf.size for leaf in jax.tree.leaves(model)))

    @override
    def personal_model(self, state: PartyState, message: RecursiveMessage, oracle: Oracle) -> Vector:
        return message.model

    @override
    def server_model(self, state: RecursiveState) -> Vector:
        return state.message.model


def _if(condition: Bool[Array, ""], x: Vector) -> Vector:
    """The vector if the condition holds, otherwise zero."""
    return jax.tree.map(lambda leaf: jnp.where(condition, leaf, 0), x)
