r"""FedDyn: a linear term at each party that removes the bias of local work.

.. code-block:: text

    party:   w_k = argmin f_k(w) - <g_k, w> + alpha/2 |w - w~|^2;   g_k <- g_k - alpha (w_k - w~)
    server:  h <- h - alpha * sum over replies of lambda_k (w_k - w~);   w~ <- mean(w_k) - h/alpha

At a fixed point w_k = w~ for all k, so that g_k = grad f_k(w~) and h = sum_k lambda_k g_k = 0: the minimiser of the
average loss. Here h is that sum after every round, under any sampling and any drop-outs.

Source: Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama, *Federated Learning Based on Dynamic Regularization*,
Algorithm 1, whose h is the mean over m parties of equal weight. With all parties in every round it is consensus ADMM,
and so the splitting FedPi with eta = 1/alpha.
"""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, OnePhaseMethod, Replies
from resolvent.algorithms.methods.primal_dual import dual_step
from resolvent.errors import check_range
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers import LocalSolver

__all__ = ["FedDyn", "FedDynState"]


class FedDynState(NamedTuple):
    """The server's state; only the model is sent."""

    model: Vector  # w~
    correction: Vector  # h, the weighted mean of all g_k


class FedDyn(OnePhaseMethod):
    """FedDyn. A party stores g_k.

    Attributes:
        alpha: weight of the proximal term, positive.
    """

    solver: LocalSolver
    alpha: ArrayLike = 0.1
    needs_individual_replies: ClassVar[bool] = False
    replies_models: ClassVar[bool] = True

    def __check_init__(self) -> None:
        check_range(self, "(0, inf)", alpha=self.alpha)

    @override
    def init(self, w0: Vector, shares: Float[Array, " N"]) -> FedDynState:
        return FedDynState(w0, jax.tree.map(jnp.zeros_like, w0))

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> Vector:
        return jax.tree.map(jnp.zeros_like, w0)

    @override
    def message(self, state: FedDynState, k: Int[Array, ""]) -> Vector:
        return state.model

    @override
    def party(self, g: Vector, shared: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[Vector, Vector, Info]:
        return dual_step(self.solver, self.alpha, g, shared, oracle, key, effort)

    @override
    def server(self, state: FedDynState, replies: Replies, key: Array) -> tuple[FedDynState, Info]:
        changes = jax.tree.map(lambda w, shared: jnp.where(replies.column(w), w - shared, 0), replies.payload,
                               state.model)
        correction = tree.axpy(-jnp.asarray(self.alpha), replies.total(changes), state.correction)
        return FedDynState(tree.axpy(-1 / jnp.asarray(self.alpha), correction, replies.mean()), correction), {}

    @override
    def personal_model(self, state: Vector, message: Vector, oracle: Oracle) -> Vector:
        return message

    @override
    def server_model(self, state: FedDynState) -> Vector:
        return state.model
