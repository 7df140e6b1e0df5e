r"""The distributed gradient method: parties send gradients, the server steps.

.. code-block:: text

    w~ <- w~ - gamma * A(grad f_1(w~), ..., grad f_N(w~))

On FedMix's mixtures it is (DGD) of the poster; with compression it is DCGD without shifts and DIANA with shifts.
EF21-SGDM is ``Compressed`` around ``Momentum`` around its stochastic gradients.
"""

from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, PartyState, Replies
from resolvent.algorithms.methods.aggregation import AggregatingMethod
from resolvent.errors import check_range
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers.batches import Shuffled

__all__ = ["DistributedGradient", "draw_gradient"]


class DistributedGradient(AggregatingMethod):
    """Gradient descent whose gradients are computed at the parties, whatever their effort.

    Attributes:
        learning_rate: gamma, the server's step size.
        batch_size: samples of each gradient; default: all samples of the party.
    """

    learning_rate: ArrayLike
    batch_size: int | None = eqx.field(static=True, default=None)
    replies_models: ClassVar[bool] = False

    def __check_init__(self) -> None:
        check_range(self, "[1, inf)", batch_size=self.batch_size)

    @override
    def party(self, state: PartyState, shared: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[PartyState, Vector, Info]:
        unit = jnp.ones((), tree.dtype(shared))
        gradient = draw_gradient(oracle, self.batch_size, key)(shared)
        return state, gradient, {"model": shared, "steps": unit, "inexactness": unit}

    @override
    def server(self, shared: Vector, replies: Replies, key: Array) -> tuple[Vector, Info]:
        gradient, info = self.aggregator(replies, key=key)
        return tree.axpy(-jnp.asarray(self.learning_rate), gradient, shared), info


def draw_gradient(oracle: Oracle, batch_size: int | None, key: Array) -> Callable[[Vector], Vector]:
    """The gradient of f_k as a function of the point: over all samples, or over one minibatch for all points.

    The key is that of the minibatch and of random layers.
    """
    if batch_size is None:
        return oracle.grad
    positions, mask = Shuffled().draw(key, jnp.zeros(1, jnp.int32), oracle.samples, batch_size)
    of_step = oracle.at_step(key) if oracle.has_random_layers else oracle
    return lambda w: of_step.batch_grad(w, positions[0], mask[0])
