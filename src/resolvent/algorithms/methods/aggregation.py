r"""Model aggregation: FedAvg, FedProx, RFA and the coordinate median.

.. math:: w_k \approx \arg\min f_k(w) + \tfrac\mu2\|w-\tilde w\|^2 \text{ from } \tilde w, \qquad
          \tilde w \leftarrow \mathcal A(w_1, \dots, w_N)

mu = 0 with the mean is FedAvg (McMahan et al.), mu > 0 is FedProx (Li et al., Algorithm 2), the geometric median is RFA
(Pillutla et al.) and the coordinate median is that of Yin et al. A party stores nothing.
"""

from typing import ClassVar

import equinox as eqx
from jaxtyping import Array, ArrayLike, Float
from typing_extensions import override

from resolvent.algorithms.aggregators import Aggregator, Mean
from resolvent.algorithms.algorithm import Info, PartyState, Replies, SharedModelMethod, local_work
from resolvent.errors import check_range
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers import LocalSolver
from resolvent.problem.subproblem import Subproblem

__all__ = ["AggregatingMethod", "ModelAggregation"]


class AggregatingMethod(SharedModelMethod):
    """A method whose server replaces the shared model by the aggregate of the replies.

    Attributes:
        aggregator: A; with another one than the mean it is the method's robust form.
    """

    aggregator: Aggregator = eqx.field(kw_only=True, default=Mean())

    @property
    @override
    def needs_individual_replies(self) -> bool:
        return not self.aggregator.linear

    @override
    def server(self, shared: Vector, replies: Replies, key: Array) -> tuple[Vector, Info]:
        return self.aggregator(replies, shared, key)


class ModelAggregation(AggregatingMethod):
    """Every party trains from the shared model; the server aggregates the models.

    Attributes:
        mu: weight of the proximal term.
    """

    solver: LocalSolver
    mu: ArrayLike = 0.0
    replies_models: ClassVar[bool] = True

    def __check_init__(self) -> None:
        check_range(self, "[0, inf)", mu=self.mu)

    @override
    def party(self, state: PartyState, shared: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[PartyState, Vector, Info]:
        w, info = local_work(self.solver, Subproblem(oracle, shared, self.mu), shared, key, effort)
        return state, w, info
