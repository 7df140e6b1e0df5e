"""Gradient steps corrected by the gradients of all parties: Scaffold, Scaffnew, FedDANE and FedLin."""

from dataclasses import replace
from typing import Annotated, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, Message, PartyState, Phase, Replies
from resolvent.algorithms.keys import substep_key
from resolvent.algorithms.method import Method, OnePhaseMethod, local_work
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers.solver import GD, SGD, LocalSolver
from resolvent.problem.subproblem import Subproblem

Option = Literal["I", "II"]


class ScaffoldState(NamedTuple):
    """The server's state, which is also the message to every party."""

    model: Vector  # w~
    control: Vector  # c, the weighted mean of all c_k


class ScaffoldReply(NamedTuple):
    """A party's reply."""

    update: Vector  # w_k - w~
    control_update: Vector  # c_k+ - c_k


class Scaffold(OnePhaseMethod):
    """Scaffold: FedAvg with control variates that cancel the drift of heterogeneous parties.

    .. code-block:: text

        party:   w_k = local steps on f_k + <c - c_k, .> from w~
                 c_k+ = grad f_k(w~)                          (option I)
                 c_k+ = c_k - c + (w~ - w_k) / (steps*eta)    (option II)
        server:  w~ <- w~ + eta_g * mean(w_k - w~);   c <- c + sum over replies of lambda_k (c_k+ - c_k)

    c is the weighted mean of all c_k under any sampling and any drop-outs. A party stores c_k. Option II reads the
    learning rate and the number of the solver's steps.
    """

    solver: SGD | GD
    option: Option = eqx.field(static=True, default="II")
    server_rate: ArrayLike = 1.0
    needs_individual_replies: ClassVar[bool] = False
    replies_models: ClassVar[bool] = False

    def __check_init__(self) -> None:
        if self.option == "I":
            _check_unclipped("Scaffold(option='I')", self.solver, " or use option='II'")

    @override
    def init(self, w0: Vector, shares: Float[Array, " N"]) -> ScaffoldState:
        return ScaffoldState(w0, jax.tree.map(jnp.zeros_like, w0))

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> Vector:
        return jax.tree.map(jnp.zeros_like, w0)

    @override
    def party(self, c_k: Vector, message: ScaffoldState, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[Vector, ScaffoldReply, Info]:
        shared, c = message
        w, info = local_work(self.solver, Subproblem(oracle, shared, 0.0, tree.sub(c, c_k)), shared, key, effort)
        update = tree.sub(w, shared)
        if self.option == "I":
            new = oracle.grad(shared)
        else:
            made = info["steps"] > 0  # without a step there is no gradient to average, and c_k stays
            rate = jnp.where(made, info["steps"], 1) * self.solver.learning_rate
            average = tree.axpy(-1 / rate, update, tree.sub(c_k, c))
            new = tree.where(made, average, c_k)
        return new, ScaffoldReply(update, tree.sub(new, c_k)), info

    @override
    def server(self, state: ScaffoldState, replies: Replies, key: Array) -> tuple[ScaffoldState, Info]:
        update = replies.mean(replies.payload.update)
        control_update = replies.total(replies.payload.control_update)
        return ScaffoldState(tree.axpy(self.server_rate, update, state.model),
                             tree.axpy(1, control_update, state.control)), {}

    @override
    def personal_model(self, state: Vector, message: ScaffoldState, oracle: Oracle) -> Vector:
        return message.model

    @override
    def server_model(self, state: ScaffoldState) -> Vector:
        return state.model


class ScaffnewState(NamedTuple):
    """The server's state, which is also the message of both phases."""

    model: Vector  # w~
    steps: Int[Array, ""]  # L, the number of steps until the next exchange


class ScaffnewParty(NamedTuple):
    """A party's state."""

    control: Vector  # h_k
    model: Vector  # x_k, the model that it sent last


class Scaffnew(Method):
    """Scaffnew (ProxSkip): gradient steps with control variates, and an exchange after a random number of steps.

    .. code-block:: text

        phase 1:  x_k = L gradient steps of length gamma on f_k - <h_k, .> from w~,   L ~ Geometric(p), the same for all
                  w~ <- mean of x_k
        phase 2:  h_k <- h_k + p/gamma (w~ - x_k)

    ProxSkip flips a coin after every step and communicates with probability p; a round here is the steps between two
    exchanges. At a fixed point h_k = grad f_k(w~), and sum_k lambda_k h_k stays 0. On losses that are mu-strongly
    convex and L-smooth, gamma = 1/L and p = sqrt(mu/L) need O(sqrt(L/mu) log(1/eps)) exchanges, where gradient descent
    needs O(L/mu log(1/eps)).

    The second phase sends the new mean to the parties of the round, so that the control variates of a sampled cohort
    also sum to what they summed to before. A party stores h_k and x_k. The learning rate of the solver is gamma, and L
    replaces its number of steps.
    """

    solver: SGD | GD
    p: Annotated[ArrayLike, "(0, 1]"] = 0.1
    needs_individual_replies: ClassVar[bool] = False
    replies_models: ClassVar[bool] = False

    @override
    def init(self, w0: Vector, shares: Float[Array, " N"]) -> ScaffnewState:
        return ScaffnewState(w0, jnp.array(1, jnp.int32))

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> ScaffnewParty:
        return ScaffnewParty(jax.tree.map(jnp.zeros_like, w0), w0)

    @property
    @override
    def phases(self) -> tuple[Phase, ...]:
        return (Phase(lambda state, k: state, self._steps, self._average),
                Phase(lambda state, k: state.model, self._update_control, self._draw))

    def _steps(self, state: ScaffnewParty, message: ScaffnewState, oracle: Oracle, key: Array,
               effort: Float[Array, ""]) -> tuple[ScaffnewParty, Vector, Info]:
        linear = jax.tree.map(jnp.negative, state.control)
        solver = (replace(self.solver, steps=message.steps, epochs=None) if isinstance(self.solver, SGD)
                  else replace(self.solver, steps=message.steps))
        w, info = local_work(solver, Subproblem(oracle, message.model, 0.0, linear), message.model, key, effort)
        return ScaffnewParty(state.control, w), w, info

    def _average(self, state: ScaffnewState, replies: Replies, key: Array) -> tuple[ScaffnewState, Info]:
        return ScaffnewState(replies.mean(), state.steps), {}

    def _update_control(self, state: ScaffnewParty, mean: Vector, oracle: Oracle, key: Array,
                        effort: Float[Array, ""]) -> tuple[ScaffnewParty, Message, Info]:
        rate = jnp.asarray(self.p) / self.solver.learning_rate
        return ScaffnewParty(tree.axpy(rate, tree.sub(mean, state.model), state.control), state.model), (), {
            "model": mean}

    def _draw(self, state: ScaffnewState, replies: Replies, key: Array) -> tuple[ScaffnewState, Info]:
        # In float32, so that the same lengths are drawn in both precisions.
        steps = jax.random.geometric(substep_key(key, 0), jnp.asarray(self.p, jnp.float32), dtype=jnp.int32)
        return ScaffnewState(state.model, steps), {"local_steps": state.steps}

    @override
    def personal_model(self, state: ScaffnewParty, message: ScaffnewState, oracle: Oracle) -> Vector:
        return message.model

    @override
    def server_model(self, state: ScaffnewState) -> Vector:
        return state.model


class FedDANEState(NamedTuple):
    """The server's state, which is also the message of the second phase."""

    model: Vector  # w~
    gradient: Vector  # g, the mean gradient of the present round


class FedDANE(Method):
    """FedDANE and FedLin: a round that first averages gradients and then solves gradient-corrected subproblems.

    .. code-block:: text

        phase 1:  g = mean of grad f_k(w~)
        phase 2:  w_k = argmin f_k(w) + <g - grad f_k(w~), w> + mu/2 |w - w~|^2;   w~ = mean of w_k

    The paper draws one cohort for each phase; here both phases of a round have the same cohort. FedLin is the case
    mu = 0 with tau_k gradient steps of length eta/tau_k in the second phase.

    Attributes:
        divides_rate: whether each of a party's tau_k steps has length eta/tau_k, with eta the solver's learning rate.
    """

    solver: LocalSolver
    mu: Annotated[ArrayLike, "[0, inf)"] = 0.1
    divides_rate: bool = eqx.field(static=True, default=False)
    needs_individual_replies: ClassVar[bool] = False
    replies_models: ClassVar[bool] = True

    def __check_init__(self) -> None:
        if self.divides_rate and not isinstance(self.solver, SGD | GD):
            raise InputError(f"FedDANE(divides_rate=True) needs gradient steps, got {type(self.solver).__name__}: "
                             "use SGD or GD")
        _check_unclipped("FedDANE", self.solver)

    @override
    def init(self, w0: Vector, shares: Float[Array, " N"]) -> FedDANEState:
        return FedDANEState(w0, w0)

    @property
    @override
    def phases(self) -> tuple[Phase, ...]:
        return (Phase(lambda state, k: state.model, self._gradient, self._average_gradients),
                Phase(lambda state, k: state, self._solve, self._average_models, lambda message: message.model))

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


def _check_unclipped(method: str, solver: LocalSolver, advice: str = "") -> None:
    """Refuse steps along clipped gradients where they are corrected by a gradient that is not."""
    if isinstance(solver, SGD) and solver.clip is not None:
        raise InputError(f"{method} corrects the local steps by gradients at the shared model, which are not clipped, "
                         f"so that it would stop at another model: leave clip out{advice}")
