"""FedProx with a mu that the server adapts during a run."""

from dataclasses import replace
from typing import Annotated, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, Iterate, Part, PartyState, Replies
from resolvent.algorithms.method import local_work
from resolvent.algorithms.methods.aggregation import ModelAggregation
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.subproblem import Subproblem


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
    """The server's state."""

    model: Vector  # the shared model
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


class AdaptiveMu(ModelAggregation):
    """Model aggregation whose mu the server adapts; ``mu`` is the first value.

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
        step: change of mu, at least 0.
        patience: number of consecutive decreases after which mu falls, at least 1.
        paired: compare the losses of this and the last round's model in the same parties.
        per_dissimilarity: mu divided by B^2 - 1; None: mu follows the loss.

    Raises:
        InputError: ``paired`` and ``per_dissimilarity`` are both set.
    """

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
    def init(self, w0: Vector, shares: Float[Array, " N"]) -> AdaptiveMuState:
        dtype = tree.dtype(w0)
        rule = MuRule(jnp.asarray(self.mu, dtype), jnp.array(jnp.inf, dtype), jnp.array(0))
        return AdaptiveMuState(w0, rule, (w0,) if self.paired else ())

    @override
    def message(self, state: AdaptiveMuState, k: Int[Array, ""]) -> MuMessage:
        return MuMessage(state.model, state.rule.mu, state.last)

    @override
    def party(self, state: PartyState, message: MuMessage, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[PartyState, MuReply, Info]:
        w, info = local_work(self.solver, Subproblem(oracle, message.model, message.mu), message.model, key, effort)
        if self.per_dissimilarity is not None:
            return state, MuReply(w, (tree.norm(tree.sub(w, message.model)) ** 2,)), info
        return state, MuReply(w, tuple(oracle.value(v) for v in (message.model, *message.last))), info

    @override
    def server(self, state: AdaptiveMuState, replies: Replies, key: Array) -> tuple[AdaptiveMuState, Info]:
        model, info = self.aggregator(replace(replies, payload=replies.payload.model), state.model, key)
        first, *paired = map(replies.mean, replies.payload.numbers)
        rule = state.rule
        if self.per_dissimilarity is not None:
            mean = replies.mean(replies.payload.model)
            squared = tree.norm(tree.sub(mean, state.model)) ** 2
            b = jnp.sqrt(jnp.where(squared > 0, jnp.maximum(first / squared, 1), 1))  # rounding can make it below 1
            mu = jnp.asarray(self.per_dissimilarity * (b**2 - 1), rule.mu.dtype)
            return AdaptiveMuState(model, replace(rule, mu=mu), ()), {**info, "mu": rule.mu, "dissimilarity": b}
        for last_loss in paired:
            rule = replace(rule, loss=jnp.where(jnp.isinf(rule.loss), rule.loss, last_loss))
        rule = rule.update(first, self.step, self.patience)
        last = (state.model,) if self.paired else ()
        return AdaptiveMuState(model, rule, last), {**info, "mu": state.rule.mu, "training_loss": first}

    @override
    def personal_model(self, state: PartyState, message: MuMessage, oracle: Oracle) -> Vector:
        return message.model

    @override
    def server_model(self, state: AdaptiveMuState) -> Vector:
        return state.model

    @property
    @override
    def iterate(self) -> Iterate:
        return Iterate(Part(lambda state: state.model, lambda state, model: state._replace(model=model)))
