"""Fair averages: parties count by their losses. q-FedAvg."""

from typing import Annotated, ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, PartyState, Replies
from resolvent.algorithms.method import SharedModelMethod, local_work
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers import LocalSolver
from resolvent.problem.subproblem import Subproblem

_SMALLEST_LOSS = 1e-10  # the authors' code adds it to every loss


class QUpdate(NamedTuple):
    """A party's reply."""

    change: Vector  # Delta_k
    curvature: Float[Array, ""]  # h_k


class QFedAvg(SharedModelMethod):
    """q-FedAvg: FedAvg in which the update of party k counts by the q-th power of its loss.

    .. code-block:: text

        party:   dw_k = L (w~ - w_k) after the local work on f_k from w~
                 reply Delta_k = f_k(w~)^q dw_k  and  h_k = q f_k(w~)^(q-1) |dw_k|^2 + L f_k(w~)^q
        server:  w~ <- w~ - mean(Delta_k) / mean(h_k)

    The server needs means only. If no party has a loss, both means are zero, and the model stays.

    Attributes:
        L: the Lipschitz constant of the gradients.
    """

    solver: LocalSolver
    q: Annotated[ArrayLike, "[0, inf)"]
    L: Annotated[ArrayLike, "(0, inf)"]
    needs_individual_replies: ClassVar[bool] = False
    replies_models: ClassVar[bool] = False

    @override
    def party(self, state: PartyState, shared: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[PartyState, QUpdate, Info]:
        w, info = local_work(self.solver, Subproblem(oracle, shared), shared, key, effort)
        change = tree.scale(self.L, tree.sub(shared, w))
        loss = jnp.maximum(oracle.value(shared), _SMALLEST_LOSS)
        power = loss**self.q
        curvature = power * (self.q * tree.full_dot(change, change) / loss + self.L)
        return state, QUpdate(tree.scale(power, change), curvature.astype(loss.dtype)), info

    @override
    def server(self, shared: Vector, replies: Replies, key: Array) -> tuple[Vector, Info]:
        mean = replies.mean()
        step = 1 / jnp.where(mean.curvature > 0, mean.curvature, 1)
        return tree.axpy(-step, mean.change, shared), {"server_step": step}
