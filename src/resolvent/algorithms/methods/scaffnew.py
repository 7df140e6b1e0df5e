r"""Scaffnew (ProxSkip): gradient steps with control variates, and an exchange after a random number of steps.

.. code-block:: text

    phase 1:  x_k = L gradient steps of length gamma on f_k - <h_k, .> from w~,   L ~ Geometric(p), the same for all
              w~ <- mean of x_k
    phase 2:  h_k <- h_k + p/gamma (w~ - x_k)

ProxSkip flips a coin after every step and communicates with probability p; a round here is the steps between two
exchanges. At a fixed point h_k = grad f_k(w~), and sum_k lambda_k h_k stays 0. On losses that are mu-strongly convex
and L-smooth, gamma = 1/L and p = sqrt(mu/L) need O(sqrt(L/mu) log(1/eps)) exchanges, where gradient descent needs
O(L/mu log(1/eps)).

Source: Mishchenko, Malinovsky, Stich, Richtarik, *ProxSkip: Yes! Local Gradient Steps Provably Lead to Communication
Acceleration! Finally!*, Algorithm 2. The second phase sends the new mean to the parties of the round, so that the
control variates of a sampled cohort also sum to what they summed to before.
"""

from dataclasses import replace
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, Message, Method, Phase, Replies, local_work
from resolvent.algorithms.keys import substep_key
from resolvent.errors import check_range
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers import GD, SGD
from resolvent.problem.subproblem import Subproblem

__all__ = ["Scaffnew", "ScaffnewParty", "ScaffnewState"]


class ScaffnewState(NamedTuple):
    """The server's state, which is also the message of both phases."""

    model: Vector  # w~
    steps: Int[Array, ""]  # L, the number of steps until the next exchange


class ScaffnewParty(NamedTuple):
    """A party's state."""

    control: Vector  # h_k
    model: Vector  # x_k, the model that it sent last


class Scaffnew(Method):
    """Scaffnew. A party stores its control variate and the model that it sent last.

    Attributes:
        solver: gradient steps; its learning rate is gamma, and its number of steps is replaced by the drawn one.
        p: probability of an exchange after a step, in (0, 1]; the expected number of steps is 1/p.
    """

    solver: SGD | GD
    p: ArrayLike = 0.1
    needs_individual_replies: ClassVar[bool] = False
    replies_models: ClassVar[bool] = False

    def __check_init__(self) -> None:
        check_range(self, "(0, 1]", p=self.p)

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
