r"""FedExP: FedAvg with an extrapolated server step.

.. code-block:: text

    party:   d_k = w_k - w~ after the local work on f_k;   reply d_k and |d_k|^2
    server:  w~ <- w~ + step * mean(d_k),   step = max(1, mean(|d_k|^2) / (2 (|mean(d_k)|^2 + epsilon)))

Source: Jhunjhunwala, Wang, Joshi, *FedExP: Speeding Up Federated Averaging via Extrapolation*, Algorithm 1. The parties
send their squared norms, so that the server needs means only.
"""

from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, PartyState, Replies, SharedModelMethod, local_work
from resolvent.errors import check_range
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers import LocalSolver
from resolvent.problem.subproblem import Subproblem

__all__ = ["FedExP", "MeasuredUpdate"]


class MeasuredUpdate(NamedTuple):
    """A party's reply."""

    change: Vector  # d_k
    squared_norm: Float[Array, ""]  # |d_k|^2


class FedExP(SharedModelMethod):
    """FedExP. A party stores nothing.

    Attributes:
        epsilon: added to the denominator, positive.
    """

    solver: LocalSolver
    epsilon: ArrayLike = 1e-3
    needs_individual_replies: ClassVar[bool] = False
    replies_models: ClassVar[bool] = False

    def __check_init__(self) -> None:
        check_range(self, "(0, inf)", epsilon=self.epsilon)

    @override
    def party(self, state: PartyState, shared: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[PartyState, MeasuredUpdate, Info]:
        w, info = local_work(self.solver, Subproblem(oracle, shared), shared, key, effort)
        change = tree.sub(w, shared)
        return state, MeasuredUpdate(change, tree.full_dot(change, change)), info

    @override
    def server(self, shared: Vector, replies: Replies, key: Array) -> tuple[Vector, Info]:
        mean = replies.mean()
        squared = tree.full_dot(mean.change, mean.change)
        step = jnp.maximum(1, mean.squared_norm / (2 * (squared + self.epsilon)))
        return tree.axpy(step, mean.change, shared), {"server_step": step}
