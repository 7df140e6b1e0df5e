r"""Differential privacy for parties: clipped updates and Gaussian noise on their sum.

.. code-block:: text

    party:   u_k = clip(w_k - w~);   b_k = 1 if |w_k - w~| <= clip, otherwise 0
    server:  w~ <- w~ + (sum of the u_k + noise_multiplier * clip * N(0, I)) / cohort
             with a quantile: clip <- clip * exp(-rate (s - quantile)),
             s = 1/2 + (sum of the (b_k - 1/2) + quantile_noise N(0, 1)) / cohort

A party changes the sum by at most ``clip``. ``cohort`` is the expected number of parties in a round, so that the
divisor does not depend on who takes part.

Source: McMahan, Ramage, Talwar, Zhang, *Learning Differentially Private Recurrent Language Models*, Algorithm 1;
Andrew, Thakkar, McMahan, Ramaswamy, *Differentially Private Learning with Adaptive Clipping*, Algorithm 1.
"""

import math
from typing import ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, Message, PartyState, Replies, ServerState
from resolvent.algorithms.combinators.combinator import (
    Combinator,
    CombinatorState,
    InnerMessage,
    InnerParty,
    InnerServer,
)
from resolvent.algorithms.combinators.updates import update_origin
from resolvent.algorithms.keys import substep_key
from resolvent.errors import InputError, check_range
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle

__all__ = ["ClippedMessage", "ClippedUpdate", "PrivateParties"]

_NOISE, _QUANTILE_NOISE = 101, 102  # numbers of the draws, different from those of inner algorithms
Source = Literal["server", "parties"]


class ClippedMessage(NamedTuple):
    """The message to a party.

    Attributes:
        message: the inner algorithm's message.
        clip: the largest length of an update.
    """

    message: Message
    clip: Float[Array, ""]


class ClippedUpdate(NamedTuple):
    """A party's reply.

    Attributes:
        update: u_k, clipped; with noise if the parties add it.
        is_short: b_k, 1 if the update was at most as long as ``clip``, otherwise 0.
    """

    update: Vector
    is_short: Float[Array, ""]


class PrivateParties(Combinator):
    """The inner algorithm with differential privacy for single parties, whose weights are equal.

    ``rv.privacy.party_epsilon`` computes its privacy loss.

    Attributes:
        inner: an algorithm of one phase without party states, whose replies are models and whose server averages them:
            ``fedavg``, ``fedprox``, also with a server optimizer around this combinator.
        cohort: expected number of parties in a round, such as N times the probability of ``Bernoulli``.
        clip: largest length of an update, or its first value, positive.
        noise_multiplier: standard deviation of the noise relative to ``clip``; at least 0.
        noise: ``server``: the server, which must be trusted, adds the noise. ``parties``: each party adds its part of
            the noise, for secure sums; absent parties add none, so the stated privacy needs at least ``cohort``
            parties.
        quantile: the share of updates that should be shorter than ``clip``, which adapts to it; default: ``clip`` is
            constant.
        quantile_rate: learning rate of the logarithm of ``clip``.
        quantile_noise: standard deviation of the noise on the number of short updates; default: cohort/20.

    Raises:
        InputError: a number is outside its range, or the inner algorithm is of another kind.

    Example:
        >>> inner = rv.fedavg(rv.SGD(0.1))
        >>> algorithm = rv.combinators.PrivateParties(inner, cohort=10.0, clip=0.5, noise_multiplier=1.0)
    """

    cohort: ArrayLike = eqx.field(kw_only=True)
    clip: ArrayLike = eqx.field(kw_only=True, default=1.0)
    noise_multiplier: ArrayLike = eqx.field(kw_only=True, default=1.0)
    noise: Source = eqx.field(static=True, kw_only=True, default="server")
    quantile: ArrayLike | None = eqx.field(kw_only=True, default=None)
    quantile_rate: ArrayLike = eqx.field(kw_only=True, default=0.2)
    quantile_noise: ArrayLike | None = eqx.field(kw_only=True, default=None)
    replies_models: ClassVar[bool] = False

    def __check_init__(self) -> None:
        check_range(self, "(0, inf)", cohort=self.cohort, clip=self.clip, quantile_rate=self.quantile_rate,
                    quantile_noise=self.quantile_noise)
        check_range(self, "[0, inf)", noise_multiplier=self.noise_multiplier)
        check_range(self, "(0, 1)", quantile=self.quantile)
        if self.noise not in ("server", "parties"):
            raise InputError(f"PrivateParties(noise={self.noise!r}) is not known: use 'server' or 'parties'")
        inner = self.inner
        if len(inner.phases) != 1 or not inner.replies_models or inner.needs_individual_replies:
            raise InputError(f"PrivateParties needs an algorithm of one phase whose replies are models and whose "
                             f"server averages them, got {type(inner).__name__}: use fedavg or fedprox")

    @property
    def effective_multiplier(self) -> float:
        """The noise multiplier z of one Gaussian release with the privacy loss of a whole round.

        With a quantile, a round releases the sum of the updates and the number of short updates. Two Gaussian releases
        with multipliers z_1 and z_2 have the privacy loss of one with z = (z_1^-2 + z_2^-2)^(-1/2). The number of short
        updates is released after subtracting 1/2 from each b_k, so that its sensitivity is 1/2. Source: Andrew et al.,
        Theorem 1.
        """
        z = float(self.noise_multiplier)  # type: ignore[arg-type]
        if self.quantile is None or z == 0:
            return z
        of_count = 2 * float(self._count_noise)  # type: ignore[arg-type]
        return 1 / math.sqrt(z**-2 + of_count**-2)

    @property
    def _count_noise(self) -> ArrayLike:
        return self.cohort / 20 if self.quantile_noise is None else self.quantile_noise

    @override
    def init_extra(self, inner: ServerState, w0: Vector, shares: Float[Array, " N"]) -> Float[Array, ""]:
        return jnp.asarray(self.clip, tree.dtype(w0))

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> PartyState:
        state = self.inner.init_party(w0, oracle, key)
        if jax.tree.leaves(state):
            raise InputError(f"PrivateParties needs parties without states, but those of {type(self.inner).__name__} "
                             "have them: use fedavg or fedprox")
        return state

    @override
    def message(self, inner: InnerMessage, state: CombinatorState, k: Int[Array, ""], phase: int) -> ClippedMessage:
        return ClippedMessage(inner(state.inner, k), state.extra)

    @override
    def party(self, inner: InnerParty, state: PartyState, message: ClippedMessage, oracle: Oracle, key: Array,
              effort: Float[Array, ""], phase: int) -> tuple[PartyState, ClippedUpdate, Info]:
        after, reply, info = inner(state, message.message, oracle, key, effort)
        origin = update_origin(self.inner, message.message, reply, phase)
        update = tree.widen(tree.sub(reply, origin))
        length = tree.norm(update)
        factor = jnp.minimum(1, message.clip / jnp.where(length > 0, length, 1))
        update = jax.tree.map(lambda leaf: factor * leaf, update)
        if self.noise == "parties":
            scale = self.noise_multiplier * message.clip / jnp.sqrt(jnp.asarray(self.cohort, message.clip.dtype))
            update = _add_noise(update, scale, substep_key(key, _NOISE))
        return after, ClippedUpdate(update, (length <= message.clip).astype(length.dtype)), info

    @override
    def server(self, inner: InnerServer, state: CombinatorState, replies: Replies, key: Array,
               phase: int) -> tuple[CombinatorState, Info]:
        clip = state.extra
        total = jax.tree.map(lambda rows: jnp.sum(jnp.where(replies.column(rows), rows, 0), axis=0),
                             replies.payload.update)
        if self.noise == "server":
            total = _add_noise(total, self.noise_multiplier * clip, substep_key(key, _NOISE))
        model = self.inner.server_model(state.inner)
        mean = jax.tree.map(lambda w, t: (w + t / self.cohort).astype(w.dtype)[None], model, total)
        weight = jnp.ones(1, replies.weight.dtype)
        mean_reply = Replies(mean, weight, jnp.zeros(1, replies.index.dtype), jnp.ones(1, bool), weight)
        after, info = inner(state.inner, mean_reply, key)
        return CombinatorState(after, self._next_clip(clip, replies, key)), info | {"clip": clip}

    def _next_clip(self, clip: Float[Array, ""], replies: Replies, key: Array) -> Float[Array, ""]:
        if self.quantile is None:
            return clip
        short = jnp.sum(jnp.where(replies.alive, replies.payload.is_short, 0))
        noise = self._count_noise * jax.random.normal(substep_key(key, _QUANTILE_NOISE), (), clip.dtype)
        # The sum of b_k - 1/2, because a party changes it only by 1/2, and the sum of b_k by 1.
        share = (short - jnp.sum(replies.alive) / 2 + noise) / self.cohort + 0.5
        rate = jnp.asarray(self.quantile_rate)
        return (clip * jnp.exp(-rate * (share - self.quantile))).astype(clip.dtype)

    @override
    def personal_model(self, state: PartyState, message: ClippedMessage, oracle: Oracle) -> Vector:
        return self.inner.personal_model(state, message.message, oracle)


def _add_noise(x: Vector, scale: ArrayLike, key: Array) -> Vector:
    leaves, structure = jax.tree.flatten(x)
    return jax.tree.unflatten(structure, [
        leaf + scale * jax.random.normal(jax.random.fold_in(key, i), leaf.shape, leaf.dtype)
        for i, leaf in enumerate(leaves)])
