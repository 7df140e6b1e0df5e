r"""FedDANE: a round that first averages gradients and then solves gradient-corrected proximal subproblems.

.. code-block:: text

    phase 1:  g = mean of grad f_k(w~)
    phase 2:  w_k = argmin f_k(w) + <g - grad f_k(w~), w> + mu/2 |w - w~|^2;   w~ = mean of w_k

Source: FedProx (Li et al.), appendix B and Figure 4; Li et al., *FedDANE: A Federated Newton-Type Method*. There two
cohorts are drawn in a round, one per phase; here both phases have the same.
"""

from typing import ClassVar

from jaxtyping import Array, ArrayLike, Float, Int

from resolvent.algorithms.algorithm import Info, Method, PartyState, Phase, Replies, local_work
from resolvent.errors import check_range
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.problem.subproblem import Subproblem

__all__ = ["FedDANE"]

Pair = tuple[Vector, Vector]


class FedDANE(Method):
    """FedDANE.

    Attributes:
        solver: the local solver.
        mu: the proximal weight.
    """

    solver: LocalSolver
    mu: ArrayLike = 0.1
    needs_individual_replies: ClassVar[None] = None
    replies_models: ClassVar[bool] = True

    def __check_init__(self) -> None:
        check_range(self, "[0, inf)", mu=self.mu)

    def init(self, w0: Vector, weights: Float[Array, " N"]) -> Pair:
        """The shared model, and room for the mean gradient."""
        return w0, w0

    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> PartyState:
        """A party keeps nothing."""
        return ()

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Gradients, then models."""
        return (Phase(lambda state, k: state[0], self._gradient, lambda state, replies, key: (
            (state[0], replies.mean()), {})), Phase(self._message, self._solve, self._server))

    def _gradient(self, state: PartyState, shared: Vector, oracle: Oracle, key: Array,
                  effort: Float[Array, ""]) -> tuple[PartyState, Vector, Info]:
        return state, oracle.grad(shared), {}

    def _message(self, state: Pair, k: Int[Array, ""]) -> Pair:
        return state

    def _solve(self, state: PartyState, message: Pair, oracle: Oracle, key: Array,
               effort: Float[Array, ""]) -> tuple[PartyState, Vector, Info]:
        shared, mean_gradient = message
        correction = tree.sub(mean_gradient, oracle.grad(shared))
        w, info = local_work(self.solver, Subproblem(oracle, shared, self.mu, correction), shared, key, effort)
        return state, w, info

    def _server(self, state: Pair, replies: Replies, key: Array) -> tuple[Pair, Info]:
        return (replies.mean(), state[1]), {}

    def personal_model(self, state: PartyState, message: Vector, oracle: Oracle) -> Vector:
        """The shared model."""
        return message

    def server_model(self, state: Pair) -> Vector:
        """The shared model."""
        return state[0]
