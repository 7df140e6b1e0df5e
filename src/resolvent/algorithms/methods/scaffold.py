r"""Scaffold: FedAvg with control variates that cancel the drift of parties that differ.

.. code-block:: text

    party:   w_k = local steps on f_k + <c - c_k, .> from w~
             c_k+ = grad f_k(w~)                          (option I)
             c_k+ = c_k - c + (w~ - w_k) / (steps*eta)    (option II)
    server:  w~ <- w~ + eta_g * mean(w_k - w~);   c <- c + sum over replies of lambda_k (c_k+ - c_k)

Source: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, *SCAFFOLD: Stochastic Controlled ModelAggregation for Federated
Learning*, Algorithm 1. Here c is the weighted mean of all c_k under any sampling and any drop-outs.
"""

from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from resolvent.algorithms.algorithm import Info, Method, Phase, Replies, local_work
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers.solver import GD, SGD
from resolvent.problem.subproblem import Subproblem

__all__ = ["Option", "Scaffold"]

Option = Literal["I", "II"]
Pair = tuple[Vector, Vector]


class Scaffold(Method):
    """Scaffold, options I and II.

    Attributes:
        solver: gradient steps; option II reads their length and number.
        option: ``I``, a gradient at the shared model, or ``II``, the average of the gradients that were used.
        server_rate: eta_g.
    """

    solver: SGD | GD
    option: Option = eqx.field(static=True, default="II")
    server_rate: ArrayLike = 1.0
    needs_individual_replies: ClassVar[None] = None
    replies_models: ClassVar[bool] = False

    def __check_init__(self) -> None:
        if self.option not in ("I", "II"):
            raise ValueError(f"Scaffold(option={self.option!r}) is not known: use 'I' or 'II'")

    def init(self, w0: Vector, weights: Float[Array, " N"]) -> Pair:
        """The shared model and c = 0."""
        return w0, jax.tree.map(jnp.zeros_like, w0)

    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> Vector:
        """c_k = 0."""
        return jax.tree.map(jnp.zeros_like, w0)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """One phase."""
        return (Phase(self._message, self._party, self._server),)

    def _message(self, state: Pair, k: Int[Array, ""]) -> Pair:
        return state

    def _party(self, own: Vector, message: Pair, oracle: Oracle, key: Array,
               effort: Float[Array, ""]) -> tuple[Vector, Pair, Info]:
        shared, c = message
        w, info = local_work(self.solver, Subproblem(oracle, shared, 0.0, tree.sub(c, own)), shared, key, effort)
        moved = tree.sub(w, shared)
        if self.option == "I":
            new = oracle.grad(shared)
        else:
            new = tree.axpy(-1 / (info["steps"] * self.solver.learning_rate), moved, tree.sub(own, c))
        return new, (moved, tree.sub(new, own)), info

    def _server(self, state: Pair, replies: Replies, key: Array) -> tuple[Pair, Info]:
        shared, c = state
        moves, changes = replies.payload
        return (tree.axpy(self.server_rate, replies.mean(moves), shared), tree.axpy(1, replies.total(changes), c)), {}

    def personal_model(self, state: Vector, message: Pair, oracle: Oracle) -> Vector:
        """The shared model."""
        return message[0]

    def server_model(self, state: Pair) -> Vector:
        """The shared model."""
        return state[0]

    def reply_like(self, w0: Vector) -> tuple[Pair]:
        """Two differences."""
        return ((w0, w0),)
