"""Local training: every party trains alone, the baseline of every comparison."""

from typing import ClassVar

from jaxtyping import Array, Float
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, Method, Phase, local_work
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers import LocalSolver
from resolvent.problem.subproblem import Subproblem

__all__ = ["LocalTraining"]


class LocalTraining(Method):
    """A party continues from its own model; messages and replies are empty.

    Attributes:
        solver: local solver.
    """

    solver: LocalSolver
    needs_individual_replies: ClassVar[bool] = False
    replies_models: ClassVar[bool] = False

    @override
    def init(self, w0: Vector, shares: Float[Array, " N"]) -> tuple[()]:
        return ()

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> Vector:
        return w0

    @property
    @override
    def phases(self) -> tuple[Phase, ...]:
        return (Phase(lambda state, k: (), self._party, lambda state, replies, key: (state, {})),)

    def _party(self, model: Vector, message: tuple[()], oracle: Oracle, key: Array,
               effort: Float[Array, ""]) -> tuple[Vector, tuple[()], Info]:
        w, info = local_work(self.solver, Subproblem(oracle, model), model, key, effort)
        return w, (), info

    @override
    def personal_model(self, state: Vector, message: tuple[()], oracle: Oracle) -> Vector:
        return state

    @override
    def server_model(self, state: tuple[()]) -> None:
        return
