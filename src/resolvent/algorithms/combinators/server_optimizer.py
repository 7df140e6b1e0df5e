"""Server optimizers: the server's update taken as a gradient by any optax optimizer.

With w+ what the inner server would make of the replies, w - w+ is the pseudo-gradient. A rate of 1 without momentum is
the inner algorithm; a rate below 1 on FedAvg is Reptile's server step. Source: Reddi et al., *Adaptive Federated
Optimization*; Hsu et al. (FedAvgM); Nichol et al. (Reptile).
"""

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import optax
from jaxtyping import Array, Float

from resolvent.algorithms.algorithm import Info, Replies
from resolvent.algorithms.combinators.combinator import Combinator, HoldsIterate, InnerServer, Memory, holder_of
from resolvent.math import tree
from resolvent.math.tree import Vector

__all__ = ["ServerOptimizer"]


class OptimizerState(Memory):
    """The inner server's state and the optimizer's."""

    optimizer: Any


class ServerOptimizer(Combinator):
    """An algorithm whose server takes an optimizer's step where it would have moved.

    Attributes:
        inner: an algorithm of one phase whose server holds the iterate.
        make: an optax optimizer, such as ``optax.adam``.
        settings: its arguments; they are data, so another value does not compile again.

    Raises:
        TypeError: the inner algorithm's server holds no iterate.
    """

    make: Callable[..., Any] = eqx.field(static=True)
    settings: dict[str, float]
    remembers: ClassVar[bool] = True

    def __check_init__(self) -> None:
        _ = self._held
        known = inspect.signature(self.make)
        try:
            known.bind(**self.settings)
        except TypeError as error:
            raise TypeError(f"ServerOptimizer({self.make.__name__}) got {self.settings}: {error}: use settings such as "
                            f"{', '.join(known.parameters)}") from error

    @property
    def _held(self) -> HoldsIterate:
        return holder_of(self.inner, "ServerOptimizer", "fedavg(...), fedprox(...) or rfa(...)")

    def init(self, w0: Vector, weights: Float[Array, " N"]) -> OptimizerState:
        """The inner state and a fresh optimizer."""
        inner = self.inner.init(w0, weights)
        return OptimizerState(inner, self.make(**self.settings).init(self._held.iterate(inner)))

    def server(self, inner: InnerServer, state: OptimizerState, replies: Replies,
               key: Array) -> tuple[OptimizerState, Info]:
        """Take the optimizer's step."""
        after, info = inner(state.inner, replies, key)
        point = self._held.iterate(state.inner)
        pseudo_gradient = tree.sub(point, self._held.iterate(after))
        update, memory = self.make(**self.settings).update(pseudo_gradient, state.optimizer, point)
        moved = optax.apply_updates(point, update)
        return OptimizerState(self._held.with_iterate(after, moved), memory), info
