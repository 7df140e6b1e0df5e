"""Meta-learning: a shared model from which one gradient step on a party's own data leads to a good personal model."""

import equinox as eqx
import jax
from jaxtyping import Array, ArrayLike, Float
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, Message, PartyState, Reply
from resolvent.algorithms.combinators.combinator import Combinator, InnerParty
from resolvent.errors import check_range
from resolvent.math.tree import Vector
from resolvent.problem.maps import GradientStep, through
from resolvent.problem.oracle import Oracle

__all__ = ["MetaLearned"]


class MetaLearned(Combinator):
    r"""The inner algorithm on the objectives f_k(w - gamma grad f_k(w)); a party adapts the model before use.

    .. math:: \min_w \sum_k \lambda_k f_k(w - \gamma\nabla f_k(w)), \qquad
              \nabla = (I - \gamma\nabla^2 f_k(w))\,\nabla f_k(w - \gamma\nabla f_k(w))

    With FedAvg inside this is Per-FedAvg. A first-order step replaces the bracket by I; a Hessian-free step takes its
    product with the gradient from two more gradients.

    Source: Finn, Abbeel, Levine, *Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks*; Fallah, Mokhtari,
    Ozdaglar, *Personalized Federated Learning: A Meta-Learning Approach*, Algorithm 1; FedMix, (1).

    Attributes:
        inner: any algorithm.
        step: the gradient step inside the objective, and how its derivative is computed.
        steps: number of such steps, at least 0, over all its samples, that a party makes before it uses a model.

    Example:
        >>> step = rv.problems.GradientStep(0.1)
        >>> algorithm = rv.combinators.MetaLearned(rv.fedavg(rv.SGD(0.1)), step=step)
    """

    step: GradientStep = eqx.field(kw_only=True)
    steps: ArrayLike = eqx.field(kw_only=True, default=1)

    def __check_init__(self) -> None:
        check_range(self, "[0, inf)", steps=self.steps)

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> PartyState:
        return self.inner.init_party(w0, through(oracle, self.step), key)

    @override
    def party(self, inner: InnerParty, state: PartyState, message: Message, oracle: Oracle, key: Array,
              effort: Float[Array, ""], phase: int) -> tuple[PartyState, Reply, Info]:
        state, reply, info = inner(state, message, through(oracle, self.step), key, effort)
        if "model" in info:  # a phase that only measures, such as FedDANE's first, has none
            info = info | {"model": self.adapted(info["model"], oracle)}
        return state, reply, info

    def adapted(self, w: Vector, oracle: Oracle) -> Vector:
        """``w`` after the steps on f_k."""
        return jax.lax.fori_loop(0, self.steps, lambda _, v: self.step(v, oracle.grad), w)

    @override
    def personal_model(self, state: PartyState, message: Message, oracle: Oracle) -> Vector:
        return self.adapted(self.inner.personal_model(state, message, through(oracle, self.step)), oracle)
