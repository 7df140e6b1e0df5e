r"""The distributed gradient method: parties send gradients, the server steps.

.. code-block:: text

    w~ <- w~ - gamma * A(grad f_1(w~), ..., grad f_N(w~))

On FedMix's mixtures it is (DGD) of the poster; with compression it is DCGD without shifts and DIANA with shifts.
"""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float
from typing_extensions import override

from resolvent.algorithms.aggregators import Aggregator, Mean
from resolvent.algorithms.algorithm import Info, PartyState, Replies, SharedModelMethod
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle

__all__ = ["DistributedGradient"]


class DistributedGradient(SharedModelMethod):
    """Gradient descent whose gradients are computed at the parties, over all their samples at any effort.

    Attributes:
        learning_rate: gamma, the server's step size.
        aggregator: A; with the mean this is gradient descent on the average loss.
    """

    learning_rate: ArrayLike
    aggregator: Aggregator = Mean()
    replies_models: ClassVar[bool] = False

    @property
    @override
    def needs_individual_replies(self) -> bool:
        return not self.aggregator.linear

    @override
    def party(self, state: PartyState, shared: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[PartyState, Vector, Info]:
        unit = jnp.ones((), tree.dtype(shared))
        return state, oracle.grad(shared), {"model": shared, "steps": unit, "inexactness": unit}

    @override
    def server(self, shared: Vector, replies: Replies, key: Array) -> tuple[Vector, Info]:
        gradient, info = self.aggregator(replies, key=key)
        return tree.axpy(-jnp.asarray(self.learning_rate), gradient, shared), info
