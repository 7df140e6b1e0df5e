r"""FedNova: averaging that does not weigh parties by their number of steps.

.. code-block:: text

    party:   w_k = tau_k gradient steps on f_k from w~;   d_k = (w_k - w~) / tau_k
    server:  w~ <- w~ + tau_eff * mean(d_k),   tau_eff = mean(tau_k)

Source: Wang, Liu, Liang, Joshi, Poor, *Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization*, with plain gradient steps: a_k = (1, ..., 1), so that |a_k|_1 = tau_k. Both means are over the replies,
with their weights.
"""

from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, PartyState, Replies, SharedModelMethod, local_work
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers import GD, SGD
from resolvent.problem.subproblem import Subproblem

__all__ = ["FedNova", "NormalizedUpdate"]


class NormalizedUpdate(NamedTuple):
    """A party's reply.

    Attributes:
        direction: d_k, the mean step.
        steps: tau_k.
    """

    direction: Vector
    steps: Float[Array, ""]


class FedNova(SharedModelMethod):
    """FedNova. A party stores nothing.

    Attributes:
        solver: plain gradient steps; momentum or a proximal term would need another normalisation.
    """

    solver: SGD | GD
    needs_individual_replies: ClassVar[bool] = False
    replies_models: ClassVar[bool] = False

    @override
    def party(self, state: PartyState, shared: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[PartyState, NormalizedUpdate, Info]:
        w, info = local_work(self.solver, Subproblem(oracle, shared), shared, key, effort)
        tau = info["steps"]
        direction = tree.map2(lambda a, b: (a - b) / jnp.maximum(tau, 1), w, shared)
        return state, NormalizedUpdate(direction, tau), info

    @override
    def server(self, shared: Vector, replies: Replies, key: Array) -> tuple[Vector, Info]:
        mean = replies.mean()
        return tree.axpy(mean.steps, mean.direction, shared), {}
