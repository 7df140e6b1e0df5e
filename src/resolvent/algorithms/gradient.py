r"""The distributed gradient method: parties send gradients, the server steps.

.. code-block:: text

    w~ <- w~ - gamma * A(grad f_1(w~), ..., grad f_N(w~))

On FedMix it is (DGD) of the poster; compressed without memory DCGD, with memory DIANA.
"""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from resolvent.algorithms.aggregators import Aggregator, Mean
from resolvent.algorithms.algorithm import Elementary, Info, PartyState, Phase, Replies
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle

__all__ = ["DistributedGradient"]


class DistributedGradient(Elementary):
    """Gradient descent with the gradients made at the parties, over all of their samples, whatever their effort.

    Attributes:
        learning_rate: gamma, the server's step.
        aggregator: A; the mean makes it gradient descent on the average loss.
    """

    learning_rate: ArrayLike
    aggregator: Aggregator = Mean()
    replies_models: ClassVar[bool] = False

    def init(self, w0: Vector, weights: Float[Array, " N"]) -> Vector:
        """The server holds the shared model."""
        return w0

    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> PartyState:
        """A party keeps nothing."""
        return ()

    @property
    def phases(self) -> tuple[Phase, ...]:
        """One phase."""
        return (Phase(self._message, self._party, self._server),)

    def _message(self, shared: Vector, k: Int[Array, ""]) -> Vector:
        return shared

    def _party(self, state: PartyState, shared: Vector, oracle: Oracle, key: Array,
               effort: Float[Array, ""]) -> tuple[PartyState, Vector, Info]:
        one = jnp.ones((), tree.dtype(shared))
        return state, oracle.grad(shared), {"model": shared, "steps": one, "inexactness": one}

    def _server(self, shared: Vector, replies: Replies, key: Array) -> tuple[Vector, Info]:
        gradient, info = self.aggregator(replies)
        return tree.axpy(-jnp.asarray(self.learning_rate), gradient, shared), info

    def deploy(self, state: PartyState, message: Vector, oracle: Oracle) -> Vector:
        """The shared model."""
        return message

    def server_model(self, state: Vector) -> Vector:
        """The shared model."""
        return state

    def iterate(self, state: Vector) -> Vector:
        """The shared model, which a round maps to the next."""
        return state

    def with_iterate(self, state: Vector, point: Vector) -> Vector:
        """The shared model at another point."""
        return point
