"""Local training: every party alone, the baseline of every comparison."""

from typing import ClassVar

from jaxtyping import Array, Float

from resolvent.algorithms.algorithm import Info, Method, Phase, local_work
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers import LocalSolver
from resolvent.problem.subproblem import Subproblem

__all__ = ["LocalTraining"]


class LocalTraining(Method):
    """Every party alone: it goes on from its own model, sends nothing and hears nothing.

    Attributes:
        solver: the local solver.
    """

    solver: LocalSolver
    needs_individual_replies: ClassVar[None] = None
    replies_models: ClassVar[bool] = False

    def init(self, w0: Vector, weights: Float[Array, " N"]) -> tuple[()]:
        """No server."""
        return ()

    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> Vector:
        """The first model."""
        return w0

    @property
    def phases(self) -> tuple[Phase, ...]:
        """One phase, in which nothing travels."""
        return (Phase(lambda state, k: (), self._party, lambda state, replies, key: (state, {})),)

    def _party(self, own: Vector, message: tuple[()], oracle: Oracle, key: Array,
               effort: Float[Array, ""]) -> tuple[Vector, tuple[()], Info]:
        w, info = local_work(self.solver, Subproblem(oracle, own), own, key, effort)
        return w, (), info

    def personal_model(self, state: Vector, message: tuple[()], oracle: Oracle) -> Vector:
        """The party's own model."""
        return state

    def server_model(self, state: tuple[()]) -> None:
        """There is none."""
        return

    def reply_like(self, w0: Vector) -> tuple[tuple[()]]:
        """Nothing."""
        return ((),)
