r"""Ditto: a shared model by averaging, and beside it a personal one that is held to it.

.. code-block:: text

    w_k = local steps on f_k from w~;   v_k <- local steps on f_k + lam/2 |. - w~|^2 from v_k;   w~ = A(w_1, ..., w_N)

Source: Li, Hu, Beirami, Smith, *Ditto: Fair and Robust Federated Learning Through Personalization*, Algorithm 1.
"""

from typing import ClassVar

import jax
from jaxtyping import Array, ArrayLike, Float

from resolvent.algorithms.aggregators.aggregator import Aggregator, Mean
from resolvent.algorithms.algorithm import Info, Replies, SharedModelMethod, local_work
from resolvent.errors import check_range
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.problem.subproblem import Subproblem

__all__ = ["Ditto"]


class Ditto(SharedModelMethod):
    """Ditto.

    Attributes:
        solver: the local solver, for both models.
        lam: how strongly the personal model is held to the shared one.
        aggregator: of the shared model.
    """

    solver: LocalSolver
    lam: ArrayLike = 0.1
    aggregator: Aggregator = Mean()
    replies_models: ClassVar[bool] = True

    def __check_init__(self) -> None:
        check_range(self, "[0, inf)", lam=self.lam)

    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> Vector:
        """The personal model."""
        return w0

    def party(self, own: Vector, shared: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[Vector, Vector, Info]:
        """Local work on the shared model, and on the own one held to it."""
        w, _ = local_work(self.solver, Subproblem(oracle, shared), shared, key, effort)
        personal = Subproblem(oracle, shared, self.lam)
        v, info = local_work(self.solver, personal, own, jax.random.fold_in(key, 1), effort)
        return v, w, info

    def server(self, shared: Vector, replies: Replies, key: Array) -> tuple[Vector, Info]:
        """The aggregate."""
        return self.aggregator(replies, shared)

    def personal_model(self, state: Vector, message: Vector, oracle: Oracle) -> Vector:
        """The personal model."""
        return state
