r"""Scaffold: FedAvg with control variates that cancel the drift of heterogeneous parties.

.. code-block:: text

    party:   w_k = local steps on f_k + <c - c_k, .> from w~
             c_k+ = grad f_k(w~)                          (option I)
             c_k+ = c_k - c + (w~ - w_k) / (steps*eta)    (option II)
    server:  w~ <- w~ + eta_g * mean(w_k - w~);   c <- c + sum over replies of lambda_k (c_k+ - c_k)

Source: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, *SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning*, Algorithm 1. Here c is the weighted mean of all c_k under any sampling and any drop-outs.
"""

from typing import ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, OnePhaseMethod, Replies, local_work
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers import GD, SGD
from resolvent.problem.subproblem import Subproblem

__all__ = ["Option", "Scaffold", "ScaffoldReply", "ScaffoldState"]

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
    """Scaffold, options I and II. A party stores its control variate c_k.

    Attributes:
        solver: gradient steps; option II reads their learning rate and their number.
        option: ``I``, a gradient at the shared model, or ``II``, the average of the gradients that were used.
        server_rate: eta_g.
    """

    solver: SGD | GD
    option: Option = eqx.field(static=True, default="II")
    server_rate: ArrayLike = 1.0
    needs_individual_replies: ClassVar[bool] = False
    replies_models: ClassVar[bool] = False

    def __check_init__(self) -> None:
        if self.option not in ("I", "II"):
            raise InputError(f"Scaffold(option={self.option!r}) is not known: use 'I' or 'II'")

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
