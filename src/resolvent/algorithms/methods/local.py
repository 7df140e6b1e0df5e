"""Local training: every party trains alone, the baseline of every comparison."""

from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, OnePhaseMethod, Replies, local_work
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers import LocalSolver
from resolvent.problem.subproblem import Subproblem


class LocalTraining(OnePhaseMethod):
    """A party continues from its own model; messages and replies are empty.

    With ``ridge``, party k minimises f_k(w) + ridge/(2 n_k) |w|^2. Its biases, arrays of fewer than two dimensions, are
    not shrunk: their centre is their last value, so that the term vanishes for them at a fixed point.

    Attributes:
        ridge: weight of |w|^2 / 2, added to the sum of the party's losses; None for none.
    """

    solver: LocalSolver
    ridge: Annotated[ArrayLike | None, "(0, inf)"] = None
    needs_individual_replies: ClassVar[bool] = False
    replies_models: ClassVar[bool] = False

    @override
    def init(self, w0: Vector, shares: Float[Array, " N"]) -> tuple[()]:
        return ()

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> Vector:
        return w0

    @override
    def party(self, state: Vector, message: tuple[()], oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[Vector, tuple[()], Info]:
        w, info = local_work(self.solver, self._subproblem(state, oracle), state, key, effort)
        return w, (), info

    @override
    def server(self, state: tuple[()], replies: Replies, key: Array) -> tuple[tuple[()], Info]:
        return state, {}

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
