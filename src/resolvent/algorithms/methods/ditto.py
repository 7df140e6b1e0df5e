r"""Ditto: a shared model by aggregation, and a personal model with a penalty on its distance to the shared one.

.. code-block:: text

    w_k = local steps on f_k from w~;   v_k <- local steps on f_k + lam/2 |. - w~|^2 from v_k;   w~ = A(w_1, ..., w_N)

Source: Li, Hu, Beirami, Smith, *Ditto: Fair and Robust Federated Learning Through Personalization*, Algorithm 1.
"""

from typing import Annotated, ClassVar

from jaxtyping import Array, ArrayLike, Float
from typing_extensions import override

from resolvent.algorithms.algorithm import Info
from resolvent.algorithms.keys import substep_key
from resolvent.algorithms.method import info_of_all, local_work
from resolvent.algorithms.methods.aggregation import AggregatingMethod
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.problem.subproblem import Subproblem

_PERSONAL = "personal"  # name of the work on v_k


class Ditto(AggregatingMethod):
    """Ditto. A party stores its personal model v_k.

    Attributes:
        solver: local solver of both models.
        lam: weight of the personal model's penalty.
    """

    solver: LocalSolver
    lam: Annotated[ArrayLike, "[0, inf)"] = 0.1
    replies_models: ClassVar[bool] = True

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> Vector:
        return w0

    @override
    def party(self, v: Vector, shared: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[Vector, Vector, Info]:
        w, first = local_work(self.solver, Subproblem(oracle, shared), shared, key, effort)
        near = Subproblem(oracle, shared, self.lam)
        v, info = local_work(self.solver, near, v, substep_key(key, 1), effort, name=_PERSONAL)
        return v, w, info_of_all(first, info)

    @override
    def personal_model(self, state: Vector, message: Vector, oracle: Oracle) -> Vector:
        return oracle.model_after(state, _PERSONAL)
