r"""FedDANE: a round that first averages gradients and then solves gradient-corrected proximal subproblems.

.. code-block:: text

    phase 1:  g = mean of grad f_k(w~)
    phase 2:  w_k = argmin f_k(w) + <g - grad f_k(w~), w> + mu/2 |w - w~|^2;   w~ = mean of w_k

Source: FedProx (Li et al.), appendix B and Figure 4; Li et al., *FedDANE: A Federated Newton-Type Method*. The paper
draws one cohort for each phase; here both phases of a round have the same cohort.
"""

from typing import ClassVar, NamedTuple

from jaxtyping import Array, ArrayLike, Float
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, Method, PartyState, Phase, Replies, local_work
from resolvent.errors import check_range
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers import LocalSolver
from resolvent.problem.subproblem import Subproblem

__all__ = ["FedDANE", "FedDANEState"]


class FedDANEState(NamedTuple):
    """The server's state, which is also the message of the second phase.

    Attributes:
        model: w~.
        gradient: g, the mean gradient of the present round.
    """

    model: Vector
    gradient: Vector


class FedDANE(Method):
    """FedDANE. A party stores nothing.

    Attributes:
        solver: local solver.
        mu: weight of the proximal term.
    """

    solver: LocalSolver
    mu: ArrayLike = 0.1
    needs_individual_replies: ClassVar[bool] = False
    replies_models: ClassVar[bool] = True

    def __check_init__(self) -> None:
        check_range(self, "[0, inf)", mu=self.mu)

    @override
    def init(self, w0: Vector, shares: Float[Array, " N"]) -> FedDANEState:
        return FedDANEState(w0, w0)

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> PartyState:
        return ()

    @property
    @override
    def phases(self) -> tuple[Phase, ...]:
        return (Phase(lambda state, k: state.model, self._gradient, self._average_gradients),
                Phase(lambda state, k: state, self._solve, self._average_models))

    def _gradient(self, state: PartyState, shared: Vector, oracle: Oracle, key: Array,
                  effort: Float[Array, ""]) -> tuple[PartyState, Vector, Info]:
        return state, oracle.grad(shared), {}

    def _average_gradients(self, state: FedDANEState, replies: Replies, key: Array) -> tuple[FedDANEState, Info]:
        return FedDANEState(state.model, replies.mean()), {}

    def _solve(self, state: PartyState, message: FedDANEState, oracle: Oracle, key: Array,
               effort: Float[Array, ""]) -> tuple[PartyState, Vector, Info]:
        shared, mean_gradient = message
        correction = tree.sub(mean_gradient, oracle.grad(shared))
        w, info = local_work(self.solver, Subproblem(oracle, shared, self.mu, correction), shared, key, effort)
        return state, w, info

    def _average_models(self, state: FedDANEState, replies: Replies, key: Array) -> tuple[FedDANEState, Info]:
        return FedDANEState(replies.mean(), state.gradient), {}

    @override
    def personal_model(self, state: PartyState, message: Vector, oracle: Oracle) -> Vector:
        return message

    @override
    def server_model(self, state: FedDANEState) -> Vector:
        return state.model
