"""Differential privacy for parties: clipped updates and Gaussian noise on their sum."""

import math
from typing import Annotated, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int
from typing_extensions import override

from resolvent.algorithms.algorithm import Algorithm, Info, Replies, ServerState
from resolvent.algorithms.combinators.combinator import (
    Combinator,
    InnerParty,
    InnerServer,
    Wrapped,
    contains,
)
from resolvent.algorithms.keys import substep_key
from resolvent.algorithms.method import local_solvers, update_origin
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.gaussian_noise import NoisySum
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers.dpsgd import DPSGD

__all__ = ["ClippedUpdate", "PrivateParties", "is_private"]

_NOISE, _QUANTILE_NOISE = 101, 102  # numbers of the draws, different from those of inner algorithms
_MORE_PARTIES = 64  # than four times the expected number
Source = Literal["server", "parties"]


class ClippedUpdate(NamedTuple):
    """A party's reply.

    Attributes:
        update: u_k, clipped; if the parties add the noise, with noise, and as integers on a grid.
        shortness: b_k, 1/2 if the update was at most as long as ``clip``, otherwise -1/2; 0 without a quantile, and
            with noise and as an integer if the parties add it.
    """

    update: Vector
    shortness: Array


class PrivateParties(Combinator):
    """The inner algorithm with differential privacy for single parties, whose weights are equal.

    .. code-block:: text

        party:   u_k = clip(w_k - w~);   b_k = 1/2 if |w_k - w~| <= clip, otherwise -1/2
        server:  w~ <- w~ + (sum of the u_k + noise_multiplier * clip * N(0, I)) / cohort
                 with a quantile: clip <- clip * exp(-rate (s - quantile)),
                 s = 1/2 + (sum of the b_k + quantile_noise N(0, 1)) / cohort

    A party changes the sum of the u_k by at most ``clip``, and that of the b_k by 1/2. ``cohort`` is the expected
    number of parties in a round, so that the divisor does not depend on who takes part. A round without any party
    releases noise too: otherwise an unchanged model would show that no party was there.

    If the parties add the noise, each of them adds a 1/noise_parties-th of the variance, to u_k and to b_k, which are
    integers on a grid. The server adds what is missing if fewer replies count, so that the model never has less noise
    than is stated. In secure sums it is not needed: a site takes part in sums of at least ``noise_parties`` sites only,
    and the server learns nothing but such a sum. If more sites are in it, its noise is larger by their share.

    Source: McMahan, Ramage, Talwar, Zhang, *Learning Differentially Private Recurrent Language Models*, Algorithm 1;
    Andrew, Thakkar, McMahan, Ramaswamy, *Differentially Private Learning with Adaptive Clipping*, Algorithm 1.

    ``rv.privacy.party_epsilons`` computes its privacy loss. The models of the server and the personal models of all
    other parties have it, whatever a party stores: its state is computed from its own samples and from released models,
    and every release of it is bounded by ``clip``. A personal model does not protect its own party, and stays there
    (*joint differential privacy*: Kearns, Pai, Roth, Ullman, *Mechanism Design in Large Games*, 2014). For Fed+,
    u_k is the pull of Fed+ (25) for the L2 norm with delta = clip.

    In ``simulate`` and in a rehearsal the noise is simulated: it is derived from the seed, measures utility and gives
    no protection. In a real federation updates and noise are integers on a grid, and the noise is discrete Gaussian and
    comes from the operating system of the one who adds it. The server then draws the cohorts from a secret of its own,
    because a cohort that others can compute does not amplify privacy against them.

    Attributes:
        inner: an algorithm of one phase without party states, whose replies are models and whose server averages them:
            ``fedavg``, ``fedprox``, ``fedavg_plus``, ``ditto``, also with a server optimizer around this combinator.
        cohort: expected number of parties in a round, such as N times the probability of ``Bernoulli``.
        clip: largest length of an update, or its first value, positive.
        noise_multiplier: standard deviation of the noise relative to ``clip``; at least 0.
        noise: ``server``: the server, which must be trusted, adds the noise. ``parties``: each party adds its part of
            the noise, for secure sums, and the server adds the part of absent parties. All parties must then take part
            (``Full``), and ``cohort`` must be at least their number; others are not accounted for.
        noise_parties: with noise of the parties, the number of parties whose noise together has the stated variance:
            the smallest number that a secure sum can have; default: ``cohort``.
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

    cohort: Annotated[ArrayLike, "(0, inf)"] = eqx.field(kw_only=True)
    clip: Annotated[ArrayLike, "(0, inf)"] = eqx.field(kw_only=True, default=1.0)
    noise_multiplier: Annotated[ArrayLike, "[0, inf)"] = eqx.field(kw_only=True, default=1.0)
    noise: Source = eqx.field(static=True, kw_only=True, default="server")
    noise_parties: Annotated[int | None, "[1, inf)"] = eqx.field(static=True, kw_only=True, default=None)
    quantile: Annotated[ArrayLike | None, "(0, 1)"] = eqx.field(kw_only=True, default=None)
    quantile_rate: Annotated[ArrayLike, "(0, inf)"] = eqx.field(kw_only=True, default=0.2)
    quantile_noise: Annotated[ArrayLike | None, "(0, inf)"] = eqx.field(kw_only=True, default=None)
    replies_models: ClassVar[bool] = False
    steps_without_replies: ClassVar[bool] = True
    # Updates are clipped; with a median as the limit, one party could change whose replies count.
    norm_multiple: ClassVar[None] = None

    def __check_init__(self) -> None:
        if self.noise_parties is not None and self.noise != "parties":
            raise InputError("PrivateParties(noise_parties=...) is for noise='parties'")
        inner = self.inner
        if len(inner.phases) != 1 or not inner.replies_models or inner.needs_individual_replies:
            raise InputError(f"PrivateParties needs an algorithm of one phase whose replies are models and whose "
                             f"server averages them, got {type(inner).__name__}: use fedavg, fedprox or fedavg_plus")

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
    def least_parties(self) -> ArrayLike:
        """The number of parties whose noise together has the stated variance, if the parties add it."""
        return self.cohort if self.noise_parties is None else self.noise_parties

    @property
    def _count_noise(self) -> ArrayLike:
        return self.cohort / 20 if self.quantile_noise is None else self.quantile_noise

    @override
    def init_extra(self, inner: ServerState, w0: Vector, shares: Float[Array, " N"]) -> Float[Array, ""]:
        return jnp.asarray(self.clip, tree.dtype(w0))

    @override
    def message_extra(self, state: Wrapped, k: Int[Array, ""], phase: int) -> Float[Array, ""]:
        """The largest length of an update."""
        clip: Float[Array, ""] = state.extra
        return clip

    @override
    def party(self, inner: InnerParty, state: Wrapped, message: Wrapped, oracle: Oracle, key: Array,
              effort: Float[Array, ""], phase: int) -> tuple[Wrapped, ClippedUpdate, Info]:
        after, reply, info = super().party(inner, state, message, oracle, key, effort, phase)
        clip, origin = message.extra, update_origin(self.inner, message.inner, reply, phase)
        update = tree.widen(tree.sub(reply, origin))
        length = tree.norm(update)
        shortness = jnp.where(length <= clip, 0.5, -0.5).astype(length.dtype)
        if self.noise == "parties":
            share = 1 / jnp.asarray(self.least_parties, length.dtype)
            updates, counts = self._sums(clip, key)
            update = updates.noisy(updates.clip(update), substep_key(key, _NOISE), share=share)
            shortness = counts.clip(shortness)
            if self.quantile is not None:
                shortness = counts.noisy(shortness, substep_key(key, _QUANTILE_NOISE), share=share)
        else:
            # An update that is not finite counts as zero: a refused reply would show it.
            update = NoisySum(clip, self.noise_multiplier, 1, protects=False).clip(update)
        if self.quantile is None:
            shortness = jnp.zeros_like(shortness)
        return after, ClippedUpdate(update, shortness), info

    @override
    def server(self, inner: InnerServer, state: Wrapped, replies: Replies, key: Array,
               phase: int) -> tuple[Wrapped, Info]:
        clip, payload = state.extra, replies.payload
        updates, counts = self._sums(clip, key)
        total = self._noisy_total(updates, payload.update, replies, substep_key(key, _NOISE))
        model = self.inner.server_model(state.inner)
        mean = jax.tree.map(lambda w, t: (w + t / self.cohort).astype(w.dtype)[None], model, total)
        weight = jnp.ones(1, replies.weight.dtype)
        mean_reply = Replies(mean, weight, jnp.zeros(1, replies.index.dtype), jnp.ones(1, bool), weight)
        after, info = inner(state.inner, mean_reply, key)
        if self.quantile is not None:
            count = self._noisy_total(counts, payload.shortness, replies, substep_key(key, _QUANTILE_NOISE))
            clip = self._next_clip(clip, count)
        return Wrapped(after, clip), info | {"clip": state.extra}

    def _sums(self, clip: Float[Array, ""], key: Array) -> tuple[NoisySum, NoisySum]:
        """The noisy sums of the updates and of the b_k."""
        # Far more parties than expected make the sum wrap around, which is still private.
        terms = _MORE_PARTIES + 4 * jnp.asarray(self.cohort)
        of_parties = self.noise == "parties"
        return (NoisySum.for_key(key, length=clip, multiplier=self.noise_multiplier, terms=terms, integers=of_parties),
                NoisySum.for_key(key, length=0.5, multiplier=2 * jnp.asarray(self._count_noise), terms=terms,
                                 integers=of_parties))

    def _noisy_total(self, noisy: NoisySum, rows: Vector, replies: Replies, key: Array) -> Vector:
        """The sum of the replies that count, with all the noise that is stated."""
        share: ArrayLike = 1
        if self.noise == "parties":
            share = jnp.maximum(0, 1 - jnp.sum(replies.alive) / jnp.asarray(self.least_parties))
        elif noisy.protects:
            rows = jax.vmap(noisy.clip)(rows)  # whoever adds the noise bounds what one reply can change
        total = jax.tree.map(lambda leaf: jnp.sum(jnp.where(replies.column(leaf), leaf, 0), axis=0, dtype=leaf.dtype),
                             rows)
        return noisy.release(total, key, share=share)

    def _next_clip(self, clip: Float[Array, ""], count: Float[Array, ""]) -> Float[Array, ""]:
        assert self.quantile is not None
        rate = jnp.asarray(self.quantile_rate)
        return (clip * jnp.exp(-rate * (count / self.cohort + 0.5 - self.quantile))).astype(clip.dtype)


def is_private(algorithm: Algorithm) -> bool:
    """Whether an algorithm is differentially private, for the samples (``DPSGD``) or for whole parties."""
    return (any(isinstance(solver, DPSGD) for solver in local_solvers(algorithm))
            or contains(algorithm, PrivateParties))
