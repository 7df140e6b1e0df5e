"""Local training: every party trains alone, the baseline of every comparison."""

from typing import Annotated, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, PartyState, Replies
from resolvent.algorithms.method import OnePhaseMethod, local_work
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.problem.subproblem import Subproblem


class _Stopped(NamedTuple):
    """A party's state with early stopping."""

    last: Vector
    best: Vector
    loss: Float[Array, ""]  # held-out loss of the best model


class LocalTraining(OnePhaseMethod):
    """A party continues from its own model; messages and replies are empty.

    With ``ridge``, party k minimises f_k(w) + ridge/(2 n_k) |w|^2. Its biases, arrays of fewer than two dimensions, are
    not shrunk: their centre is their last value, so that the term vanishes for them at a fixed point.

    With early stopping, the party's model is the first model, or the one after a round, that has the smallest held-out
    loss; without held-out samples it is the last one.

    Attributes:
        ridge: weight of |w|^2 / 2, added to the sum of the party's losses; None for none.
        stops_early: whether there is early stopping.
    """

    solver: LocalSolver
    ridge: Annotated[ArrayLike | None, "(0, inf)"] = None
    stops_early: bool = eqx.field(static=True, default=False)
    needs_individual_replies: ClassVar[bool] = False
    replies_models: ClassVar[bool] = False

    @override
    def init(self, w0: Vector, shares: Float[Array, " N"]) -> tuple[()]:
        return ()

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> PartyState:
        return _Stopped(w0, w0, oracle.held_out(w0)[0]) if self.stops_early else w0

    @override
    def party(self, state: PartyState, message: tuple[()], oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[PartyState, tuple[()], Info]:
        before = state.last if self.stops_early else state
        w, info = local_work(self.solver, self._subproblem(before, oracle), before, key, effort)
        if not self.stops_early:
            return w, (), info
        loss = oracle.held_out(w)[0]
        is_better = jnp.isnan(state.loss) | (loss < state.loss)  # no loss: there are no held-out samples
        return _Stopped(w, tree.where(is_better, w, state.best), jnp.where(is_better, loss, state.loss)), (), info

    @override
    def server(self, state: tuple[()], replies: Replies, key: Array) -> tuple[tuple[()], Info]:
        return state, {}

    def _subproblem(self, model: Vector, oracle: Oracle) -> Subproblem:
        if self.ridge is None:
            return Subproblem(oracle, model)
        center = jax.tree.map(lambda leaf: jnp.zeros_like(leaf) if leaf.ndim > 1 else leaf, model)
        return Subproblem(oracle, center, self.ridge / oracle.samples)

    @override
    def personal_model(self, state: PartyState, message: tuple[()], oracle: Oracle) -> Vector:
        best: Vector = state.best if self.stops_early else state
        return best

    @override
    def server_model(self, state: tuple[()]) -> None:
        return
