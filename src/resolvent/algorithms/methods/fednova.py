r"""FedNova: parties that make more steps than others do not count for more.

.. code-block:: text

    party:   w_k = tau_k gradient steps on f_k from w~;   d_k = (w_k - w~) / tau_k
    server:  w~ <- w~ + tau_eff * mean(d_k),   tau_eff = mean(tau_k)

Source: Wang, Liu, Liang, Joshi, Poor, *Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization*, with plain gradient steps: a_k = (1, ..., 1), so that |a_k|_1 = tau_k. Both means are over the replies,
with their weights.
"""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from resolvent.algorithms.algorithm import Info, PartyState, Replies, SharedModelMethod, local_work
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers.solver import GD, SGD
from resolvent.problem.subproblem import Subproblem

__all__ = ["FedNova"]


class FedNova(SharedModelMethod):
    """FedNova.

    Attributes:
        solver: plain gradient steps; momentum or a proximal term would ask for another normalisation.
    """

    solver: SGD | GD
    replies_models: ClassVar[bool] = False

    def party(self, state: PartyState, shared: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[PartyState, tuple[Vector, Float[Array, ""]], Info]:
        """The mean step, and how many there were."""
        w, info = local_work(self.solver, Subproblem(oracle, shared), shared, key, effort)
        tau = info["steps"]
        return state, (tree.map2(lambda a, b: (a - b) / jnp.maximum(tau, 1), w, shared), tau), info

    def server(self, shared: Vector, replies: Replies, key: Array) -> tuple[Vector, Info]:
        """As many mean steps as a party makes on average."""
        direction, tau = replies.mean()
        return tree.axpy(tau, direction, shared), {}
