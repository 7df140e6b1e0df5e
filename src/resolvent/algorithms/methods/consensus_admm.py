r"""Over-relaxed consensus ADMM with scaled dual variables.

.. code-block:: text

    party:   y_k = v_k - z;   x_k = argmin f_k(x) + rho/2 |x - (z - y_k)|^2
             v_k <- r x_k + (1 - r) z + y_k;   reply v_k
    server:  z <- mean of the replies

The difference of v_k from the next z is the next y_k, so that a party stores v_k only. With all parties in every round
the y_k sum to zero, z is the mean of the relaxed x_k, and z - y_k is the iterate of the splitting
(alpha, beta, gamma) = (2, 2, r/2) with eta = 1/rho, whose shared model, the mean of 2 x_k - (z - y_k), is another point
until both have converged.

Source: Boyd, Parikh, Chu, Peleato, Eckstein, *Distributed Optimization and Statistical Learning via the Alternating
Direction Method of Multipliers*, sections 7.1.1 and 3.4.3.
"""

from typing import ClassVar

from jaxtyping import Array, ArrayLike, Float
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, Replies, SharedModelMethod, local_work
from resolvent.errors import check_range
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers import LocalSolver
from resolvent.problem.subproblem import Subproblem

__all__ = ["ConsensusADMM"]


class ConsensusADMM(SharedModelMethod):
    """Consensus ADMM; the shared model is z. A party stores v_k.

    Attributes:
        rho: penalty parameter, positive.
        relaxation: r, in (0, 2).
    """

    solver: LocalSolver
    rho: ArrayLike = 1.0
    relaxation: ArrayLike = 1.0
    needs_individual_replies: ClassVar[bool] = False
    replies_models: ClassVar[bool] = True

    def __check_init__(self) -> None:
        check_range(self, "(0, inf)", rho=self.rho)
        check_range(self, "(0, 2)", relaxation=self.relaxation)

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> Vector:
        return w0

    @override
    def party(self, state: Vector, shared: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[Vector, Vector, Info]:
        y = tree.sub(state, shared)
        center = tree.sub(shared, y)
        x, info = local_work(self.solver, Subproblem(oracle, center, self.rho), center, key, effort)
        v = tree.axpy(1, y, tree.lerp(shared, x, self.relaxation))
        return v, v, info

    @override
    def server(self, shared: Vector, replies: Replies, key: Array) -> tuple[Vector, Info]:
        return replies.mean(), {}
