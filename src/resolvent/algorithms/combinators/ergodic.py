r"""Ergodic averaging: beside the server's shared model, the average of all it has been.

.. math:: \bar w_t = \sum_{s \le t} \eta_s w_s \Big/ \sum_{s \le t} \eta_s, \qquad
          \bar w \leftarrow \bar w + \frac{\eta_t}{\sum_{s\le t} \eta_s} (w_t - \bar w)

Source: operator-splitting paper, Theorem 2: with steps eta_t that sum to infinity and whose squares do not, FedProx's
averages solve (1) for any convex parties; ``Schedule.finds_the_optimum`` says whether a schedule is one of these.
"""

from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from resolvent.algorithms.algorithm import Info, Message, PartyState, Phase, Replies, Reply
from resolvent.algorithms.combinators.combinator import (
    Combinator,
    InnerMessage,
    InnerParty,
    InnerServer,
    Memory,
    holds_iterate,
    innermost,
)
from resolvent.algorithms.methods.splitting import DecentralisedSplitting
from resolvent.algorithms.schedules import Schedule, as_schedule
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle

__all__ = ["ErgodicAveraging"]


class ErgodicAveragingState(Memory):
    """The inner server's state and the average of its shared models.

    Attributes:
        average: of the models so far.
        total: the sum of their weights.
        t: the number of the next round.
    """

    average: Vector
    total: Float[Array, ""]
    t: Int[Array, ""]


class ErgodicAveraging(Combinator):
    """Ergodic averaging: the average of all shared models so far is deployed, and the rounds go on unchanged.

    w_0 counts with weight(0), the model after round t with weight(t + 1): each with the step that it starts from. The
    average travels down beside the inner message, because a party may have missed rounds; up goes what went before.
    With weights 1/t the first models fade only as 1/log t: where the parties are strongly convex, the plain iterates
    converge too (Theorem 3) and are far closer.

    Attributes:
        inner: an algorithm with one shared model: its server holds the iterate, or it is decentralised splitting.
        weight: of round t's model: the same schedule as the inner algorithm's step, or 1 for the plain average.
    """

    weight: Schedule | float = 1.0
    remembers: ClassVar[bool] = True

    def __check_init__(self) -> None:
        if not holds_iterate(self.inner) and not isinstance(innermost(self.inner), DecentralisedSplitting):
            raise TypeError(f"ErgodicAveraging needs an algorithm with one shared model that a round maps to the next, got "
                            f"{type(innermost(self.inner)).__name__}: use fedavg(...), fedprox(...) or splitting(...)")
        if isinstance(self.weight, int | float) and not self.weight > 0:
            raise ValueError(f"ErgodicAveraging(weight={self.weight}) must be positive")

    def init(self, w0: Vector, weights: Float[Array, " N"]) -> ErgodicAveragingState:
        """The first model alone."""
        inner = self.inner.init(w0, weights)
        first = as_schedule(self.weight)(jnp.array(0))
        return ErgodicAveragingState(inner, jax.tree.map(jnp.array, w0), first, jnp.array(0))

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The inner phases; the average is sent with the first and moved in the last."""
        inner = self.inner.phases
        return tuple(Phase(partial(self._message, i == 0, phase.message), partial(self._party, i == 0, phase.party),
                           partial(self._server, phase is inner[-1], phase.server)) for i, phase in enumerate(inner))

    def _message(self, first: bool, inner: InnerMessage, state: ErgodicAveragingState, k: Int[Array, ""]) -> Message:
        message = inner(state.inner, k)
        return (message, state.average) if first else message

    def _party(self, first: bool, inner: InnerParty, state: PartyState, message: Message, oracle: Oracle, key: Array,
               effort: Float[Array, ""]) -> tuple[PartyState, Reply, Info]:
        return inner(state, message[0] if first else message, oracle, key, effort)

    def _server(self, last: bool, inner: InnerServer, state: ErgodicAveragingState, replies: Replies,
                key: Array) -> tuple[ErgodicAveragingState, Info]:
        after, info = inner(state.inner, replies, key)
        if not last:
            return ErgodicAveragingState(after, state.average, state.total, state.t), info
        weight = as_schedule(self.weight)(state.t + 1)
        total = state.total + weight
        average = tree.lerp(state.average, self.inner.server_model(after), weight / total)
        return ErgodicAveragingState(after, average, total, state.t + 1), info

    def model_message(self, state: ErgodicAveragingState, k: Int[Array, ""]) -> Message:
        """The average, beside what the inner algorithm offers."""
        return self._message(True, self.inner.model_message, state, k)

    def personal_model(self, state: PartyState, message: Message, oracle: Oracle) -> Vector:
        """The average."""
        average: Vector = message[1]
        return average

    def server_model(self, state: ErgodicAveragingState) -> Vector:
        """The average."""
        return state.average
