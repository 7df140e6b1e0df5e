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
from jaxtyping import Array, Float, Int

from resolvent.algorithms.algorithm import Elementary, Info, PartyState, Phase, Replies, local_work
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers import GD, SGD
from resolvent.problem.subproblem import Subproblem

__all__ = ["FedNova"]


class FedNova(Elementary):
    """FedNova.

    Attributes:
        solver: plain gradient steps; momentum or a proximal term would ask for another normalisation.
    """

    solver: SGD | GD
    replies_models: ClassVar[bool] = False

    def init(self, w0: Vector, weights: Float[Array, " N"]) -> Vector:
        """The shared model."""
        return w0

    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> PartyState:
        """A party keeps nothing."""
        return ()

    @property
    def phases(self) -> tuple[Phase, ...]:
        """One phase."""
        return (Phase(self._message, self._party, self._server),)

    def _message(self, shared: Vector, k: Int[Array, ""]) -> Vector:
        return shared

    def _party(self, state: PartyState, shared: Vector, oracle: Oracle, key: Array,
               effort: Float[Array, ""]) -> tuple[PartyState, tuple[Vector, Float[Array, ""]], Info]:
        w, info = local_work(self.solver, Subproblem(oracle, shared), shared, key, effort)
        tau = info["steps"]
        return state, (tree.map2(lambda a, b: (a - b) / jnp.maximum(tau, 1), w, shared), tau), info

    def _server(self, shared: Vector, replies: Replies, key: Array) -> tuple[Vector, Info]:
        direction, tau = replies.mean()
        return tree.axpy(tau, direction, shared), {}

    def deploy(self, state: PartyState, message: Vector, oracle: Oracle) -> Vector:
        """The shared model."""
        return message

    def server_model(self, state: Vector) -> Vector:
        """The shared model."""
        return state

    def iterate(self, state: Vector) -> Vector:
        """The shared model, which a round maps to the next."""
        return state

    def with_iterate(self, state: Vector, point: Vector) -> Vector:
        """The shared model at another point."""
        return point
