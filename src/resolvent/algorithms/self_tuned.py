r"""Settings chosen during training from held-out data, without a round more: the grid is run inside one run.

Every party keeps one state per candidate and works for all of them in every round, on the same message and the same
minibatches; it replies for the candidate that the server follows, and beside that one held-out measure per candidate:

.. code-block:: text

    party k:  (state_kj, reply_kj) = candidate j's party step from the message, for all j;   g_kj = its held-out measure
              it replies reply_kj* and (g_k1, ..., g_kJ)
    server:   j*'s server step;   G_j <- decay G_j + (1 - decay) sum_k weight_k g_kj;   j* = argmax_j G_j

Candidates are compared in pairs: same party, same data, same centre, whole histories, so that what a candidate does
slowly counts too. What is not seen is how the centre itself would have been under another candidate. A party that has
no held-out samples has no say. Rounds, the scarce thing in a federation, are not multiplied; local work is.
"""

from dataclasses import replace
from typing import Any, ClassVar, Literal, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from resolvent.algorithms.algorithm import Algorithm, Info, Message, PartyState, Phase, Replies
from resolvent.algorithms.combinator import Combinator, InnerMessage, InnerParty, InnerServer, Memory
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle

__all__ = ["Measure", "SelfTuned", "held_out_gain"]

Measure: TypeAlias = Literal["loss", "score"]
_WORST = 1e6  # what a measure that is no number counts as: finite, so that it can be averaged


def held_out_gain(oracle: Oracle, w: Vector, by: Measure) -> Float[Array, ""]:
    """The held-out measure of a model, larger being better: minus the loss, or the score; nan without samples."""
    loss, score = oracle.held_out(w)
    return score if by == "score" else -loss


class SelfTunedState(Memory):
    """The inner server's state, the running measure of each candidate [J] and which one is followed."""

    measure: Float[Array, " J"]
    followed: Int[Array, ""]


class SelfTuned(Combinator):
    """Several settings of one algorithm tried beside each other; the one best on held-out data is followed.

    Attributes:
        inner: the first candidate, which is followed until there are measures: an algorithm of one phase.
        others: the same algorithm with other settings; what they send must not depend on the settings.
        decay: how much of the running measure is kept from round to round, in [0, 1).
        by: the measure: held-out ``score`` or ``loss``.

    Raises:
        TypeError: the candidates are not one algorithm with other numbers, or it has several phases.
    """

    others: tuple[Algorithm, ...]
    decay: ArrayLike = 0.9
    by: Measure = eqx.field(static=True, default="score")
    remembers: ClassVar[bool] = True
    replies_models: ClassVar[bool] = False
    needs_held_out: ClassVar[bool] = True

    def __check_init__(self) -> None:
        same: Any = jax.tree.structure(self.inner)
        if len(self.inner.phases) != 1 or any(same != jax.tree.structure(other) for other in self.others):
            raise TypeError("SelfTuned needs candidates that are one algorithm of one phase with other numbers, got "
                            f"{', '.join(type(a).__name__ for a in (self.inner, *self.others))}: build all by one "
                            "preset, and let only numbers differ")
        if isinstance(self.decay, int | float) and not 0 <= self.decay < 1:
            raise ValueError(f"SelfTuned(decay={self.decay}) must lie in [0, 1)")
        if self.by not in ("loss", "score"):
            raise ValueError(f"SelfTuned(by={self.by!r}) is not known: use 'score' or 'loss'")

    @property
    def _candidates(self) -> Algorithm:
        """All candidates as one: every number is [J]."""
        stacked: Algorithm = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(x) for x in leaves]), self.inner,
                                          *self.others)
        return stacked

    def _followed(self, state: SelfTunedState) -> Algorithm:
        chosen: Algorithm = tree.rows(self._candidates, state.followed)
        return chosen

    def init(self, w0: Vector, weights: Float[Array, " N"]) -> SelfTunedState:
        """No measures yet: the first candidate is followed."""
        measure = jnp.zeros(1 + len(self.others), tree.dtype(w0))
        return SelfTunedState(self.inner.init(w0, weights), measure, jnp.array(0))

    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> PartyState:
        """A state per candidate: leaves [J, ...]."""
        return jax.lax.map(lambda a: a.init_party(w0, oracle, key), self._candidates)

    def message(self, inner: InnerMessage, state: SelfTunedState, k: Int[Array, ""]) -> Message:
        """The inner message, and which candidate is followed."""
        return _only(self._followed(state)).message(state.inner, k), state.followed

    def party(self, inner: InnerParty, state: PartyState, message: Message, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[PartyState, tuple[Any, Array, Array], Info]:
        """Work for every candidate; reply for the one that is followed."""
        received, followed = message

        def of_candidate(given: tuple[Algorithm, PartyState]) -> tuple[PartyState, Any, Info, Array]:
            algorithm, own = given
            own, reply, info = _only(algorithm).party(own, received, oracle, key, effort)
            return own, reply, info, held_out_gain(oracle, algorithm.deploy(own, received, oracle), self.by)

        state, replied, infos, gains = jax.lax.map(of_candidate, (self._candidates, state))
        has_say = ~jnp.all(jnp.isnan(gains))
        gains = jnp.nan_to_num(gains, nan=-_WORST, neginf=-_WORST, posinf=-_WORST)
        reply, info = tree.rows((replied, infos), followed)
        return state, (reply, gains, has_say.astype(gains.dtype)), info

    def server(self, inner: InnerServer, state: SelfTunedState, replies: Replies,
               key: Array) -> tuple[SelfTunedState, Info]:
        """Follow the best so far."""
        payload, gains, has_say = replies.payload
        after, info = _only(self._followed(state)).server(state.inner, replace(replies, payload=payload), key)
        votes = replies.weight * has_say
        total = jnp.sum(votes)
        mean = votes @ gains / jnp.where(total > 0, total, 1)
        measure = jnp.where(total > 0, self.decay * state.measure + (1 - self.decay) * mean, state.measure)
        measure = measure.astype(state.measure.dtype)
        return SelfTunedState(after, measure, jnp.argmax(measure)), {**info, "followed": state.followed}

    def deploy(self, state: PartyState, message: Message, oracle: Oracle) -> Vector:
        """What the followed candidate deploys."""
        received, followed = message
        chosen: Algorithm = tree.rows(self._candidates, followed)
        return chosen.deploy(tree.rows(state, followed), received, oracle)


def _only(algorithm: Algorithm) -> Phase:
    (phase,) = algorithm.phases
    return phase


