"""Sharpness-aware local work: the gradient of f_k is taken at the worst point nearby."""

import equinox as eqx
from jaxtyping import Array, Float
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, Message, PartyState, Reply
from resolvent.algorithms.combinators.combinator import Combinator, InnerParty
from resolvent.math.tree import Vector
from resolvent.problem.maps import Ascent, through
from resolvent.problem.oracle import Oracle

__all__ = ["SharpnessAware"]


class SharpnessAware(Combinator):
    """The inner algorithm with sharpness-aware gradients of f_k; models are evaluated without the ascent step.

    .. code-block:: text

        every local gradient is grad f_k(w + rho grad f_k(w)/|grad f_k(w)|), both on the same minibatch

    With FedAvg inside this is FedSAM, with ``PrimalDual`` FedSpeed.

    Source: Qu, Li, Duan, Liu, Tang, Lu, *Generalized Federated Learning via Sharpness Aware Minimization*, Algorithm 1.

    Attributes:
        inner: any algorithm.
        ascent: the step to the point whose gradient is used.

    Example:
        >>> inner = rv.scaffold(rv.SGD(0.1, batch_size=20, epochs=1))
        >>> algorithm = rv.combinators.SharpnessAware(inner, ascent=rv.problems.Ascent(0.05))
    """

    ascent: Ascent = eqx.field(kw_only=True)

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> PartyState:
        return self.inner.init_party(w0, through(oracle, self.ascent), key)

    @override
    def party(self, inner: InnerParty, state: PartyState, message: Message, oracle: Oracle, key: Array,
              effort: Float[Array, ""], phase: int) -> tuple[PartyState, Reply, Info]:
        return inner(state, message, through(oracle, self.ascent), key, effort)

    @override
    def personal_model(self, state: PartyState, message: Message, oracle: Oracle) -> Vector:
        return self.inner.personal_model(state, message, through(oracle, self.ascent))
