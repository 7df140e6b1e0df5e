"""Local training: every party trains alone, the baseline of every comparison."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, Method, Phase, local_work
from resolvent.errors import check_range
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers import LocalSolver
from resolvent.problem.subproblem import Subproblem

__all__ = ["LocalTraining"]


class LocalTraining(Method):
    """A party continues from its own model; messages and replies are empty.

    With ``ridge``, party k minimises f_k(w) + ridge/(2 n_k) |w|^2. Its biases, arrays of fewer than two dimensions, are
    not shrunk: their centre is their last value, so that the term vanishes for them at a fixed point.

    Attributes:
        solver: local solver.
        ridge: weight of |w|^2 / 2, added to the sum of the party's losses; None for none.
    """

    solver: LocalSolver
    ridge: ArrayLike | None = None

    def __check_init__(self) -> None:
        if self.ridge is not None:
            check_range(self, "(0, inf)", ridge=self.ridge)

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
        w, info = local_work(self.solver, self._subproblem(model, oracle), model, key, effort)
        return w, (), info

    def _subproblem(self, model: Vector, oracle: Oracle) -> Subproblem:
        if self.ridge is None:
            return Subproblem(oracle, model)
        center = jax.tree.map(lambda leaf: jnp.zeros_like(leaf) if leaf.ndim > 1 else leaf, model)
        return Subproblem(oracle, center, self.ridge / oracle.samples)

    @override
    def personal_model(self, state: Vector, message: tuple[()], oracle: Oracle) -> Vector:
        return state

    @override
    def server_model(self, state: tuple[()]) -> None:
        return
