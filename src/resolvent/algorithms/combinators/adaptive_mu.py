r"""FedProx with a proximal weight that follows the training loss.

.. code-block:: text

    party:   w_k = argmin f_k(w) + mu/2 |w - w~|^2;   it replies w_k and f_k(w~)
    server:  F = sum_k weight_k f_k(w~);   mu <- mu + step                where F has grown
                                           mu <- max(mu - step, 0)        after ``patience`` decreases in a row

The loss of the model sent in round t arrives with the replies of round t, so mu follows it one round later than if the
server spent another exchange on asking; nothing but one number a party travels beside the model. With cohorts drawn
anew, F is of other parties in every round and jumps where they differ, which drives mu up; ``paired`` compares f_k at
this and at the last round's model in the same parties instead, for a model more on the way down.

Source: FedProx (Li et al.), section 5.3.2, Figure 3 and appendix C.3.3.
"""

from dataclasses import replace
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from resolvent.algorithms.algorithm import Info, Message, PartyState, Replies
from resolvent.algorithms.combinators.combinator import Combinator, InnerMessage, InnerParty, InnerServer, Memory
from resolvent.algorithms.methods.aggregation import ModelAggregation
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle

__all__ = ["AdaptiveMu", "MuRule"]


class MuRule(eqx.Module):
    """The proximal weight and what its rule remembers.

    Attributes:
        mu: the weight.
        loss: the last loss; infinite before the first.
        streak: decreases in a row since the last change of mu.
    """

    mu: Float[Array, ""]
    loss: Float[Array, ""]
    streak: Int[Array, ""]

    def after(self, loss: Float[Array, ""], step: ArrayLike, patience: ArrayLike) -> "MuRule":
        """The next weight, given the next loss; a loss that is not a number counts as an increase."""
        first = jnp.isinf(self.loss)
        grew = ~first & ~(loss <= self.loss)
        streak = jnp.where(~first & (loss < self.loss), self.streak + 1, 0)
        enough = streak >= patience
        move = jnp.where(grew, step, jnp.where(enough, -jnp.asarray(step), 0))
        return MuRule(jnp.maximum(self.mu + move, 0).astype(self.mu.dtype),
                      jnp.where(jnp.isnan(loss), self.loss, loss).astype(self.loss.dtype),
                      jnp.where(enough, 0, streak))


class AdaptiveMuState(Memory):
    """The inner server's state, the rule's, and where losses are paired the last round's model."""

    rule: MuRule
    last: tuple[Vector, ...]


class AdaptiveMu(Combinator):
    """ModelAggregation whose mu the server adapts; the inner algorithm's own mu is where it begins.

    Attributes:
        inner: an ``ModelAggregation``: fedprox, with any aggregator.
        step: by how much mu moves.
        patience: after so many decreases in a row mu falls.
        paired: compare the losses of this and the last round's model in the same parties.

    Raises:
        TypeError: the inner algorithm has no proximal weight.
    """

    inner: ModelAggregation
    step: ArrayLike = 0.1
    patience: ArrayLike = 5
    paired: bool = eqx.field(static=True, default=False)
    remembers: ClassVar[bool] = True
    replies_models: ClassVar[bool] = False

    def __check_init__(self) -> None:
        if not isinstance(self.inner, ModelAggregation):
            raise TypeError(f"AdaptiveMu needs an algorithm with a proximal weight, got {type(self.inner).__name__}: "
                            "use fedprox(...), and put other combinators around")
        for name, least in (("step", 0), ("patience", 1)):
            value = getattr(self, name)
            if isinstance(value, int | float) and value < least:
                raise ValueError(f"AdaptiveMu({name}={value}) must be at least {least}")

    def init(self, w0: Vector, weights: Float[Array, " N"]) -> AdaptiveMuState:
        """The first weight, and no loss yet."""
        dtype = tree.dtype(w0)
        rule = MuRule(jnp.asarray(self.inner.mu, dtype), jnp.array(jnp.inf, dtype), jnp.array(0))
        return AdaptiveMuState(self.inner.init(w0, weights), rule, (w0,) if self.paired else ())

    def message(self, inner: InnerMessage, state: AdaptiveMuState, k: Int[Array, ""]) -> Message:
        """The shared model, mu, and what it is compared with."""
        return inner(state.inner, k), state.rule.mu, state.last

    def party(self, inner: InnerParty, state: PartyState, message: Message, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[PartyState, tuple[Vector, list[Array]], Info]:
        """ModelAggregation with this mu, and the loss of each model that came."""
        shared, mu, last = message
        (phase,) = replace(self.inner, mu=mu).phases
        state, w, info = phase.party(state, shared, oracle, key, effort)
        return state, (w, [oracle.value(v) for v in (shared, *last)]), info

    def server(self, inner: InnerServer, state: AdaptiveMuState, replies: Replies,
               key: Array) -> tuple[AdaptiveMuState, Info]:
        """Aggregate the models; move mu by the losses."""
        models, losses = replies.payload
        after, info = inner(state.inner, replace(replies, payload=models), key)
        loss, *paired = map(replies.mean, losses)
        rule = state.rule
        for other in paired:
            rule = replace(rule, loss=jnp.where(jnp.isinf(rule.loss), rule.loss, other))
        rule = rule.after(loss, self.step, self.patience)
        last = (self.inner.server_model(state.inner),) if self.paired else ()
        return AdaptiveMuState(after, rule, last), {**info, "mu": state.rule.mu, "training_loss": loss}

    def personal_model(self, state: PartyState, message: Message, oracle: Oracle) -> Vector:
        """The shared model."""
        return self.inner.personal_model(state, message[0], oracle)
