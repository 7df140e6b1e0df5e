r"""One shared model: FedAvg, FedProx, RFA and the coordinate median; and none at all: local training.

.. math:: w_k \approx \arg\min f_k(w) + \tfrac\mu2\|w-\tilde w\|^2 \text{ from } \tilde w, \qquad
          \tilde w \leftarrow \mathcal A(w_1, \dots, w_N)

mu = 0 with the mean is FedAvg (McMahan et al.), mu > 0 FedProx (Li et al., Algorithm 2); the geometric median is RFA
(Pillutla et al.), the coordinate median Yin et al.'s. A party keeps nothing.
"""

from typing import ClassVar

from jaxtyping import Array, ArrayLike, Float

from resolvent.algorithms.aggregators.aggregator import Aggregator, Mean
from resolvent.algorithms.algorithm import Info, PartyState, Replies, SharedModelMethod, local_work
from resolvent.errors import check_range
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.problem.subproblem import Subproblem

__all__ = ["ModelAggregation"]


class ModelAggregation(SharedModelMethod):
    """Solve from the shared model, then aggregate the models.

    Attributes:
        solver: the local solver.
        aggregator: A.
        mu: the proximal weight.
    """

    solver: LocalSolver
    aggregator: Aggregator = Mean()
    mu: ArrayLike = 0.0
    replies_models: ClassVar[bool] = True

    def __check_init__(self) -> None:
        check_range(self, "[0, inf)", mu=self.mu)

    def party(self, state: PartyState, shared: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[PartyState, Vector, Info]:
        """Local work from the shared model."""
        w, info = local_work(self.solver, Subproblem(oracle, shared, self.mu), shared, key, effort)
        return state, w, info

    def server(self, shared: Vector, replies: Replies, key: Array) -> tuple[Vector, Info]:
        """The aggregate."""
        return self.aggregator(replies, shared)
