r"""FedDANE and FedLin: a round that first averages gradients and then solves gradient-corrected subproblems.

.. code-block:: text

    phase 1:  g = mean of grad f_k(w~)
    phase 2:  w_k = argmin f_k(w) + <g - grad f_k(w~), w> + mu/2 |w - w~|^2;   w~ = mean of w_k

Source: FedProx (Li et al.), appendix B and Figure 4; Li et al., *FedDANE: A Federated Newton-Type Method*. The paper
draws one cohort for each phase; here both phases of a round have the same cohort.

FedLin is the case mu = 0 with tau_k gradient steps of length eta/tau_k in the second phase: Mitra, Jaafar, Pappas,
Hassani, *Linear Convergence in Federated Learning: Tackling Client Heterogeneity and Sparse Gradients*, Algorithm 1
without compression.
"""

from dataclasses import replace
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, Method, PartyState, Phase, Replies, local_work
from resolvent.errors import InputError, check_range
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers import GD, SGD, LocalSolver
from resolvent.problem.subproblem import Subproblem

__all__ = ["FedDANE", "FedDANEState"]


class FedDANEState(NamedTuple):
    """The server's state, which is also the message of the second phase."""

    model: Vector  # w~
    gradient: Vector  # g, the mean gradient of the present round


class FedDANE(Method):
    """FedDANE. A party stores nothing.

    Attributes:
        mu: weight of the proximal term.
        divides_rate: whether each of a party's tau_k steps has length eta/tau_k, with eta the solver's learning rate.

    Raises:
        InputError: ``mu`` is negative, or ``divides_rate`` is set and the solver is not SGD or GD.
    """

    solver: LocalSolver
    mu: ArrayLike = 0.1
    divides_rate: bool = eqx.field(static=True, default=False)
    needs_individual_replies: ClassVar[bool] = False
    replies_models: ClassVar[bool] = True

    def __check_init__(self) -> None:
        check_range(self, "[0, inf)", mu=self.mu)
        if self.divides_rate and not isinstance(self.solver, SGD | GD):
            raise InputError(f"FedDANE(divides_rate=True) needs gradient steps, got {type(self.solver).__name__}: "
                             "use SGD or GD")

    @override
    def init(self, w0: Vector, shares: Float[Array, " N"]) -> FedDANEState:
        return FedDANEState(w0, w0)

    @property
    @override
    def phases(self) -> tuple[Phase, ...]:
        return (Phase(lambda state, k: state.model, self._gradient, self._average_gradients),
                Phase(lambda state, k: state, self._solve, self._average_models))

    def _gradient(self, state: PartyState, shared: Vector, oracle: Oracle, key: Array,
                  effort: Float[Array, ""]) -> tuple[PartyState, Vector, Info]:
        return state, oracle.grad(shared), {}

    def _average_gradients(self, state: FedDANEState, replies: Replies, key: Array) -> tuple[FedDANEState, Info]:
        return FedDANEState(state.model, replies.mean()), {}

    def _solve(self, state: PartyState, message: FedDANEState, oracle: Oracle, key: Array,
               effort: Float[Array, ""]) -> tuple[PartyState, Vector, Info]:
        shared, mean_gradient = message
        correction = tree.sub(mean_gradient, oracle.grad(shared))
        solver = self._party_solver(oracle, effort)
        w, info = local_work(solver, Subproblem(oracle, shared, self.mu, correction), shared, key, effort)
        return state, w, info

    def _party_solver(self, oracle: Oracle, effort: Float[Array, ""]) -> LocalSolver:
        if not (self.divides_rate and isinstance(self.solver, SGD | GD)):
            return self.solver
        steps = jnp.maximum(1, self.solver.count_steps(oracle.samples, effort))
        return replace(self.solver, learning_rate=self.solver.learning_rate / steps)

    def _average_models(self, state: FedDANEState, replies: Replies, key: Array) -> tuple[FedDANEState, Info]:
        return FedDANEState(replies.mean(), state.gradient), {}

    @override
    def personal_model(self, state: PartyState, message: Vector, oracle: Oracle) -> Vector:
        return message

    @override
    def server_model(self, state: FedDANEState) -> Vector:
        return state.model
