r"""The distributed gradient method: parties send gradients, the server steps.

.. code-block:: text

    w~ <- w~ - gamma * A(grad f_1(w~), ..., grad f_N(w~))

On FedMix it is (DGD) of the poster; compressed without memory DCGD, with memory DIANA.
"""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from resolvent.algorithms.aggregators.aggregator import Aggregator, Mean
from resolvent.algorithms.algorithm import Info, PartyState, Replies, SharedModelMethod
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle

__all__ = ["DistributedGradient"]


class DistributedGradient(SharedModelMethod):
    """Gradient descent with the gradients made at the parties, over all of their samples, whatever their effort.

    Attributes:
        learning_rate: gamma, the server's step.
        aggregator: A; the mean makes it gradient descent on the average loss.
    """

    learning_rate: ArrayLike
    aggregator: Aggregator = Mean()
    replies_models: ClassVar[bool] = False

    def party(self, state: PartyState, shared: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[PartyState, Vector, Info]:
        """The party's gradient at the shared model."""
        one = jnp.ones((), tree.dtype(shared))
        return state, oracle.grad(shared), {"model": shared, "steps": one, "inexactness": one}

    def server(self, shared: Vector, replies: Replies, key: Array) -> tuple[Vector, Info]:
        """A step along the aggregate."""
        gradient, info = self.aggregator(replies)
        return tree.axpy(-jnp.asarray(self.learning_rate), gradient, shared), info
